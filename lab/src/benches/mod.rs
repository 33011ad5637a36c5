//! The benchmarks.

pub mod calibrate;
mod capture;
pub(crate) mod engine;
mod forward;
mod kernel_path;
mod lb;
pub(crate) mod packet;
mod shield;
pub mod tcp;

pub use capture::Capture;
pub use engine::Engine;
pub use forward::Forward;
pub(crate) use forward::measurable;
pub use kernel_path::KernelPath;
pub use lb::Lb;
pub use packet::Packet;
pub use shield::Shield;
pub use tcp::connect::TcpConnect;
pub use tcp::memory::TcpMemory;
pub use tcp::million::Million;
