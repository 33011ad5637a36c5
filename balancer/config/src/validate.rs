//! Rules about several keys: duplicates, families, limits and loops.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ringway_abi::raw::{RW_MAX_BACKENDS, RW_MAX_MEMBERS, RW_MAX_SERVICE_ENTRIES, RW_MAX_SERVICES};

use crate::model::{Forward, Nat, PortRange, Protocol, Service, Shield, SourceMode, Syn, Tunnel};
use crate::reader::diagnostics::Diagnostics;

const MAX_ENTRIES: usize = RW_MAX_SERVICES as usize;
const MAX_ROWS: usize = RW_MAX_SERVICE_ENTRIES as usize;
const MAX_BACKENDS: usize = RW_MAX_BACKENDS as usize;
const MAX_MEMBERS: usize = RW_MAX_MEMBERS as usize;

/// The services, each and among each other.
pub(crate) fn services(report: &Diagnostics, services: &[Service]) {
    duplicate_names(report, services);
    duplicate_keys(report, services);
    overlaps(report, services);
    let addresses: HashSet<IpAddr> = services.iter().map(|service| *service.address).collect();
    for service in services {
        backends(report, service, &addresses);
        asked_at(report, service, &addresses);
    }
    limits(report, services);
}

/// What answers SYNs has to be armed by something, and be of a service that gets some.
pub(crate) fn syn(report: &Diagnostics, shield: Option<&Shield>, services: &[Service]) {
    for service in services.iter().filter(|service| *service.syn != Syn::Off) {
        let of = format!("syn = \"{}\" of service {:?}", *service.syn, service.name);
        let what = match shield {
            None => format!("{of} is a part of the shield: write [shield]"),
            _ if !service.protocols.contains(&Protocol::Tcp) => {
                format!("{of} has no effect without TCP: remove it, or write protocol = \"tcp\"")
            }
            _ if *service.syn == Syn::Proxy && service.forward.is_dsr() => format!(
                "{of} makes the handshake with the backend and shifts what it answers, which does \
                 not pass the gateway with forward = \"{}\": write syn = \"challenge\", or \
                 forward = \"nat\"",
                service.forward
            ),
            _ if *service.syn == Syn::Backend && !service.forward.is_dsr() => format!(
                "{of} has the backend know the gateway's cookies by the client's own address and \
                 port, which forward = \"nat\" rewrites: write syn = \"proxy\""
            ),
            Some(shield) if *service.syn == Syn::Backend && shield.syn.secret.is_none() => format!(
                "{of} has backends know the gateway's cookies, which takes a key that they have, too: \
                 write [shield.syn] with secret = \"/etc/ringway/syn.secret\""
            ),
            Some(shield) if !shield.syn.always && shield.mitigation.is_none() => format!(
                "{of} waits for an attack, and nothing tells what one is: write [shield.mitigation] \
                 with new_flows = \"20kpps\", or [shield.syn] with always = true"
            ),
            Some(_) => continue,
        };
        report.error(service.syn.span(), what);
    }
}

fn duplicate_names(report: &Diagnostics, services: &[Service]) {
    let mut seen: HashMap<&str, &Service> = HashMap::new();
    for service in services {
        let span = service.name.span();
        let Some(earlier) = seen.get(service.name.as_str()) else {
            seen.insert(&service.name, service);
            continue;
        };
        let message = format!(
            "name = {0:?} is the name of an earlier service{1}: write another, such as \"{0}-2\"",
            service.name,
            report.other_place(&span, &earlier.name.span())
        );
        report.error(span, message);
    }
}

fn duplicate_keys(report: &Diagnostics, services: &[Service]) {
    let mut seen = HashMap::new();
    for service in services {
        for protocol in &service.protocols {
            let key = (*service.address, service.ports(), *protocol);
            let Some(other) = seen.insert(key, &service.name) else { continue };
            let message = format!(
                "service {:?} has the address, port and protocol of service {:?}{} ({}, {}, \
                 {protocol}): change one of them, or move the backends into one service",
                service.name,
                other,
                report.other_place(&service.address.span(), &other.span()),
                key.0,
                key.1
            );
            report.error(service.address.span(), message);
        }
    }
}

/// Ranges of ports that overlap: nobody could tell which service has a port. A port alone goes
/// before a range, and a range before "*".
fn overlaps(report: &Diagnostics, services: &[Service]) {
    let is_range = |service: &&Service| {
        let ports = service.ports();
        ports.first < ports.last && ports != PortRange::ALL
    };
    let ranges: Vec<&Service> = services.iter().filter(is_range).collect();
    for (n, service) in ranges.iter().enumerate() {
        let shares = |other: &&&Service| {
            other.address == service.address
                && other.ports() != service.ports()
                && other.ports().overlaps(service.ports())
                && other.protocols.iter().any(|protocol| service.protocols.contains(protocol))
        };
        if let Some(other) = ranges[..n].iter().find(shares) {
            let message = format!(
                "port = \"{}\" of service {:?} overlaps \"{}\" of service {:?}{} on the same \
                 address: write ranges that do not",
                service.ports(),
                service.name,
                other.ports(),
                other.name,
                report.other_place(&service.port.span(), &other.port.span())
            );
            report.error(service.port.span(), message);
        }
    }
}

/// Where checks are asked, if elsewhere than at the backends. The gateway does not balance what it
/// sends itself.
fn asked_at(report: &Diagnostics, service: &Service, service_addresses: &HashSet<IpAddr>) {
    let general = service.check.iter().filter_map(|check| check.address.as_ref());
    let own = service.backends.iter().filter_map(|backend| backend.check.address.as_ref());
    for address in general.chain(own).filter(|address| service_addresses.contains(address)) {
        let message = format!(
            "address {address} of a check of service {:?} is itself the address of a service, where no backend \
             can be asked: write an address of the backend's own, or remove it",
            service.name
        );
        report.error(address.span(), message);
    }
}

/// The backends of one service.
fn backends(report: &Diagnostics, service: &Service, service_addresses: &HashSet<IpAddr>) {
    let mut seen = HashSet::new();
    for backend in &service.backends {
        let (address, port) = (*backend.address, backend.port);
        let place = format!("service {:?}", service.name);
        if !seen.insert((address, port)) {
            let message = format!(
                "{address} port {port} is twice among the backends of {place}: remove one, and \
                 give the other the weight of both"
            );
            report.error(backend.address.span(), message);
        }
        if address.is_ipv4() != service.address.is_ipv4() && !service.forward.is_tunnel() {
            let (mine, other) = if address.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
            let why = match service.forward {
                Forward::DsrL2 => "dsr-l2 does not change",
                _ => "nat does not translate",
            };
            let message = format!(
                "backend {address} of {place} is {mine} and the service {other}, which {why}: \
                 write the backend's {other} address"
            );
            report.error(backend.address.span(), message);
        }
        if service_addresses.contains(&address) {
            let message = format!(
                "backend {address} of {place} is itself the address of a service, a loop: write \
                 the address of the machine that serves"
            );
            report.error(backend.address.span(), message);
        }
    }
    if service.backends.len() > MAX_MEMBERS {
        let message = format!(
            "service {:?} has {} backends: keep at most {MAX_MEMBERS}",
            service.name,
            service.backends.len()
        );
        report.error(service.name.span(), message);
    }
}

/// Room in the tables of the packet path. A service with two protocols takes twice its room.
fn limits(report: &Diagnostics, services: &[Service]) {
    let (mut entries, mut backends) = (0, 0);
    for service in services {
        entries += service.protocols.len();
        backends += service.protocols.len() * service.backends.len();
        if entries > MAX_ENTRIES {
            let message = format!(
                "this is service number {entries} (each protocol counts), and a node takes \
                 {MAX_ENTRIES}: move the rest to another node"
            );
            return report.error(service.name.span(), message);
        }
        if backends > MAX_BACKENDS {
            let message = format!(
                "this service brings the backends to {backends} (each protocol counts), and a \
                 node takes {MAX_BACKENDS}: move the rest to another node"
            );
            return report.error(service.name.span(), message);
        }
    }
    rows(report, services);
}

/// The table that packets' destinations are looked up in: a range of ports takes a row for every
/// block of it, an address one, and so does a backend that is told who its client is.
fn rows(report: &Diagnostics, services: &[Service]) {
    let (mut rows, mut addresses) = (0, HashSet::new());
    for service in services {
        let blocks = service.ports().blocks().len();
        rows += service.protocols.len() * blocks;
        addresses.insert(*service.address);
        if service.forward == Forward::Nat && service.source == SourceMode::Client {
            addresses.extend(service.backends.iter().map(|backend| *backend.address));
        }
        if rows + addresses.len() > MAX_ROWS {
            let message = format!(
                "with this service ports and addresses take {} rows of the packet path's table, \
                 which has {MAX_ROWS}; port = \"{}\" alone takes {blocks} for each protocol: let \
                 ranges begin and end at multiples of a power of two (\"8192-16383\" takes one), \
                 write \"*\" for all ports, or move services to another node",
                rows + addresses.len(),
                service.ports(),
            );
            return report.error(service.port.span(), message);
        }
    }
}

/// `[nat]` against the services that use it.
pub(crate) fn nat(report: &Diagnostics, services: &[Service], nat: &Nat) {
    for (family, v4) in [("IPv4", true), ("IPv6", false)] {
        let translated = |service: &&Service| {
            service.source == SourceMode::Node && service.address.is_ipv4() == v4
        };
        let Some(service) = services.iter().find(translated) else { continue };
        let covered = nat.addresses.iter().any(|address| address.is_ipv4() == v4);
        if let Some(first) = nat.addresses.first()
            && !covered
        {
            let message = format!(
                "addresses of [nat] has no {family} address, and service {:?} is {family}: add \
                 one of the node's, or leave addresses out",
                service.name
            );
            report.error(first.span(), message);
        }
        for service in services.iter().filter(|service| service.address.is_ipv4() == v4) {
            shared_port(report, service, nat);
        }
    }
}

/// `[tunnel]` against the services that use it.
pub(crate) fn tunnel(report: &Diagnostics, services: &[Service], tunnel: &Tunnel) {
    for source in tunnel.source.iter() {
        let taken = |service: &&Service| *service.address == *source;
        if let Some(service) = services.iter().find(taken) {
            let message = format!(
                "{source} in source of [tunnel] is the address of service {:?}, which its backends \
                 may have as their own: write an address of the node",
                service.name
            );
            report.error(tunnel.source.span(), message);
        }
        if services.iter().flat_map(|s| &s.backends).any(|b| *b.address == *source) {
            let message = format!(
                "{source} in source of [tunnel] is the address of a backend: write an address of \
                 the node"
            );
            report.error(tunnel.source.span(), message);
        }
    }
}

/// Services of a file without `[shield]`.
pub(crate) fn no_shield(report: &Diagnostics, services: &[Service]) {
    for service in services.iter().filter(|service| service.shield.is_some()) {
        let message = format!(
            "shield of service {:?} has no effect without [shield]: remove it, or add [shield]",
            service.name
        );
        report.error(service.name.span(), message);
    }
}

/// A reply to a nat address and port must not look like a client's request. Which address nat
/// uses by default is not known here: it may be the service's.
fn shared_port(report: &Diagnostics, service: &Service, nat: &Nat) {
    let shared = match nat.addresses.is_empty() {
        true => true,
        false => nat.addresses.iter().any(|address| **address == *service.address),
    };
    // "*" leaves nat's ports to nat: replies are looked up first.
    let ports = service.ports();
    if shared && ports != PortRange::ALL && nat.ports.overlaps(ports) {
        let message = format!(
            "port {} of service {:?} is one of the ports of [nat] ({}), possibly on the same \
             address: write another range, such as ports = \"{}\", or addresses of [nat] that \
             are no service's",
            ports,
            service.name,
            nat.ports,
            other_range(*service.port)
        );
        report.error(service.port.span(), message);
    }
}

/// A range of nat ports without this one, below Linux's default ip_local_port_range.
fn other_range(port: u16) -> &'static str {
    if port < 20000 { "20000-32767" } else { "10000-19999" }
}
