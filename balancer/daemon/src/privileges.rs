//! Capabilities that the daemon keeps, and those that it gives up.
//!
//! The kernel verifies programs that compute addresses from packets, and lets tracepoints be read,
//! only for CAP_PERFMON. That is needed while programs are loaded: at the start, and where there is
//! a shield, whose program is loaded anew when its lists or rules change. What runs without one is
//! left with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, and what it starts (checks of type exec) with
//! nothing.

use ringway_api::error::Error;
use ringway_api::node::service_manager;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
};

/// Capabilities that every daemon runs with.
const KEPT: CapabilitySet =
    CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::NET_RAW);

/// Whether programs can be loaded.
pub fn may_load() -> bool {
    capabilities(None).is_ok_and(|now| now.effective.contains(CapabilitySet::PERFMON))
        || rustix::process::geteuid().is_root()
}

/// The command that starts this daemon anew: only that gives it the right to load programs again.
pub fn restart() -> String {
    service_manager::restart(std::process::id().into(), false)
}

/// Gives up everything but [`KEPT`], and the right to load programs if `loads`, in the calling
/// thread and those that it will start: call it before there are others. A daemon of root's keeps
/// what root has: its files may be anybody's.
///
/// # Errors
/// The kernel refuses, which it has no reason to.
pub fn give_up(loads: bool) -> Result<(), Error> {
    if rustix::process::geteuid().is_root() {
        tracing::info!(
            "running as root; as user ringway (docs: SECURITY.md) three capabilities are enough"
        );
        return Ok(());
    }
    let failed = |errno: rustix::io::Errno| {
        Error::failed(format!("capabilities cannot be given up: {errno}"), "")
    };
    let now = capabilities(None).map_err(failed)?;
    clear_ambient_capability_set().map_err(failed)?;
    let loading = if loads { CapabilitySet::PERFMON } else { CapabilitySet::empty() };
    let kept = now.permitted & KEPT.union(loading);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed)
}
