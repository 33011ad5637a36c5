//! The cost of a packet: `ringway-lab bench packet`.
//!
//! The gateway's own programs are loaded and their tables filled as the daemon does, but nothing is
//! attached: BPF_PROG_TEST_RUN runs the root program on packet after packet, each made by a small
//! program in front of it (bpf/feed.bpf.c) for the next of so many flows in turn. That program
//! alone, in front of one that does nothing, is measured just before; the difference is the
//! gateway's. Rounds go through all rows, so that a drift of the machine hits all.
//!
//! The calls of a packet are counted on other gateways ([`calls`]): counters cost time.

pub(in crate::benches) mod calls;
pub(in crate::benches) mod feeder;
pub(in crate::benches) mod path;
pub(crate) mod report;
pub(crate) mod residue;
pub(in crate::benches) mod site;

use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::thread;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::value_parser;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::Serialize;
use serde_json::{Value, json};

pub use path::{Ip, PacketPath};

use crate::benches::tcp::limits;
use crate::harness::cpu::{Cpus, pin};
use crate::harness::median::median;
use crate::harness::{Case, Harness, Rounds, Scenario};
use crate::{Error, Result};
use calls::CallsPerPacket;
use feeder::{Feeder, MOST_REPLIES, Storage};
use report::{PacketFigures, Row};
use site::Site;

/// Flows measured unless others are asked for.
pub const FLOWS: [u32; 4] = [1, 10_000, 500_000, 10_000_000];

/// Of those, the most for which flows are opened unasked: more take gigabytes.
const OPENED_UNASKED: u32 = 500_000;

/// Packets of one measurement, at least; and each flow has one.
pub(in crate::benches) const PACKETS: u32 = 2_000_000;

/// Room for flows where the path keeps any: the default of `[nat] flows`. At most two thirds of it
/// are used.
const ROOM: u32 = 1 << 20;

/// Bytes that a flow may take, tables half empty; a record of `dsr-changing`.
const FLOW_BYTES: u64 = 256;
const RECORD_BYTES: u64 = 32;

/// Nanoseconds and calls that a packet costs in the gateway's programs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs root. Takes some minutes, on one processor; attaches nothing to any interface and leaves \
    nothing behind. Exit code 1 when a path that can run here did not.\n\nExamples:\n  ringway-lab bench packet\n  \
    ringway-lab bench packet --only pass,nat --ip 4 --flows 1,10000 --rounds 3 -o json\n  \
    ringway-lab bench packet --only nat --flows 10000000"
)]
pub struct Packet {
    /// Only these paths.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub only: Vec<PacketPath>,
    /// Only these IP versions.
    #[arg(long, value_name = "VERSION", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(["4", "6"]).map(|version| match version.as_str() {
            "4" => Ip::V4,
            _ => Ip::V6,
        }))]
    pub ip: Vec<Ip>,
    /// Flows that take turns, each number measured [default: 1, 10000, 500000 and 10000000].
    ///
    /// Where the gateway keeps a record of each flow, ten million are measured only when asked for.
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = value_parser!(u32).range(1..=11_000_000))]
    pub flows: Vec<u32>,
    #[command(flatten)]
    pub rounds: Rounds,
}

impl Scenario for Packet {
    const NAME: &'static str = "packet";
    type Figures = PacketFigures;

    fn measure(&self, harness: &mut Harness<'_>) -> Result<PacketFigures> {
        // A thread of its own can have a network namespace of its own, gone with it, and keep to
        // one processor.
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                settle()?;
                measure(self, harness)
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The key of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    pub(crate) name: PacketPath,
    pub(crate) ip: Ip,
    /// Flows that take turns, one packet each.
    pub(crate) flows: u32,
}

impl Case for Key {
    fn key(&self) -> Value {
        json!(self)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, IPv{}, {} flows", self.name, self.ip.number(), self.flows)
    }
}

/// Into a network namespace and onto a processor: the last, for interrupts prefer the first.
pub(in crate::benches) fn settle() -> Result<()> {
    // SAFETY: of the flags that are unsafe (FILES), none is given.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| Error::Settle(e.into()))?;
    pin(Cpus::here()?.measured)
}

fn measure(scenario: &Packet, harness: &mut Harness<'_>) -> Result<PacketFigures> {
    let mut storage = Storage::uninit();
    let mut bench = Bench {
        feeder: Feeder::load(&mut storage)?,
        sites: BTreeMap::new(),
        found: BTreeMap::new(),
        calls: BTreeMap::new(),
        wrapper: Vec::new(),
    };
    let mut rows = rows(scenario);
    harness.each(&mut rows, |_, row| bench.prepare(*row, scenario.flows.contains(&row.flows)));
    harness.rounds(scenario.rounds.count, &mut rows, |harness, _, row| {
        let net_ns = bench.round(*row)?;
        let Key { name, ip, flows } = row;
        harness.say(format!("{name:<12} IPv{} {flows:>9} flows {net_ns:>6} ns", ip.number()));
        Ok(())
    });
    Ok(PacketFigures {
        wrapper_ns: median(&bench.wrapper),
        paths: rows
            .iter()
            .map(|row| Row::new(*row, &bench.found[row], bench.calls[&(row.name, row.ip)]))
            .collect(),
        rounds: scenario.rounds.count,
    })
}

/// Gateways with the same content serve several numbers of flows: path, IP version, room for flows.
type Place = (PacketPath, Ip, u32);

struct Bench<'s> {
    feeder: Feeder<'s>,
    sites: BTreeMap<Place, Site>,
    found: BTreeMap<Key, Vec<u64>>,
    calls: BTreeMap<(PacketPath, Ip), CallsPerPacket>,
    wrapper: Vec<u64>,
}

impl Bench<'_> {
    /// Makes the row's gateway and opens the flows, unless that takes too much memory, and counts
    /// its calls.
    fn prepare(&mut self, Key { name, ip, flows }: Key, asked: bool) -> Result<()> {
        let site = match self.sites.entry((name, ip, room(name, flows))) {
            // The memory of the gateways made so far is no longer available.
            Entry::Occupied(made) => {
                fits(name, flows, asked, u64::MAX)?;
                made.into_mut()
            }
            Entry::Vacant(place) => {
                fits(name, flows, asked, limits::available())?;
                place.insert(Site::new(name, ip, room(name, flows))?)
            }
        };
        site.open_flows(&mut self.feeder, flows)?;
        if let Entry::Vacant(place) = self.calls.entry((name, ip)) {
            place.insert(calls::count(name, ip, &mut self.feeder)?);
        }
        Ok(())
    }

    /// One figure: the wrapper alone, then with the gateway.
    fn round(&mut self, row: Key) -> Result<u64> {
        let Key { name, ip, flows } = row;
        let Some(site) = self.sites.get_mut(&(name, ip, room(name, flows))) else { return Ok(0) };
        let packets = flows.max(PACKETS);
        // Caches as they are when nothing else has been going on, for all that fits them.
        if flows < PACKETS {
            site.measure(&mut self.feeder, flows, flows.max(PACKETS / 8))?;
        }
        let wrapper = site.measure_nothing(&mut self.feeder, flows, PACKETS)?;
        let gross = site.measure(&mut self.feeder, flows, packets)?;
        let net = gross.saturating_sub(wrapper);
        self.wrapper.push(wrapper);
        self.found.entry(row).or_default().push(net);
        Ok(net)
    }
}

/// Every row asked for, in the order of the report.
fn rows(scenario: &Packet) -> Vec<Key> {
    fn or<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
        if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
    }
    let mut rows = Vec::new();
    for name in or(&scenario.only, &PacketPath::ALL) {
        for ip in or(&scenario.ip, &Ip::ALL) {
            let flows = or(&scenario.flows, &FLOWS).into_iter();
            let fits = |flows: &u32| !scenario.flows.is_empty() || *flows >= name.least_flows();
            rows.extend(flows.filter(fits).map(|flows| Key { name, ip, flows }));
        }
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Flows to make room for.
fn room(path: PacketPath, flows: u32) -> u32 {
    if path.keeps_flows() { ROOM.max(flows + flows / 2) } else { ROOM }
}

/// Refuses a row that makes no sense, or takes too much of the memory that can be had.
fn fits(path: PacketPath, flows: u32, asked: bool, memory: u64) -> Result<()> {
    let bytes = if path == PacketPath::DsrChanging { RECORD_BYTES } else { FLOW_BYTES };
    let needed = u64::from(room(path, flows)) * bytes;
    let mib = needed >> 20;
    let reason = if flows < path.least_flows() {
        format!("takes at least {} flows, so that no port is free", path.least_flows())
    } else if path == PacketPath::NatReply && flows > MOST_REPLIES {
        format!("replies are fed of at most {MOST_REPLIES} flows")
    } else if !path.keeps_flows() {
        return Ok(());
    } else if flows > OPENED_UNASKED && !asked {
        format!("the flow tables take up to {mib} MiB: ask for it with --flows {flows}")
    } else if needed > memory / 2 {
        let available = memory >> 20;
        format!(
            "the flow tables take up to {mib} MiB, more than half of the {available} MiB available"
        )
    } else {
        return Ok(());
    };
    Err(Error::Unavailable(reason))
}

/// Whether calls and look-ups can be counted here: an older kernel calls for look-ups in per-CPU
/// arrays.
#[cfg(test)]
pub(crate) fn calls_are_known(test: &str) -> bool {
    let root = ringway_testnet::root_or_skip(test);
    let release = ringway_host::Host::live().kernel_release().unwrap();
    let is_new = release.at_least(6, 12);
    if root && !is_new {
        let why = format!("counts are of Linux 6.12 or newer, and this is {release}");
        ringway_testnet::skip(test, why);
    }
    root && is_new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(only: &[PacketPath], flows: &[u32]) -> Packet {
        Packet {
            only: only.to_vec(),
            ip: Vec::new(),
            flows: flows.to_vec(),
            rounds: Rounds { count: 1 },
        }
    }

    #[test]
    fn every_row_once() {
        let all = rows(&packet(&[], &[]));
        let of_full_pool = 2;
        let others = (PacketPath::ALL.len() - 1) * Ip::ALL.len() * FLOWS.len();
        assert_eq!(all.len(), others + 2 * of_full_pool);
        let some = rows(&packet(&[PacketPath::Nat, PacketPath::Pass, PacketPath::Nat], &[7]));
        let names: Vec<_> = some.iter().map(|row| (row.name, row.ip.number())).collect();
        let wanted = [PacketPath::Pass, PacketPath::Nat].map(|path| [(path, 4), (path, 6)]);
        assert_eq!(names, wanted.concat());
    }

    #[test]
    fn memory_is_bounded() {
        let plenty = 64 << 30;
        let why_not = |path, flows, asked, memory| {
            fits(path, flows, asked, memory)
                .map_or_else(|error| error.to_string(), |()| String::new())
        };
        assert_eq!(why_not(PacketPath::Pass, 10_000_000, false, 0), "");
        assert_eq!(why_not(PacketPath::Nat, 500_000, false, plenty), "");
        assert!(why_not(PacketPath::Nat, 10_000_000, false, plenty).contains("--flows 10000000"));
        assert_eq!(why_not(PacketPath::NewFlow, 10_000_000, true, plenty), "");
        // A table that is as full as it may be finds no place for some.
        assert_eq!(room(PacketPath::Nat, 10_000_000), 15_000_000);
        assert!(why_not(PacketPath::Nat, 10_000_000, true, 6 << 30).contains("half of the 6144"));
        assert_eq!(why_not(PacketPath::DsrChanging, 10_000_000, true, 1 << 30), "");
        assert_ne!(why_not(PacketPath::Nat, 1, true, 500 << 20), "", "has room for a million");
        assert!(why_not(PacketPath::FullPool, 1, true, plenty).contains("no port is free"));
    }

    mod long {
        use super::*;

        /// The real thing, as short as it can be.
        #[test]
        fn measures_every_path() {
            if !ringway_testnet::root_or_skip("packet::measures_every_path") {
                return;
            }
            let of = |scenario: Packet| {
                let report =
                    crate::harness::measure(&scenario, &mut |line| eprintln!("{line}")).unwrap();
                assert!(report.ok(), "{report}");
                report.figures.paths.len() + report.skipped.len()
            };
            assert_eq!(of(packet(&[], &[1000])), 2 * PacketPath::ALL.len());
            assert_eq!(of(packet(&[PacketPath::FullPool], &[4 * path::POOL])), 2);
        }
    }
}
