//! SYNs that are challenged: who answers with the right RST gets in, and nobody else.

use std::net::SocketAddr;
use std::time::Duration;

use ringway_abi::Reason::{ChallengeMet, NewFlowLimit, SynChallenged};
use ringway_abi::Verdict::{Drop, Redirect, Tx};
use ringway_abi::raw::rw_syn_secrets;
use ringway_abi::{FromBytes, ShieldMode, addr_to_words};
use ringway_bpf_tests::prelude::*;
use ringway_kernel::Arrivals;
use ringway_plan::tables::{
    Forward, Limits, RateLimit, ServicePolicy, SynAnswer, SynOffer, SynPolicy,
};

use crate::limits::{client, policy, vip};
use crate::port_ranges::add;

const PERIOD_S: u32 = 64;
/// Ethernet's, without FCS.
const MIN_FRAME: usize = 60;

const CHALLENGED: SynPolicy = SynPolicy {
    answer: SynAnswer::Challenge,
    always: true,
    offer: SynOffer { mss: 0, stamps: false, sack: false, ecn: false },
};

pub(crate) fn challenging() -> ServicePolicy {
    let learnt = RateLimit { packets_per_second: 1_000, burst: 100 };
    ServicePolicy { syn: CHALLENGED, learnt, ..policy(Default::default()) }
}

pub(crate) fn world(policy: ServicePolicy) -> World {
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], policy);
    world
}

pub(crate) fn syn(from: SocketAddr) -> Frame {
    let family = Family::of(from.ip());
    Frame::tcp(from, vip(family, ports::ACROSS), SYN)
}

/// The acknowledgement number with which a SYN is answered.
#[track_caller]
pub(crate) fn challenge(world: &World, syn: &Frame) -> u32 {
    let answered = world.send(syn);
    assert_eq!(answered.pair(), (Tx, SynChallenged), "{syn:?}");
    let packet = wire::check(&answered.frame).good();
    assert!(answered.frame.len() <= syn.bytes().len().max(MIN_FRAME), "{syn:?}");
    assert_eq!((packet.src, packet.dst), (syn.dst, syn.src));
    assert_eq!(packet.macs, (syn.src_mac, syn.dst_mac));
    assert_eq!(packet.tcp_flags(), SYN | ACK);
    packet.tcp_numbers().1
}

pub(crate) fn rst(from: SocketAddr, seq: u32) -> Frame {
    syn(from).with(|frame| (frame.flags, frame.seq) = (RST, seq))
}

pub(crate) fn pair(world: &World, frame: &Frame) -> (Verdict, Reason) {
    world.send(frame).pair()
}

fn secrets(world: &World) -> rw_syn_secrets {
    rw_syn_secrets::read_from_bytes(&audit::read(world.map("syn_secrets"), 0)).unwrap()
}

/// The period in which an answer is made now, and how old that is.
fn period(world: &World) -> (u32, u32) {
    let now = world.now().wrapping_add(secrets(world).wall);
    (now / PERIOD_S, now % PERIOD_S)
}

/// Another implementation of SipHash-2-4.
#[allow(deprecated)]
fn siphash([key0, key1]: [u64; 2], syn: &Frame, period: u32) -> u32 {
    use std::hash::{Hasher as _, SipHasher};
    let mut hasher = SipHasher::new_with_keys(key0, key1);
    for address in [syn.src.ip(), syn.dst.ip()] {
        addr_to_words(address).iter().for_each(|word| hasher.write(&word.to_ne_bytes()));
    }
    hasher.write(&syn.src.port().to_be_bytes());
    hasher.write(&syn.dst.port().to_be_bytes());
    hasher.write(&period.to_le_bytes());
    hasher.finish() as u32
}

#[test]
fn a_challenge_is_a_keyed_hash_of_the_connection() {
    needs_root!("a_challenge_is_a_keyed_hash_of_the_connection");
    let world = world(challenging());
    let secrets = secrets(&world);
    assert_ne!(secrets.keys[0], [0; 2], "a key of its own");
    for family in FAMILIES {
        for n in 0..4 {
            let (syn, (period, _)) = (syn(client(family, n)), period(&world));
            let made = siphash(secrets.keys[0], &syn, period) & !1 | period & 1;
            assert_eq!(challenge(&world, &syn), made);
            world.advance(PERIOD_S.into());
        }
    }
}

#[test]
fn who_answers_gets_in() {
    needs_root!("who_answers_gets_in");
    let world = world(challenging());
    for family in FAMILIES {
        let [honest, other] = [1, 2].map(|n| client(family, n));
        let number = challenge(&world, &syn(honest));
        // What is the right number for one connection is none for another.
        let port = SocketAddr::new(honest.ip(), honest.port() + 1);
        for wrong in [rst(honest, number ^ 2), rst(other, number), rst(port, number)] {
            assert_eq!(pair(&world, &wrong).0, Drop);
            assert_ne!(pair(&world, &wrong).1, ChallengeMet);
        }
        challenge(&world, &syn(honest));
        assert_eq!(pair(&world, &rst(honest, number)), (Drop, ChallengeMet));
        assert_eq!(pair(&world, &syn(honest)).0, Redirect);
        assert_eq!(pair(&world, &syn(port)).0, Redirect, "its source is proven");
        challenge(&world, &syn(other));
        // With ACK as well, as some systems send it.
        let number = challenge(&world, &syn(other));
        let answer = rst(other, number).with(|frame| frame.flags = RST | ACK);
        assert_eq!(pair(&world, &answer), (Drop, ChallengeMet));
        assert_eq!(pair(&world, &syn(other)).0, Redirect);
        let id = world.service(family, TCP, ports::ACROSS).row.id;
        let Arrivals { syns_answered, answers_met, answers_failed, .. } =
            world.gateway.view().arrivals().unwrap()[&id];
        assert_eq!((syns_answered, answers_met, answers_failed), (4, 2, 2 * 3), "{family:?}");
    }
}

/// Under dsr no answer passes, and a challenge is the only proof.
#[test]
fn sources_of_dsr_services_are_proven() {
    needs_root!("sources_of_dsr_services_are_proven");
    let mut world = World::unwatched();
    world.change(|tables| forward_across(tables, Forward::DsrL2));
    world.limit(&[ports::ACROSS], ServicePolicy { learns: false, ..challenging() });
    let honest = client(Family::V4, 1);
    let number = challenge(&world, &syn(honest));
    // What is no answer is the backend's to judge, as ever.
    let ack = syn(honest).with(|frame| frame.flags = ACK);
    for other in [rst(honest, number ^ 2), ack] {
        assert_eq!(pair(&world, &other), (Redirect, Reason::DsrL2));
    }
    assert_eq!(pair(&world, &rst(honest, number)), (Drop, ChallengeMet));
    assert_eq!(pair(&world, &syn(honest)), (Redirect, Reason::DsrL2));
}

#[test]
fn a_challenge_holds_for_a_time_and_for_two_keys() {
    needs_root!("a_challenge_holds_for_a_time_and_for_two_keys");
    let mut world = world(challenging());
    let asked = |world: &World, n| {
        let from = client(Family::V6, n);
        rst(from, challenge(world, &syn(from)))
    };
    let met = |world: &World, answer: &Frame| pair(world, answer).1 == ChallengeMet;
    // An answer made in the first second of a period, and one made in its last. An even number of
    // periods later the lowest bit is right, and the hash is not.
    let held: [(u32, &[(i64, bool)]); 2] = [
        (0, &[(-31, false), (-30, true), (0, true), (97, true), (98, false), (128, false)]),
        (63, &[(-94, false), (-93, true), (34, true), (35, false)]),
    ];
    let begin = world.gateway.clock().now();
    assert_eq!(period(&world).1, 0);
    for (second, later) in held {
        let made = begin + Duration::from_secs(second.into());
        world.gateway.clock().set(made).unwrap();
        let answer = asked(&world, second as usize);
        for (seconds, holds) in later {
            let now = made.as_secs().checked_add_signed(*seconds).unwrap();
            world.gateway.clock().set(Duration::from_secs(now)).unwrap();
            assert_eq!(met(&world, &answer), *holds, "{second} {seconds}");
        }
    }
    // The key before holds, too; the one before that does not.
    let answer = asked(&world, 1);
    for (key, holds) in [(1, true), (1, true), (2, false)] {
        world.answer_syns(Some([key, 7]));
        assert_eq!(met(&world, &answer), holds, "{key}");
    }
}

#[test]
fn only_what_it_says_is_challenged() {
    needs_root!("only_what_it_says_is_challenged");
    let armed_only = SynPolicy { always: false, ..CHALLENGED };
    let while_armed = ServicePolicy { syn: armed_only, ..challenging() };
    let mut world = world(while_armed);
    let id = world.service(Family::V4, TCP, ports::ACROSS).row.id;
    let from = |n| client(Family::V4, n);
    assert_eq!(pair(&world, &syn(from(1))).0, Redirect, "not armed");
    let until = world.now() + 1;
    world.gateway.arm(id, until).unwrap();
    challenge(&world, &syn(from(2)));
    let to = vip(Family::V4, ports::ACROSS);
    assert_eq!(pair(&world, &Frame::udp(from(3), to)).0, Redirect, "no TCP");
    // A flow that exists goes on, in both directions.
    let ack = syn(from(1)).with(|frame| frame.flags = ACK);
    assert_ne!(pair(&world, &ack).1, SynChallenged);
    // Whoever cannot be answered is not.
    for forged in [to, "127.0.0.1:9".parse().unwrap(), "224.0.0.1:9".parse().unwrap()] {
        assert_eq!(pair(&world, &syn(forged)).0, Drop, "{forged}");
    }
    world.advance(1);
    assert_eq!(pair(&world, &syn(from(2))).0, Redirect, "it is over");

    world.limit(&[ports::ACROSS], ServicePolicy { mode: ShieldMode::Observe, ..challenging() });
    assert_eq!(pair(&world, &syn(from(4))).0, Redirect, "observed alone");
    assert_eq!(world.gateway.view().shield_observed().unwrap()[&SynChallenged], 1);
}

#[track_caller]
fn meets(world: &World, from: SocketAddr) {
    let number = challenge(world, &syn(from));
    assert_eq!(pair(world, &rst(from, number)), (Drop, ChallengeMet));
}

/// Whoever sends in the name of a source uses up its rate, and locks nobody out who answers.
#[test]
fn a_proven_source_has_its_rate() {
    needs_root!("a_proven_source_has_its_rate");
    let learnt = RateLimit { packets_per_second: 1, burst: 3 };
    let world = world(ServicePolicy { learnt, ..challenging() });
    let honest = client(Family::V4, 1);
    meets(&world, honest);
    let other = |port: u16| SocketAddr::new(honest.ip(), port);
    let passes = |port: u16| pair(&world, &syn(other(port))).0 == Redirect;
    let passed = (1..50).filter(|port| passes(*port)).count();
    assert_eq!(passed, learnt.burst as usize);
    // Its next connection is challenged, as that of a stranger.
    let from = other(60_000);
    meets(&world, from);
    assert_eq!(pair(&world, &syn(from)).0, Redirect);
    assert_eq!(pair(&world, &syn(from)).0, Redirect, "sent once more");
}

/// A connection is proven for 64 s, and its source for 500 s after the last SYN that passes.
#[test]
fn a_proof_ends() {
    needs_root!("a_proof_ends");
    let learnt = RateLimit { packets_per_second: 1, burst: 1 };
    let world = world(ServicePolicy { learnt, ..challenging() });
    let honest = client(Family::V6, 1);
    meets(&world, honest);
    let other = syn(SocketAddr::new(honest.ip(), 7));
    for (seconds, proven) in [(0, true), (63, true), (1, false)] {
        world.advance(seconds);
        assert_eq!(pair(&world, &other).0, Redirect, "by the source's rate");
        challenge(&world, &other);
        assert_eq!(pair(&world, &syn(honest)).0 == Redirect, proven, "{seconds}");
    }
    // The last of them was a second ahead of its rate.
    world.advance(500);
    assert_eq!(pair(&world, &other).0, Redirect);
    world.advance(501);
    challenge(&world, &other);
}

/// Bots can answer, too: what they open is limited, and other services have nothing of it.
#[test]
fn who_answers_is_not_learnt() {
    needs_root!("who_answers_is_not_learnt");
    let one = Some(RateLimit { packets_per_second: 1, burst: 1 });
    let limits = Limits { new_flows: one, ..Limits::default() };
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS, ports::SMALL], ServicePolicy { limits, ..challenging() });
    let bot = client(Family::V4, 1);
    meets(&world, bot);
    let connects = |port: u16| pair(&world, &syn(SocketAddr::new(bot.ip(), port)));
    assert_eq!(connects(1).0, Redirect);
    assert!((2..40).all(|port| connects(port) == (Drop, NewFlowLimit)));
    let elsewhere = Frame::tcp(bot, vip(Family::V4, ports::SMALL), SYN);
    challenge(&world, &elsewhere);
}

/// An attack begins while a client's handshake is under way.
#[test]
fn a_flow_that_is_half_open_gets_in() {
    needs_root!("a_flow_that_is_half_open_gets_in");
    let mut world = World::unwatched();
    let honest = client(Family::V6, 1);
    assert_eq!(pair(&world, &syn(honest)).0, Redirect);
    world.limit(&[ports::ACROSS], challenging());
    meets(&world, honest);
    assert_eq!(pair(&world, &syn(honest)).0, Redirect);
}

/// What is no SYN alone is answered by nobody.
#[test]
fn impossible_flags_are_not_challenged() {
    needs_root!("impossible_flags_are_not_challenged");
    let world = world(challenging());
    for odd in [SYN | RST, SYN | FIN, SYN | ACK] {
        let frame = syn(client(Family::V4, 1)).with(|frame| frame.flags = odd);
        assert_ne!(pair(&world, &frame).1, SynChallenged, "{odd:#x}");
    }
}

#[test]
fn an_answer_has_no_priority_of_the_senders() {
    needs_root!("an_answer_has_no_priority_of_the_senders");
    let world = world(challenging());
    for family in FAMILIES {
        let marked = syn(client(family, 2)).with(|frame| frame.tos = 0xbb);
        let answered = world.send(&marked);
        assert_eq!(answered.pair(), (Tx, SynChallenged));
        wire::check(&answered.frame).good();
        let head = u16::from_be_bytes([answered.frame[14], answered.frame[15]]);
        assert_eq!(head & 0x0ff0, if family == Family::V4 { 0x0500 } else { 0 }, "{head:#x}");
    }
}

/// A service may have all ports of an address that replies come to. Flows' replies are no requests.
#[test]
fn a_reply_is_no_request() {
    needs_root!("a_reply_is_no_request");
    const FIRST: u16 = 1;
    let mut world = World::with(8192, |tables| {
        FAMILIES.iter().for_each(|family| add(tables, family.nat(), TCP, (FIRST, 65_535), 0));
    });
    world.limit(&[FIRST], challenging());
    for family in FAMILIES {
        let flow = world.connect(family, ports::SAME);
        let syn = flow.answer(SYN);
        assert_ne!(world.feed(flow.back_slot(), &syn.bytes()).reason, SynChallenged);
        world.answer(&flow, RST);
        let all = world.gateway.view().arrivals().unwrap();
        assert!(all.values().all(|arrived| arrived.answers_failed == 0), "{all:?}");
        let stranger = Frame::tcp(client(family, 1), syn.dst, SYN);
        let unused = SocketAddr::new(syn.dst.ip(), FIRST + 1);
        assert_eq!(pair(&world, &stranger.with(|frame| frame.dst = unused)).1, SynChallenged);
    }
}

/// The answer to what was damaged on its way is as damaged, and its receiver drops it.
#[test]
fn damage_stays() {
    needs_root!("damage_stays");
    let world = world(challenging());
    for family in FAMILIES {
        let whole = syn(client(family, 2));
        challenge(&world, &whole);
        let bytes = whole.bytes();
        // Everything but the Ethernet header and the version.
        for at in 15..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            // Not for the dissector: of some damage no sum tells.
            let mut out = Vec::new();
            let verdict = world.root(FRONT).run(&damaged, &mut out).unwrap();
            let ends = verdict != Tx || !wire::check(&out).is_good();
            assert!(ends || wire::check(&damaged).is_good(), "byte {at}: {out:02x?}");
        }
    }
}

/// A key that has made no answer has none to be taken.
#[test]
fn the_first_key_has_no_former_one() {
    needs_root!("the_first_key_has_no_former_one");
    for key in [Some([1, 2]), None] {
        let mut world = World::fresh();
        let of_the_maps = secrets(&world).keys[0];
        world.answer_syns(key);
        assert_eq!(secrets(&world).keys, [key.unwrap_or(of_the_maps); 2]);
        assert_eq!(secrets(&world).since, world.now());
    }
}

/// A key that was taken away, or changed, is soon of no use.
#[test]
fn former_keys_are_forgotten() {
    needs_root!("former_keys_are_forgotten");
    let mut world = World::fresh();
    world.limit(&[ports::ACROSS], challenging());
    let own = secrets(&world).keys[0];
    world.answer_syns(Some([1, 2]));
    assert_eq!(secrets(&world).keys, [[1, 2], own]);
    world.answer_syns(None);
    let another = secrets(&world).keys[0];
    assert!(another != [1, 2] && another != own, "nobody else has it");
    world.answer_syns(None);
    assert_eq!(secrets(&world).keys, [another, [1, 2]], "the same from then on");
    for (seconds, former) in [(128, [1, 2]), (1, another)] {
        world.advance(seconds);
        let now = world.wall_time();
        world.gateway.heartbeat(now).unwrap();
        assert_eq!(secrets(&world).keys, [another, former]);
    }
}
