//! Who has answered the gateway's answer to a SYN: limits spare it within a rate, and its backend is
//! chosen as by a SYN.

use std::net::SocketAddr;

use ringway_abi::Reason::{ChallengeMet, NewFlowLimit, ResetNoFlow, ServiceLimit, SynAnswered};
use ringway_abi::Verdict::{Drop, Redirect, Tx};
use ringway_bpf_tests::prelude::*;
use ringway_kernel::Arrivals;
use ringway_plan::tables::{
    Forward, Limits, RateLimit, ServicePolicy, SynAnswer, SynOffer, SynPolicy,
};

use crate::challenge::{challenge, pair, rst, syn};
use crate::limits::{client, policy, vip};
use crate::proxy::seen;
use crate::track;

const FEW: RateLimit = RateLimit { packets_per_second: 1, burst: 6 };
const MANY: usize = 20;
/// A source that has answered may send so many at once.
const LEARNT_BURST: u32 = 4;
/// A cookie holds at most this long.
const COOKIE_SECONDS: u32 = 98;
const ISN: u32 = 0x1234;

fn world(answer: SynAnswer, forward: Forward) -> World {
    let mut world = World::unwatched();
    world.change(|tables| forward_across(tables, forward));
    let offer = SynOffer { mss: 1460, stamps: true, sack: true, ecn: true };
    let syn = SynPolicy { answer, always: true, offer };
    let limits = Limits { packets: Some(FEW), ..Limits::default() };
    world.limit(&[ports::ACROSS], ServicePolicy { syn, learns: false, ..policy(limits) });
    world
}

fn ack(from: SocketAddr, number: u32) -> Frame {
    syn(from).with(|f| (f.flags, f.seq, f.ack) = (ACK, ISN + 1, number))
}

/// The ACK that brings back the cookie that its SYN was answered with.
#[track_caller]
fn cookie(world: &World, from: SocketAddr) -> Frame {
    let answered = world.send(&syn(from).with(|f| f.seq = ISN));
    assert_eq!(answered.pair(), (Tx, SynAnswered));
    ack(from, seen(&answered).seq.wrapping_add(1))
}

/// Others use up what the service may get.
#[track_caller]
fn flood(world: &World) {
    passes_first(world, FEW.burst, ServiceLimit, |n| ack(client(Family::V4, 1000 + n), 7));
}

/// The first of many frames pass; all others are over this limit.
#[track_caller]
fn passes_first(world: &World, passed: u32, limit: Reason, frame: impl Fn(usize) -> Frame) {
    let pairs: Vec<_> = (0..MANY).map(|n| pair(world, &frame(n))).collect();
    let (first, rest) = pairs.split_at(passed as usize);
    assert!(first.iter().all(|pair| pair.0 != Drop), "{pairs:?}");
    assert!(rest.iter().all(|pair| *pair == (Drop, limit)), "{pairs:?}");
}

#[test]
fn who_brings_a_cookie_is_spared() {
    needs_root!("who_brings_a_cookie_is_spared");
    for (answer, forward) in
        [(SynAnswer::Proxy, Forward::Nat), (SynAnswer::Backend, Forward::DsrL2)]
    {
        let world = world(answer, forward);
        let [honest, other, late] = [1, 2, 3].map(|n| client(Family::V4, n));
        let [brings, guesses] = [honest, other].map(|from| cookie(&world, from));
        let guesses = guesses.with(|f| f.ack ^= 1 << 12);
        flood(&world);
        assert_eq!(pair(&world, &guesses), (Drop, ServiceLimit), "{answer:?}");
        assert_eq!(pair(&world, &ack(late, brings.ack)), (Drop, ServiceLimit), "another's");
        assert_eq!(pair(&world, &brings).0, Redirect, "{answer:?}");
        assert_eq!(pair(&world, &guesses), (Drop, ServiceLimit));
        // The first one counts towards the rate of its source.
        passes_first(&world, LEARNT_BURST - 1, ServiceLimit, |_| brings.clone());
        // The service's rate lets one pass, and that of the source another.
        world.advance(1);
        passes_first(&world, 2, ServiceLimit, |_| brings.clone());
    }
}

/// A host that is there meets it, whoever has asked in its name.
#[test]
fn who_meets_a_challenge_is_not_spared() {
    needs_root!("who_meets_a_challenge_is_not_spared");
    let world = world(SynAnswer::Challenge, Forward::DsrL2);
    let asked = client(Family::V4, 1);
    let number = challenge(&world, &syn(asked));
    assert_eq!(pair(&world, &rst(asked, number)), (Drop, ChallengeMet));
    flood(&world);
    assert_eq!(pair(&world, &ack(asked, 7)), (Drop, ServiceLimit));
}

/// What was damaged on its way, or by who brings it again and again, opens nothing.
#[test]
fn a_damaged_cookie_is_none() {
    needs_root!("a_damaged_cookie_is_none");
    let world = world(SynAnswer::Proxy, Forward::Nat);
    let whole = cookie(&world, client(Family::V4, 1));
    let mut damaged = whole.bytes();
    // The urgent pointer: what follows is no part of the segment.
    damaged[14 + 20 + 19] ^= 1;
    let mut out = Vec::new();
    assert_eq!(world.root(FRONT).run(&damaged, &mut out).unwrap(), Drop);
    let id = world.service(Family::V4, TCP, ports::ACROSS).row.id;
    assert_eq!(world.gateway.view().arrivals().unwrap()[&id].answers_met, 0);
    assert_eq!(pair(&world, &whole).0, Redirect);
}

/// A SYN that is answered is no flow yet. The limit does not spare who answers: bots can do it.
#[test]
fn a_cookie_opens_a_flow_that_is_limited() {
    needs_root!("a_cookie_opens_a_flow_that_is_limited");
    let mut world = world(SynAnswer::Proxy, Forward::Nat);
    let offer = SynOffer::default();
    let syn = SynPolicy { answer: SynAnswer::Proxy, always: true, offer };
    let limits = Limits { new_flows: Some(FEW), ..Limits::default() };
    world.limit(&[ports::ACROSS], ServicePolicy { syn, learns: false, ..policy(limits) });
    passes_first(&world, FEW.burst, NewFlowLimit, |n| cookie(&world, client(Family::V6, n)));
}

/// A client whose SYN was answered, and the ACK that brings the cookie back.
#[track_caller]
fn answered(world: &World, from: SocketAddr) -> Frame {
    let family = Family::of(from.ip());
    let syn = Frame::tcp(from, vip(family, track::PORT), SYN).with(|f| f.seq = ISN);
    let number = seen(&world.send(&syn)).seq.wrapping_add(1);
    syn.with(|f| (f.flags, f.seq, f.ack) = (ACK, ISN + 1, number))
}

fn dsr_world() -> World {
    let mut world = track::world();
    let syn = SynPolicy { answer: SynAnswer::Backend, always: true, offer: SynOffer::default() };
    world.limit(&[track::PORT], ServicePolicy { syn, ..policy(Limits::default()) });
    world
}

/// The ring gives what is new to another backend, and an ACK is mostly older.
#[test]
fn a_cookie_goes_where_a_syn_goes() {
    needs_root!("a_cookie_goes_where_a_syn_goes");
    let mut world = dsr_world();
    track::pair(&mut world, 1, 0);
    for family in FAMILIES {
        let cookie = answered(&world, client(family, 1));
        assert_eq!(track::sent(&world, &cookie), Ok(1), "{family:?}");
        let number = cookie.ack;
        let later = cookie.clone().with(|f| (f.seq, f.ack) = (ISN + 500, number + 500));
        assert_eq!(track::sent(&world, &later), Ok(1));
        for (n, number) in [(2, number), (3, 7)] {
            let other = cookie.clone().with(|f| (f.src, f.ack) = (client(family, n), number));
            assert_eq!(track::sent(&world, &other), Ok(0), "older, or forged");
        }
    }
    let counted = track::counts(&world);
    assert_eq!((counted.opened, counted.adopted), (2, 4));
}

/// It may have been opened before the change, and silent since, unless that backend takes none.
#[test]
fn a_cookie_of_before_a_change_stays() {
    needs_root!("a_cookie_of_before_a_change_stays");
    let mut world = dsr_world();
    let [quiet, new, probes, ends, drained] =
        [1, 2, 3, 4, 5].map(|n| answered(&world, client(Family::V4, n)));
    let now = world.now();
    track::changed(&mut world, 1, 0, now - COOKIE_SECONDS);
    assert_eq!(track::sent(&world, &quiet), Ok(0), "it may be as old as that");
    track::changed(&mut world, 1, 0, now - COOKIE_SECONDS - 1);
    assert_eq!(track::sent(&world, &new), Ok(1));
    let probes = probes.with(|f| f.seq = ISN);
    let ends = ends.with(|f| f.flags = FIN | ACK);
    assert_eq!([probes, ends].map(|frame| track::sent(&world, &frame)), [Ok(0); 2]);
    track::backend(&mut world, 0, |row| (row.up, row.kept) = (false, true));
    track::changed(&mut world, 1, 0, now);
    assert_eq!(track::sent(&world, &drained), Ok(1), "its former owner takes none");
}

/// A record of a connection that is over does not hold the port's next one.
#[test]
fn a_cookie_follows_a_finished_connection() {
    needs_root!("a_cookie_follows_a_finished_connection");
    let mut world = dsr_world();
    track::pair(&mut world, 1, 0);
    let from = client(Family::V4, 1);
    let first = answered(&world, from);
    assert_eq!(track::sent(&world, &first), Ok(1));
    let fin = first.clone().with(|f| f.flags = FIN | ACK);
    assert_eq!(track::sent(&world, &fin), Ok(1));
    track::pair(&mut world, 2, 0);
    world.advance(1);
    assert_eq!(track::sent(&world, &answered(&world, from)), Ok(1), "it may go on");
    world.advance(1);
    assert_eq!(track::sent(&world, &answered(&world, from)), Ok(2));
}

/// Nodes with different secrets are found by these.
#[test]
fn acknowledgements_of_nothing_are_counted() {
    needs_root!("acknowledgements_of_nothing_are_counted");
    let mut world = World::unwatched();
    for (answer, failed) in [(SynAnswer::Challenge, 0), (SynAnswer::Proxy, 3)] {
        let generous = RateLimit { packets_per_second: 1_000_000, burst: 1_000 };
        let limits = Limits { packets: Some(generous), ..Limits::default() };
        let syn = SynPolicy { answer, always: true, offer: SynOffer::default() };
        world.limit(&[ports::ACROSS], ServicePolicy { syn, ..policy(limits) });
        for n in 0..3 {
            let ack = ack(client(Family::V4, n), 7);
            let data = ack.clone().with(|f| f.payload = b"of a connection".to_vec());
            for frame in [ack, data] {
                assert_eq!(pair(&world, &frame), (Tx, ResetNoFlow));
            }
        }
        let id = world.service(Family::V4, TCP, ports::ACROSS).row.id;
        let Arrivals { answers_failed, .. } = world.gateway.view().arrivals().unwrap()[&id];
        assert_eq!(answers_failed, failed, "{answer:?}");
    }
}

/// What a packet that is no SYN pays where SYNs could be answered: docs/benchmarks.md has the figures.
#[test]
#[ignore = "measures"]
fn the_cost_of_answers_in_peace() {
    needs_root!("the_cost_of_answers_in_peace");
    let [without, with] = [false, true].map(|answers| {
        let mut world = World::unwatched();
        let syn =
            SynPolicy { answer: SynAnswer::Forward, always: false, offer: SynOffer::default() };
        world.limit(&[ports::ACROSS], ServicePolicy { syn, ..policy(Limits::default()) });
        world.shield(answers, None);
        world
    });
    for family in FAMILIES {
        // It passes as it came, so every run of many sees the same.
        let frame = Frame::tcp(client(family, 1), vip(family, 9), ACK).bytes();
        let cost = |world: &World| world.root(FRONT).nanoseconds(&frame, 4_000_000);
        let mut apart: Vec<i64> =
            (0..15).map(|_| i64::from(cost(&with)) - i64::from(cost(&without))).collect();
        apart.sort_unstable();
        println!("{family:?}: {} ns, within {apart:?}; a packet: {}", apart[7], cost(&without));
    }
}
