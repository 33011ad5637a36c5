//! Workers on veth pairs between network namespaces, whose far end is the kernel's own stack. As
//! root; skipped aloud otherwise.

#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringway_engine::apps::{Host, Icmp, L2fwd, Macs, Sink, Source, UdpEcho};
use ringway_engine::{
    App, Control, Engine, EngineConfig, Predecessor, Reason, WorkerConfig, WorkerReport,
};
use ringway_testnet::{End, Namespace, VethOptions, root_or_skip, skip, veth, wait_until};
use ringway_wire::Mac;
use ringway_xsk::UmemConfig;

const SOON: Duration = Duration::from_secs(30);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// A client whose veth leads into a namespace where nobody but the worker has an address. Checksums
/// finished, since nobody else finishes them.
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
    let status =
        client.command("ethtool").args(["-K", "eth0", "tx", "off"]).output().unwrap().status;
    assert!(status.success());
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

fn pings(client: &Namespace, address: &str) -> bool {
    let ping = client.command("ping").args(["-c1", "-W1", address]).output().unwrap();
    ping.status.success()
}

const PORTS: [&str; 3] = ["af_packet:eth0", "af_xdp:eth0:0", "af_xdp:eth0:0,generic"];

#[test]
fn the_kernel_pings() {
    if !root_or_skip("the_kernel_pings") {
        return;
    }
    for port in PORTS {
        let ours = Namespace::new("ours").unwrap();
        let client = client("client", "10.8.0.2/24", &ours, "eth0");
        client.ip("address add fd00:8::2/64 dev eth0 nodad").unwrap();
        let host = || Host::new(MAC, ["10.8.0.1".parse().unwrap(), "fd00:8::1".parse().unwrap()]);
        let engine = engine(&ours, &[port], move || Icmp::new(host()));
        for address in ["10.8.0.1", "fd00:8::1"] {
            wait_until("an answer to a ping", SOON, || pings(&client, address)).unwrap();
        }
        let report = ends(engine);
        assert!(report.status.packets.transmitted_packets >= 4, "{}", report.status);
    }
}

#[test]
fn the_kernel_gets_its_datagrams_back() {
    if !root_or_skip("the_kernel_gets_its_datagrams_back") {
        return;
    }
    for port in PORTS {
        let ours = Namespace::new("ours").unwrap();
        let client = client("client", "10.8.0.2/24", &ours, "eth0");
        let host = || Host::new(MAC, ["10.8.0.1".parse().unwrap()]);
        let engine = engine(&ours, &[port], move || UdpEcho::new(host(), 7));
        let socket = client.run(|| UdpSocket::bind("10.8.0.2:0").unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.connect("10.8.0.1:7").unwrap();
        for len in [0_usize, 1, 100, 1472] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            wait_until("its datagram back", SOON, || {
                let mut back = [0; 2000];
                socket.send(&bytes).unwrap();
                socket.recv(&mut back).is_ok_and(|len| back[..len] == bytes)
            })
            .unwrap_or_else(|e| panic!("{port}, {len}: {e}"));
        }
        ends(engine);
    }
}

/// As long as the MTU lets them be, whatever the size of a frame.
#[test]
fn jumbo_packets_are_answered() {
    if !root_or_skip("jumbo_packets_are_answered") {
        return;
    }
    let ours = Namespace::new("ours").unwrap();
    let jumbo = VethOptions { mtu: 9000, ..VethOptions::default() };
    let client = client_with("client", "10.8.0.2/24", &ours, "eth0", &jumbo);
    let host = || Host::new(MAC, ["10.8.0.1".parse().unwrap()]);
    let engine = engine(&ours, &["af_xdp:eth0:0"], move || UdpEcho::new(host(), 7));
    if !engine.obtained()[0].several_frames {
        skip(
            "jumbo_packets_are_answered",
            "this kernel's sockets take no packets of several frames",
        );
        return;
    }
    wait_until("an answer to a long ping", SOON, || {
        let ping =
            client.command("ping").args(["-c1", "-W1", "-Mdo", "-s8972", "10.8.0.1"]).output();
        ping.unwrap().status.success()
    })
    .unwrap();
    let socket = client.run(|| UdpSocket::bind("10.8.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket.connect("10.8.0.1:7").unwrap();
    for len in [1800_usize, 5001, 8972] {
        let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
        wait_until("its datagram back", SOON, || {
            let mut back = [0; 9000];
            socket.send(&bytes).unwrap();
            socket.recv(&mut back).is_ok_and(|len| back[..len] == bytes)
        })
        .unwrap_or_else(|e| panic!("{len}: {e}"));
    }
    ends(engine);
}

/// A packet that fits into no number of frames never reaches the app, and is counted.
#[test]
fn packets_that_are_cut() {
    if !root_or_skip("packets_that_are_cut") {
        return;
    }
    let ours = Namespace::new("ours").unwrap();
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
        let port = engine.status().0.workers[0].ports[0].statistics;
        port.too_long_packets == 2 && port.received_packets >= 2
    })
    .unwrap();
    let packets = ends(engine).status.packets;
    let consumed = packets.dropped.iter().find(|dropped| dropped.reason == Reason::Consumed);
    assert_eq!(consumed.map(|dropped| dropped.packets), Some(packets.received_packets));
}

/// A kernel that has its NIC finish checksums sends over a veth, where there is no NIC.
#[test]
fn checksums_that_a_kernel_leaves_undone() {
    if !root_or_skip("checksums_that_a_kernel_leaves_undone") {
        return;
    }
    let ours = Namespace::new("ours").unwrap();
    let client = Namespace::new("client").unwrap();
    let near = End::new(&client, "eth0").address("10.8.0.2/24");
    let as_the_kernel_has_it = VethOptions { offloads: true, ..VethOptions::default() };
    veth(&near, &End::new(&ours, "eth0"), &as_the_kernel_has_it).unwrap();
    let host = || Host::new(MAC, ["10.8.0.1".parse().unwrap()]);
    let engine = engine(&ours, &["af_packet:eth0"], move || UdpEcho::new(host(), 7));
    let socket = client.run(|| UdpSocket::bind("10.8.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket.connect("10.8.0.1:7").unwrap();
    wait_until("its datagram back", SOON, || {
        let mut back = [0; 100];
        socket.send(b"hello").unwrap();
        socket.recv(&mut back).is_ok_and(|len| &back[..len] == b"hello")
    })
    .unwrap();
    let report = ends(engine);
    let dropped = &report.status.packets.dropped;
    assert!(
        dropped.iter().all(|dropped| dropped.reason != Reason::BadChecksum),
        "{}",
        report.status
    );
}

/// For every kind of port: packets that its interface does not send are counted, and packets that
/// count as sent arrive.
#[test]
fn packets_longer_than_the_mtu() {
    if !root_or_skip("packets_longer_than_the_mtu") {
        return;
    }
    for (out, to) in [("af_xdp:eth0:0", "af_xdp:eth1:0"), ("af_packet:eth0", "af_packet:eth1")] {
        let ours = Namespace::new("ours").unwrap();
        // Of the kernel's own packets none is to be counted.
        let quiet = ["-w", "net.ipv6.conf.default.disable_ipv6=1"];
        assert!(ours.command("sysctl").args(quiet).output().unwrap().status.success());
        veth(&End::new(&ours, "eth0"), &End::new(&ours, "eth1"), &VethOptions::default()).unwrap();
        let arrives = engine(&ours, &[to], Sink::default);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("in.pcap");
        std::fs::write(&file, capture(&[60, 1514, 1515, 1700, 60])).unwrap();
        let from = format!("pcap:{}:", file.display());
        let sends = engine(&ours, &[&from, out], || L2fwd::new(Macs::AsIs));
        wait_until("all are sent, or not", SOON, || {
            let packets = &sends.status().0.workers[0].packets;
            packets.received_packets == 5 && packets.waiting_packets == 0
        })
        .unwrap();
        wait_until("three to arrive", SOON, || {
            arrives.status().0.workers[0].packets.received_packets >= 3
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
    if !root_or_skip("frames_that_the_far_end_refuses") {
        return;
    }
    let ours = Namespace::new("ours").unwrap();
    let quiet = ["-w", "net.ipv6.conf.default.disable_ipv6=1"];
    assert!(ours.command("sysctl").args(quiet).output().unwrap().status.success());
    veth(&End::new(&ours, "eth0"), &End::new(&ours, "eth1"), &VethOptions::default()).unwrap();
    ours.ip("link set eth1 mtu 1000").unwrap();
    let arrives = engine(&ours, &["af_packet:eth1"], Sink::default);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("in.pcap");
    std::fs::write(&file, capture(&[60, 1514, 60, 1400, 1300, 60])).unwrap();
    let from = format!("pcap:{}:", file.display());
    let sends = engine(&ours, &[&from, "af_packet:eth0"], || L2fwd::new(Macs::AsIs));
    wait_until("those that fit", SOON, || {
        arrives.status().0.workers[0].packets.received_packets == 3
    })
    .unwrap();
    let status = ends(sends).status;
    let port = &status.ports[1].statistics;
    let counts = (port.transmitted_packets, port.kernel_tx_invalid_descs);
    assert_eq!(counts, (6, Some(3)), "{status}");
    assert_eq!(ends(arrives).status.packets.received_packets, 3);
}

/// A capture of packets of these lengths (draft-ietf-opsawg-pcap).
fn capture(lens: &[usize]) -> Vec<u8> {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    for word in [0, 0, 0x4_0000, 1_u32] {
        file.extend(word.to_le_bytes());
    }
    for len in lens {
        for word in [0, 0, *len as u32, *len as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(vec![2; *len]);
    }
    file
}

#[test]
fn between_two_clients() {
    if !root_or_skip("between_two_clients") {
        return;
    }
    for ports in [
        ["af_packet:eth0", "af_packet:eth1,bypass"],
        ["af_xdp:eth0:0", "af_xdp:eth1:0"],
        ["af_xdp:eth0:0", "af_packet:eth1"],
    ] {
        let ours = Namespace::new("ours").unwrap();
        let one = client("one", "10.8.0.1/24", &ours, "eth0");
        let _other = client("other", "10.8.0.2/24", &ours, "eth1");
        let engine = engine(&ours, &ports, || L2fwd::new(Macs::AsIs));
        wait_until("an answer from the other side", SOON, || pings(&one, "10.8.0.2"))
            .unwrap_or_else(|e| panic!("{ports:?}: {e}"));
        ends(engine);
    }
}

/// The kernel keeps a tag beside the packet; here it is in its place again.
#[test]
fn a_tag_is_put_back() {
    if !root_or_skip("a_tag_is_put_back") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("out.pcap");
    let ours = Namespace::new("ours").unwrap();
    let client = client("client", "10.8.0.2/24", &ours, "eth0");
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
    if !root_or_skip("an_interface_that_goes_down") {
        return;
    }
    for port in PORTS {
        let ours = Namespace::new("ours").unwrap();
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
    if !root_or_skip("whoever_claims_it_goes_on") {
        return;
    }
    let ours = Namespace::new("ours").unwrap();
    let client = client("client", "10.8.0.2/24", &ours, "eth0");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let control = Control::bind(&path, false).unwrap();
    let error = Control::bind(&path, false).unwrap_err().to_string();
    assert!(error.contains("take that engine over"), "{error}");
    let icmp = || Icmp::new(Host::new(MAC, ["10.8.0.1".parse().unwrap()]));
    let first = engine(&ours, &["af_xdp:eth0:0"], icmp);
    let goes_on =
        || wait_until("an answer to a ping", SOON, || pings(&client, "10.8.0.1")).unwrap();
    let offer = || {
        let mut asked = None;
        let mut has_asked = || {
            asked = control.asked();
            asked.is_some()
        };
        wait_until("a successor", SOON, &mut has_asked).unwrap();
        first.offer(&asked.unwrap())
    };
    let take_over = |predecessor: Predecessor| {
        let (config, worker) = wanted(&["af_xdp:eth0:0"], icmp);
        ours.run(move || Engine::take_over(&config, vec![worker], predecessor)).unwrap()
    };
    let ask = || Predecessor::ask(&path).unwrap();
    goes_on();

    thread::scope(|scope| {
        scope.spawn(|| drop(ask()));
        let error = offer().unwrap_err().to_string();
        assert!(error.contains("this engine continues"), "{error}");
    });
    goes_on();

    thread::scope(|scope| {
        let late = scope.spawn(ask);
        offer().unwrap_err();
        let error = take_over(late.join().unwrap()).err().unwrap().to_string();
        // Debian 12 has 6.1.
        let expected = ["timed out", "it takes Linux 6.4"];
        assert!(expected.iter().any(|cause| error.contains(cause)), "{error}");
    });
    goes_on();

    let second = thread::scope(|scope| {
        let second = scope.spawn(|| take_over(ask()));
        // An error where the successor has gone away already, as what it needs is missing.
        let taken = offer().unwrap_or(false);
        let second = second.join().unwrap().map_err(|e| e.to_string());
        assert_eq!(taken, second.is_ok());
        second
    });
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
    if !root_or_skip("what_cannot_be_opened") {
        return;
    }
    let ours = Namespace::new("ours").unwrap();
    let _client = client("client", "10.8.0.2/24", &ours, "eth0");
    let start = |ports: &[&str], frames| {
        let app = Arc::new(|| Box::new(L2fwd::new(Macs::AsIs)) as Box<dyn App>);
        let ports = ports.iter().map(|port| port.parse().unwrap()).collect();
        let umem = UmemConfig { frames, ..UmemConfig::default() };
        let config = EngineConfig { umem, ..EngineConfig::default() };
        let worker = WorkerConfig { cpu: None, ports, app };
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
