//! Reading the values that checks are made of.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use toml::de::DeValue;

use crate::model::check::Statuses;
use crate::reader::value::{Read, integer, text};

const MAX_PATH: usize = 1024;
const MAX_BYTES: usize = 1024;
/// RFC 1035, section 2.3.4, as text without the last dot.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// What may follow `GET ` as it is (RFC 9112, 3.2.1).
pub(super) fn path(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write one that begins with \"/\", such as \"/healthz\"";
    let path = text(value, REMEDY)?;
    if !path.starts_with('/') {
        return Err(format!("is not an absolute path: {REMEDY}"));
    }
    if path.len() > MAX_PATH || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "has a space, a character that is not ASCII, or more than {MAX_PATH} of them: write \
             it percent-encoded, \"%20\" for a space"
        ));
    }
    Ok(path.into())
}

/// A `Host` header: name or address, perhaps a port.
pub(super) fn host(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write a name such as \"www.example.com\", with a port if need be";
    let host = text(value, REMEDY)?;
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = is_name(name) || bracketed.is_some_and(|name| name.parse::<IpAddr>().is_ok());
    match is_name && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) {
        true => Ok(host.into()),
        false => Err(format!("is no host: {REMEDY}")),
    }
}

/// A name for TLS; addresses have none.
pub(super) fn server_name(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write the name that the certificate is for, such as \"www.example.com\"";
    let name = text(value, REMEDY)?;
    if name.parse::<IpAddr>().is_ok() {
        return Err(
            "is an address, and TLS asks by name: remove it (then the certificate must be for the \
             address asked), or write the name that the certificate is for"
                .into(),
        );
    }
    match is_name(name) {
        true => Ok(name.into()),
        false => Err(format!("is no host name: {REMEDY}")),
    }
}

/// A name to ask a DNS server for; "." is the root.
pub(super) fn query(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write a name such as \"example.com\"";
    let written = text(value, REMEDY)?;
    if written == "." {
        return Ok(String::new());
    }
    let name = written.strip_suffix('.').unwrap_or(written);
    match is_name(name) {
        true => Ok(name.into()),
        false if !written.is_ascii() => {
            Err("has characters that are not ASCII: write its xn-- form".into())
        }
        false => Err(format!("is no domain name: {REMEDY}")),
    }
}

/// Labels of letters, digits, `-` and `_`.
fn is_name(name: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    name.len() <= MAX_NAME
        && name
            .split('.')
            .all(|label| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(fits))
}

/// 200, "200-299", or a list of such.
pub(super) fn statuses(value: &DeValue) -> Read<Statuses> {
    let ranges = match value.as_array() {
        Some(items) => items.iter().map(|item| status(item.get_ref())).collect::<Read<Vec<_>>>()?,
        None => vec![status(value)?],
    };
    match ranges.is_empty() {
        true => Err(format!("is empty: {STATUSES}")),
        false => Ok(Statuses(ranges)),
    }
}

const STATUSES: &str = "write a status from 100 to 599, a range such as \"200-299\", or a list of \
                        them";

fn status(value: &DeValue) -> Read<RangeInclusive<u16>> {
    if value.is_integer() {
        let status =
            integer(value, 100..=599).map_err(|_| format!("is out of range: {STATUSES}"))?;
        return Ok(status as u16..=status as u16);
    }
    let text = text(value, STATUSES)?;
    let number =
        |text: &str| text.trim().parse::<u16>().ok().filter(|status| (100..=599).contains(status));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("is no HTTP status: {STATUSES}")),
    }
}

/// Text, or bytes as "hex:0a 0b".
pub(super) fn bytes(value: &DeValue) -> Read<Vec<u8>> {
    const REMEDY: &str = "write text, or bytes such as \"hex:01ff\"";
    let text = text(value, REMEDY)?;
    let bytes = match text.strip_prefix("hex:") {
        None => text.as_bytes().to_vec(),
        Some(digits) => hex(digits)?,
    };
    match bytes.len() {
        0 => Err(format!("is empty: {REMEDY}")),
        n if n > MAX_BYTES => Err(format!("is {n} bytes long: write at most {MAX_BYTES}")),
        _ => Ok(bytes),
    }
}

fn hex(digits: &str) -> Read<Vec<u8>> {
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
    if let Some(wrong) = digits.iter().find(|c| !c.is_ascii_hexdigit()) {
        return Err(format!(
            "has {wrong:?} among its hexadecimal digits: write two of 0-9, a-f for each byte"
        ));
    }
    if digits.len() % 2 == 1 {
        return Err(format!(
            "has {} hexadecimal digits, an odd number: write two for each byte",
            digits.len()
        ));
    }
    let byte = |pair: &[char]| {
        let nibble = |c: char| c.to_digit(16).unwrap_or_default() as u8;
        nibble(pair[0]) << 4 | nibble(pair[1])
    };
    Ok(digits.chunks_exact(2).map(byte).collect())
}
