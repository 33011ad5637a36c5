//! ringway-lab
