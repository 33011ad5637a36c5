//! The real `ringway` between real clients and backends, each in a network namespace of its own.
//!
//! A [`Site`] is a network with backends; a [`Gateway`] is `ringway run` in it. What a test builds
//! goes when it is dropped, and what a killed run left goes when the next one begins.

mod binary;
mod cable;
mod cgroup;
mod client;
mod flows;
mod frozen;
mod gateway;
mod held_file;
mod kernel_counts;
mod kernel_objects;
mod lan;
mod load;
pub mod raw_tcp;
mod rtnl;
mod server;
mod site;
mod steady;
mod tunnel;

pub use binary::{
    Ran, lab_path as lab_binary, path as binary, previous, ringway, ringway_lab, tool, tree,
    write_secret,
};
pub use cable::{Cable, Checksums, Through};
pub use cgroup::Cgroup;
pub use client::{
    Flow, Line, all_answered, ask_udp, ask_udp_within, bulk, get, http, http_raw, is_silent,
    no_checksum, no_ping_is_lost, udp_to,
};
pub use flows::Flows;
pub use frozen::Frozen;
pub use gateway::{Gateway, packets, remove_stale_pins};
pub use held_file::HeldFile;
pub use kernel_counts::{Device, RunCounts, detach_as_somebody_else, detach_link, swap_link};
pub use kernel_objects::KernelObjects;
pub use lan::Lan;
pub use load::{Load, Outcome};
pub use rtnl::RtnlHeld;
pub use server::{Bulk, Dns, Echo, Named, Responder};
pub use site::{
    CHECK, ECHO, METRICS, SERVICE_V4, SERVICE_V6, Site, WEB, behind_small_link, configuration,
    service,
};
pub use steady::{Numbered, Transfer};
pub use tunnel::{Tunnel, Wrap};

use std::time::Duration;

/// For what happens within a second, on a machine whose two processors are busy. What takes longer
/// by design (a probe of the kernel's, an election) is waited for as long as it may take, by a
/// constant of its own.
pub const SOON: Duration = Duration::from_secs(30);

/// A daemon's way from its start to serving: the verifier reads all programs, beside other
/// verifiers.
pub const STARTED: Duration = Duration::from_secs(90);

/// Says past the test harness, which swallows what passing tests print, that something could not be
/// tested on this machine.
pub fn not_tested(what: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {what}");
}

/// Whether a module of the kernel is loaded already. Tests load none: those of tunnels leave a
/// device in every namespace, the machine's first one too.
pub fn module_is_loaded(name: &str) -> bool {
    std::path::Path::new("/sys/module").join(name).exists()
}

/// Skips the calling test, aloud, where it cannot run: it needs root. With `CI=true` it panics
/// instead.
#[macro_export]
macro_rules! needs_root {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        if !ringway_testnet::root_or_skip(name) {
            return Ok(());
        }
        $crate::remove_stale_pins()?;
    }};
}
