//! Who answers for a service address.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Gateway, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, get, needs_root, service, tool,
};
use ringway_testnet::{Namespace, wait_for};

const WEB6: SocketAddr = SocketAddr::new(SERVICE_V6, 80);

/// The MAC address that the client has for an address, in lower case.
fn neighbour(client: &Namespace, address: &str) -> Result<String> {
    let text = tool(client, "ip", &["neigh", "show", address])?.out;
    let mut words = text.split_whitespace().skip_while(|word| *word != "lladdr");
    Ok(words.nth(1).with_context(|| format!("no MAC address in {text:?}"))?.to_owned())
}

#[test]
fn arp_and_nd_are_answered_though_no_kernel_owns_the_address() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let services = site.service("web", WEB, "") + &site.service("web6", WEB6, "");
    let gateway = site.start(&services)?;
    site.client().ip("neigh flush all\n")?;
    for (target, address) in [(WEB, "10.1.0.80"), (WEB6, "fd01::80")] {
        get(site.client(), target)?;
        let mac = neighbour(site.client(), address)?;
        ensure!(mac == site.net.outer.mac.to_string(), "{address} is at {mac}");
    }
    // The gateway's own address is its kernel's business, and others' nobody's.
    let ping = |within, to| tool(site.client(), "ping", &["-c", "1", "-W", within, to]);
    ping("30", "10.1.0.1")?.done().context("the gateway itself")?;
    ensure!(ping("1", "10.1.0.81")?.code != 0, "somebody answers for 10.1.0.81");
    let status = gateway.status()?;
    ensure!(status["services"][0]["answers"] == "arp", "{}", status["services"]);
    let log = gateway.log();
    ensure!(log.contains("who answers for the address: arp"), "not said at start: {log}");
    Ok(())
}

/// A client that talked to another machine under the service address learns of the move unasked.
#[test]
fn a_start_is_announced_to_those_who_knew_another_owner() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    for address in ["10.1.0.80", "fd01::80"] {
        let wrong =
            format!("neigh replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud stale\n");
        site.client().ip(&wrong)?;
    }
    let services = site.service("web", WEB, "") + &site.service("web6", WEB6, "");
    let _gateway = site.start(&services)?;
    for address in ["10.1.0.80", "fd01::80"] {
        let learnt = || match neighbour(site.client(), address) {
            Ok(mac) if mac == site.net.outer.mac.to_string() => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_for(format!("{address} at the gateway"), SOON, learnt)?;
    }
    Ok(())
}

/// The gateway's interface receives what asks for WEB6 (static: whoever asked for it lives or not),
/// and the gateway is a member of that group.
fn receives(site: &Site, received: bool, member: bool) -> Result<()> {
    let fits = || {
        let shown = tool(&site.net.gateway, "ip", &["maddr", "show", "dev", "eth0"]);
        let text = shown.map_err(|error| error.to_string())?.out;
        let is_received = |line: &str| {
            line.contains("33:33:ff:00:00:80") && line.split_whitespace().any(|w| w == "static")
        };
        let is_member = |line: &str| line.contains("inet6 ff02::1:ff00:80");
        let found = (text.lines().any(is_received), text.lines().any(is_member));
        if found == (received, member) { Ok(()) } else { Err(text) }
    };
    Ok(wait_for(format!("received: {received}, member: {member}"), SOON, fits)?)
}

/// The filter of a card lets solicitations for the address through for as long as the packet path
/// answers them.
#[test]
fn multicast_addresses_come_and_go_with_announced_ipv6_addresses() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let web = site.service("web", WEB, "");
    let without = site.configuration(&web);
    let with = site.configuration(&(web + &site.service("web6", WEB6, "")));
    let mut gateway = Gateway::start(&site.net.gateway, &with)?;
    receives(&site, true, true)?;
    gateway.kill()?;
    receives(&site, true, false)?;
    // A daemon that no longer has the service gives up what the one before left.
    gateway.rewrite(&without)?;
    gateway.start_healthy()?;
    receives(&site, false, false)?;
    gateway.reload(&with)?;
    receives(&site, true, true)?;
    gateway.reload(&without)?;
    receives(&site, false, false)?;
    gateway.reload(&with)?;
    receives(&site, true, true)?;
    gateway.kill()?;
    let detached = gateway.ringway(&["detach", "--verify"])?;
    ensure!(detached.code == 0, "{detached:?}");
    ensure!(detached.said().contains("multicast address 33:33:ff:00:00:80"), "{detached:?}");
    receives(&site, false, false)
}

#[test]
fn an_address_of_the_nodes_kernel() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let services = service("web", WEB, &site.backends(SERVICE_V4, 80), "")
        + &service("web6", WEB6, &site.backends(SERVICE_V6, 80), "");
    let text = site.configuration(&services);
    let mut gateway = Gateway::launch(&site.net.gateway, &text)?;
    let (code, said) = gateway.refusal()?;
    ensure!(code == 2, "exit code {code}: {said}");
    for words in [
        "nobody answers for 10.1.0.80",
        "ip address add 10.1.0.80/32 dev eth0",
        "nobody answers for fd01::80",
        "ip address add fd01::80/128 dev eth0",
        "announce = \"arp\"",
        "ringway.toml:",
    ] {
        ensure!(said.contains(words), "{words} not in {said}");
    }
    ensure!(!gateway.pins().exists(), "a refused start leaves pins");

    // Do as told.
    site.net
        .gateway
        .ip("addr add 10.1.0.80/32 dev eth0\naddr add fd01::80/128 dev eth0 nodad\n")?;
    gateway.start_healthy()?;
    get(site.client(), WEB)?;
    get(site.client(), WEB6)?;
    ensure!(gateway.status()?["services"][0]["answers"] == "kernel");
    Ok(())
}
