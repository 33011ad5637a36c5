//! Settings of the network stack under /proc/sys. Those of `net` are of the calling thread's
//! network namespace.

use std::ops::RangeInclusive;

use crate::{Host, Result};

impl Host {
    /// A setting by its path below /proc/sys, as in `net/ipv4/ip_forward`; `None` if the kernel has
    /// none such here.
    pub fn sysctl(&self, key: &str) -> Result<Option<String>> {
        self.source.read_if_there(&format!("/proc/sys/{key}"))
    }

    /// Ports that the kernel gives to connections of its own (`net.ipv4.ip_local_port_range`; IPv6
    /// uses it too).
    pub fn local_ports(&self) -> Result<RangeInclusive<u16>> {
        const PATH: &str = "/proc/sys/net/ipv4/ip_local_port_range";
        let text = self.source.read(PATH)?;
        self.source.parse(PATH, &text, "two ports", |text| {
            let mut ends = text.split_ascii_whitespace().map(str::parse);
            Some(ends.next()?.ok()?..=ends.next()?.ok()?)
        })
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
