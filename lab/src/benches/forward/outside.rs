//! Interfaces of the machine: what joins them outside is the device.

use ringway_host::netlink::links;
use ringway_host::{Interface, interface_by_name};

use super::port::Port;
use crate::{Error, Result};

/// What is to be said of an interface, and what to do.
fn refused(name: &str, what: &str, remedy: impl Into<String>) -> Error {
    Error::Interface { name: name.into(), what: what.into(), remedy: remedy.into() }
}

/// The two interfaces, where frames may be sent by them.
pub(super) fn ports(names: &[String]) -> Result<[Port; 2]> {
    match names {
        [one, other] if one != other => Ok([port(one)?, port(other)?]),
        _ => Err(Error::Unavailable(
            "two different interfaces are needed; write `--interfaces eth1,eth2`".into(),
        )),
    }
}

fn port(name: &str) -> Result<Port> {
    let interface = interface_by_name(name).map_err(|error| match error {
        ringway_host::Error::NoInterface { .. } => refused(
            name,
            "it is not in this network namespace",
            "`ip link` lists those that are; of another one write `nsenter --net=/run/netns/NAME ringway-lab bench forward`",
        ),
        other => Error::Unavailable(other.to_string()),
    })?;
    let Interface { link, carries_default_route, .. } = &interface;
    if *carries_default_route {
        let why =
            "it carries the default route, and the test would take it from this machine (RFC 6815)";
        return Err(refused(name, why, "name another one; `ip route` shows routes"));
    }
    if let Some(xdp) = link.xdp.first() {
        let why = format!("XDP program {} is attached", xdp.program);
        let remedy = format!("stop what it belongs to, or remove it: `ip link set {name} xdp off`");
        return Err(refused(name, &why, remedy));
    }
    if link.master.is_some() {
        let remedy = format!("name another one, or take it out: `ip link set {name} nomaster`");
        return Err(refused(name, "it is a part of a bridge or bond", remedy));
    }
    let Some(mac) = link.mac.filter(|_| !link.loopback) else {
        return Err(refused(name, "it is no Ethernet interface", "name another one"));
    };
    if !link.up {
        return Err(refused(name, "it is down", format!("`ip link set {name} up`")));
    }
    if !interface.usable() {
        return Err(refused(name, "it has no carrier", "see that its cable leads to the device"));
    }
    let hardware = link.kind.is_none();
    Ok(Port { namespace: None, name: name.into(), mac, ifindex: link.ifindex, hardware })
}

/// Whether frames could go through it until now.
pub(super) fn check(port: &Port) -> Result<()> {
    match links::by_index(port.ifindex) {
        Ok(link) if link.up && link.carrier => Ok(()),
        Ok(_) => Err(refused(
            &port.name,
            "its link went down while frames were sent",
            "`dmesg` may say why; measure again",
        )),
        Err(_) => Err(refused(
            &port.name,
            "it is gone since frames were sent",
            "`dmesg` may say why; measure again when it is back",
        )),
    }
}
