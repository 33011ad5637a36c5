//! Every packet is accounted for, by the kernel's own count too; and a million mutated ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ringway_abi::{Reason, Verdict};
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{Arp, Frame, TCP, UDP, flags::*};
use ringway_bpf_tests::mutate::{Random, mutate};
use ringway_bpf_tests::run::count_runs;
use ringway_bpf_tests::wire::{self, Checked};
use ringway_bpf_tests::{World, ports};

use crate::needs_root;

/// Frames of every kind, on their way to one of the two interfaces.
fn seeds(world: &mut World) -> Vec<(u32, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |slot, frame: &Frame| seeds.push((slot, frame.bytes()));
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            for port in [ports::SAME, ports::ACROSS, ports::CLIENT, ports::POOL, ports::SMALL] {
                let flow = world.connect_or_open(family, proto, port);
                add(FRONT, &flow.request);
                add(FRONT, &flow.next(PSH | ACK).payload(b"GET / HTTP/1.0\r\n\r\n"));
                add(FRONT, &flow.next(FIN | ACK));
                add(flow.back_slot(), &flow.answer(PSH | ACK));
                add(flow.back_slot(), &flow.answer(SYN | ACK).payload(b""));
                add(flow.back_slot(), &flow.answer(RST));
            }
            for port in
                [ports::NONE_RESET, ports::NONE_DROP, ports::UNRESOLVED, ports::NO_DEVICE, 79]
            {
                let (src, dst) = world.ends(family, port);
                add(FRONT, &Frame { proto, flags: SYN, ..Frame::udp(src, dst) });
                add(FRONT, &Frame { proto, flags: ACK, ..Frame::udp(src, dst) });
            }
            let (src, dst) = world.ends(family, ports::SMALL);
            let just_fits = vec![3; 1280 - family.header_len() - if proto == TCP { 20 } else { 8 }];
            add(FRONT, &Frame { proto, flags: SYN, ..Frame::udp(src, dst) }.payload(&just_fits));
            add(FRONT, &Frame { proto, flags: SYN, ..Frame::udp(src, dst) }.payload(&[3; 1300]));
            let (src, dst) = world.ends(family, ports::ACROSS);
            let plain = Frame { proto, flags: SYN, ..Frame::udp(src, dst) };
            add(FRONT, &plain.clone().with(|f| f.vlans = vec![(0x8100, 5)]));
            add(FRONT, &plain.clone().with(|f| f.fragment = 0x2000));
            add(FRONT, &plain.clone().with(|f| f.no_checksum = proto == UDP));
            add(FRONT, &plain.clone().with(|f| f.ttl = 1));
            add(FRONT, &plain.clone().with(|f| f.padding = 9));
            add(FRONT, &plain.clone().with(|f| f.dst_mac = STRANGER_MAC));
            add(
                FRONT,
                &plain.with(|f| {
                    (f.options, f.first_extension) = (vec![proto, 0, 1, 4, 0, 0, 0, 0], 60)
                }),
            );
        }
        let (src, dst) = world.ends(family, 0);
        let echo = if family == Family::V4 { 8 } else { 128 };
        add(
            FRONT,
            &Frame { proto: family.icmp(), ..Frame::new(1, src, dst) }
                .payload(&[echo, 0, 0, 0, 0, 1, 0, 1]),
        );
    }
    let v6 = Family::V6.announced();
    let std::net::IpAddr::V6(target) = v6 else { unreachable!() };
    for options in [&[][..], &[1, 1, 2, 0, 0, 0, 0, 0xc1]] {
        let body = [&[135, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..], options].concat();
        let ask = Frame::new(58, (Family::V6.client(), 0).into(), (v6, 0).into()).payload(&body);
        add(FRONT, &ask.with(|f| f.ttl = 255));
    }
    let arp = Arp {
        dst_mac: BROADCAST_MAC,
        src_mac: CLIENT_MAC,
        op: 1,
        sender: (CLIENT_MAC, Family::V4.client()),
        target: ([0; 6], Family::V4.announced()),
    };
    seeds.push((FRONT, arp.bytes()));
    seeds
}

/// What was sent must be in order if what came was, and no longer than it.
fn check_sent(frame: &[u8], out: &[u8]) {
    let came = match wire::check(frame) {
        Checked::Good(packet) => packet,
        // ARP's reply: nothing to sum.
        Checked::NotIp => return assert_eq!((out.len(), &out[12..14]), (frame.len(), &[8, 6][..])),
        Checked::Bad(_) => return,
    };
    let sent = match wire::check(out) {
        Checked::Good(packet) => packet,
        other => panic!("sent {other:?}"),
    };
    let answered = (sent.src, sent.dst) == (came.dst, came.src) || came.proto == 58;
    if !answered {
        assert_eq!(came.ttl, sent.ttl + 1);
        assert_eq!((came.l3_len, frame.len()), (sent.l3_len, out.len()), "nat changes no length");
    }
}

struct Tally {
    frames: u64,
    good_and_sent: u64,
    verdicts: HashMap<Verdict, u64>,
}

/// Feeds `frames` mutated frames through both interfaces' roots.
fn feed(world: &World, seeds: &[(u32, Vec<u8>)], seed: u64, frames: u64) -> Tally {
    let mut random = Random::new(seed);
    let mut tally = Tally { frames: 0, good_and_sent: 0, verdicts: HashMap::new() };
    let mut out = Vec::new();
    for n in 0..frames {
        let (slot, original) = random.pick(seeds);
        let mut frame = original.clone();
        mutate(&mut random, &mut frame);
        if random.below(4) > 0 {
            wire::mend(&mut frame);
        }
        // The kernel does not take less than an Ethernet header.
        frame.resize(frame.len().max(14), 0);
        let verdict = world.root(*slot).run(&frame, &mut out).unwrap();
        tally.frames += 1;
        *tally.verdicts.entry(verdict).or_default() += 1;
        let passed = std::panic::catch_unwind(|| match verdict {
            Verdict::Tx | Verdict::Redirect => check_sent(&frame, &out),
            Verdict::Pass => assert_eq!(frame, out, "passed, but changed"),
            Verdict::Drop | Verdict::Aborted => (),
        });
        assert!(
            passed.is_ok(),
            "frame {n} of seed {seed:#x}, slot {slot}: {frame:02x?} -> {out:02x?}"
        );
        if matches!(verdict, Verdict::Tx | Verdict::Redirect) && wire::check(&frame).is_good() {
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
    let seed = std::env::var("RINGWAY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_26);
    println!("RINGWAY_SEED={seed}");
    let _counting = count_runs();
    let mut world = World::with(65_536, |_| ());
    let seeds = seeds(&mut world);
    // Before anything is changed the seeds must do what they are for: all verdicts but ABORTED.
    let runs = |world: &World| [FRONT, BACK].map(|slot| world.root(slot).run_count());
    let books = |world: &World| [FRONT, BACK].map(|slot| world.ledger(slot));
    let (runs_before, books_before) = (runs(&world), books(&world));

    let shared = &world;
    let seeds = &seeds;
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                scope.spawn(move || feed(shared, seeds, seed * THREADS + n, MILLION / THREADS))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    let fed: u64 = tallies.iter().map(|tally| tally.frames).sum();
    assert_eq!(fed, MILLION);
    let (runs_after, books_after) = (runs(&world), books(&world));
    let kernel: u64 = runs_after.iter().sum::<u64>() - runs_before.iter().sum::<u64>();
    let seen: u64 = books_after.iter().map(|b| b.seen).sum::<u64>()
        - books_before.iter().map(|b| b.seen).sum::<u64>();
    assert_eq!((kernel, seen), (MILLION, MILLION), "runs by the kernel's count, and by ours");
    for book in &books_after {
        assert_eq!(book.difference(), 0);
    }
    for verdict in Verdict::all() {
        let given: u64 = tallies.iter().filter_map(|tally| tally.verdicts.get(&verdict)).sum();
        let total = |books: &[ringway_abi::raw::rw_ledger; 2]| -> u64 {
            books.iter().flat_map(|book| Reason::all().map(|r| book.count(verdict, r))).sum()
        };
        assert_eq!(given, total(&books_after) - total(&books_before), "{verdict}");
    }
    assert_eq!(books_after.iter().map(|b| b.counts[0].iter().sum::<u64>()).sum::<u64>(), 0);
    // It must have got somewhere: every reason that a frame alone can bring about.
    let good: u64 = tallies.iter().map(|tally| tally.good_and_sent).sum();
    println!("{good} came in order and were sent on");
    assert!(good > MILLION / 10, "only {good} frames in order were sent on");
    let reached = |reason: Reason| {
        Verdict::all().any(|v| {
            books_after
                .iter()
                .zip(&books_before)
                .any(|(a, b)| a.count(v, reason) > b.count(v, reason))
        })
    };
    let needs_more = [
        Reason::None,
        Reason::OnPass,
        Reason::NoStage,
        Reason::NatExhausted,
        Reason::FlowTableFull,
        Reason::ResetFailed,
        Reason::NoState,
        Reason::ResetBackendDown,
        Reason::Hairpin,
        Reason::Loop,
        Reason::NatConflict,
    ];
    for reason in Reason::all().filter(|reason| !needs_more.contains(reason)) {
        assert!(reached(reason), "no frame came to {reason}");
    }
    assert!(!reached(Reason::NoState) && !reached(Reason::None));
}

/// The books agree with the kernel's count while two CPUs write them and a third reads.
#[test]
fn the_kernel_counts_the_same() {
    needs_root!("the_kernel_counts_the_same");
    const EACH: u64 = 50_000;
    let _counting = count_runs();
    let mut world = World::new();
    let seeds = seeds(&mut world);
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
                let book = world.ledger(slot);
                assert!(book.difference() <= 2, "{}", book.difference());
            }
        }
    });
    let mut fed = 0;
    for (slot, (runs, book)) in [FRONT, BACK].into_iter().zip(&before) {
        let after = world.ledger(slot);
        assert_eq!(after.difference(), 0);
        assert_eq!(after.seen - book.seen, world.root(slot).run_count() - runs, "slot {slot}");
        fed += after.seen - book.seen;
    }
    assert_eq!(fed, 2 * EACH);
}
