//! Two CPUs at one flow table. Whatever meets, nothing may be lost, doubled or left behind.

use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize};

use ringway_abi::raw::{RW_BUCKET_FLOWS, RW_CONFIRMED, rw_flow, rw_flow_bucket};
use ringway_bpf_tests::mapping::Mapping;
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::prelude::*;

/// When its thread panics, nobody waits for that any more.
struct Meeting<'a>(&'a AtomicUsize);

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(usize::MAX / 2, Release);
        }
    }
}

/// Runs the same on two CPUs, which meet before each step.
fn on_two_cpus(steps: usize, work: impl Fn(usize, usize) + Sync) {
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (arrived, work) = (&arrived, &work);
            scope.spawn(move || {
                pin(cpu);
                // Both at once, whatever else the machine has to do.
                let _ = rustix::process::setpriority_process(None, -20);
                let _meeting = Meeting(arrived);
                for step in 0..steps {
                    arrived.fetch_add(1, AcqRel);
                    let mut spins = 0;
                    while arrived.load(Acquire) < 2 * (step + 1) {
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
    // Of UDP, flows on probation have half of the ports.
    const ROUNDS: usize = 4_000;
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
                    conflicts.fetch_add(1, Relaxed);
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
    const BACKEND: [u8; 5] = [SYN | ACK, ACK, PSH | ACK, ACK, FIN | ACK];
    for port in [ports::ACROSS, ports::CLIENT] {
        let mut world = World::with(30_000, |_| ());
        let flows: Vec<Flow> = (0..FLOWS).map(|_| world.connect(Family::V6, port)).collect();
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
            (FLOWS * (CLIENT.len() + 2)) as u64
        );
        assert_eq!(
            ledgers[1].count(Verdict::Redirect, Reason::NatReply),
            (FLOWS * (BACKEND.len() + 2)) as u64
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
    for (family, port) in
        [(Family::V4, ports::POOL), (Family::V6, ports::ACROSS), (Family::V4, ports::CLIENT)]
    {
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
            let flags = if record.key.state == FlowState::Syn { SYN | ACK } else { ACK };
            let answer = Frame::tcp(real, source, flags)
                .with(|f| f.ack = 0x1000_0001)
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

/// Another CPU's change of a flow that has just been chosen to give way.
#[derive(Clone, Copy, Debug)]
enum Saved {
    /// Ends its probation, where the index is full, or the pool.
    Confirmed,
    /// Uses it, when it was about to be taken for dead.
    Used,
}

/// The records, as another CPU sees them: a record is named by its place in bytes.
struct Flows {
    records: Mapping,
    now: u32,
}

impl Flows {
    const CONFIRMED: u64 = (RW_CONFIRMED as u64) << 56;

    fn used(&self, world: &World) -> Vec<usize> {
        let buckets = audit::capacity(world) / RW_BUCKET_FLOWS;
        (0..buckets as usize)
            .flat_map(|bucket| (0..RW_BUCKET_FLOWS as usize).map(move |flow| (bucket, flow)))
            .map(|(bucket, flow)| {
                bucket * size_of::<rw_flow_bucket>()
                    + offset_of!(rw_flow_bucket, flows)
                    + flow * size_of::<rw_flow>()
            })
            .filter(|flow| self.identity(*flow)[0] != 0)
            .collect()
    }

    /// Its key, and then its client: another flow may get the key, and has another client by then.
    fn identity(&self, flow: usize) -> [u64; 2] {
        [offset_of!(rw_flow, key), offset_of!(rw_flow, client) + 8]
            .map(|field| self.records.word(flow + field).load(SeqCst))
    }

    fn set_confirmed(&self, flow: usize, confirmed: bool) {
        let way = self.records.word(flow + offset_of!(rw_flow, client_mac));
        let _ = if confirmed {
            way.fetch_or(Self::CONFIRMED, SeqCst)
        } else {
            way.fetch_and(!Self::CONFIRMED, SeqCst)
        };
    }

    fn is_confirmed(&self, flow: usize) -> bool {
        self.records.word(flow + offset_of!(rw_flow, client_mac)).load(SeqCst) & Self::CONFIRMED
            != 0
    }

    fn set_seen(&self, flow: usize, seen: u32) {
        self.records.half_word(flow + offset_of!(rw_flow, seen)).swap(seen, SeqCst);
    }

    /// Brings a flow to where it has to be saved.
    fn endanger(&self, flow: usize, from: Saved) {
        match from {
            Saved::Confirmed => self.set_confirmed(flow, false),
            Saved::Used => {
                self.set_confirmed(flow, true);
                self.set_seen(flow, self.now - 100_000);
            }
        }
    }

    /// Was it in time?
    fn save(&self, flow: usize, identity: [u64; 2], how: Saved) -> bool {
        match how {
            Saved::Confirmed => self.set_confirmed(flow, true),
            Saved::Used => self.set_seen(flow, self.now),
        }
        self.identity(flow) == identity
    }
}

/// A nanosecond each, more or less.
fn spin(rounds: i64) {
    (0..rounds).for_each(|round| _ = std::hint::black_box(round));
}

/// A claim that takes a flow's place checks again when it holds it: the flow may have come off
/// probation, or to life, since it was chosen.
#[test]
fn a_flow_that_is_saved_in_time_stays() {
    needs_root!("a_flow_that_is_saved_in_time_stays");
    const ROUNDS: usize = 1_000;
    for (full_index, how) in
        [(true, Saved::Confirmed), (false, Saved::Confirmed), (false, Saved::Used)]
    {
        let mut world = World::new();
        if full_index {
            world.change_settings(|settings| settings.index_mask = 0);
            (0..7).for_each(|_| drop(world.connect(Family::V4, ports::ACROSS)));
        } else {
            world.change(|tables| tables.nat_ports = (20_000, 1));
        }
        world.open(Family::V4, TCP, ports::ACROSS);
        let flows = Flows { records: Mapping::new(world.map("flows")), now: world.now() };
        let fits = |flow: &usize| !full_index || !flows.is_confirmed(*flow);
        // The flow, who it is, and whether it was saved.
        let endangered = Mutex::new((0, [0; 2], false));
        // How long after the other CPU has begun: about as late as it can be. Negative: before.
        let wait = AtomicI64::new(1_000);
        let held = AtomicUsize::new(0);
        on_two_cpus(2 * ROUNDS + 1, |cpu, step| match (cpu, step % 2) {
            (0, 0) => {
                let (flow, identity, saved) = *endangered.lock().unwrap();
                if saved {
                    held.fetch_add(1, Relaxed);
                    assert_eq!(flows.identity(flow), identity, "{full_index} {how:?}, step {step}");
                }
                if step > 0 {
                    flows.set_confirmed(flow, false);
                }
                let flow = *flows.used(&world).iter().find(|flow| fits(flow)).unwrap();
                flows.endanger(flow, how);
                *endangered.lock().unwrap() = (flow, flows.identity(flow), false);
            }
            (0, _) => {
                let client = (Family::V4.nth_client(step as u16), 9).into();
                let syn = Frame::tcp(client, (Family::V4.vip(), ports::ACROSS).into(), SYN);
                spin(-wait.load(Relaxed));
                world.root(FRONT).run(&syn.bytes(), &mut Vec::new()).unwrap();
            }
            (_, 0) => (),
            _ => {
                let mut endangered = endangered.lock().unwrap();
                spin(wait.load(Relaxed));
                endangered.2 = flows.save(endangered.0, endangered.1, how);
                let more = Random::new(step as u64).below(500) as i64;
                wait.fetch_add(if endangered.2 { more } else { -more }, Relaxed);
            }
        });
        println!("{full_index} {how:?}: {held:?} of {ROUNDS} were saved in time, {wait:?} rounds");
    }
}

/// Services that come and go, and their ranges, are written where no packet looks: each finds its
/// own, all the time.
#[test]
fn no_packet_gets_another_services_row() {
    needs_root!("no_packet_gets_another_services_row");
    const ROUNDS: usize = 300;
    let mut world = World::new();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let request = flow.next(ACK).bytes();
    let all = world.tables.services.clone();
    let ours = world.service(Family::V4, TCP, ports::ACROSS).row.id;
    let root = world.root(FRONT).another();
    let done = AtomicBool::new(false);
    let packets = std::thread::scope(|scope| {
        let feeding = scope.spawn(|| {
            pin(1);
            let mut packets = 0;
            while !done.load(Acquire) {
                let verdict = root.run(&request, &mut Vec::new()).unwrap();
                assert_eq!(verdict, Verdict::Redirect, "packet {packets}");
                packets += 1;
            }
            packets
        });
        for round in 0..ROUNDS {
            let stays = |id: u16| id == ours || usize::from(id) % 3 != round % 3;
            world.change(|tables| {
                tables.services = all.iter().filter(|row| stays(row.id)).cloned().collect();
                let own = tables.services.iter_mut().find(|row| row.id == ours).unwrap();
                if round % 2 == 0 {
                    (own.key.port, own.key.last_port) = (own.key.port & !7, own.key.port | 7);
                }
            });
        }
        done.store(true, Release);
        feeding.join().unwrap()
    });
    println!("{packets} packets");
}
