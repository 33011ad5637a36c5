//! Which queue is polled where, and what each processor had to do.

use std::collections::BTreeMap;

use ringway_host::netlink::queues::{Counts, Queue as Told};
use serde::Serialize;

use super::{Samples, SeenAt};
use crate::gather::{QUEUE_COUNTS, QUEUES};
use crate::rules::counts_a_queue;

/// A queue for received packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// From 0.
    pub queue: u32,
    /// Packets; absent where nobody counts by queue.
    pub packets: Option<u64>,
    /// Packets that the device dropped; absent where the driver does not tell.
    pub dropped: Option<u64>,
    /// The NAPI instance that polls it; absent where the kernel does not tell, or none does (a veth
    /// without XDP and GRO).
    pub napi: Option<u32>,
    pub irq: Option<u32>,
    /// How often that came, by processor.
    pub interrupts: BTreeMap<u32, u64>,
    /// Processors that RPS hands packets to, as a mask; absent where sysfs is not to be seen.
    pub rps_cpus: Option<String>,
}

/// A processor. But for `received` and `interrupts` this is of all interfaces of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Processor {
    pub cpu: u32,
    /// Interrupts of the interface's queues.
    pub interrupts: u64,
    /// Packets of the interface that it brought to the stack; absent without a trace.
    pub received: Option<u64>,
    /// Softirqs for received packets.
    pub net_rx: u64,
    /// Packets that it took from devices and its backlog.
    pub polled: u64,
    /// Times that another processor asked it to take packets (RPS).
    pub asked_by_rps: u64,
    /// Packets dropped for a full backlog, or by flow limits.
    pub backlog_dropped: u64,
    /// Times that the budget ended with work left.
    pub squeezed: u64,
    pub softirq_percent: Option<f64>,
}

pub(super) fn queues(samples: &Samples) -> Vec<Queue> {
    let link = &samples.interface.link;
    let mine = |ifindex: u32| ifindex == link.ifindex;
    let told: Vec<Told> = samples.facts.json(QUEUES).unwrap_or_default();
    let counted = samples.facts.pair::<Vec<Counts>>(QUEUE_COUNTS).unwrap_or_default();
    let by_name = by_name(samples);
    let irqs = samples.facts.irqs(&link.name).unwrap_or_default();
    let lines = interrupts(samples);
    let used = samples.interface.channels.map_or(link.rx_queues, |channels| channels.rx);
    let received = samples.after.rx_packets - samples.before.rx_packets;
    let alone = (used == 1).then_some(received);
    let one = |queue: u32| {
        let told = told.iter().find(|one| mine(one.ifindex) && one.queue == queue);
        let of = |counts: &[Counts]| {
            counts.iter().find(|one| mine(one.ifindex) && one.queue == queue).copied()
        };
        let counts = of(&counted.0).zip(of(&counted.1));
        let packets = counts.map(|(was, now)| now.packets.saturating_sub(was.packets));
        let dropped =
            |(was, now): (Counts, Counts)| Some(now.dropped?.saturating_sub(was.dropped?));
        // Names of interrupts are the drivers' own; in their order where there is one for each
        // queue.
        let named = (irqs.len() == used as usize).then(|| irqs.get(queue as usize)).flatten();
        let irq = told.and_then(|told| told.irq).or(named.map(|irq| irq.number));
        let rps = format!("/sys/class/net/{}/queues/rx-{queue}/rps_cpus", link.name);
        Queue {
            queue,
            packets: packets.or(alone).or_else(|| by_name.get(&queue).copied()),
            dropped: counts.and_then(dropped),
            napi: told.and_then(|told| told.napi),
            interrupts: irq.and_then(|irq| lines.get(&irq).cloned()).unwrap_or_default(),
            irq,
            rps_cpus: samples.facts.text(&rps).ok().map(str::to_owned),
        }
    };
    (0..used).map(one).collect()
}

/// Packets by queue, of a driver that counts under names of its own.
fn by_name(samples: &Samples) -> BTreeMap<u32, u64> {
    let path = format!("/ethtool/{}/statistics.json", samples.interface.link.name);
    let both = samples.facts.pair::<BTreeMap<String, u64>>(&path);
    let (before, after) = both.unwrap_or_default();
    let mut found: BTreeMap<u32, u64> = BTreeMap::new();
    for (name, now) in after.iter().filter(|(name, _)| counts_a_queue(name)) {
        let digits = name.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty());
        let Some(queue) = digits.and_then(|digits| digits.parse().ok()) else { continue };
        let by = now.saturating_sub(before.get(name).copied().unwrap_or(*now));
        *found.entry(queue).or_default() += by;
    }
    found
}

/// How often each interrupt came between the samples, by processor.
fn interrupts(samples: &Samples) -> BTreeMap<u32, BTreeMap<u32, u64>> {
    let Ok((before, after)) = samples.facts.texts("/proc/interrupts") else {
        return BTreeMap::new();
    };
    let before = lines(before);
    let mut found = BTreeMap::new();
    for (irq, now) in lines(after) {
        let was = before.get(&irq);
        let by = |(cpu, n): (u32, u64)| {
            let was = was.and_then(|was| was.get(&cpu)).copied().unwrap_or(n);
            (cpu, n.saturating_sub(was))
        };
        let delta: BTreeMap<u32, u64> = now.into_iter().map(by).filter(|(_, n)| *n > 0).collect();
        found.insert(irq, delta);
    }
    found
}

/// The heading names the processors, and only those that are online: `CPU0 CPU2`.
fn lines(text: &str) -> BTreeMap<u32, BTreeMap<u32, u64>> {
    let cpus: Vec<u32> = numbers_of_cpus(text.lines().next().unwrap_or_default());
    let line = |line: &str| {
        let (irq, rest) = line.split_once(':')?;
        let counts = rest.split_ascii_whitespace().map_while(|word| word.parse().ok());
        Some((irq.trim().parse().ok()?, cpus.iter().copied().zip(counts).collect()))
    };
    text.lines().skip(1).filter_map(line).collect()
}

fn numbers_of_cpus(heading: &str) -> Vec<u32> {
    let words = heading.split_ascii_whitespace();
    words.filter_map(|word| word.strip_prefix("CPU")?.parse().ok()).collect()
}

/// `NET_RX:  1  2`, by processor.
fn net_rx(text: &str) -> BTreeMap<u32, u64> {
    let cpus = numbers_of_cpus(text.lines().next().unwrap_or_default());
    let line = text.lines().find_map(|line| line.trim().strip_prefix("NET_RX:"));
    let counts = line.unwrap_or_default().split_ascii_whitespace();
    cpus.into_iter().zip(counts.filter_map(|word| word.parse().ok())).collect()
}

/// Processors that had anything to do with received packets.
pub(super) fn processors(samples: &Samples) -> Vec<Processor> {
    let Ok(softnet) = samples.facts.softnet() else { return Vec::new() };
    let irqs = queues(samples);
    let busy = samples.facts.busy().unwrap_or_default();
    let (was, now) = samples.facts.texts("/proc/softirqs").unwrap_or_default();
    let (was, now) = (net_rx(was), net_rx(now));
    let ifindex = samples.interface.link.ifindex;
    let received = |cpu: u32| {
        let all = samples.trace.as_ref()?.at(SeenAt::Received, ifindex);
        Some(all.filter_map(|seen| seen.packets.get(cpu as usize)).sum())
    };
    let one = |one: &crate::facts::Softnet| {
        let cpu = one.cpu as u32;
        let at = |counts: &BTreeMap<u32, u64>| counts.get(&cpu).copied().unwrap_or(0);
        Processor {
            cpu,
            interrupts: irqs.iter().filter_map(|queue| queue.interrupts.get(&cpu)).sum(),
            received: received(cpu),
            net_rx: at(&now).saturating_sub(at(&was)),
            polled: one.processed.delta,
            asked_by_rps: one.asked_by_rps.delta,
            backlog_dropped: one.dropped.delta + one.flow_limited.delta,
            squeezed: one.squeezed.delta,
            softirq_percent: busy.iter().find(|busy| busy.cpu == cpu).map(|busy| busy.softirq),
        }
    };
    softnet.iter().map(one).collect()
}
