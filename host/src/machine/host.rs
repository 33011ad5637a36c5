//! A machine: this one, or one that was captured.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::machine::source::Files;
use crate::{Error, Network, Result, Source};

/// Of a captured machine: what netlink and ethtool said.
pub const NETWORK: &str = "/netlink/network.json";

/// A machine to ask facts of. What it answers about the network is that of the calling thread's
/// network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub(crate) source: Source,
}

impl Host {
    pub fn live() -> Self {
        Self { source: Source::Live }
    }

    /// A machine of which these files were captured; for [`Host::network`] with [`NETWORK`] among
    /// them.
    pub fn captured(files: Arc<Files>) -> Self {
        Self { source: Source::Captured(files) }
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its interfaces, addresses, routes and neighbours.
    pub fn network(&self) -> Result<Network> {
        if self.source == Source::Live {
            return Network::read();
        }
        let not_captured = || Error::NotCaptured { fact: NETWORK };
        let text = self.source.read_if_there(NETWORK)?.ok_or_else(not_captured)?;
        self.source.parse(NETWORK, &text, "a network captured by Ringway", |text| {
            serde_json::from_str(text).ok()
        })
    }

    /// A setting by its path below /proc/sys, as in `net/ipv4/ip_forward`; `None` if the kernel has
    /// none such here. Settings of `net` are of the calling thread's network namespace.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_machine_answers_as_it_did() {
        let live = Host::live();
        let mut files = Files::new();
        for path in ["/proc/meminfo", "/proc/sys/kernel/osrelease", "/proc/sys/net/ipv4/ip_forward"]
        {
            files.insert(path.into(), live.source().read(path).unwrap());
        }
        let network = live.network().unwrap();
        files.insert(NETWORK.into(), serde_json::to_string(&network).unwrap());
        let then = Host::captured(Arc::new(files));
        assert_eq!(live.kernel_release().unwrap(), then.kernel_release().unwrap());
        assert_eq!(live.memory().unwrap().total_bytes, then.memory().unwrap().total_bytes);
        assert_eq!(live.forwards_v4().unwrap(), then.forwards_v4().unwrap());
        let lo = |host: &Host| host.network().unwrap().interface("lo").cloned().unwrap();
        assert_eq!(lo(&live), lo(&then));
        assert_eq!(then.source().list("/proc/sys").unwrap(), ["kernel", "net"]);
        assert!(then.source().exists("/proc/sys/net") && !then.source().exists("/proc/sys/n"));
    }

    #[test]
    fn a_machine_by_hand() {
        let mut files = Files::new();
        let mut write = |path: &str, text: &str| {
            files.insert(format!("/{path}"), text.into());
            Host::captured(Arc::new(files.clone()))
        };
        write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        write("proc/sys/net/ipv4/conf/all/rp_filter", "1\n");
        let host = write("proc/sys/net/ipv4/conf/eth0.5/rp_filter", "2\n");
        assert_eq!(host.local_ports().unwrap(), 32768..=60999);
        assert_eq!(host.rp_filter("eth0.5").unwrap(), 2);
        assert_eq!(host.bpf_jit().unwrap(), None);
        assert!(!host.has_btf() && !host.first_network_namespace());
        let error = host.network().unwrap_err().to_string();
        assert!(error.contains("collect it again"), "{error}");
        let error = host.kernel_release().unwrap_err().to_string();
        assert!(error.contains("osrelease"), "{error}");
        let host = write("proc/sys/net/ipv4/ip_local_port_range", "few");
        let error = host.local_ports().unwrap_err().to_string();
        assert!(error.contains("\"few\"") && error.contains("two ports"), "{error}");
    }
}
