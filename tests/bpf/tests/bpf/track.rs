//! Slots that have changed: who gets which packet, and which flows have records.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ringway_abi::raw::{RW_BUCKET_TRACKS, RW_NO_MEMBER, rw_tracking};
use ringway_abi::{FromBytes, TrackedFlow};
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{BackendRow, Forward, Pair, ServiceKey, ServiceRow, Tables};

pub(crate) const PORT: u16 = 2000;
/// As a slot names the first pair.
const FIRST_PAIR: u16 = ringway_abi::raw::RW_MAX_MEMBERS as u16;
const NOBODY: u16 = RW_NO_MEMBER as u16;

/// One dsr-l2 service per family and protocol, with four backends; all slots are the first one's.
pub(crate) fn world() -> World {
    let mut world = World::with(1_024, |tables| {
        for (family, proto) in TRANSPORTS {
            add(tables, family, proto);
        }
    });
    // Stable.
    set(&mut world, 0, &[]);
    world
}

fn add(tables: &mut Tables, family: Family, proto: u8) {
    let protocol = protocol(proto);
    for n in 0..4 {
        let row = new_backend(tables, family, n, PORT, protocol);
        tables.backends.push(BackendRow { nat: (0, 0), ..row });
    }
    add_service(tables, ServiceKey::new(family.vip(), PORT, protocol), Forward::DsrL2);
}

fn is_ours(service: &ServiceRow) -> bool {
    service.forward != Forward::Nat
}

/// All slots have changed.
pub(crate) fn pair(world: &mut World, current: u16, former: u16) {
    changed(world, current, former, 7);
}

/// The same, at this time.
pub(crate) fn changed(world: &mut World, current: u16, former: u16, since: u32) {
    set(world, FIRST_PAIR, &[Pair { current, former, since }]);
}

fn set(world: &mut World, slot: u16, pairs: &[Pair]) {
    world.change(|tables| {
        let ids: Vec<u32> =
            tables.services.iter().filter(|s| is_ours(s)).map(|service| service.ring).collect();
        for ring in tables.rings.iter_mut().filter(|ring| ids.contains(&ring.id)) {
            ring.slots = vec![slot; ring.slots.count()].into();
            ring.pairs = pairs.into();
        }
    });
}

/// Changes backend n of all our services.
pub(crate) fn backend(world: &mut World, n: u8, change: impl Fn(&mut BackendRow)) {
    let addresses = FAMILIES.map(|family| family.backend(n));
    let is_it = |row: &&mut BackendRow| row.port == PORT && addresses.contains(&row.address);
    world.change(|tables| tables.backends.iter_mut().filter(is_it).for_each(&change));
}

#[derive(Clone, Debug)]
pub(crate) struct Flow(pub(crate) Frame);

fn flow(world: &mut World, family: Family, proto: u8) -> Flow {
    let (src, dst) = world.ends(family, PORT);
    Flow(if proto == TCP { Frame::tcp(src, dst, SYN) } else { Frame::udp(src, dst) })
}

impl Flow {
    fn with(&self, tcp_flags: u8) -> Frame {
        Frame { flags: tcp_flags, ack: u32::from(tcp_flags & ACK != 0), ..self.0.clone() }
    }
}

/// The backend a packet goes to, or why it goes nowhere.
pub(crate) fn sent(world: &World, frame: &Frame) -> Result<u8, Reason> {
    let seen = world.send(frame);
    match seen.reason {
        Reason::DsrL2 => Ok((0..4).find(|n| seen.frame[..6] == backend_mac(*n)).unwrap()),
        reason => Err(reason),
    }
}

pub(crate) fn go(world: &World, flow: &Flow, tcp_flags: u8) -> u8 {
    sent(world, &flow.with(tcp_flags)).unwrap()
}

pub(crate) fn counts(world: &World) -> rw_tracking {
    world.gateway.view().tracking().unwrap()
}

fn records(world: &World) -> Vec<TrackedFlow> {
    let mut all = Vec::new();
    world.gateway.view().tracked(|flow| all.push(*flow)).unwrap();
    all
}

#[test]
fn stable_slots_keep_no_records() {
    needs_root!("stable_slots_keep_no_records");
    let mut world = world();
    for (family, proto) in TRANSPORTS {
        let flow = flow(&mut world, family, proto);
        for tcp_flags in [SYN, ACK, FIN | ACK, RST] {
            assert_eq!(go(&world, &flow, tcp_flags), 0);
        }
    }
    assert_eq!((records(&world), counts(&world)), (vec![], rw_tracking::default()));
}

/// A SYN goes to the current owner; what is older to the former; both stay whatever comes.
#[test]
fn three_changes() {
    needs_root!("three_changes");
    let mut world = world();
    let mut flows: Vec<(Flow, u8)> = Vec::new();
    let mut idle: Vec<Flow> = Vec::new();
    for family in FAMILIES {
        let busy = flow(&mut world, family, TCP);
        assert_eq!(go(&world, &busy, SYN), 0);
        flows.push((busy, 0));
        idle.extend([TCP, UDP].map(|proto| flow(&mut world, family, proto)));
        let datagrams = flow(&mut world, family, UDP);
        assert_eq!(go(&world, &datagrams, 0), 0);
        flows.push((datagrams, 0));
    }
    idle.iter().for_each(|flow| assert_eq!(go(&world, flow, SYN), 0));
    for change in 1..4u8 {
        pair(&mut world, change.into(), 0);
        for family in FAMILIES {
            let new = flow(&mut world, family, TCP);
            assert_eq!(go(&world, &new, SYN), change);
            flows.push((new, change));
            // Nobody can tell a new UDP flow from an old one.
            let datagrams = flow(&mut world, family, UDP);
            assert_eq!(go(&world, &datagrams, 0), 0);
            flows.push((datagrams, 0));
        }
        for (flow, owner) in &flows {
            for tcp_flags in [ACK, PSH | ACK] {
                assert_eq!(go(&world, flow, tcp_flags), *owner, "{flow:?} after {change}");
            }
            // Its SYN again, which the network may do.
            if flow.0.proto == TCP && *owner != 0 {
                assert_eq!(go(&world, flow, SYN), *owner);
            }
        }
    }
    idle.iter().for_each(|flow| assert_eq!(go(&world, flow, ACK), 0, "idle until now"));
    // The slots settle: records alone lead elsewhere, and no new ones are made.
    pair(&mut world, 3, 3);
    let before = records(&world).len();
    for (flow, owner) in &flows {
        assert_eq!(go(&world, flow, ACK), *owner);
    }
    idle.iter().for_each(|flow| assert_eq!(go(&world, flow, ACK), 0));
    for proto in [TCP, UDP] {
        let new = flow(&mut world, Family::V4, proto);
        assert_eq!([SYN, ACK].map(|tcp_flags| go(&world, &new, tcp_flags)), [3, 3]);
    }
    assert_eq!(records(&world).len(), before);
    let counts = counts(&world);
    assert_eq!((counts.opened, counts.opened + counts.adopted), (6, before as u64));
}

/// Owners that are dead or nobody.
#[test]
fn owners_that_cannot_serve() {
    needs_root!("owners_that_cannot_serve");
    let mut world = world();
    pair(&mut world, 1, 0);
    let tracked = flow(&mut world, Family::V6, TCP);
    let older = flow(&mut world, Family::V6, TCP);
    assert_eq!((go(&world, &tracked, SYN), go(&world, &older, ACK)), (1, 0));
    pair(&mut world, 2, 0);
    backend(&mut world, 1, |row| row.up = false);
    // Its backend died: what follows is the former owner's, whose stack resets it.
    assert_eq!(go(&world, &tracked, ACK), 0);
    backend(&mut world, 1, |row| row.up = true);
    backend(&mut world, 0, |row| row.up = false);
    let unknown = flow(&mut world, Family::V6, TCP);
    assert_eq!([SYN, ACK].map(|flags| go(&world, &unknown, flags)), [2, 2]);
    assert_eq!(go(&world, &older, ACK), 2);
    backend(&mut world, 0, |row| row.up = true);
    // All are drained: nobody for new flows, the former owner for others.
    pair(&mut world, NOBODY, 0);
    let new = flow(&mut world, Family::V6, TCP);
    assert_eq!(sent(&world, &new.with(SYN)), Err(Reason::ResetNoBackend));
    assert_eq!(go(&world, &new, ACK), 0);
}

/// A backend whose checks fail keeps its flows, but a SYN that it has not answered goes elsewhere.
#[test]
fn a_kept_owner_has_its_established_flows() {
    needs_root!("a_kept_owner_has_its_established_flows");
    let mut world = world();
    pair(&mut world, 1, 0);
    let (half_open, established) =
        (flow(&mut world, Family::V4, TCP), flow(&mut world, Family::V4, TCP));
    assert_eq!(go(&world, &half_open, SYN), 1);
    assert_eq!([SYN, ACK].map(|flags| go(&world, &established, flags)), [1, 1]);
    pair(&mut world, 2, 1);
    let keep = |kept: bool| move |row: &mut BackendRow| (row.up, row.kept) = (!kept, kept);
    backend(&mut world, 1, keep(true));
    assert_eq!(go(&world, &half_open, SYN), 2);
    assert_eq!([ACK, SYN].map(|flags| go(&world, &established, flags)), [1, 1]);
    let older = flow(&mut world, Family::V4, TCP);
    assert_eq!(go(&world, &older, ACK), 1);
    backend(&mut world, 1, keep(false));
}

/// FIN and RST shorten a record's life, and another connection may begin on the tuple.
#[test]
fn connections_end() {
    needs_root!("connections_end");
    let mut world = world();
    let timeouts = world.tables.timeouts;
    let alive = |world: &World| records(world).len();
    for end in [FIN | ACK, RST] {
        pair(&mut world, 1, 0);
        let flow = flow(&mut world, Family::V4, TCP);
        assert_eq!([SYN, ACK, end].map(|tcp_flags| go(&world, &flow, tcp_flags)), [1, 1, 1]);
        assert!(records(&world).iter().all(|record| record.closing));
        pair(&mut world, 2, 0);
        assert_eq!(go(&world, &flow, ACK), 1, "the last acknowledgement");
        for _ in 0..2 {
            assert_eq!(go(&world, &flow, SYN), 1, "it may be a forged one's");
            world.advance(1);
        }
        assert_eq!(go(&world, &flow, SYN), 2, "another connection");
        assert_eq!(alive(&world), 1, "in the place of the first");
        assert_eq!(go(&world, &flow, end), 2);
        world.advance(timeouts.closing.into());
        assert_eq!(alive(&world), 1);
        world.advance(1);
        assert_eq!(alive(&world), 0);
        assert_eq!(go(&world, &flow, ACK), 0, "as if it had never been");
        world.advance(u64::from(timeouts.established) + 1);
    }
}

/// The port's next connection goes where its SYN went, though the slot needs no more records.
#[test]
fn a_port_is_used_again_while_its_slot_settles() {
    needs_root!("a_port_is_used_again_while_its_slot_settles");
    let mut world = world();
    pair(&mut world, 1, 0);
    let flow = flow(&mut world, Family::V6, TCP);
    assert_eq!([SYN, ACK, FIN | ACK].map(|tcp_flags| go(&world, &flow, tcp_flags)), [1; 3]);
    pair(&mut world, 2, 2);
    world.advance(2);
    assert_eq!([SYN, ACK, PSH | ACK].map(|tcp_flags| go(&world, &flow, tcp_flags)), [2; 3]);
}

/// A forged RST or FIN of a client's address ends nothing: data refutes it, and so does anything
/// after a pause.
#[test]
fn a_forged_end_moves_no_connection() {
    needs_root!("a_forged_end_moves_no_connection");
    let mut world = world();
    let closing = |world: &World| records(world).iter().filter(|record| record.closing).count();
    for end in [FIN | ACK, RST] {
        pair(&mut world, 1, 0);
        let flow = flow(&mut world, Family::V6, TCP);
        assert_eq!([SYN, ACK].map(|tcp_flags| go(&world, &flow, tcp_flags)), [1, 1]);
        pair(&mut world, 2, 1);
        let more = Flow(flow.0.clone().payload(b"more"));
        let forge = |world: &World| {
            let owners = [end, ACK, SYN].map(|tcp_flags| go(world, &flow, tcp_flags));
            assert_eq!((owners, closing(world)), ([1; 3], 1));
        };
        forge(&world);
        assert_eq!((go(&world, &more, ACK), closing(&world)), (1, 0), "data");
        forge(&world);
        for (second, left) in [(1, 1), (2, 0)] {
            world.advance(1);
            assert_eq!((go(&world, &flow, ACK), closing(&world)), (1, left), "{second} s");
        }
        assert_eq!(go(&world, &flow, SYN), 1);
        world.advance(100_000);
    }
}

/// Idle for exactly its timeout a record leads to its owner, for a second more it does not.
#[test]
fn records_have_their_timeouts() {
    needs_root!("records_have_their_timeouts");
    let mut world = world();
    let timeouts = world.tables.timeouts;
    let cases: [(u8, &[u8], u32); 5] = [
        (TCP, &[SYN], timeouts.syn),
        (TCP, &[SYN, ACK], timeouts.established),
        (TCP, &[ACK], timeouts.established),
        (TCP, &[SYN, FIN | ACK], timeouts.closing),
        (UDP, &[0], timeouts.udp),
    ];
    for (proto, packets, timeout) in cases {
        for (idle, lives) in [(timeout, true), (timeout + 1, false)] {
            pair(&mut world, 1, 0);
            let flow = flow(&mut world, Family::V6, proto);
            let owners: Vec<u8> = packets.iter().map(|flags| go(&world, &flow, *flags)).collect();
            pair(&mut world, 2, 3);
            world.advance(idle.into());
            assert_eq!(records(&world).len(), usize::from(lives), "{proto} {packets:?} {idle}");
            let (owner, last) = (owners.last().unwrap(), packets.last().unwrap());
            assert_eq!(go(&world, &flow, *last) == *owner, lives, "{proto} {packets:?} {idle}");
            world.advance(10_000);
        }
    }
}

/// Promoted by packets more than a second apart, which SYNs are not.
#[test]
fn promotion() {
    needs_root!("promotion");
    let mut world = world();
    pair(&mut world, 1, 0);
    for proto in [TCP, UDP] {
        let flow = flow(&mut world, Family::V4, proto);
        let promoted = |world: &World| records(world)[0].promoted;
        if proto == TCP {
            go(&world, &flow, SYN);
            world.advance(3);
            go(&world, &flow, SYN);
            assert!(!promoted(&world));
            world.advance(10_000);
        }
        go(&world, &flow, ACK);
        for (second, enough) in [(0, false), (1, false), (2, true)] {
            go(&world, &flow, ACK);
            assert_eq!(promoted(&world), enough, "{second} s");
            world.advance(1);
        }
        go(&world, &flow, ACK);
        assert_eq!(records(&world)[0].age(world.now()), 0, "seen again");
        world.advance(10_000);
    }
    assert_eq!(counts(&world).promoted, 2);
}

/// The nth of many clients, one to a prefix.
pub(crate) fn stranger(n: u32) -> Flow {
    let [_, a, b, c] = n.to_be_bytes();
    let address = IpAddr::V4(Ipv4Addr::new(20 + a, b, c, 1));
    Flow(Frame::tcp((address, 1024).into(), (Family::V4.vip(), PORT).into(), SYN))
}

/// However many new flows there are: promoted ones stay, and new ones that find no room go to the
/// former owner, which needs no record, as long as it takes new flows.
#[test]
fn a_flood_evicts_nobody_established() {
    needs_root!("a_flood_evicts_nobody_established");
    const BUCKETS: u32 = 64;
    const PLACES: usize = (BUCKETS * RW_BUCKET_TRACKS) as usize;
    let mut world = world();
    pair(&mut world, 1, 0);
    world.change_settings(|settings| settings.track_buckets = BUCKETS);
    let tracked = |world: &World, first: u32, flows: u32| {
        (first..first + flows).filter(|n| go(world, &stranger(*n), SYN) == 1).count()
    };
    // Nearly as many as the table has places for.
    let mut established: Vec<Flow> = (0..240).map(|n| stranger(0x40_0000 + n)).collect();
    established.retain(|flow| go(&world, flow, SYN) == 1);
    let go_on =
        |world: &World| established.iter().for_each(|flow| assert_eq!(go(world, flow, ACK), 1));
    world.advance(2);
    go_on(&world);
    let promoted = established.len();
    assert_eq!(world.gateway.view().tracked_counts().unwrap().promoted, promoted as u64);
    assert!(promoted > PLACES * 3 / 4, "{promoted}");
    // Now the flood: it can have what is not promoted, and no more.
    let before = counts(&world);
    let found = tracked(&world, 0x10_0000, 1_000);
    assert!(found <= PLACES - promoted, "{found}");
    assert_eq!(counts(&world).refused_full - before.refused_full, 1_000 - found as u64);
    // Those on probation make room when they have had their time.
    world.advance(2);
    tracked(&world, 0, 100);
    assert_eq!(counts(&world).evicted, before.evicted);
    world.advance(1);
    let found = tracked(&world, 100, 100) as u64;
    assert_eq!(counts(&world).evicted - before.evicted, found);
    assert!(found > 0);
    // The former owner is drained: then there is nobody left.
    let refused = counts(&world).refused_full;
    backend(&mut world, 0, |row| row.weight = 0);
    world.change_settings(|settings| settings.track_buckets = BUCKETS);
    let dropped = (0..1_000)
        .filter(|n| sent(&world, &stranger(0x20_0000 + n).with(SYN)) == Err(Reason::TrackFull))
        .count();
    assert_eq!(counts(&world).refused_full - refused, dropped as u64);
    assert_eq!(go(&world, &stranger(0x30_0000), ACK), 0, "what is older is still its");
    go_on(&world);
}

/// As many flows as were asked for find room.
#[test]
fn there_is_room_for_all() {
    needs_root!("there_is_room_for_all");
    let mut world = world();
    pair(&mut world, 1, 0);
    let opened = (0..4_096).filter(|n| go(&world, &stranger(*n), SYN) == 1).count();
    // Two on average find both of their buckets full, more than 20 in no world; of one bucket it
    // would be 240.
    assert!(opened >= 4_096 - 20, "{opened}");
    let counts = world.gateway.view().tracked_counts().unwrap();
    assert!((4_096..4_100).contains(&counts.capacity));
    assert_eq!(counts.on_probation, opened as u64);
}

/// One prefix opens so many records a second and no more; others are not held up.
#[test]
fn prefixes_have_quotas() {
    needs_root!("prefixes_have_quotas");
    let mut world = world();
    world.change(|tables| tables.track_quota = 20);
    pair(&mut world, 1, 0);
    let neighbour = |n: u8, port: u16, last: u8| {
        let address = match n {
            4 => IpAddr::from([198, 18, 5, last]),
            _ => IpAddr::from([0x2001, 0xdb8, 9, 9, 0, 0, 7, u16::from(last)]),
        };
        let family = if n == 4 { Family::V4 } else { Family::V6 };
        let dst = SocketAddr::new(family.vip(), PORT);
        Flow(Frame::tcp((address, port).into(), dst, SYN))
    };
    for n in [4, 6] {
        for second in 0..2 {
            let port = |i: u8| 2_000 + 100 * second + u16::from(i);
            let to = (0..40).map(|i| go(&world, &neighbour(n, port(i), i), SYN));
            assert!(to.eq([[1; 20], [0; 20]].concat()), "{n}, second {second}");
            assert_eq!(go(&world, &stranger(u32::from(n)), SYN), 1);
            world.advance(1);
        }
    }
    assert_eq!(counts(&world).refused_quota, 4 * 20);
    backend(&mut world, 0, |row| row.weight = 0);
    let to = (0..60).map(|i| sent(&world, &neighbour(4, 9_000 + i, 7).with(SYN)));
    let refused = to.filter(|to| *to == Err(Reason::TrackQuota)).count();
    assert_eq!(refused, 60 - 20);
}

/// affinity = "source": ports do not matter, and a node's seed neither.
#[test]
fn source_affinity() {
    needs_root!("source_affinity");
    let mut worlds = [world(), world()];
    worlds[1].change_settings(|settings| settings.keys = settings.keys.map(|key| !key));
    for world in &mut worlds {
        world.change(|tables| {
            for service in tables.services.iter_mut().filter(|s| is_ours(s)) {
                service.affinity_source = true;
                let id = service.ring;
                *tables.rings.iter_mut().find(|ring| ring.id == id).unwrap() = ring(id, 4);
            }
        });
    }
    for family in FAMILIES {
        let mut used = [0; 4];
        for client in 0..200 {
            let to = |world: &World, port: u16, proto: u8| {
                let src = SocketAddr::new(family.nth_client(client), port);
                let dst = SocketAddr::new(family.vip(), PORT);
                let frame =
                    if proto == TCP { Frame::tcp(src, dst, SYN) } else { Frame::udp(src, dst) };
                sent(world, &frame).unwrap()
            };
            let first = to(&worlds[0], 1000, TCP);
            used[usize::from(first)] += 1;
            for world in &worlds {
                for port in [1, 2000, 65535] {
                    assert_eq!([TCP, UDP].map(|proto| to(world, port, proto)), [first; 2]);
                }
            }
        }
        assert!(used.iter().all(|clients| (25..80).contains(clients)), "{used:?}");
    }
}

/// The second in which the daemon is told that a flow of the service has no record.
fn untracked(world: &World) -> u32 {
    let service = world.service(Family::V4, TCP, PORT).row.id;
    u32::read_from_bytes(&audit::read(world.map("untracked"), service.into())).unwrap()
}

/// The daemon learns of what could not be tracked.
#[test]
fn what_fails_is_noted() {
    needs_root!("what_fails_is_noted");
    let mut world = world();
    world.change(|tables| tables.track_quota = 1);
    pair(&mut world, 1, 0);
    let flows = [(); 2].map(|()| flow(&mut world, Family::V4, TCP));
    assert_eq!((go(&world, &flows[0], SYN), untracked(&world)), (1, 0));
    assert_eq!((go(&world, &flows[1], SYN), untracked(&world)), (0, world.now()));
}
