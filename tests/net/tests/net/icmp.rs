//! Ping and path MTU discovery.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use ringway_net_tests::{
    Bulk, Gateway, SERVICE_V4, SERVICE_V6, Site, behind_small_link, bulk, get, needs_root, packets,
    service, tool,
};
use ringway_testnet::Namespace;

/// More than any buffer on the way holds.
const MUCH: u64 = 4 << 20;

const SERVICES: [SocketAddr; 2] =
    [SocketAddr::new(SERVICE_V4, 5001), SocketAddr::new(SERVICE_V6, 5001)];

fn ping(from: &Namespace, to: IpAddr, size: u16) -> Result<String> {
    let (to, size) = (to.to_string(), size.to_string());
    let words = ["-n", "-c", "2", "-i", "0.2", "-W", "30", "-s", &size, &to];
    Ok(tool(from, "ping", &words)?.done()?.out)
}

#[test]
fn a_service_address_is_pinged() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    // One that Ringway answers for, one that the node's kernel owns.
    let owned: SocketAddr = "10.1.0.81:80".parse()?;
    site.net.gateway.ip("addr add 10.1.0.81/32 dev eth0\n")?;
    let text = site.service("web", SocketAddr::new(SERVICE_V4, 80), "")
        + &site.service("web6", SocketAddr::new(SERVICE_V6, 80), "")
        + &service("owned", owned, &site.backends(SERVICE_V4, 80), "");
    let gateway = site.start(&text)?;
    for address in [SERVICE_V4, SERVICE_V6, owned.ip()] {
        for size in [0, 1, 56, 1400] {
            let said = ping(site.client(), address, size)?;
            ensure!(size < 16 || said.contains("ttl=64"), "{said}");
        }
    }
    ensure!(packets(&gateway.status()?, "echo-reply") >= 24, "{}", gateway.status()?["counters"]);
    get(site.client(), owned)?;
    Ok(())
}

/// Both services, so many bytes to and fro.
fn transfer(from: &Namespace, up: u64, down: u64) -> Result<()> {
    SERVICES.iter().try_for_each(|target| bulk(from, *target, up, down))
}

fn start(site: &Site) -> Result<(Gateway, Vec<Bulk>)> {
    let mut servers = Vec::new();
    let mut text = String::new();
    for (n, target) in SERVICES.iter().enumerate() {
        for backend in site.backends(target.ip(), target.port()) {
            servers.push(Bulk::start(&site.net.backends[0].ns, backend)?);
        }
        text += &site.service(&format!("bulk{n}"), *target, "");
    }
    Ok((site.start(&text)?, servers))
}

/// What the backend sends is too big for the router before the client: it says so to the service
/// address, and the backend must learn it.
#[test]
fn a_small_link_behind_the_clients_router() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let far = behind_small_link(site.client(), 1300)?;
    let (gateway, _servers) = start(&site)?;
    transfer(&far, 0, MUCH)?;
    ensure!(
        packets(&gateway.status()?, "icmp-to-backend") >= 2,
        "{}",
        gateway.status()?["counters"]
    );
    Ok(())
}

/// The gateway's own way is the small link: to the backends, of which it tells the client itself, or
/// to the clients, of which it tells the backend.
#[test]
fn a_small_link_of_the_gateways() -> Result<()> {
    needs_root!();
    for (device, up, down) in [("eth1", MUCH, 0), ("eth0", 0, MUCH)] {
        let site = Site::new(1)?;
        site.net.gateway.ip(&format!("link set dev {device} mtu 1400\n"))?;
        let (gateway, _servers) = start(&site)?;
        transfer(site.client(), up, down)?;
        let status = gateway.status()?;
        ensure!(packets(&status, "sent-too-big") >= 2, "{device}: {}", status["counters"]);
    }
    Ok(())
}
