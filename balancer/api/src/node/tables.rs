//! Enters the tables into the document.

use std::collections::HashMap;

use ringway_abi::FlowState;
use ringway_abi::raw::{rw_ledger, rw_traffic};
use ringway_kernel::{BackendState, DEFAULT_BPFFS, ServiceState, View};

use crate::clock::Timestamp;
use crate::documents::status::{
    Backend, Capture, Counter, FlowTable, Ledger, Loss, Observed, Problem, Status, Tracked,
};
use crate::problem_kind::ProblemKind;

/// The flow table as it is now.
pub fn flow_table(view: &View) -> ringway_kernel::Result<FlowTable> {
    let counts = view.flows()?;
    let states = FlowState::all().map(|state| (state, counts.in_state(state)));
    Ok(FlowTable {
        capacity_flows: counts.capacity,
        current_flows: counts.total(),
        current_flows_by_state: states.filter(|(_, count)| *count > 0).collect(),
        by_backend: counts
            .by_backend
            .iter()
            .map(|(of, flows)| (*of, flows.tcp + flows.udp))
            .collect(),
        age_ms: 0,
    })
}

/// The captures under way; a status without them is better than none.
pub fn captures(view: &View) -> Vec<Capture> {
    let Some(pins) = view.pins() else { return Vec::new() };
    let running = ringway_kernel::programs::capture::running(pins).unwrap_or_else(|error| {
        tracing::debug!(%error, "captures not listed");
        Vec::new()
    });
    let shown = running.into_iter().map(|one| Capture {
        pid: one.pid,
        command: command(one.pid),
        since: Timestamp(one.since),
        matched_packets: one.counts.matched,
        lost_packets: one.counts.lost,
    });
    shown.collect()
}

/// Command line of a process, as far as it can be seen from here.
pub fn command(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

/// Records of tracked flows as they are now.
pub fn tracked(view: &View) -> ringway_kernel::Result<Tracked> {
    let (counts, events) = (view.tracked_counts()?, view.tracking()?);
    Ok(Tracked {
        capacity_flows: counts.capacity,
        promoted_flows: counts.promoted,
        probation_flows: counts.on_probation,
        opened_flows: events.opened,
        adopted_flows: events.adopted,
        evicted_flows: events.evicted,
        refused_full_flows: events.refused_full,
        refused_quota_flows: events.refused_quota,
    })
}

/// What the shield would have dropped up to now.
pub fn shield_observed(view: &View) -> ringway_kernel::Result<Vec<Observed>> {
    let counts = view.shield_observed()?.into_iter();
    Ok(counts.map(|(reason, packets)| Observed { reason, packets, rate_pps: None }).collect())
}

/// A backend's flows now; `None` under dsr, or where they were not counted.
pub fn flows_now(
    service: &ServiceState,
    backend: &BackendState,
    by_backend: Option<&HashMap<u32, u64>>,
) -> Option<u64> {
    let nat = by_backend.filter(|_| !service.forward.is_dsr())?;
    Some(nat.get(&backend.reference()).copied().unwrap_or_default())
}

/// Enters one interface's counters.
pub fn count(status: &mut Status, place: usize, ledger: &rw_ledger) {
    let Some(interface) = status.interfaces.get_mut(place) else { return };
    interface.ledger = Ledger::new(ledger.seen, ledger.sum());
    interface.sent_packets = ledger.sent();
    let name = interface.name.clone();
    status.ledger.add(interface.ledger);
    status.counters.extend(ledger.entries().map(|(verdict, reason, packets)| Counter {
        interface: name.clone(),
        verdict,
        reason,
        packets,
        rate_pps: None,
    }));
    status.losses.extend(ledger.losses().map(|(loss, packets)| Loss {
        interface: name.clone(),
        reason: loss,
        packets,
        rate_pps: None,
    }));
}

/// The problem that losses are not counted, with the reason if it is known: a zero must not look
/// like no loss.
pub fn losses_uncounted(why: Option<&str>, interfaces: &[&str]) -> Problem {
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let each: Vec<String> = interfaces.iter().map(|name| format!("; ethtool -S {name}")).collect();
    ProblemKind::LossesUncounted.problem(
        format!("what the kernel drops after our verdict is not counted{why}"),
        format!("see what the devices count: ip -s link{}", each.concat()),
    )
}

/// That pins are below another mount. Whoever looks for them by their path finds none.
pub fn bpffs_covered() -> Option<Problem> {
    ringway_kernel::bpffs_is_covered(std::path::Path::new(DEFAULT_BPFFS)).then(|| {
        ProblemKind::BpffsCovered.problem(
            format!("another bpf file system is mounted on {DEFAULT_BPFFS}, over the one that was there first"),
            format!("umount {DEFAULT_BPFFS}"),
        )
    })
}

/// Enters one backend's traffic.
pub fn add_traffic(backend: &mut Backend, traffic: &rw_traffic) {
    (backend.flows, backend.evicted_flows) = (traffic.flows, traffic.evicted);
    backend.packets = traffic.packets;
    backend.is_counted = true;
    backend.bytes = traffic.bytes;
    backend.reply_packets = traffic.reply_packets;
    backend.reply_bytes = traffic.reply_bytes;
}
