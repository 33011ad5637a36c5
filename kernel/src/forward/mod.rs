//! Forwarding between interfaces, beside a Linux bridge or the kernel's routes (bpf/forward).
//!
//! The program and its tables are made anew with each start, in place of the former ones; nothing
//! of them is pinned. The program takes them for true until a second that whoever keeps them puts
//! off ([`ForwardTables::keep`]): then all frames are the kernel's.

mod control;
pub(crate) mod instance;
mod tables;

pub use instance::ForwardState;
pub(crate) use instance::{Instance, load_dry, load_for_capture};
pub use tables::{ForwardTables, Port, PortVlans, ReversePath, StationPlace};
