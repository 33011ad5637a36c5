//! Which road, why, and what it takes.

use serde::Serialize;

use crate::Error;
use crate::changes::{Change, changes};
use crate::costs::{Costs, Road};
use crate::demand::{self, Demand, Limit, demand};
use crate::workload::{Work, Workload};

/// What one road would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoadSize {
    /// Which.
    pub road: Road,
    /// What it asks for; none where it does not lead there, or nobody measured it.
    pub demand: Option<Demand>,
    /// Packets or messages a second that one machine does on it, by its cores.
    pub most_per_s: Option<f64>,
    /// Why it is the one, or is not.
    pub why: String,
}

/// A figure of the answer, how it comes about, and who measured what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What it is.
    pub what: &'static str,
    /// Its value, in the unit that `how` and `what` say.
    pub value: f64,
    /// Calculated how.
    pub how: String,
    /// By whose measurement, or rule.
    pub from: String,
}

/// What a workload takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// `ringway.size/1`
    pub schema: &'static str,
    /// What was asked.
    pub workload: Workload,
    /// Whose costs.
    pub costs_of: String,
    /// The one to take.
    pub road: Road,
    /// Why.
    pub why: String,
    /// What it asks for.
    pub demand: Demand,
    /// Queues of a machine's NIC: one for each core that packets keep busy.
    pub nic_queues: u64,
    /// Machines with one to spare.
    pub machines: u64,
    /// Every road.
    pub roads: Vec<RoadSize>,
    /// Every figure with its source.
    pub lines: Vec<Line>,
    /// What else to know.
    pub notes: Vec<String>,
    /// The rule of thumb, beside the calculation.
    pub rule_of_thumb: &'static str,
    /// What would change road or machines.
    pub changes: Vec<Change>,
}

/// Sizes a workload.
///
/// # Errors
///
/// Where the workload contradicts itself, or the costs know no road for it.
pub fn size(workload: &Workload, costs: &Costs) -> Result<Answer, Error> {
    workload.validate()?;
    let (road, why) = choose(workload, costs)?;
    let roads = Road::ALL.map(|each| row(workload, costs, each, road, &why)).to_vec();
    let demand = demand(workload, costs, road)
        .ok_or_else(|| Error::Costs(format!("no cost of {}", road.name())))?;
    let per_machine = (demand.cores + demand.attack_cores) / demand.machines as f64;
    Ok(Answer {
        schema: "ringway.size/1",
        costs_of: costs.machine.clone(),
        road,
        nic_queues: (per_machine.ceil() as u64).max(1),
        machines: demand.machines + 1,
        roads,
        lines: lines(workload, costs, road, &demand),
        notes: notes(workload, costs, road, &demand),
        rule_of_thumb: rule_of_thumb(workload.packets_in_pps()),
        changes: changes(workload, costs, road, demand.machines),
        why,
        demand,
        workload: workload.clone(),
    })
}

/// The simplest road that one machine's share of cores is enough for, rather one that was measured here; if none is, the one of
/// fewest machines.
pub(crate) fn choose(workload: &Workload, costs: &Costs) -> Result<(Road, String), Error> {
    let budget = f64::from(workload.machine.cores) * workload.share;
    let cores = |demand: &Demand| demand.cores + demand.attack_cores;
    let all: Vec<(Road, Demand)> = Road::ALL
        .into_iter()
        .filter_map(|road| Some((road, demand(workload, costs, road)?)))
        .collect();
    let here = |road: Road| costs.of(workload.work, road).is_some_and(|cost| !cost.elsewhere);
    let fits = |(_, demand): &&(Road, Demand)| cores(demand) <= budget;
    let first = all.iter().filter(|(road, _)| here(*road)).find(fits);
    if let Some((road, demand)) = first.or_else(|| all.iter().find(fits)) {
        let why = format!(
            "the simplest road on which packets take no more than {budget:.1} cores of a machine: {:.1}",
            cores(demand)
        );
        return Ok((*road, why));
    }
    // min_by takes the first of equals: the simpler road.
    let fewest = all.iter().min_by(|(_, a), (_, b)| a.machines.cmp(&b.machines));
    let (road, demand) =
        fewest.ok_or_else(|| Error::Costs(format!("no road for {}", workload.work.name())))?;
    let why = match all.len() {
        1 => format!(
            "the only road; its {:.1} cores are more than {budget:.1} of one machine",
            cores(demand)
        ),
        _ => format!(
            "{budget:.1} cores of one machine are enough on no road; this one takes the fewest machines, {}",
            demand.machines
        ),
    };
    Ok((*road, why))
}

fn row(workload: &Workload, costs: &Costs, road: Road, chosen: Road, why: &str) -> RoadSize {
    let demand = demand(workload, costs, road);
    let most = costs.of(workload.work, road).map(|cost| {
        f64::from(workload.machine.cores) * workload.share * workload.busy * 1e9 / cost.ns
    });
    let why = match (&demand, most) {
        _ if road == chosen => why.to_owned(),
        _ if costs.of(workload.work, road).is_some_and(|cost| cost.elsewhere) => {
            "measured elsewhere: taken where no other is enough".to_owned()
        }
        (Some(_), Some(_)) if road > chosen => {
            format!("{} is simpler and does", chosen.name())
        }
        (Some(_), Some(_)) => "takes more of a machine than packets may have".to_owned(),
        _ => leads_nowhere(workload.work, road).to_owned(),
    };
    RoadSize { road, demand, most_per_s: most, why }
}

fn leads_nowhere(work: Work, road: Road) -> &'static str {
    match (work, road) {
        (Work::Connections, Road::Xdp | Road::AfXdp | Road::Dpdk) => {
            "ends before TCP: connections need the kernel's stack, or one of your own"
        }
        (Work::Answer, Road::Xdp) => "has no room for a program that answers: AF_XDP has",
        _ => "not measured",
    }
}

fn lines(workload: &Workload, costs: &Costs, road: Road, demand: &Demand) -> Vec<Line> {
    let mut lines = Vec::new();
    let busy = workload.busy;
    if let Some(cost) = costs.of(workload.work, road).filter(|_| demand.cores > 0.0) {
        let rate = demand::units(workload);
        let how = format!("{rate:.0}/s x {:.0} ns / {busy} busy", cost.ns);
        lines.push(Line { what: "cores", value: demand.cores, how, from: cost.from.clone() });
        let how = format!("{rate:.0}/s x {:.0} ns / {busy} busy", cost.softirq_ns);
        lines.push(Line {
            what: "cores in softirq",
            value: demand.softirq_cores,
            how,
            from: "the same".to_owned(),
        });
    }
    if let Some((at, cost)) = demand::shield(costs).filter(|_| workload.attack_pps > 0.0) {
        let how = format!(
            "{:.0}/s x {:.0} ns / {busy} busy, dropped by {}",
            workload.attack_pps,
            cost.ns,
            at.name()
        );
        lines.push(Line {
            what: "cores for the attack",
            value: demand.attack_cores,
            how,
            from: cost.from.clone(),
        });
    }
    lines.extend(memory(workload, costs, demand));
    let mut how = format!(
        "{:.0} packets/s of {} bytes, each with 38 around it, 84 at least",
        workload.packets_in_pps(),
        workload.packet_bytes
    );
    if workload.attack_pps > 0.0 {
        how += &format!("; {:.0}/s of 84 that attack", workload.attack_pps);
    }
    lines.push(Line {
        what: "bits/s one way",
        value: demand.bandwidth_bits,
        how,
        from: "IEEE 802.3".to_owned(),
    });
    lines
}

fn memory(workload: &Workload, costs: &Costs, demand: &Demand) -> Vec<Line> {
    let each = match workload.work {
        Work::Forward => &costs.flow,
        Work::Connections | Work::Answer => &costs.established,
    };
    let mut lines = Vec::new();
    if demand.kernel_bytes > 0.0 {
        let mut how = format!("{} x {:.0}", workload.connections, each.bytes);
        let mut from = each.from.clone();
        if workload.time_wait > 0 {
            how +=
                &format!(" + {} in TIME_WAIT x {:.0}", workload.time_wait, costs.time_wait.bytes);
            from = format!("{from}; {}", costs.time_wait.from);
        }
        lines.push(Line { what: "bytes in the kernel", value: demand.kernel_bytes, how, from });
    }
    if demand.state_bytes > 0.0 {
        let how = format!("{} x {}", workload.connections, workload.state_bytes);
        lines.push(Line {
            what: "bytes of state",
            value: demand.state_bytes,
            how,
            from: "as given".to_owned(),
        });
    }
    lines
}

fn notes(workload: &Workload, costs: &Costs, road: Road, demand: &Demand) -> Vec<String> {
    let mut notes = Vec::new();
    if demand.softirq_cores >= 0.5 {
        notes.push(format!(
            "{:.1} cores are busy in softirq, which the load average does not count: a host like this is slow while its load \
             average is low; look at %soft of each processor (`ringway doctor`)",
            demand.softirq_cores
        ));
    }
    if let (Some((Road::Xdp, shield)), Some(kernel)) =
        (demand::shield(costs), costs.drop.get(&Road::Kernel))
        && workload.attack_pps > 0.0
    {
        notes.push(format!(
            "the attack dies in the driver ({:.0} ns a packet) whatever road the rest takes; in the kernel it would take {:.1} cores ({:.0}/s x {:.0} ns / {} busy)",
            shield.ns,
            workload.attack_pps * kernel.ns / 1e9 / workload.busy,
            workload.attack_pps,
            kernel.ns,
            workload.busy
        ));
    }
    notes.extend(ports(workload));
    if workload.work == Work::Connections && workload.connections / demand.machines >= 1024 {
        notes.push("a process has 1024 open files unless told otherwise: raise LimitNOFILE (nofile) and, beyond 1 048 576, fs.nr_open".to_owned());
    }
    if road > Road::TunedKernel {
        notes.push("what the kernel's tools no longer see on this road, `ringway capture`, `ringway flows` and `ringway status` show".to_owned());
    }
    if demand.limit == Limit::Bandwidth && demand.machines > 1 {
        notes.push(
            "the link is the limit: a faster one, not another road, saves machines".to_owned(),
        );
    }
    notes
}

/// Connections that are made from here need a port each, towards each destination.
fn ports(workload: &Workload) -> Option<String> {
    let destinations = workload.destinations?;
    let used = (workload.connections + workload.time_wait).div_ceil(destinations);
    let part = used as f64 / demand::PORTS as f64;
    let what = format!("{used} of {} ports towards one destination are taken", demand::PORTS);
    Some(match part {
        part if part > 1.0 => format!(
            "{what}: connect() fails with EADDRNOTAVAIL. `sysctl net.ipv4.ip_local_port_range=\"1024 65535\"` gives 64 512; \
             keep connections open, or use more addresses"
        ),
        part if part > 0.8 => format!(
            "{what}: connect() searches for a free one and slows down (`ringway bench tcp-connect` shows by how much). \
             `sysctl net.ipv4.ip_local_port_range=\"1024 65535\"`; tcp_tw_reuse=1 with timestamps"
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
