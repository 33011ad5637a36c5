//! Takes samples of this machine, in the calling thread's network namespace. Changes nothing.

mod devices;
mod origin;
mod processes;
mod session;

use std::fs;
use std::process::{Command, Stdio};

use ringway_host::netlink::xdp_sockets::{self, XdpSocket};
use ringway_host::netlink::{counters, qdiscs, queues, sockets, xdp_features};
use ringway_host::{Host, Source};

use crate::Sample;
use crate::sample::{ROOT_ALONE, Unread};

pub use origin::{Namespace, Origin};
pub use processes::{POLLERS, PROCESSES, Process};
pub use session::SESSION;

/// Queues for received packets, and who polls them.
pub const QUEUES: &str = "/netlink/queues.json";
pub const QUEUE_COUNTS: &str = "/netlink/queue_counts.json";

/// `nft -j -t list ruleset`, without the elements of sets.
const RULES: &str = "/tools/nft.json";
/// More than this nobody wants to carry about.
const MOST_RULES: usize = 32 << 20;

/// Counters, which are read twice; the protocols' close to those of the devices, which come next.
const COUNTERS: [&str; 12] = [
    "/proc/net/udp",
    "/proc/net/udp6",
    "/proc/stat",
    "/proc/softirqs",
    "/proc/interrupts",
    "/proc/net/softnet_stat",
    "/proc/net/stat/nf_conntrack",
    "/proc/net/stat/arp_cache",
    "/proc/net/stat/ndisc_cache",
    "/proc/net/netstat",
    "/proc/net/snmp6",
    "/proc/net/snmp",
];

/// Files that are read once.
const FILES: [&str; 19] = [
    "/proc/cmdline",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/ip_tables_names",
    "/proc/net/ip6_tables_names",
    "/proc/net/sockstat",
    "/proc/net/sockstat6",
    "/proc/self/mountinfo",
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/nr_open",
    "/proc/sys/kernel/arch",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/ipv6/conf/all/disable_ipv6",
    "/proc/version",
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/online",
    "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
];

/// Files that a start reads.
const AT_ONCE: [&str; 9] = [
    "/proc/self/mountinfo",
    "/proc/sys/kernel/arch",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/bpf_jit_harden",
    // Which network namespace it is.
    "/proc/sys/net/core/netdev_max_backlog",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/ipv4/ip_forward",
    "/sys/devices/system/cpu/online",
];

/// Directories of settings. What is below them is left out, but for what `NAMED` names.
const SETTINGS: [&str; 7] = [
    "/proc/sys/net/core",
    "/proc/sys/net/ipv4",
    "/proc/sys/net/ipv6",
    "/proc/sys/net/netfilter",
    "/proc/sys/net/bridge",
    "/proc/sys/net/unix",
    "/proc/sys/net/ipv4/neigh/default",
];
/// Keys are nobody's business.
const SECRETS: [&str; 3] = ["tcp_fastopen_key", "netdev_rss_key", "stable_secret"];
/// Settings of each interface.
const NAMED: [&str; 5] = ["rp_filter", "forwarding", "arp_ignore", "arp_announce", "accept_local"];

/// Counters alone: the first of two samples.
pub fn gather_counters() -> Sample {
    let mut sample = Sample::default();
    counted(&mut sample);
    sample
}

/// The few files that the rules of a start read. The caller adds netlink's answers, which it has
/// already.
pub fn gather_at_once() -> Sample {
    let mut sample = Sample::default();
    AT_ONCE.iter().for_each(|path| file(&mut sample, path));
    devices::btf(&mut sample);
    sample
}

pub fn gather() -> Sample {
    complete(gather_counters())
}

/// Everything, with counters that were read just now.
pub fn complete(mut sample: Sample) -> Sample {
    FILES.iter().for_each(|path| file(&mut sample, path));
    SETTINGS.iter().for_each(|directory| settings(&mut sample, directory));
    let host = Host::live();
    let network = host.network();
    let names: Vec<String> = network
        .iter()
        .flat_map(|network| &network.interfaces)
        .map(|interface| interface.link.name.clone())
        .collect();
    for name in names.iter().map(String::as_str).chain(["all", "default"]) {
        for key in NAMED {
            file(&mut sample, &format!("/proc/sys/net/ipv4/conf/{name}/{key}"));
        }
    }
    devices::of_namespace(&mut sample, &names);
    devices::of_machine(&mut sample);
    processes::list(&mut sample);
    session::add(&mut sample);
    origin::add(&mut sample);
    let local = host.local_ports();
    sample.put_json("/netlink/sockets.json", local.and_then(sockets::tcp));
    put_known(&mut sample, "/netlink/xdp_features.json", xdp_features::all());
    put_known(&mut sample, QUEUES, queues::all());
    sample.put_json(ringway_host::NETWORK, network);
    sample
}

fn counted(sample: &mut Sample) {
    COUNTERS.iter().for_each(|path| file(sample, path));
    sample.put_json("/netlink/stats.json", counters::stats());
    devices::statistics(sample);
    sample.put_json("/netlink/qdiscs.json", qdiscs::all());
    sample.put_json("/netlink/xdp_sockets.json", xdp_sockets());
    put_known(sample, QUEUE_COUNTS, queues::counts());
    // Takes longest: the others are to be close together.
    rules(sample);
}

/// A kernel that cannot list them still counts them.
fn xdp_sockets() -> Result<Vec<XdpSocket>, Unread> {
    let why = match xdp_sockets::all() {
        Err(ringway_host::Error::Netlink { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            "this kernel counts them and does not list them: it lacks xsk_diag (`modprobe xsk_diag` loads it; else \
             CONFIG_XDP_SOCKETS_DIAG was left out), which `ss --xdp` needs, too; what a program's socket lost it can \
             ask itself (getsockopt XDP_STATISTICS)"
        }
        answer => return Ok(answer?),
    };
    match Source::Live.read("/proc/net/protocols").as_deref().map(sockets_of_xdp) {
        Ok(None | Some(0)) => Ok(Vec::new()),
        _ => Err(why.into()),
    }
}

/// AF_XDP sockets of the network namespace, by /proc/net/protocols; `None`: this kernel has none at
/// all.
fn sockets_of_xdp(protocols: &str) -> Option<u64> {
    let mut lines = protocols.lines().map(|line| line.split_ascii_whitespace());
    let mut words = lines.find_map(|mut words| (words.next() == Some("XDP")).then_some(words))?;
    // protocol, size, sockets
    Some(words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(u64::MAX))
}

/// The rules of nftables, which only a tool tells, or why not.
fn rules(sample: &mut Sample) {
    // Not on the PATH of plain users, and of some services.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new("nft");
    command.args(["-j", "-t", "list", "ruleset"]).env("PATH", path).stdin(Stdio::null());
    match command.output() {
        Ok(said) if said.status.success() && said.stdout.len() <= MOST_RULES => {
            sample.put(RULES, String::from_utf8_lossy(&said.stdout));
        }
        Ok(said) if said.status.success() => sample.miss(RULES, "more rules than can be collected"),
        Ok(said) => {
            let why = String::from_utf8_lossy(&said.stderr);
            match why.lines().next().unwrap_or("no answer") {
                why if why.contains("must be root") => sample.miss(RULES, ROOT_ALONE),
                why => sample.miss(RULES, format!("nft: {why}")),
            }
        }
        Err(error) => sample.miss(RULES, format!("nft cannot be run: {error}")),
    }
}

/// Some kernels do not have this; then the sample says so.
fn put_known<T: serde::Serialize>(
    sample: &mut Sample,
    path: &str,
    answer: ringway_host::Result<Option<T>>,
) {
    match answer {
        Ok(None) => sample.miss(path, "this kernel does not tell"),
        answer => sample.put_json(path, answer),
    }
}

/// Adds one file; one that does not exist stays absent.
fn file(sample: &mut Sample, path: &str) {
    match Source::Live.read_if_there(path) {
        Ok(Some(text)) => sample.put(path, text),
        Ok(None) => {}
        Err(ringway_host::Error::Read { source, .. }) => sample.miss(path, source),
        Err(error) => sample.miss(path, error),
    }
}

fn settings(sample: &mut Sample, directory: &str) {
    for name in Source::Live.list(directory).unwrap_or_default() {
        let path = format!("{directory}/{name}");
        let is_file = fs::metadata(&path).is_ok_and(|about| about.is_file());
        if is_file && !SECRETS.contains(&name.as_str()) {
            file(sample, &path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_where_they_are_not_listed() {
        let head = "protocol  size sockets  memory press maxhdr  slab module\n";
        let with =
            |n: &str| format!("{head}XDP       1088      {n}      -1   NI       0   no   kernel\n");
        assert_eq!(sockets_of_xdp(head), None);
        assert_eq!((sockets_of_xdp(&with("0")), sockets_of_xdp(&with("3"))), (Some(0), Some(3)));
    }

    #[test]
    fn this_machine_can_be_gathered_without_secrets() {
        let sample = gather();
        let host = sample.host();
        assert_eq!(host.kernel_release().unwrap(), Host::live().kernel_release().unwrap());
        assert_eq!(host.local_ports().unwrap(), Host::live().local_ports().unwrap());
        assert!(host.network().unwrap().interface("lo").is_some());
        let secret = |path: &&String| SECRETS.iter().any(|secret| path.ends_with(secret));
        assert_eq!(sample.files().keys().find(secret), None);
        assert!(gather_counters().files().len() < sample.files().len());
    }
}
