//! Network namespaces and veth topologies that clean up after themselves.
//!
//! A [`Namespace`] is a bind mount `/run/netns/NAME` (so `ip netns` and `nsenter --net=` see it)
//! that goes when its last handle is dropped. Its name carries its owner's pid and start time, so
//! that whatever a killed owner left behind is swept away by the next process that makes a
//! namespace.
//!
//! ```no_run
//! # fn main() -> ringway_testnet::Result<()> {
//! use ringway_testnet::{End, Namespace, VethOptions, veth};
//! let a = Namespace::new("a")?;
//! let b = Namespace::new("b")?;
//! veth(
//!     &End::new(&a, "eth0").address("10.0.0.1/24"),
//!     &End::new(&b, "eth0").address("10.0.0.2/24"),
//!     &VethOptions::default(),
//! )?;
//! let status = a.command("ping").args(["-c1", "10.0.0.2"]).status();
//! # let _ = status; Ok(()) }
//! ```
//! Needs root.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::io::Write as _;

mod error;
mod link;
mod namespace;
mod nginx;
mod owner;
mod pass;
mod sweep;
pub mod tools;
mod topology;
mod wait;

pub use error::Error;
pub use link::{End, Link, VethOptions, bridge, veth};
pub use namespace::process::{Child, Finished, join_cgroup};
pub use namespace::{Namespace, private_run};
pub use nginx::Nginx;
pub use owner::keep_everything;
pub use pass::{XdpReceive, attach_generic_pass, attach_pass, detach_pass, enable_napi};
pub use rustix::process::Signal;
pub use sweep::{abandoned, keepers, remove_kept, remove_own, sweep};
pub use topology::{Families, Node, OneBridge, TwoArmed, one_bridge, two_armed};
pub use wait::{slowed, wait_for, wait_until};

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// For tests that need root: false, said aloud, when they cannot run here; see [`skip`].
pub fn root_or_skip(test: &str) -> bool {
    let wanted = std::env::var_os("RINGWAY_WITHOUT_ROOT").is_none();
    let root = wanted && rustix::process::geteuid().is_root();
    if !root {
        skip(test, "needs root");
    }
    root
}

/// Says that a test is skipped, past the test harness, which swallows what passing tests print.
/// Where `CI=true` is set it panics instead, so that a machine that should run all tests cannot
/// skip one unseen.
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let ci = std::env::var("CI").as_deref() == Ok("true");
    assert!(!ci, "{test}: {why}; CI=true forbids skipping it");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}
