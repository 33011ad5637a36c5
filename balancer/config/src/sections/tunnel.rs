//! `[tunnel]`: what the outer headers of dsr-ipip and dsr-gue carry.

use std::net::IpAddr;

use toml::de::DeValue;

use crate::model::{Marks, MssClamp, Tunnel};
use crate::reader::section::Section;
use crate::reader::value::{Read, integer, port, text, unicast, wrong_type};

/// Registered for GUE (RFC 6335 registry).
pub(crate) const GUE_PORT: u16 = 6080;
/// "rw": bits that neither Kubernetes nor the usual VPNs use.
const MARKS: Marks = Marks { value: 0x7277_0000, mask: 0xffff_0000 };
/// What every IPv4 host must take (RFC 9293, 3.7.1), and what jumbo frames carry.
const MSS: std::ops::RangeInclusive<u32> = 536..=9176;

pub(crate) fn read(file: &mut Section) -> Tunnel {
    let mut section = file.table_or_empty("tunnel", "[tunnel]".into());
    let tunnel = Tunnel {
        source: section.or("source", Vec::new(), sources),
        gue_port: *section.or("gue_port", GUE_PORT, port),
        marks: section.or("marks", MARKS, marks),
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

/// VALUE/MASK, as `ip rule` and iptables write it.
fn marks(value: &DeValue) -> Read<Marks> {
    const REMEDY: &str = "write a value and a mask such as \"0x72770000/0xffff0000\": the bits that \
                          the mask leaves out number the checks";
    let text = text(value, REMEDY)?;
    let number = |text: &str| match text.trim().strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.trim().parse().ok(),
    };
    let parts = text.split_once('/').map(|(value, mask)| (number(value), number(mask)));
    let Some((Some(value), Some(mask))) = parts else {
        return Err(format!("is no range of marks: {REMEDY}"));
    };
    if mask == 0 || mask == u32::MAX || mask.leading_ones() + mask.trailing_zeros() != 32 {
        return Err(format!("has a mask that is not ones followed by zeros: {REMEDY}"));
    }
    if value & !mask != 0 || value == 0 {
        return Err(format!("has a value of 0, or with bits that are not in its mask: {REMEDY}"));
    }
    Ok(Marks { value, mask })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read_marks(text: &str) -> Read<Marks> {
        marks(&DeValue::String(text.into()))
    }

    #[test]
    fn marks_are_a_value_under_a_mask() {
        let found = read_marks("0x72770000/0xffff0000").expect("valid");
        assert_eq!(found, MARKS);
        assert_eq!((found.count(), found.nth(5)), (65_536, Some(0x7277_0005)));
        assert_eq!(read_marks("256/0xffffff00").expect("valid").nth(256), None);
        assert_eq!(found.to_string(), "0x72770000/0xffff0000");
        let wrong = "1, 1/2/3, 0x/0x, 1/0xf0, 0x1/0xffff0000, 0/0xffff0000, 7/0xffffffff, 0/0";
        for wrong in wrong.split(", ").chain([""]) {
            assert!(read_marks(wrong).is_err(), "{wrong}");
        }
    }
}
