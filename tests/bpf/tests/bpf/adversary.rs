//! Mixes of packets after the dearest that `ringway-lab bench shield --only adversary` has met:
//! whatever they do to others, those who are known lose nothing.

use std::net::SocketAddr;
use std::time::Instant;

use ringway_abi::Verdict::Redirect;
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{Frame, TCP, UDP, flags};
use ringway_bpf_tests::{Flow, World, audit, ports};
use ringway_plan::tables::{Limits, RateLimit, ServicePolicy};

use crate::{limits, needs_root};

const PACKETS: u32 = 2_000;
/// One packet of so many is good.
const PER_GOOD: u32 = 25;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
const MORE_FRAGMENTS: u16 = 0x2000;

/// The nth packet of a mix, in the name of somebody else each time.
type Mix = fn(Family, u32, &Flow) -> Frame;

fn anybody(family: Family, n: u32) -> SocketAddr {
    let scattered = n.wrapping_mul(0x9e37_79b1);
    let address = match family {
        Family::V4 => format!("100.{}.{}.7", scattered >> 24 & 127, scattered >> 16 & 255),
        Family::V6 => format!("2a00:{:x}:{:x}::7", scattered >> 16, scattered & 0xffff),
    };
    SocketAddr::new(address.parse().unwrap(), 1_024 + (n % 60_000) as u16)
}

/// First fragments of DNS answers from everywhere: each is noted, so that those behind it are found.
fn first_fragments(family: Family, n: u32, _: &Flow) -> Frame {
    let from = SocketAddr::new(anybody(family, n).ip(), 53);
    let to = SocketAddr::new(family.vip(), ports::ACROSS);
    Frame::udp(from, to).payload(&[0; 96]).with(|f| match family {
        Family::V4 => (f.fragment, f.id) = (MORE_FRAGMENTS, n as u16),
        Family::V6 => {
            let id = n.to_be_bytes();
            f.first_extension = FRAGMENT;
            f.options = [&[UDP, 0, 0, 1][..], &id].concat();
        }
    })
}

/// SYNs from everywhere with as many options or extension headers as there may be; among them later
/// fragments of nothing, from one source.
fn syns_with_options(family: Family, n: u32, _: &Flow) -> Frame {
    let to = SocketAddr::new(family.vip(), ports::ACROSS);
    if n % 10 < 3 {
        let one = Frame::udp(anybody(family, 1), to).payload(&[0; 96]);
        return one.with(|f| match family {
            Family::V4 => (f.fragment, f.id) = (185, n as u16),
            Family::V6 => {
                f.first_extension = FRAGMENT;
                f.options = [&[UDP, 0, 5, 0xc8][..], &n.to_be_bytes()].concat();
            }
        });
    }
    Frame::tcp(anybody(family, n), to, flags::SYN).with(|f| match family {
        Family::V4 => f.options = vec![1; 40],
        Family::V6 => {
            let header = |next| [next, 0, 1, 4, 0, 0, 0, 0];
            let next = [[DESTINATION_OPTIONS; 7].as_slice(), &[TCP]].concat();
            f.first_extension = DESTINATION_OPTIONS;
            f.options = next.into_iter().flat_map(header).collect();
        }
    })
}

/// Segments of all kinds from a client's address, who guesses its ports.
fn guesses(family: Family, n: u32, flow: &Flow) -> Frame {
    let from = SocketAddr::new(flow.request.src.ip(), 1_024 + (n * 7 % 28_000) as u16);
    let to = SocketAddr::new(family.vip(), ports::ACROSS);
    let kinds =
        [flags::SYN, flags::ACK, flags::SYN | flags::ACK, flags::RST, flags::FIN | flags::ACK];
    Frame::tcp(from, to, kinds[n as usize % kinds.len()])
}

/// The defaults of `[shield.limits]`, beside limits that everybody is over.
fn policy() -> ServicePolicy {
    let one = Some(RateLimit { packets_per_second: 1, burst: 1 });
    let limits = Limits { packets: one, new_flows: one, source: one, ..Limits::default() };
    ServicePolicy {
        flow: RateLimit { packets_per_second: 10_000, burst: 1_000 },
        learnt: RateLimit { packets_per_second: 500, burst: 50 },
        ..limits::policy(limits)
    }
}

#[test]
fn the_worst_mixes_cost_nobody_who_is_known() {
    needs_root!("the_worst_mixes_cost_nobody_who_is_known");
    let mixes: [(&str, Mix); 3] = [
        ("first fragments", first_fragments),
        ("SYNs with options", syns_with_options),
        ("guesses", guesses),
    ];
    for family in FAMILIES {
        for (name, mix) in mixes {
            let mut world = World::unwatched();
            let calm = ServicePolicy { limits: Limits::default(), ..policy() };
            world.limit(&[ports::ACROSS], calm);
            let tcp = world.connect(family, ports::ACROSS);
            let udp = world.open(family, UDP, ports::ACROSS);
            audit::age(&world, world.record(&udp).place, 3);
            world.request(&udp, 0);
            world.answer(&udp, 0);
            world.limit(&[ports::ACROSS], policy());
            let mut out = Vec::new();
            let mut run = |frame: &Frame| world.root(FRONT).run(&frame.bytes(), &mut out).unwrap();
            let passed = (0..PACKETS).filter(|n| {
                let passed = run(&mix(family, *n, &tcp)) == Redirect;
                if n % PER_GOOD == 0 {
                    for next in [tcp.next(flags::ACK), udp.next(0)] {
                        assert_eq!(run(&next), Redirect, "{family:?} {name} {n}");
                    }
                }
                passed
            });
            // As many as a learnt source may, where they are in its name, and one in a second.
            let (begun, passed) = (Instant::now(), passed.count());
            let learnt = policy().learnt;
            let seconds = 1 + begun.elapsed().as_secs() as usize;
            let most = learnt.burst as usize + seconds * (learnt.packets_per_second as usize + 2);
            assert!(passed <= most, "{family:?} {name}: {passed} pass");
        }
    }
}
