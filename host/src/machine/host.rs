//! A machine: this one, or one that was captured.

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
