//! What breaks under a running gateway is noticed, named, and mended where it can be.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, SERVICE_V6, Site, WEB, configuration, get, needs_root};
use ringway_testnet::{End, Namespace, VethOptions, veth};

const CHECK: &str = "check = { type = \"http\", interval = \"500ms\", fall = 3 }\n";

#[test]
fn pins_of_a_vanished_interface_are_removed_aloud() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let far = Namespace::new("far")?;
    let third = End::new(ns, "eth2").address("10.3.0.1/24");
    veth(&third, &End::new(&far, "eth0"), &VethOptions::default())?;
    let web = site.service("web", WEB, CHECK);
    let mut gateway = Gateway::start(ns, &configuration(ns, &["eth0", "eth2", "eth1"], &web))?;
    gateway.kill()?;
    ns.ip("link del eth2\n")?;
    gateway.rewrite(&configuration(ns, &["eth0", "eth1"], &web))?;
    gateway.start_healthy()?;
    let log = gateway.log();
    let said = log.lines().find(|line| line.contains("removed orphaned pins"));
    ensure!(said.is_some_and(|line| line.contains("eth2")), "not said: {log}");
    ensure!(!gateway.pins().join("ifaces/eth2").exists(), "not done");
    get(site.client(), WEB)?;
    Ok(())
}

/// As when another machine takes the address over. The kernel alone would believe the former one for
/// an hour.
fn another_mac_address(check: &str, prepare: impl FnOnce(&Namespace) -> Result<()>) -> Result<()> {
    const MAC: &str = "02:00:00:00:00:77";
    let site = Site::new(1)?;
    let backend = &site.net.backends[0].ns;
    prepare(backend)?;
    for family in ["ipv4", "ipv6"] {
        let key = format!("net/{family}/neigh/eth1/base_reachable_time_ms");
        site.net.gateway.sysctl(&key, "3600000")?;
    }
    let web6 = SocketAddr::new(SERVICE_V6, 80);
    let services = site.service("web", WEB, check) + &site.service("web6", web6, check);
    let gateway = site.start(&services)?;
    get(site.client(), WEB)?;
    get(site.client(), web6)?;
    backend.ip(&format!("link set dev eth0 address {MAC}\n"))?;
    gateway.wait_status("the new MAC address", |status| {
        let mac = |n: usize| &status["services"][n]["backends"][0]["next_hop"]["mac"];
        mac(0) == MAC && mac(1) == MAC && status["healthy"] == true
    })?;
    get(site.client(), WEB)?;
    get(site.client(), web6)?;
    Ok(())
}

/// Gratuitous ARP (RFC 5227) and unsolicited advertisement (RFC 4861, section 7.2.6).
#[test]
fn a_backend_that_tells_its_new_mac_address() -> Result<()> {
    needs_root!();
    another_mac_address("", |backend| {
        backend.sysctl("net/ipv4/conf/eth0/arp_notify", "1")?;
        Ok(backend.sysctl("net/ipv6/conf/eth0/ndisc_notify", "1")?)
    })
}

/// Checks that fail make the kernel ask again.
#[test]
fn a_backend_that_does_not_tell_its_new_mac_address() -> Result<()> {
    needs_root!();
    another_mac_address(CHECK, |_| Ok(()))
}
