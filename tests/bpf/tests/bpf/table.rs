//! The flow table: what happens when it, the pool or the index is full, and what is used again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use ringway_abi::raw::{RW_BUCKET_FLOWS, RW_INDEX_ENTRIES, rw_settings};
use ringway_abi::{
    Reason::{FlowTableFull, NatExhausted},
    Verdict::{Drop, Redirect, Tx},
};
use ringway_bpf_tests::audit::Record;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::BackendRow;

/// The nth flow of any number.
fn nth(family: Family, proto: u8, port: u16, n: u32) -> Frame {
    let src: SocketAddr =
        (family.nth_client((n / 50_000) as u16), 1_025 + (n % 50_000) as u16).into();
    Frame { proto, flags: SYN, ..Frame::udp(src, (family.vip(), port).into()) }
}

/// A source towards a backend, as the backend sees it.
type Source = (SocketAddr, SocketAddr);

/// Sends a first packet; where it left by, or why not.
fn try_open(world: &World, out: &mut Vec<u8>, frame: &Frame) -> Option<Source> {
    match world.root(FRONT).run(&frame.bytes(), out).unwrap() {
        Tx | Redirect => {
            let packet = wire::check(out).good();
            Some((packet.src, packet.dst))
        }
        Drop => None,
        other => panic!("{other}"),
    }
}

/// The same, and no later flow can displace it.
fn try_keep(world: &World, out: &mut Vec<u8>, frame: &Frame) -> Option<Source> {
    let opened = try_open(world, out, frame);
    if opened.is_some() {
        audit::keep_all(world);
    }
    opened
}

/// The time of one of these half-open flows is over, while the others are asked for again.
fn end_flow(world: &World, port: u16, flows: &[Record], ended: &Record) {
    world.advance(world.tables.timeouts.syn.into());
    for flow in flows.iter().filter(|flow| *flow != ended) {
        let vip = if flow.client.is_ipv4() { Family::V4 } else { Family::V6 }.vip();
        let again = Frame::tcp(flow.client, (vip, port).into(), SYN);
        assert!(try_open(world, &mut Vec::new(), &again).is_some());
    }
    world.advance(1);
}

/// Flows that gave way to others.
fn evicted(world: &World) -> u64 {
    world.tables.backends.iter().map(|row| world.traffic(row).evicted).sum()
}

fn dropped(world: &World, reason: Reason) -> u64 {
    world.ledger(FRONT).count(Drop, reason)
}

/// So many were dropped, nearly all for this reason: what counts is the last of the ports that were
/// tried, taken or without room.
fn refused_for(world: &World, reason: Reason, all: u64) {
    let both = [NatExhausted, FlowTableFull].map(|reason| dropped(world, reason));
    assert_eq!(both.iter().sum::<u64>(), all, "{both:?}");
    assert!(dropped(world, reason) * 10 >= all * 9, "{reason}: {both:?} of {all}");
}

/// Towards one backend no more flows than ports; how many of them before the first refusal is
/// what the bounded search for a port is worth, whether one CPU opens all flows or two take turns.
#[test]
fn a_pool_runs_out_with_a_counted_drop() {
    needs_root!("a_pool_runs_out_with_a_counted_drop");
    for (family, pool, cpus) in [
        (Family::V4, 64, 1),
        (Family::V6, 1_000, 1),
        (Family::V4, 1_000, 2),
        (Family::V6, 5_000, 2),
    ] {
        // A thread of its own, since it moves.
        std::thread::scope(|scope| {
            scope.spawn(|| exhaust(family, pool, cpus));
        });
    }
}

fn exhaust(family: Family, pool: u16, cpus: u32) {
    let world = World::with(20_000, |tables| tables.nat_ports = (20_000, pool));
    let mut out = Vec::new();
    let mut sources = HashSet::new();
    let mut first_refusal = None;
    let (mut opened, mut displaced) = (0, 0);
    let attempts = 4 * u32::from(pool);
    for n in 0..attempts {
        pin((n % cpus) as usize);
        // Until the first of them is, no flow has to be kept from giving way.
        let Some((source, _)) = try_open(&world, &mut out, &nth(family, TCP, ports::ACROSS, n))
        else {
            continue;
        };
        opened += 1;
        assert!((20_000..20_000 + pool).contains(&source.port()));
        let gave_way = first_refusal.is_none() && evicted(&world) > 0;
        let new = sources.insert(source);
        assert!(new || gave_way, "{source} twice");
        if gave_way {
            first_refusal = Some(n);
            // Where a bucket is full, a flow gives way to one of another port.
            displaced = usize::from(new);
        }
        if first_refusal.is_some() {
            audit::keep_all(&world);
        }
    }
    assert_eq!(evicted(&world), 1);
    refused_for(&world, NatExhausted, u64::from(attempts - opened));
    let percent = |n: usize| 100 * n / usize::from(pool);
    let live = sources.len() - displaced;
    let (first, end) = (percent(first_refusal.unwrap() as usize), percent(live));
    println!("{pool} ports, {cpus} CPUs: first refusal at {first} %, {end} % in the end");
    // Of neighbouring ports 32 share their luck: a fourth such group in as many buckets of three
    // finds no room. Of 5 000 ports that is one group, on average: eight of them, 5 %, in one of
    // 100 000 runs (Poisson).
    assert!(first >= 75 && end >= 95, "{pool} ports, {cpus} CPUs: {first} %, {end} %");
    assert_eq!(audit::audit(&world).live, live);
    // One that ends makes room for one, sooner or later.
    if pool == 64 {
        let flows = audit::records(&world);
        let ended = &flows[0];
        end_flow(&world, ports::ACROSS, &flows, ended);
        let again = (attempts..2 * attempts)
            .filter_map(|n| try_open(&world, &mut out, &nth(family, TCP, ports::ACROSS, n)))
            .find(|(source, _)| source.port() == ended.key.nat_port);
        assert!(again.is_some(), "{ended:?}");
    }
}

/// One address, one pool, but towards eight backends: more flows than a port number can tell.
#[test]
fn one_address_holds_more_than_65536_flows() {
    needs_root!("one_address_holds_more_than_65536_flows");
    // Of UDP, flows on probation have half of the ports.
    const FLOWS: u32 = 80_000;
    let family = Family::V6;
    // In an index of half the size one run in a thousand finds both buckets of a flow full.
    let mut world = World::with(400_000, |tables| tables.nat_ports = (10_000, 50_000));
    let mut out = Vec::new();
    let mut flows: HashMap<Source, Frame> = HashMap::new();
    for n in 0..FLOWS {
        let frame = nth(family, UDP, ports::POOL, n);
        let source = try_open(&world, &mut out, &frame).expect("room for it");
        assert!(flows.insert(source, frame).is_none(), "{source:?} twice");
    }
    assert_eq!(audit::audit(&world).live, FLOWS as usize);
    // Each is found from both sides.
    for ((source, backend), request) in &flows {
        let slot = if backend.ip() == family.backend(0) { FRONT } else { BACK };
        let answer = Frame::udp(*backend, *source).with(|f| f.dst_mac = mac_of(slot));
        world.root(slot).run(&answer.bytes(), &mut out).unwrap();
        let packet = wire::check(&out).good();
        assert_eq!((packet.src, packet.dst), (request.dst, request.src));
        world.root(FRONT).run(&request.bytes(), &mut out).unwrap();
        let packet = wire::check(&out).good();
        assert_eq!((packet.src, packet.dst), (*source, *backend));
    }
    assert_eq!(audit::audit(&world).live, FLOWS as usize);
    let counts = world.gateway.view().flows().unwrap();
    assert_eq!(counts.in_state(FlowState::Udp), u64::from(FLOWS));
    world.change(|_| ());
}

/// A CPU that opens few flows while another opens many: the ports behind the other's are taken.
#[test]
fn a_cpu_that_lags_behind_finds_a_port() {
    needs_root!("a_cpu_that_lags_behind_finds_a_port");
    let world = World::with(20_000, |tables| tables.nat_ports = (10_000, 50_000));
    let open_by_turns = || {
        for n in 0..18_100 {
            pin(usize::from(n % 6_000 >= 100));
            let frame = nth(Family::V4, UDP, ports::POOL, n);
            assert!(try_open(&world, &mut Vec::new(), &frame).is_some(), "flow {n}");
        }
    };
    // A thread of its own, since it moves.
    std::thread::scope(|scope| {
        scope.spawn(open_by_turns);
    });
}

/// A backend that comes back under another index must not see the ports that it holds in TIME_WAIT.
#[test]
fn each_backend_begins_with_another_port() {
    needs_root!("each_backend_begins_with_another_port");
    pin(0);
    // Of a size that no other world has: its backends are new.
    let world = World::with(1_100, |tables| tables.nat_ports = (2_000, 60_000));
    let mut out = Vec::new();
    let mut first: HashMap<SocketAddr, u16> = HashMap::new();
    for n in 0..80 {
        let frame = nth(Family::V4, TCP, ports::POOL, n);
        let (source, backend) = try_open(&world, &mut out, &frame).expect("room for it");
        first.entry(backend).or_insert(source.port());
    }
    assert_eq!(first.len(), 4, "{first:?}");
    let distinct: HashSet<u16> = first.values().copied().collect();
    assert_eq!(distinct.len(), 4, "{first:?}");
}

/// Two services with one backend, address and port: what is a source for one is taken for both.
#[test]
fn services_that_share_a_backend_share_its_ports() {
    needs_root!("services_that_share_a_backend_share_its_ports");
    let world = World::with(1_000, |tables| {
        tables.nat_ports = (20_000, 100);
        for service in &mut tables.services {
            service.source_client = false;
        }
    });
    let (mut out, mut sources) = (Vec::new(), HashSet::new());
    for n in 0..400 {
        let port = if n % 2 == 0 { ports::CLIENT } else { ports::CLIENT_TOO };
        if let Some(source) = try_keep(&world, &mut out, &nth(Family::V4, UDP, port, n)) {
            assert!(sources.insert(source), "{source:?} twice");
        }
    }
    assert!(sources.len() > 80);
    audit::audit(&world);
}

/// A used port is used again after all others, whoever sends, so that the backend's TIME_WAIT is
/// over by then. Most machines have more possible CPUs than receive packets.
#[test]
fn one_cpu_goes_round_the_whole_pool() {
    needs_root!("one_cpu_goes_round_the_whole_pool");
    const POOL: u16 = 512;
    let world = World::with(1_000, |tables| tables.nat_ports = (20_000, POOL));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            let mut used = HashSet::new();
            for n in 0..u32::from(POOL) {
                let frame = nth(Family::V4, TCP, ports::ACROSS, n);
                let source = try_open(&world, &mut Vec::new(), &frame).unwrap().0;
                used.insert(source.port());
                // It is over, and its port free.
                world.advance(u64::from(world.tables.timeouts.syn) + 1);
            }
            assert_eq!(used.len(), usize::from(POOL));
        });
    });
}

/// Fewer ports than CPUs: still none outside the pool.
#[test]
fn a_pool_of_one_port() {
    needs_root!("a_pool_of_one_port");
    // Room enough that two flows hardly ever share a bucket: there one port serves one of them.
    let world = World::with(60_000, |tables| tables.nat_ports = (20_000, 1));
    world.change_settings(|settings| settings.cpus = 64);
    // Not the first: its block would begin where the pool does.
    std::thread::scope(|scope| {
        scope.spawn(|| one_port(&world));
    });
}

fn one_port(world: &World) {
    pin(1);
    let mut out = Vec::new();
    let first = try_keep(world, &mut out, &nth(Family::V4, TCP, ports::ACROSS, 0)).unwrap();
    assert_eq!(first.0.port(), 20_000);
    assert_eq!(try_keep(world, &mut out, &nth(Family::V4, TCP, ports::ACROSS, 1)), None);
    assert_eq!(dropped(world, NatExhausted), 1);
    // Another backend is another matter.
    let other = try_keep(world, &mut out, &nth(Family::V4, TCP, ports::SAME, 1)).unwrap();
    assert_eq!(other.0.port(), 20_000);
}

/// Several nat addresses: all are used, each with the whole pool.
#[test]
fn addresses_multiply_the_pool() {
    needs_root!("addresses_multiply_the_pool");
    let world = World::with(8_192, |tables| {
        tables.nat_ports = (20_000, 100);
        tables.nat_addresses =
            (1..=4).map(|n| std::net::Ipv4Addr::new(10, 0, 1, n).into()).collect();
        tables
            .backends
            .iter_mut()
            .for_each(|b| b.nat = (0, if b.address.is_ipv4() { 4 } else { 0 }));
    });
    let (mut out, mut sources) = (Vec::new(), HashSet::new());
    for n in 0..600 {
        if let Some((source, _)) =
            try_keep(&world, &mut out, &nth(Family::V4, UDP, ports::ACROSS, n))
        {
            assert!(sources.insert(source));
        }
    }
    assert!(sources.len() >= 360, "{} of 400", sources.len());
    let mut addresses: Vec<_> = sources.iter().map(SocketAddr::ip).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 4);
    audit::audit(&world);
}

/// Dead records are taken over where they lie; the table never has to be swept.
#[test]
fn dead_records_are_reclaimed() {
    needs_root!("dead_records_are_reclaimed");
    let world = World::with(1_000, |_| ());
    let mut out = Vec::new();
    let capacity = audit::capacity(&world);
    for round in 0..10 {
        let mut opened = 0;
        for n in 0..capacity / 2 {
            let frame = nth(Family::V4, TCP, ports::POOL, round * capacity + n);
            opened += u32::from(try_open(&world, &mut out, &frame).is_some());
        }
        // Half full, a bucket of three is full now and then, and so is the next one tried.
        assert!(opened >= capacity / 2 - 2, "round {round}: {opened} of {}", capacity / 2);
        let found = audit::audit(&world);
        assert_eq!(found.live as u32, opened, "round {round}");
        world.advance(u64::from(world.tables.timeouts.syn) + 1);
    }
    assert!(dropped(&world, NatExhausted) < 20);
    assert_eq!(dropped(&world, FlowTableFull), 0);
}

/// A flow that the index has no room for is not left behind as a record that nobody finds.
#[test]
fn a_full_index_is_a_counted_drop() {
    needs_root!("a_full_index_is_a_counted_drop");
    let world = World::new();
    world.change_settings(|settings| settings.index_mask = 0);
    let mut out = Vec::new();
    let opened: Vec<Frame> = (0..20)
        .map(|n| nth(Family::V6, TCP, ports::ACROSS, n))
        .filter(|frame| try_keep(&world, &mut out, frame).is_some())
        .collect();
    assert_eq!(opened.len(), 8);
    assert_eq!(dropped(&world, FlowTableFull), 12);
    assert_eq!(audit::audit(&world).live, 8);
    // One that ended makes room for one.
    let flows = audit::records(&world);
    end_flow(&world, ports::ACROSS, &flows, &flows[0]);
    assert!(try_keep(&world, &mut out, &nth(Family::V6, TCP, ports::ACROSS, 100)).is_some());
    assert!(try_keep(&world, &mut out, &nth(Family::V6, TCP, ports::ACROSS, 101)).is_none());
    assert_eq!(audit::audit(&world).live, 8);
}

/// Every bucket full of live flows: dropped and counted, under nat and source = "client" alike.
#[test]
fn a_full_table_is_a_counted_drop() {
    needs_root!("a_full_table_is_a_counted_drop");
    for port in [ports::ACROSS, ports::CLIENT] {
        let world = World::with(24, |_| ());
        let capacity = audit::capacity(&world);
        let mut out = Vec::new();
        let opened = (0..2_000)
            .filter(|n| try_keep(&world, &mut out, &nth(Family::V4, UDP, port, *n)).is_some())
            .count();
        assert_eq!(opened as u32, capacity, "{port}");
        refused_for(&world, FlowTableFull, 2_000 - u64::from(capacity));
        assert_eq!(audit::audit(&world).live as u32, capacity);
    }
}

/// Leaves one bucket of a table.
type Narrow = fn(&mut rw_settings);

/// Where a bucket of the index or of records is full, of those on probation the one that has idled
/// for longest gives way, wherever it lies, and is counted.
#[test]
fn the_oldest_on_probation_gives_way() {
    needs_root!("the_oldest_on_probation_gives_way");
    // Two backends' flows in one bucket have no port in common while a CPU gives them out alone.
    pin(0);
    let full: [(Narrow, usize); 2] = [
        (|settings| settings.index_mask = 0, RW_INDEX_ENTRIES as usize),
        (|settings| settings.flow_mask = 0, RW_BUCKET_FLOWS as usize),
    ];
    for (narrow, room) in full {
        let mut world = World::new();
        world.change_settings(narrow);
        let kept = world.connect(Family::V4, ports::ACROSS);
        let open = |world: &mut World, n: usize| {
            world.open(Family::V4, TCP, [ports::ACROSS, ports::SAME][n % 2])
        };
        // The one that has idled for longest first.
        let mut flows: VecDeque<Flow> = VecDeque::new();
        for n in 1..room {
            world.advance(1);
            flows.push_back(open(&mut world, n));
        }
        for n in 0..3 * room {
            // That is not always the one that began first.
            if n % 2 == 0 {
                world.advance(1);
                world.request(&flows[0], SYN);
                flows.rotate_left(1);
            }
            world.advance(1);
            let gone = flows.pop_front().unwrap();
            let before = world.traffic(&gone.backend).evicted;
            let all = evicted(&world);
            flows.push_back(open(&mut world, n));
            assert_eq!(
                (world.traffic(&gone.backend).evicted, evicted(&world)),
                (before + 1, all + 1)
            );
            let left = audit::records(&world);
            assert_eq!(left.len(), room);
            let stays = left.iter().any(|record| record.client == gone.request.src);
            assert!(!stays, "{n} of {room}: {}: {left:#?}", gone.request.src);
        }
        world.request(&kept, ACK);
        audit::audit(&world);
    }
}

/// A record's own place is used again and again by one client, not one more each time.
#[test]
fn one_client_leaves_no_trail() {
    needs_root!("one_client_leaves_no_trail");
    let mut world = World::new();
    let first = world.connect(Family::V4, ports::ACROSS);
    let mut flow = first.clone();
    for _ in 0..100 {
        world.answer(&flow, RST);
        flow = world.open_with(FRONT, first.request.clone());
    }
    let (index, records) = (audit::index(&world), audit::records(&world));
    assert_eq!(records.len(), 1);
    assert!(index.values().map(Vec::len).sum::<usize>() <= 2);
}

/// Counters of flows begun, per backend, over a ring of four: near a quarter each.
#[test]
fn the_ring_chooses_as_written_down() {
    needs_root!("the_ring_chooses_as_written_down");
    const FLOWS: u32 = 20_000;
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let world = World::with(60_000, |_| ());
        let mut out = Vec::new();
        let mut chosen: HashMap<u32, u64> = HashMap::new();
        for n in 0..FLOWS {
            let frame = nth(family, proto, ports::POOL, n);
            let expected = world.chosen(&frame).unwrap();
            let (_, backend) = try_open(&world, &mut out, &frame).unwrap();
            assert_eq!(backend, (expected.address, expected.port).into(), "{frame:?}");
            *chosen.entry(expected.index).or_default() += 1;
        }
        for (index, flows) in &chosen {
            let row: &BackendRow = &world.tables.backends[*index as usize];
            assert_eq!(world.traffic(row).flows, *flows);
            assert!((4_700..5_300).contains(flows), "{chosen:?}");
        }
        assert_eq!(chosen.len(), 4);
    }
}

/// Chosen sources cannot collide: 4 096 that differ in the top bytes of their 64-bit halves are as
/// many flows.
#[test]
fn no_sources_share_a_hash() {
    needs_root!("no_sources_share_a_hash");
    let world = World::new();
    let vip = (Family::V6.vip(), ports::ACROSS).into();
    let mut out = Vec::new();
    let source = |n: u16| {
        let mut octets = [0x20, 0x01, 0x0d, 0xb8, 0, 0xc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        (octets[3], octets[11]) = ((n % 64) as u8, (n / 64) as u8);
        SocketAddr::new(std::net::Ipv6Addr::from(octets).into(), 4000)
    };
    for n in 0..4_096 {
        let opened = try_open(&world, &mut out, &Frame::tcp(source(n), vip, SYN));
        assert!(opened.is_some(), "source {n}");
    }
    assert_eq!(audit::records(&world).len(), 4_096);
    let backend = world.tables.backends.iter().find(|row| world.traffic(row).flows > 0).unwrap();
    for n in 0..4_096 {
        // None has been displaced from the index: the SYN again finds its flow.
        let frame = Frame::tcp(source(n), vip, SYN);
        assert_eq!(
            world.root(FRONT).run(&frame.bytes(), &mut out).unwrap(),
            Redirect,
            "source {n}"
        );
        assert_eq!(wire::check(&out).good().dst.ip(), backend.address, "source {n}");
    }
    assert_eq!(audit::records(&world).len(), 4_096);
}

/// A node that took over an older one's tables finds their flows as that one put them there.
#[test]
fn tables_keep_the_hash_that_they_were_made_with() {
    needs_root!("tables_keep_the_hash_that_they_were_made_with");
    let mut world = World::new();
    let mut flows = Vec::new();
    let set = |world: &World, hash| world.change_settings(|settings| settings.hash = hash);
    for hash in [0, 1] {
        set(&world, hash);
        let opened = FAMILIES.map(|family| world.connect(family, ports::ACROSS));
        flows.push((hash, opened));
    }
    for (hash, opened) in &flows {
        set(&world, *hash);
        for flow in opened {
            world.request(flow, ACK);
            world.answer(flow, ACK);
        }
    }
}
