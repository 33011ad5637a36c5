//! What a shield is made of: lists of prefixes that packets come from, or just do not, and rules.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ringway_abi::{RuleAction, ShieldMode};
use ringway_filter::{Filter, Instruction, OnMatch, first_match};
use ringway_kernel::programs::capture::MOST_BYTES;
use ringway_kernel::shield::{Generation, Rule};
use ringway_plan::prefix_list::{Entry, ListTables, Prefix, PrefixSet};

use crate::benches::packet::path::{Clients, Ip};
use crate::{Error, Result};

/// Nine that no segment to the service matches.
const RULES: [&str; 9] = [
    "udp src port 53 and greater 600",
    "udp src port 123 and greater 200",
    "udp src port 1900",
    "udp src port 11211",
    "udp src port 19",
    "tcp dst port 23 or tcp dst port 2323",
    "src net 198.18.0.0/15",
    "icmp or icmp6",
    "tcp and greater 1400 and src portrange 1-1023",
];
/// The tenth, which each matches, or none.
pub(super) const MATCHES: &str = "tcp dst port 80 and less 100";
pub(super) const MATCHES_NOT: &str = "tcp dst port 8080";

pub(super) struct Shield {
    tables: ListTables,
    names: Vec<String>,
    rules: Vec<Rule>,
    program: Vec<Instruction>,
}

impl Shield {
    /// One that blocks these prefixes.
    pub(super) fn of_list(prefixes: &[Prefix]) -> Result<Self> {
        let entry = |prefix: &Prefix| Entry { prefix: *prefix, line: 1 };
        let entries: Vec<Entry> = prefixes.iter().map(entry).collect();
        let block = PrefixSet::new([(0, &entries[..])]).map_err(tables)?;
        let names = if prefixes.is_empty() { Vec::new() } else { vec!["bench".to_owned()] };
        let tables = ListTables::new(&PrefixSet::default(), &block);
        Ok(Self { tables, names, rules: Vec::new(), program: Vec::new() })
    }

    /// One of ten rules that drop, of which this is the last.
    pub(super) fn of_rules(last: &str) -> Result<Self> {
        Self::of_both(&[], last)
    }

    pub(super) fn of_both(prefixes: &[Prefix], last: &str) -> Result<Self> {
        let compiled = RULES.iter().chain([&last]).map(|text| Filter::compile(text, MOST_BYTES));
        let filters: Vec<Filter> = compiled.collect::<Result<_, _>>().map_err(tables)?;
        let ends: Vec<_> = filters.iter().map(|filter| (filter, OnMatch::End)).collect();
        let program = first_match(&ends).map_err(tables)?;
        let drops =
            |filter: &Filter| Rule { name: name(filter), action: RuleAction::Drop, limit: None };
        let rules = filters.iter().map(drops).collect();
        Ok(Self { rules, program, ..Self::of_list(prefixes)? })
    }

    pub(super) fn generation(&self) -> Generation<'_> {
        Generation {
            mode: ShieldMode::Enforce,
            sanity: true,
            protect_host: false,
            service_modes: false,
            answers: false,
            challenge_key: None,
            lists: &self.tables,
            list_names: &self.names,
            rules: &self.rules,
            program: &self.program,
        }
    }
}

fn name(filter: &Filter) -> String {
    filter.expression().chars().take(30).collect()
}

fn tables(error: impl std::fmt::Display) -> Error {
    Error::Tables(error.to_string())
}

/// The prefix of a flow's source: its address, or of clients in networks of their own its /48.
pub(super) fn prefix(ip: Ip, clients: Clients, flow: u32) -> Result<Prefix> {
    let (address, length) = match clients.address(ip, flow) {
        IpAddr::V6(address) if clients == Clients::Networks => {
            (Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(), 48)
        }
        address => (address, if address.is_ipv4() { 32 } else { 128 }),
    };
    Prefix::new(address, length).map_err(tables)
}

/// So many prefixes that all flows come from, and how many flows these are.
pub(super) fn sources(ip: Ip, clients: Clients, most: usize) -> Result<(Vec<Prefix>, u32)> {
    let mut found = BTreeSet::new();
    for flow in 0.. {
        let prefix = prefix(ip, clients, flow)?;
        if found.len() == most && !found.contains(&prefix) {
            return Ok((found.into_iter().collect(), flow));
        }
        found.insert(prefix);
    }
    Ok((Vec::new(), 0))
}

/// So many prefixes between those that flows come from: a search among them is as long as it gets.
pub(super) fn neighbours(ip: Ip, clients: Clients, flows: u32, most: usize) -> Result<Vec<Prefix>> {
    let used: Result<BTreeSet<Prefix>> = (0..flows).map(|f| prefix(ip, clients, f)).collect();
    let (used, mut found) = (used?, BTreeSet::new());
    for flow in flows.. {
        if found.len() == most {
            break;
        }
        let prefix = prefix(ip, clients, flow)?;
        if !used.contains(&prefix) {
            found.insert(prefix);
        }
    }
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_hit_and_miss() {
        for (ip, clients) in [
            (Ip::V4, Clients::OneNetwork),
            (Ip::V6, Clients::OneNetwork),
            (Ip::V6, Clients::Networks),
        ] {
            let (listed, flows) = sources(ip, clients, 1000).unwrap();
            let shield = Shield::of_list(&listed).unwrap();
            let blocked = |flow| shield.tables.blocked(clients.address(ip, flow)).is_some();
            assert_eq!(listed.len(), 1000);
            assert!(flows >= 1000 && (0..flows).all(blocked) && !blocked(flows));
            let listed = neighbours(ip, clients, 5000, 1000).unwrap();
            let shield = Shield::of_list(&listed).unwrap();
            let blocked = |flow| shield.tables.blocked(clients.address(ip, flow)).is_some();
            assert_eq!(listed.len(), 1000);
            assert!(!(0..5000).any(blocked) && (5000..7000).any(blocked));
        }
    }

    #[test]
    fn the_last_rule_alone_matches() {
        let frame = |ip| {
            use crate::benches::packet::path::frame::{ACK, segment, service};
            segment(Clients::default(), service(ip), ACK)
        };
        for frame in Ip::ALL.map(frame) {
            let matches = |text: &str| {
                let filter = Filter::compile(text, MOST_BYTES).unwrap();
                filter.matches(&frame, frame.len() as u32)
            };
            assert!(!RULES.iter().any(|rule| matches(rule)));
            assert!(matches(MATCHES) && !matches(MATCHES_NOT));
        }
        assert_eq!(Shield::of_rules(MATCHES).unwrap().rules.len(), 10);
    }
}
