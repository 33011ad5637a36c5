//! What a prefix holds that nobody blocks or allows in haste: most clients, or our own addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ringway_api::text::counted;
use ringway_config::{Config, ListAction, Service};
use ringway_plan::prefix_list::{Entry, Prefix};

/// The longest prefixes that hold a large part of all clients.
const WIDE_V4: u8 = 3;
const WIDE_V6: u8 = 12;
/// Of a list's prefixes, those that are named.
const NAMED: usize = 3;

/// An address that must not be blocked: what it is, and of which service.
type Own<'c> = (Prefix, &'static str, &'c str);

fn own<'c>(address: IpAddr, what: &'static str, service: &'c Service) -> Option<Own<'c>> {
    let prefix = Prefix::new(address, if address.is_ipv4() { 32 } else { 128 }).ok()?;
    Some((prefix, what, &service.name))
}

fn shown((prefix, what, service): Own<'_>) -> String {
    format!("{}, {what} of service {service}", prefix.addr())
}

fn backends(config: &Config) -> impl Iterator<Item = Own<'_>> {
    config.services.iter().flat_map(|service| {
        let backends = service.backends.iter();
        backends.filter_map(move |backend| own(*backend.address, "a backend", service))
    })
}

fn services(config: &Config) -> impl Iterator<Item = Own<'_>> {
    config.services.iter().filter_map(|service| own(*service.address, "the address", service))
}

/// What it has of all clients, where that is much. Lists of addresses that nobody has hold
/// 224.0.0.0/3 or fc00::/7, where no client is.
fn clients(prefix: &Prefix) -> Option<&'static str> {
    let what = match (prefix.addr(), prefix.length()) {
        (IpAddr::V4(_), 0) => "all of IPv4",
        (IpAddr::V6(_), 0) => "all of IPv6",
        (IpAddr::V4(first), 1..=WIDE_V4) if first.octets()[0] < 224 => "a large part of IPv4",
        (IpAddr::V6(first), 1..=WIDE_V6) => {
            let global = IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0));
            let is_global = prefix.contains(global) || first.segments()[0] >> 13 == 1;
            return is_global.then_some("a large part of IPv6");
        }
        _ => return None,
    };
    Some(what)
}

/// What a prefix holds that nobody means by this action in haste: most clients, or, where it is
/// blocked, a backend; or it is the address of a service or of the gateway itself, beside which a
/// network may well have others. `gateway`: the addresses of its interfaces.
pub fn holds(
    config: &Config,
    gateway: &BTreeSet<IpAddr>,
    prefix: &Prefix,
    action: ListAction,
) -> Option<String> {
    let ours = || {
        let service = || services(config).find(|(address, ..)| address == prefix);
        backends(config).find(|(address, ..)| prefix.covers(address)).or_else(service).map(shown)
    };
    let gateway = || {
        let nat = config.nat.addresses.iter().map(|address| **address);
        let mut own = nat.chain(gateway.iter().copied());
        let is_one = prefix.length() == if prefix.addr().is_ipv4() { 32 } else { 128 };
        let own = own.find(|address| is_one && prefix.contains(*address))?;
        Some(format!("{own}, an address of this gateway"))
    };
    let clients = clients(prefix).map(str::to_owned);
    match action {
        ListAction::Allow => clients,
        ListAction::Block => clients.or_else(ours).or_else(gateway),
    }
}

/// Lines of a list that hold what nobody means, in words: the first few, and how many more.
pub fn lines(config: &Config, action: ListAction, entries: &[Entry]) -> Vec<String> {
    let mut own: Vec<Own<'_>> = match action {
        ListAction::Allow => Vec::new(),
        ListAction::Block => backends(config).chain(services(config)).collect(),
    };
    own.sort();
    let held = |prefix: &Prefix| {
        // A prefix stands right before those that it contains.
        let next = own.get(own.partition_point(|(address, ..)| address < prefix));
        let own = || next.filter(|(address, ..)| prefix.covers(address)).copied().map(shown);
        clients(prefix).map(str::to_owned).or_else(own)
    };
    let mut wide = entries.iter().filter_map(|it| Some((it, held(&it.prefix)?)));
    let does = match action {
        ListAction::Allow => "allows",
        ListAction::Block => "blocks",
    };
    let named = wide.by_ref().take(NAMED);
    let mut lines: Vec<String> =
        named.map(|(it, what)| format!("line {}: {} {does} {what}", it.line, it.prefix)).collect();
    let more = wide.count();
    if more > 0 {
        lines.push(format!("{} more", counted(more, "such line")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gateway;

    #[test]
    fn whoever_blocks_our_own_must_mean_it() {
        let config = gateway("[nat]\naddresses = [\"10.0.0.9\"]", "");
        let gateway = BTreeSet::from([[203, 0, 113, 1].into()]);
        let of = |prefix: &str, action| {
            holds(&config, &gateway, &prefix.parse().expect("a prefix"), action)
        };
        for (prefix, what) in [
            ("10.0.0.2", "10.0.0.2, a backend of service web"),
            ("10.0.0.0/29", "10.0.0.2, a backend of service web"),
            ("203.0.113.9", "203.0.113.9, the address of service web"),
            ("10.0.0.9", "10.0.0.9, an address of this gateway"),
            ("203.0.113.1", "203.0.113.1, an address of this gateway"),
        ] {
            assert_eq!(of(prefix, ListAction::Block).as_deref(), Some(what));
            assert_eq!(of(prefix, ListAction::Allow), None);
        }
        for others in ["203.0.113.2", "203.0.113.0/24", "10.0.0.8/29"] {
            assert_eq!(of(others, ListAction::Block), None, "{others}");
        }
    }

    #[test]
    fn wide_is_what_holds_many_clients() {
        let of = |prefix: &str| clients(&prefix.parse().expect("a prefix"));
        for wide in ["0.0.0.0/0", "0.0.0.0/1", "192.0.0.0/2", "32.0.0.0/3"] {
            assert!(of(wide).is_some_and(|what| what.ends_with("of IPv4")), "{wide}");
        }
        for wide in ["::/0", "::/2", "2000::/3", "2a00::/12", "3000::/4"] {
            assert!(of(wide).is_some_and(|what| what.ends_with("of IPv6")), "{wide}");
        }
        for narrow in
            ["32.0.0.0/4", "224.0.0.0/3", "2a00::/13", "fc00::/7", "fe80::/10", "8000::/1", "::/8"]
        {
            assert_eq!(of(narrow), None, "{narrow}");
        }
    }
}
