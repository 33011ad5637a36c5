//! Facts read from live network namespaces. Needs root.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv6Addr};
use std::sync::mpsc::channel;
use std::time::Duration;

use ringway_host::neighbour_packets::multicast;
use ringway_host::netlink::neighbours::{self, NeighbourState};
use ringway_host::netlink::routes::{self, RouteKind};
use ringway_host::netlink::{addresses, links, xdp_features};
use ringway_host::{Error, Host, Mac, NetlinkChange, NetlinkMonitor, Network, announce};
use ringway_testnet::{
    End, Families, Link, Namespace, VethOptions, root_or_skip, skip, two_armed, veth, wait_for,
    wait_until,
};
use ringway_wire::nd::Neighbour;

const SOON: Duration = Duration::from_secs(30);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Skips the test without root.
fn pair(test: &str) -> Option<(Namespace, Namespace, Link, Link)> {
    if !root_or_skip(test) {
        return None;
    }
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let end_a = End::new(&a, "eth0").address("10.0.0.1/24").address("fd00::1/64");
    let end_b = End::new(&b, "eth0").address("10.0.0.2/24").address("fd00::2/64");
    let (link_a, link_b) = veth(&end_a, &end_b, &VethOptions::default()).unwrap();
    Some((a, b, link_a, link_b))
}

#[test]
fn multicast_addresses_are_received_until_given_up() {
    let Some((a, _b, link, _)) = pair("multicast_addresses_are_received_until_given_up") else {
        return;
    };
    let group = Neighbour::solicited_nodes("fd00::ab:cdef".parse().unwrap());
    let mac = Mac::of_multicast(group);
    let shown = || {
        let output = a.command("ip").args(["maddr", "show", "dev", "eth0"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text.contains(&mac.to_string()), text.contains(&group.to_string()))
    };
    a.run(|| {
        // Twice is as good as once, and others' needs stay.
        multicast::receive(link.ifindex, mac).unwrap();
        multicast::receive(link.ifindex, mac).unwrap();
        assert_eq!(shown(), (true, false));
        let (memberships, errors) = multicast::Memberships::join([(link.ifindex, group)]);
        assert!(errors.is_empty() && shown() == (true, true), "{errors:?}");
        assert!(multicast::stop_receiving(link.ifindex, mac).unwrap());
        assert_eq!(shown(), (true, true));
        drop(memberships);
        assert_eq!(shown(), (false, false));
        assert!(!multicast::stop_receiving(link.ifindex, mac).unwrap());
        // More than one socket has memory for.
        let many =
            (0..2000).map(|n| (link.ifindex, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, n)));
        let (_memberships, errors) = multicast::Memberships::join(many);
        assert!(errors.is_empty(), "{errors:?}");
    })
    .unwrap();
}

#[test]
fn routes_lead_where_the_kernel_would_go() {
    let Some((a, _b, link, _)) = pair("routes_lead_where_the_kernel_would_go") else { return };
    a.ip("route add 10.9.0.0/16 via 10.0.0.2 mtu 1400 src 10.0.0.1\n\
          route add default via fd00::2\n\
          route add 10.7.0.0/16 via inet6 fd00::2 dev eth0\n\
          route add blackhole 10.8.0.0/16\nroute add unreachable 10.6.0.0/16\n\
          route add prohibit fd06::/16\nroute add blackhole fd08::/16\n")
        .unwrap();
    a.run(|| {
        let direct = routes::route_to(ip("10.0.0.9")).unwrap();
        assert_eq!((direct.ifindex, direct.kind), (link.ifindex, RouteKind::Unicast));
        assert_eq!((direct.gateway, direct.next_hop()), (None, ip("10.0.0.9")));
        assert_eq!((direct.source, direct.mtu), (Some(ip("10.0.0.1")), None));

        let far = routes::route_to(ip("10.9.1.1")).unwrap();
        assert_eq!((far.gateway, far.mtu), (Some(ip("10.0.0.2")), Some(1400)));
        let far = routes::route_to(ip("2001:db8::1")).unwrap();
        assert_eq!((far.next_hop(), far.source), (ip("fd00::2"), Some(ip("fd00::1"))));
        assert_eq!(routes::route_to(ip("10.7.1.1")).unwrap().next_hop(), ip("fd00::2"));

        assert_eq!(routes::route_to(ip("10.0.0.1")).unwrap().kind, RouteKind::Local);
        assert_eq!(routes::route_to(ip("fd00::1")).unwrap().kind, RouteKind::Local);
        for refused in ["10.8.0.1", "10.6.0.1", "11.0.0.1", "fd06::1", "fd08::1"] {
            let error = routes::route_to(ip(refused)).unwrap_err();
            assert!(matches!(error, Error::NoRoute { .. }), "{refused}: {error:?}");
        }
        let all = routes::all().unwrap();
        let wanted = [link.ifindex];
        assert_eq!(routes::default_interfaces(&all).into_iter().collect::<Vec<_>>(), wanted);
        assert!(all.iter().any(|r| r.destination == ip("10.9.0.0") && r.prefix == 16));
    })
    .unwrap();
}

#[test]
fn addresses_and_their_holders() {
    let Some((a, _b, link, _)) = pair("addresses_and_their_holders") else { return };
    a.run(|| {
        for address in ["10.0.0.1", "fd00::1"] {
            let held = addresses::holder(ip(address)).unwrap().unwrap();
            assert_eq!((held.ifindex, held.unusable), (link.ifindex, false));
        }
        assert_eq!(addresses::holder(ip("10.0.0.2")).unwrap(), None);
    })
    .unwrap();
}

#[test]
fn kept_neighbours_stay_resolved() {
    let Some((a, b, link, far)) = pair("kept_neighbours_stay_resolved") else { return };
    a.run(|| {
        for address in [ip("10.0.0.2"), ip("fd00::2")] {
            assert_eq!(neighbours::get(link.ifindex, address).unwrap(), None);
            neighbours::keep(link.ifindex, address).unwrap();
            let mac = wait_for(format!("neighbour {address}"), SOON, || {
                let found = neighbours::get(link.ifindex, address).unwrap();
                found.as_ref().and_then(|n| n.usable()).ok_or(format!("{found:?}"))
            });
            assert_eq!(mac.unwrap(), far.mac);
            neighbours::keep(link.ifindex, address).unwrap();
            let listed = neighbours::all().unwrap();
            assert!(listed.iter().any(|n| n.address == address && n.managed), "{listed:?}");
            neighbours::release(link.ifindex, address).unwrap();
            assert!(!neighbours::get(link.ifindex, address).unwrap().unwrap().managed);
        }
        // One that does not answer is no error: it fails, and the kernel goes on asking.
        neighbours::keep(link.ifindex, ip("10.0.0.77")).unwrap();
        let state = || neighbours::get(link.ifindex, ip("10.0.0.77")).unwrap().unwrap().state;
        // Three seconds, unless the kernel's next round begins just then.
        wait_until("failure of a silent neighbour", SOON, || state() == NeighbourState::Failed)
            .unwrap();
    })
    .unwrap();
    // It comes to life without anybody sending to it.
    b.ip("addr add 10.0.0.77/24 dev eth0").unwrap();
    a.run(|| {
        wait_until("the kernel asking again", SOON, || {
            let found = neighbours::get(link.ifindex, ip("10.0.0.77")).unwrap();
            found.is_some_and(|n| n.usable() == Some(far.mac))
        })
        .unwrap();
    })
    .unwrap();
}

#[test]
fn entries_set_by_hand_are_left_alone() {
    let Some((a, _b, link, _)) = pair("entries_set_by_hand_are_left_alone") else { return };
    a.ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud permanent").unwrap();
    a.run(|| {
        neighbours::keep(link.ifindex, ip("10.0.0.2")).unwrap();
        let entry = neighbours::get(link.ifindex, ip("10.0.0.2")).unwrap().unwrap();
        assert_eq!(entry.state, NeighbourState::Permanent);
        assert_eq!(entry.usable(), Some(Mac([2, 0, 0, 0, 0, 0x99])));
    })
    .unwrap();
}

#[test]
fn announcements_change_the_neighbours_mind() {
    let Some((a, b, link_a, link_b)) = pair("announcements_change_the_neighbours_mind") else {
        return;
    };
    let new = Mac([2, 0, 0, 0, 0, 0x42]);
    b.ip("neigh add 10.0.0.50 lladdr 02:00:00:00:00:41 dev eth0 nud stale\n\
          neigh add fd00::50 lladdr 02:00:00:00:00:41 dev eth0 nud stale\n")
        .unwrap();
    for address in [ip("10.0.0.50"), ip("fd00::50")] {
        a.run(|| announce(link_a.ifindex, new, address).unwrap()).unwrap();
        let seen =
            || b.run(|| neighbours::get(link_b.ifindex, address).unwrap().unwrap().mac).unwrap();
        wait_until(format!("{address} at its new place"), SOON, || seen() == Some(new)).unwrap();
    }
    let gone = a.run(|| announce(999, new, ip("10.0.0.50")).unwrap_err().to_string()).unwrap();
    assert!(gone.contains("999"), "{gone}");
}

#[test]
fn the_monitor_tells_changes() {
    let Some((a, b, link, far)) = pair("the_monitor_tells_changes") else { return };
    let monitor = a.run(|| NetlinkMonitor::open().unwrap()).unwrap();
    // Nothing happens but that the kernel settles: link-local addresses may still appear.
    wait_until("quiet", SOON, || monitor.next(Some(Duration::from_millis(50))).unwrap().is_empty())
        .unwrap();
    let (sender, changes) = channel();
    // Read outside the namespace that it was opened in.
    let thread = monitor.spawn(move |change| sender.send(change).is_ok()).unwrap();
    let expect = |what: &str, wanted: &dyn Fn(&NetlinkChange) -> bool| {
        while !wanted(&changes.recv_timeout(SOON).unwrap_or_else(|e| panic!("{what}: {e}"))) {}
    };
    let added = ip("10.0.0.3");
    a.ip("addr add 10.0.0.3/24 dev eth0").unwrap();
    expect("address", &|c| matches!(c, NetlinkChange::Address(a) if a.address == added));
    a.ip("addr del 10.0.0.3/24 dev eth0").unwrap();
    expect("address gone", &|c| matches!(c, NetlinkChange::AddressGone(a) if a.address == added));
    a.ip("route add 10.9.0.0/16 via 10.0.0.2").unwrap();
    expect("route", &|c| *c == NetlinkChange::Routes);
    a.run(|| neighbours::keep(link.ifindex, ip("10.0.0.2")).unwrap()).unwrap();
    expect(
        "neighbour",
        &|c| matches!(c, NetlinkChange::Neighbour(n) if n.usable() == Some(far.mac)),
    );
    b.ip("link set eth0 down").unwrap();
    expect(
        "carrier lost",
        &|c| matches!(c, NetlinkChange::Link(l) if l.ifindex == link.ifindex && !l.carrier),
    );
    b.ip("link del eth0").unwrap();
    expect("link gone", &|c| matches!(c, NetlinkChange::LinkGone { name, .. } if name == "eth0"));
    drop(thread);
    assert!(changes.try_iter().count() < 100);
}

#[test]
fn bridges_and_ports_are_told_apart() {
    if !root_or_skip("bridges_and_ports_are_told_apart") {
        return;
    }
    let net = two_armed(1, Families::V4).unwrap();
    net.switch
        .run(|| {
            let bridge = links::by_name("br0").unwrap();
            assert_eq!(bridge.kind.as_deref(), Some("bridge"));
            let port = links::by_name("b1").unwrap();
            assert_eq!(port.master, Some(bridge.ifindex));
            assert!(port.lower_elsewhere && port.lower.is_some());
        })
        .unwrap();
}

#[test]
fn the_whole_network_can_be_stored() {
    let Some((a, _b, link, far)) = pair("the_whole_network_can_be_stored") else { return };
    a.ip("route add default via 10.0.0.2").unwrap();
    a.sysctl("net.ipv4.ip_local_port_range", "40000 41000").unwrap();
    a.run(|| {
        neighbours::keep(link.ifindex, ip("10.0.0.2")).unwrap();
        wait_until("the neighbour", SOON, || {
            let found = neighbours::get(link.ifindex, ip("10.0.0.2")).unwrap();
            found.is_some_and(|n| n.usable() == Some(far.mac))
        })
        .unwrap();
        let network = Host::live().network().unwrap();
        let eth0 = network.interface("eth0").unwrap();
        assert!(eth0.carries_default_route && eth0.usable() && !eth0.offloads.tx_checksum);
        assert!(!network.interface("lo").unwrap().carries_default_route);
        assert_eq!(eth0.driver.as_ref().unwrap().name, "veth");
        assert_eq!(network.peer(eth0), None);
        assert_eq!(network.holder(ip("10.0.0.1")).unwrap().ifindex, link.ifindex);
        assert_eq!(Host::live().local_ports().unwrap(), 40000..=41000);
        assert!(!Host::live().first_network_namespace());
        let json = serde_json::to_string(&network).unwrap();
        assert_eq!(serde_json::from_str::<Network>(&json).unwrap(), network);
    })
    .unwrap();
}

#[test]
fn a_peer_in_the_same_namespace_is_found() {
    if !root_or_skip("a_peer_in_the_same_namespace_is_found") {
        return;
    }
    let ns = Namespace::new("peer").unwrap();
    veth(&End::new(&ns, "left"), &End::new(&ns, "right"), &VethOptions::default()).unwrap();
    let network = ns.run(|| Host::live().network().unwrap()).unwrap();
    let peer = network.peer(network.interface("left").unwrap()).unwrap();
    assert_eq!(peer.link.name, "right");
}

/// veth tells programs the hash of what comes from a stack, and does nothing as it sends.
#[test]
fn what_drivers_can_do() {
    let Some((a, _b, link, _)) = pair("what_drivers_can_do") else { return };
    let Some(devices) = a.run(xdp_features::devices).unwrap().unwrap() else {
        return skip("what_drivers_can_do", "this kernel does not tell");
    };
    let veth = devices[&link.ifindex];
    assert!(veth.xdp.native(), "{veth:?}");
    assert_eq!(veth.zero_copy_frames, None);
    assert!(veth.rx_hints.is_none_or(|bits| xdp_features::rx_hints(bits).contains(&"hash")));
    assert!(veth.tx_metadata.is_none_or(|bits| xdp_features::tx_metadata(bits).is_empty()));
}
