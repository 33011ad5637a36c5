//! Workers on veth pairs between network namespaces, whose far end is the kernel's own stack. As
//! root; skipped aloud otherwise.

#![allow(clippy::unwrap_used)]

#[path = "engine/pcap.rs"]
mod pcap;

use std::net::UdpSocket;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringway_engine::apps::{Host, Icmp, L2fwd, Macs, Sink, Source, UdpEcho};
use ringway_engine::status::Dropped;
use ringway_engine::{
    App, Control, Engine, EngineConfig, Predecessor, Reason, WorkerConfig, WorkerReport,
};
use ringway_testnet::{
    End, Namespace, VethOptions, root_or_skip, skip, veth, wait_for, wait_until,
};
use ringway_wire::Mac;
use ringway_xsk::UmemConfig;
use tempfile::NamedTempFile;

const SOON: Duration = Duration::from_secs(30);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Where the engine runs; skips the test without root.
fn ours(test: &str) -> Option<Namespace> {
    root_or_skip(test).then(|| Namespace::new("ours").unwrap())
}

/// A client whose veth leads into a namespace where nobody but the worker has an address.
fn client(name: &str, address: &str, ours: &Namespace, our_name: &str) -> Namespace {
    client_with(name, address, ours, our_name, &VethOptions::default())
}

fn client_with(
    name: &str,
    address: &str,
    ours: &Namespace,
    our_name: &str,
    options: &VethOptions,
) -> Namespace {
    let client = Namespace::new(name).unwrap();
    let ends = (End::new(&client, "eth0").address(address), End::new(ours, our_name));
    veth(&ends.0, &ends.1, options).unwrap();
    client
}

fn wanted<A: App + 'static>(
    ports: &[&str],
    app: impl Fn() -> A + Send + Sync + 'static,
) -> (EngineConfig, WorkerConfig) {
    let app = Arc::new(move || Box::new(app()) as Box<dyn App>);
    let ports = ports.iter().map(|port| port.parse().unwrap()).collect();
    let umem = UmemConfig { frames: 8192, ..UmemConfig::default() };
    (EngineConfig { umem, ..EngineConfig::default() }, WorkerConfig { cpu: None, ports, app })
}

fn engine<A: App + 'static>(
    ours: &Namespace,
    ports: &[&str],
    app: impl Fn() -> A + Send + Sync + 'static,
) -> Engine {
    // Threads are born in the namespace of whoever starts them.
    let (config, worker) = wanted(ports, app);
    ours.run(move || Engine::start(&config, vec![worker]))
        .unwrap()
        .unwrap_or_else(|e| panic!("{e}"))
}

fn ends(engine: Engine) -> WorkerReport {
    let report = engine.stop().pop().unwrap().unwrap();
    assert!(
        report.error.is_none() && report.audit.balanced(),
        "{}\n{}",
        report.audit,
        report.status
    );
    report
}

fn pings(client: &Namespace, more: &[&str], address: &str) -> bool {
    let ping = client.command("ping").args(["-c1", "-W1"]).args(more).arg(address).output();
    ping.unwrap().status.success()
}

/// Datagrams of these lengths come back from 10.8.0.1.
fn echoes(client: &Namespace, lens: &[usize]) {
    let socket = client.run(|| UdpSocket::bind("10.8.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket.connect("10.8.0.1:7").unwrap();
    for len in lens {
        let bytes: Vec<u8> = (0..*len).map(|n| n as u8).collect();
        wait_until(format!("{len} bytes back"), SOON, || {
            let mut back = [0; 9000];
            socket.send(&bytes).is_ok()
                && socket.recv(&mut back).is_ok_and(|len| back[..len] == bytes)
        })
        .unwrap();
    }
}

fn echo() -> UdpEcho {
    let addresses = ["10.8.0.1".parse().unwrap(), "fd00:8::1".parse().unwrap()];
    UdpEcho::new(Host::new(MAC, addresses), 7)
}

const PORTS: [&str; 3] = ["af_packet:eth0", "af_xdp:eth0:0", "af_xdp:eth0:0,generic"];

#[test]
fn the_kernel_gets_its_answers() {
    for port in PORTS {
        let Some(ours) = ours("the_kernel_gets_its_answers") else { return };
        eprintln!("{port}");
        let client = client("client", "10.8.0.2/24", &ours, "eth0");
        client.ip("address add fd00:8::2/64 dev eth0 nodad").unwrap();
        let engine = engine(&ours, &[port], echo);
        for address in ["10.8.0.1", "fd00:8::1"] {
            wait_until("an answer to a ping", SOON, || pings(&client, &[], address)).unwrap();
        }
        echoes(&client, &[0, 1, 100, 1472]);
        let report = ends(engine);
        assert!(report.status.packets.transmitted_packets >= 8, "{}", report.status);
    }
}

/// As long as the MTU lets them be, whatever the size of a frame.
#[test]
fn jumbo_packets_are_answered() {
    let test = "jumbo_packets_are_answered";
    let Some(ours) = ours(test) else { return };
    let jumbo = VethOptions { mtu: 9000, ..VethOptions::default() };
    let client = client_with("client", "10.8.0.2/24", &ours, "eth0", &jumbo);
    let engine = engine(&ours, &["af_xdp:eth0:0"], echo);
    if !engine.obtained()[0].several_frames {
        return skip(test, "this kernel's sockets take no packets of several frames");
    }
    let long = || pings(&client, &["-Mdo", "-s8972"], "10.8.0.1");
    wait_until("an answer to a long ping", SOON, long).unwrap();
    echoes(&client, &[1800, 5001, 8972]);
    ends(engine);
}

/// A packet that fits into no number of frames never reaches the app, and is counted.
#[test]
fn packets_that_are_cut() {
    let Some(ours) = ours("packets_that_are_cut") else { return };
    let longest = VethOptions { mtu: 65_535, ..VethOptions::default() };
    let client = client_with("client", "10.8.0.2/24", &ours, "eth0", &longest);
    client.ip(&format!("neigh add 10.8.0.1 lladdr {MAC} dev eth0")).unwrap();
    let engine = engine(&ours, &["af_packet:eth0"], Sink::default);
    let socket = client.run(|| UdpSocket::bind("10.8.0.2:0").unwrap()).unwrap();
    socket.connect("10.8.0.1:7").unwrap();
    for len in [40_000, 30_000, 50_000, 100] {
        socket.send(&vec![0; len]).unwrap();
    }
    wait_until("two of them, and the others", SOON, || {
        engine.status().0.workers.first().is_some_and(|worker| {
            let port = worker.ports[0].statistics;
            port.too_long_packets == 2 && port.received_packets >= 2
        })
    })
    .unwrap();
    let packets = ends(engine).status.packets;
    let consumed = packets.dropped.iter().find(|dropped| dropped.reason == Reason::Consumed);
    assert_eq!(consumed.map(|dropped| dropped.packets), Some(packets.received_packets));
}

/// A kernel that has its NIC finish checksums sends over a veth, where there is no NIC.
#[test]
fn checksums_that_a_kernel_leaves_undone() {
    let Some(ours) = ours("checksums_that_a_kernel_leaves_undone") else { return };
    let client = Namespace::new("client").unwrap();
    let near = End::new(&client, "eth0").address("10.8.0.2/24");
    let as_the_kernel_has_it = VethOptions { offloads: true, ..VethOptions::default() };
    veth(&near, &End::new(&ours, "eth0"), &as_the_kernel_has_it).unwrap();
    let engine = engine(&ours, &["af_packet:eth0"], echo);
    echoes(&client, &[5]);
    let status = ends(engine).status;
    let wrong = |dropped: &Dropped| dropped.reason == Reason::BadChecksum;
    assert!(!status.packets.dropped.iter().any(wrong), "{status}");
}

/// For every kind of port: packets that its interface does not send are counted, and packets that
/// count as sent arrive.
#[test]
fn packets_longer_than_the_mtu() {
    for (out, to) in [("af_xdp:eth0:0", "af_xdp:eth1:0"), ("af_packet:eth0", "af_packet:eth1")] {
        let Some(ours) = quiet_pair("packets_longer_than_the_mtu") else { return };
        let arrives = engine(&ours, &[to], Sink::default);
        let file = capture(&[60, 1514, 1515, 1700, 60]);
        let from = format!("pcap:{}:", file.path().display());
        let sends = engine(&ours, &[&from, out], || L2fwd::new(Macs::AsIs));
        wait_until("all are sent, or not", SOON, || {
            sends.status().0.workers.first().is_some_and(|worker| {
                let packets = &worker.packets;
                packets.received_packets == 5 && packets.waiting_packets == 0
            })
        })
        .unwrap();
        wait_until("three to arrive", SOON, || {
            let status = arrives.status().0;
            status.workers.first().is_some_and(|worker| worker.packets.received_packets >= 3)
        })
        .unwrap_or_else(|e| panic!("{out}: {e}"));
        let (sent, arrived) = (ends(sends).status, ends(arrives).status);
        let port = &sent.ports[1].statistics;
        assert_eq!((port.transmitted_packets, port.unsendable_packets), (3, 2), "{out}: {sent}");
        assert_eq!(arrived.packets.received_packets, 3, "{out}: {arrived}");
    }
}

/// A frame that the device never takes keeps back none behind it, and is counted.
#[test]
fn frames_that_the_far_end_refuses() {
    let Some(ours) = quiet_pair("frames_that_the_far_end_refuses") else { return };
    ours.ip("link set eth1 mtu 1000").unwrap();
    let arrives = engine(&ours, &["af_packet:eth1"], Sink::default);
    let file = capture(&[60, 1514, 60, 1400, 1300, 60]);
    let from = format!("pcap:{}:", file.path().display());
    let sends = engine(&ours, &[&from, "af_packet:eth0"], || L2fwd::new(Macs::AsIs));
    wait_until("those that fit", SOON, || {
        let status = arrives.status().0;
        status.workers.first().is_some_and(|worker| worker.packets.received_packets == 3)
    })
    .unwrap();
    let status = ends(sends).status;
    let port = &status.ports[1].statistics;
    let counts = (port.transmitted_packets, port.kernel_tx_invalid_descs);
    assert_eq!(counts, (6, Some(3)), "{status}");
    assert_eq!(ends(arrives).status.packets.received_packets, 3);
}

/// A namespace whose `eth0` and `eth1` are a pair. None of the kernel's own packets is counted.
fn quiet_pair(test: &str) -> Option<Namespace> {
    let ours = ours(test)?;
    ours.sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    veth(&End::new(&ours, "eth0"), &End::new(&ours, "eth1"), &VethOptions::default()).unwrap();
    Some(ours)
}

/// A capture of packets of these lengths.
fn capture(lens: &[usize]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(&file, pcap::capture(lens)).unwrap();
    file
}

#[test]
fn between_two_clients() {
    for ports in [
        ["af_packet:eth0", "af_packet:eth1,bypass"],
        ["af_xdp:eth0:0", "af_xdp:eth1:0"],
        ["af_xdp:eth0:0", "af_packet:eth1"],
    ] {
        let Some(ours) = ours("between_two_clients") else { return };
        let one = client("one", "10.8.0.1/24", &ours, "eth0");
        let _other = client("other", "10.8.0.2/24", &ours, "eth1");
        let engine = engine(&ours, &ports, || L2fwd::new(Macs::AsIs));
        wait_until("an answer from the other side", SOON, || pings(&one, &[], "10.8.0.2"))
            .unwrap_or_else(|e| panic!("{ports:?}: {e}"));
        ends(engine);
    }
}

/// The kernel keeps a tag beside the packet; here it is in its place again.
#[test]
fn a_tag_is_put_back() {
    let Some(ours) = ours("a_tag_is_put_back") else { return };
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("out.pcap");
    let client = client("client", "10.8.0.2/24", &ours, "eth0");
    // Of the kernel's own packets none is to be counted.
    for namespace in [&ours, &client] {
        namespace.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    }
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 2, 0x81, 0x00, 0x60, 0x07, 0x88, 0xb5]);
    frame.extend([0x5a; 50]);
    let port = format!("pcap::{}", capture.display());
    let taker = engine(&ours, &["af_packet:eth0", &port], || L2fwd::new(Macs::AsIs));
    let sent = frame.clone();
    let source = engine(&client, &["af_packet:eth0"], move || Source::new(sent.clone(), 10, 10));
    wait_until("all to be sent", SOON, || source.is_over()).unwrap();
    wait_until("all to arrive", SOON, || {
        taker.status().0.workers.iter().any(|worker| worker.packets.received_packets >= 10)
    })
    .unwrap();
    ends(source);
    ends(taker);
    let written = std::fs::read(&capture).unwrap();
    let times = written.windows(frame.len()).filter(|bytes| *bytes == frame).count();
    assert_eq!(times, 10);
}

#[test]
fn an_interface_that_goes_down() {
    for port in PORTS {
        let Some(ours) = ours("an_interface_that_goes_down") else { return };
        let _client = client("client", "10.8.0.2/24", &ours, "eth0");
        let engine = engine(&ours, &[port], || L2fwd::new(Macs::Swap));
        ours.ip("link set eth0 down").unwrap();
        wait_until("the end of the worker", SOON, || engine.is_over()).unwrap();
        let report = engine.stop().pop().unwrap().unwrap();
        assert!(report.audit.balanced(), "{}", report.audit);
        let error = report.error.unwrap().to_string();
        assert!(error.contains("eth0") && error.contains("ip link set"), "{error}");
    }
}

/// A successor that goes away or is late leaves the engine as it was; one that claims its memory
/// goes on.
#[test]
fn whoever_claims_it_goes_on() {
    let Some(ours) = ours("whoever_claims_it_goes_on") else { return };
    let client = client("client", "10.8.0.2/24", &ours, "eth0");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let control = Control::bind(&path, false).unwrap();
    let error = Control::bind(&path, false).unwrap_err().to_string();
    assert!(error.contains("take that engine over"), "{error}");
    let icmp = || Icmp::new(Host::new(MAC, ["10.8.0.1".parse().unwrap()]));
    let first = engine(&ours, &["af_xdp:eth0:0"], icmp);
    let goes_on =
        || wait_until("an answer to a ping", SOON, || pings(&client, &[], "10.8.0.1")).unwrap();
    // Until the successor has been served: on a busy machine it may give up and ask again.
    let offer = |served: &dyn Fn() -> bool| {
        let mut last = None;
        let mut is_served = || {
            last = control.asked().map(|asked| first.offer(&asked)).or(last.take());
            served()
        };
        wait_until("a successor", 4 * SOON, &mut is_served).unwrap();
        last.unwrap()
    };
    let take_over = |predecessor: Predecessor| {
        let (config, worker) = wanted(&["af_xdp:eth0:0"], icmp);
        ours.run(move || Engine::take_over(&config, vec![worker], predecessor)).unwrap()
    };
    let ask = || wait_for("an offer", SOON, || Predecessor::ask(&path)).unwrap();
    goes_on();

    thread::scope(|scope| {
        let gone = scope.spawn(|| drop(ask()));
        let error = offer(&|| gone.is_finished()).unwrap_err().to_string();
        assert!(error.contains("this engine continues"), "{error}");
    });
    goes_on();

    thread::scope(|scope| {
        let late = scope.spawn(ask);
        offer(&|| late.is_finished()).unwrap_err();
        let error = take_over(late.join().unwrap()).err().unwrap().to_string();
        // Debian 12 has 6.1.
        let expected = ["timed out", "it takes Linux 6.4"];
        assert!(expected.iter().any(|cause| error.contains(cause)), "{error}");
    });
    goes_on();

    let succeed = || {
        thread::scope(|scope| {
            let second = scope.spawn(|| take_over(ask()));
            // An error where the successor has gone away already, as what it needs is missing.
            let taken = offer(&|| second.is_finished()).unwrap_or(false);
            let second = second.join().unwrap().map_err(|e| e.to_string());
            assert_eq!(taken, second.is_ok());
            second
        })
    };
    let mut tries = 0;
    let second = loop {
        tries += 1;
        match succeed() {
            // A busy machine was late.
            Err(error) if error.contains("timed out") && tries < 10 => goes_on(),
            second => break second,
        }
    };
    let (second, gap) = match second {
        Ok(second) => second,
        // Debian 12 has 6.1.
        Err(error) if error.contains("it takes Linux 6.4") => {
            goes_on();
            return skip("whoever_claims_it_goes_on", error);
        }
        Err(error) => panic!("{error}"),
    };
    eprintln!("the rings were not read for {gap:?}");
    ends(first);
    goes_on();
    ends(second);
}

#[test]
fn what_cannot_be_opened() {
    let Some(ours) = ours("what_cannot_be_opened") else { return };
    let _client = client("client", "10.8.0.2/24", &ours, "eth0");
    let start = |ports: &[&str], frames| {
        let (mut config, worker) = wanted(ports, || L2fwd::new(Macs::AsIs));
        config.umem.frames = frames;
        let started = ours.run(move || Engine::start(&config, vec![worker])).unwrap();
        started.err().unwrap().to_string()
    };
    for (ports, frames, why, remedy) in [
        (vec!["af_packet:none"], 8192, "none", ""),
        (vec!["af_xdp:none:0"], 8192, "none", ""),
        (vec!["af_xdp:eth0:9"], 8192, "no such queue", "ethtool -l"),
        (vec!["af_xdp:eth0:0"], 1024, "1024 frames", "thousands more"),
        (vec!["af_xdp:eth0:0,zero-copy"], 8192, "zero-copy", "ask for copies"),
        (vec!["af_xdp:eth0:0", "af_xdp:eth0:0"], 8192, "has this queue", "another queue"),
    ] {
        let error = start(&ports, frames);
        assert!(error.contains(why) && error.contains(remedy), "{ports:?}: {error}");
    }
}
