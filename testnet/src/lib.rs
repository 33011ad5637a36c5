//! ringway-testnet
