//! Rules about services and backends: who answers for an address, and where packets would go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ringway_config::{
    Announce, Backend, Check, Config, Faces, Forward, Located, Protocol, Service, SourceMode,
};
use ringway_doctor::{Outcome, Report};
use ringway_host::Fix;
use ringway_host::netlink::addresses::Address;
use ringway_host::netlink::links::Link;
use ringway_host::netlink::routes::{Path, RouteKind};

use super::machine_state::MachineState;
use super::{misconfigured, names};
use crate::network::next_hop::asked_by;

/// Every rule, service by service.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    for service in &config.services {
        answers(config, state, service, report);
        checked(service, report);
        for backend in &service.backends {
            way(config, state, service, backend, report);
        }
    }
}

/// A service of UDP alone hardly answers TCP on its own port, nor the other way round.
fn checked(service: &Service, report: &mut Report) {
    let there = |backend: &Backend| {
        let check = service.check_of(backend);
        check.is_some_and(|check| check.port.is_none() && check.address.is_none())
    };
    let asks = |check: &&Check| {
        service.backends.iter().any(there)
            && check.kind.protocol().is_some_and(|asked| !service.protocols.contains(&asked))
    };
    let Some(check) = service.check.as_ref().filter(asks) else { return };
    let (asked, served) = match check.kind.protocol() {
        Some(Protocol::Udp) => ("UDP", "TCP"),
        _ => ("TCP", "UDP"),
    };
    let reason = format!(
        "the {} check asks the backends by {asked} on port {}, and the service is {served} alone: \
         they may never be up",
        check.kind.name(),
        *service.port
    );
    let fix = format!(
        "write port = N in check, a {asked} port that tells whether the backend is well, or a type \
         that asks by {served}"
    );
    report.push("check", Outcome::warn(service.name.as_str(), reason).advice(fix));
}

/// Somebody must answer ARP and neighbour solicitations for the address.
fn answers(config: &Config, state: &MachineState, service: &Service, report: &mut Report) {
    let address = &service.address;
    let subject = format!("{} {}", *service.name, **address);
    let local = matches!(
        state.paths.get(address),
        Some(Ok(path)) if path.kind == RouteKind::Local
    );
    // IPv6 routes to an own address come a moment after it.
    let owned = state.addresses.iter().find(|own| own.address == **address);
    match service.announce {
        Announce::Kernel if owned.is_some_and(|own| own.unusable) => {
            let reason = "kernel: the node owns the address, but duplicate address detection still \
                          runs or has failed";
            let fix = "`ip addr` shows it as tentative or dadfailed; in the latter case another \
                       machine has it";
            report.push(names::ANSWERS, Outcome::warn(&subject, reason).advice(fix));
        }
        Announce::Kernel if local || owned.is_some() => {
            report.ok(names::ANSWERS, &subject, "kernel: the node owns the address")
        }
        Announce::Kernel => {
            let interface = config.node.interfaces.first().map_or("IF", |name| name.as_str());
            let reason =
                format!("nobody answers for {}: it is not an address of this node", **address);
            let write =
                "write announce = \"arp\" (Ringway answers) or \"routed\" (a router sends it here)";
            let fix = match service.forward.is_dsr() {
                true => write.into(),
                false => Fix::Sequence(vec![
                    Fix::ip_address("add", **address, interface),
                    format!("or {write}").into(),
                ]),
            };
            report.push(names::ANSWERS, misconfigured(config, address, reason, fix));
        }
        Announce::Arp => report.ok(names::ANSWERS, &subject, "arp: Ringway answers ARP and ND"),
        Announce::Routed => {
            report.ok(names::ANSWERS, &subject, "routed: declared to be routed to this node")
        }
    }
}

fn way(
    config: &Config,
    state: &MachineState,
    service: &Service,
    backend: &Backend,
    report: &mut Report,
) {
    let subject = format!("{} {}", *service.name, backend.shown());
    let path = match state.paths.get(&backend.address) {
        None => return,
        Some(Err(error)) => {
            if let Some(down) = state.ours_down(config) {
                let reason = format!("no route to {} while {down} is down", *backend.address);
                let fix = Fix::link(down, "up");
                report.push(names::ROUTE, Outcome::warn(&subject, reason).advice(fix));
                return;
            }
            let bits = if backend.address.is_ipv4() { 32 } else { 128 };
            let to = format!("{}/{bits}", *backend.address);
            let add = |via: &str| Fix::command(["ip", "route", "add", &to, "via", via]);
            let fix = match router(state, &backend.address) {
                Some(router) => add(&router.to_string()),
                None => add("ROUTER").before("(one on a link of this node)"),
            };
            report.push(names::ROUTE, Outcome::warn(&subject, error).advice(fix));
            return;
        }
        Some(Ok(path)) => path,
    };
    if path.kind == RouteKind::Local {
        let reason = format!(
            "{} is an address of this node; a backend must be another machine",
            *backend.address
        );
        let fix = "give the address of another machine, or of a namespace with a veth pair";
        report.push(names::ROUTE, misconfigured(config, &backend.address, reason, fix));
        return;
    }
    let out = state.link_name(path.ifindex);
    if !state.has_ours(config) {
        // The findings about its interfaces name that fault.
        return;
    }
    let ours = |link: &&Link| config.node.interfaces.iter().any(|name| **name == link.name);
    let leads_there =
        |link: &Link| link.ifindex == path.ifindex || link.master == Some(path.ifindex);
    if !state.links.iter().filter(ours).any(leads_there) {
        let address = *backend.address;
        let reason =
            format!("{address} is reached by way of {out}, which is not among [node] interfaces");
        let usable = |link: &Link| link.mac.is_some() || link.is_layer3();
        let (reason, fix) = if state.link(&out).is_none_or(usable) {
            let or = "or route the backend by one of them";
            (reason, format!("add \"{out}\" to [node] interfaces, {or}"))
        } else {
            let why =
                format!("{reason}, and cannot be: its packets are neither Ethernet nor bare IP");
            let fix = format!(
                "put an Ethernet tunnel into it (ip link add type gretap or vxlan, with local and remote \
                 addresses reached by {out}), add that to [node] interfaces, and give the backend's \
                 address in there"
            );
            (why, fix)
        };
        report.push(names::ROUTE, misconfigured(config, &backend.address, reason, fix));
        return;
    }
    if config.node.faces(&out) == Faces::Clients {
        let reason = format!(
            "{} is reached by way of {out}, which faces clients only: its answers would be dropped",
            *backend.address
        );
        let fix =
            format!("write \"{out}\" alone in [node] interfaces, or route the backend by another");
        report.push(names::ROUTE, misconfigured(config, &backend.address, reason, fix));
        return;
    }
    let via = path.gateway.map_or_else(|| "directly".to_owned(), |router| format!("via {router}"));
    report.ok(names::ROUTE, &subject, format!("by way of {out}, {via}"));
    neighbour(state, path, &subject, report);
    if service.forward == Forward::DsrL2
        && let Some(router) = path.gateway
    {
        let reason = format!(
            "{} is reached by way of router {router}: dsr-l2 needs it on a link of this node",
            *backend.address
        );
        let fix = "write forward = \"dsr-ipip\" or \"dsr-gue\", or give the node an address on the \
                   backend's link";
        report.push(names::ROUTE, misconfigured(config, &backend.address, reason, fix));
        return;
    }
    if service.forward == Forward::Nat && service.source == SourceMode::Client {
        replies(config, state, service, &backend.address, path, report);
    }
}

/// The one router by which others of its family are reached; none where there are several, or none.
fn router(state: &MachineState, address: &IpAddr) -> Option<IpAddr> {
    let routers = state.paths.values().flatten().filter_map(|path| path.gateway);
    let of_family: BTreeSet<IpAddr> =
        routers.filter(|router| router.is_ipv4() == address.is_ipv4()).collect();
    of_family.first().copied().filter(|_| of_family.len() == 1)
}

fn neighbour(state: &MachineState, path: &Path, subject: &str, report: &mut Report) {
    let next_hop = path.next_hop();
    let out = state.links.iter().find(|link| link.ifindex == path.ifindex);
    if let Some(out) = out.filter(|link| link.is_layer3()) {
        return report.ok(names::NEIGHBOUR, subject, format!("{} needs none", out.name));
    }
    if let Some(mac) = state.next_hop(path) {
        return report.ok(names::NEIGHBOUR, subject, format!("{next_hop} is at {mac}"));
    }
    let (out, by) = (state.link_name(path.ifindex), asked_by(next_hop));
    match state.answering.get(&next_hop) {
        Some(Ok(answers)) if answers.is_empty() => {
            let reason =
                format!("{next_hop} does not answer {by} on {out}: its machine cannot be reached");
            let running = format!("is it running, with this address, on the link of {out}? There:");
            let fix = Fix::Sequence(vec![
                Fix::command(["ip", "address"]).after(running),
                ping(next_hop).after("here:"),
            ]);
            report.push(names::NEIGHBOUR, Outcome::warn(subject, reason).advice(fix));
        }
        Some(Ok(answers)) => {
            let macs: Vec<String> = answers.iter().map(|answer| answer.mac.to_string()).collect();
            report.ok(
                names::NEIGHBOUR,
                subject,
                format!("{next_hop} is at {}", macs.join(" and ")),
            );
        }
        Some(Err(_)) => {
            let reason = format!("{next_hop} has not answered {by} yet; the gateway will ask");
            let fix = ping(next_hop).after("if that does not help:");
            report.push(names::NEIGHBOUR, Outcome::unknown(subject, reason).advice(fix));
        }
        // At a start nobody has asked yet, so there is nothing to do.
        None => {
            let reason = format!("its next hop has not answered {by} yet; the gateway will ask");
            report.push(names::NEIGHBOUR, Outcome::unknown(subject, reason));
        }
    }
}

fn ping(address: IpAddr) -> Fix {
    Fix::command(["ping", "-c", "3", &address.to_string()])
}

/// With `source = "client"` replies must come back through this node. Visible from here is one
/// case where they do not: clients on the backend's own link are answered directly, past the
/// node. That is so when the service address itself is of a network on that link.
fn replies(
    config: &Config,
    state: &MachineState,
    service: &Service,
    backend: &Located<IpAddr>,
    path: &Path,
    report: &mut Report,
) {
    let subject = format!("{} {}", *service.name, **backend);
    let on_link = |address: &Address| {
        address.ifindex == path.ifindex && covers(address.address, address.prefix, *service.address)
    };
    if service.announce != Announce::Routed && state.addresses.iter().any(on_link) {
        let reason = format!(
            "source = \"client\", but {} and the service address are on one link ({}): the backend \
             answers clients there directly, past this node",
            **backend,
            state.link_name(path.ifindex)
        );
        let fix = "write source = \"node\", or put the backends on a link of their own with this \
                   node as their router";
        report.push("replies", misconfigured(config, backend, reason, fix));
        return;
    }
    if state.default_route_links.contains(&path.ifindex) {
        let reason = format!(
            "backends and this node's default route share {}: replies come back only if the \
             backends' route to the clients leads here",
            state.link_name(path.ifindex)
        );
        let show = Fix::command(["ip", "route", "show", "default"]).after("on the backends:");
        return report.push("replies", Outcome::warn(&subject, reason).advice(show));
    }
    let reason = "the backends' route to the clients must lead to this node; not visible from here";
    let get = Fix::command(["ip", "route", "get", "CLIENT"]).after("on the backends:");
    report.push("replies", Outcome::unknown(&subject, reason).advice(get));
}

/// Whether a prefix covers an address. A host prefix covers no network.
pub(crate) fn covers(network: IpAddr, prefix: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) if prefix < 32 => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            (a.to_bits() ^ b.to_bits()) & mask == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) if prefix < 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            (a.to_bits() ^ b.to_bits()) & mask == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (network, prefix, address, want) in [
            ("10.0.0.1", 24, "10.0.0.9", true),
            ("10.0.0.1", 24, "10.0.1.9", false),
            ("10.0.0.1", 32, "10.0.0.1", false),
            ("10.0.0.1", 0, "192.0.2.1", true),
            ("fd00::1", 64, "fd00::9", true),
            ("fd00::1", 64, "fd00:0:0:1::9", false),
            ("10.0.0.1", 24, "fd00::9", false),
        ] {
            let parse = |text: &str| text.parse::<IpAddr>().expect("address");
            assert_eq!(
                covers(parse(network), prefix, parse(address)),
                want,
                "{network}/{prefix} {address}"
            );
        }
    }
}
