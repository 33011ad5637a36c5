//! plan
pub mod tables;
