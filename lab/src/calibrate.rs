//! What packets, messages and sockets cost on this machine: `ringway size --calibrate`.

use std::time::Duration;

use ringway_sizing::{BytesCost, Costs, NsCost, Road};

use crate::engine::{self, Case};
use crate::kernel_path::{self, Group, Style};
use crate::machine::Machine;
use crate::packet::{self, Ip, Path};
use crate::tcp::memory::{self, Side, State};
use crate::{Result, needs_root};

/// Packets a second for each style of receiving: so many that a receiver hardly sleeps in between.
const RATE: u32 = 200_000;
/// Flows of `bench packet`.
const FLOWS: u32 = 10_000;

/// Measures, and puts what was found in the place of the reference's figures; what could not be measured here stays as it is, its source
/// with it. Needs root.
///
/// # Errors
/// Nothing can be measured here.
pub fn run_guarded(reference: Costs, mut progress: impl FnMut(&str) + Send) -> Result<Costs> {
    needs_root("size --calibrate")?;
    let options = kernel_path::Options {
        rate: RATE,
        only: vec![Group::Receive],
        ..kernel_path::Options::default()
    };
    let path = kernel_path::run_guarded(&options, &mut progress)?;
    let options = engine::Options {
        rounds: 3,
        duration: Duration::from_secs(2),
        only: vec![Case::UdpEcho, Case::AfXdpL2fwd],
        ..engine::Options::default()
    };
    let engine = engine::run_guarded(&options, &mut progress)?;
    let options =
        packet::Options { rounds: 3, only: vec![Path::Nat], ip: vec![Ip::V4], flows: vec![FLOWS] };
    let packet = packet::run(&options, &mut progress)?;
    let options = memory::Options {
        rounds: 1,
        only: vec![State::Idle, State::TimeWait],
        ..memory::Options::default()
    };
    let memory = memory::run_guarded(&options, &mut progress)?;
    let figures = Figures::of(&path, &engine, &packet, &memory);
    Ok(figures.costs(reference, &Machine::here()))
}

/// Nanoseconds of receiving a packet.
#[derive(Clone, Copy, Debug)]
struct Received {
    /// The receiver's own, user and system.
    thread: f64,
    /// All processors'.
    softirq: f64,
}

/// What was found; none where it could not be measured here.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    one_by_one: Option<Received>,
    in_batches: Option<Received>,
    by_af_xdp: Option<Received>,
    dropped_by_xdp: Option<Received>,
    /// Answers a second of a processor.
    echo_by_sockets: Option<f64>,
    echo_by_engine: Option<f64>,
    /// Packets a second of a processor.
    forwarded_by_engine: Option<f64>,
    /// Nanoseconds of the gateway's programs.
    nat: Option<f64>,
    /// Bytes.
    established: Option<f64>,
    time_wait: Option<f64>,
}

impl Figures {
    fn of(
        path: &kernel_path::Report,
        engine: &engine::Report,
        packet: &packet::Report,
        memory: &memory::Report,
    ) -> Figures {
        let received = |style: Style| {
            let row = path.rows.iter().find(|row| row.case == style.name())?;
            Some(Received { thread: row.user_ns + row.system_ns, softirq: row.softirq_ns? })
        };
        let case = |case: Case| engine.cases.iter().find(|row| row.name == case);
        let ours = |name: Case| case(name).map(|row| row.ringway_pps as f64);
        let bytes = |state: State, side: Side| {
            let row = memory.states.iter().find(|row| row.state == state && row.side == side)?;
            Some(row.bytes_per_socket as f64)
        };
        Figures {
            one_by_one: received(Style::Blocking),
            in_batches: received(Style::Recvmmsg),
            by_af_xdp: received(Style::AfXdp),
            dropped_by_xdp: received(Style::Xdp),
            echo_by_sockets: case(Case::UdpEcho).and_then(|row| row.peer_pps).map(|pps| pps as f64),
            echo_by_engine: ours(Case::UdpEcho),
            forwarded_by_engine: ours(Case::AfXdpL2fwd),
            nat: packet.paths.first().map(|row| row.net_ns as f64),
            established: bytes(State::Idle, Side::Server),
            time_wait: bytes(State::TimeWait, Side::Client),
        }
    }

    fn costs(&self, reference: Costs, machine: &Machine) -> Costs {
        let Costs {
            connections,
            mut answer,
            mut forward,
            mut drop,
            mut established,
            mut time_wait,
            flow,
            ..
        } = reference;
        // Softirqs are counted in steps of ten milliseconds: none at all is a measurement that was too short.
        let some = |(_, cost): &(Road, NsCost)| cost.ns > 0.0;
        answer.extend(self.answers().filter(some));
        forward.extend(self.forwards().filter(some));
        drop.extend(self.drops().filter(some));
        let sizes = [(&mut established, self.established), (&mut time_wait, self.time_wait)];
        for (cost, bytes) in sizes {
            if let Some(bytes) = bytes.filter(|bytes| *bytes > 0.0) {
                *cost = BytesCost { bytes, from: "bench tcp-memory".to_owned() };
            }
        }
        let Machine { cpu, cores, kernel, date, .. } = machine;
        let machine = format!("{cpu} of {cores} cores, Linux {kernel}, {date}");
        Costs { machine, connections, answer, forward, drop, established, time_wait, flow }
    }

    /// The program's own time is what its processor, which it keeps to itself and is busy with, took for a packet; softirq's is beside.
    fn answers(&self) -> impl Iterator<Item = (Road, NsCost)> {
        let tuned = self.in_batches.zip(self.echo_by_sockets).map(|(batches, echoes)| {
            let from =
                "bench engine, udp-echo by recvmmsg and sendmmsg; softirq of bench kernel-path";
            (Road::TunedKernel, own(1e9 / echoes, batches.softirq, from))
        });
        let plain = self.one_by_one.zip(self.in_batches).zip(self.echo_by_sockets);
        let plain = plain.map(|((one, batches), echoes)| {
            // A call for each packet, both ways, instead of one for many.
            let calls = 2.0 * (one.thread - batches.thread).max(0.0);
            let from = "as tuned-kernel, and a call for each packet both ways, recvfrom less recvmmsg of bench kernel-path";
            (Road::Kernel, own(1e9 / echoes + calls, one.softirq, from))
        });
        let af_xdp = self.by_af_xdp.zip(self.echo_by_engine).map(|(received, echoes)| {
            let from = "bench engine, udp-echo by the engine; softirq of bench kernel-path";
            (Road::AfXdp, own(1e9 / echoes, received.softirq, from))
        });
        [plain, tuned, af_xdp].into_iter().flatten()
    }

    fn forwards(&self) -> impl Iterator<Item = (Road, NsCost)> {
        let kernel = self.one_by_one.map(|received| {
            let from = "softirq of bench kernel-path, recvfrom: from the device up; what sends is not in it";
            (Road::Kernel, in_softirq(received.softirq, from))
        });
        let xdp = self.dropped_by_xdp.zip(self.nat).map(|(dropped, nat)| {
            let from = "softirq of bench kernel-path, XDP drop, and bench packet, nat with 10 000 flows; what sends is not in it";
            (Road::Xdp, in_softirq(dropped.softirq + nat, from))
        });
        let af_xdp = self.by_af_xdp.zip(self.forwarded_by_engine).map(|(received, packets)| {
            let from = "bench engine, af_xdp-l2fwd, sending with it; softirq of bench kernel-path";
            (Road::AfXdp, own(1e9 / packets, received.softirq, from))
        });
        [kernel, xdp, af_xdp].into_iter().flatten()
    }

    fn drops(&self) -> impl Iterator<Item = (Road, NsCost)> {
        let kernel = self.one_by_one.map(|received| {
            let from = "softirq of bench kernel-path, recvfrom: dropped where the socket would be";
            (Road::Kernel, in_softirq(received.softirq, from))
        });
        let xdp = self.dropped_by_xdp.map(|dropped| {
            (Road::Xdp, in_softirq(dropped.softirq, "softirq of bench kernel-path, XDP drop"))
        });
        [kernel, xdp].into_iter().flatten()
    }
}

fn own(thread: f64, softirq: f64, from: &str) -> NsCost {
    NsCost {
        ns: (thread + softirq).round(),
        softirq_ns: softirq.round(),
        elsewhere: false,
        from: from.to_owned(),
    }
}

fn in_softirq(ns: f64, from: &str) -> NsCost {
    own(0.0, ns, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(thread: f64, softirq: f64) -> Option<Received> {
        Some(Received { thread, softirq })
    }

    #[test]
    fn figures_take_the_references_places() {
        let figures = Figures {
            one_by_one: received(2500.0, 3000.0),
            in_batches: received(2000.0, 2800.0),
            by_af_xdp: received(0.0, 1500.0),
            dropped_by_xdp: received(0.0, 1000.0),
            echo_by_sockets: Some(200_000.0),
            echo_by_engine: Some(400_000.0),
            forwarded_by_engine: Some(500_000.0),
            nat: Some(200.0),
            established: Some(3700.0),
            time_wait: None,
        };
        let reference = Costs::reference().unwrap();
        let costs = figures.costs(reference.clone(), &Machine::here());
        let ns = |of: &std::collections::BTreeMap<Road, NsCost>, road| {
            (of[&road].ns, of[&road].softirq_ns)
        };
        assert_eq!(ns(&costs.answer, Road::Kernel), (5000.0 + 1000.0 + 3000.0, 3000.0));
        assert_eq!(ns(&costs.answer, Road::TunedKernel), (7800.0, 2800.0));
        assert_eq!(ns(&costs.answer, Road::AfXdp), (4000.0, 1500.0));
        assert_eq!(costs.answer[&Road::Dpdk], reference.answer[&Road::Dpdk]);
        assert_eq!(ns(&costs.forward, Road::Xdp), (1200.0, 1200.0));
        assert_eq!(ns(&costs.forward, Road::AfXdp), (3500.0, 1500.0));
        assert_eq!(ns(&costs.drop, Road::Xdp), (1000.0, 1000.0));
        assert_eq!((costs.established.bytes, &costs.time_wait), (3700.0, &reference.time_wait));
        // What it writes it can read.
        assert_eq!(Costs::parse(&costs.to_toml().unwrap()).unwrap(), costs);
    }

    #[test]
    fn what_was_not_measured_stays() {
        let reference = Costs::reference().unwrap();
        let costs = Figures::default().costs(reference.clone(), &Machine::here());
        assert_eq!(
            (costs.answer, costs.forward, costs.drop),
            (reference.answer, reference.forward, reference.drop)
        );
    }
}
