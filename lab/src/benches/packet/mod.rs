//! What a packet costs: `ringway-lab bench packet`.
//!
//! The gateway's own programs are loaded and their tables filled as the daemon does, but nothing is attached:
//! BPF_PROG_TEST_RUN runs the root program on packet after packet, each made by a small program in front of it
//! (bpf/feed.bpf.c) for the next of so many flows in turn. That program alone, in front of one that does nothing, is
//! measured just before; the difference is the gateway's. Rounds go through all rows, so that a drift of the machine
//! hits all.

mod feeder;
mod path;
mod report;
pub(crate) mod residue;
mod site;

use std::collections::btree_map::{BTreeMap, Entry};
use std::thread;

use rustix::thread::{CpuSet, UnshareFlags, sched_getaffinity, sched_setaffinity, unshare_unsafe};

pub use path::{Ip, Path};
pub use report::{NotRun, Report, Row, SCHEMA};

use crate::harness::median::median;
use crate::{Error, Result, needs_root};
use feeder::{Feeder, Storage};
use site::Site;

/// Flows measured unless others are asked for.
pub const FLOWS: [u32; 4] = [1, 10_000, 500_000, 10_000_000];

/// Of those, the most for which flows are opened unasked: more take gigabytes.
const OPENED_UNASKED: u32 = 500_000;

/// Packets of one measurement, at least; and each flow has one.
const PACKETS: u32 = 2_000_000;

/// Room for flows where the path keeps any: the default of `[nat] flows`. At most two thirds of it are used.
const ROOM: u32 = 1 << 20;

/// Bytes that a flow may take, tables half empty.
const FLOW_BYTES: u64 = 256;

/// What to measure and how often.
#[derive(Debug, Clone)]
pub struct Options {
    /// Times that every row is measured; the median counts.
    pub rounds: u32,
    /// Paths to measure; empty: all.
    pub only: Vec<Path>,
    /// IP versions; empty: both.
    pub ip: Vec<Ip>,
    /// Numbers of flows, each at least 1; empty: [`FLOWS`], but for ten million where they must be opened first.
    pub flows: Vec<u32>,
}

impl Default for Options {
    /// Everything, five rounds.
    fn default() -> Self {
        Self { rounds: 5, only: Vec::new(), ip: Vec::new(), flows: Vec::new() }
    }
}

/// Measures. `progress` is told in words what goes on, and aloud what is skipped or fails: that does not stop the
/// others, and is in [`Report::skipped`] or [`Report::failed`]. Needs root; leaves nothing behind, however it ends.
///
/// # Errors
/// Nothing can be measured here.
pub fn run(options: &Options, progress: impl FnMut(&str) + Send) -> Result<Report> {
    needs_root("bench packet")?;
    let report = Report::new(options);
    // A thread of its own can have a network namespace of its own, gone with it, and keep to one processor.
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            settle()?;
            measure(options, report, progress)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Into a network namespace and onto a processor: the last, for interrupts prefer the first.
fn settle() -> Result<()> {
    // SAFETY: of the flags that are unsafe (FILES), none is given.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| Error::Settle(e.into()))?;
    let mut cpus = sched_getaffinity(None).map_err(|e| Error::Settle(e.into()))?;
    if let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| cpus.is_set(*cpu)) {
        cpus.clear();
        cpus.set(last);
        sched_setaffinity(None, &cpus).map_err(|e| Error::Settle(e.into()))?;
    }
    Ok(())
}

type Key = (Path, Ip, u32);

fn measure(options: &Options, report: Report, mut progress: impl FnMut(&str)) -> Result<Report> {
    let mut storage = Storage::uninit();
    let mut bench = Bench {
        feeder: Feeder::load(&mut storage)?,
        sites: BTreeMap::new(),
        found: BTreeMap::new(),
        wrapper: Vec::new(),
        report,
    };
    let mut rows = rows(options);
    rows.retain(|row| bench.prepare(*row, options.flows.contains(&row.2), &mut progress));
    for round in 1..=bench.report.rounds {
        rows.retain(|row| bench.keep_on(*row, round, &mut progress));
    }
    bench.report.wrapper_ns = median(&bench.wrapper);
    bench.report.paths = rows.iter().map(|row| Row::new(*row, &bench.found[row])).collect();
    Ok(bench.report)
}

/// Gateways with the same content serve several numbers of flows: path, IP version, room for flows.
type Place = (Path, Ip, u32);

struct Bench<'s> {
    feeder: Feeder<'s>,
    sites: BTreeMap<Place, Site>,
    found: BTreeMap<Key, Vec<u64>>,
    wrapper: Vec<u64>,
    report: Report,
}

impl Bench<'_> {
    fn skip(&mut self, (name, ip, flows): Key, reason: String, progress: &mut impl FnMut(&str)) {
        progress(&format!("{}: SKIPPED: {reason}", label((name, ip, flows))));
        self.report.skipped.push(NotRun { name, ip, flows, reason });
    }

    /// Whether it is of use to go on with a row.
    fn went(&mut self, row: Key, result: Result<()>, progress: &mut impl FnMut(&str)) -> bool {
        let Err(error) = result else { return true };
        let ((name, ip, flows), reason) = (row, error.to_string());
        progress(&format!("{}: FAILED: {reason}", label(row)));
        self.report.failed.push(NotRun { name, ip, flows, reason });
        false
    }

    /// Makes the row's gateway and opens the flows, unless that takes too much memory.
    fn prepare(&mut self, row: Key, asked: bool, progress: &mut impl FnMut(&str)) -> bool {
        let (path, ip, flows) = row;
        // What the gateways made so far take is no longer available.
        let memory = match self.sites.contains_key(&(path, ip, room(path, flows))) {
            true => None,
            false => memory_available(),
        };
        if let Some(reason) = why_not(path, flows, asked, memory) {
            self.skip(row, reason, progress);
            return false;
        }
        let result = self.try_prepare(row);
        self.went(row, result, progress)
    }

    fn try_prepare(&mut self, (path, ip, flows): Key) -> Result<()> {
        let site = match self.sites.entry((path, ip, room(path, flows))) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                let (.., room) = *place.key();
                place.insert(Site::new(path, ip, room)?)
            }
        };
        site.open_flows(&mut self.feeder, flows)
    }

    fn keep_on(&mut self, row: Key, round: u32, progress: &mut impl FnMut(&str)) -> bool {
        let result = self.try_round(row).map(|net_ns| {
            let rounds = self.report.rounds;
            progress(&format!("round {round}/{rounds}  {} {net_ns:>6} ns", label(row)));
        });
        self.went(row, result, progress)
    }

    /// One figure: the wrapper alone, then with the gateway.
    fn try_round(&mut self, row: Key) -> Result<u64> {
        let (path, ip, flows) = row;
        let Some(site) = self.sites.get_mut(&(path, ip, room(path, flows))) else { return Ok(0) };
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

fn label((path, ip, flows): Key) -> String {
    format!("{path:<9} IPv{} {flows:>9} flows", ip.number())
}

/// Every row asked for, in the order of the report.
fn rows(options: &Options) -> Vec<Key> {
    fn or<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
        if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
    }
    let mut rows = Vec::new();
    for path in or(&options.only, &Path::ALL) {
        for ip in or(&options.ip, &Ip::ALL) {
            let flows = or(&options.flows, &FLOWS).into_iter();
            let fits = |flows: &u32| !options.flows.is_empty() || *flows >= path.least_flows();
            rows.extend(flows.filter(fits).map(|flows| (path, ip, flows)));
        }
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Flows to make room for.
fn room(path: Path, flows: u32) -> u32 {
    if path.keeps_flows() { ROOM.max(flows) } else { ROOM }
}

/// Why a row is left out.
fn why_not(path: Path, flows: u32, asked: bool, memory: Option<u64>) -> Option<String> {
    if flows < path.least_flows() {
        return Some(format!(
            "takes at least {} flows, so that no port is free",
            path.least_flows()
        ));
    }
    if !path.keeps_flows() {
        return None;
    }
    let needed = u64::from(room(path, flows)) * FLOW_BYTES;
    let mib = needed >> 20;
    if flows > OPENED_UNASKED && !asked {
        return Some(format!(
            "the flow tables take up to {mib} MiB: ask for it with --flows {flows}"
        ));
    }
    let memory = memory.filter(|memory| needed > memory / 2)?;
    Some(format!(
        "the flow tables take up to {mib} MiB, more than half of the {} MiB available",
        memory >> 20
    ))
}

/// Bytes, as the kernel estimates them; `None`: it does not say.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_once() {
        let all = rows(&Options::default());
        let of_full_pool = 2;
        assert_eq!(
            all.len(),
            (Path::ALL.len() - 1) * Ip::ALL.len() * FLOWS.len() + 2 * of_full_pool
        );
        let only = vec![Path::Nat, Path::Pass, Path::Nat];
        let some = rows(&Options { only, flows: vec![7], ..Options::default() });
        let names: Vec<_> = some.iter().map(|row| (row.0, row.1.number())).collect();
        assert_eq!(names, [(Path::Pass, 4), (Path::Pass, 6), (Path::Nat, 4), (Path::Nat, 6)]);
    }

    #[test]
    fn memory_is_bounded() {
        let plenty = Some(64 << 30);
        assert_eq!(why_not(Path::Pass, 10_000_000, false, Some(0)), None);
        assert_eq!(why_not(Path::Nat, 500_000, false, plenty), None);
        assert!(
            why_not(Path::Nat, 10_000_000, false, plenty).unwrap().contains("--flows 10000000")
        );
        assert_eq!(why_not(Path::NewFlow, 10_000_000, true, plenty), None);
        assert!(
            why_not(Path::Nat, 10_000_000, true, Some(4 << 30))
                .unwrap()
                .contains("half of the 4096")
        );
        assert_eq!(why_not(Path::Nat, 10_000_000, true, None), None);
        assert!(why_not(Path::Nat, 1, true, Some(500 << 20)).is_some(), "has room for a million");
        assert!(memory_available().is_none_or(|bytes| bytes > 1 << 20));
    }

    /// The real thing, as short as it can be.
    #[test]
    fn measures_every_path() {
        if !ringway_testnet::root_or_skip("packet::measures_every_path") {
            return;
        }
        let of = |only: &[Path], flows| {
            let options =
                Options { rounds: 1, flows: vec![flows], only: only.to_vec(), ip: vec![] };
            let report = run(&options, |line| eprintln!("{line}")).unwrap();
            assert!(report.ok(), "{report}");
            report.paths.len() + report.skipped.len()
        };
        assert_eq!(of(&[], 1000), 2 * Path::ALL.len());
        assert_eq!(of(&[Path::FullPool], 4 * path::POOL), 2);
    }
}
