//! ringway-host
