//! The reasons why something is missing, with a remedy, in words: the text of `unknown`.

use ringway_host::Host;

use crate::{Sample, Unknown};

/// Files that only the machine's first network namespace has; some of them up to a version.
const OF_THE_FIRST: [&str; 17] = [
    "/proc/net/stat/arp_cache",
    "/proc/net/stat/ndisc_cache",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/bpf_jit_harden",
    "/proc/sys/net/core/dev_weight",
    "/proc/sys/net/core/flow_limit_cpu_bitmap",
    "/proc/sys/net/core/netdev_budget",
    "/proc/sys/net/core/netdev_budget_usecs",
    "/proc/sys/net/core/netdev_max_backlog",
    // Before 6.9 and 6.13.
    "/proc/sys/net/core/optmem_max",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/rps_sock_flow_entries",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/ipv4/neigh/default/gc_thresh3",
    "/proc/sys/net/ipv4/tcp_max_orphans",
    "/proc/sys/net/ipv4/tcp_mem",
    "/proc/sys/net/ipv6/neigh/default/gc_thresh3",
];
/// Settings that other namespaces may read, and only the first can change.
const SET_IN_THE_FIRST: [&str; 4] = [
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/netfilter/nf_conntrack_buckets",
    "/proc/sys/net/netfilter/nf_conntrack_max",
];
/// Part of a path, and what it means that it is not there.
const MEANS: [(&str, &str); 8] = [
    ("/proc/sys/net/netfilter/nf_conntrack", NOT_TRACKED),
    ("/proc/net/stat/nf_conntrack", NOT_TRACKED),
    ("/proc/sys/net/ipv6/", "this kernel has no IPv6, or it is turned off (ipv6.disable=1)"),
    (
        "/device/current_link_",
        "its device tells of no PCIe link; those of virtual machines have none",
    ),
    ("/device/max_link_", "its device tells of no PCIe link; those of virtual machines have none"),
    ("/ethtool/", NOT_COLLECTED),
    ("/netlink/", NOT_COLLECTED),
    ("/tools/", NOT_COLLECTED),
];
const NOT_TRACKED: &str =
    "nf_conntrack is not loaded, so no connection is tracked, or it was not collected";
/// Every collection holds the answers of netlink and of tools, or why they are missing.
const NOT_COLLECTED: &str =
    "not collected; do it again with this version: `ringway doctor --collect FILE.tar`";

/// Whether only the first network namespace can set it, and this is another.
pub(super) fn set_elsewhere(host: &Host, path: &str) -> bool {
    let of_first = SET_IN_THE_FIRST.contains(&path) || OF_THE_FIRST.contains(&path);
    of_first && is_another(host)
}

/// Whether it is known to be another namespace than the first: each has the first of these files.
/// The few files that a start reads, or that an archive may hold, do not tell.
fn is_another(host: &Host) -> bool {
    host.source().exists("/proc/sys/net/core/somaxconn") && !host.first_network_namespace()
}

/// A path is not in a sample: the reason.
pub(super) fn missing(sample: &Sample, path: &str, otherwise: &str) -> Unknown {
    let why = sample.why_not(path).or_else(|| cause(&sample.host(), path)).unwrap_or(otherwise);
    Unknown(format!("{}: {why}", shown(path)))
}

fn cause(host: &Host, path: &str) -> Option<&'static str> {
    if OF_THE_FIRST.contains(&path) && is_another(host) {
        return Some(
            "kept in the machine's first network namespace alone; on the host itself: `nsenter --target 1 --net ringway doctor`",
        );
    }
    MEANS.iter().find(|(part, _)| path.contains(part)).map(|(_, why)| *why)
}

/// As a user knows it: what was asked of the kernel or of a tool is no file of a machine.
fn shown(path: &str) -> String {
    let plain = |path: &str| path.trim_end_matches(".json").replace(['/', '_'], " ");
    if let Some((name, what)) = path.strip_prefix("/ethtool/").and_then(|p| p.split_once('/')) {
        return format!("ethtool {name}, {}", plain(what));
    }
    match path {
        "/tools/nft.json" => "nft list ruleset".into(),
        "/trace/packets.json" => "tracepoints".into(),
        "/netlink/xdp_sockets.json" => "AF_XDP sockets".into(),
        _ => match path.strip_prefix("/tools/").or_else(|| path.strip_prefix("/netlink/")) {
            Some(what) => plain(what),
            None => path.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::sample::ROOT_ALONE;
    use crate::testing::{Machine, healthy};

    fn why(machine: &Machine, path: &str) -> String {
        machine.facts().text(path).unwrap_err().0
    }

    #[test]
    fn causes_and_what_to_do() {
        let first = healthy();
        let other = healthy().remove("/proc/sys/net/core/netdev_max_backlog");
        let weight = "/proc/sys/net/core/dev_weight";
        let (mode, nft) = ("/ethtool/eth0/link_mode.json", "/tools/nft.json");
        let no_table = "/proc/sys/net/netfilter/nf_conntrack_none";
        let mut denied = first.clone().remove(weight);
        denied.collection.after.miss(weight, std::io::Error::from_raw_os_error(13));
        for (machine, path, wanted) in [
            (other.clone().remove(weight), weight, "first network namespace alone"),
            (first.clone().remove(weight), weight, "this kernel lacks it, or it was not collected"),
            (Machine::unknown(), weight, "this kernel lacks it, or it was not collected"),
            (other.clone(), no_table, "nf_conntrack is not loaded"),
            (denied, weight, "run it as root"),
            (first.clone().miss("/ethtool", "no"), mode, "ethtool eth0, link mode: no"),
            (first.clone().miss(nft, ROOT_ALONE), nft, "nft list ruleset: root alone"),
        ] {
            let said = why(&machine, path);
            assert!(said.contains(wanted), "{said}");
            assert!(!said.contains("os error") && !said.contains(".json"), "{said}");
        }
    }

    /// The first sample holds counters alone, and does not tell the namespace.
    #[test]
    fn of_two_samples_the_second_tells() {
        let path = "/proc/net/stat/arp_cache";
        let mut other = healthy().remove("/proc/sys/net/core/netdev_max_backlog").remove(path);
        other.collection.before.remove("/proc/sys");
        let said = other.facts().texts(path).unwrap_err().0;
        assert!(said.contains("first network namespace alone"), "{said}");
    }

    #[test]
    fn what_the_first_alone_can_set_is_set_there() {
        let other = healthy().remove("/proc/sys/net/core/netdev_max_backlog");
        let fix = |machine: &Machine, key| machine.facts().set(key, 9).unwrap().fix.to_string();
        let key = "net/core/rmem_max";
        assert_eq!(fix(&healthy(), key), "sysctl -w net.core.rmem_max=9");
        assert_eq!(fix(&other, key), "nsenter --target 1 --net sysctl -w net.core.rmem_max=9");
        assert_eq!(fix(&other, "net/core/somaxconn"), "sysctl -w net.core.somaxconn=9");
        // A machine whose namespace is not known.
        let little = other.remove("/proc/sys/net/core/somaxconn");
        assert_eq!(fix(&little, key), "sysctl -w net.core.rmem_max=9");
    }
}
