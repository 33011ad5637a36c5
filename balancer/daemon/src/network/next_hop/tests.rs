//! Ways on made-up routes and neighbours.

use ringway_host::netlink::links::VlanTag;

use super::*;
use crate::testing::{interface, parsed};

fn link(ifindex: u32, below: Option<(u32, u16, u16)>) -> Link {
    let mut link: Link = serde_json::from_value(serde_json::json!({
        "ifindex": ifindex, "name": format!("if{ifindex}"), "mtu": 1500, "loopback": false,
        "up": true, "carrier": true, "operstate": "up", "rx_queues": 1, "tx_queues": 1,
        "lower_elsewhere": false, "xdp": [], "kind": null, "mac": null, "master": null,
        "lower": below.map(|(lower, ..)| lower),
    }))
    .unwrap();
    link.vlan = below.map(|(_, protocol, id)| VlanTag { protocol, id });
    link
}

fn ours(slot: u32, ifindex: u32) -> Interface {
    interface(slot, ifindex, &format!("if{ifindex}"))
}

fn node(names: &[&str]) -> Node {
    let forward = "[forward]\nmode = \"route\"";
    parsed(&format!("[node]\nname = \"gw\"\ninterfaces = {names:?}\n{forward}\n")).node
}

#[test]
fn an_interface_is_who_we_are_on_else_who_has_its_name() {
    let slots = InterfaceSlots::assign(&node(&["if1", "if2"]), &[], |_| None);
    let named = |ifindex, name: &str| {
        let mut link = link(ifindex, None);
        (link.name, link.mac) = (name.to_owned(), Some(Mac([2; 6])));
        link
    };
    let resolve = |known: &[(u32, u32)], all: &[Link]| {
        let found = find(&slots, &known.iter().copied().collect(), all);
        let indexes = found.interfaces.iter().map(|i| (i.slot, i.ifindex)).collect::<Vec<_>>();
        (indexes, found.renamed)
    };
    let all = [named(1, "if1"), named(2, "wan"), named(3, "if2")];
    let renamed = vec![("if2".to_owned(), "wan".to_owned())];
    assert_eq!(resolve(&[(0, 1), (1, 2)], &all), (vec![(0, 1), (1, 2)], renamed));
    // Where we are not any more, the name counts; and where nobody has it, there is none.
    assert_eq!(resolve(&[(0, 1)], &all), (vec![(0, 1), (1, 3)], vec![]));
    assert_eq!(resolve(&[(0, 1)], &all[..2]), (vec![(0, 1)], vec![]));
    // Made anew: another index.
    assert_eq!(resolve(&[(0, 7), (1, 2)], &all).0, [(0, 1), (1, 2)]);
}

#[test]
fn a_virtual_routers_address_is_ours() {
    let slots = InterfaceSlots::assign(&node(&["if1"]), &[], |_| None);
    let own = Link { mac: Some(Mac([2; 6])), ..link(1, None) };
    let upon =
        |mac, lower, up| Link { lower: Some(lower), mac: Some(Mac(mac)), up, ..link(2, None) };
    let second =
        |upon: Link| find(&slots, &HashMap::new(), &[own.clone(), upon]).interfaces[0].alt_mac;
    let (vrrp4, vrrp6) = ([0, 0, 0x5e, 0, 1, 51], [0, 0, 0x5e, 0, 2, 51]);
    assert_eq!(second(upon(vrrp4, 1, true)), Some(vrrp4));
    assert_eq!(second(upon(vrrp6, 1, true)), Some(vrrp6));
    assert_eq!(second(upon(vrrp4, 3, true)), None, "upon another");
    assert_eq!(second(upon(vrrp4, 1, false)), None, "down");
    assert_eq!(second(upon([2, 0, 0, 0, 0, 9], 1, true)), None, "a container's");
}

#[test]
fn without_a_carrier_an_interface_is_cut_off_as_one_that_is_down() {
    let node = node(&["if1", "if2", "if3"]);
    let all: Vec<Link> = [(1, true, true), (2, true, false), (3, false, false)]
        .map(|(ifindex, up, carrier)| Link {
            up,
            carrier,
            mac: Some(Mac([2; 6])),
            ..link(ifindex, None)
        })
        .into();
    let found = find(&InterfaceSlots::assign(&node, &[], |_| None), &HashMap::new(), &all);
    assert_eq!(
        (found.no_carrier.as_slice(), found.down.as_slice()),
        (&["if2".into()][..], &["if3".into()][..])
    );
    assert!(!found.is_cut_off("if1") && found.is_cut_off("if2") && found.is_cut_off("if3"));
}

/// What was known holds while the kernel asks, but not where nobody could answer.
#[test]
fn a_link_that_is_down_leads_to_nobody() {
    let next_hop = (1, "10.0.0.2".parse().unwrap());
    let known = KnownMac { mac: Mac([2; 6]), missing_since: None };
    let before: KnownMacs = [(next_hop, known)].into();
    for (up, carrier, leads) in [(true, true, true), (true, false, false), (false, false, false)] {
        let links = vec![Link { up, carrier, ..link(1, None) }];
        let (neighbours, ports) = (HashMap::new(), HashMap::new());
        let kernel = Kernel { interfaces: &[], before: &before, links, neighbours, ports };
        assert_eq!(kernel.mac(next_hop).is_some(), leads, "up {up}, carrier {carrier}");
    }
}

#[test]
fn only_a_tap_without_marks_sends_checksums_as_they_are() {
    for (kind, vnet_header, tx_checksum, raw) in [
        (Some("tun"), Some(false), Some(false), true),
        // Its reader finishes them, or is told which are unfinished, or it is not known.
        (Some("tun"), Some(false), Some(true), false),
        (Some("tun"), Some(true), Some(false), false),
        (Some("tun"), None, Some(false), false),
        (Some("tun"), Some(false), None, false),
        // A NIC, and devices of software, go by the mark.
        (None, None, Some(false), false),
        (None, None, None, false),
        (Some("veth"), None, Some(false), false),
    ] {
        let link = Link { kind: kind.map(str::to_owned), vnet_header, ..link(1, None) };
        assert_eq!(is_raw(&link, tx_checksum), raw, "{kind:?} {vnet_header:?} {tx_checksum:?}");
    }
}

#[test]
fn vlan_devices_upon_our_interfaces() {
    let all = [
        link(1, None),
        link(2, Some((1, 0x8100, 100))),
        link(3, Some((1, 0x88a8, 7))),
        link(4, Some((3, 0x8100, 200))),
        link(5, Some((4, 0x8100, 300))),
        link(6, None),
        link(7, Some((6, 0x8100, 100))),
    ];
    let mut interfaces = vec![ours(0, 1), ours(5, 2), ours(6, 4), ours(7, 5), ours(8, 7)];
    find_vlans(&mut interfaces, &all);
    let found: Vec<_> =
        interfaces.into_iter().map(|i| i.vlan.map(|v| (v.device, v.tags))).collect();
    assert_eq!(
        found,
        [
            None,
            Some((0, vec![(0x8100, 100)])),
            Some((0, vec![(0x88a8, 7), (0x8100, 200)])),
            // Three tags; and one whose device below is not ours: met on itself.
            None,
            None,
        ]
    );
}
