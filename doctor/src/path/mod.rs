//! The path of received packets, for one interface: by which queues and processors they come, how
//! many reach each step, and where they are lost. All of it from two samples, and so of an archive
//! as of this machine.
//!
//! ```text
//! device ─> ring ─> XDP ─> (GRO) ─> stack ─> IP ─> protocol ─> socket
//! ```
//! With a [`Trace`] what is lost is known by interface, reason and function. Without, the network
//! namespace's own counters tell, which hold all of its interfaces together. Either way
//! [`PacketBalance`] says what does not add up.

mod balance;
mod counters;
mod queues;
mod steps;
#[cfg(test)]
mod tests;
mod upper_devices;

use ringway_host::netlink::counters::Stats;
use ringway_host::netlink::qdiscs::Qdisc;
use ringway_host::{Interface, Seen, SeenAt};
use serde::{Deserialize, Serialize};

use crate::{Facts, Unknown};

pub use balance::PacketBalance;
pub use queues::{Processor, Queue};
pub use steps::{RECEIVE, SEND, Shown, Step};
pub use upper_devices::Upper;

/// Its path in a sample.
pub const TRACE: &str = "/trace/packets.json";

/// Everything that was seen in a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub seen: Vec<Seen>,
    /// Packets that there was no room to count.
    pub uncounted: u64,
}

impl Trace {
    /// Of an interface, at one place.
    fn at(&self, at: SeenAt, ifindex: u32) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(move |seen| seen.at == at && seen.ifindex == ifindex)
    }

    /// How many of them.
    fn sum(&self, at: SeenAt, ifindex: u32) -> u64 {
        self.at(at, ifindex).map(Seen::all).sum()
    }
}

/// The set of interfaces that a number covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Interface,
    /// Every interface of the network namespace.
    Namespace,
    /// Every interface of the machine.
    Machine,
}

/// Packets that were lost, of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The kernel's reason, or its counter.
    pub what: String,
    /// The kernel's function that freed them.
    pub function: Option<String>,
    /// How many, between the samples.
    pub packets: u64,
    pub scope: Scope,
    /// Whether it is in the sum; false: another line has the same packets.
    pub counted: bool,
}

impl Loss {
    fn new(what: impl Into<String>, packets: u64, scope: Scope) -> Self {
        Self { what: what.into(), function: None, packets, scope, counted: true }
    }

    fn uncounted(self) -> Self {
        Self { counted: false, ..self }
    }
}

/// A step of the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reached {
    pub step: Step,
    /// Packets that reached it; absent where that is not known.
    pub packets: Option<u64>,
    pub scope: Scope,
    /// Lost at it: the sum of what is counted below.
    pub lost: u64,
    pub losses: Vec<Loss>,
}

/// Packets on their way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Sent by the device.
    pub packets: u64,
    /// Put before its queue; absent without a trace.
    pub queued: Option<u64>,
    /// Its queueing discipline; absent where it has none.
    pub qdisc: Option<String>,
    /// Packets waiting in it.
    pub waiting: u32,
    pub losses: Vec<Loss>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Path {
    pub interface: String,
    /// The path of the device that it lies upper_devices, which its packets took before: of a VLAN device, a
    /// macvlan.
    pub below: Option<Box<Path>>,
    /// Devices that lie upon it, to which its packets go on.
    pub uppers: Vec<Upper>,
    /// Between the samples.
    pub interval_seconds: f64,
    /// Whether losses were counted by interface and reason.
    pub traced: bool,
    /// Its queues for received packets.
    pub queues: Vec<Queue>,
    pub processors: Vec<Processor>,
    pub steps: Vec<Reached>,
    #[serde(rename = "books")]
    pub balance: PacketBalance,
    pub sent: Sent,
    pub notes: Vec<String>,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// There is no such interface.
    #[error("there is no interface {wanted}; there are: {}", known.join(", "))]
    NoInterface { wanted: String, known: Vec<String> },
    /// It was not the same device all the time.
    #[error("{0} went away while it was looked at, or was made anew")]
    Vanished(String),
    /// The basis of all figures is not known.
    #[error("{0}")]
    Unknown(String),
}

impl From<Unknown> for Error {
    fn from(why: Unknown) -> Self {
        Self::Unknown(why.0)
    }
}

/// The two samples of an interface, and what lies between them.
struct Samples<'a> {
    facts: &'a Facts,
    interface: &'a Interface,
    before: Stats,
    after: Stats,
    trace: Option<Trace>,
}

/// Draws it.
///
/// # Errors
/// Where there is no such interface, or it went away between the samples.
pub fn path(facts: &Facts, name: &str) -> Result<Path, Error> {
    one(facts, name, false)
}

/// `within`: of a device that another one's picture begins with.
fn one(facts: &Facts, name: &str, within: bool) -> Result<Path, Error> {
    let (before, after) = facts.device(name).map_err(|why| gone(facts, name, why))?;
    let interface = facts.network()?.interface(name);
    let interface = interface.ok_or_else(|| Error::Vanished(name.into()))?;
    if after.rx_packets < before.rx_packets || after.tx_packets < before.tx_packets {
        return Err(Error::Vanished(name.into()));
    }
    let (trace, why_not) = match facts.json::<Trace>(TRACE) {
        Ok(trace) => (Some(trace), None),
        Err(why) => (None, Some(facts.why_not(TRACE).map_or(why.0, str::to_owned))),
    };
    let samples = Samples { facts, interface, before, after, trace };
    let steps = balance::steps(&samples);
    let balance = balance::balance(&samples, &steps);
    let mut notes: Vec<String> = why_not.into_iter().map(|why| without_trace(&why)).collect();
    notes.extend(balance::notes(&samples, &balance));
    let lower =
        upper_devices::lower(facts.network()?, interface).map(|lower| lower.link.name.as_str());
    Ok(Path {
        interface: name.into(),
        // No device lies upon itself.
        below: lower
            .filter(|_| !within)
            .map(|lower| one(facts, lower, true).map(Box::new))
            .transpose()?,
        uppers: upper_devices::uppers(&samples, interface.link.ifindex),
        interval_seconds: facts.seconds,
        traced: samples.trace.is_some(),
        queues: queues::queues(&samples),
        processors: queues::processors(&samples),
        sent: sent(&samples),
        steps,
        balance,
        notes,
    })
}

fn without_trace(why: &str) -> String {
    format!(
        "losses by reason are not known ({why}): counters marked * are of all interfaces of the namespace"
    )
}

fn gone(facts: &Facts, name: &str, why: Unknown) -> Error {
    let known: Vec<String> = facts
        .network()
        .map(|network| network.interfaces.iter().map(|one| one.link.name.clone()).collect())
        .unwrap_or_default();
    let there = |stats: &str| facts.pair::<serde_json::Value>(stats).ok();
    match there("/netlink/stats.json") {
        None => why.into(),
        Some((before, after)) if before.get(name).is_none() && after.get(name).is_none() => {
            Error::NoInterface { wanted: name.into(), known }
        }
        Some(_) => Error::Vanished(name.into()),
    }
}

fn sent(samples: &Samples) -> Sent {
    let (before, after, ifindex) =
        (&samples.before, &samples.after, samples.interface.link.ifindex);
    let mut losses = counters::losses_out(samples.facts);
    let root = |qdiscs: &[Qdisc]| qdiscs.iter().find(|one| one.ifindex == ifindex).cloned();
    let qdiscs = samples.facts.pair::<Vec<Qdisc>>("/netlink/qdiscs.json").ok();
    // The first of an interface is its root, which sums up those below.
    let (was, now) = qdiscs.map_or((None, None), |(was, now)| (root(&was), root(&now)));
    if let (Some(was), Some(now)) = (&was, &now) {
        let drops = u64::from(now.drops.wrapping_sub(was.drops));
        losses.push(Loss::new(format!("qdisc {} drops", now.kind), drops, Scope::Interface));
    }
    let of_device = after.tx_dropped.saturating_sub(before.tx_dropped);
    losses.push(Loss::new("tx_dropped", of_device, Scope::Interface));
    let of_device = after.tx_errors.saturating_sub(before.tx_errors);
    losses.push(Loss::new("tx_errors", of_device, Scope::Interface));
    losses.extend(balance::lost_out(samples));
    losses.retain(|loss| loss.packets > 0);
    Sent {
        packets: after.tx_packets - before.tx_packets,
        queued: samples.trace.as_ref().map(|trace| trace.sum(SeenAt::Queued, ifindex)),
        waiting: now.as_ref().map_or(0, |now| now.queued),
        qdisc: now.map(|now| now.kind),
        losses,
    }
}
