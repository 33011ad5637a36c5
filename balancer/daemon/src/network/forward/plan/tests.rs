use std::collections::HashMap;

use ringway_config::Located;
use ringway_host::Mac;
use ringway_host::bypassed::Bypassed;
use ringway_host::netlink::bridge::{FdbKind, Stp, VlanRange};
use ringway_host::netlink::links::VlanTag;
use ringway_host::netlink::routes::RouteKind;

use super::*;
use crate::preflight::tests::link;

const BRIDGE: u32 = 10;

/// Interfaces p1 and p2 of `[forward]`, whose indexes are 1 and 2, and what is around them.
pub struct Machine {
    forward: InterfaceForward,
    facts: Facts,
}

impl Machine {
    /// Ports of br0.
    pub fn bridge() -> Self {
        let mut machine = Self::new(ForwardMode::Bridge);
        let bridge = Bridge {
            ifindex: BRIDGE,
            name: "br0".into(),
            up: true,
            ageing: Duration::from_secs(300),
            forward_delay: Duration::from_secs(15),
            stp: Stp::Off,
            topology_change: false,
            mst: false,
            vlan_filtering: false,
            vlan_protocol: 0x8100,
            default_pvid: 1,
            nf_call_iptables: false,
            nf_call_ip6tables: false,
            nf_call_arptables: false,
        };
        machine.facts.links.push(Link { kind: Some("bridge".into()), ..link(BRIDGE, "br0") });
        machine.facts.bridges.insert(BRIDGE, (bridge, vec![port(1, BRIDGE), port(2, BRIDGE)]));
        for name in ["p1", "p2"] {
            machine.link(name).master = Some(BRIDGE);
        }
        machine
    }

    /// A router's interfaces.
    fn route() -> Self {
        let mut machine = Self::new(ForwardMode::Route);
        let routing = Routing { forwards_v4: true, forwards_v6: false, rp_filter: 1 };
        machine.facts.routing = ["p1", "p2"].map(|name| (name.to_owned(), routing)).into();
        machine
    }

    fn new(mode: ForwardMode) -> Self {
        let names = ["p1", "p2"];
        let interfaces = names.map(|name| Located::from(name.to_owned())).into();
        Self {
            forward: InterfaceForward {
                mode,
                interfaces,
                bypass_firewall: false,
                by_options: true,
            },
            facts: Facts {
                links: vec![link(1, "p1"), link(2, "p2")],
                takes_tags: names.map(|name| (name.to_owned(), false)).into(),
                ..Facts::default()
            },
        }
    }

    fn link(&mut self, name: &str) -> &mut Link {
        self.facts.links.iter_mut().find(|link| link.name == name).expect("a link")
    }

    fn settings(&mut self) -> &mut Bridge {
        &mut self.facts.bridges.get_mut(&BRIDGE).expect("br0").0
    }

    pub fn port(&mut self, name: &str) -> &mut BridgePort {
        let (_, ports) = self.facts.bridges.get_mut(&BRIDGE).expect("br0");
        ports.iter_mut().find(|port| port.name == name).expect("a port")
    }

    /// The port that is planned first, p1.
    fn first(&self) -> PlannedPort {
        planned(self).ports.remove(0)
    }

    /// Why p1 does not forward, whether that forbids a start, and the remedy.
    fn trouble(&self) -> (String, bool, String) {
        let first = self.first();
        assert_eq!(first.port, Port::default(), "nothing is written for it");
        let Obstacle { found, fix, forbids_start } = first.trouble.expect("trouble");
        (found, forbids_start, fix.to_string())
    }
}

fn port(ifindex: u32, bridge: u32) -> BridgePort {
    BridgePort {
        ifindex,
        name: format!("p{ifindex}"),
        bridge,
        state: PortState::Forwarding,
        learning: true,
        hairpin: false,
        isolated: false,
        locked: false,
        proxy_arp: false,
        proxy_arp_wifi: false,
        neigh_suppress: false,
        vlan_tunnel: false,
        backup_port: None,
        pvid: 1,
        vlans: vec![range(1, 1, true)],
    }
}

fn range(first: u16, last: u16, untagged: bool) -> VlanRange {
    VlanRange { first, last, untagged, state: PortState::Forwarding }
}

pub fn planned(machine: &Machine) -> Plan {
    plan(&machine.forward, &[(4, "p1".into()), (5, "p2".into())], &machine.facts)
}

#[test]
fn ports_of_a_bridge_forward() {
    let plan = planned(&Machine::bridge());
    assert!(plan.obstacles.is_empty() && plan.ports.iter().all(|port| port.trouble.is_none()));
    assert_eq!(plan.ways(), [(1, 4), (2, 5)]);
    assert_eq!(plan.bridge.as_ref().map(|bridge| bridge.ifindex), Some(BRIDGE));
    assert_eq!(plan.ports[0].port, Port { forwards: true, ..Port::default() });
}

/// The kernel gives VLAN devices their frames before the bridge has them.
#[test]
fn vlan_devices_upon_a_port() {
    let mut machine = Machine::bridge();
    let vlan = Some(VlanTag { protocol: 0x8100, id: 10 });
    machine.facts.links.push(Link { vlan, lower: Some(1), ..link(20, "p1.10") });
    // Upon another one.
    machine.facts.links.push(Link { vlan, lower: Some(9), ..link(21, "p9.10") });
    let (found, forbids, _) = machine.trouble();
    assert!(found.contains("(p1.10)") && forbids, "{found}");
    assert!(planned(&machine).ports[1].trouble.is_none());
}

#[test]
fn a_vlan_device_is_no_port_to_forward_by() {
    let mut machine = Machine::bridge();
    machine.link("p1").vlan = Some(VlanTag { protocol: 0x8100, id: 10 });
    let (found, forbids, _) = machine.trouble();
    assert!(found.contains("VLAN device") && forbids, "{found}");
}

#[test]
fn spanning_trees_of_vlans_stop_all() {
    let mut machine = Machine::bridge();
    machine.settings().mst = true;
    let plan = planned(&machine);
    assert!(plan.obstacles[0].found.contains("MST") && plan.obstacles[0].forbids_start);
    assert_eq!(plan.obstacles[0].fix.to_string(), "ip link set br0 type bridge mst_enabled 0");
}

#[test]
fn tags_that_a_device_takes_off() {
    for mut machine in [Machine::bridge(), Machine::route()] {
        for known in [Some(true), None] {
            machine.facts.takes_tags =
                known.map(|takes| ("p1".to_owned(), takes)).into_iter().collect();
            let (found, forbids, fix) = machine.trouble();
            assert!(found.contains("takes VLAN tags off") && forbids, "{found}");
            assert_eq!(fix, "ethtool -K p1 rxvlan off");
        }
        // A sender's stack keeps them beside the frame, which no setting changes.
        machine.link("p1").kind = Some("veth".into());
        assert!(machine.first().trouble.is_none());
    }
}

#[test]
fn ports_of_two_bridges() {
    let mut machine = Machine::bridge();
    let (mut other, _) = machine.facts.bridges[&BRIDGE].clone();
    (other.ifindex, other.name) = (11, "br1".into());
    machine.facts.bridges.insert(11, (other, vec![port(2, 11)]));
    machine.link("p2").master = Some(11);
    let plan = planned(&machine);
    assert_eq!(plan.ways(), [(1, 4)]);
    let trouble = plan.ports[1].trouble.as_ref().expect("another bridge's");
    assert!(trouble.found.contains("port of br1, and others are of br0") && trouble.forbids_start);
}

#[test]
fn what_is_no_port_of_a_bridge() {
    let mut machine = Machine::bridge();
    machine.link("p1").master = None;
    let (found, forbids, fix) = machine.trouble();
    assert!(found.contains("no port of a bridge") && forbids, "{found}");
    let words = "ip link set p1 master br0; or, to forward by routes, add --route";
    assert!(fix.starts_with(words), "{fix}");
    machine.forward.by_options = false;
    let (_, _, fix) = machine.trouble();
    assert!(fix.contains("mode = \"route\" in [forward]") && !fix.contains("--route"), "{fix}");
    // The bridge itself.
    machine.link("p1").kind = Some("bridge".into());
    machine.link("p2").master = Some(1);
    let (found, _, fix) = machine.trouble();
    assert!(found.contains("it is a bridge") && fix.ends_with(": p2"), "{found}: {fix}");
}

#[test]
fn states_of_a_port_are_words() {
    for (state, word) in [
        (PortState::Disabled, "disabled"),
        (PortState::Listening, "listening"),
        (PortState::Learning, "learning"),
        (PortState::Blocking, "blocking"),
    ] {
        let mut machine = Machine::bridge();
        machine.port("p1").state = state;
        let (found, forbids, _) = machine.trouble();
        assert!(found.contains(word) && !forbids, "{found}");
        assert_eq!(planned(&machine).ways(), [(2, 5)]);
    }
}

#[test]
fn a_bridge_that_does_more_than_send_frames_on() {
    let settings: [fn(&mut BridgePort) -> &mut bool; 4] = [
        |port| &mut port.proxy_arp,
        |port| &mut port.proxy_arp_wifi,
        |port| &mut port.neigh_suppress,
        |port| &mut port.vlan_tunnel,
    ];
    for setting in settings {
        let mut machine = Machine::bridge();
        *setting(machine.port("p1")) = true;
        assert!(machine.trouble().2.starts_with("bridge link set dev p1 "));
    }
}

#[test]
fn vlans_of_a_port_that_forward() {
    let mut machine = Machine::bridge();
    machine.settings().vlan_filtering = true;
    let blocked = VlanRange { state: PortState::Blocking, ..range(30, 39, false) };
    machine.port("p1").vlans = vec![range(1, 1, true), range(10, 19, false), blocked];
    machine.port("p1").isolated = true;
    let members = vec![(1, 1, true), (10, 19, false)];
    let vlans = Some(PortVlans { protocol: 0x8100, pvid: 1, members });
    let expected = Port { forwards: true, isolated: true, vlans, ..Port::default() };
    assert_eq!(machine.first().port, expected);
    machine.link("p1").kind = Some("veth".into());
    assert!(machine.trouble().0.contains("filters VLANs"));
}

#[test]
fn rules_suspend_all_unless_they_are_to_be_bypassed() {
    for mut machine in [Machine::bridge(), Machine::route()] {
        let what = "2 rules of nftables".into();
        machine.facts.bypassed.push(Bypassed { what, fix: Fix::from("nft flush ruleset") });
        let plan = planned(&machine);
        let obstacle = &plan.obstacles[0];
        assert!(obstacle.found.contains("2 rules of nftables") && obstacle.forbids_start);
        assert!(obstacle.fix.to_string().contains("add --bypass-firewall"));
        machine.forward.bypass_firewall = true;
        assert!(planned(&machine).obstacles.is_empty());
    }
}

#[test]
fn interfaces_that_route() {
    let mut machine = Machine::route();
    let plan = planned(&machine);
    assert_eq!((plan.ways().len(), plan.bridge), (2, None));
    assert_eq!(plan.ports[0].port.reverse_path, ReversePath::Strict);
    machine.facts.routing = HashMap::new();
    assert!(machine.trouble().0.contains("does not forward"));
    let mut machine = Machine::route();
    machine.link("p1").carrier = false;
    assert!(machine.trouble().0.contains("no carrier"));
    machine.link("p1").master = Some(BRIDGE);
    assert!(machine.trouble().2.ends_with("leave out --route"), "{}", machine.trouble().2);
    machine.facts.links.remove(0);
    let gone = machine.first();
    assert!(gone.ifindex.is_none() && gone.trouble.is_some_and(|it| it.found == "it is not there"));
}

#[test]
fn addresses_of_this_host_or_whole_networks() {
    let mut machine = Machine::route();
    let local = |destination: &str, prefix| Route {
        destination: destination.parse().unwrap(),
        prefix,
        table: 255,
        kind: RouteKind::Local,
        ifindex: Some(1),
        gateway: None,
        source: None,
        mtu: None,
        priority: 0,
    };
    machine.facts.local_v4 = vec![local("127.0.0.0", 8), local("127.0.0.1", 32)];
    assert_eq!(planned(&machine).own, Some(Vec::new()));
    machine.facts.local_v4.push(local("192.0.2.1", 32));
    assert_eq!(planned(&machine).own, Some(vec![[192, 0, 2, 1].into()]));
    machine.facts.local_v4.push(local("198.51.100.0", 24));
    assert_eq!(planned(&machine).own, None);
}

#[test]
fn stations_are_read_anew_when_they_may_be_elsewhere() {
    let plan = planned(&Machine::bridge());
    let of = |change: fn(&mut Machine)| {
        let mut machine = Machine::bridge();
        change(&mut machine);
        planned(&machine)
    };
    let changes = of(|machine| machine.settings().topology_change = true);
    for (other, is_another) in [
        (of(|_| ()), false),
        (of(|machine| machine.settings().ageing = Duration::from_secs(3)), false),
        (of(|machine| machine.port("p1").isolated = true), false),
        (of(|machine| machine.port("p1").state = PortState::Blocking), true),
        (of(|machine| machine.settings().vlan_filtering = true), true),
        (changes.clone(), true),
    ] {
        assert_eq!(other.is_another_topology(&plan), is_another, "{other:?}");
    }
    // It lasts, and ends.
    assert!(!changes.is_another_topology(&changes) && !plan.is_another_topology(&changes));
}

#[test]
fn entries_that_age_are_refreshed_in_time() {
    let mut machine = Machine::bridge();
    let entry = |port, vlan| FdbEntry {
        mac: Mac([2, 0, 0, 0, 0, 9]),
        vlan,
        port,
        bridge: BRIDGE,
        kind: FdbKind::Learnt,
        updated: None,
    };
    machine.port("p2").learning = false;
    let plan = planned(&machine);
    assert!(plan.ages(&entry(1, 0)) && !plan.ages(&entry(2, 0)) && !plan.ages(&entry(3, 0)));
    machine.settings().vlan_filtering = true;
    let plan = planned(&machine);
    assert!(plan.ages(&entry(1, 5)) && !plan.ages(&entry(1, 0)));
    for (ageing, period) in [(300, 30), (40, 10), (3, 1), (0, 1)] {
        machine.settings().ageing = Duration::from_secs(ageing);
        assert_eq!(refresh_period(machine.settings()), Duration::from_secs(period));
    }
}
