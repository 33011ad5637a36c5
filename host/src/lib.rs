//! Facts about this machine, live or as captured.
//!
//! Everything here is synchronous and acts in the **calling thread's** network namespace: netlink
//! and ioctl sockets are opened per call, and `/proc` is read through `/proc/thread-self` where it
//! matters.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bypassed;
mod error;
pub mod ethtool;
pub mod firewall;
mod fix;
/// The machine: the files of /proc and /sys, sysctls, the kernel and its memory.
pub mod machine {
    pub(crate) mod host;
    pub(crate) mod source;
    pub mod system;
}
pub mod neighbour_packets;
pub mod netlink;
mod network;
pub mod nics;
mod packets_seen;
mod socket_options;
mod tap;
pub mod tcp_repair;
pub mod users;

pub use error::Error;
pub use fix::{Fix, SysctlValue, quoted, sysctl_name};
pub use machine::host::{Host, NETWORK};
pub use machine::source::{Files, Source};
pub use machine::system::trim_memory;
pub use neighbour_packets::announce::announce;
pub use neighbour_packets::who_has::who_has;
pub use netlink::monitor::{MonitorThread, NetlinkChange, NetlinkMonitor};
pub use network::{Interface, Network, interface_by_name};
pub use packets_seen::{Seen, SeenAt};
pub use ringway_wire::Mac;
pub use socket_options::{TcpOptions, bind_late, report_errors, set_mark, tcp_options};
pub use tap::Tap;

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
