//! The rules, a file each; in the order of their numbers.

mod bifurcated;
mod bond_xdp;
mod bpf_jit;
mod bpffs;
mod bridge_filter;
mod btf;
mod coalescing;
mod conntrack;
mod cpu_governor;
mod driver_counters;
mod driver_queues;
mod dropped;
mod dsr_quiet;
mod far_below_default;
mod filter_drops;
mod flow_limit;
mod frame_errors;
mod huge_pages;
mod indirection;
mod iommu_groups;
mod irq_on_first;
mod irq_sharing;
mod irqbalance;
mod isolated_cores;
mod kernel;
mod link_flaps;
mod link_mode;
mod listen_drops;
mod listen_overflows;
mod listeners;
mod local_ports;
mod long_chains;
mod lro;
mod memory_of_tcp;
mod mtu;
mod napi_defer;
mod neighbour_table;
mod nic_missed;
mod nic_rings;
mod no_route;
mod numa_node;
mod offloads;
mod open_files;
mod pause_frames;
mod pcie_link;
mod qdisc_drops;
mod queue_balance;
mod queue_count;
mod receive_pruned;
mod retransmissions;
mod reverse_path;
mod rfs;
mod routes;
mod rps;
mod rps_missing;
mod rps_needless;
mod softirq_load;
mod softnet_backlog;
mod switches;
mod syn_queue;
mod sysctl_bounds;
mod tcp_hash;
mod tcp_syncookies;
mod tcp_window;
mod threaded_napi;
mod time_squeeze;
mod time_wait;
mod two_firewalls;
mod udp_buffers;
mod veth_checksum;
mod vfio_binding;
mod way_in;
mod xdp_generic;
mod xdp_mtu;
mod xps;
mod xsk_queues;
mod xsk_rings;

use crate::{Facts, Looked, Profile};

pub(crate) use queue_balance::of_queue as counts_a_queue;

/// A rule. Everything but `check` is for people.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Its number, which stays.
    pub number: u8,
    /// Its name, which stays.
    pub name: &'static str,
    /// What must hold.
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
    /// Whether it is asked under this profile, unless it is asked for by name.
    pub fn applies(&self, profile: Option<Profile>) -> bool {
        self.profiles.is_empty() || profile.is_some_and(|profile| self.profiles.contains(&profile))
    }
}

/// All of them, by number. 25 is no check: that a line of softnet_stat is not its processor is seen to by `Facts`.
pub const ALL: &[Rule] = &[
    nic_rings::RULE,
    nic_missed::RULE,
    dropped::RULE,
    frame_errors::RULE,
    driver_counters::RULE,
    link_mode::RULE,
    pcie_link::RULE,
    pause_frames::RULE,
    link_flaps::RULE,
    numa_node::RULE,
    queue_count::RULE,
    irq_sharing::RULE,
    irq_on_first::RULE,
    irqbalance::RULE,
    queue_balance::RULE,
    indirection::RULE,
    rps_missing::RULE,
    rps_needless::RULE,
    rfs::RULE,
    flow_limit::RULE,
    xps::RULE,
    threaded_napi::RULE,
    softnet_backlog::RULE,
    time_squeeze::RULE,
    softirq_load::RULE,
    coalescing::RULE,
    napi_defer::RULE,
    offloads::RULE,
    lro::RULE,
    qdisc_drops::RULE,
    cpu_governor::RULE,
    switches::NUMA_BALANCING,
    listen_overflows::RULE,
    listen_drops::RULE,
    syn_queue::RULE,
    tcp_syncookies::RULE,
    time_wait::RULE,
    local_ports::RULE,
    memory_of_tcp::TCP_MEMORY,
    memory_of_tcp::ORPHANS,
    retransmissions::RULE,
    receive_pruned::RULE,
    tcp_window::RULE,
    udp_buffers::RULE,
    memory_of_tcp::ABORT_ON_MEMORY,
    switches::SLOW_START_AFTER_IDLE,
    tcp_hash::RULE,
    conntrack::CONNTRACK_FULL,
    conntrack::CONNTRACK_BUCKETS,
    conntrack::CONNTRACK_TIMEOUT,
    conntrack::CONNTRACK_FORWARDER,
    long_chains::RULE,
    two_firewalls::RULE,
    reverse_path::RULE,
    no_route::RULE,
    neighbour_table::RULE,
    bridge_filter::RULE,
    mtu::RULE,
    open_files::RULE,
    huge_pages::RULE,
    iommu_groups::IOMMU,
    iommu_groups::IOMMU_SHARING,
    way_in::RULE,
    bifurcated::RULE,
    iommu_groups::NOIOMMU,
    vfio_binding::RULE,
    isolated_cores::RULE,
    xdp_generic::RULE,
    xsk_rings::RULE,
    xsk_queues::RULE,
    bpf_jit::RULE,
    btf::RULE,
    veth_checksum::RULE,
    bond_xdp::RULE,
    driver_queues::RULE,
    xdp_mtu::RULE,
    dsr_quiet::RULE,
    far_below_default::RULE,
    kernel::RULE,
    bpffs::RULE,
    switches::TCP_OPTIONS,
    filter_drops::RULE,
    sysctl_bounds::RULE,
    routes::NEXT_HOP,
    routes::FIXED_NEIGHBOUR,
    routes::ROUTE_MTU,
    no_route::CLOSED_PORTS,
];

/// Those that a start asks: they need no second look.
pub const AT_START: &[Rule] = &[
    kernel::RULE,
    btf::RULE,
    bpffs::RULE,
    bpf_jit::RULE,
    lro::RULE,
    bond_xdp::RULE,
    driver_queues::RULE,
    veth_checksum::RULE,
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
    use crate::testing::Machine;

    #[test]
    fn names_and_numbers_are_unique_and_in_order() {
        assert!(ALL.is_sorted_by_key(|check| check.number));
        for check in ALL {
            let same = |one: &&Rule| one.name == check.name || one.number == check.number;
            assert_eq!(ALL.iter().filter(same).count(), 1, "{}", check.name);
            assert!(check.why.ends_with('.') && !check.source.is_empty(), "{}", check.name);
            assert!(find(check.name).is_some() && find(&check.number.to_string()).is_some());
        }
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_machine() {
        let report = Machine::healthy().report(ALL);
        let symptoms: Vec<_> = report.symptoms().collect();
        assert!(symptoms.is_empty(), "{symptoms:#?}");
    }

    /// The one mistake that a doctor must not make.
    #[test]
    fn of_what_nothing_is_known_nothing_is_well() {
        for finding in Machine::unknown().report(ALL).findings {
            assert_eq!(finding.severity, Severity::Unknown, "{finding:#?}");
            assert!(!finding.found.is_empty());
        }
    }

    /// A rule that asked for what is not there, and says that all is well.
    #[test]
    fn what_is_not_there_is_never_well() {
        let healthy = Machine::healthy();
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

    /// What is beside the point on the healthy machine: the rule knows what it has to without.
    fn beside(check: &str, path: &str) -> bool {
        match check {
            // Asked for only once packets have been lost, or for a driver that is said to stay.
            "nic-rings" => path.ends_with("/rings.json"),
            "bifurcated" => !path.ends_with("/driver") && path != ringway_host::NETWORK,
            // There is but one node, and the machine's own pools.
            "huge-pages" => path.ends_with("/numa_node") || path.ends_with("node0/hugepages"),
            // Where there are no groups, or no cards, there is nothing to share or to bind; `iommu` tells of the first.
            "iommu-sharing" => path.starts_with("/sys/kernel/iommu_groups"),
            "vfio-binding" => path == "/sys/bus/pci/devices",
            // Where an interrupt may come is known by smp_affinity_list, too.
            _ => path.ends_with("/effective_affinity_list"),
        }
    }

    #[test]
    fn every_number_is_a_check() {
        let missing: Vec<u8> =
            (1..=79).filter(|number| ALL.iter().all(|one| one.number != *number)).collect();
        // That a line of softnet_stat is not its processor is seen to by `Facts`.
        assert_eq!(missing, [25]);
    }

    #[test]
    fn every_rule_has_a_table_of_healthy_and_of_faulted_machines() {
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            if let Some((_, tests)) = text.split_once("mod tests {") {
                let faulted = ["Severity::Info", "Severity::Warn", "Severity::Crit", ", Warn)"];
                let names = faulted.iter().any(|severity| tests.contains(severity));
                assert!(names || !text.contains("pub const CHECK"), "{path:?}");
            } else {
                panic!("{path:?} has no tests");
            }
        }
    }

    /// The table of docs/doctor.md: number, name, severities, how it is tested; held against the rules and the tests.
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
        let mut cured = 0;
        for check in ALL {
            let start = format!("| {} | `{}` | ", check.number, check.name);
            let row = text.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("docs/doctor.md has no row {start}"));
            let how = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
            let mended = named("cure", check.name) || named("treat", check.name);
            let wanted = match (mended, named("symptoms", check.name)) {
                (true, _) => "cured",
                (false, true) => "found",
                _ => "trees",
            };
            assert_eq!(how, wanted, "{row}");
            cured += usize::from(mended);
        }
        assert!(cured >= 21, "{cured}");
    }

    #[test]
    fn whatever_changes_something_can_take_it_back() {
        let broken = Machine::healthy()
            .put("/proc/sys/net/core/somaxconn", "16")
            .put("/proc/sys/net/ipv4/tcp_syncookies", "0");
        for change in broken.report(ALL).findings.iter().flat_map(|finding| &finding.changes) {
            assert_ne!(change.fix, change.undo);
        }
    }
}
