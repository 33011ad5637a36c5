//! Two CPUs at one flow table. Whatever meets, nothing may be lost, doubled or left behind.

use std::sync::atomic::{AtomicUsize, Ordering};

use ringway_abi::{FlowState, Reason, Verdict};
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{Frame, TCP, UDP, flags::*};
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::run::pin;
use ringway_bpf_tests::{Flow, World, audit, ports, wire};

use crate::needs_root;

/// Runs the same on two CPUs, which meet before each step.
fn on_two_cpus(steps: usize, work: impl Fn(usize, usize) + Sync) {
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (arrived, work) = (&arrived, &work);
            scope.spawn(move || {
                pin(cpu);
                for step in 0..steps {
                    arrived.fetch_add(1, Ordering::AcqRel);
                    let mut spins = 0;
                    while arrived.load(Ordering::Acquire) < 2 * (step + 1) {
                        spins += 1;
                        // The other one may need this very CPU.
                        match spins % 10_000 {
                            0 => std::thread::yield_now(),
                            _ => std::hint::spin_loop(),
                        }
                    }
                    work(cpu, step);
                }
            });
        }
    });
}

/// One client's first packets, on two CPUs at once: one flow, and both packets by it.
#[test]
fn a_first_packet_twice_at_once_opens_one_flow() {
    needs_root!("a_first_packet_twice_at_once_opens_one_flow");
    const ROUNDS: usize = 8_000;
    for (proto, port) in [(UDP, ports::ACROSS), (TCP, ports::POOL), (UDP, ports::CLIENT)] {
        let world = World::with(60_000, |_| ());
        let frames: Vec<Vec<u8>> = (0..ROUNDS)
            .map(|n| {
                let src =
                    (Family::V4.nth_client((n / 1000) as u16), 2_000 + (n % 1000) as u16).into();
                let dst = (Family::V4.vip(), port).into();
                Frame { proto, flags: SYN, ..Frame::udp(src, dst) }.bytes()
            })
            .collect();
        let conflicts = AtomicUsize::new(0);
        on_two_cpus(ROUNDS, |_, step| {
            let mut out = Vec::new();
            match world.root(FRONT).run(&frames[step], &mut out).unwrap() {
                Verdict::Tx | Verdict::Redirect => (),
                // The client's own port is being taken by the other CPU at this very moment.
                Verdict::Drop if port == ports::CLIENT => {
                    conflicts.fetch_add(1, Ordering::Relaxed);
                }
                other => panic!("{other}"),
            }
        });
        let ledger = world.ledger(FRONT);
        let dropped = conflicts.into_inner() as u64;
        assert_eq!(ledger.count(Verdict::Drop, Reason::NatConflict), dropped);
        assert_eq!((ledger.seen, ledger.difference()), (2 * ROUNDS as u64, 0));
        println!("{proto} {port}: {dropped} of {} dropped as conflicts", 2 * ROUNDS);
        assert!(dropped < ROUNDS as u64 / 10);
        assert_eq!(audit::audit(&world).live, ROUNDS);
    }
}

/// A frame, and what it must leave as.
type InAndOut = (Vec<u8>, Vec<u8>);

/// Client and backend move a flow's state at the same time: neither is told there is no flow.
#[test]
fn both_directions_at_once() {
    needs_root!("both_directions_at_once");
    const FLOWS: usize = 3_000;
    const CLIENT: [u8; 6] = [ACK, PSH | ACK, ACK, PSH | ACK, FIN | ACK, ACK];
    const BACKEND: [u8; 6] = [SYN | ACK, ACK, PSH | ACK, ACK, FIN | ACK, ACK];
    for port in [ports::ACROSS, ports::CLIENT] {
        let mut world = World::with(30_000, |_| ());
        let flows: Vec<Flow> = (0..FLOWS).map(|_| world.open(Family::V6, TCP, port)).collect();
        let scripts: Vec<[Vec<InAndOut>; 2]> = flows
            .iter()
            .map(|flow| {
                let requests = CLIENT.map(|flags| {
                    let request = flow.next(flags);
                    (request.bytes(), flow.forwarded(&request).bytes())
                });
                let answers = BACKEND.map(|flags| {
                    let answer = flow.answer(flags);
                    (answer.bytes(), flow.returned(&answer).bytes())
                });
                [requests.to_vec(), answers.to_vec()]
            })
            .collect();
        on_two_cpus(FLOWS, |cpu, step| {
            let mut out = Vec::new();
            let slot = [FRONT, BACK][cpu];
            for (frame, expected) in &scripts[step][cpu] {
                let verdict = world.root(slot).run(frame, &mut out).unwrap();
                assert_eq!(verdict, Verdict::Redirect, "flow {step}, slot {slot}");
                assert_eq!(out, *expected, "flow {step}, slot {slot}");
            }
        });
        let ledgers = [world.ledger(FRONT), world.ledger(BACK)];
        assert_eq!(
            ledgers[0].count(Verdict::Redirect, Reason::NatForward),
            (FLOWS * (CLIENT.len() + 1)) as u64
        );
        assert_eq!(
            ledgers[1].count(Verdict::Redirect, Reason::NatReply),
            (FLOWS * BACKEND.len()) as u64
        );
        // Each has seen at least one FIN; the other's may have come second.
        for record in audit::records(&world) {
            let state = record.key.state;
            assert!(
                matches!(state, FlowState::FinClient | FlowState::FinBackend | FlowState::Closed),
                "{record:?}"
            );
        }
        assert_eq!(audit::audit(&world).live, FLOWS);
    }
}

/// Connections come and go on both CPUs in a pool and a table that are too small for them, and
/// what has ended may be taken over at once.
#[test]
fn churn() {
    needs_root!("churn");
    const STEPS: usize = 150_000;
    for (family, port) in [
        (Family::V4, ports::POOL),
        (Family::V6, ports::ACROSS),
        (Family::V4, ports::CLIENT),
        (Family::V6, ports::CLIENT),
    ] {
        let world = World::with(96, |tables| {
            tables.nat_ports = (20_000, 40);
            // As a signed number -1: dead as soon as closed.
            tables.timeouts.closed = u32::MAX;
        });
        let backends: Vec<_> = world.service(family, TCP, port).backends;
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                let (world, backends) = (&world, &backends);
                scope.spawn(move || {
                    pin(cpu);
                    let mut random = Random::new(cpu as u64);
                    let mut out = Vec::new();
                    for _ in 0..STEPS {
                        let n = random.below(150) as u16;
                        let client = (family.nth_client(n % 3), 20_000 + n).into();
                        let service = (family.vip(), port).into();
                        let (slot, frame) = match random.below(8) {
                            0..3 => (FRONT, Frame::tcp(client, service, SYN)),
                            3 => (FRONT, Frame::tcp(client, service, ACK)),
                            4 => (FRONT, Frame::tcp(client, service, RST)),
                            5 => (FRONT, Frame::tcp(client, service, FIN | ACK)),
                            way => {
                                let backend = random.pick(backends);
                                let hop = backend.next_hop.unwrap();
                                let source = match port {
                                    ports::CLIENT => client,
                                    _ => (family.nat(), 20_000 + random.below(40) as u16).into(),
                                };
                                let from = (backend.address, backend.port).into();
                                let flags = if way == 6 { RST } else { FIN | ACK };
                                let frame = Frame::tcp(from, source, flags);
                                (
                                    hop.iface,
                                    frame
                                        .with(|f| f.dst_mac = ringway_bpf_tests::mac_of(hop.iface)),
                                )
                            }
                        };
                        let verdict = world.root(slot).run(&frame.bytes(), &mut out).unwrap();
                        assert_ne!(verdict, Verdict::Aborted);
                        if matches!(verdict, Verdict::Tx | Verdict::Redirect) {
                            wire::check(&out).good();
                        }
                    }
                });
            }
        });
        let [front, back] = [FRONT, BACK].map(|slot| world.ledger(slot));
        assert_eq!(front.seen + back.seen, 2 * STEPS as u64);
        assert_eq!((front.difference(), back.difference()), (0, 0));
        let opened = (audit::records(&world).len(), world.service(family, TCP, port));
        let found = audit::audit(&world);
        println!("{family:?} {port}: {found:?} of {} records in use", opened.0);
        let begun: u64 = opened.1.backends.iter().map(|b| world.traffic(b).flows).sum();
        assert!(begun > 10_000, "only {begun} flows begun");
        // Every live flow is found from both sides.
        for record in audit::records(&world) {
            let Some(backend) = backends.iter().find(|b| b.reference() == record.key.backend)
            else {
                panic!("no backend: {record:?}")
            };
            if record.key.state == FlowState::Closed {
                continue;
            }
            let hop = backend.next_hop.unwrap();
            let source = if port == ports::CLIENT {
                record.client
            } else {
                (family.nat(), record.key.nat_port).into()
            };
            let real = (backend.address, backend.port).into();
            let mut out = Vec::new();
            let answer = Frame::tcp(real, source, ACK)
                .with(|f| f.dst_mac = ringway_bpf_tests::mac_of(hop.iface));
            world.root(hop.iface).run(&answer.bytes(), &mut out).unwrap();
            assert_eq!(wire::check(&out).good().dst, record.client, "{record:?}");
            let request = Frame::tcp(record.client, (family.vip(), port).into(), ACK);
            world.root(FRONT).run(&request.bytes(), &mut out).unwrap();
            let packet = wire::check(&out).good();
            assert_eq!((packet.src, packet.dst), (source, real), "{record:?}");
        }
    }
}
