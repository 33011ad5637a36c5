//! ringway-net-tests
