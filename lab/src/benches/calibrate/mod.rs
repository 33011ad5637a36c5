//! The costs of packets, messages and sockets on this machine: `ringway-lab size --calibrate`.
//!
//! The cost of an I/O path, up to the point where a program gets the packet, is the processor time
//! of the thread that feeds it ([`feed`]). All paths begin at a frame in memory; the work of a veth
//! and of other processes is not included. A program that answers or forwards is `bench engine`'s,
//! whose processor is its own; a message is [`message`]'s.

mod clock;
mod feed;
mod figure;
mod message;

use ringway_sizing::{BytesCost, Costs, IoPath, NsCost};

use self::clock::Others;
use self::feed::Feed;
use self::figure::Figure;
use crate::benches::engine::report::EngineFigures;
use crate::benches::engine::{Case, Engine};
use crate::benches::packet::report::PacketFigures;
use crate::benches::packet::{Ip, Packet, PacketPath};
use crate::benches::tcp::memory::report::MemoryFigures;
use crate::benches::tcp::memory::{Side, SocketState, TcpMemory};
use crate::demo::clean::guarded;
use crate::harness::machine::Machine;
use crate::harness::median::rounded;
use crate::harness::{Harness, Progress, Repeated, Rounds, run};
use crate::{Result, needs_root};

/// Rounds of what is quick, and of what is not.
const ROUNDS: u32 = 7;
const FEW_ROUNDS: u32 = 3;
/// Flows of `bench packet`.
const FLOWS: u32 = 10_000;

/// Measures, and puts what was found in the place of the reference's figures; what could not be
/// measured here stays as it is, its source with it, and is said. Needs root.
///
/// # Errors
/// Nothing can be measured here.
pub fn calibrate(reference: Costs, progress: Progress<'_>) -> Result<Costs> {
    needs_root("size --calibrate")?;
    let others = Others::watch();
    let mut figures = Figures::default();
    guarded(|| figures.feed(&mut Harness::new(&[], progress)))?;
    let rounds = Rounds { count: ROUNDS };
    let nat = Packet { only: vec![PacketPath::Nat], ip: vec![Ip::V4], flows: vec![FLOWS], rounds };
    figures.programs(&run(&nat, env!("CARGO_PKG_VERSION"), progress)?.figures);
    let repeated = Repeated { rounds: Rounds { count: FEW_ROUNDS }, seconds: 2 };
    let engine = Engine { only: vec![Case::UdpEcho, Case::AfXdpL2fwd], repeated };
    figures.engine(&run(&engine, env!("CARGO_PKG_VERSION"), progress)?.figures);
    let only = vec![SocketState::Idle, SocketState::TimeWait];
    let memory = TcpMemory { only, connections: None, rounds: Rounds { count: FEW_ROUNDS } };
    figures.memory(&run(&memory, env!("CARGO_PKG_VERSION"), progress)?.figures);
    let costs = figures.costs(reference, &Machine::with(&[]));
    Ok(Costs { others: others.cores().map(|cores| rounded(cores, 2)), ..costs })
}

/// Nanoseconds of a packet, bytes of a socket; none if it could not be measured here.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    to_socket: Option<Figure>,
    one_by_one: Option<Figure>,
    in_batches: Option<Figure>,
    to_ring: Option<Figure>,
    dropped_by_kernel: Option<Figure>,
    forwarded_by_kernel: Option<Figure>,
    dropped_by_xdp: Option<Figure>,
    message: Option<Figure>,
    echo_by_sockets: Option<Figure>,
    echo_by_engine: Option<Figure>,
    forwarded_by_engine: Option<Figure>,
    nat: Option<Figure>,
    established: Option<Figure>,
    connected: Option<Figure>,
    time_wait: Option<Figure>,
}

impl Figures {
    fn feed(&mut self, harness: &mut Harness<'_>) -> Result<()> {
        let (mut rounds, mut messages) = (Vec::new(), Vec::new());
        harness.repeat(ROUNDS, |harness, _| {
            let message = message::round()?;
            messages.push(message);
            harness.say(format!("message {message:.0} ns"));
            match feed::round(harness) {
                Ok(round) => {
                    harness.say(round.in_words());
                    rounds.push(round);
                }
                Err(error) => harness.skip(&Feed::Frames, error.to_string()),
            }
            Ok(())
        })?;
        let of =
            |figure: fn(&feed::Round) -> Option<f64>| Figure::of(rounds.iter().filter_map(figure));
        self.to_socket = of(|round| Some(round.to_socket));
        self.one_by_one = of(|round| Some(round.one_by_one));
        self.in_batches = of(|round| Some(round.in_batches));
        self.to_ring = of(|round| round.to_ring);
        self.forwarded_by_kernel = of(|round| round.forwarded_by_kernel);
        self.dropped_by_kernel = of(|round| Some(round.dropped_by_kernel));
        self.dropped_by_xdp = of(|round| Some(round.dropped_by_xdp));
        self.message = Figure::of(messages);
        Ok(())
    }

    fn programs(&mut self, figures: &PacketFigures) {
        let rounds =
            figures.paths.first().map(|row| row.net_ns_by_round.iter().map(|ns| *ns as f64));
        self.nat = rounds.and_then(Figure::of);
    }

    fn engine(&mut self, figures: &EngineFigures) {
        let case = |case: Case| figures.cases.iter().find(|row| row.name == case);
        let ours = |name: Case| Figure::per_second(&case(name)?.ringway_pps_by_round);
        self.echo_by_sockets =
            case(Case::UdpEcho).and_then(|row| Figure::per_second(&row.peer_pps_by_round));
        self.echo_by_engine = ours(Case::UdpEcho);
        self.forwarded_by_engine = ours(Case::AfXdpL2fwd);
    }

    fn memory(&mut self, figures: &MemoryFigures) {
        let bytes = |state: SocketState, side: Side| {
            let row = figures.states.iter().find(|row| row.state == state && row.side == side)?;
            let middle = row.bytes_per_socket as f64;
            Some(Figure { middle, apart: middle * row.spread_percent.unwrap_or(0.0) / 100.0 })
        };
        self.established = bytes(SocketState::Idle, Side::Server);
        self.connected = bytes(SocketState::Idle, Side::Client);
        self.time_wait = bytes(SocketState::TimeWait, Side::Client);
    }

    fn costs(&self, reference: Costs, machine: &Machine) -> Costs {
        let mut costs = reference;
        costs.connections.extend(self.messages());
        costs.answer.extend(self.answers());
        costs.forward.extend(self.forwards());
        costs.drop.extend(self.drops());
        let sizes = [
            (&mut costs.established, self.established),
            (&mut costs.connected, self.connected),
            (&mut costs.time_wait, self.time_wait),
        ];
        for (cost, figure) in sizes {
            if let Some(figure) = figure.filter(|figure| figure.middle > 0.0) {
                let (bytes, spread) = (figure.middle, Some(rounded(figure.spread(), 3)));
                *cost = BytesCost { bytes, spread, from: "bench tcp-memory".to_owned() };
            }
        }
        costs.machine = machine.to_string();
        costs
    }

    fn messages(&self) -> Option<(IoPath, NsCost)> {
        let message = self.message?;
        // Of TCP it cannot be told apart: over lo all is one thread's.
        let softirq = self.to_socket.map_or(0.0, |ns| ns.middle.min(message.middle));
        let from = "a message over lo, 64 connections in turn: epoll, read, write, and TCP both ways; softirq as of a datagram to a socket";
        Some((IoPath::Kernel, cost(message, softirq, from)))
    }

    /// The program's own time is what its processor, which it keeps to itself and is busy with,
    /// took for a packet; what feeds it is beside.
    fn answers(&self) -> impl Iterator<Item = (IoPath, NsCost)> {
        let tuned = self.to_socket.zip(self.echo_by_sockets).map(|(fed, echo)| {
            let from =
                "bench engine, udp-echo by recvmmsg and sendmmsg; a frame from memory to a socket";
            (IoPath::TunedKernel, cost(echo.and(fed), fed.middle, from))
        });
        let plain =
            self.to_socket.zip(self.echo_by_sockets).zip(self.one_by_one.zip(self.in_batches));
        let plain = plain.map(|((fed, echo), (one, batches))| {
            // A call for each packet, both ways, instead of one for many.
            let calls = one.more_than(batches, 2.0);
            let from =
                "as tuned-kernel, and a call for each packet both ways, recvfrom less recvmmsg";
            (IoPath::Kernel, cost(echo.and(fed).and(calls), fed.middle, from))
        });
        let af_xdp = self.to_ring.zip(self.echo_by_engine).map(|(fed, echo)| {
            let from = "bench engine, udp-echo by the engine in copy mode; a frame from memory to its ring";
            (IoPath::AfXdp, cost(echo.and(fed), fed.middle, from))
        });
        [plain, tuned, af_xdp].into_iter().flatten()
    }

    fn forwards(&self) -> impl Iterator<Item = (IoPath, NsCost)> {
        let kernel = self.forwarded_by_kernel.map(|nat| {
            let from = "a frame from memory through nftables' NAT of one flow, routed, up to the driver that sends";
            (IoPath::Kernel, in_softirq(nat, from))
        });
        let xdp = self.dropped_by_xdp.zip(self.nat).map(|(dropped, nat)| {
            let from = "a frame from memory to a drop by XDP, and bench packet, nat with 10 000 flows; what sends is not in it";
            (IoPath::Xdp, in_softirq(dropped.and(nat), from))
        });
        let af_xdp = self.to_ring.zip(self.forwarded_by_engine).map(|(fed, forwarded)| {
            let from = "bench engine, af_xdp-l2fwd in copy mode, sending with it; a frame from memory to its ring";
            (IoPath::AfXdp, cost(forwarded.and(fed), fed.middle, from))
        });
        [kernel, xdp, af_xdp].into_iter().flatten()
    }

    fn drops(&self) -> impl Iterator<Item = (IoPath, NsCost)> {
        let kernel = self.dropped_by_kernel.map(|dropped| {
            (IoPath::Kernel, in_softirq(dropped, "a frame from memory to a socket that is full"))
        });
        let xdp = self.dropped_by_xdp.map(|dropped| {
            let from = "a frame from memory to a drop by XDP: headers, a hash look-up of the source, the page back to its pool";
            (IoPath::Xdp, in_softirq(dropped, from))
        });
        [kernel, xdp].into_iter().flatten()
    }
}

fn cost(figure: Figure, softirq: f64, from: &str) -> NsCost {
    NsCost {
        ns: figure.middle.round().max(1.0),
        softirq_ns: softirq.round().min(figure.middle.round()),
        spread: Some(rounded(figure.spread(), 3)),
        elsewhere: false,
        from: from.to_owned(),
    }
}

fn in_softirq(figure: Figure, from: &str) -> NsCost {
    cost(figure, figure.middle, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(middle: f64, apart: f64) -> Option<Figure> {
        Some(Figure { middle, apart })
    }

    #[test]
    fn figures_take_the_references_places() {
        let figures = Figures {
            to_socket: figure(600.0, 60.0),
            one_by_one: figure(500.0, 50.0),
            in_batches: figure(300.0, 30.0),
            to_ring: figure(200.0, 0.0),
            dropped_by_kernel: figure(400.0, 40.0),
            forwarded_by_kernel: figure(800.0, 8.0),
            dropped_by_xdp: figure(60.0, 3.0),
            message: figure(4000.0, 400.0),
            echo_by_sockets: figure(5000.0, 500.0),
            echo_by_engine: figure(2500.0, 0.0),
            forwarded_by_engine: figure(2000.0, 0.0),
            nat: figure(240.0, 27.0),
            established: figure(3700.0, 37.0),
            connected: figure(3800.0, 0.0),
            time_wait: None,
        };
        let reference = Costs::reference().unwrap();
        let costs = figures.costs(reference.clone(), &Machine::with(&[]));
        let ns = |of: &std::collections::BTreeMap<IoPath, NsCost>, io_path| {
            (of[&io_path].ns, of[&io_path].softirq_ns, of[&io_path].spread.unwrap())
        };
        assert_eq!(ns(&costs.answer, IoPath::TunedKernel), (5600.0, 600.0, 0.1));
        assert_eq!(ns(&costs.answer, IoPath::Kernel), (6000.0, 600.0, 0.12));
        assert_eq!(ns(&costs.answer, IoPath::AfXdp), (2700.0, 200.0, 0.0));
        assert_eq!(costs.answer[&IoPath::Dpdk], reference.answer[&IoPath::Dpdk]);
        // The cost of a veth is in neither: dropping by XDP consists of an XDP program and its
        // input.
        assert_eq!(ns(&costs.drop, IoPath::Xdp), (60.0, 60.0, 0.05));
        assert_eq!(ns(&costs.drop, IoPath::Kernel), (400.0, 400.0, 0.1));
        assert_eq!(ns(&costs.forward, IoPath::Kernel), (800.0, 800.0, 0.01));
        assert_eq!(ns(&costs.forward, IoPath::Xdp), (300.0, 300.0, 0.1));
        assert_eq!(ns(&costs.forward, IoPath::AfXdp), (2200.0, 200.0, 0.0));
        assert_eq!(ns(&costs.connections, IoPath::Kernel), (4000.0, 600.0, 0.1));
        assert_eq!((costs.established.bytes, costs.established.spread), (3700.0, Some(0.01)));
        assert_eq!((costs.connected.bytes, &costs.time_wait), (3800.0, &reference.time_wait));
        // It can read its own file.
        assert_eq!(Costs::parse(&costs.to_toml().unwrap()).unwrap(), costs);
    }

    #[test]
    fn what_was_not_measured_stays() {
        let reference = Costs::reference().unwrap();
        let costs = Figures::default().costs(reference.clone(), &Machine::with(&[]));
        assert_eq!(Costs { machine: reference.machine.clone(), ..costs }, reference);
    }

    /// The real thing. How long it takes depends on what else the machine does.
    #[test]
    fn paths_from_memory_on() {
        if !ringway_testnet::root_or_skip("calibrate::paths_from_memory_on") {
            return;
        }
        let round =
            feed::round(&mut Harness::new(&[], &mut |line: &str| eprintln!("{line}"))).unwrap();
        eprintln!("{}", round.in_words());
        let feed::Round {
            dropped_by_xdp, dropped_by_kernel, forwarded_by_kernel, to_socket, ..
        } = round;
        let feed::Round { one_by_one, in_batches, to_ring, .. } = round;
        let known = [dropped_by_xdp, dropped_by_kernel, to_socket, one_by_one, in_batches];
        let all = known.into_iter().chain(forwarded_by_kernel).chain(to_ring);
        assert!(to_ring.is_some(), "{round:?}");
        assert!(all.chain([message::round().unwrap()]).all(|ns| ns > 0.0), "{round:?}");
    }
}
