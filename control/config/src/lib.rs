//! ringway-config
