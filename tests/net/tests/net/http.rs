//! HTTP gets through, whatever the way in and out.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use ringway_net_tests::{
    Gateway, SERVICE_V4, SERVICE_V6, Site, configuration, get, needs_root, service,
};
use ringway_testnet::{Nginx, XdpReceive, detach_pass, one_bridge};

const CHECK: &str = "check = { type = \"http\", interval = \"200ms\" }\n";

/// Names of all backends that answer within 64 requests.
fn who_answers(site: &Site, target: SocketAddr) -> Result<BTreeSet<String>> {
    (0..64).map(|_| get(site.client(), target)).collect()
}

fn curl(site: &Site, url: &str) -> Result<String> {
    let output =
        site.client().command("curl").args(["-sS", "-f", "--max-time", "5", url]).output()?;
    ensure!(output.status.success(), "curl {url}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Both families through two interfaces; every backend gets its share; `mode` is what status says.
fn both_families(asked: &str, mode: &str) -> Result<()> {
    let site = Site::new(3)?;
    let services = site.web("web", SERVICE_V4, CHECK) + &site.web("web6", SERVICE_V6, CHECK);
    let text =
        site.configuration(&services).replace("[api]", &format!("xdp_mode = {asked:?}\n[api]"));
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let status = gateway.status()?;
    for interface in status["interfaces"].as_array().into_iter().flatten() {
        ensure!(interface["mode"] == mode, "{interface}");
    }
    ensure!(curl(&site, &format!("http://{SERVICE_V4}/"))?.starts_with('b'));
    ensure!(curl(&site, &format!("http://[{SERVICE_V6}]/"))?.starts_with('b'));
    for address in [SERVICE_V4, SERVICE_V6] {
        let names = who_answers(&site, SocketAddr::new(address, 80))?;
        ensure!(names.len() == 3, "{address} answered by {names:?} alone");
    }
    Ok(())
}

#[test]
fn both_families_in_native_mode() -> Result<()> {
    needs_root!();
    both_families("native", "native")
}

#[test]
fn both_families_in_generic_mode() -> Result<()> {
    needs_root!();
    both_families("generic", "generic")
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
    for (n, address) in net.balancer.addresses().into_iter().enumerate() {
        let family = |a: &IpAddr| a.is_ipv4() == address.is_ipv4();
        let backends: Vec<IpAddr> =
            net.backends.iter().flat_map(|b| b.addresses()).filter(family).collect();
        services += &service(&format!("web{n}"), SocketAddr::new(address, 80), &backends, CHECK);
    }
    let gateway =
        Gateway::start(&net.balancer.ns, &configuration(&net.balancer.ns, &["eth0"], &services))?;
    for target in net.balancer.sockets(80) {
        let names: BTreeSet<String> =
            (0..64).map(|_| get(&net.client.ns, target)).collect::<Result<_>>()?;
        ensure!(names.len() == 2, "{target} answered by {names:?} alone");
    }
    drop(gateway);
    Ok(())
}
