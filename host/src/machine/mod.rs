//! The machine: the files of /proc and /sys, sysctls, the kernel and its memory.

pub(crate) mod host;
pub mod memory;
pub(crate) mod source;
pub mod sysctl;
pub mod system;
