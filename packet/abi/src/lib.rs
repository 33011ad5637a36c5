//! ringway-abi
