//! Flows give way when no port is free: first half-open ones, then closing ones, then finished ones
//! on probation.

use ringway_abi::Verdict::{Redirect, Tx};
use ringway_bpf_tests::prelude::*;

/// SYNs from this client on. How many were sent on.
fn flood(world: &World, first: u16, packets: u16) -> usize {
    let syn = |n| {
        let src = (Family::V4.nth_client(first + n), 9).into();
        Frame::tcp(src, (Family::V4.vip(), ports::ACROSS).into(), SYN)
    };
    let sent = |n: &u16| matches!(world.send(&syn(*n)).verdict, Tx | Redirect);
    (0..packets).filter(sent).count()
}

fn established(world: &World) -> usize {
    let records = audit::records(world);
    records.iter().filter(|record| record.key.state == FlowState::Established).count()
}

/// Of a connection whose client aborts it, or one side of which is still open, nothing is heard any
/// more. While there is room it is kept for minutes.
#[test]
fn closing_flows_give_way_when_they_are_silent() {
    needs_root!("closing_flows_give_way_when_they_are_silent");
    const PORTS: u16 = 64;
    pin(0);
    for how in ["a RST of the client's", "its FIN", "the backend's FIN"] {
        let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS));
        let connect = |n: u16| {
            let (_, dst) = world.ends(Family::V4, ports::ACROSS);
            let flow = world.open_with(
                FRONT,
                Frame::tcp((Family::V4.nth_client(n * 256), 1000).into(), dst, SYN),
            );
            world.answer(&flow, SYN | ACK);
            world.request(&flow, ACK);
            world.answer(&flow, ACK);
            flow
        };
        let flows: Vec<Flow> = (0..PORTS).map(connect).collect();
        assert_eq!(established(&world), usize::from(PORTS));
        for flow in &flows {
            match how {
                "its FIN" => world.request(flow, FIN | ACK),
                "the backend's FIN" => world.answer(flow, FIN | ACK),
                _ => world.request(flow, RST),
            }
        }
        world.advance(4);
        assert_eq!(flood(&world, 30_000, PORTS), 0, "{how}: its connection may go on");
        // One does: its data is on the way still.
        let alive = &flows[7];
        world.advance(1);
        match how {
            "the backend's FIN" => world.request(alive, PSH | ACK),
            _ => world.answer(alive, PSH | ACK),
        }
        assert_eq!(flood(&world, 40_000, 20), 20, "{how}");
        world.answer(alive, ACK);
    }
}

/// The flows of one prefix beyond its half of the ports are on probation, though their handshakes
/// are finished.
#[test]
fn finished_handshakes_outlive_half_open_ones() {
    needs_root!("finished_handshakes_outlive_half_open_ones");
    const PORTS: u16 = 256;
    pin(0);
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS));
    let greedy: Vec<Flow> =
        (0..PORTS * 9 / 10).map(|_| world.connect(Family::V4, ports::ACROSS)).collect();
    assert!(audit::records(&world).iter().filter(|record| record.confirmed).count() < greedy.len());
    assert!(flood(&world, 5_000, 1_250) > 125);
    assert_eq!(established(&world), greedy.len());
}
