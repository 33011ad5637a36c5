//! `[tunnel]`: what the outer headers of dsr-ipip and dsr-gue carry.

use std::net::IpAddr;

use toml::de::DeValue;

use crate::model::{MssClamp, Tunnel};
use crate::section::Section;
use crate::value::{Read, integer, port, text, unicast, wrong_type};

/// Registered for GUE (RFC 6335 registry).
pub(crate) const GUE_PORT: u16 = 6080;
/// What every IPv4 host must take (RFC 9293, 3.7.1), and what jumbo frames carry.
const MSS: std::ops::RangeInclusive<u32> = 536..=9176;

pub(crate) fn read(file: &mut Section) -> Tunnel {
    let mut section = file.table_or_empty("tunnel", "[tunnel]".into());
    let tunnel = Tunnel {
        source: section.or("source", Vec::new(), sources),
        gue_port: *section.or("gue_port", GUE_PORT, port),
    };
    section.finish();
    tunnel
}

/// One address, or one of each family.
fn sources(value: &DeValue) -> Read<Vec<IpAddr>> {
    const REMEDY: &str = "write one address such as \"10.0.0.1\", or one of each family: \
                          [\"10.0.0.1\", \"fd00::1\"]";
    let Some(items) = value.as_array() else {
        text(value, REMEDY)?;
        return unicast(value).map(|source| vec![source]);
    };
    let mut sources: Vec<IpAddr> = Vec::new();
    for item in items {
        let source = unicast(item.get_ref())
            .map_err(|complaint| format!("has an element that {complaint}"))?;
        if sources.iter().any(|other| other.is_ipv4() == source.is_ipv4()) {
            let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(format!("has two {family} addresses: {REMEDY}"));
        }
        sources.push(source);
    }
    match sources.is_empty() {
        true => Err(format!("is empty: {REMEDY}, or leave it out")),
        false => Ok(sources),
    }
}

/// "auto", "off" or a number of bytes.
pub(crate) fn mss_clamp(value: &DeValue) -> Read<MssClamp> {
    const REMEDY: &str = "write \"auto\", \"off\", or bytes from 536 to 9176";
    if value.is_integer() {
        return integer(value, MSS).map(|bytes| MssClamp::Bytes(bytes as u16));
    }
    match text(value, REMEDY).map_err(|_| wrong_type(value, REMEDY))? {
        "auto" => Ok(MssClamp::Auto),
        "off" => Ok(MssClamp::Off),
        _ => Err(format!("is not known: {REMEDY}")),
    }
}
