//! Limits of services, sources and new flows: what is over them is dropped, unless an established
//! flow or a source that was learnt speaks for it.

use std::iter::repeat_n;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use ringway_abi::Reason::{FragmentEarly, NewFlowLimit, ServiceLimit, SourceLimit};
use ringway_abi::Verdict::{Drop, Redirect};
use ringway_abi::raw::{
    RW_COARSE_SHIFT, RW_HEAVY_SECONDS, RW_LEARNT_BUCKETS, RW_SKETCH_LINES, RW_SKETCH_WIDTH,
    rw_settings, rw_sketch_line,
};
use ringway_abi::{FromBytes, ShieldMode, addr_to_words};
use ringway_bpf_tests::prelude::*;
use ringway_bpf_tests::run;
use ringway_kernel::shield::RuntimePrefix;
use ringway_kernel::{Arrivals, HeavySource};
use ringway_plan::prefix_list::Prefix;
use ringway_plan::tables::{Limits, RateLimit, ServicePolicy, SynPolicy};
use rustix::thread::sched_getcpu;

use crate::dsr;

/// A burst, and one more for each second that goes by.
const FEW: RateLimit = RateLimit { packets_per_second: 1, burst: 6 };
/// None of a burst that was used up.
const NONE: u32 = 0;
const SENT: usize = 40;

/// Of a service: few packets of each flow and learnt source pass beyond these limits.
pub(crate) fn policy(limits: Limits) -> ServicePolicy {
    ServicePolicy {
        mode: ShieldMode::Enforce,
        limits,
        armed: limits,
        flow: RateLimit { packets_per_second: 1, burst: 8 },
        learnt: RateLimit { packets_per_second: 1, burst: 4 },
        learns: true,
        learns_udp: true,
        source_prefix: (32, 64),
        syn: SynPolicy::default(),
    }
}

fn few_packets() -> ServicePolicy {
    policy(Limits { packets: Some(FEW), ..Limits::default() })
}

pub(crate) fn vip(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(family.vip(), port)
}

/// The nth of many clients, each of another prefix.
pub(crate) fn client(family: Family, n: usize) -> SocketAddr {
    let address = match family {
        Family::V4 => format!("198.18.{}.{}", n >> 8, n & 255),
        Family::V6 => format!("2001:db8:77:{n:x}::1"),
    };
    SocketAddr::new(address.parse().unwrap(), 40_000)
}

/// How many of these frames pass. What does not is dropped for this reason; one more frame is held
/// against what explain tells.
#[track_caller]
fn send(world: &World, reason: Reason, frames: impl Iterator<Item = Frame>) -> Sent {
    let frames: Vec<_> = frames.map(|frame| frame.bytes()).collect();
    let before = world.ledger(FRONT);
    let mut out = Vec::new();
    let mut run = |frame: &Vec<u8>| world.root(FRONT).run(frame, &mut out).unwrap();
    let passed = frames.iter().filter(|frame| run(frame) == Redirect).count();
    let dropped = world.ledger(FRONT).count(Drop, reason) - before.count(Drop, reason);
    assert_eq!(passed + dropped as usize, frames.len());
    let one = world.feed(FRONT, &frames[0]).pair();
    assert!(one.0 == Redirect || one == (Drop, reason), "{one:?}");
    Sent(passed)
}

/// So many frames passed.
#[derive(Debug)]
struct Sent(usize);

impl Sent {
    #[track_caller]
    fn is(&self, passed: u32) {
        assert_eq!(self.0, passed as usize);
    }

    fn all(&self) -> bool {
        self.0 == SENT
    }
}

fn arrivals(world: &World, family: Family, proto: u8, port: u16) -> Arrivals {
    let id = world.service(family, proto, port).row.id;
    world.gateway.view().arrivals().unwrap()[&id]
}

/// What is over a limit is counted here alone.
#[track_caller]
fn only(arrivals: Arrivals, counted: impl Fn(&Arrivals) -> u64) {
    let count = counted(&arrivals);
    assert!(count > 0 && count == arrivals.over(), "{arrivals:?}");
}

fn syns(family: Family, port: u16) -> impl Iterator<Item = Frame> {
    let many = (0..SENT).map(move |n| client(family, n));
    many.map(move |client| Frame::tcp(client, vip(family, port), SYN))
}

fn datagrams(family: Family, port: u16) -> impl Iterator<Item = Frame> {
    (0..SENT).map(move |n| Frame::udp(client(family, n), vip(family, port)))
}

#[test]
fn a_service_gets_its_rate() {
    needs_root!("a_service_gets_its_rate");
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], few_packets());
    let flood = |world: &World| send(world, ServiceLimit, datagrams(Family::V4, ports::ACROSS));
    flood(&world).is(FEW.burst);
    // TCP at the same port is another service, and so is another port.
    send(&world, ServiceLimit, syns(Family::V4, ports::ACROSS)).is(FEW.burst);
    assert!(send(&world, ServiceLimit, datagrams(Family::V4, ports::SMALL)).all());
    let id = world.service(Family::V4, UDP, ports::ACROSS).row.id;
    let counted = arrivals(&world, Family::V4, UDP, ports::ACROSS);
    // The one that was held against explain is of the first client, and opens no flow.
    assert_eq!((counted.packets, counted.new_flows), (SENT as u64 + 1, SENT as u64));
    assert_eq!(counted.over(), (SENT + 1) as u64 - u64::from(FEW.burst));
    only(counted, |it| it.over_packets);
    assert_eq!(world.gateway.arrivals().unwrap().iter().find(|it| it.0 == id).unwrap().1, counted);
}

/// To the packet, whatever the pause.
#[test]
fn a_rate_is_exact() {
    needs_root!("a_rate_is_exact");
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], few_packets());
    let frames: Vec<_> = datagrams(Family::V6, ports::ACROSS).map(|frame| frame.bytes()).collect();
    let mut out = Vec::new();
    let pauses = [(0, 6), (0, 0), (999, 0), (1, 1), (3_000, 3), (3_600_000, 6), (500, 0), (500, 1)];
    for (pause, most) in pauses {
        world.advance_by(Duration::from_millis(pause));
        let mut run = |frame: &Vec<u8>| world.root(FRONT).run(frame, &mut out).unwrap();
        let passed = frames.iter().filter(|frame| run(frame) == Redirect).count();
        assert_eq!(passed, most, "after {pause} ms");
    }
}

#[test]
fn services_of_an_address_share_its_rate() {
    needs_root!("services_of_an_address_share_its_rate");
    let mut world = World::unwatched();
    let shared = policy(Limits { destination: Some(FEW), ..Limits::default() });
    world.limit(&[ports::ACROSS, ports::SMALL], shared);
    send(&world, ServiceLimit, datagrams(Family::V4, ports::ACROSS)).is(FEW.burst);
    send(&world, ServiceLimit, syns(Family::V4, ports::SMALL)).is(NONE);
    only(arrivals(&world, Family::V4, TCP, ports::SMALL), |it| it.over_destination);
    send(&world, ServiceLimit, datagrams(Family::V6, ports::ACROSS)).is(FEW.burst);
}

#[test]
fn new_flows_have_a_rate() {
    needs_root!("new_flows_have_a_rate");
    let mut world = World::unwatched();
    let limits = Limits { new_flows: Some(FEW), ..Limits::default() };
    let flow = world.connect(Family::V6, ports::ACROSS);
    world.limit(&[ports::ACROSS], policy(limits));
    send(&world, NewFlowLimit, syns(Family::V6, ports::ACROSS)).is(FEW.burst);
    send(&world, NewFlowLimit, datagrams(Family::V6, ports::ACROSS)).is(FEW.burst);
    only(arrivals(&world, Family::V6, UDP, ports::ACROSS), |it| it.over_new_flows);
    // What opens none is not held against it.
    for _ in 0..SENT {
        world.request(&flow, ACK);
    }
}

#[test]
fn a_source_has_a_rate() {
    needs_root!("a_source_has_a_rate");
    for family in FAMILIES {
        let mut world = World::unwatched();
        // Any CPU asks from the first packet on.
        let source = RateLimit { packets_per_second: 1, burst: 6 };
        world.limit(&[ports::ACROSS], policy(Limits { source: Some(source), ..Limits::default() }));
        let to = vip(family, ports::ACROSS);
        let one = |n: usize| {
            let from = client(family, 7);
            // Of one prefix: IPv6 /64.
            let address = match from.ip() {
                IpAddr::V6(_) => format!("2001:db8:77:7::{n:x}").parse().unwrap(),
                v4 => v4,
            };
            Frame::udp(SocketAddr::new(address, 40_000 + n as u16), to)
        };
        send(&world, SourceLimit, (0..SENT).map(one)).is(source.burst);
        only(arrivals(&world, family, UDP, ports::ACROSS), |it| it.over_source);
        let others = (100..100 + SENT).map(|n| Frame::udp(client(family, n), to));
        assert!(send(&world, SourceLimit, others).all());
        // To another service it may send as much again.
        assert_eq!(
            world.send(&Frame::udp(client(family, 7), vip(family, ports::SMALL))).verdict,
            Redirect
        );
        let heavy = world.gateway.view().heavy_sources().unwrap();
        assert_eq!(heavy.len(), 1, "{heavy:?}");
        let network: IpAddr = match family {
            Family::V4 => "198.18.0.7".parse().unwrap(),
            Family::V6 => "2001:db8:77:7::".parse().unwrap(),
        };
        assert_eq!(heavy[0].prefix, network);
        assert_eq!(heavy[0].service, world.service(family, UDP, ports::ACROSS).row.id);
        assert_eq!(heavy[0].over as usize, SENT + 1 - source.burst as usize);
    }
}

/// What it sent an hour ago says nothing about this attack.
#[test]
fn a_heavy_source_begins_anew_after_a_pause() {
    needs_root!("a_heavy_source_begins_anew_after_a_pause");
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], policy(Limits { source: Some(FEW), ..Limits::default() }));
    let frame = Frame::udp(client(Family::V4, 7), vip(Family::V4, ports::ACROSS));
    let sends = |world: &World| {
        send(world, SourceLimit, repeat_n(frame.clone(), SENT));
        world.gateway.view().heavy_sources().unwrap()
    };
    let told = |source: &HeavySource| (source.over, source.lasting, source.silent);
    let over = SENT as u32 + 1;
    assert_eq!(told(&sends(&world)[0]), (over - FEW.burst, 0, 0));
    assert_eq!(told(&sends(&world)[0]), (2 * over - FEW.burst, 0, 0), "no pause");
    let half = RW_HEAVY_SECONDS / 2;
    world.advance(half.into());
    assert_eq!(told(&sends(&world)[0]), (3 * over - 2 * FEW.burst, half, 0));
    world.advance(RW_HEAVY_SECONDS.into());
    let silent = world.gateway.view().heavy_sources().unwrap();
    assert_eq!(told(&silent[0]), (3 * over - 2 * FEW.burst, half, RW_HEAVY_SECONDS));
    world.advance(1);
    assert_eq!(world.gateway.view().heavy_sources().unwrap(), [], "silent");
    assert_eq!(told(&sends(&world)[0]), (over - FEW.burst, 0, 0), "anew");
}

#[test]
fn an_established_flow_passes_at_its_own_rate() {
    needs_root!("an_established_flow_passes_at_its_own_rate");
    let mut world = World::unwatched();
    let flows = [0; 2].map(|_| world.connect(Family::V6, ports::ACROSS));
    let half_open = world.open(Family::V6, TCP, ports::ACROSS);
    world.limit(&[ports::ACROSS], ServicePolicy { learns: false, ..few_packets() });
    send(&world, ServiceLimit, syns(Family::V6, ports::ACROSS)).is(FEW.burst);
    // Neither is of an established connection.
    for syn in [&half_open.request, &flows[0].request] {
        send(&world, ServiceLimit, repeat_n(syn.clone(), SENT)).is(NONE);
    }
    for flow in &flows {
        let segments = repeat_n(flow.next(ACK), SENT);
        send(&world, ServiceLimit, segments).is(few_packets().flow.burst);
    }
}

/// A datagram flow whose client has asked again after its first seconds, and was answered.
fn exchange(world: &mut World, family: Family) -> Flow {
    let flow = world.open(family, UDP, ports::ACROSS);
    world.advance(3);
    world.request(&flow, 0);
    world.answer(&flow, 0);
    flow
}

/// How many packets that open a flow pass from here, while the limit is exceeded.
fn as_learnt(world: &mut World, source: IpAddr, proto: u8) -> Sent {
    world.limit(&[ports::ACROSS], few_packets());
    let family = Family::of(source);
    let to = vip(family, ports::ACROSS);
    let from =
        |n| Frame::new(proto, SocketAddr::new(source, 50_000 + n), to).with(|f| f.flags = SYN);
    match proto {
        TCP => send(world, ServiceLimit, syns(family, ports::ACROSS)),
        _ => send(world, ServiceLimit, datagrams(family, ports::ACROSS)),
    };
    let learnt = |world: &World| arrivals(world, family, proto, ports::ACROSS).learnt;
    let before = learnt(world);
    let sent = send(world, ServiceLimit, (0..SENT as u16).map(from));
    assert_eq!(learnt(world) - before, sent.0 as u64);
    sent
}

#[test]
fn a_source_that_was_learnt_passes_at_its_own_rate() {
    needs_root!("a_source_that_was_learnt_passes_at_its_own_rate");
    // A CPU takes one packet at a time, which leaves none for the limits after it.
    let generous = RateLimit { packets_per_second: 1_000_000, burst: 4 };
    let calm = policy(Limits { packets: Some(generous), ..Limits::default() });
    let tcp_alone = ServicePolicy { learns_udp: false, ..calm };
    let nobody = ServicePolicy { learns: false, ..calm };
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let connect = |world: &mut World| match proto {
            TCP => world.connect(family, ports::ACROSS),
            _ => exchange(world, family),
        };
        // In a world where these are the rules, who has connected, and who has not.
        let learnt = |rules, attacked: bool, asks, connects: bool| {
            let mut world = World::unwatched();
            world.limit(&[ports::ACROSS], rules);
            let id = world.service(family, proto, ports::ACROSS).row.id;
            let last = if attacked { world.now() } else { 0 };
            audit::write(world.map("shield_exceeded"), id.into(), &last.to_ne_bytes());
            let flow = match connects {
                true => connect(&mut world),
                false => world.open(family, proto, ports::ACROSS),
            };
            as_learnt(&mut world, flow.request.src.ip(), asks)
        };
        learnt(calm, false, proto, true).is(calm.learnt.burst);
        learnt(calm, false, proto, false).is(NONE);
        learnt(calm, true, proto, true).is(NONE);
        learnt(nobody, false, proto, true).is(NONE);
        // Datagrams may be forged, so they learn nothing for other services.
        let tcp = if proto == TCP { calm.learnt.burst } else { NONE };
        learnt(calm, false, TCP + UDP - proto, true).is(tcp);
        learnt(tcp_alone, false, proto, true).is(tcp);
    }
}

/// It stays as long as it comes back.
#[test]
fn a_source_that_comes_again_is_kept() {
    needs_root!("a_source_that_comes_again_is_kept");
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], policy(Limits { packets: Some(FEW), ..Limits::default() }));
    let times = |world: &World| -> Vec<u32> {
        let bucket = |n| audit::read(world.map("learnt_sources"), n);
        let all = (0..RW_LEARNT_BUCKETS).flat_map(bucket).collect::<Vec<u8>>();
        let words = all.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.filter(|word| *word != 0).map(|word| word as u32).collect()
    };
    world.connect(Family::V4, ports::ACROSS);
    let first = times(&world);
    assert_eq!(first.len(), 1);
    world.advance(1);
    world.connect(Family::V4, ports::ACROSS);
    let again = times(&world);
    assert_eq!((again.len(), again[0].wrapping_sub(first[0])), (1, 1 << RW_COARSE_SHIFT));
}

/// A forger of a client's address may guess the end of a handshake.
#[test]
fn a_guessed_or_finished_connection_is_not_established() {
    needs_root!("a_guessed_or_finished_connection_is_not_established");
    let mut world = World::unwatched();
    let guessed = world.open(Family::V4, TCP, ports::ACROSS);
    world.answer(&guessed, SYN | ACK);
    world.request(&guessed, ACK);
    let closed = world.connect(Family::V4, ports::ACROSS);
    world.answer(&closed, RST);
    world.limit(&[ports::ACROSS], ServicePolicy { learns: false, ..few_packets() });
    send(&world, ServiceLimit, syns(Family::V4, ports::ACROSS));
    for flow in [guessed, closed] {
        send(&world, ServiceLimit, repeat_n(flow.next(ACK), SENT)).is(NONE);
    }
}

/// Others may send in its name, to have it blocked.
#[test]
fn a_learnt_source_that_is_heavy_is_told_apart() {
    needs_root!("a_learnt_source_that_is_heavy_is_told_apart");
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], policy(Limits::default()));
    let learnt = world.connect(Family::V4, ports::ACROSS).request.src.ip();
    let rules = policy(Limits { source: Some(FEW), ..Limits::default() });
    world.limit(&[ports::ACROSS], rules);
    let to = vip(Family::V4, ports::ACROSS);
    let from = |address, n| Frame::udp(SocketAddr::new(address, 50_000 + n), to);
    for address in [learnt, client(Family::V4, 7).ip()] {
        send(&world, SourceLimit, (0..SENT as u16).map(|n| from(address, n)));
    }
    let heavy = world.gateway.view().heavy_sources().unwrap();
    let mut heavy: Vec<_> = heavy.iter().map(|source| (source.prefix, source.learnt)).collect();
    heavy.sort();
    let mut want = [(learnt, true), (client(Family::V4, 7).ip(), false)];
    want.sort();
    assert_eq!(heavy, want);
}

/// A download's acknowledgements are no attack: nobody is to be dropped for them, here or upstream.
#[test]
fn what_passes_all_the_same_is_not_heavy() {
    needs_root!("what_passes_all_the_same_is_not_heavy");
    let mut world = World::unwatched();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let limits = Limits { source: Some(FEW), packets: Some(FEW), ..Limits::default() };
    let fast = RateLimit { packets_per_second: 1_000, burst: 1_000 };
    world.limit(&[ports::ACROSS], ServicePolicy { flow: fast, ..policy(limits) });
    let acknowledged = send(&world, SourceLimit, repeat_n(flow.next(ACK), SENT));
    assert!(acknowledged.all());
    only(arrivals(&world, Family::V4, TCP, ports::ACROSS), |it| it.established);
    assert_eq!(world.gateway.view().heavy_sources().unwrap(), []);
    let id = world.service(Family::V4, TCP, ports::ACROSS).row.id;
    assert_eq!(audit::read(world.map("shield_exceeded"), id.into()), [0; 4]);
}

/// A flood that the service's own limit ends does not use up what all of the address share.
#[test]
fn a_service_over_its_own_rate_leaves_others_theirs() {
    needs_root!("a_service_over_its_own_rate_leaves_others_theirs");
    let mut world = World::unwatched();
    let twenty = RateLimit { packets_per_second: 1, burst: 20 };
    let limits = Limits { packets: Some(FEW), destination: Some(twenty), ..Limits::default() };
    world.limit(&[ports::ACROSS, ports::SMALL], policy(limits));
    for port in [ports::ACROSS, ports::SMALL] {
        send(&world, ServiceLimit, datagrams(Family::V4, port)).is(FEW.burst);
    }
}

/// So a flood of first fragments writes nothing into the table by which others' find theirs.
#[test]
fn a_first_fragment_that_is_dropped_is_not_noted() {
    needs_root!("a_first_fragment_that_is_dropped_is_not_noted");
    for family in FAMILIES {
        let mut nat = World::unwatched();
        follows_its_first(&mut nat, vip(family, ports::ACROSS));
        for (_, service) in dsr::plain(family) {
            follows_its_first(&mut dsr::world(), service);
        }
    }
}

fn follows_its_first(world: &mut World, to: SocketAddr) {
    let family = Family::of(to.ip());
    let parts = |n: usize| {
        let whole = Frame::udp(client(family, n), to).payload(&[7; 4_000]);
        fragments(&whole.with(|f| f.fragment = 0).bytes(), 1_400, n as u32)
    };
    let whole = parts(1);
    assert!(whole.iter().all(|part| world.feed(FRONT, part).verdict == Redirect), "{to}");
    world.limit(&[to.port()], few_packets());
    let dropped =
        |parts: &Vec<Vec<u8>>| world.feed(FRONT, &parts[0]).pair() == (Drop, ServiceLimit);
    let over = (2..SENT).map(parts).find(dropped).expect("more than the burst");
    for part in &over[1..] {
        assert_eq!(world.feed(FRONT, part).pair(), (Drop, FragmentEarly), "{to}");
    }
    // What is only observed goes on, with all that belongs to it.
    world.limit(&[to.port()], ServicePolicy { mode: ShieldMode::Observe, ..few_packets() });
    assert!(over.iter().all(|part| world.feed(FRONT, part).verdict == Redirect), "{to}");
}

#[test]
fn armed_limits_are_in_force_for_a_time() {
    needs_root!("armed_limits_are_in_force_for_a_time");
    let mut world = World::unwatched();
    let armed = Limits { packets: Some(FEW), ..Limits::default() };
    world.limit(&[ports::ACROSS], ServicePolicy { armed, ..policy(Limits::default()) });
    let id = world.service(Family::V4, UDP, ports::ACROSS).row.id;
    let flood = |world: &World| send(world, ServiceLimit, datagrams(Family::V4, ports::ACROSS));
    assert!(flood(&world).all());
    let until = world.now() + 1000;
    world.gateway.arm(id, until).unwrap();
    flood(&world).is(FEW.burst);
    world.advance(999);
    assert_eq!(world.gateway.view().armed().unwrap()[&id], 1);
    flood(&world).is(FEW.burst);
    world.advance(1);
    assert!(flood(&world).all());
    assert!(world.gateway.view().armed().unwrap().is_empty());
}

#[test]
fn modes_hold_for_limits() {
    needs_root!("modes_hold_for_limits");
    let mut world = World::unwatched();
    let flood = |world: &World| send(world, ServiceLimit, datagrams(Family::V4, ports::ACROSS));
    let mode = |world: &mut World, mode| {
        world.limit(&[ports::ACROSS], ServicePolicy { mode, ..few_packets() });
    };
    mode(&mut world, ShieldMode::Observe);
    assert!(flood(&world).all());
    let observed = world.gateway.view().shield_observed().unwrap()[&ServiceLimit];
    assert_eq!(observed, SENT as u64 + 1 - u64::from(FEW.burst));
    mode(&mut world, ShieldMode::Off);
    assert!(flood(&world).all());
    mode(&mut world, ShieldMode::Enforce);
    flood(&world).is(NONE);
    let until = Some((ShieldMode::Observe, world.now() + 1000));
    world.gateway.set_shield_override(until).unwrap();
    assert!(flood(&world).all());
    world.gateway.set_shield_override(None).unwrap();
    flood(&world).is(NONE);
}

#[test]
fn what_is_allowed_has_no_limit() {
    needs_root!("what_is_allowed_has_no_limit");
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], few_packets());
    world.shield(false, None);
    let prefix: Prefix = "198.18.0.0/28".parse().unwrap();
    let allow = RuntimePrefix { prefix, allow: true, until: u32::MAX };
    world.gateway.set_runtime_prefixes(&[allow]).unwrap();
    let allowed = |frame: &Frame| prefix.contains(frame.src.ip());
    let (allowed, others): (Vec<_>, Vec<_>) =
        datagrams(Family::V4, ports::ACROSS).partition(allowed);
    send(&world, ServiceLimit, others.clone().into_iter()).is(FEW.burst);
    send(&world, ServiceLimit, allowed.into_iter()).is(16);
    // Nor does what was allowed exempt the packet after it.
    send(&world, ServiceLimit, others.into_iter()).is(NONE);
}

/// Explain and a capture tell it of each frame.
#[test]
fn a_capture_sees_what_is_over_a_limit() {
    needs_root!("a_capture_sees_what_is_over_a_limit");
    let mut world = World::watched();
    let one = RateLimit { packets_per_second: 1, burst: 1 };
    let limit = |world: &mut World, limits| world.limit(&[ports::ACROSS], policy(limits));
    let syn = Frame::tcp(client(Family::V4, 1), vip(Family::V4, ports::ACROSS), SYN);
    let refused = |world: &World, reason| {
        while world.send(&syn).verdict == Redirect {}
        world.advance(1);
        assert_eq!(world.gateway.view().shield_observed().unwrap().get(&reason), None);
    };
    limit(&mut world, Limits { packets: Some(one), ..Limits::default() });
    refused(&world, ServiceLimit);
    limit(&mut world, Limits { new_flows: Some(one), ..Limits::default() });
    refused(&world, NewFlowLimit);
    limit(&mut world, Limits { source: Some(one), ..Limits::default() });
    refused(&world, SourceLimit);
}

/// As abi/shield.h says of the sketch: of N packets no count is too small, and those of a quarter of
/// the sources at most are too large by more than 4 N / (lines * width).
#[test]
fn the_sketch_errs_as_it_says() {
    needs_root!("the_sketch_errs_as_it_says");
    let cpu = sched_getcpu();
    run::pin(cpu);
    let mut world = World::unwatched();
    let source = RateLimit { packets_per_second: 1_000_000, burst: 100_000 };
    world.limit(&[ports::ACROSS], policy(Limits { source: Some(source), ..Limits::default() }));
    let to = vip(Family::V4, ports::ACROSS);
    let service = world.service(Family::V4, UDP, ports::ACROSS).row.id;
    // Few send much, and many little.
    let sends = |n: usize| if n < 8 { 400 } else { 1 };
    let sources: Vec<_> = (0..4_000).map(|n| (client(Family::V4, n), sends(n))).collect();
    let frames: Vec<_> =
        sources.iter().map(|(from, times)| (Frame::udp(*from, to).bytes(), *times)).collect();
    let settings = audit::read(world.map("settings"), 0);
    let keys = rw_settings::read_from_bytes(&settings).unwrap().keys;
    let sketch = audit::handle(world.map("source_sketch"));
    // The second, its lowest bits, and packets.
    let counts = |source: SocketAddr| {
        let hash = sketch_hash(&keys, source.ip(), service);
        let line = (hash as u32 % RW_SKETCH_LINES).to_ne_bytes();
        let lines = sketch.lookup_percpu(&line, MapFlags::ANY).unwrap().unwrap();
        let line = rw_sketch_line::read_from_bytes(&lines[cpu]).unwrap();
        line.counts.into_iter().enumerate().map(move |(row, counts)| {
            let count = counts[(hash >> (32 + 3 * row)) as usize % RW_SKETCH_WIDTH as usize];
            (count >> 24, count & 0xff_ffff)
        })
    };
    let mut out = Vec::new();
    let mut run = |frame: &[u8]| {
        world.root(FRONT).run(frame, &mut out).unwrap();
    };
    for (frame, times) in &frames {
        (0..*times).for_each(|_| run(frame));
    }
    let second = world.now() & 0xff;
    let mut wrong = 0;
    let total: u32 = sources.iter().map(|(_, times)| times).sum::<u32>();
    for (source, times) in &sources {
        let packets = |(of, packets)| {
            assert_eq!(of, second);
            packets
        };
        let least = counts(*source).map(packets).min().unwrap();
        assert!(least >= *times, "{source} has sent {times}, the sketch says {least}");
        let bound = 4 * total / (RW_SKETCH_LINES * RW_SKETCH_WIDTH);
        wrong += usize::from(least - times > bound);
    }
    assert!(wrong <= sources.len() / 4, "{wrong} of {}", sources.len());
}

/// source_hash() in bpf/shield/rated.bpf.h, of an IPv4 address.
fn sketch_hash(keys: &[u64], source: IpAddr, service: u16) -> u64 {
    let words = addr_to_words(source);
    let pair = |key: u64, a: u32, b: u32| {
        u64::from(a.wrapping_add(key as u32)) * u64::from(b.wrapping_add((key >> 32) as u32))
    };
    let sum = pair(keys[0], words[0], words[1])
        .wrapping_add(pair(keys[1], words[2], words[3]))
        .wrapping_add(pair(keys[2], service.into(), 0));
    let mixed = (sum ^ sum >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}
