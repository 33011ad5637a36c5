//! Every packet is accounted for, by the kernel's own count too; and a million mutated ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ringway_abi::raw::rw_ledger;
use ringway_bpf_tests::clock::seed;
use ringway_bpf_tests::judge::judge;
use ringway_bpf_tests::mutate::{Random, mutate};
use ringway_bpf_tests::prelude::*;
use ringway_bpf_tests::run::count_runs;
use ringway_bpf_tests::seeds::Seed;
use ringway_bpf_tests::{inspect, seeds};

#[derive(Default)]
struct Tally {
    good_and_sent: u64,
    verdicts: HashMap<Verdict, u64>,
}

/// Feeds `frames` mutated frames through both interfaces' roots.
fn feed(world: &World, seeds: &[Seed], seed: u64, frames: u64) -> Tally {
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    let mut out = Vec::new();
    for n in 0..frames {
        let (slot, original) = random.pick(seeds);
        let mut frame = original.clone();
        mutate(&mut random, &mut frame);
        if random.below(4) > 0 {
            inspect::mend(&mut frame);
        }
        // The kernel does not take less than an Ethernet header.
        frame.resize(frame.len().max(14), 0);
        let verdict = world.root(*slot).run(&frame, &mut out).unwrap();
        *tally.verdicts.entry(verdict).or_default() += 1;
        if let Err(why) = judge(&frame, &out, verdict, None) {
            panic!("{why}: frame {n} of seed {seed:#x}, slot {slot}: {frame:02x?} -> {out:02x?}");
        }
        if matches!(verdict, Verdict::Tx | Verdict::Redirect) && inspect::check(&frame).is_ok() {
            tally.good_and_sent += 1;
        }
    }
    tally
}

const MILLION: u64 = 1_000_000;
const THREADS: u64 = 2;

#[test]
fn a_million_mutated_frames() {
    needs_root!("a_million_mutated_frames");
    let seed = seed();
    let _counting = count_runs();
    let mut world = World::with(65_536, |_| ());
    let seeds = seeds::of_nat(&mut world);
    let runs = |world: &World| [FRONT, BACK].map(|slot| world.root(slot).run_count());
    let ledgers = |world: &World| [FRONT, BACK].map(|slot| world.ledger(slot));
    let (runs_before, ledgers_before) = (runs(&world), ledgers(&world));

    let (shared, seeds) = (&world, &seeds);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                scope.spawn(move || feed(shared, seeds, seed * THREADS + n, MILLION / THREADS))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    let (runs_after, ledgers_after) = (runs(&world), ledgers(&world));
    let kernel: u64 = runs_after.iter().sum::<u64>() - runs_before.iter().sum::<u64>();
    let seen: u64 = ledgers_after.iter().map(|b| b.seen).sum::<u64>()
        - ledgers_before.iter().map(|b| b.seen).sum::<u64>();
    assert_eq!((kernel, seen), (MILLION, MILLION), "runs by the kernel's count, and by ours");
    for ledger in &ledgers_after {
        assert_eq!(ledger.difference(), 0);
    }
    for verdict in Verdict::all() {
        let given: u64 = tallies.iter().filter_map(|tally| tally.verdicts.get(&verdict)).sum();
        let total = |ledgers: &[rw_ledger; 2]| -> u64 {
            ledgers.iter().flat_map(|ledger| Reason::all().map(|r| ledger.count(verdict, r))).sum()
        };
        assert_eq!(given, total(&ledgers_after) - total(&ledgers_before), "{verdict}");
    }
    // It must have got somewhere: reasons that a frame alone can bring about.
    let good: u64 = tallies.iter().map(|tally| tally.good_and_sent).sum();
    println!("{good} came in order and were sent on");
    assert!(good > MILLION / 10, "only {good} frames in order were sent on");
    let all = |ledgers: &[rw_ledger; 2], reason: Reason| -> u64 {
        ledgers.iter().flat_map(|ledger| Verdict::all().map(|v| ledger.count(v, reason))).sum()
    };
    let reached = |reason: Reason| all(&ledgers_after, reason) > all(&ledgers_before, reason);
    let reasons = [
        Reason::NotIp,
        Reason::NoService,
        Reason::OtherProtocol,
        Reason::OtherHost,
        Reason::Malformed,
        Reason::TtlExpired,
        Reason::NoBackend,
        Reason::NoNeighbour,
        Reason::TooBig,
        Reason::NoFlow,
        Reason::NoDevice,
        Reason::NatForward,
        Reason::NatReply,
        Reason::ResetNoBackend,
        Reason::ResetNoFlow,
        Reason::ArpReply,
        Reason::NdReply,
        Reason::EchoReply,
    ];
    for reason in reasons {
        assert!(reached(reason), "no frame came to {reason}");
    }
    assert!(!reached(Reason::NoState) && !reached(Reason::None));
}

/// The ledgers agree with the kernel's count while two CPUs write them and a third reads.
#[test]
fn the_kernel_counts_the_same() {
    needs_root!("the_kernel_counts_the_same");
    const EACH: u64 = 50_000;
    let _counting = count_runs();
    let mut world = World::new();
    let seeds = seeds::of_nat(&mut world);
    let before = [FRONT, BACK].map(|slot| (world.root(slot).run_count(), world.ledger(slot)));
    let running = AtomicU64::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = Vec::new();
                for (slot, frame) in seeds.iter().cycle().take(EACH as usize) {
                    world.root(*slot).run(frame, &mut out).unwrap();
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        while running.load(Ordering::Acquire) > 0 {
            for slot in [FRONT, BACK] {
                // Seen is written first, and read first of all: at most one packet per CPU is
                // under way, but a slow reader sees later counts.
                let ledger = world.ledger(slot);
                assert!(ledger.difference() <= 2, "{}", ledger.difference());
            }
        }
    });
    let mut fed = 0;
    for (slot, (runs, ledger)) in [FRONT, BACK].into_iter().zip(&before) {
        let after = world.ledger(slot);
        assert_eq!(after.difference(), 0);
        assert_eq!(after.seen - ledger.seen, world.root(slot).run_count() - runs, "slot {slot}");
        fed += after.seen - ledger.seen;
    }
    assert_eq!(fed, 2 * EACH);
}
