//! Settings of the network stack under /proc/sys. Those of `net` are of the calling thread's
//! network namespace.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{Host, Result};

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    /// Whether the two have a port in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// As a range of the standard library.
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Host {
    /// A setting by its path below /proc/sys, as in `net/ipv4/ip_forward`; `None` if the kernel has
    /// none such here.
    pub fn sysctl(&self, key: &str) -> Result<Option<String>> {
        self.source.read_if_there(&format!("/proc/sys/{key}"))
    }

    /// Ports that the kernel gives to connections of its own (`net.ipv4.ip_local_port_range`; IPv6
    /// uses it too).
    pub fn local_ports(&self) -> Result<PortRange> {
        const PATH: &str = "/proc/sys/net/ipv4/ip_local_port_range";
        let text = self.source.read(PATH)?;
        self.source.parse(PATH, &text, "two ports", |text| {
            let mut ends = text.split_ascii_whitespace().map(str::parse);
            Some(PortRange { first: ends.next()?.ok()?, last: ends.next()?.ok()? })
        })
    }

    /// Ports that the kernel leaves out of that range (`net.ipv4.ip_local_reserved_ports`).
    pub fn reserved_ports(&self) -> Result<Vec<PortRange>> {
        const PATH: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
        let text = self.source.read_if_there(PATH)?.unwrap_or_default();
        self.source.parse(PATH, &text, "ports and ranges, as in 80,1000-2000", parse_ports)
    }

    /// Whether the kernel forwards IPv4 between interfaces.
    pub fn forwards_v4(&self) -> Result<bool> {
        Ok(self.number("net/ipv4/ip_forward")?.unwrap_or(0) != 0)
    }

    /// Whether the kernel forwards IPv6 between interfaces.
    pub fn forwards_v6(&self) -> Result<bool> {
        Ok(self.number("net/ipv6/conf/all/forwarding")?.unwrap_or(0) != 0)
    }

    /// How strictly the interface checks source addresses of IPv4: 0 not, 1 strict, 2 loose. The
    /// greater of its own setting and that for all counts (Documentation/networking/ip-sysctl).
    pub fn rp_filter(&self, interface: &str) -> Result<i64> {
        let all = self.number("net/ipv4/conf/all/rp_filter")?.unwrap_or(0);
        // In the path form a dot in an interface's name stays a dot.
        let own = self.number(&format!("net/ipv4/conf/{interface}/rp_filter"))?.unwrap_or(0);
        Ok(all.max(own))
    }

    /// Whether BPF programs are compiled: 0 not, 1 yes, 2 with debugging. `None` outside the
    /// machine's first network namespace, where the setting cannot be seen.
    pub fn bpf_jit(&self) -> Result<Option<i64>> {
        self.number("net/core/bpf_jit_enable")
    }

    fn number(&self, key: &str) -> Result<Option<i64>> {
        let Some(text) = self.sysctl(key)? else { return Ok(None) };
        let path = format!("/proc/sys/{key}");
        self.source.parse(&path, &text, "a number", |text| text.parse().ok()).map(Some)
    }
}

/// `80,1000-2000`; nothing at all is no port.
fn parse_ports(text: &str) -> Option<Vec<PortRange>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(PortRange { first: first.parse().ok()?, last: last.parse().ok()? })
    };
    text.split(',').filter(|p| !p.is_empty()).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_ports() {
        let range = |first, last| PortRange { first, last };
        assert_eq!(parse_ports(""), Some(vec![]));
        assert_eq!(parse_ports("80,1000-2000"), Some(vec![range(80, 80), range(1000, 2000)]));
        assert_eq!(parse_ports("many"), None);
        assert!(range(1, 10).overlaps(range(10, 20)) && !range(1, 9).overlaps(range(10, 20)));
    }
}
