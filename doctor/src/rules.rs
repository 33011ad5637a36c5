//! The rules, a file for each part of the machine; [`ALL`] has them in the order of their numbers.

mod bpf;
mod bypass;
mod cards;
mod drops;
mod dsr_quiet;
mod filter_drops;
mod interrupts;
mod listeners;
mod long_chains;
mod mtu;
mod netfilter;
mod offloads;
mod processors;
mod queues;
mod routes;
mod sockets;
mod steering;
mod sysctls;
mod tcp;
mod xdp;
mod xsk;

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile};

pub(crate) use queues::of_queue as counts_a_queue;

/// A rule. Everything but `check` is for people.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Its number, which stays.
    pub number: u8,
    /// Its name, which stays.
    pub name: &'static str,
    pub rule: &'static str,
    /// Where the rule and its threshold come from.
    pub source: &'static str,
    /// Why it matters, in one sentence.
    pub why: &'static str,
    /// Profiles that it is about; empty: it is always asked.
    pub profiles: &'static [Profile],
    /// Looks at the facts.
    pub check: fn(&Facts) -> Looked,
}

impl Rule {
    /// Its outcome for each thing; an empty list where there is nothing to look at.
    pub fn ask(&self, facts: &Facts) -> Vec<Outcome> {
        (self.check)(facts).unwrap_or_else(|why| vec![Outcome::unknown(MACHINE, why)])
    }

    /// Whether it is asked under this profile, unless it is asked for by name.
    pub fn applies(&self, profile: Option<Profile>) -> bool {
        self.profiles.is_empty() || profile.is_some_and(|profile| self.profiles.contains(&profile))
    }
}

/// All of them, by number. 25 is no check: that a line of softnet_stat is not its processor is seen
/// to by `Facts`.
pub const ALL: &[Rule] = &[
    cards::NIC_RINGS,
    cards::NIC_MISSED,
    drops::DROPPED,
    cards::FRAME_ERRORS,
    drops::DRIVER_COUNTERS,
    cards::LINK_MODE,
    cards::PCIE_LINK,
    cards::PAUSE_FRAMES,
    cards::LINK_FLAPS,
    interrupts::NUMA_NODE,
    queues::QUEUE_COUNT,
    interrupts::IRQ_SHARING,
    interrupts::IRQ_ON_FIRST,
    interrupts::IRQBALANCE,
    queues::QUEUE_BALANCE,
    queues::INDIRECTION,
    steering::RPS_MISSING,
    steering::RPS_NEEDLESS,
    steering::RFS,
    processors::FLOW_LIMIT,
    steering::XPS,
    interrupts::THREADED_NAPI,
    processors::SOFTNET_BACKLOG,
    processors::TIME_SQUEEZE,
    processors::SOFTIRQ_LOAD,
    interrupts::COALESCING,
    interrupts::NAPI_DEFER,
    offloads::OFFLOADS,
    offloads::LRO,
    drops::QDISC_DROPS,
    processors::CPU_GOVERNOR,
    sysctls::NUMA_BALANCING,
    listeners::LISTEN_OVERFLOWS,
    listeners::LISTEN_DROPS,
    listeners::SYN_QUEUE,
    listeners::TCP_SYNCOOKIES,
    tcp::TIME_WAIT,
    sockets::LOCAL_PORTS,
    tcp::TCP_MEMORY,
    tcp::ORPHANS,
    tcp::RETRANSMISSIONS,
    tcp::RECEIVE_PRUNED,
    tcp::TCP_WINDOW,
    sockets::UDP_BUFFERS,
    tcp::ABORT_ON_MEMORY,
    sysctls::SLOW_START_AFTER_IDLE,
    tcp::TCP_HASH,
    netfilter::CONNTRACK_FULL,
    netfilter::CONNTRACK_BUCKETS,
    netfilter::CONNTRACK_TIMEOUT,
    netfilter::CONNTRACK_FORWARDER,
    long_chains::RULE,
    netfilter::TWO_FIREWALLS,
    routes::REVERSE_PATH,
    routes::NO_ROUTE,
    routes::NEIGHBOUR_TABLE,
    netfilter::BRIDGE_FILTER,
    mtu::RULE,
    sockets::OPEN_FILES,
    bypass::HUGE_PAGES,
    bypass::IOMMU,
    bypass::IOMMU_SHARING,
    bypass::WAY_IN,
    bypass::BIFURCATED,
    bypass::NOIOMMU,
    bypass::VFIO_BINDING,
    bypass::ISOLATED_CORES,
    xdp::XDP_GENERIC,
    xsk::XSK_RINGS,
    xsk::XSK_QUEUES,
    bpf::BPF_JIT,
    bpf::BTF,
    offloads::VETH_CHECKSUM,
    xdp::BOND_XDP,
    xdp::DRIVER_QUEUES,
    xdp::XDP_MTU,
    dsr_quiet::RULE,
    sysctls::FAR_BELOW_DEFAULT,
    bpf::KERNEL,
    bpf::BPFFS,
    sysctls::TCP_OPTIONS,
    filter_drops::RULE,
    sysctls::SYSCTL_BOUNDS,
    routes::NEXT_HOP,
    routes::FIXED_NEIGHBOUR,
    routes::ROUTE_MTU,
    routes::CLOSED_PORTS,
];

/// Those that a start asks: they need no second look.
pub const AT_START: &[Rule] = &[
    bpf::KERNEL,
    bpf::BTF,
    bpf::BPFFS,
    bpf::BPF_JIT,
    offloads::LRO,
    xdp::BOND_XDP,
    xdp::DRIVER_QUEUES,
    offloads::VETH_CHECKSUM,
];

/// Those that are asked about a machine that passes packets on.
pub fn balancer() -> impl Iterator<Item = &'static Rule> {
    ALL.iter().filter(|check| check.applies(Some(Profile::Balancer)))
}

/// By name or number.
pub fn find(wanted: &str) -> Option<&'static Rule> {
    let number = wanted.parse::<u8>().ok();
    ALL.iter().find(|check| check.name == wanted || Some(check.number) == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, healthy};

    #[test]
    fn names_are_unique_and_numbers_in_order() {
        // `Facts` sees to it that a line of softnet_stat is not taken for its processor.
        let wanted: Vec<u8> = (1..=88).filter(|number| *number != 25).collect();
        assert_eq!(ALL.iter().map(|check| check.number).collect::<Vec<_>>(), wanted);
        for check in ALL {
            let same = |one: &&Rule| one.name == check.name;
            assert_eq!(ALL.iter().filter(same).count(), 1, "{}", check.name);
            assert!(check.why.ends_with('.') && !check.source.is_empty(), "{}", check.name);
            assert!(find(check.name).is_some() && find(&check.number.to_string()).is_some());
        }
    }

    /// The one mistake that a doctor must not make.
    #[test]
    fn of_what_nothing_is_known_nothing_is_well() {
        for finding in Machine::unknown().report(ALL).findings {
            assert_eq!(finding.outcome.severity, Severity::Unknown, "{finding:#?}");
            assert!(!finding.outcome.found.is_empty());
        }
    }

    /// A rule that asked for what is not there, and says that all is well.
    #[test]
    fn what_is_not_there_is_never_well() {
        let healthy = healthy();
        for check in ALL {
            let facts = healthy.facts();
            let _ = (check.check)(&facts);
            let asked = facts.asked();
            assert!(!asked.is_empty(), "{} asks for nothing", check.name);
            let files = healthy.collection.after.files();
            let below =
                |path: &String| files.keys().any(|file| file.starts_with(&format!("{path}/")));
            let there = |path: &&String| files.contains_key(*path) || below(path);
            for path in asked.iter().filter(there) {
                let well = healthy.clone().remove(path).worst(check) == Severity::Ok;
                assert_eq!(well, beside(check.name, path), "{} without {path}", check.name);
            }
        }
    }

    /// Files that a rule does not need on the healthy machine.
    fn beside(check: &str, path: &str) -> bool {
        match check {
            // Asked for only once packets have been lost, or for a driver that is said to stay.
            "nic-rings" => path.ends_with("/rings.json"),
            "bifurcated" => !path.ends_with("/driver") && path != ringway_host::NETWORK,
            // There is but one node, and the machine's own pools.
            "huge-pages" => path.ends_with("/numa_node") || path.ends_with("node0/hugepages"),
            // Where there are no groups, or no cards, there is nothing to share or to bind; `iommu`
            // tells of the first.
            "iommu-sharing" => path.starts_with("/sys/kernel/iommu_groups"),
            "vfio-binding" => path == "/sys/bus/pci/devices",
            // Where an interrupt may come is known by smp_affinity_list, too.
            _ => path.ends_with("/effective_affinity_list"),
        }
    }

    #[test]
    fn every_rule_is_tested_in_its_file() {
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let (rules, tests) = text.split_once("mod tests {").unwrap();
            let named = rules.lines().filter_map(|line| line.strip_prefix("pub const "));
            for (name, _) in named.filter_map(|line| line.split_once(": Rule")) {
                let words = tests.split(|c: char| !c.is_alphanumeric() && c != '_');
                assert!(words.into_iter().any(|word| word == name), "{path:?}: {name}");
            }
        }
    }

    /// The table of docs/doctor.md: number, name, severities, how it is tested; held against the
    /// rules and the tests.
    #[test]
    fn the_table_of_the_documentation() {
        let text = include_str!("../../docs/doctor.md");
        let tests = [
            include_str!("../../tests/net/tests/net/doctor.rs"),
            include_str!("../../tests/net/tests/net/doctor_load.rs"),
        ];
        let named = |call: &str, name: &str| {
            tests.iter().any(|text| text.contains(&format!("{call}(\"{name}\"")))
        };
        let exam = include_str!("../../tests/net/tests/net/doctor_exam.rs");
        let examined = |name: &str| exam.contains(&format!(", \"{name}\")"));
        let mut cured = 0;
        for check in ALL {
            let start = format!("| {} | `{}` | ", check.number, check.name);
            let row = text.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("docs/doctor.md has no row {start}"));
            let how = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
            let mended = named("cure", check.name) || named("treat", check.name);
            let found = named("symptoms", check.name) || examined(check.name);
            let wanted = match (mended, found) {
                (true, _) => "cured",
                (false, true) => "found",
                _ => "trees",
            };
            assert_eq!(how, wanted, "{row}");
            cured += usize::from(mended);
        }
        assert!(cured >= 21, "{cured}");
    }
}
