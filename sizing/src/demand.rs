//! What a workload asks of machines on one road.

use serde::Serialize;

use crate::costs::{Costs, NsCost, Road};
use crate::workload::{Work, Workload};

/// Part of a machine's memory that sockets and state may take; the rest is the system's, and room for bursts.
pub(crate) const MEMORY: f64 = 0.8;
/// Part of a link that may be used on average.
pub(crate) const LINK: f64 = 0.7;
/// Ports of the default `ip_local_port_range`, 32768 to 60999 (Documentation/networking/ip-sysctl.rst).
pub(crate) const PORTS: u64 = 60_999 - 32_768 + 1;

/// What asks for the most machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Processor time of packets.
    Cores,
    /// Sockets, state, flows.
    Memory,
    /// The link.
    Bandwidth,
}

impl Limit {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Cores => "cores",
            Limit::Memory => "memory",
            Limit::Bandwidth => "bandwidth",
        }
    }
}

/// What a workload asks for on one road, all machines together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// Processors at the allowed business, for the workload's packets.
    pub cores: f64,
    /// Those of them in softirq.
    pub softirq_cores: f64,
    /// Processors more, for the attack's packets.
    pub attack_cores: f64,
    /// Bytes for sockets and flows.
    pub kernel_bytes: f64,
    /// Bytes for the program's state.
    pub state_bytes: f64,
    /// Bits a second, one way.
    pub bandwidth_bits: f64,
    /// Machines without a spare one.
    pub machines: u64,
    /// What asks for so many.
    pub limit: Limit,
}

/// Packets or messages a second that cost what the road says.
pub(crate) fn units(workload: &Workload) -> f64 {
    match workload.work {
        // A packet beyond messages costs its receiver about as much as a message: counted so, to be safe.
        Work::Connections => workload.messages_per_s() + workload.packets_pps,
        Work::Answer | Work::Forward => workload.packets_in_pps(),
    }
}

/// Where an attack dies: in the driver, if anybody measured that.
pub(crate) fn shield(costs: &Costs) -> Option<(Road, &NsCost)> {
    [Road::Xdp, Road::Kernel].into_iter().find_map(|road| Some((road, costs.drop.get(&road)?)))
}

/// None where the road does not lead there.
pub(crate) fn demand(workload: &Workload, costs: &Costs, road: Road) -> Option<Demand> {
    let cost = costs.of(workload.work, road)?;
    let cores = |ns: f64, rate: f64| rate * ns / 1e9 / workload.busy;
    let rate = units(workload);
    let attack = shield(costs).map_or(0.0, |(_, cost)| cores(cost.ns, workload.attack_pps));
    let kernel_bytes = match workload.work {
        Work::Connections => {
            workload.connections as f64 * costs.established.bytes
                + workload.time_wait as f64 * costs.time_wait.bytes
        }
        Work::Answer => 0.0,
        Work::Forward => workload.connections as f64 * costs.flow.bytes,
    };
    let state_bytes = workload.connections as f64 * workload.state_bytes as f64;
    let machine = &workload.machine;
    let bandwidth = workload.bandwidth_bits();
    let asks = [
        (
            Limit::Cores,
            (cores(cost.ns, rate) + attack) / (f64::from(machine.cores) * workload.share),
        ),
        (Limit::Memory, (kernel_bytes + state_bytes) / (machine.memory_bytes as f64 * MEMORY)),
        (Limit::Bandwidth, bandwidth / (machine.link_bits as f64 * LINK)),
    ];
    let most = asks.into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let (limit, most) = most.unwrap_or((Limit::Cores, 1.0));
    Some(Demand {
        cores: cores(cost.ns, rate),
        softirq_cores: cores(cost.softirq_ns, rate),
        attack_cores: attack,
        kernel_bytes,
        state_bytes,
        bandwidth_bits: bandwidth,
        // A rate that is met exactly needs no machine more for what floating point adds.
        machines: ((most - 1e-9).ceil() as u64).max(1),
        limit,
    })
}
