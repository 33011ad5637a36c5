//! The status: counters, as a table and as JSON.

pub mod inspect;
pub(crate) mod leak;
pub(crate) mod reason;

use std::fmt;

use ringway_xsk::Place;
use serde::Serialize;

use crate::app::App;
use crate::buffer_pool::BufferPool;
use crate::burst::{TxQueue, TxQueues};
use crate::port::PortStatistics;
use crate::status::reason::Reason;

use leak::Leak;

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// "ringway.engine/1".
    pub schema: &'static str,
    pub workers: Vec<WorkerStatus>,
    /// Leaked frames, by worker and stage.
    pub leaks: Vec<Leak>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WorkerStatus {
    /// Its number, from 0.
    pub worker: usize,
    /// The CPU it is bound to, if it is.
    pub cpu: Option<usize>,
    pub app: String,
    /// Rounds through its ports.
    pub rounds: u64,
    pub sleeps: u64,
    /// The part of its time in rounds with nothing to do: 0 to 1.
    pub idle_share: f64,
    pub bursts: Vec<BurstSize>,
    pub packets: Packets,
    pub frames: Frames,
    pub ports: Vec<PortStatus>,
    pub app_counters: Vec<AppCounter>,
}

/// The number of bursts of a size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BurstSize {
    /// Packets, at least; up to the next.
    pub packets: u64,
    pub times: u64,
}

/// Every packet that came or was made is in one of the others.
#[derive(Clone, Debug, Serialize)]
pub struct Packets {
    pub received_packets: u64,
    pub originated_packets: u64,
    pub transmitted_packets: u64,
    pub waiting_packets: u64,
    /// Always 0. In 0.1.0 an app could hold packets; the key stays for who reads it.
    pub held_packets: u64,
    /// Dropped, by reason; those that never were are left out.
    pub dropped: Vec<Dropped>,
    /// Came or made, less all others: 0.
    pub difference_packets: i64,
    /// Times the app wanted to make one, and no frame was free.
    pub no_frame_times: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Dropped {
    #[serde(skip)]
    pub reason: Reason,
    /// The reason's name; an app names its own: [`crate::App::reasons`].
    #[serde(rename = "reason")]
    pub name: &'static str,
    pub packets: u64,
}

/// The places of a worker's frames, by the ledger.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Frames {
    pub free_frames: u64,
    pub fill_frames: u64,
    pub held_frames: u64,
    pub tx_frames: u64,
    /// Of those held, frames of packets that do not wait to be sent.
    pub lost_frames: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct PortStatus {
    pub port: String,
    #[serde(flatten)]
    pub statistics: PortStatistics,
    /// Counters of its device's own, by their names there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_counters: Vec<AppCounter>,
}

/// One of an app's own counters, or of a device's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppCounter {
    pub name: String,
    pub count: u64,
}

pub(crate) fn difference<P: BufferPool>(ways: &TxQueues<P>) -> i64 {
    let tally = &ways.tally;
    let dropped: u64 = tally.dropped().map(|(_, packets)| packets).sum();
    let come = tally.received + tally.originated;
    // No machine lives to see 2^63 packets.
    come as i64 - (tally.transmitted + dropped + ways.waiting()) as i64
}

pub(crate) fn of<P: BufferPool>(ways: &mut TxQueues<P>, app: &impl App<P>) -> WorkerStatus {
    let difference_packets = difference(ways);
    let waiting_packets = ways.waiting();
    let port = |outlet: &mut TxQueue<P>| PortStatus {
        port: outlet.port.name().into(),
        statistics: outlet.port.statistics(),
        device_counters: named(outlet.port.device_counters()),
    };
    let ports = ways.queues.iter_mut().map(port).collect();
    let (tally, counts) = (&ways.tally, ways.pool.counts());
    let held_frames = counts.in_place(Place::Held);
    let dropped = tally.dropped().filter(|(_, packets)| *packets > 0);
    let by_name = |(reason, packets): (Reason, u64)| {
        let name = reason.name_in(app.reasons());
        Dropped { reason, name, packets }
    };
    let dropped = dropped.map(by_name);
    WorkerStatus {
        worker: 0,
        cpu: None,
        app: app.name().into(),
        rounds: tally.rounds,
        sleeps: tally.sleeps,
        idle_share: tally.idle_cycles as f64
            / (tally.idle_cycles + tally.busy_cycles).max(1) as f64,
        bursts: (0..)
            .zip(tally.bursts)
            .map(|(n, times)| BurstSize { packets: 1 << n, times })
            .collect(),
        packets: Packets {
            received_packets: tally.received,
            originated_packets: tally.originated,
            transmitted_packets: tally.transmitted,
            waiting_packets,
            held_packets: 0,
            dropped: dropped.collect(),
            difference_packets,
            no_frame_times: tally.no_frame,
        },
        frames: Frames {
            free_frames: counts.in_place(Place::Free),
            fill_frames: counts.in_place(Place::Fill),
            held_frames,
            tx_frames: counts.in_place(Place::Tx),
            lost_frames: held_frames.saturating_sub(ways.known_held()),
        },
        ports,
        app_counters: named(app.statistics()),
    }
}

fn named(counters: Vec<(String, u64)>) -> Vec<AppCounter> {
    counters.into_iter().map(|(name, count)| AppCounter { name, count }).collect()
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.workers.iter().try_for_each(|worker| worker.fmt(f))?;
        self.leaks.iter().try_for_each(|leak| writeln!(f, "{leak}"))
    }
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}: {}", self.worker, self.app)?;
        if let Some(cpu) = self.cpu {
            write!(f, " on CPU {cpu}")?;
        }
        writeln!(f, ", idle {:.1} %, slept {} times", self.idle_share * 100.0, self.sleeps)?;
        let mut rows = vec![PORT_HEADING.map(String::from)];
        rows.extend(self.ports.iter().map(port_row));
        table(f, &rows)?;
        self.fmt_packets(f)?;
        let Frames { free_frames, fill_frames, held_frames, tx_frames, lost_frames } = self.frames;
        write!(
            f,
            "  frames: {free_frames} free, {fill_frames} fill, {held_frames} held, {tx_frames} tx"
        )?;
        if lost_frames > 0 {
            write!(f, "; {lost_frames} of those held are nobody's")?;
        }
        writeln!(f)?;
        write!(f, "  bursts:")?;
        for BurstSize { packets, times } in self.bursts.iter().filter(|burst| burst.times > 0) {
            write!(f, " {times} of {packets}+")?;
        }
        writeln!(f)?;
        self.app_counters.iter().try_for_each(|c| writeln!(f, "  {}: {}", c.name, c.count))
    }
}

impl WorkerStatus {
    fn fmt_packets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.packets;
        let (received, originated) = (p.received_packets, p.originated_packets);
        write!(f, "  packets: {received} received, {originated} originated = ")?;
        write!(f, "{} transmitted, {} waiting", p.transmitted_packets, p.waiting_packets)?;
        for Dropped { name, packets, .. } in &p.dropped {
            write!(f, ", {packets} {name}")?;
        }
        writeln!(f, "; difference {}", p.difference_packets)
    }
}

const PORT_HEADING: [&str; 14] = [
    "port",
    "received",
    "transmitted",
    "tx full",
    "unsendable",
    "no frame",
    "too long",
    "filled",
    "completed",
    "RxDropped",
    "RxInvalidDescs",
    "TxInvalidDescs",
    "ring full/fill empty",
    "lost",
];

fn port_row(port: &PortStatus) -> [String; 14] {
    let s = &port.statistics;
    let known = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
    let (full, empty) = (s.kernel_rx_ring_full_packets, s.kernel_fill_ring_empty_times);
    [
        port.port.clone(),
        s.received_packets.to_string(),
        s.transmitted_packets.to_string(),
        s.tx_full_packets.to_string(),
        s.unsendable_packets.to_string(),
        s.no_frame_times.to_string(),
        s.too_long_packets.to_string(),
        known(s.filled_frames),
        known(s.completed_frames),
        known(s.kernel_rx_dropped_packets),
        known(s.kernel_rx_invalid_descs),
        known(s.kernel_tx_invalid_descs),
        format!("{}/{}", known(full), known(empty)),
        if s.lost { format!("{} (now)", s.lost_times) } else { s.lost_times.to_string() },
    ]
}

/// The first column to the left, all others to the right.
pub(crate) fn table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    rows: &[[String; N]],
) -> fmt::Result {
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    for row in rows {
        write!(f, "  {:<1$}", row[0], width(0))?;
        for (n, cell) in row.iter().enumerate().skip(1) {
            write!(f, "  {cell:>0$}", width(n))?;
        }
        writeln!(f)?;
    }
    Ok(())
}
