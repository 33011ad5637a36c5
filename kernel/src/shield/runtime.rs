//! Prefixes that were allowed and blocked at run time, and the rows that packets meet.

use std::collections::BTreeMap;

use ringway_abi::raw::{rw_shield_prefix, rw_shield_runtime};
use ringway_abi::{addr_from_words, addr_to_words};
use ringway_plan::prefix_list::Prefix;

/// A prefix that was allowed or blocked at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimePrefix {
    pub prefix: Prefix,
    /// Else blocked.
    pub allow: bool,
    /// A second of CLOCK_MONOTONIC from which on it is not valid; `u32::MAX`: it has no end.
    pub until: u32,
}

/// Rows of one kind. A packet meets the longest prefix alone, so a prefix within others is valid as
/// long as any of them.
pub(super) fn runtime_rows(
    prefixes: &[&RuntimePrefix],
) -> BTreeMap<rw_shield_prefix, rw_shield_runtime> {
    let mut sorted: Vec<_> = prefixes.to_vec();
    sorted.sort_by_key(|entry| entry.prefix);
    let mut around: Vec<(Prefix, u32)> = Vec::new();
    let mut rows = BTreeMap::new();
    for entry in sorted {
        while around.pop_if(|(outer, _)| !outer.covers(&entry.prefix)).is_some() {}
        let until = around.last().map_or(entry.until, |(_, until)| entry.until.max(*until));
        around.push((entry.prefix, until));
        rows.insert(runtime_key(entry.prefix), runtime_row(&RuntimePrefix { until, ..*entry }));
    }
    rows
}

/// As a row has it; none: no prefix that was put there.
pub(crate) fn runtime_prefix(
    key: &rw_shield_prefix,
    row: &rw_shield_runtime,
    allow: bool,
) -> Option<RuntimePrefix> {
    let mapped = if row.v6 == 0 { 96 } else { 0 };
    let length = u8::try_from(key.len.checked_sub(mapped)?).ok()?;
    let prefix = Prefix::new(addr_from_words(key.addr), length).ok()?;
    Some(RuntimePrefix { prefix, allow, until: row.until })
}

pub(super) fn runtime_row(entry: &RuntimePrefix) -> rw_shield_runtime {
    rw_shield_runtime { until: entry.until, v6: entry.prefix.addr().is_ipv6().into() }
}

pub(super) fn runtime_key(prefix: Prefix) -> rw_shield_prefix {
    let mapped = if prefix.addr().is_ipv4() { 96 } else { 0 };
    let len = u32::from(prefix.length()) + mapped;
    rw_shield_prefix { len, addr: addr_to_words(prefix.addr()) }
}
