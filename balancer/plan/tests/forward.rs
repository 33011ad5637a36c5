//! What forwarding modes put into the tables.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};

use ringway_config::{Config, parse};
use ringway_plan::tables::{BackendRow, Forward, NextHop, Tables, Tunnel};
use ringway_plan::{Observed, Planner};

const HOP: NextHop = NextHop { iface: 0, mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One service with an IPv4 and, where the mode allows it, an IPv6 backend.
fn config(forward: &str, service: &str, more: &str) -> Config {
    let six = if forward.contains("ipip") || forward.contains("gue") {
        ", { address = \"2001:db8::2\" }"
    } else {
        ""
    };
    let text = format!(
        "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\n\
         address = \"203.0.113.10\"\nport = 80\nforward = \"{forward}\"\n{service}\n\
         backends = [{{ address = \"10.0.0.2\" }}{six}]\n{more}\n"
    );
    parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Every backend reachable, from an address of the node.
fn well(config: &Config) -> Observed {
    let mut observed = Observed::default();
    for backend in &config.services[0].backends {
        let source = if backend.address.is_ipv4() { "10.0.0.1" } else { "2001:db8::1" };
        observed.next_hops.insert(*backend.address, HOP);
        observed.sources.insert(*backend.address, ip(source));
    }
    observed
}

fn plan(config: &Config, observed: &Observed) -> Tables {
    Planner::default().plan(config, observed).unwrap()
}

fn row<'t>(tables: &'t Tables, address: &str) -> &'t BackendRow {
    let endpoint = SocketAddr::new(ip(address), 80);
    tables.backends.iter().find(|row| row.endpoint() == endpoint).unwrap()
}

#[test]
fn the_mode_is_in_the_tables() {
    for (name, forward) in [
        ("nat", Forward::Nat),
        ("dsr-l2", Forward::DsrL2),
        ("dsr-ipip", Forward::DsrIpip),
        ("dsr-gue", Forward::DsrGue),
    ] {
        let config = config(name, "", "");
        let tables = plan(&config, &well(&config));
        assert_eq!(tables.services[0].forward, forward);
        assert!(!tables.services[0].source_client, "that is a matter of nat");
        let row = row(&tables, "10.0.0.2");
        assert_eq!(row.tunnel.is_some(), forward.is_tunnel());
        assert_eq!(row.next_hop, Some(HOP));
        assert_eq!(row.nat.1 > 0, forward == Forward::Nat);
    }
}

#[test]
fn own_addresses_are_nobodys_clients() {
    for forward in ["nat", "dsr-l2", "dsr-gue"] {
        let config = config(forward, "", "");
        let mut observed = well(&config);
        observed.own_addresses = [ip("10.0.0.1")].into();
        assert!(!plan(&config, &observed).own_addresses.is_empty(), "{forward}");
    }
}

#[test]
fn outer_sources_are_the_nodes_unless_configured() {
    let tunnel = |source: &str, port| Some(Tunnel { source: ip(source), port });
    let config_of = |more: &str| config("dsr-gue", "gue_port = 7000", more);
    let own = config_of("");
    let tables = plan(&own, &well(&own));
    assert_eq!(row(&tables, "10.0.0.2").tunnel, tunnel("10.0.0.1", 7000));
    assert_eq!(row(&tables, "2001:db8::2").tunnel, tunnel("2001:db8::1", 7000));

    let set = config_of("[tunnel]\nsource = \"10.0.0.99\"");
    let tables = plan(&set, &well(&set));
    assert_eq!(row(&tables, "10.0.0.2").tunnel, tunnel("10.0.0.99", 7000));
    assert_eq!(row(&tables, "2001:db8::2").tunnel, tunnel("2001:db8::1", 7000));

    // Nothing to write into the outer header: not reachable yet.
    let mut observed = well(&own);
    observed.sources.clear();
    let tables = plan(&own, &observed);
    assert_eq!(row(&tables, "10.0.0.2").next_hop, None);
}

#[test]
fn the_mss_fits_the_tunnel() {
    for (forward, service, v4, v6) in [
        ("dsr-ipip", "", 1500 - 20 - 40, 1500 - 40 - 40),
        ("dsr-gue", "", 1500 - 28 - 40, 1500 - 48 - 40),
        ("dsr-gue", "mss_clamp = \"off\"", 0, 0),
        ("dsr-gue", "mss_clamp = 1200", 1200, 1200),
    ] {
        let config = config(forward, service, "");
        let tables = plan(&config, &well(&config));
        assert_eq!(row(&tables, "10.0.0.2").mss, v4, "{forward} {service}");
        assert_eq!(row(&tables, "2001:db8::2").mss, v6, "{forward} {service}");
    }
    for (forward, service, mss) in
        [("nat", "", 0), ("dsr-l2", "", 0), ("dsr-l2", "mss_clamp = 1200", 1200)]
    {
        let config = config(forward, service, "");
        assert_eq!(row(&plan(&config, &well(&config)), "10.0.0.2").mss, mss, "{forward}");
    }
}

#[test]
fn dsr_l2_does_not_cross_routers() {
    for (forward, reachable) in [("dsr-l2", false), ("dsr-ipip", true), ("nat", true)] {
        let config = config(forward, "", "");
        let mut observed = well(&config);
        observed.behind_router.insert(ip("10.0.0.2"));
        let tables = plan(&config, &observed);
        assert_eq!(row(&tables, "10.0.0.2").next_hop.is_some(), reachable, "{forward}");
    }
}
