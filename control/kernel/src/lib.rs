//! ringway-kernel
