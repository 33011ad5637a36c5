//! Namespaces, links and programs for real. Needs root.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use ringway_host::Mac;
use ringway_host::ethtool::Ethtool;
use ringway_host::netlink::links::{self, XdpMode};
use ringway_testnet::{
    Child, End, Families, Namespace, Nginx, VethOptions, XdpReceive, attach_pass, detach_pass,
    one_bridge, root_or_skip, skip, sweep, tools, two_armed, veth, wait_for, wait_until,
};

const ROLE: &str = "RINGWAY_TEST_OWNER_TO_BE_KILLED";
const SOON: Duration = Duration::from_secs(30);

/// Skips the test without root.
fn namespace(test: &str) -> Option<Namespace> {
    root_or_skip(test).then(|| Namespace::new("test").unwrap())
}

fn sleeper(namespace: &Namespace) -> Child {
    let mut sleeper = namespace.command("sleep");
    sleeper.arg("1000");
    namespace.spawn(sleeper).unwrap()
}

fn mounted(name: &str) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(name)
}

fn gone(name: &str) -> bool {
    !Path::new("/run/netns").join(name).exists()
        && !Path::new("/run/ringway-testnet").join(name).exists()
        && !mounted(name)
}

/// One line over TCP from `from` to a listener at `address` in `to`, of which nothing is lost.
fn exchange(from: &Namespace, to: &Namespace, address: &str) {
    let segments = || {
        let (from, to) = (segments(from), segments(to));
        [0, 1, 2].map(|n| from[n] + to[n])
    };
    let before = segments();
    let listener = to.run(|| TcpListener::bind(address).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || listener.accept().unwrap().0.write_all(b"hello").unwrap());
    let mut text = String::new();
    from.run(|| TcpStream::connect_timeout(&address, SOON).unwrap())
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    server.join().unwrap();
    assert_eq!(text, "hello");
    wait_for(format!("all segments on the way to {address}"), SOON, || {
        let now = segments();
        let [arrived, sent, again] = [0, 1, 2].map(|n| now[n] - before[n]);
        // A busy machine sends some again that have arrived.
        let all = again == 0 || arrived >= sent + again;
        all.then_some(()).ok_or(format!("{arrived} of {sent} arrived, {again} were sent again"))
    })
    .unwrap();
}

/// TCP segments that arrived in a namespace, that it sent, and that it sent again.
fn segments(namespace: &Namespace) -> [u64; 3] {
    let snmp = namespace.run(|| fs::read_to_string("/proc/thread-self/net/snmp")).unwrap().unwrap();
    let mut tcp = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    ["InSegs", "OutSegs", "RetransSegs"].map(|wanted| {
        let at = names.split(' ').position(|name| name == wanted).unwrap();
        values.split(' ').nth(at).unwrap().parse().unwrap()
    })
}

#[test]
fn two_namespaces_talk_at_once_by_both_families() {
    let Some(a) = namespace("two_namespaces_talk_at_once_by_both_families") else { return };
    let b = Namespace::new("b").unwrap();
    let end_a = End::new(&a, "eth0").address("10.0.0.1/24").address("fd00::1/64");
    let end_b = End::new(&b, "eth0").address("10.0.0.2/24").address("fd00::2/64");
    let (link_a, link_b) = veth(&end_a, &end_b, &VethOptions::default()).unwrap();
    assert_ne!(link_a.mac, link_b.mac);
    for address in ["10.0.0.2:0", "[fd00::2]:0"] {
        exchange(&a, &b, address);
    }
}

#[test]
fn wishes_for_a_veth_are_met() {
    let Some(ns) = namespace("wishes_for_a_veth_are_met") else { return };
    let mac = Mac([2, 0, 0, 0, 0, 7]);
    let options = VethOptions { queues: 2, mtu: 3000, ..VethOptions::default() };
    veth(
        &End::new(&ns, "left").mac(mac),
        &End::new(&ns, "right").xdp_receive(XdpReceive::Gro),
        &options,
    )
    .unwrap();
    ns.run(|| {
        let (left, right) = (links::by_name("left").unwrap(), links::by_name("right").unwrap());
        assert_eq!((left.mac, left.mtu, left.rx_queues, left.tx_queues), (Some(mac), 3000, 2, 2));
        assert_eq!((left.lower, right.lower), (Some(right.ifindex), Some(left.ifindex)));
        assert_eq!(left.kind.as_deref(), Some("veth"));
        let ethtool = Ethtool::open().unwrap();
        let (left, right) = (ethtool.offloads("left").unwrap(), ethtool.offloads("right").unwrap());
        assert!(!left.tx_checksum && !left.tso && !left.gso && !left.gro, "{left:?}");
        assert!(!right.tx_checksum && right.gro, "{right:?}");
        assert_eq!(ethtool.driver("left").unwrap().unwrap().name, "veth");
        assert_eq!(ethtool.channels("left").unwrap().unwrap().rx, 2);
    })
    .unwrap();
}

#[test]
fn failures_say_where_and_why() {
    let Some(ns) = namespace("failures_say_where_and_why") else { return };
    let error = ns.ip("link set lo up\nlink set nosuch up\n").unwrap_err().to_string();
    assert!(error.contains("link set nosuch up") && error.contains(ns.name()), "{error}");
    let error = ns.spawn(ns.command("/no/such/program")).err().unwrap().to_string();
    assert!(error.contains("/no/such/program") && error.contains("install it"), "{error}");
    let error = ns.sysctl("net.ipv4.no_such", "1").unwrap_err().to_string();
    assert!(error.contains("/proc/sys/net/ipv4/no_such"), "{error}");
    let mut command = ns.command("sh");
    command.args(["-c", "echo out of order; exit 3"]);
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    let error = ns.spawn(command).unwrap().wait_for_port(address, SOON).unwrap_err().to_string();
    assert!(error.contains("out of order"), "{error}");
}

#[test]
fn dropping_removes_namespace_and_programs() {
    let Some(ns) = namespace("dropping_removes_namespace_and_programs") else { return };
    let name = ns.name().to_owned();
    assert!(mounted(&name));
    let child = sleeper(&ns);
    let pid = child.pid();
    let inside = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_ne!(inside, fs::read_link("/proc/self/ns/net").unwrap());
    drop(child);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());

    // A grandchild whose parent has gone is found by its process group.
    let mut shell = ns.command("sh");
    shell.args(["-c", "sleep 1000 & echo grandchild $!"]);
    let finished = ns.spawn(shell).unwrap().wait(SOON).unwrap();
    let pid = finished.log.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    drop(ns);
    assert!(gone(&name));
    wait_until("the grandchild's end", SOON, || {
        !fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
    })
    .unwrap();
}

#[test]
fn a_killed_owner_leaves_nothing_for_long() {
    if !root_or_skip("a_killed_owner_leaves_nothing_for_long") {
        return;
    }
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "owner_to_be_killed", "--nocapture"])
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines.find_map(|l| Some(l.unwrap().split_once("OWNED ")?.1.to_owned())).unwrap();
    let (name, pid) = line.split_once(' ').unwrap();
    assert!(mounted(name));
    assert!(!sweep().unwrap().contains(&name.to_owned()), "swept although its owner lives");
    owner.kill().unwrap();
    owner.wait().unwrap();
    sweep().unwrap();
    assert!(gone(name));
    wait_until("the end of the killed owner's program", SOON, || {
        !fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("1000"))
    })
    .unwrap();
}

/// Not a test by itself: [`a_killed_owner_leaves_nothing_for_long`] runs and kills it.
#[test]
fn owner_to_be_killed() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let ns = Namespace::new("killed").unwrap();
    let child = sleeper(&ns);
    println!("\nOWNED {} {}", ns.name(), child.pid());
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn many_at_once() {
    if !root_or_skip("many_at_once") {
        return;
    }
    let made: Vec<Namespace> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..16).map(|_| scope.spawn(|| Namespace::new("many").unwrap())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut names: Vec<String> = made.iter().map(|n| n.name().to_owned()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 16);
    drop(made);
    assert!(names.iter().all(|n| gone(n)));
}

#[test]
fn iproute2_sees_them() {
    let Some(ns) = namespace("iproute2_sees_them") else { return };
    let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains(ns.name()));
}

#[test]
fn two_armed_is_complete() {
    if !root_or_skip("two_armed_is_complete") {
        return;
    }
    let net = two_armed(3, Families::Both).unwrap();
    let gateway = &net.gateway;
    for node in net.backends.iter().chain([&net.client]) {
        for address in node.sockets(0) {
            exchange(gateway, &node.ns, &address.to_string());
        }
    }
    // The gateway does not forward: what arrives came through what is being tested.
    let backend = net.backends[0].sockets(7)[0];
    let reached =
        net.client.ns.run(|| TcpStream::connect_timeout(&backend, Duration::from_millis(300)));
    assert!(reached.unwrap().is_err());
}

#[test]
fn one_bridge_connects_all() {
    if !root_or_skip("one_bridge_connects_all") {
        return;
    }
    let net = one_bridge(2, XdpReceive::Pass).unwrap();
    for backend in &net.backends {
        for address in backend.sockets(0) {
            exchange(&net.client.ns, &backend.ns, &address.to_string());
            exchange(&net.balancer.ns, &backend.ns, &address.to_string());
        }
    }
}

#[test]
fn nginx_answers_and_dies() {
    if !root_or_skip("nginx_answers_and_dies") {
        return;
    }
    if let Err(e) = tools::find("nginx") {
        return skip("nginx_answers_and_dies", e);
    }
    let net = two_armed(1, Families::Both).unwrap();
    let backend = &net.backends[0];
    let mut nginx = Nginx::start(&backend.ns, &backend.sockets(80), "backend 1").unwrap();
    for address in backend.sockets(80) {
        let output =
            net.gateway.command("curl").args(["-sgS", &format!("http://{address}/")]).output();
        assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), "backend 1\n");
    }
    nginx.kill().unwrap();
    let address = backend.sockets(80)[0];
    let after = net.gateway.run(|| TcpStream::connect_timeout(&address, SOON)).unwrap();
    assert_eq!(after.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn pass_programs_come_and_go() {
    let Some(a) = namespace("pass_programs_come_and_go") else { return };
    let b = Namespace::new("b").unwrap();
    let end_a = End::new(&a, "eth0").address("10.0.0.1/24").xdp_receive(XdpReceive::Pass);
    let end_b = End::new(&b, "eth0").address("10.0.0.2/24");
    veth(&end_a, &end_b, &VethOptions::default()).unwrap();
    let attached = || a.run(|| links::by_name("eth0").unwrap().xdp).unwrap();
    assert_eq!(attached().iter().map(|x| x.mode).collect::<Vec<_>>(), [XdpMode::Native]);
    exchange(&a, &b, "10.0.0.2:0");
    detach_pass(&a, "eth0").unwrap();
    assert!(attached().is_empty());
    detach_pass(&a, "eth0").unwrap();
    attach_pass(&a, "eth0").unwrap();
    let again = attach_pass(&a, "eth0").unwrap_err().to_string();
    assert!(again.contains("eth0") || again.contains("busy"), "{again}");
}
