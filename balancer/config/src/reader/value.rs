//! Reading single values. Each reader gives the value or a complaint: what is wrong with it and
//! what to write, to follow `key = value in place` in a message.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ringway_abi::raw::RW_LABEL_LEN;
use toml::de::{DeTable, DeValue};

/// Words of a command.
const MAX_ARGUMENTS: usize = 64;

/// A value, or what is wrong with it and what to write.
pub(crate) type Read<T> = Result<T, String>;

/// "is a string: write ..."
pub(crate) fn wrong_type(value: &DeValue, remedy: &str) -> String {
    let article = if value.is_integer() || value.is_array() { "an" } else { "a" };
    format!("is {article} {}: {remedy}", value.type_str())
}

pub(crate) fn text<'v>(value: &'v DeValue, remedy: &str) -> Read<&'v str> {
    value.as_str().ok_or_else(|| wrong_type(value, remedy))
}

pub(crate) fn boolean(value: &DeValue) -> Read<bool> {
    value.as_bool().ok_or_else(|| wrong_type(value, "write true or false, without quotes"))
}

/// A whole number within a range.
pub(crate) fn integer(value: &DeValue, range: RangeInclusive<u32>) -> Read<u32> {
    let remedy = format!("write a whole number from {} to {}", range.start(), range.end());
    let Some(integer) = value.as_integer() else {
        return Err(wrong_type(value, &remedy));
    };
    i128::from_str_radix(integer.as_str(), integer.radix())
        .ok()
        .and_then(|n| u32::try_from(n).ok())
        .filter(|n| range.contains(n))
        .ok_or_else(|| format!("is out of range: {remedy}"))
}

/// A port, 1 to 65535.
pub(crate) fn port(value: &DeValue) -> Read<u16> {
    integer(value, 1..=65535).map(|n| n as u16)
}

/// One of a few words.
pub(crate) fn choice<T: Copy>(value: &DeValue, choices: &[(&str, T)]) -> Read<T> {
    let quoted: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
    let remedy = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("write {} or {last}", rest.join(", ")),
        _ => format!("write {}", quoted.join("")),
    };
    let word = text(value, &remedy)?;
    choices
        .iter()
        .find(|(known, _)| *known == word)
        .map(|(_, choice)| *choice)
        .ok_or_else(|| format!("is not known: {remedy}"))
}

/// An address one machine can have on a network.
pub(crate) fn unicast(value: &DeValue) -> Read<IpAddr> {
    const REMEDY: &str = "write an IPv4 or IPv6 address such as \"10.0.0.2\" or \"2001:db8::2\"";
    let text = text(value, REMEDY)?;
    let address: IpAddr = text.parse().map_err(|_| match text.split_once('/') {
        Some((host, _)) if host.parse::<IpAddr>().is_ok() => {
            format!("is a prefix: write the address alone, {host:?}")
        }
        _ if text.parse::<SocketAddr>().is_ok() => {
            "has a port in it: write the address alone and the port as port = ...".into()
        }
        _ => format!("is not an address: {REMEDY}"),
    })?;
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(format!("is an IPv4 address in IPv6 form: write \"{v4}\""));
    }
    match unusable(address) {
        Some(kind) => Err(format!("is {kind}: {REMEDY}")),
        None => Ok(address),
    }
}

/// Why an address cannot be a machine's on a network.
fn unusable(address: IpAddr) -> Option<&'static str> {
    match address {
        a if a.is_unspecified() => Some("the unspecified address"),
        a if a.is_loopback() => Some("a loopback address, which no packet on a link carries"),
        a if a.is_multicast() => Some("a multicast address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("the broadcast address"),
        IpAddr::V4(a) if a.octets()[0] == 0 => Some("in 0.0.0.0/8, which no machine can have"),
        IpAddr::V6(a) if a.is_unicast_link_local() => {
            Some("link-local, which does not say on which link")
        }
        _ => None,
    }
}

/// Longest name of a service or the like: without the NUL.
const MAX_LABEL: usize = RW_LABEL_LEN as usize - 1;

/// A name that is shown in status and metrics; `whose`: "a service's".
pub(crate) fn label(value: &DeValue, whose: &str) -> Read<String> {
    const REMEDY: &str = "write up to 63 letters, digits, \"-\", \"_\" and \".\"";
    let name = text(value, REMEDY)?;
    match is_label(name) {
        true => Ok(name.into()),
        false => Err(format!("cannot be {whose} name: {REMEDY}")),
    }
}

pub(crate) fn is_label(name: &str) -> bool {
    (1..=MAX_LABEL).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The absolute path of a file; whether there is one is for others to find out.
pub(crate) fn file(value: &DeValue, remedy: &str) -> Read<PathBuf> {
    let path = text(value, remedy)?;
    if !is_absolute(path) {
        return Err(format!("is not the absolute path of a file: {remedy}"));
    }
    Ok(path.into())
}

/// Whether it is an absolute path that a file may have.
pub(crate) fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.ends_with('/') && !path.contains('\0')
}

/// A program and its arguments.
pub(crate) fn command(value: &DeValue, example: &str) -> Read<Vec<String>> {
    let Some(items) = value.as_array() else {
        return Err(match value.as_str() {
            Some(_) => format!("is a string, and no shell splits it: write {example}"),
            None => wrong_type(value, &format!("write {example}")),
        });
    };
    let words: Option<Vec<&str>> = items.iter().map(|item| item.get_ref().as_str()).collect();
    let Some(words) = words else {
        return Err(format!("has an element that is no string: write {example}"));
    };
    match words.first() {
        None => return Err(format!("is empty: write {example}")),
        Some(program) if !is_absolute(program) => {
            return Err(format!(
                "does not begin with the absolute path of a program: write {example}"
            ));
        }
        Some(_) => {}
    }
    if words.len() > MAX_ARGUMENTS || words.iter().any(|word| word.contains('\0')) {
        return Err(format!(
            "has more than {MAX_ARGUMENTS} elements, or a NUL in one: write a script and name it"
        ));
    }
    Ok(words.into_iter().map(Into::into).collect())
}

/// A table in a list.
pub(crate) fn table<'v>(value: &'v DeValue<'v>, remedy: &str) -> Read<&'v DeTable<'v>> {
    value.as_table().ok_or_else(|| wrong_type(value, remedy))
}

/// An address and port to listen on, or "off".
pub(crate) fn listen(value: &DeValue) -> Read<Option<SocketAddr>> {
    const REMEDY: &str = "write an address and port such as \"127.0.0.1:9810\", or \"off\"";
    let text = text(value, REMEDY)?;
    if text == "off" {
        return Ok(None);
    }
    let address: SocketAddr =
        text.parse().map_err(|_| format!("is not an address and port: {REMEDY}"))?;
    match address.port() {
        0 => Err(format!("has port 0: {REMEDY}")),
        _ => Ok(Some(address)),
    }
}

/// A length of time with its unit: "500ms", "10s", "2m", "1h", "1d".
pub(crate) fn duration(value: &DeValue, range: RangeInclusive<Duration>) -> Read<Duration> {
    if let Some(integer) = value.as_integer() {
        return Err(format!(
            "is a bare number where a unit belongs: write \"{integer}s\" if seconds are meant"
        ));
    }
    duration_text(text(value, &duration_remedy(&range))?, range)
}

fn duration_remedy(range: &RangeInclusive<Duration>) -> String {
    format!(
        "write a number and its unit (ms, s, m, h, d), from {:?} to {:?}",
        written(*range.start()),
        written(*range.end())
    )
}

/// The same of a text, such as an option of a command.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn duration_text(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    let remedy = duration_remedy(&range);
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim_start());
    if number.is_empty() || unit.starts_with(['.', ',']) {
        return Err(format!("is not a length of time: {remedy}"));
    }
    let scale: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        "" => {
            return Err(format!("lacks its unit: write \"{number}s\" if seconds are meant"));
        }
        other => return Err(format!("has the unknown unit {other:?}: {remedy}")),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(scale))
        .map(Duration::from_millis)
        .filter(|duration| range.contains(duration))
        .ok_or_else(|| format!("is out of range: {remedy}"))
}

/// A duration as a configuration writes it.
pub(crate) fn written(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [(24 * 3600 * 1000, "d"), (3600 * 1000, "h"), (60 * 1000, "m"), (1000, "s")];
    match units.iter().find(|(scale, _)| ms >= *scale && ms.is_multiple_of(*scale)) {
        Some((scale, unit)) => format!("{}{unit}", ms / scale),
        None => format!("{ms}ms"),
    }
}
