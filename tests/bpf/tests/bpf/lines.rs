//! The cache lines that a packet writes: those of its CPU, and its flow's. What all CPUs write in
//! turn, they wait for.

use std::collections::BTreeMap;

use ringway_bpf_tests::lines::{Line, changed};
use ringway_bpf_tests::prelude::*;

use crate::dsr;

#[test]
fn a_packet_writes_its_cpus_lines_and_its_flows() {
    needs_root!("a_packet_writes_its_cpus_lines_and_its_flows");
    // A thread of its own, since it moves.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for family in FAMILIES {
                without_records(family);
                of_a_flow(family);
            }
        });
    });
}

fn without_records(family: Family) {
    let mut world = World::unwatched();
    let (client, drop) = world.ends(family, ports::NONE_DROP);
    let stranger = Frame::tcp(client, (family.elsewhere(), 80).into(), ACK);
    let refused = Frame::tcp(client, drop, SYN);
    for (path, frame) in [("pass", stranger), ("drop", refused)] {
        in_turn(&world, path, FRONT, &frame, None);
    }
    let world = dsr::world();
    for (path, service) in dsr::plain(family) {
        in_turn(&world, &path, FRONT, &Frame::tcp(client, service, ACK), None);
    }
}

fn of_a_flow(family: Family) {
    let mut world = World::unwatched();
    let flow = world.connect(family, ports::ACROSS);
    let place = world.record(&flow).place;
    in_turn(&world, "nat", FRONT, &flow.next(ACK), Some(place));
    in_turn(&world, "nat-reply", flow.back_slot(), &flow.answer(ACK), Some(place));
}

/// Two CPUs get a packet in turn. `place`: of the flow's record.
fn in_turn(world: &World, path: &str, slot: u32, frame: &Frame, place: Option<u32>) {
    let (bytes, mut out) = (frame.bytes(), Vec::new());
    let mut seen = BTreeMap::new();
    for cpu in [0, 1, 0, 1] {
        pin(cpu);
        // The first packet of a second writes the flow's time.
        world.advance(1);
        let lines = changed(world, || _ = world.root(slot).run(&bytes, &mut out).unwrap());
        let of_flow = |line: &Line| {
            let bucket = place.map(|place| (place >> 2) as usize);
            line.map == "flows" && Some(line.element) == bucket
        };
        for line in &lines {
            assert!(line.cpu == Some(cpu) || of_flow(line), "{path}, CPU {cpu}: {line:?}");
        }
        for line in lines {
            *seen.entry(line.map).or_insert(0) += 1;
        }
    }
    // The ledger counts each packet.
    assert!(seen.contains_key("ledger"), "{path}: {seen:?}");
    println!("{path}: lines in four packets {seen:?}");
}
