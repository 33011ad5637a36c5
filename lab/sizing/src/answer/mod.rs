//! The answer: an I/O path, its reason and its demand.

pub(crate) mod changes;

use serde::Serialize;

use crate::Error;
use crate::costs::{Costs, IoPath, NsCost};
use crate::demand::{self, Demand, Limit, demand};
use crate::workload::{Work, Workload};
use changes::{InputChange, changes};

/// The size of one I/O path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoPathSize {
    #[serde(rename = "road")]
    pub io_path: IoPath,
    /// The cost of a packet or message on it, and its source; none if the path cannot do the work,
    /// or nobody measured it.
    pub cost: Option<NsCost>,
    /// Its demand; none as above.
    pub demand: Option<Demand>,
    /// Machines with one to spare; none as above.
    pub machines: Option<u64>,
    /// Packets or messages a second that one machine does on it, by its cores.
    pub most_per_s: Option<f64>,
    /// Why it is the one, or is not.
    pub why: String,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    #[serde(rename = "cores")]
    Cores,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "bit/s")]
    BitsPerSecond,
    #[serde(rename = "ports")]
    Ports,
    #[serde(rename = "queues")]
    Queues,
    #[serde(rename = "machines")]
    Machines,
}

/// A figure of the answer, how it comes about, and who measured what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub what: &'static str,
    pub value: f64,
    pub unit: Unit,
    pub how: String,
    /// By whose measurement, or rule.
    pub from: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// `ringway.size/2`
    pub schema: &'static str,
    pub workload: Workload,
    pub costs_of: String,
    /// Why these costs are to be taken with care, if they are.
    pub doubts: Vec<String>,
    #[serde(rename = "road")]
    pub io_path: IoPath,
    pub why: String,
    pub demand: Demand,
    /// Queues of a machine's NIC: one for each core that packets keep busy.
    pub nic_queues: u64,
    /// Machines with one to spare.
    pub machines: u64,
    #[serde(rename = "roads")]
    pub io_paths: Vec<IoPathSize>,
    /// Every figure with its source.
    pub lines: Vec<Line>,
    pub notes: Vec<String>,
    /// The rule of thumb, beside the calculation.
    pub rule_of_thumb: &'static str,
    pub rule_from: &'static str,
    /// Inputs that would change I/O path or machines.
    pub changes: Vec<InputChange>,
}

/// Sizes a workload.
///
/// # Errors
///
/// Where the workload contradicts itself, or the costs know no I/O path for it.
pub fn size(workload: &Workload, costs: &Costs) -> Result<Answer, Error> {
    workload.validate()?;
    let (io_path, why) = choose(workload, costs)?;
    let demand = demand(workload, costs, io_path)
        .ok_or_else(|| Error::Costs(format!("no cost of {}", io_path.name())))?;
    let chosen = (io_path, demand.machines);
    let io_paths = IoPath::ALL.map(|each| row(workload, costs, each, chosen, &why)).to_vec();
    let nic_queues = (per_machine(&demand).ceil() as u64).max(1);
    let machines = demand.machines + 1;
    Ok(Answer {
        schema: "ringway.size/2",
        costs_of: costs.machine.clone(),
        doubts: costs.doubts(),
        io_path,
        nic_queues,
        machines,
        io_paths,
        lines: lines(workload, costs, io_path, &demand, nic_queues),
        notes: notes(workload, costs, io_path, &demand),
        rule_of_thumb: rule_of_thumb(workload.packets_in_pps() + workload.attack_pps),
        rule_from: "a bidding platform's engineer, by packets/s of 50 bytes, an attack's among them",
        changes: changes(workload, costs, io_path, demand.machines),
        why,
        demand,
        workload: workload.clone(),
    })
}

/// Cores that packets keep busy on each machine.
fn per_machine(demand: &Demand) -> f64 {
    (demand.cores + demand.attack_cores) / demand.machines as f64
}

/// The simplest I/O path for which the share of cores of the machines is enough that there are
/// anyway, one at least; rather one that was measured here; if there is none, the one of fewest
/// machines.
pub(crate) fn choose(workload: &Workload, costs: &Costs) -> Result<(IoPath, String), Error> {
    let budget = f64::from(workload.machine.cores) * workload.share;
    let cores = |demand: &Demand| demand.cores + demand.attack_cores;
    let all: Vec<(IoPath, Demand)> = IoPath::ALL
        .into_iter()
        .filter_map(|io_path| Some((io_path, demand(workload, costs, io_path)?)))
        .collect();
    let here =
        |io_path: IoPath| costs.of(workload.work, io_path).is_some_and(|cost| !cost.elsewhere);
    let each = |demand: &Demand| cores(demand) / demand.asked.anyway() as f64;
    let fits = |(_, demand): &&(IoPath, Demand)| each(demand) <= budget;
    let first = all.iter().filter(|(io_path, _)| here(*io_path)).find(fits);
    if let Some((io_path, demand)) = first.or_else(|| all.iter().find(fits)) {
        let of = match demand.asked.anyway() {
            1 => String::new(),
            machines => format!(", {machines} of which there are anyway"),
        };
        let why = format!(
            "the simplest path on which packets take no more than {budget:.1} cores of a machine{of}: {:.2}",
            each(demand)
        );
        return Ok((*io_path, why));
    }
    // min_by takes the first of equals: the simpler path.
    let fewest = all.iter().min_by(|(_, a), (_, b)| a.machines.cmp(&b.machines));
    let (io_path, demand) =
        fewest.ok_or_else(|| Error::Costs(format!("no path for {}", workload.work.name())))?;
    let why = match all.len() {
        1 => format!(
            "the only path; its {:.1} cores are more than {budget:.1} of one machine",
            cores(demand)
        ),
        _ => format!(
            "{budget:.1} cores of one machine are enough on no path; this one takes the fewest machines, {}",
            demand.machines
        ),
    };
    Ok((*io_path, why))
}

fn row(
    workload: &Workload,
    costs: &Costs,
    io_path: IoPath,
    (chosen, machines): (IoPath, u64),
    why: &str,
) -> IoPathSize {
    let demand = demand(workload, costs, io_path);
    let most = costs.of(workload.work, io_path).map(|cost| {
        f64::from(workload.machine.cores) * workload.share * workload.busy * 1e9 / cost.ns
    });
    let why = match (&demand, most) {
        _ if io_path == chosen => why.to_owned(),
        _ if costs.of(workload.work, io_path).is_some_and(|cost| cost.elsewhere) => {
            "measured elsewhere: taken where no other is enough".to_owned()
        }
        (Some(demand), Some(_)) if demand.machines > machines => "takes more machines".to_owned(),
        (Some(_), Some(_)) if io_path > chosen => {
            format!("{} is simpler and does", chosen.name())
        }
        (Some(_), Some(_)) => "takes more of a machine than packets may have".to_owned(),
        _ => leads_nowhere(workload.work, io_path).to_owned(),
    };
    IoPathSize {
        io_path,
        cost: costs.of(workload.work, io_path).cloned(),
        machines: demand.as_ref().map(|demand| demand.machines + 1),
        demand,
        most_per_s: most,
        why,
    }
}

fn leads_nowhere(work: Work, io_path: IoPath) -> &'static str {
    match (work, io_path) {
        (Work::Connections, IoPath::Xdp | IoPath::AfXdp | IoPath::Dpdk) => {
            "ends before TCP: connections need the kernel's stack, or one of your own"
        }
        (Work::Answer, IoPath::Xdp) => "has no room for a program that answers: AF_XDP has",
        _ => "not measured",
    }
}

fn lines(
    workload: &Workload,
    costs: &Costs,
    io_path: IoPath,
    demand: &Demand,
    nic_queues: u64,
) -> Vec<Line> {
    let mut lines = cores(workload, costs, io_path, demand);
    lines.extend(memory(workload, costs, demand));
    lines.push(bandwidth(workload, demand));
    lines.extend(ports(workload, demand));
    lines.push(Line {
        what: "machines, without one to spare",
        value: demand.machines as f64,
        unit: Unit::Machines,
        how: machines(workload, demand),
        from: "the most of them".to_owned(),
    });
    lines.push(Line {
        what: "NIC queues, each machine",
        value: nic_queues as f64,
        unit: Unit::Queues,
        how: format!("one for each of {:.2} cores that packets keep busy", per_machine(demand)),
        from: "rule".to_owned(),
    });
    lines
}

fn machines(workload: &Workload, demand: &Demand) -> String {
    let (asked, machine) = (demand.asked, &workload.machine);
    let ports = workload.destinations.map_or_else(String::new, |destinations| {
        format!("; ports {:.3} of {} x {destinations}", asked.ports, workload.ports())
    });
    format!(
        "cores {:.3} of {} x {}; memory {:.3} of {} GiB x {}; link {:.3} of {} Gbit/s x {}{ports}",
        asked.cores,
        machine.cores,
        workload.share,
        asked.memory,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        demand::MEMORY,
        asked.bandwidth,
        machine.link_bits as f64 / 1e9,
        demand::LINK
    )
}

fn cores(workload: &Workload, costs: &Costs, io_path: IoPath, demand: &Demand) -> Vec<Line> {
    let mut lines = Vec::new();
    let (unit, busy) = (Unit::Cores, workload.busy);
    if let Some(cost) = costs.of(workload.work, io_path).filter(|_| demand.cores > 0.0) {
        let rate = demand::units(workload);
        let how = |ns: f64| format!("{}/s x {ns:.0} ns / {busy} busy", rounded(rate));
        let from = cost.from.clone();
        lines.push(Line { what: "cores", value: demand.cores, unit, how: how(cost.ns), from });
        lines.push(Line {
            what: "of them in softirq",
            value: demand.softirq_cores,
            unit,
            how: how(cost.softirq_ns),
            from: "the same".to_owned(),
        });
    }
    if let Some((at, cost)) =
        demand::shield(workload, costs, io_path).filter(|_| workload.attack_pps > 0.0)
    {
        let rate = rounded(workload.attack_pps);
        let how = format!("{rate}/s x {:.0} ns / {busy} busy, dropped by {}", cost.ns, at.name());
        let (what, value) = ("cores for the attack", demand.attack_cores);
        lines.push(Line { what, value, unit, how, from: cost.from.clone() });
    }
    lines
}

/// Messages of a few connections are fewer than one a second.
fn rounded(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

fn bandwidth(workload: &Workload, demand: &Demand) -> Line {
    let mut how = format!(
        "{} packets/s of {} bytes, each with 38 around it, 84 at least",
        rounded(workload.packets_in_pps()),
        workload.packet_bytes
    );
    if workload.attack_pps > 0.0 {
        how += &format!("; {}/s of 84 that attack", rounded(workload.attack_pps));
    }
    let from = "IEEE 802.3".to_owned();
    let (what, value) = ("bandwidth, one way", demand.bandwidth_bits);
    Line { what, value, unit: Unit::BitsPerSecond, how, from }
}

fn memory(workload: &Workload, costs: &Costs, demand: &Demand) -> Vec<Line> {
    let each = demand::socket(workload, costs);
    let (mut lines, unit) = (Vec::new(), Unit::Bytes);
    if demand.kernel_bytes > 0.0 {
        let mut parts = Vec::new();
        let mut from = Vec::new();
        if workload.connections > 0 {
            parts.push(format!("{} x {:.0}", workload.connections, each.bytes));
            from.push(each.from.as_str());
        }
        if workload.time_wait > 0 {
            let (sockets, cost) = (workload.time_wait, &costs.time_wait);
            parts.push(format!("{sockets} in TIME_WAIT x {:.0}", cost.bytes));
            from.push(cost.from.as_str());
        }
        from.dedup();
        let (how, from) = (parts.join(" + "), from.join("; "));
        lines.push(Line {
            what: "memory in the kernel",
            value: demand.kernel_bytes,
            unit,
            how,
            from,
        });
    }
    if demand.state_bytes > 0.0 {
        let how = format!("{} x {}", workload.connections, workload.state_bytes);
        let (what, value) = ("memory of the program", demand.state_bytes);
        lines.push(Line { what, value, unit, how, from: "as given".to_owned() });
    }
    lines
}

/// Connections that are made from here need a port each, towards each destination; each machine has
/// ports of its own.
fn ports(workload: &Workload, demand: &Demand) -> Option<Line> {
    let destinations = workload.destinations?;
    let sockets = workload.connections + workload.time_wait;
    let used = sockets.div_ceil(demand.machines).div_ceil(destinations.max(1));
    let (first, last) = workload.ports;
    Some(Line {
        what: "ports towards each destination",
        value: used as f64,
        unit: Unit::Ports,
        how: format!(
            "{sockets} / {} machines / {destinations} destinations, of {} ({first}-{last})",
            demand.machines,
            workload.ports()
        ),
        from: match workload.ports {
            demand::DEFAULT_PORTS => {
                "the kernel's default, net.ipv4.ip_local_port_range".to_owned()
            }
            _ => "as given".to_owned(),
        },
    })
}

fn notes(workload: &Workload, costs: &Costs, io_path: IoPath, demand: &Demand) -> Vec<String> {
    let mut notes = Vec::new();
    if demand.softirq_cores >= 0.5 {
        notes.push(format!(
            "{:.1} cores are busy in softirq, which the load average does not count: a host like this is slow while its load \
             average is low; look at %soft of each processor (`ringway doctor`)",
            demand.softirq_cores
        ));
    }
    if let (Some((IoPath::Xdp, shield)), Some(kernel)) =
        (demand::shield(workload, costs, io_path), costs.drop.get(&IoPath::Kernel))
        && workload.attack_pps > 0.0
    {
        notes.push(format!(
            "the attack dies in the driver ({:.0} ns a packet); in the kernel it would take {:.1} cores ({:.0}/s x {:.0} ns / {} busy)",
            shield.ns,
            workload.attack_pps * kernel.ns / 1e9 / workload.busy,
            workload.attack_pps,
            kernel.ns,
            workload.busy
        ));
    }
    if io_path == IoPath::Dpdk && workload.attack_pps > 0.0 {
        notes.push(
            "DPDK has the NIC to itself, and no XDP program stands before it: the program drops the attack, reckoned as any other packet"
                .to_owned(),
        );
    }
    if workload.work == Work::Forward && workload.connections > 0 && io_path <= IoPath::TunedKernel
    {
        notes.push(
            "memory is that of Ringway's flow table; nftables' NAT has conntrack's entries instead (nf_conntrack_max), which are larger \
             and not measured here, as is its cost with many flows"
                .to_owned(),
        );
    }
    notes.extend(enough_ports(workload, demand));
    if workload.work == Work::Connections {
        notes.push(
            "new connections a second and TLS are not asked for, and not in here: connect, accept, close and handshakes cost cores \
             of their own"
                .to_owned(),
        );
    }
    notes.push(
        "the bytes of a packet cost bandwidth alone in here; where they are copied (sockets, AF_XDP without zero-copy), large ones \
         cost time, too"
            .to_owned(),
    );
    if workload.work == Work::Connections && workload.connections / demand.machines >= 1024 {
        notes.push("a process has 1024 open files unless told otherwise: raise LimitNOFILE (nofile) and, beyond 1 048 576, fs.nr_open".to_owned());
    }
    if io_path > IoPath::TunedKernel {
        notes.push("what the kernel's tools no longer see on this path, `ringway capture`, `ringway flows` and `ringway status` show".to_owned());
    }
    if demand.limit == Limit::Bandwidth && demand.machines > 1 {
        notes.push(
            "the link is the limit: a faster one, not another path, saves machines".to_owned(),
        );
    }
    notes
}

fn enough_ports(workload: &Workload, demand: &Demand) -> Option<String> {
    let used = ports(workload, demand)?.value;
    let part = used / workload.ports() as f64;
    let (first, last) = workload.ports;
    let what = format!(
        "{used:.0} of {} local ports ({first}-{last}) towards each destination are taken on each machine",
        workload.ports()
    );
    let (low, high) = demand::WIDE_PORTS;
    let wider = match workload.ports() < u64::from(high - low) + 1 {
        true => format!(
            "`sysctl net.ipv4.ip_local_port_range=\"{low} {high}\"` gives {} (`--port-range {low}-{high}` calculates with them); ",
            u64::from(high - low) + 1
        ),
        false => String::new(),
    };
    Some(match part {
        _ if demand.limit == Limit::Ports && demand.machines > 1 => format!(
            "{what}; on fewer machines connect() fails with EADDRNOTAVAIL. {wider}more addresses, at either end, save machines as well"
        ),
        part if part > 0.8 => format!(
            "{what}: connect() searches for a free one and slows down (`ringway-lab bench tcp-connect` shows by how much). \
             {wider}tcp_tw_reuse=1 with timestamps"
        ),
        _ => format!("{what}: no harm"),
    })
}

/// Source: an engineer's account of a bidding platform that went from kernel sockets to DPDK.
fn rule_of_thumb(pps: f64) -> &'static str {
    match pps {
        pps if pps < 1e6 => "below 1 Mpps: the kernel is fine",
        pps if pps <= 2e6 => "1 to 2 Mpps: tune interrupts, buffers, RSS",
        _ => "above 2 Mpps: XDP or DPDK",
    }
}
