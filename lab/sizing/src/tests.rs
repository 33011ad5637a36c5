use proptest::prelude::*;

use crate::{Costs, DEFAULT_PORTS, IoPath, Limit, Machine, Unit, Work, Workload, size};

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
[connected]
bytes = 3500
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
        packets_pps: None,
        packet_bytes: 100,
        requests_per_s: 0.0,
        connections: 0,
        messages_per_hour: 0.0,
        state_bytes: 0,
        time_wait: 0,
        destinations: None,
        ports: DEFAULT_PORTS,
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
        (1e3, IoPath::Kernel, 2),
        (799e3, IoPath::Kernel, 2),
        (801e3, IoPath::TunedKernel, 2),
        (1.6e6, IoPath::TunedKernel, 2),
        (1.61e6, IoPath::AfXdp, 2),
        (2.9e6, IoPath::Dpdk, 2),
        // Too much for one machine on any path: the one that takes the fewest.
        (9.0e6, IoPath::Dpdk, 4),
    ] {
        let workload = Workload { packets_pps: Some(pps), ..workload(Work::Answer) };
        let answer = size(&workload, &costs()).unwrap();
        assert_eq!((answer.io_path, answer.machines), (want, machines), "{pps}");
    }
}

#[test]
fn what_is_forwarded_takes_xdp_early() {
    let workload =
        Workload { packets_pps: Some(1.5e6), connections: 1_000_000, ..workload(Work::Forward) };
    let answer = size(&workload, &costs()).unwrap();
    assert_eq!(answer.io_path, IoPath::Xdp);
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

    let wide = Workload { packets_pps: Some(1e6), packet_bytes: 1500, ..workload(Work::Forward) };
    let answer = size(&wide, &costs()).unwrap();
    // 1 M x 1538 x 8 bits over 0.7 x 10 Gbit/s.
    assert_eq!((answer.demand.limit, answer.demand.machines), (Limit::Bandwidth, 2));
}

#[test]
fn an_attack_takes_cores_where_it_dies() {
    let workload =
        Workload { packets_pps: Some(200e3), attack_pps: 4.8e6, ..workload(Work::Answer) };
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
        (30_000, 2, "15000 of 28232 local ports (32768-60999)"),
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
fn what_is_not_reckoned_is_told() {
    let notes = |work| {
        let connections = if work == Work::Connections { 1000 } else { 0 };
        let packets_pps = (connections == 0).then_some(1e6);
        let workload = Workload { connections, packets_pps, ..workload(work) };
        size(&workload, &costs()).unwrap().notes.concat()
    };
    for work in [Work::Connections, Work::Answer, Work::Forward] {
        assert!(notes(work).contains("the bytes of a packet cost bandwidth alone"), "{work:?}");
        assert_eq!(notes(work).contains("TLS"), work == Work::Connections, "{work:?}");
    }
}

#[test]
fn no_xdp_stands_before_dpdk() {
    let workload = Workload {
        packets_pps: Some(2e6),
        attack_pps: 0.6e6,
        machine: Machine { cores: 32, ..workload(Work::Answer).machine },
        ..workload(Work::Answer)
    };
    let answer = size(&workload, &costs()).unwrap();
    assert_eq!(answer.io_path, IoPath::TunedKernel);
    let dpdk = answer.io_paths.iter().find(|io_path| io_path.io_path == IoPath::Dpdk).unwrap();
    // 0.6 M/s x 800 ns / 0.6, not XDP's 500.
    assert!((dpdk.demand.as_ref().unwrap().attack_cores - 0.8).abs() < 1e-9, "{dpdk:?}");
    assert!((answer.demand.attack_cores - 0.5).abs() < 1e-9);
}

#[test]
fn a_connection_from_here_is_a_clients() {
    let kernel = |destinations| {
        let workload = Workload { connections: 1000, destinations, ..workload(Work::Connections) };
        size(&workload, &costs()).unwrap().demand.kernel_bytes
    };
    assert_eq!((kernel(None), kernel(Some(1))), (3e6, 3.5e6));
}

#[test]
fn each_machine_has_ports_of_its_own() {
    let used = |change: fn(&mut Workload)| {
        let mut workload =
            Workload { connections: 40_000, destinations: Some(1), ..workload(Work::Connections) };
        change(&mut workload);
        let answer = size(&workload, &costs()).unwrap();
        let line = answer.lines.into_iter().find(|line| line.unit == Unit::Ports).unwrap();
        (line.value, line.from, answer.notes.concat())
    };
    // One has too few: two machines, half each.
    let (ports, from, notes) = used(|_| ());
    assert_eq!((ports, from.contains("default")), (20_000.0, true));
    assert!(notes.contains("EADDRNOTAVAIL") && notes.contains("gives 64512"), "{notes}");
    // Two machines by memory: half each.
    let (ports, ..) = used(|w| (w.state_bytes, w.machine.memory_bytes) = (16 << 10, 1 << 29));
    assert_eq!(ports, 20_000.0);
    let (ports, from, notes) = used(|w| w.ports = (1024, 65_535));
    assert_eq!((ports, from.as_str()), (40_000.0, "as given"));
    assert!(notes.contains("40000 of 64512") && notes.contains("no harm"), "{notes}");
}

#[test]
fn doubtful_costs_are_told() {
    assert!(costs().doubts().is_empty());
    let text = COSTS
        .replace("ns = 3000", "spread = 0.26, ns = 3000")
        .replace("bytes = 80", "spread = 0.25\nbytes = 80")
        .replacen('\n', "\nothers = 0.7\n", 1);
    let costs = Costs::parse(&text).unwrap();
    let doubts = costs.doubts();
    assert_eq!(doubts.len(), 2, "{doubts:?}");
    assert!(doubts[0].contains("answer by kernel are 26 % apart"), "{doubts:?}");
    assert!(doubts[1].contains("0.7 processors"), "{doubts:?}");
    let workload = Workload { packets_pps: Some(1.0), ..workload(Work::Answer) };
    assert_eq!(size(&workload, &costs).unwrap().doubts, doubts);
}

/// Every figure has one unit and a source; paths carry what they were calculated from.
#[test]
fn every_number_has_its_source() {
    let workload = Workload {
        requests_per_s: 10.0,
        connections: 1000,
        state_bytes: 10,
        time_wait: 10,
        destinations: Some(2),
        attack_pps: 1e6,
        ..workload(Work::Connections)
    };
    let answer = size(&workload, &costs()).unwrap();
    let units: Vec<Unit> = answer.lines.iter().map(|line| line.unit).collect();
    for unit in
        [Unit::Cores, Unit::Bytes, Unit::BitsPerSecond, Unit::Ports, Unit::Machines, Unit::Queues]
    {
        assert!(units.contains(&unit), "{unit:?}");
    }
    assert!(answer.lines.iter().all(|line| !line.how.is_empty() && !line.from.is_empty()));
    for io_path in &answer.io_paths {
        assert_eq!(io_path.cost.is_some(), io_path.demand.is_some());
        assert_eq!(io_path.machines, io_path.demand.as_ref().map(|demand| demand.machines + 1));
    }
    // The formula gives the result that is shown.
    assert_eq!(answer.lines[0].how, "10.00/s x 10000 ns / 0.6 busy");
    let machines = answer.lines.iter().find(|line| line.unit == Unit::Machines).unwrap();
    assert!(machines.how.starts_with("cores 0.208 of 16 x 0.25"), "{}", machines.how);
}

#[test]
fn contradictions_are_told() {
    let some = |work, change: fn(&mut Workload)| {
        let mut workload = Workload { packets_pps: Some(1e6), ..workload(work) };
        change(&mut workload);
        workload
    };
    for (workload, want) in [
        (some(Work::Answer, |w| w.packets_pps = None), "nothing to size"),
        (some(Work::Answer, |w| w.requests_per_s = 2e6), "fewer packets than requests"),
        (some(Work::Answer, |w| w.messages_per_hour = 1.0), "no connections"),
        (some(Work::Answer, |w| w.state_bytes = 1), "no connections"),
        (some(Work::Answer, |w| w.time_wait = 1), "no TIME_WAIT"),
        (some(Work::Forward, |w| w.requests_per_s = 1.0), "not answered"),
        (some(Work::Forward, |w| w.packet_bytes = 19), "19 bytes"),
        (some(Work::Forward, |w| w.packets_pps = Some(f64::NAN)), "out of range"),
        (some(Work::Forward, |w| w.packets_pps = Some(-1.0)), "out of range"),
        (some(Work::Forward, |w| w.share = 0.0), "parts of one"),
        (some(Work::Forward, |w| w.busy = 1.1), "parts of one"),
        (some(Work::Forward, |w| w.machine.cores = 0), "no such machine"),
        (some(Work::Connections, |w| w.destinations = Some(0)), "no destination"),
        (some(Work::Connections, |w| w.ports = (60_999, 32_768)), "no ports"),
        (some(Work::Connections, |w| w.ports = (0, 32_768)), "no ports"),
        (
            some(Work::Answer, |w| (w.packets_pps, w.requests_per_s) = (Some(0.0), 1.0)),
            "fewer packets",
        ),
        (some(Work::Forward, |w| w.packets_pps = Some(1e13)), "out of range"),
        (some(Work::Connections, |w| w.connections = u64::MAX), "out of range"),
        (
            some(Work::Connections, |w| (w.connections, w.messages_per_hour) = (1 << 39, 1e12)),
            "packets a second are out of range",
        ),
        (some(Work::Connections, |w| w.time_wait = u64::MAX), "out of range"),
        (
            some(Work::Connections, |w| (w.connections, w.state_bytes) = (1, u64::MAX)),
            "out of range",
        ),
        (
            some(Work::Connections, |w| (w.connections, w.state_bytes) = (1 << 39, 1 << 30)),
            "more memory",
        ),
        (some(Work::Forward, |w| w.busy = f64::MIN_POSITIVE), "parts of one"),
        (some(Work::Forward, |w| w.machine.memory_bytes = u64::MAX), "no such machine"),
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
        ("ns = 3000", "ns = 1e300", "absurd"),
        ("ns = 3000", "spread = -1, ns = 3000", "absurd"),
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
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// More of anything never takes fewer machines, and every figure is one.
    #[test]
    fn more_never_takes_fewer(pps in 0.0..1e8, attack in 0.0..1e8, flows in 0u64..100_000_000, more in 1.0..10.0) {
        let less = Workload { packets_pps: Some(pps), attack_pps: attack, connections: flows + 1, ..workload(Work::Forward) };
        let more = Workload {
            packets_pps: Some(pps * more),
            attack_pps: attack * more,
            connections: ((flows + 1) as f64 * more) as u64,
            ..less.clone()
        };
        let (less, more) = (size(&less, &costs()).unwrap(), size(&more, &costs()).unwrap());
        prop_assert!(more.machines >= less.machines);
        prop_assert!(less.demand.machines >= 1 && less.lines.iter().all(|line| line.value.is_finite()));
    }

    /// Any question gets an answer in numbers, or an error with its remedy.
    #[test]
    fn anything_is_answered(
        work in prop_oneof![Just(Work::Connections), Just(Work::Answer), Just(Work::Forward)],
        packets in prop::option::of(rate()),
        rates in [rate(), rate(), rate()],
        counts in [count(), count(), count()],
        destinations in prop::option::of(count()),
        packet_bytes in any::<u32>(),
        ports in any::<(u16, u16)>(),
        machine in (any::<u32>(), count(), count()),
        parts in [part(), part()],
    ) {
        let (cores, memory_bytes, link_bits) = machine;
        let [requests_per_s, messages_per_hour, attack_pps] = rates;
        let [connections, state_bytes, time_wait] = counts;
        let workload = Workload {
            work,
            packets_pps: packets,
            packet_bytes: 20 + packet_bytes % 70_000,
            requests_per_s,
            connections,
            messages_per_hour,
            state_bytes,
            time_wait,
            destinations,
            ports,
            attack_pps,
            machine: Machine { cores: cores % 70_000, memory_bytes, link_bits },
            share: parts[0],
            busy: parts[1],
        };
        match size(&workload, &costs()) {
            Ok(answer) => {
                let json = serde_json::to_value(&answer).unwrap();
                let told = json.to_string();
                prop_assert!(!told.contains("NaN") && !told.contains("inf/") && !told.contains(" inf"), "{told}");
                prop_assert!(answer.machines > answer.demand.machines && answer.nic_queues >= 1);
                // Of numbers that are none, JSON makes null.
                for line in &answer.lines {
                    prop_assert!(line.value.is_finite() && (0.0..1.8e19).contains(&line.value), "{line:?}");
                }
                let asked = answer.demand.asked;
                prop_assert!([asked.cores, asked.memory, asked.bandwidth].iter().all(|part| part.is_finite()));
            }
            Err(error) => {
                let told = error.to_string();
                prop_assert!(told.contains("; "), "{told}");
            }
        }
    }
}

fn rate() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => Just(0.0),
        4 => 0.0..1e13_f64,
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(f64::MAX), Just(f64::MIN_POSITIVE)],
    ]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0_u64), 8 => (0_u32..50).prop_map(|bits| 1_u64 << bits), 1 => any::<u64>()]
}

fn part() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.01..1.0_f64, 1 => prop_oneof![Just(0.0), Just(f64::NAN), Just(1e-300)]]
}

#[test]
fn machines_that_there_are_anyway_have_cores() {
    // Eleven for the link: none of them has much to do.
    let mut workload = Workload { packets_pps: Some(1e6), ..workload(Work::Answer) };
    workload.packet_bytes = 9000;
    let answer = size(&workload, &costs()).unwrap();
    assert_eq!((answer.io_path, answer.demand.limit), (IoPath::Kernel, Limit::Bandwidth));
    assert!(answer.why.contains("anyway"), "{}", answer.why);
    // A path that takes more is not said to be enough.
    workload = Workload {
        packets_pps: Some(60e6),
        machine: Machine { cores: 2, ..workload.machine },
        ..workload
    };
    workload.packet_bytes = 50;
    let answer = size(&workload, &costs()).unwrap();
    let more = answer
        .io_paths
        .iter()
        .filter(|io_path| io_path.machines.is_some_and(|n| n > answer.machines));
    assert!(
        more.clone().count() > 0
            && more.clone().all(
                |io_path| io_path.why.contains("machines") || io_path.why.contains("elsewhere")
            ),
        "{:?}",
        answer.io_paths
    );
}
