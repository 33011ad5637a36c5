//! A machine: this one, or one captured in a tree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::source::capture_file;
use crate::{Error, Network, Result, Source};

/// In a captured tree: what netlink and ethtool said.
const NETWORK: &str = "/ringway/network.json";

/// Files that the facts of this crate come from. Those that a machine lacks are lacking in its tree.
const FILES: [&str; 13] = [
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/self/mountinfo",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/netdev_max_backlog",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/ip_local_reserved_ports",
    "/proc/sys/net/ipv4/conf/all/rp_filter",
    "/proc/sys/net/ipv6/conf/all/forwarding",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/version",
];

/// A machine to ask facts of. What it answers about the network is that of the calling thread's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub(crate) source: Source,
}

impl Host {
    /// This machine.
    pub fn live() -> Self {
        Self { source: Source::Live }
    }

    /// A machine captured by [`Host::capture`], or a tree made by hand with `proc/`, `sys/` and, for
    /// [`Host::network`], `ringway/network.json`.
    pub fn from_tree(root: impl Into<PathBuf>) -> Self {
        Self { source: Source::Tree(root.into()) }
    }

    /// Its files.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its interfaces, addresses, routes and neighbours.
    pub fn network(&self) -> Result<Network> {
        let Source::Tree(root) = &self.source else { return Network::read() };
        let not_captured =
            || Error::NotCaptured { tree: root.clone(), fact: "ringway/network.json" };
        let text = self.source.read_if_there(NETWORK)?.ok_or_else(not_captured)?;
        self.source.parse(NETWORK, &text, "a network captured by Ringway", |text| {
            serde_json::from_str(text).ok()
        })
    }

    /// Writes this machine's facts into a tree that [`Host::from_tree`] reads.
    pub fn capture(root: &Path) -> Result<()> {
        let network = Network::read()?;
        write_tree(root, &network).map_err(|source| Error::Write { path: root.into(), source })
    }
}

fn write_tree(root: &Path, network: &Network) -> io::Result<()> {
    for file in FILES {
        capture_file(root, file)?;
    }
    for interface in &network.interfaces {
        capture_file(root, &format!("/proc/sys/net/ipv4/conf/{}/rp_filter", interface.link.name))?;
    }
    for pool in Source::Live.list("/sys/kernel/mm/hugepages").unwrap_or_default() {
        for file in ["nr_hugepages", "free_hugepages"] {
            capture_file(root, &format!("/sys/kernel/mm/hugepages/{pool}/{file}"))?;
        }
    }
    // Megabytes that nobody reads: that it exists is the fact.
    if Source::Live.exists("/sys/kernel/btf/vmlinux") {
        fs::create_dir_all(root.join("sys/kernel/btf"))?;
        fs::write(root.join("sys/kernel/btf/vmlinux"), [])?;
    }
    let json = serde_json::to_vec_pretty(network)?;
    fs::create_dir_all(root.join("ringway"))?;
    fs::write(root.join(NETWORK.trim_start_matches('/')), json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysctl::PortRange;

    #[test]
    fn a_captured_machine_answers_as_it_did() {
        let directory = tempfile::tempdir().unwrap();
        Host::capture(directory.path()).unwrap();
        let (live, tree) = (Host::live(), Host::from_tree(directory.path()));
        assert_eq!(live.kernel_release().unwrap(), tree.kernel_release().unwrap());
        assert_eq!(live.memory().unwrap().total_bytes, tree.memory().unwrap().total_bytes);
        assert_eq!(live.huge_pages().unwrap(), tree.huge_pages().unwrap());
        assert_eq!(live.has_btf(), tree.has_btf());
        assert_eq!(live.local_ports().unwrap(), tree.local_ports().unwrap());
        assert_eq!(live.reserved_ports().unwrap(), tree.reserved_ports().unwrap());
        assert_eq!(live.forwards_v4().unwrap(), tree.forwards_v4().unwrap());
        assert_eq!(live.forwards_v6().unwrap(), tree.forwards_v6().unwrap());
        assert_eq!(live.rp_filter("lo").unwrap(), tree.rp_filter("lo").unwrap());
        assert_eq!(live.bpf_jit().unwrap(), tree.bpf_jit().unwrap());
        assert_eq!(live.first_network_namespace(), tree.first_network_namespace());
        let lo = |host: &Host| host.network().unwrap().interface("lo").cloned().unwrap();
        assert_eq!(lo(&live), lo(&tree));
    }

    #[test]
    fn a_tree_by_hand() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        write("proc/sys/net/ipv4/conf/all/rp_filter", "1\n");
        write("proc/sys/net/ipv4/conf/eth0.5/rp_filter", "2\n");
        let host = Host::from_tree(directory.path());
        assert_eq!(host.local_ports().unwrap(), PortRange { first: 32768, last: 60999 });
        assert_eq!(host.rp_filter("eth0.5").unwrap(), 2);
        assert_eq!(host.bpf_jit().unwrap(), None);
        assert!(!host.has_btf() && !host.first_network_namespace());
        let error = host.network().unwrap_err().to_string();
        assert!(error.contains("capture it again"), "{error}");
        let error = host.kernel_release().unwrap_err().to_string();
        assert!(error.contains("osrelease"), "{error}");
        write("proc/sys/net/ipv4/ip_local_port_range", "few");
        let error = host.local_ports().unwrap_err().to_string();
        assert!(error.contains("\"few\"") && error.contains("two ports"), "{error}");
    }
}
