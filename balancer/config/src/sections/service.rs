//! `[[service]]`: what clients address, and the backends behind it.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use crate::model::{
    Affinity, Announce, Backend, Forward, MaxUnhealthy, MssClamp, PortRange, Protocol, Service,
    SourceMode, Syn, Tunnel, WhenNoneHealthy,
};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{
    Read, choice, duration, integer, is_label, label, port, table, unicast, wrong_type,
};
use crate::sections::check::{self, Check, CheckAt};
use crate::sections::shield;
use crate::sections::tunnel::mss_clamp;

const MAX_WEIGHT: u32 = 1000;
const SLOW_START: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
const KEEP_FOR: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86400);
const KEEP_FOR_DEFAULT: Duration = Duration::from_secs(300);
/// Do established TCP connections of a backend whose checks fail go on?
const ON_DOWN: [(&str, bool); 2] = [("keep", true), ("reset", false)];

const SOURCES: [(&str, SourceMode); 2] =
    [("node", SourceMode::Node), ("client", SourceMode::Client)];
const AFFINITIES: [(&str, Affinity); 2] =
    [("5-tuple", Affinity::FiveTuple), ("source", Affinity::Source)];
const ANNOUNCE: [(&str, Announce); 2] = [("arp", Announce::Arp), ("routed", Announce::Routed)];
const NONE_HEALTHY: [(&str, WhenNoneHealthy); 3] = [
    ("reset", WhenNoneHealthy::Reset),
    ("drop", WhenNoneHealthy::Drop),
    ("all", WhenNoneHealthy::All),
];
const FORWARDS: [(&str, Forward); 4] = [
    ("nat", Forward::Nat),
    ("dsr-l2", Forward::DsrL2),
    ("dsr-ipip", Forward::DsrIpip),
    ("dsr-gue", Forward::DsrGue),
];
const SYNS: [(&str, Syn); 4] = [
    (Syn::Off.name(), Syn::Off),
    (Syn::Challenge.name(), Syn::Challenge),
    (Syn::Proxy.name(), Syn::Proxy),
    (Syn::Backend.name(), Syn::Backend),
];
const BACKENDS: &str = "backends = [{ address = \"10.0.0.2\" }]";

const EXAMPLE: &str = "[[service]] with name, address, port and backends";

/// Every service that has nothing wrong, of a file that must have one.
pub(crate) fn read_all(file: &mut Section, tunnel: &Tunnel) -> Vec<Service> {
    let tables = file.required_list("service", EXAMPLE, service_table);
    each(file, tables, tunnel)
}

/// The same of a file that need not have any.
pub(crate) fn read_any(file: &mut Section, tunnel: &Tunnel) -> Vec<Service> {
    let tables = file.list("service", EXAMPLE, service_table);
    each(file, tables, tunnel)
}

fn service_table<'v>(value: &'v DeValue<'v>) -> Read<&'v DeTable<'v>> {
    table(value, "write [[service]] and its keys below")
}

type Tables<'v> = Located<Vec<Located<&'v DeTable<'v>>>>;

fn each(file: &Section, tables: Option<Tables>, tunnel: &Tunnel) -> Vec<Service> {
    let tables = tables.map(Located::into_inner).unwrap_or_default();
    let read = |(i, table): (usize, &Located<&DeTable>)| read_one(file, table, i + 1, tunnel);
    tables.iter().enumerate().filter_map(read).collect()
}

fn read_one(
    file: &Section,
    table: &Located<&DeTable>,
    number: usize,
    tunnel: &Tunnel,
) -> Option<Service> {
    let place = match table.get("name").and_then(|name| name.get_ref().as_str()) {
        Some(name) if is_label(name) => format!("service \"{name}\""),
        _ => format!("[[service]] number {number}"),
    };
    let mut section = file.inside(place, table);
    let name = section.required("name", "name = \"web\"", |v| label(v, "a service's"));
    let address = section.required("address", "address = \"203.0.113.10\"", unicast);
    let port = section.required("port", "port = 80", service_port);
    let protocols = section.or("protocol", vec![Protocol::Tcp], protocols);
    let forward = *section.or("forward", Forward::Nat, |v| choice(v, &FORWARDS));
    let gue_port = gue_port(&mut section, forward).unwrap_or(tunnel.gue_port);
    let mss_clamp = mss(&mut section, forward);
    let source = source(&mut section, forward);
    let affinity = *section.or("affinity", Affinity::FiveTuple, |v| choice(v, &AFFINITIES));
    let announce = *section.or("announce", Announce::Kernel, |v| choice(v, &ANNOUNCE));
    let when_none_healthy =
        *section.or("when_none_healthy", WhenNoneHealthy::Reset, |v| choice(v, &NONE_HEALTHY));
    let keep_for = keep_for(&mut section);
    let max_unhealthy = max_unhealthy(&mut section, table.get("check").is_some());
    let slow_start = section.optional("slow_start", |v| duration(v, SLOW_START));
    let syn = section.or("syn", Syn::Off, |v| choice(v, &SYNS));
    let shield = shield::of_service(&mut section);
    let check = check::read(&mut section, forward);
    let backends = backends(&mut section, port.as_deref().copied(), forward, check.as_ref());
    section.finish();
    Some(Service {
        name: name?,
        address: address?,
        last_port: port.as_deref()?.last,
        port: port.map(|port| Located::new(port.first, port.span()))?,
        protocols: protocols.into_inner(),
        forward,
        gue_port,
        mss_clamp,
        source,
        affinity,
        announce,
        when_none_healthy,
        keep_for,
        max_unhealthy,
        slow_start: slow_start.map(Located::into_inner),
        syn,
        shield,
        check,
        backends: backends?,
    })
}

/// 80, "8000-8100" or "*".
fn service_port(value: &DeValue) -> Read<PortRange> {
    const REMEDY: &str = "write a port from 1 to 65535, a range such as \"8000-8100\", or \"*\"";
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let Some(text) = value.as_str() else {
        if !value.is_integer() {
            return Err(wrong_type(value, REMEDY));
        }
        return port(value).map(|port| PortRange { first: port, last: port });
    };
    if text == "*" {
        return Ok(PortRange::ALL);
    }
    if let Some(port) = number(text) {
        return Err(format!("is a string: write port = {port}, without quotes"));
    }
    match text.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?))) {
        Some((first, last)) if first > last => {
            Err(format!("ends before it begins: write \"{last}-{first}\""))
        }
        Some((first, last)) if first == last => Err(format!("is one port: write port = {first}")),
        Some((first, last)) => Ok(PortRange { first, last }),
        None => Err(format!("is not a port: {REMEDY}")),
    }
}

/// One protocol or a list of both; TCP first.
fn protocols(value: &DeValue) -> Read<Vec<Protocol>> {
    const REMEDY: &str = "write \"tcp\", \"udp\" or [\"tcp\", \"udp\"]";
    let one = |value: &DeValue| match value.as_str() {
        Some("tcp") => Ok(Protocol::Tcp),
        Some("udp") => Ok(Protocol::Udp),
        Some(_) => Err(format!("is not a known protocol: {REMEDY}")),
        None => Err(wrong_type(value, REMEDY)),
    };
    let Some(items) = value.as_array() else {
        return one(value).map(|protocol| vec![protocol]);
    };
    let mut protocols =
        items.iter().map(|item| one(item.get_ref())).collect::<Read<Vec<Protocol>>>()?;
    protocols.sort();
    protocols.dedup();
    match protocols.len() {
        0 => Err(format!("is empty: {REMEDY}")),
        n if n < items.len() => Err(format!("names a protocol twice: {REMEDY}")),
        _ => Ok(protocols),
    }
}

/// Reports a key that the forwarding mode has no use for.
fn useless(section: &Section, key: &str, at: Range<usize>, forward: Forward, remedy: &str) {
    let message = format!(
        "{key} in {} has no effect with forward = \"{forward}\": remove it, or write {remedy}",
        section.place
    );
    section.report.error(at, message);
}

/// How long `on_down = "keep"` keeps connections of a silent backend; none: `on_down = "reset"`.
fn keep_for(section: &mut Section) -> Option<Duration> {
    let keeps = *section.or("on_down", true, |v| choice(v, &ON_DOWN));
    let found = section.optional("keep_for", |v| duration(v, KEEP_FOR));
    if let (false, Some(found)) = (keeps, &found) {
        let message = format!(
            "keep_for in {} has no effect with on_down = \"reset\": remove it, or write on_down = \"keep\"",
            section.place
        );
        section.report.error(found.span(), message);
    }
    keeps.then(|| found.map_or(KEEP_FOR_DEFAULT, Located::into_inner))
}

/// `checked`: the service has checks, without which no backend is ever unhealthy.
fn max_unhealthy(section: &mut Section, checked: bool) -> Option<MaxUnhealthy> {
    let found = section.optional("max_unhealthy", |v| integer(v, 0..=99))?;
    if !checked {
        let message = format!(
            "max_unhealthy in {} has no effect without check: remove it, or write check = {{ type = \"tcp\" }}",
            section.place
        );
        section.report.error(found.span(), message);
    }
    Some(MaxUnhealthy(found.into_inner() as u8))
}

fn gue_port(section: &mut Section, forward: Forward) -> Option<u16> {
    let found = section.optional("gue_port", port)?;
    if forward != Forward::DsrGue {
        useless(section, "gue_port", found.span(), forward, "forward = \"dsr-gue\"");
    }
    Some(*found)
}

fn mss(section: &mut Section, forward: Forward) -> MssClamp {
    let Some(found) = section.optional("mss_clamp", mss_clamp) else { return MssClamp::Auto };
    if !forward.is_dsr() {
        let remedy = "forward = \"dsr-ipip\" or another dsr mode";
        useless(section, "mss_clamp", found.span(), forward, remedy);
    }
    *found
}

/// Under dsr backends see the client's address, whatever is written.
fn source(section: &mut Section, forward: Forward) -> SourceMode {
    let found = section.optional("source", |v| choice(v, &SOURCES));
    if !forward.is_dsr() {
        return found.map_or(SourceMode::Node, Located::into_inner);
    }
    if let Some(found) = found.filter(|found| **found == SourceMode::Node) {
        let message = format!(
            "source = \"node\" in {} is not possible with forward = \"{forward}\", where backends \
             answer clients directly: remove it, or write forward = \"nat\"",
            section.place
        );
        section.report.error(found.span(), message);
    }
    SourceMode::Client
}

/// `None` when there are none or one of them is wrong.
fn backends(
    service: &mut Section,
    ports: Option<PortRange>,
    forward: Forward,
    check: Option<&Check>,
) -> Option<Vec<Backend>> {
    // Each packet keeps the port it came to, unless the backend's is written.
    let service_port = ports.map(|ports| if ports.first == ports.last { ports.first } else { 0 });
    let remedy = "write { address = \"10.0.0.2\" }";
    let tables = service.required_list("backends", BACKENDS, |v| table(v, remedy))?;
    let read = |(i, table): (usize, &Located<&DeTable>)| {
        let place = format!("backend {} of {}", i + 1, service.place);
        let mut section = service.inside(place, table);
        let address = section.required("address", "address = \"10.0.0.2\"", unicast);
        let own_port = section.optional("port", port);
        if let (Some(own), Some(wanted)) = (&own_port, service_port) {
            same_port(&section, own, wanted, forward);
        }
        let port = own_port.map(Located::into_inner).or(service_port);
        let asked = check::read_at(&mut section);
        if check.is_none() && asked != CheckAt::default() {
            let message = format!(
                "check of {} has no effect where {} has none: write check = {{ type = \"tcp\" }} \
                 there too, or remove it",
                section.place, service.place
            );
            section.report.error(table.span(), message);
        }
        if port == Some(0) && asked.port.is_none() && check.is_some_and(|c| c.port.is_none()) {
            let message = format!(
                "check of {} has no port to ask {} at, where the service has several: write \
                 port = N in check",
                service.place, section.place
            );
            section.report.error(table.span(), message);
        }
        let weight = section.or("weight", 1, |v| integer(v, 0..=MAX_WEIGHT));
        section.finish();
        Some(Backend { address: address?, port: port?, weight: *weight as u16, check: asked })
    };
    tables.iter().enumerate().map(read).collect()
}

/// Under dsr the packet arrives as the client sent it.
fn same_port(section: &Section, own: &Located<u16>, service_port: u16, forward: Forward) {
    if forward.is_dsr() && service_port == 0 {
        let message = format!(
            "port = {} in {} is not possible with forward = \"{forward}\", which changes no port, \
             where the service has several: remove it, or write forward = \"nat\"",
            **own, section.place
        );
        section.report.error(own.span(), message);
    } else if forward.is_dsr() && **own != service_port {
        let message = format!(
            "port = {} in {} differs from the service's, and forward = \"{forward}\" changes no \
             port: write port = {service_port}, remove it, or write forward = \"nat\"",
            **own, section.place
        );
        section.report.error(own.span(), message);
    }
}
