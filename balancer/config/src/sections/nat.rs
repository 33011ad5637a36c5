//! `[nat]`: source addresses, ports, the size of the flow table and its timeouts.

use std::collections::HashSet;
use std::time::Duration;

use ringway_abi::raw::RW_MAX_NAT_ADDRS;
use toml::de::DeValue;

use crate::model::{Nat, PortRange, Timeouts};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{self, Read, integer, unicast, wrong_type};

const MAX_ADDRESSES: usize = RW_MAX_NAT_ADDRS as usize;
/// Fewer rest too long after a few flows of UDP.
const MIN_PORTS: u16 = 1024;
const DEFAULT_PORTS: PortRange = PortRange { first: 10000, last: 29999 };
/// Tables of buckets, powers of two: 1.25 GiB at the upper end.
const FLOWS: std::ops::RangeInclusive<u32> = 1024..=16_777_216;
const DEFAULT_FLOWS: u32 = 1_048_576;
const ONE_WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

pub(crate) fn read(file: &mut Section) -> Nat {
    let mut section = file.table_or_empty("nat", "[nat]".into());
    let addresses = section.list("addresses", "addresses = [\"10.0.0.1\"]", unicast);
    if let Some(addresses) = &addresses {
        check_addresses(&section, addresses);
    }
    let nat = Nat {
        addresses: addresses.map(Located::into_inner).unwrap_or_default(),
        ports: section.or("ports", DEFAULT_PORTS, ports),
        flows: *section.or("flows", DEFAULT_FLOWS, |v| integer(v, FLOWS)),
        timeouts: timeouts(&mut section),
    };
    section.finish();
    nat
}

fn check_addresses(section: &Section, addresses: &Located<Vec<Located<std::net::IpAddr>>>) {
    let mut seen = HashSet::new();
    for address in addresses.iter() {
        if !seen.insert(**address) {
            let message = format!("{address} is twice in addresses of [nat]: remove one");
            section.report.error(address.span(), message);
        }
    }
    if addresses.len() > MAX_ADDRESSES {
        let message = format!(
            "addresses of [nat] has {} elements: write at most {MAX_ADDRESSES}; each gives every \
             port towards every backend",
            addresses.len()
        );
        section.report.error(addresses.span(), message);
    }
}

/// "10000-29999"
fn ports(value: &DeValue) -> Read<PortRange> {
    const REMEDY: &str = "write a range of at least 1024 ports from 1024 to 65535, such as \
                          \"10000-29999\"";
    let Some(text) = value.as_str() else {
        return Err(wrong_type(value, REMEDY));
    };
    let (first, last) = text
        .split_once('-')
        .and_then(|(first, last)| Some((number(first)?, number(last)?)))
        .ok_or_else(|| format!("is not a range of ports: {REMEDY}"))?;
    match (u16::try_from(first), u16::try_from(last)) {
        (Ok(first), Ok(last)) if first > last => {
            Err(format!("ends before it begins: write \"{last}-{first}\""))
        }
        (Ok(first), Ok(last)) if first < 1024 || last - first < MIN_PORTS - 1 => {
            let what = if first < 1024 { "reaches below port 1024" } else { "is too narrow" };
            Err(format!("{what}: {REMEDY}"))
        }
        (Ok(first), Ok(last)) => Ok(PortRange { first, last }),
        _ => Err(format!("is out of range: {REMEDY}")),
    }
}

/// Digits alone: u32's own parser would take a sign.
fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn timeouts(nat: &mut Section) -> Timeouts {
    let mut section = nat.table_or_empty("timeouts", "timeouts of [nat]".into());
    let mut timeout = |key, default| {
        *section.or(key, Duration::from_secs(default), |value| {
            let duration = value::duration(value, Duration::from_secs(1)..=ONE_WEEK)?;
            match duration.subsec_millis() {
                0 => Ok(duration),
                _ => Err(format!("is not whole seconds: write \"{}s\"", duration.as_secs() + 1)),
            }
        })
    };
    let timeouts = Timeouts {
        syn: timeout("syn", 240),
        established: timeout("established", 7440),
        closing: timeout("closing", 240),
        closed: timeout("closed", 240),
        udp_new: timeout("udp_new", 120),
        udp: timeout("udp", 120),
    };
    section.finish();
    timeouts
}
