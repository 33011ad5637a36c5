//! A list is swapped for another one while packets flow: how long the longest gap between two
//! packets is, and whether all arrive.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use ringway_abi::{Reason, Verdict};
use serde::Serialize;

use super::lists::{Shield, neighbours};
use super::peers::{self, Peers};
use crate::benches::packet::feeder::{self, Feeder};
use crate::benches::packet::path::{Clients, Ip, PacketPath};
use crate::benches::packet::site::Site;
use crate::harness::cpu::{Cpus, outrank, pin};
use crate::harness::median::median;
use crate::{Error, Result};

const FLOWS: u32 = 1000;
const ROOM: u32 = 65_536;
/// Of one call: some hundredths of a second.
const PACKETS: u32 = 500_000;
/// Between two calls.
const PAUSE: Duration = Duration::from_millis(10);
const SWAPS: u32 = 3;

/// Medians; packets of all rounds together.
#[derive(Debug, Default, Serialize)]
pub struct Swap {
    pub prefixes: u32,
    /// Nanoseconds between two packets, at most, of the rounds' longest the median.
    pub longest_gap_ns: u64,
    /// The same when nothing is swapped.
    pub longest_gap_quiet_ns: u64,
    /// From the tables, as the process has them, to the program in force.
    pub swap_ms: u64,
    pub packets: u64,
    pub lost: u64,
    pub longest_gap_ns_by_round: Vec<u64>,
    pub longest_gap_quiet_ns_by_round: Vec<u64>,
    pub swap_ms_by_round: Vec<u64>,
}

/// A gateway that has a list.
pub(super) struct SwapSite {
    site: Site,
    shield: Shield,
    swap: Swap,
}

impl SwapSite {
    pub(super) fn new(prefixes: u32) -> Result<Self> {
        let mut site = Site::new(PacketPath::DsrL2, Ip::V4, ROOM)?;
        let list = neighbours(Ip::V4, Clients::OneNetwork, FLOWS, prefixes as usize)?;
        let shield = Shield::of_list(&list)?;
        site.set_shield(Some(&shield.generation()), None)?;
        Ok(Self { site, shield, swap: Swap { prefixes, ..Swap::default() } })
    }

    /// Packets flow, and lists are swapped; then for as long nothing is.
    pub(super) fn round(&mut self) -> Result<String> {
        let program = self.site.root_program()?;
        let before = self.site.ledger()?;
        let began = Instant::now();
        let (frame, shield) = (self.site.frame(), &self.shield);
        let site = &mut self.site;
        let (swapped, gap) = watched(&program, &frame, || {
            (0..SWAPS).try_for_each(|_| site.set_shield(Some(&shield.generation()), None))
        })?;
        let time = began.elapsed();
        let (still, quiet) = watched(&program, &frame, || {
            thread::sleep(time);
            Ok(())
        })?;
        let after = self.site.ledger()?;
        let arrived =
            |ledger: &ringway_abi::raw::rw_ledger| ledger.count(Verdict::Tx, Reason::DsrL2);
        let lost = (swapped + still).saturating_sub(arrived(&after) - arrived(&before));
        let swap = &mut self.swap;
        swap.packets += swapped + still;
        swap.lost += lost;
        swap.longest_gap_ns_by_round.push(gap);
        swap.longest_gap_quiet_ns_by_round.push(quiet);
        swap.swap_ms_by_round.push(time.as_millis() as u64 / u64::from(SWAPS));
        let us = |ns: u64| ns / 1000;
        let (gap, quiet) = (us(gap), us(quiet));
        Ok(format!("swap: longest gap {gap} us, {quiet} us when nothing is swapped, {lost} lost"))
    }

    pub(super) fn figures(self) -> Swap {
        let swap = self.swap;
        Swap {
            longest_gap_ns: median(&swap.longest_gap_ns_by_round),
            longest_gap_quiet_ns: median(&swap.longest_gap_quiet_ns_by_round),
            swap_ms: median(&swap.swap_ms_by_round),
            ..swap
        }
    }
}

/// Packets to a program, on the first processor, while something is done on this one: how many,
/// and the longest gap between two of them.
fn watched(
    program: &OwnedFd,
    frame: &[u8],
    work: impl FnOnce() -> Result<()>,
) -> Result<(u64, u64)> {
    let (stop, cpu) = (AtomicBool::new(false), Cpus::here()?.load);
    thread::scope(|scope| {
        let packets = scope.spawn(|| {
            pin(cpu)?;
            feed(program.as_fd(), frame, &stop)
        });
        // Packets flow when it begins.
        thread::sleep(Duration::from_millis(100));
        let done = work();
        stop.store(true, Relaxed);
        let fed = packets.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.and(fed)
    })
}

fn feed(program: BorrowedFd<'_>, frame: &[u8], stop: &AtomicBool) -> Result<(u64, u64)> {
    let (mut feeding, mut watching) = (feeder::Storage::uninit(), peers::Storage::uninit());
    let mut feeder = Feeder::load(&mut feeding)?;
    let mut peers = Peers::load(&mut watching, &[])?;
    let watch = peers.watch(program)?.try_clone_to_owned().map_err(Error::Settle)?;
    let clients = Clients::OneNetwork;
    let meal =
        feeder::Meal { ip: Ip::V4, frame, clients, replies: None, flows: FLOWS, packets: PACKETS };
    let mut packets = 0;
    // Packets are a softirq's, which waits for no process.
    outrank()?;
    while !stop.load(Relaxed) {
        // So that all others have their turn, for whom a gap is no gap.
        thread::sleep(PAUSE);
        peers.begin()?;
        feeder.program(watch.as_fd(), &meal)?;
        packets += u64::from(PACKETS);
    }
    Ok((packets, peers.longest_ns()?))
}
