//! Mixes of packets after the worst that `ringway-lab bench shield --only adversary` has met, which
//! counts what they cost: whatever they do to others, those who are known lose nothing.

use std::net::SocketAddr;

use ringway_abi::Verdict::Redirect;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{Limits, RateLimit, ServicePolicy};

use crate::limits;

const PACKETS: u32 = 2_000;
/// One packet of so many is good.
const PER_GOOD: u32 = 25;
const FRAGMENT: u8 = 44;
const ROUTING: u8 = 43;
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

/// As many options or extension headers as there may be: each header is walked.
fn with_options(frame: Frame) -> Frame {
    match frame.family() {
        Family::V4 => frame.with(|f| f.options = vec![1; 40]),
        Family::V6 => frame.extended(&[DESTINATION_OPTIONS; 8]),
    }
}

fn syn(from: SocketAddr, family: Family) -> Frame {
    let to = SocketAddr::new(family.vip(), ports::ACROSS);
    Frame::tcp(from, to, SYN).payload(&[0; 1_200])
}

fn syns_with_options(family: Family, n: u32, _: &Flow) -> Frame {
    with_options(syn(anybody(family, n), family))
}

/// In the name of a client, who guesses its ports.
fn syns_of_a_client(family: Family, n: u32, flow: &Flow) -> Frame {
    let guess = 1_024 + (n * 7 % 28_000) as u16;
    with_options(syn(SocketAddr::new(flow.request.src.ip(), guess), family))
}

/// A third of them is dropped for a source route.
fn syns_with_source_routes(family: Family, n: u32, _: &Flow) -> Frame {
    let syn = syn(anybody(family, n), family);
    if !n.is_multiple_of(3) {
        return with_options(syn);
    }
    syn.with(|f| match family {
        Family::V4 => f.options = vec![131, 7, 4, 192, 0, 2, 9, 0],
        Family::V6 => {
            f.first_extension = ROUTING;
            f.options = [&[TCP, 2, 0, 1, 0, 0, 0, 0][..], &[0x20; 16]].concat();
        }
    })
}

/// First fragments of DNS answers from everywhere: those that pass are noted, so that those behind
/// them are found, and the fragments of clients are still to be found beside them.
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
    // The first packet passes, unless another check drops it. Packets in a client's name pass at the
    // rate of a learnt source.
    let in_its_name = 1 + policy().learnt.burst as usize;
    let mixes: [(&str, Mix, usize); 4] = [
        ("SYNs with options", syns_with_options, 1),
        ("SYNs of a client", syns_of_a_client, in_its_name),
        ("SYNs with source routes", syns_with_source_routes, 0),
        ("first fragments", first_fragments, 1),
    ];
    let all = FAMILIES.into_iter().flat_map(|family| mixes.map(|mix| (family, mix)));
    let mut world = World::unwatched();
    for (family, (name, mix, passes)) in all {
        // Sources are learnt in peace alone.
        world.advance(60);
        let calm = ServicePolicy { limits: Limits::default(), ..policy() };
        world.limit(&[ports::ACROSS], calm);
        let tcp = world.connect(family, ports::ACROSS);
        let udp = world.open(family, UDP, ports::ACROSS);
        world.advance(2);
        world.request(&udp, 0);
        world.answer(&udp, 0);
        world.limit(&[ports::ACROSS], policy());
        let mut out = Vec::new();
        let mut run = |frame: &[u8]| world.root(FRONT).run(frame, &mut out).unwrap();
        let mut later = Vec::new();
        let passed = (0..PACKETS).filter(|n| {
            let passed = run(&mix(family, *n, &tcp).bytes()) == Redirect;
            if n % PER_GOOD == 0 {
                let long = udp.next(0).payload(&[0; 2_000]).with(|f| f.fragment = 0);
                let mut good = std::mem::take(&mut later);
                good.extend([tcp.next(ACK), udp.next(0)].map(|frame| frame.bytes()));
                later = fragments(&long.bytes(), 1_400, *n);
                good.push(later.remove(0));
                for frame in good {
                    assert_eq!(run(&frame), Redirect, "{family:?} {name} {n}");
                }
            }
            passed
        });
        assert_eq!(passed.count(), passes, "{family:?} {name}");
    }
}
