//! The demand of a workload on one I/O path.

use serde::Serialize;

use crate::costs::{BytesCost, Costs, IoPath, NsCost};
use crate::workload::{Work, Workload};

/// Part of a machine's memory that sockets and state may take; the rest is the system's, and room
/// for bursts.
pub(crate) const MEMORY: f64 = 0.8;
/// Part of a link that may be used on average.
pub(crate) const LINK: f64 = 0.7;
/// The default `ip_local_port_range` (Documentation/networking/ip-sysctl.rst).
pub const DEFAULT_PORTS: (u16, u16) = (32_768, 60_999);
/// The widest that leaves the ports of services alone.
pub(crate) const WIDE_PORTS: (u16, u16) = (1024, 65_535);

/// The resource that needs the most machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Processor time of packets.
    Cores,
    /// Sockets, state, flows.
    Memory,
    Bandwidth,
    /// Local ports of connections that are made from here.
    Ports,
}

impl Limit {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Cores => "cores",
            Limit::Memory => "memory",
            Limit::Bandwidth => "bandwidth",
            Limit::Ports => "ports",
        }
    }
}

/// The resources that a workload needs on one I/O path, all machines together.
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
    /// Machines that each asks for.
    pub asked: MachineShares,
    /// Machines without a spare one.
    pub machines: u64,
    /// The resource that needs so many.
    pub limit: Limit,
}

/// Machines that each resource needs, as fractions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MachineShares {
    /// Processor time of packets.
    pub cores: f64,
    /// Sockets, state, flows.
    pub memory: f64,
    pub bandwidth: f64,
    /// Local ports; 0 where connections are accepted.
    pub ports: f64,
}

/// Packets or messages a second that cost what the path says.
pub(crate) fn units(workload: &Workload) -> f64 {
    match workload.work {
        // A packet beyond messages costs its receiver about as much as a message: counted so, to be
        // safe.
        Work::Connections => workload.messages_per_s() + workload.packets(),
        Work::Answer | Work::Forward => workload.packets_in_pps(),
    }
}

/// The kernel's memory for a connection: it differs between connections made and accepted here.
pub(crate) fn socket<'a>(workload: &Workload, costs: &'a Costs) -> &'a BytesCost {
    match (workload.work, workload.destinations) {
        (Work::Forward, _) => &costs.flow,
        (_, Some(_)) => &costs.connected,
        (_, None) => &costs.established,
    }
}

/// Where an attack dies: in the driver, if anybody measured that. DPDK has the NIC to itself: no
/// XDP program sees what comes, and the program drops it, for no more than what a packet costs it.
pub(crate) fn shield<'a>(
    workload: &Workload,
    costs: &'a Costs,
    io_path: IoPath,
) -> Option<(IoPath, &'a NsCost)> {
    if io_path == IoPath::Dpdk {
        return Some((io_path, costs.of(workload.work, io_path)?));
    }
    [IoPath::Xdp, IoPath::Kernel]
        .into_iter()
        .find_map(|io_path| Some((io_path, costs.drop.get(&io_path)?)))
}

/// None where the path does not lead there.
pub(crate) fn demand(workload: &Workload, costs: &Costs, io_path: IoPath) -> Option<Demand> {
    let cost = costs.of(workload.work, io_path)?;
    let cores = |ns: f64, rate: f64| rate * ns / 1e9 / workload.busy;
    let rate = units(workload);
    let attack = shield(workload, costs, io_path)
        .map_or(0.0, |(_, cost)| cores(cost.ns, workload.attack_pps));
    let kernel_bytes = match workload.work {
        Work::Connections => {
            workload.connections as f64 * socket(workload, costs).bytes
                + workload.time_wait as f64 * costs.time_wait.bytes
        }
        Work::Answer => 0.0,
        Work::Forward => workload.connections as f64 * costs.flow.bytes,
    };
    let state_bytes = workload.connections as f64 * workload.state_bytes as f64;
    let machine = &workload.machine;
    let bandwidth = workload.bandwidth_bits();
    let own = cores(cost.ns, rate);
    let asked = MachineShares {
        cores: (own + attack) / (f64::from(machine.cores) * workload.share),
        memory: (kernel_bytes + state_bytes) / (machine.memory_bytes as f64 * MEMORY),
        bandwidth: bandwidth / (machine.link_bits as f64 * LINK),
        ports: workload.destinations.map_or(0.0, |destinations| {
            let sockets = workload.connections as f64 + workload.time_wait as f64;
            sockets / (workload.ports() as f64 * destinations.max(1) as f64)
        }),
    };
    let (limit, most) = asked.most();
    Some(Demand {
        cores: own,
        softirq_cores: cores(cost.softirq_ns, rate),
        attack_cores: attack,
        kernel_bytes,
        state_bytes,
        bandwidth_bits: bandwidth,
        asked,
        machines: whole(most),
        limit,
    })
}

/// A rate that is met exactly needs no machine more for what floating point adds.
fn whole(machines: f64) -> u64 {
    ((machines - 1e-9).ceil() as u64).max(1)
}

impl MachineShares {
    /// Machines that there are whatever packets cost.
    pub(crate) fn anyway(&self) -> u64 {
        whole(self.memory.max(self.bandwidth).max(self.ports))
    }

    /// The most, and what asks for it.
    fn most(&self) -> (Limit, f64) {
        let mut most = (Limit::Cores, self.cores);
        let others = [
            (Limit::Memory, self.memory),
            (Limit::Bandwidth, self.bandwidth),
            (Limit::Ports, self.ports),
        ];
        for (limit, asks) in others {
            if asks > most.1 {
                most = (limit, asks);
            }
        }
        most
    }
}
