//! The rules, a file each; in the order of their numbers.

mod rps;

use crate::Check;

macro_rules! rules {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*
        /// All of them.
        pub const ALL: &[Check] = &[$($module::CHECK),*];
    };
}

rules! {
    nic_rings,
    nic_missed,
    dropped,
    frame_errors,
    driver_counters,
    link_mode,
    pcie_link,
    pause_frames,
    link_flaps,
    numa_node,
    queue_count,
    irq_sharing,
    irq_on_first,
    irqbalance,
    queue_balance,
    indirection,
    rps_missing,
    rps_needless,
    rfs,
    flow_limit,
    xps,
    threaded_napi,
    softnet_backlog,
    time_squeeze,
    softirq_load,
    coalescing,
    napi_defer,
    offloads,
    lro,
    qdisc_drops,
    cpu_governor,
    numa_balancing,
    listen_overflows,
    listen_drops,
    syn_queue,
    tcp_syncookies,
    time_wait,
    local_ports,
    tcp_memory,
    orphans,
    retransmissions,
    receive_pruned,
    tcp_window,
    udp_buffers,
    abort_on_memory,
    slow_start_after_idle,
    tcp_hash,
    conntrack_full,
    conntrack_buckets,
    conntrack_timeout,
    conntrack_forwarder,
    long_chains,
    two_firewalls,
    reverse_path,
    no_route,
    neighbour_table,
    bridge_filter,
    mtu,
    open_files,
    huge_pages,
    iommu,
    iommu_sharing,
    way_in,
    bifurcated,
    noiommu,
    vfio_binding,
    isolated_cores,
    xdp_generic,
    xsk_rings,
    xsk_queues,
    bpf_jit,
    btf,
    veth_checksum,
    bond_xdp,
    driver_queues,
    xdp_mtu,
    dsr_quiet,
    far_below_default,
}

/// By name or number.
pub fn find(wanted: &str) -> Option<&'static Check> {
    let number = wanted.parse::<u8>().ok();
    ALL.iter().find(|check| check.name == wanted || Some(check.number) == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::Machine;

    #[test]
    fn names_and_numbers_are_unique_and_in_order() {
        assert!(ALL.is_sorted_by_key(|check| check.number));
        for check in ALL {
            let same = |one: &&Check| one.name == check.name || one.number == check.number;
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
            assert_eq!(finding.severity, State::Unknown, "{finding:#?}");
            assert!(!finding.found.is_empty());
        }
    }

    #[test]
    fn whatever_changes_something_can_take_it_back() {
        let broken = Machine::healthy()
            .put("/proc/sys/net/core/somaxconn", "16")
            .put("/proc/sys/net/ipv4/tcp_syncookies", "0");
        for change in broken.report(ALL).findings.iter().flat_map(|finding| &finding.changes) {
            assert!(!change.fix.is_empty() && !change.undo.is_empty() && change.fix != change.undo);
        }
    }
}
