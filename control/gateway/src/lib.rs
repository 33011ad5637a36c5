//! ringway-gateway
