//! What is measured.

pub mod calibrate;
pub mod capture;
pub mod engine;
pub mod kernel_path;
pub mod lb;
pub mod packet;
pub mod tcp;
