use proptest::prelude::*;

use crate::{Costs, Limit, Machine, Road, Work, Workload, size};

/// Round figures, so that results can be reckoned by hand.
const COSTS: &str = r#"
machine = "of the tests"
[connections]
kernel = { ns = 10000, softirq_ns = 4000, from = "a" }
[answer]
kernel = { ns = 3000, softirq_ns = 1200, from = "b" }
tuned-kernel = { ns = 1500, softirq_ns = 900, from = "b" }
af-xdp = { ns = 1000, from = "b" }
dpdk = { ns = 800, elsewhere = true, from = "b" }
[forward]
kernel = { ns = 2000, softirq_ns = 2000, from = "c" }
xdp = { ns = 500, softirq_ns = 500, from = "c" }
[drop]
kernel = { ns = 1500, softirq_ns = 1500, from = "d" }
xdp = { ns = 500, softirq_ns = 500, from = "d" }
[established]
bytes = 3000
from = "e"
[time_wait]
bytes = 300
from = "e"
[flow]
bytes = 80
from = "f"
"#;

fn costs() -> Costs {
    Costs::parse(COSTS).unwrap()
}

fn workload(work: Work) -> Workload {
    Workload {
        work,
        packets_pps: 0.0,
        packet_bytes: 100,
        requests_per_s: 0.0,
        connections: 0,
        messages_per_hour: 0.0,
        state_bytes: 0,
        time_wait: 0,
        destinations: None,
        attack_pps: 0.0,
        machine: Machine { cores: 16, memory_bytes: 128 << 30, link_bits: 10_000_000_000 },
        share: 0.25,
        busy: 0.6,
    }
}

#[test]
fn the_road_follows_the_rate() {
    // 16 cores x 0.25 x 0.6 = 2.4 seconds of processor time a second.
    for (pps, want, machines) in [
        (1e3, Road::Kernel, 2),
        (799e3, Road::Kernel, 2),
        (801e3, Road::TunedKernel, 2),
        (1.6e6, Road::TunedKernel, 2),
        (1.61e6, Road::AfXdp, 2),
        (2.9e6, Road::Dpdk, 2),
        // Too much for one machine on any road: the one that takes the fewest.
        (9.0e6, Road::Dpdk, 4),
    ] {
        let workload = Workload { packets_pps: pps, ..workload(Work::Answer) };
        let answer = size(&workload, &costs()).unwrap();
        assert_eq!((answer.road, answer.machines), (want, machines), "{pps}");
    }
}

#[test]
fn what_is_forwarded_takes_xdp_early() {
    let workload =
        Workload { packets_pps: 1.5e6, connections: 1_000_000, ..workload(Work::Forward) };
    let answer = size(&workload, &costs()).unwrap();
    assert_eq!(answer.road, Road::Xdp);
    assert!((answer.demand.cores - 1.25).abs() < 1e-9);
    assert!((answer.demand.kernel_bytes - 80e6).abs() < 1e-9);
    assert_eq!(answer.nic_queues, 2);
}

#[test]
fn the_largest_demand_counts_machines() {
    let push = Workload {
        connections: 100_000_000,
        messages_per_hour: 6.0,
        state_bytes: 20_000,
        ..workload(Work::Connections)
    };
    let answer = size(&push, &costs()).unwrap();
    // 100 M x 23 kB = 2.3 TB, over 0.8 x 128 GiB a machine.
    assert_eq!((answer.demand.limit, answer.demand.machines), (Limit::Memory, 21));
    // Messages: 166 667/s x 10 us / 0.6.
    assert!((answer.demand.cores - 2.7778).abs() < 1e-3);
    let half = answer.changes.iter().find(|change| change.what == "half the state of a connection");
    assert_eq!(half.unwrap().machines, 13);

    let wide = Workload { packets_pps: 1e6, packet_bytes: 1500, ..workload(Work::Forward) };
    let answer = size(&wide, &costs()).unwrap();
    // 1 M x 1538 x 8 bits over 0.7 x 10 Gbit/s.
    assert_eq!((answer.demand.limit, answer.demand.machines), (Limit::Bandwidth, 2));
}

#[test]
fn an_attack_takes_cores_where_it_dies() {
    let workload = Workload { packets_pps: 200e3, attack_pps: 4.8e6, ..workload(Work::Answer) };
    let answer = size(&workload, &costs()).unwrap();
    assert!((answer.demand.attack_cores - 4.0).abs() < 1e-9);
    assert!(answer.notes.iter().any(|note| note.contains("12.0 cores")), "{:?}", answer.notes);
}

#[test]
fn ports_run_out_towards_one_destination() {
    for (sockets, destinations, want) in [
        (20_000, 1, "no harm"),
        (25_000, 1, "slows down"),
        (30_000, 1, "EADDRNOTAVAIL"),
        (30_000, 2, "15000 of 28232 ports"),
    ] {
        let workload = Workload {
            time_wait: sockets,
            destinations: Some(destinations),
            ..workload(Work::Connections)
        };
        let answer = size(&workload, &costs()).unwrap();
        assert!(answer.notes.iter().any(|note| note.contains(want)), "{:?}", answer.notes);
    }
}

#[test]
fn contradictions_are_told() {
    let some = |work, change: fn(&mut Workload)| {
        let mut workload = Workload { packets_pps: 1e6, ..workload(work) };
        change(&mut workload);
        workload
    };
    for (workload, want) in [
        (some(Work::Answer, |w| w.packets_pps = 0.0), "nothing to size"),
        (some(Work::Answer, |w| w.requests_per_s = 2e6), "fewer packets than requests"),
        (some(Work::Answer, |w| w.messages_per_hour = 1.0), "no connections"),
        (some(Work::Answer, |w| w.state_bytes = 1), "no connections"),
        (some(Work::Answer, |w| w.time_wait = 1), "no TIME_WAIT"),
        (some(Work::Forward, |w| w.requests_per_s = 1.0), "not answered"),
        (some(Work::Forward, |w| w.packet_bytes = 19), "19 bytes"),
        (some(Work::Forward, |w| w.packets_pps = f64::NAN), "out of range"),
        (some(Work::Forward, |w| w.packets_pps = -1.0), "out of range"),
        (some(Work::Forward, |w| w.share = 0.0), "parts of one"),
        (some(Work::Forward, |w| w.busy = 1.1), "parts of one"),
        (some(Work::Forward, |w| w.machine.cores = 0), "no such machine"),
        (some(Work::Connections, |w| w.destinations = Some(0)), "no destination"),
    ] {
        let error = size(&workload, &costs()).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn costs_are_checked() {
    assert!(Costs::reference().is_ok());
    for (from, to, want) in [
        ("ns = 3000", "ns = 0", "not positive"),
        ("ns = 3000", "ns = inf", "not positive"),
        ("softirq_ns = 1200", "softirq_ns = 3001", "not positive"),
        ("bytes = 80", "bytes = -1", "not positive"),
        ("[flow]", "[floww]", "floww"),
        ("kernel = { ns = 2000, softirq_ns = 2000, from = \"c\" }", "", "missing"),
    ] {
        let error = Costs::parse(&COSTS.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("--calibrate"), "{error}");
    }
}

proptest! {
    /// More of anything never takes fewer machines, and every figure is one.
    #[test]
    fn more_never_takes_fewer(pps in 0.0..1e8, attack in 0.0..1e8, flows in 0u64..100_000_000, more in 1.0..10.0) {
        let less = Workload { packets_pps: pps, attack_pps: attack, connections: flows + 1, ..workload(Work::Forward) };
        let more = Workload {
            packets_pps: pps * more,
            attack_pps: attack * more,
            connections: ((flows + 1) as f64 * more) as u64,
            ..less.clone()
        };
        let (less, more) = (size(&less, &costs()).unwrap(), size(&more, &costs()).unwrap());
        prop_assert!(more.machines >= less.machines);
        prop_assert!(less.demand.machines >= 1 && less.lines.iter().all(|line| line.value.is_finite()));
    }
}
