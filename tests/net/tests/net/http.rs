//! HTTP gets through, whatever the way in and out.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ringway_net_tests::{
    CHECK, Gateway, SERVICE_V4, SERVICE_V6, Site, configuration, get, needs_root, service,
};
use ringway_testnet::{
    End, Namespace, Nginx, VethOptions, XdpReceive, detach_pass, one_bridge, veth,
};

/// Names of all backends that answer within 64 requests.
fn who_answers(client: &Namespace, target: SocketAddr) -> Result<BTreeSet<String>> {
    (0..64).map(|_| get(client, target)).collect()
}

/// Both families through two interfaces, every backend with its share.
#[test]
fn both_families_in_native_mode() -> Result<()> {
    needs_root!();
    let site = Site::new(3)?;
    let targets = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 80));
    let services =
        site.service("web", targets[0], CHECK) + &site.service("web6", targets[1], CHECK);
    let text = site.configuration(&services);
    let text = text.replace("[api]", "xdp_mode = \"native\"\n[api]");
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let status = gateway.status()?;
    for interface in status["interfaces"].as_array().into_iter().flatten() {
        ensure!(interface["mode"] == "native", "{interface}");
    }
    for target in targets {
        let names = who_answers(site.client(), target)?;
        ensure!(names.len() == 3, "{target} answered by {names:?} alone");
    }
    Ok(())
}

/// A bridge knows no native mode, and native XDP cannot send to it: the kernel must, and be told
/// so.
#[test]
fn auto_is_generic_where_native_cannot_be() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let ns = &site.net.gateway;
    ringway_testnet::bridge(ns, "br0", &[])?;
    ns.ip("addr flush dev eth0\nlink set eth0 master br0\n\
         addr add 10.1.0.1/24 dev br0\naddr add fd01::1/64 dev br0 nodad\n")?;
    let services = site.service("web", SocketAddr::new(SERVICE_V4, 80), CHECK);
    let text = configuration(ns, &["br0", "eth1"], &services);
    let gateway = Gateway::start(ns, &text)?;
    let names = who_answers(site.client(), SocketAddr::new(SERVICE_V4, 80))?;
    ensure!(names.len() == 2, "answered by {names:?} alone");
    let status = gateway.status()?;
    for (n, words) in [(0, "a bridge"), (1, "cannot send to br0, a bridge")] {
        let interface = &status["interfaces"][n];
        ensure!(interface["mode"] == "generic", "{interface}");
        let why = interface["mode_reason"].as_str().unwrap_or_default();
        ensure!(why.contains(words), "{interface}");
    }
    Ok(())
}

#[test]
fn in_and_out_by_one_interface() -> Result<()> {
    needs_root!();
    let net = one_bridge(2, XdpReceive::Pass)?;
    detach_pass(&net.balancer.ns, "eth0")?;
    let mut nginx = Vec::new();
    for (n, node) in net.backends.iter().enumerate() {
        nginx.push(Nginx::start(&node.ns, &node.sockets(80), &format!("b{}", n + 1))?);
    }
    let mut services = String::new();
    // The container's own addresses: its kernel answers for them.
    for (n, target) in net.balancer.sockets(80).into_iter().enumerate() {
        let backends: Vec<SocketAddr> = net
            .backends
            .iter()
            .flat_map(|node| node.sockets(80))
            .filter(|backend| backend.is_ipv4() == target.is_ipv4())
            .collect();
        services += &service(&format!("web{n}"), target, &backends, CHECK);
    }
    let text = configuration(&net.balancer.ns, &["eth0"], &services);
    let _gateway = Gateway::start(&net.balancer.ns, &text)?;
    for target in net.balancer.sockets(80) {
        let names = who_answers(&net.client.ns, target)?;
        ensure!(names.len() == 2, "{target} answered by {names:?} alone");
    }
    Ok(())
}

#[test]
fn a_backend_behind_a_router() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    // b1 becomes the router to one more network.
    let (router, far) = (&site.net.backends[0].ns, Namespace::new("far")?);
    let near = End::new(router, "eth1").address("10.9.0.1/24").address("fd09::1/64");
    let end = End::new(&far, "eth0").address("10.9.0.2/24").address("fd09::2/64");
    veth(&near, &end, &VethOptions::default())?;
    router.sysctl("net/ipv4/ip_forward", "1")?;
    router.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    far.ip("route add default via 10.9.0.1\nroute add default via fd09::1\n")?;
    let gateway = &site.net.gateway;
    gateway.ip("route add 10.9.0.0/24 via 10.2.0.11\nroute add fd09::/64 via fd02::11\n")?;
    let backends: [SocketAddr; 2] = ["10.9.0.2:80".parse()?, "[fd09::2]:80".parse()?];
    let _nginx = Nginx::start(&far, &backends, "far")?;
    let targets = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 80));
    let more = format!("announce = \"arp\"\n{CHECK}");
    let services = service("web", targets[0], &backends[..1], &more)
        + &service("web6", targets[1], &backends[1..], &more);
    let _gateway = Gateway::start(gateway, &site.configuration(&services))?;
    for target in targets {
        ensure!(get(site.client(), target)? == "far");
    }
    Ok(())
}
