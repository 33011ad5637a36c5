//! Ringway itself: the binary, started as its user would.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;

use ringway_testnet::{Namespace, OneBridge, tools};

use super::standing::{Balancer, PORT, v4, write};
use crate::Result;

/// In the balancer's container: one interface, packets leave as they came.
pub(super) fn in_container(net: &OneBridge, ringway: &Path, mode: &str) -> Result<Balancer> {
    let address = v4(net.balancer.v4);
    let configuration = configuration(net, &net.balancer.ns, &["eth0"], mode, address, "");
    start(&net.balancer.ns, ringway, address, configuration)
}

/// At the host ends of the veth pairs, which are ports of the bridge: packets go from one to another, past it.
pub(super) fn on_host(net: &OneBridge, ringway: &Path) -> Result<Balancer> {
    let address = Ipv4Addr::new(172, 17, 0, 1);
    let mut interfaces = vec!["client".to_owned()];
    interfaces.extend((1..=net.backends.len()).map(|n| format!("b{n}")));
    let names: Vec<&str> = interfaces.iter().map(String::as_str).collect();
    let configuration = configuration(net, &net.host, &names, "native", address, "");
    start(&net.host, ringway, address, configuration)
}

fn configuration(
    net: &OneBridge,
    ns: &Namespace,
    interfaces: &[&str],
    mode: &str,
    address: Ipv4Addr,
    service: &str,
) -> String {
    let mut text = format!(
        "[node]\nname = \"bench\"\ninterfaces = {interfaces:?}\nxdp_mode = \"{mode}\"\n\n\
         [[service]]\nname = \"web\"\naddress = \"{address}\"\nport = {PORT}\nforward = \"nat\"\n{service}backends = [\n"
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
    Ok(Balancer { address, configuration, _child: Some(child) })
}
