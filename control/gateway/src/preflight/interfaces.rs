//! Rules about the interfaces of `[node] interfaces`.

use ringway_config::{Config, Located, XdpMode};
use ringway_host::links::Link;

use super::facts::Facts;
use super::{Report, State};

/// Every rule, interface by interface.
pub fn look(config: &Config, facts: &Facts, report: &mut Report) {
    for name in &config.node.interfaces {
        let Some(link) = present(config, facts, name, report) else { continue };
        guard(config, facts, name, link, report);
        foreign(facts, link, report);
        mode(config, facts, link, report);
        if link.kind.as_deref() == Some("veth") {
            peer(config, facts, link, report);
        }
    }
}

fn present<'a>(
    config: &Config,
    facts: &'a Facts,
    name: &Located<String>,
    report: &mut Report,
) -> Option<&'a Link> {
    let known = || facts.links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    let Some(link) = facts.link(name) else {
        let reason = format!(
            "there is no interface {name:?} in this network namespace",
            name = name.as_str()
        );
        report.fail_at(config, name, "interface", reason, format!("name one of: {}", known()));
        return None;
    };
    if link.loopback || link.mac.is_none() {
        let reason = format!("{} is not an Ethernet interface", link.name);
        report.fail_at(config, name, "interface", reason, format!("name one of: {}", known()));
        return None;
    }
    if !link.up {
        let fix = format!("ip link set dev {} up", link.name);
        report.push("interface", &link.name, State::Fail, "it is down", fix);
    } else if !link.carrier {
        let reason = "it has no carrier: no packet will come or go";
        report.push("interface", &link.name, State::Warn, reason, "check cable, switch or peer");
    } else {
        report.ok("interface", &link.name, format!("up, mtu {} bytes", link.mtu));
    }
    Some(link)
}

/// Attaching to the interface by which an administrator came in can lock them out.
fn guard(config: &Config, facts: &Facts, name: &Located<String>, link: &Link, report: &mut Report) {
    let on = |ifindex: u32| facts.default_route_links.contains(&ifindex);
    let carries = match link.master.filter(|master| on(*master)) {
        Some(bridge) => {
            &format!("it belongs to {}, which carries the default route", facts.link_name(bridge))
        }
        None if on(link.ifindex) => "it carries the default route",
        None => return,
    };
    match facts.first_namespace {
        Some(false) => {
            let reason = format!("{carries}, in a namespace that is not the first");
            report.ok("default-route", &link.name, reason);
        }
        _ if config.node.allow_default_route => {
            let reason = format!("{carries}; allow_default_route = true");
            report.ok("default-route", &link.name, reason);
        }
        _ => {
            let reason = format!(
                "{} is guarded: {carries}, a mistake there cuts this machine off",
                link.name
            );
            let fix = "use another interface, or write allow_default_route = true under [node]";
            report.fail_at(config, name, "default-route", reason, fix);
        }
    }
}

fn foreign(facts: &Facts, link: &Link, report: &mut Report) {
    if facts.own_links.contains(&link.ifindex) {
        report.ok("foreign-xdp", &link.name, "our own program from before");
        return;
    }
    let Some(xdp) = link.xdp.first() else {
        report.ok("foreign-xdp", &link.name, "no XDP program");
        return;
    };
    let name = ringway_kernel::program_name(xdp.program).unwrap_or_else(|| "unknown".into());
    report.push(
        "foreign-xdp",
        &link.name,
        State::Fail,
        format!("XDP program {name:?} (id {}) is attached and is not this node's", xdp.program),
        format!("stop what loaded it, or: ip link set dev {} xdp off", link.name),
    );
}

fn mode(config: &Config, facts: &Facts, link: &Link, report: &mut Report) {
    let driver = facts.drivers.get(&link.name).map_or("unknown", String::as_str);
    let offloads = facts.offloads.get(&link.name);
    if *config.node.xdp_mode != XdpMode::Generic && offloads.is_some_and(|offloads| offloads.lro) {
        let reason = format!("large receive offload is on: driver {driver} may refuse native XDP");
        let fix = format!("ethtool -K {} lro off", link.name);
        report.push("xdp-mode", &link.name, State::Warn, reason, fix);
        return;
    }
    let reason = match *config.node.xdp_mode {
        XdpMode::Auto => format!("auto: native where driver {driver} can, else generic"),
        XdpMode::Native => {
            format!("native, as configured; start fails when driver {driver} cannot")
        }
        XdpMode::Generic => "generic, as configured: works everywhere, slower".to_owned(),
    };
    report.ok("xdp-mode", &link.name, reason);
}

/// What the far end of a veth pair must be like (drivers/net/veth.c). Frames that XDP redirects
/// into the pair arrive only if the far end polls: native XDP or GRO. Frames sent with XDP_TX
/// arrive only if it has native XDP. Frames of a stack at the far end carry unfinished checksums.
fn peer(config: &Config, facts: &Facts, link: &Link, report: &mut Report) {
    let Some(peer) = facts.peer(link) else {
        let reason = "the far end of this veth pair is in another network namespace: cannot see \
                      whether it has native XDP, without which frames sent to it are dropped";
        let fix = "attach a native XDP program at the far end, if only one that passes everything";
        report.push("veth-peer", &link.name, State::Unknown, reason, fix);
        let reason = "cannot see whether the far end of this veth pair leaves checksums unfinished";
        let fix = "where a host's own stack sends into it: ethtool -K PEER tx off";
        report.push("checksum-offload", &link.name, State::Unknown, reason, fix);
        return;
    };
    let offloads = facts.offloads.get(&peer.name);
    let native = peer.xdp.iter().any(|xdp| xdp.mode == ringway_host::links::XdpMode::Native);
    if native {
        report.ok("veth-peer", &link.name, format!("peer {} has native XDP", peer.name));
    } else {
        let lost = match offloads.is_some_and(|offloads| offloads.gro) {
            true => "GRO but no native XDP: frames sent back by the way they came are lost",
            false => "neither native XDP nor GRO: frames sent into this pair are lost",
        };
        let fix = format!(
            "attach a native XDP program to {}, if only one that passes everything",
            peer.name
        );
        report.push(
            "veth-peer",
            &link.name,
            State::Warn,
            format!("peer {} has {lost}", peer.name),
            fix,
        );
    }
    match offloads {
        Some(offloads) if offloads.tx_checksum && *config.node.xdp_mode != XdpMode::Generic => {
            let reason = format!(
                "peer {} leaves checksums unfinished, which native XDP cannot repair: packets of its own stack arrive broken",
                peer.name
            );
            let fix = format!("ethtool -K {} tx off", peer.name);
            report.push("checksum-offload", &link.name, State::Warn, reason, fix);
        }
        Some(_) => {
            report.ok("checksum-offload", &link.name, format!("peer {} is fine", peer.name));
        }
        None => {
            let reason = format!("offloads of peer {} cannot be read", peer.name);
            report.push(
                "checksum-offload",
                &link.name,
                State::Unknown,
                reason,
                format!("ethtool -k {}", peer.name),
            );
        }
    }
}
