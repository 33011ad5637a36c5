//! What forwarding modes put into the tables.

#![allow(clippy::unwrap_used)]

mod common;

use common::{HOP, config, ip, plan, row, well};
use ringway_config::Config;
use ringway_plan::tables::{Forward, Tunnel};

/// One service with an IPv4 and, where the mode allows it, an IPv6 backend.
fn web(forward: &str, service: &str, more: &str) -> Config {
    let six = match forward {
        "dsr-ipip" | "dsr-gue" => ", { address = \"2001:db8::2\" }",
        _ => "",
    };
    config(&format!(
        "[[service]]\nname = \"web\"\naddress = \"203.0.113.10\"\nport = 80\n\
         forward = \"{forward}\"\n{service}\nbackends = [{{ address = \"10.0.0.2\" }}{six}]\n{more}\n"
    ))
}

#[test]
fn the_mode_is_in_the_tables() {
    for (name, forward) in [
        ("nat", Forward::Nat),
        ("dsr-l2", Forward::DsrL2),
        ("dsr-ipip", Forward::DsrIpip),
        ("dsr-gue", Forward::DsrGue),
    ] {
        let config = web(name, "", "");
        let tables = plan(&config, &well(&config));
        assert_eq!(tables.services[0].forward, forward);
        assert!(!tables.services[0].source_client, "that is a matter of nat");
        let row = row(&tables, "10.0.0.2:80");
        assert_eq!(row.tunnel.is_some(), forward.is_tunnel());
        assert_eq!(row.next_hop, Some(HOP));
        assert_eq!(row.nat.1 > 0, forward == Forward::Nat);
    }
}

#[test]
fn own_addresses_are_nobodys_clients() {
    for forward in ["nat", "dsr-l2", "dsr-gue"] {
        let config = web(forward, "", "");
        let mut observed = well(&config);
        observed.own_addresses = [ip("10.0.0.1")].into();
        assert!(!plan(&config, &observed).own_addresses.is_empty(), "{forward}");
    }
}

#[test]
fn outer_sources_are_the_nodes_unless_configured() {
    let tunnel = |source: &str, port| Some(Tunnel { source: ip(source), port });
    let config_of = |more: &str| web("dsr-gue", "gue_port = 7000", more);
    let own = config_of("");
    let tables = plan(&own, &well(&own));
    assert_eq!(row(&tables, "10.0.0.2:80").tunnel, tunnel("10.0.0.1", 7000));
    assert_eq!(row(&tables, "[2001:db8::2]:80").tunnel, tunnel("2001:db8::1", 7000));

    let set = config_of("[tunnel]\nsource = \"10.0.0.99\"");
    let tables = plan(&set, &well(&set));
    assert_eq!(row(&tables, "10.0.0.2:80").tunnel, tunnel("10.0.0.99", 7000));
    assert_eq!(row(&tables, "[2001:db8::2]:80").tunnel, tunnel("2001:db8::1", 7000));

    // Nothing to write into the outer header: not reachable yet.
    let mut observed = well(&own);
    observed.sources.clear();
    let tables = plan(&own, &observed);
    assert_eq!(row(&tables, "10.0.0.2:80").next_hop, None);
}

#[test]
fn the_mss_fits_the_tunnel() {
    for (forward, service, v4, v6) in [
        ("dsr-ipip", "", 1500 - 20 - 40, 1500 - 40 - 40),
        ("dsr-gue", "", 1500 - 28 - 40, 1500 - 48 - 40),
        ("dsr-gue", "mss_clamp = \"off\"", 0, 0),
        ("dsr-gue", "mss_clamp = 1200", 1200, 1200),
    ] {
        let config = web(forward, service, "");
        let tables = plan(&config, &well(&config));
        assert_eq!(row(&tables, "10.0.0.2:80").mss, v4, "{forward} {service}");
        assert_eq!(row(&tables, "[2001:db8::2]:80").mss, v6, "{forward} {service}");
    }
    for (forward, service, mss) in
        [("nat", "", 0), ("dsr-l2", "", 0), ("dsr-l2", "mss_clamp = 1200", 1200)]
    {
        let config = web(forward, service, "");
        assert_eq!(row(&plan(&config, &well(&config)), "10.0.0.2:80").mss, mss, "{forward}");
    }
}

#[test]
fn dsr_l2_does_not_cross_routers() {
    for (forward, reachable) in [("dsr-l2", false), ("dsr-ipip", true), ("nat", true)] {
        let config = web(forward, "", "");
        let mut observed = well(&config);
        observed.behind_router.insert(ip("10.0.0.2"));
        let tables = plan(&config, &observed);
        assert_eq!(row(&tables, "10.0.0.2:80").next_hop.is_some(), reachable, "{forward}");
    }
}
