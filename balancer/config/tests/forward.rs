//! Forwarding modes: what they need, what they have no use for.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::IpAddr;

use common::{check_table, messages};
use ringway_config::{Config, Forward, MssClamp, SourceMode, parse};

/// One service "web" on port 80; `service` is its last lines, `more` what follows it.
fn text(service: &str, more: &str) -> String {
    format!(
        "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\n\
         address = \"203.0.113.10\"\nport = 80\n{service}\n{more}\n"
    )
}

fn good(service: &str, more: &str) -> Config {
    parse(&text(service, more), "gw.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Every error, a line each.
fn wrong(service: &str) -> String {
    messages(&text(service, "")).join("\n")
}

const TWO: &str = "backends = [{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }]";

#[test]
fn defaults() {
    for (name, forward, source) in [
        ("nat", Forward::Nat, SourceMode::Node),
        ("dsr-l2", Forward::DsrL2, SourceMode::Client),
        ("dsr-ipip", Forward::DsrIpip, SourceMode::Client),
        ("dsr-gue", Forward::DsrGue, SourceMode::Client),
    ] {
        let config = good(&format!("forward = \"{name}\"\n{TWO}"), "");
        let service = &config.services[0];
        assert_eq!((service.forward, service.source), (forward, source));
        assert_eq!((service.gue_port, service.mss_clamp), (6080, MssClamp::Auto));
        assert_eq!(forward.to_string(), name);
        assert!(config.tunnel.source.is_empty());
    }
}

#[test]
fn tunnels() {
    let config = good(
        &format!("forward = \"dsr-gue\"\nmss_clamp = 1300\n{TWO}"),
        "[tunnel]\nsource = [\"10.0.0.1\", \"fd00::1\"]\ngue_port = 9886",
    );
    let service = &config.services[0];
    assert_eq!((service.gue_port, service.mss_clamp), (9886, MssClamp::Bytes(1300)));
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(config.tunnel.source_towards(ip("10.9.9.9")), Some(ip("10.0.0.1")));
    assert_eq!(config.tunnel.source_towards(ip("fd00::9")), Some(ip("fd00::1")));

    let one = good(
        &format!("forward = \"dsr-gue\"\ngue_port = 7000\nmss_clamp = \"off\"\n{TWO}"),
        "[tunnel]\nsource = \"10.0.0.1\"",
    );
    assert_eq!((one.services[0].gue_port, one.services[0].mss_clamp), (7000, MssClamp::Off));
    assert_eq!(one.tunnel.source_towards(ip("fd00::9")), None);
}

/// Tunnels alone join the families.
#[test]
fn families() {
    let six = "backends = [{ address = \"2001:db8::2\" }]";
    for forward in ["dsr-ipip", "dsr-gue"] {
        assert_eq!(wrong(&format!("forward = \"{forward}\"\n{six}")), "");
    }
    assert_eq!(
        wrong(&format!("forward = \"dsr-l2\"\n{six}")),
        "9:25: backend 2001:db8::2 of service \"web\" is IPv6 and the service IPv4, which dsr-l2 \
         does not change: write the backend's IPv4 address"
    );
}

#[test]
fn errors() {
    let table = r#"
forward = "dsr"
=> 9:11: forward = "dsr" in service "web" is not known: write "nat", "dsr-l2", "dsr-ipip" or "dsr-gue"
forward = "dsr-l2"
source = "node"
=> 10:10: source = "node" in service "web" is not possible with forward = "dsr-l2", where backends answer clients directly: remove it, or write forward = "nat"
forward = "dsr-l2"
source = "client"
=>
forward = "dsr-ipip"
gue_port = 6080
=> 10:12: gue_port in service "web" has no effect with forward = "dsr-ipip": remove it, or write forward = "dsr-gue"
mss_clamp = "auto"
=> 9:13: mss_clamp in service "web" has no effect with forward = "nat": remove it, or write forward = "dsr-ipip" or another dsr mode
forward = "dsr-ipip"
mss_clamp = 100
=> 10:13: mss_clamp = 100 in service "web" is out of range: write a whole number from 536 to 9176
forward = "dsr-ipip"
mss_clamp = "1400"
=> 10:13: mss_clamp = "1400" in service "web" is not known: write "auto", "off", or bytes from 536 to 9176
forward = "dsr-gue"
[tunnel]
source = ["10.0.0.1", "10.0.0.9"]
=> 11:10: source = ["10.0.0.1", "10.0.0.9"] in [tunnel] has two IPv4 addresses: write one address such as "10.0.0.1", or one of each family: ["10.0.0.1", "fd00::1"]
forward = "dsr-gue"
[tunnel]
source = "203.0.113.10"
=> 11:10: 203.0.113.10 in source of [tunnel] is the address of service "web", which its backends may have as their own: write an address of the node
forward = "dsr-gue"
[tunnel]
source = "10.0.0.3"
=> 11:10: 10.0.0.3 in source of [tunnel] is the address of a backend: write an address of the node
forward = "dsr-gue"
[tunnel]
gue_port = 0
=> 11:12: gue_port = 0 in [tunnel] is out of range: write a whole number from 1 to 65535
"#;
    check_table(table, |lines| text(TWO, lines));
}

/// The packet arrives with the port that the client asked for.
#[test]
fn ports() {
    let own = |port: u16| {
        format!("forward = \"dsr-ipip\"\nbackends = [{{ address = \"10.0.0.2\", port = {port} }}]")
    };
    assert_eq!(wrong(&own(80)), "");
    assert_eq!(
        wrong(&own(8080)),
        "9:44: port = 8080 in backend 1 of service \"web\" differs from the service's, and \
         forward = \"dsr-ipip\" changes no port: write port = 80, remove it, or write forward = \
         \"nat\""
    );
}
