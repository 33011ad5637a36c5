//! Rates, and limits of them.

use toml::de::DeValue;

use crate::model::{Limits, RateLimit};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{Read, text};

/// Packets a second.
pub(super) const MAX_RATE: RateLimit = RateLimit::new(100_000_000);
/// Of one source or flow, whose clock has microseconds.
pub(super) const MAX_SINGLE_RATE: RateLimit = RateLimit::new(1_000_000);
/// Factors of units.
const UNITS: [(&str, u32); 3] = [("pps", 1), ("kpps", 1000), ("Mpps", 1_000_000)];

/// Limits of every service.
pub(super) fn shared_limits(section: &mut Section) -> Limits {
    let mut limit = |key, most| section.optional(key, |v| rate(v, most)).map(Located::into_inner);
    Limits {
        packets: limit("packets", MAX_RATE),
        destination: limit("destination", MAX_RATE),
        new_flows: limit("new_flows", MAX_RATE),
        source: limit("source", MAX_SINGLE_RATE),
    }
}

/// "10kpps", with a burst of a tenth of a second.
pub(super) fn rate(value: &DeValue, most: RateLimit) -> Read<RateLimit> {
    let remedy = format!(
        "write packets per second from \"1pps\" to \"{}\", such as \"10kpps\"",
        most.rate()
    );
    if let Some(number) = value.as_integer() {
        return Err(format!(
            "is a bare number where a unit belongs: write \"{}pps\" if packets per second are meant",
            number.as_str()
        ));
    }
    let text = text(value, &remedy)?;
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = UNITS.iter().find(|(unit, _)| *unit == &text[split..]);
    let Some((_, scale)) = unit.filter(|_| split > 0) else {
        return Err(format!("is not a rate: {remedy}"));
    };
    text[..split]
        .parse()
        .ok()
        .and_then(|number: u32| number.checked_mul(*scale))
        .filter(|rate| (1..=most.packets_per_second).contains(rate))
        .map(RateLimit::new)
        .ok_or_else(|| format!("is out of range: {remedy}"))
}
