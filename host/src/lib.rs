//! Facts about this machine, live or as captured.
//!
//! Everything here is synchronous and acts in the **calling thread's** network namespace: netlink and
//! ioctl sockets are opened per call, and `/proc` is read through `/proc/thread-self` where it matters.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod addresses;
mod announce;
pub mod bridge;
pub mod counters;
mod error;
pub mod ethtool;
pub mod firewall;
mod host;
pub mod links;
mod mac;
pub mod memory;
mod monitor;
pub mod multicast;
pub mod neighbours;
mod netdev;
mod netlink;
mod network;
pub mod qdiscs;
pub mod queues;
pub mod routes;
pub mod rules;
mod socket;
pub mod sockets;
mod source;
pub mod sysctl;
pub mod system;
mod tap;
mod who_has;
pub mod xdp_features;
pub mod xdp_sockets;

pub use announce::{announce, gratuitous_arp, unsolicited_na};
pub use error::Error;
pub use host::{Host, NETWORK};
pub use mac::{Mac, ParseMacError};
pub use monitor::{Change, Monitor, MonitorThread};
pub use network::{Interface, Network, interface_by_name};
pub use socket::{bind_late, report_errors, set_mark};
pub use source::{Files, Source};
pub use tap::Tap;
pub use who_has::who_has;

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
