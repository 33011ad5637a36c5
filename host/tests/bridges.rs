//! Bridges of live network namespaces. Needs root.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::io::Write as _;
use std::iter;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ringway_host::netlink::bridge::{
    self, Bridge, BridgeChange, BridgeMonitor, BridgePort, FdbEntry, FdbKind, PortState, Stp,
};
use ringway_host::netlink::links;
use ringway_host::{Mac, announce};
use ringway_testnet::{
    End, Link, Namespace, VethOptions, root_or_skip, veth, wait_for, wait_until,
};
use rustix::net::sockopt::set_socket_recv_buffer_size;

const SOON: Duration = Duration::from_secs(30);
const AGEING: Duration = Duration::from_secs(2);
/// An entry may live longer than its ageing time, until the kernel looks again.
const AGED: Duration = Duration::from_secs(60);
const STATION: Mac = Mac([2, 0, 0, 0, 0, 0x11]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x22]);

/// A bridge `br0` with ports `p1` and `p2`, and a machine behind each.
struct Net {
    switch: Namespace,
    bridge: u32,
    machines: [Link; 2],
    ports: [Link; 2],
}

impl Net {
    /// Skips the test without root.
    fn of(test: &str) -> Option<Self> {
        root_or_skip(test).then(Self::new)
    }

    fn new() -> Self {
        let switch = Namespace::new("switch").unwrap();
        ringway_testnet::bridge(&switch, "br0", &[]).unwrap();
        let bridge = switch.run(|| links::by_name("br0").unwrap().ifindex).unwrap();
        let pairs = ["p1", "p2"].map(|name| {
            let machine = Namespace::new(name).unwrap();
            let port = End::new(&switch, name).port_of("br0");
            veth(&End::new(&machine, "eth0"), &port, &VethOptions::default()).unwrap()
        });
        let [(a, p1), (b, p2)] = pairs;
        Self { switch, bridge, machines: [a, b], ports: [p1, p2] }
    }

    /// A frame from this station comes in at a port.
    fn send(&self, port: usize, station: Mac) {
        let machine = &self.machines[port];
        let address = IpAddr::from([10, 0, 0, 1]);
        machine.namespace.run(|| announce(machine.ifindex, station, address).unwrap()).unwrap();
    }

    fn fdb(&self) -> Vec<FdbEntry> {
        self.switch.run(|| bridge::fdb(self.bridge).unwrap()).unwrap()
    }

    fn entry(&self, station: Mac) -> Option<FdbEntry> {
        self.fdb().into_iter().find(|entry| entry.mac == station)
    }

    /// The entry of this station as soon as it is at a port.
    fn learnt(&self, station: Mac, port: usize) -> FdbEntry {
        wait_for(format!("{station} at port {port}"), SOON, || {
            let entry = self.entry(station);
            entry.filter(|entry| entry.port == self.ports[port].ifindex).ok_or(format!("{entry:?}"))
        })
        .unwrap()
    }

    /// The same where it may have aged before it is seen: frames are sent until it is.
    fn learns(&self, station: Mac, port: usize) -> FdbEntry {
        wait_for(format!("{station} at port {port}"), SOON, || {
            self.send(port, station);
            let entry = self.entry(station);
            entry.filter(|entry| entry.port == self.ports[port].ifindex).ok_or(format!("{entry:?}"))
        })
        .unwrap()
    }

    fn touch(&self, entry: &FdbEntry) -> bool {
        self.switch.run(|| bridge::touch(entry).unwrap()).unwrap()
    }

    fn set(&self, settings: &str) {
        self.switch.ip(settings).unwrap();
    }

    fn bridge(&self, line: &str) {
        let status = self.switch.tool("bridge").unwrap().args(line.split(' ')).status().unwrap();
        assert!(status.success(), "bridge {line}");
    }

    fn read(&self) -> Bridge {
        self.switch.run(|| bridge::bridge(self.bridge).unwrap().unwrap()).unwrap()
    }

    fn port(&self, at: usize) -> BridgePort {
        let ports = self.switch.run(|| bridge::ports_of(self.bridge).unwrap()).unwrap();
        assert_eq!(ports.len(), 2, "{ports:?}");
        ports.into_iter().find(|port| port.ifindex == self.ports[at].ifindex).unwrap()
    }

    fn monitor(&self) -> BridgeMonitor {
        self.switch.run(|| BridgeMonitor::open().unwrap()).unwrap()
    }

    fn ageing(&self, time: Duration) {
        self.set(&format!("link set br0 type bridge ageing_time {}\n", time.as_millis() / 10));
    }
}

/// What there is to read by now.
fn drain(monitor: &BridgeMonitor) -> Vec<BridgeChange> {
    let read = || monitor.next(Some(Duration::ZERO)).unwrap();
    iter::repeat_with(read).take_while(|changes| !changes.is_empty()).flatten().collect()
}

/// Reads until a change is the wanted one.
fn expect(monitor: &BridgeMonitor, what: &str, wanted: impl Fn(&BridgeChange) -> bool) {
    let start = Instant::now();
    while start.elapsed() < AGED {
        let changes = monitor.next(Some(Duration::from_millis(100))).unwrap();
        if changes.iter().any(&wanted) {
            return;
        }
    }
    panic!("no change: {what}");
}

#[test]
fn stations_are_learnt_move_and_age() {
    let Some(net) = Net::of("stations_are_learnt_move_and_age") else { return };
    let monitor = net.monitor();
    net.send(0, STATION);
    let entry = net.learnt(STATION, 0);
    assert_eq!((entry.kind, entry.bridge, entry.vlan), (FdbKind::Learnt, net.bridge, 0));
    assert!(entry.updated.is_some_and(|age| age < SOON), "{entry:?}");
    let at = |port: usize| {
        let ifindex = net.ports[port].ifindex;
        move |change: &BridgeChange| matches!(change, BridgeChange::Fdb(e) if e.mac == STATION && e.port == ifindex)
    };
    expect(&monitor, "learnt", at(0));
    net.send(1, STATION);
    net.learnt(STATION, 1);
    expect(&monitor, "moved", at(1));
    net.ageing(AGEING);
    expect(
        &monitor,
        "aged",
        |change| matches!(change, BridgeChange::FdbGone(e) if e.mac == STATION && e.port == net.ports[1].ifindex),
    );
    assert_eq!(net.entry(STATION), None);
    let own = net.entry(net.ports[0].mac).unwrap();
    assert_eq!(own.kind, FdbKind::Local);
    let ports = net.switch.run(|| bridge::ports(net.bridge).unwrap()).unwrap();
    assert!(!ports.contains_key(&own.mac), "{ports:?}");
}

/// Touches a new entry until others, which come after it and are not touched, are gone twice. False
/// where it is gone after it was not touched for its ageing time.
fn outlives_others(net: &Net) -> bool {
    let monitor = net.monitor();
    let start = Instant::now();
    let entry = net.learns(STATION, 0);
    let mut touched = start;
    let too_late = |touched: Instant| assert!(touched.elapsed() >= AGEING, "it is gone too early");
    for _ in 0..2 {
        net.learns(OTHER, 0);
        loop {
            let now = Instant::now();
            if !net.touch(&entry) {
                too_late(touched);
                return false;
            }
            touched = now;
            let changes = monitor.next(Some(AGEING / 20)).unwrap();
            let gone = |c: &BridgeChange| matches!(c, BridgeChange::FdbGone(e) if e.mac == OTHER);
            if changes.iter().any(gone) {
                break;
            }
            assert!(start.elapsed() < 2 * AGED, "the other entry does not age");
        }
    }
    assert!(start.elapsed() > AGEING);
    let found: Vec<FdbEntry> = net.fdb().into_iter().filter(|e| e.mac == STATION).collect();
    // More than one: they have been added in VLANs of the port.
    let [now] = found[..] else {
        assert!(found.is_empty(), "{found:?}");
        too_late(touched);
        return false;
    };
    assert_eq!(FdbEntry { updated: None, ..now }, FdbEntry { updated: None, ..entry });
    assert!(now.updated.is_some_and(|age| age < start.elapsed()), "{now:?}");
    true
}

#[test]
fn an_entry_that_is_touched_outlives_its_ageing_time() {
    let Some(net) = Net::of("an_entry_that_is_touched_outlives_its_ageing_time") else { return };
    net.ageing(AGEING);
    // A machine that is too busy to touch it in time begins anew.
    let outlived = (0..10).any(|_| outlives_others(&net));
    assert!(outlived, "it was never touched in time");
    let shown = net.switch.tool("bridge").unwrap().args(["-d", "fdb", "show"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(!shown.contains("activity_notify"), "{shown}");
}

/// Nothing that is touched by an old entry comes back, moves, or begins to age.
#[test]
fn what_has_changed_is_not_touched() {
    let Some(net) = Net::of("what_has_changed_is_not_touched") else { return };
    net.send(0, STATION);
    let old = net.learnt(STATION, 0);
    net.send(1, STATION);
    net.learnt(STATION, 1);
    assert!(!net.touch(&old));
    let now = net.entry(STATION).unwrap();
    assert_eq!(now.port, net.ports[1].ifindex);
    net.set("link set br0 type bridge fdb_flush\n");
    assert!(!net.touch(&now));
    assert_eq!(net.entry(STATION), None);
    net.bridge(&format!("fdb add {STATION} dev p2 master static"));
    net.bridge(&format!("fdb add {OTHER} dev p2 master sticky dynamic"));
    assert!(!net.touch(&now));
    assert_eq!(net.entry(STATION).unwrap().kind, FdbKind::Static);
    let sticky = net.learnt(OTHER, 1);
    assert_eq!((sticky.kind, net.touch(&sticky)), (FdbKind::Learnt, true));
    net.send(0, OTHER);
    net.send(0, Mac([2, 0, 0, 0, 0, 0x33]));
    net.learnt(Mac([2, 0, 0, 0, 0, 0x33]), 0);
    assert_eq!(net.entry(OTHER).unwrap().port, net.ports[1].ifindex, "still sticky");
}

#[test]
fn many_are_touched_at_once() {
    let Some(net) = Net::of("many_are_touched_at_once") else { return };
    let station = |n: u8| Mac([2, 0, 0, 0, 1, n]);
    (0..200).for_each(|n| net.send(usize::from(n % 2), station(n)));
    net.learnt(station(199), 1);
    let learnt = || -> Vec<FdbEntry> {
        let ours = |entry: &FdbEntry| entry.mac.0[4] == 1 && entry.kind == FdbKind::Learnt;
        net.fdb().into_iter().filter(ours).collect()
    };
    let mut entries = wait_for("all stations", SOON, || {
        let entries = learnt();
        if entries.len() == 200 { Ok(entries) } else { Err(entries.len().to_string()) }
    })
    .unwrap();
    entries.push(FdbEntry { mac: OTHER, ..entries[0] });
    let youngest = || learnt().iter().filter_map(|entry| entry.updated).min();
    wait_until("age", SOON, || youngest() > Some(Duration::ZERO)).unwrap();
    let monitor = net.monitor();
    let touched = net.switch.run(|| bridge::touch_all(&entries).unwrap()).unwrap();
    assert_eq!(touched, 200);
    // Each is told as the entry that it is.
    let mut told = HashSet::new();
    for change in drain(&monitor) {
        let BridgeChange::Fdb(entry) = change else { continue };
        if entry.mac.0[4] != 1 {
            continue;
        }
        assert_eq!((entry.kind, entry.updated), (FdbKind::Learnt, Some(Duration::ZERO)));
        told.insert(entry.mac);
    }
    assert_eq!(told.len(), 200);
}

#[test]
fn settings_and_states_of_bridge_and_ports() {
    let Some(net) = Net::of("settings_and_states_of_bridge_and_ports") else { return };
    let monitor = net.monitor();
    let bridge = net.read();
    assert_eq!((bridge.name.as_str(), bridge.up, bridge.stp), ("br0", true, Stp::Off));
    assert_eq!(bridge.ageing, Duration::from_secs(300));
    assert!(!(bridge.vlan_filtering || bridge.mst || bridge.topology_change));
    let no_bridge = net.switch.run(|| bridge::bridge(net.ports[0].ifindex).unwrap()).unwrap();
    assert_eq!(no_bridge, None);
    let port = net.port(0);
    assert_eq!((port.state, port.name.as_str()), (PortState::Forwarding, "p1"));
    assert!(port.learning && !(port.hairpin || port.isolated || port.locked));

    net.bridge("link set dev p1 state 0");
    expect(&monitor, "state", |change| *change == BridgeChange::Link);
    assert_eq!(net.port(0).state, PortState::Disabled);
    assert_eq!(net.port(1).state, PortState::Forwarding);
    net.set(
        "link set p1 type bridge_slave hairpin on isolated on locked on learning off \
         proxy_arp on neigh_suppress on backup_port p2\n",
    );
    let port = net.port(0);
    assert!(port.hairpin && port.isolated && port.locked && !port.learning);
    assert!(port.proxy_arp && port.neigh_suppress && !port.proxy_arp_wifi);
    assert_eq!(port.backup_port, Some(net.ports[1].ifindex));

    // The spanning tree begins with listening at a port that comes up.
    net.set(
        "link set br0 type bridge stp_state 1 forward_delay 3000 nf_call_iptables 1\n\
         link set p2 down\nlink set p2 up\n",
    );
    let bridge = net.read();
    assert_eq!((bridge.stp, bridge.forward_delay), (Stp::Kernel, Duration::from_secs(30)));
    assert!(bridge.nf_call_iptables && !bridge.nf_call_ip6tables);
    let state = || net.port(1).state;
    wait_until("listening", SOON, || state() == PortState::Listening).unwrap();
}

/// What a port does with VLANs, and entries that are of a VLAN.
#[test]
fn vlans_are_those_of_the_port() {
    let Some(net) = Net::of("vlans_are_those_of_the_port") else { return };
    if net.switch.ip("link set br0 type bridge vlan_filtering 1\n").is_err() {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: this kernel's bridges filter no VLANs");
        return;
    }
    let monitor = net.monitor();
    net.bridge("vlan add dev p1 vid 10-20");
    expect(&monitor, "VLANs", |change| *change == BridgeChange::Link);
    net.bridge("vlan add dev p1 vid 30 pvid untagged");
    net.bridge("vlan set dev p1 vid 12 state blocking");
    let port = net.port(0);
    assert!(net.read().vlan_filtering && port.pvid == 30);
    let of = |vid: u16| {
        let range = port.vlans.iter().find(|range| (range.first..=range.last).contains(&vid));
        range.map(|range| (range.untagged, range.state))
    };
    assert_eq!(of(30), Some((true, PortState::Forwarding)));
    assert_eq!(of(10), Some((false, PortState::Forwarding)));
    assert_eq!((of(12), of(21)), (Some((false, PortState::Blocking)), None));
    assert_eq!(net.port(1).pvid, 1);

    net.send(0, STATION);
    let entry = net.learnt(STATION, 0);
    assert_eq!((entry.vlan, net.touch(&entry)), (30, true));
    assert_eq!(net.fdb().iter().filter(|entry| entry.mac == STATION).count(), 1);
    assert!(!net.touch(&FdbEntry { vlan: 10, ..entry }));
}

#[test]
fn changes_that_are_lost_are_told() {
    let Some(net) = Net::of("changes_that_are_lost_are_told") else { return };
    let monitor = net.monitor();
    (0..250).for_each(|n| net.send(0, Mac([2, 0, 0, 0, 1, n])));
    net.learnt(Mac([2, 0, 0, 0, 1, 249]), 0);
    assert!(!drain(&monitor).contains(&BridgeChange::Lost));
    set_socket_recv_buffer_size(&monitor, 1).unwrap();
    net.set("link set br0 type bridge fdb_flush\n");
    expect(&monitor, "lost", |change| *change == BridgeChange::Lost);
}
