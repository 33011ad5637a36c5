//! Ringway itself: the binary, started as its user would.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;

use ringway_kernel::XdpMode;
use ringway_testnet::{Namespace, OneBridge, attach_pass, tools};

use super::balancer::{Balancer, PORT, v4, write};
use crate::Result;

/// In the balancer's container: one interface, packets leave as they came.
pub(super) fn in_container(net: &OneBridge, ringway: &Path, mode: XdpMode) -> Result<Balancer> {
    let address = v4(net.balancer.v4);
    let ns = &net.balancer.ns;
    // Ringway guards interfaces that carry the default route, and nothing here needs it.
    ns.ip("route del default via 172.17.0.1\nroute del default via fd17::1\n")?;
    if mode == XdpMode::Native {
        attach_pass(&net.host, &net.balancer.peer.name)?;
    }
    let node = format!("name = \"bench\"\ninterfaces = [\"eth0\"]\nxdp_mode = \"{}\"", mode.name());
    let service = format!("address = \"{address}\"");
    let configuration = configuration(net, ns, &node, &service);
    start(ns, ringway, address, configuration)
}

/// At the host ends of the veth pairs, which are ports of the bridge: packets go from one to
/// another, past it. The service's address, which nat sends from too, is nobody's: XDP answers ARP
/// for it at every port. `shield` and `syn` are more lines of the configuration.
pub(super) fn on_host(
    net: &OneBridge,
    ringway: &Path,
    shield: &str,
    syn: &str,
) -> Result<Balancer> {
    let address = Ipv4Addr::new(172, 17, 0, 100);
    let mut interfaces = Vec::new();
    for node in std::iter::once(&net.client).chain(&net.backends) {
        attach_pass(&node.ns, &node.eth0.name)?;
        interfaces.push(&node.peer.name);
    }
    let node = format!(
        "name = \"bench\"\ninterfaces = {interfaces:?}\nxdp_mode = \"native\"\n\n\
         [nat]\naddresses = [\"{address}\"]\n{shield}"
    );
    let service = format!("address = \"{address}\"\nannounce = \"arp\"{syn}");
    let configuration = configuration(net, &net.host, &node, &service);
    start(&net.host, ringway, address, configuration)
}

/// `node` and `service` are lines of those sections.
fn configuration(net: &OneBridge, ns: &Namespace, node: &str, service: &str) -> String {
    let mut text = format!(
        "[node]\nstate = {:?}\n{node}\n\n[[service]]\nname = \"web\"\n{service}\nport = {PORT}\nforward = \"nat\"\nbackends = [\n",
        ns.directory().join("state"),
    );
    for backend in &net.backends {
        let _ = writeln!(text, "    {{ address = \"{}\" }},", v4(backend.v4));
    }
    let socket = ns.directory().join("api.sock");
    let _ = writeln!(text, "]\n\n[api]\nsocket = {socket:?}");
    text
}

/// In a mount namespace with a bpffs of its own, so that pins and programs go with the process.
fn start(
    ns: &Namespace,
    ringway: &Path,
    address: Ipv4Addr,
    configuration: String,
) -> Result<Balancer> {
    let file = write(ns, "ringway.toml", &configuration)?;
    let mut command = ns.command(tools::find("unshare")?.path);
    command
        .args(["--mount", "sh", "-ec", "mount -t bpf bpf /sys/fs/bpf; exec \"$0\" run -c \"$1\""])
        .arg(ringway)
        .arg(file);
    let child = ns.spawn(command)?;
    Ok(Balancer { address, configuration, child: Some(child), _xdp: None })
}
