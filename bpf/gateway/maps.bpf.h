/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The gateway's own maps, with who writes them and who reads them; those that
 * all stages share are in stage.bpf.h.
 * "control" is kernel; "status" any process that reads the pins.
 * All are pinned under /sys/fs/bpf/ringway/NODE/maps.
 */
#ifndef RINGWAY_MAPS_H
#define RINGWAY_MAPS_H

#include "common/common.bpf.h"
#include "ring_maps.bpf.h"

/* writer: control; reader: gateway. Interface slot -> device; `ifaces` is in stage.bpf.h. */
RW_MAP(devices, BPF_MAP_TYPE_DEVMAP, RW_MAX_IFACES, __u32, __u32, 0);

/* writer: control; reader: gateway. VLAN devices upon a device. Full: refused. */
RW_MAP(vlans, BPF_MAP_TYPE_HASH, RW_MAX_IFACES, struct rw_vlan_key, __u32, 0);

/* writer: control; reader: gateway. Services and address entries. Full: refused by validation. */
RW_MAP(services, BPF_MAP_TYPE_HASH, RW_MAX_SERVICE_ENTRIES, struct rw_service_key,
       struct rw_service, 0);
/* The same for each packet. service_places: sized by the configuration before load; full: refused. */
RW_MAP(service_index, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_service_index, 0);
RW_MAP(service_places, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_service_place, BPF_F_MMAPABLE);
RW_MAP(service_info, BPF_MAP_TYPE_ARRAY, RW_MAX_SERVICES, __u32, struct rw_service_info, 0);
RW_MAP(backends, BPF_MAP_TYPE_ARRAY, RW_MAX_BACKENDS, __u32, struct rw_backend, 0);
RW_MAP(nat_addrs, BPF_MAP_TYPE_ARRAY, RW_MAX_NAT_ADDRS, __u32, struct rw_address, 0);

/* writer: control; reader: status. Names of services. */
RW_MAP(labels, BPF_MAP_TYPE_ARRAY, RW_MAX_SERVICES, __u32, struct rw_label, 0);

/* writer: control; reader: gateway. Backend references of each service's members. */
RW_MAP(members, BPF_MAP_TYPE_ARRAY, RW_MAX_MEMBER_PLACES, __u32, __u32, 0);

/*
 * writer: gateway; reader: gateway, control. Sized by [flows] tracked before
 * load. Full: new records take the place of those on probation; otherwise the flow
 * goes to its slot's former owner, or is dropped and counted (track-full).
 */
RW_MAP(tracked, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_track_bucket, BPF_F_MMAPABLE);
RW_MAP(track_quotas, BPF_MAP_TYPE_ARRAY, RW_TRACK_QUOTAS, __u32, __u64, 0);
/* By service: the last second in which a flow could not be tracked. */
RW_MAP(untracked, BPF_MAP_TYPE_ARRAY, RW_MAX_SERVICES, __u32, __u32, 0);
RW_MAP(tracking, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rw_tracking, 0);

/*
 * writer: gateway; reader: gateway, status. Sized by [nat] flows before load.
 * Full: the flow is dropped and counted (flow-table-full, nat-exhausted);
 * idle flows are taken over in place, without a sweeper.
 * Mapped so that buckets start on a page and status can read them in place.
 */
RW_MAP(flows, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_flow_bucket, BPF_F_MMAPABLE);
RW_MAP(flow_index, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_index_bucket, BPF_F_MMAPABLE);

/* writer: gateway, control (the start); reader: gateway. By backend index: the position of its nat
 * ports' ring. */
RW_MAP(port_hands, BPF_MAP_TYPE_ARRAY, RW_MAX_BACKENDS, __u32, __u32, 0);

/* Searches for a nat port that found none free. */
struct vain_search {
	__u32 index; /* of the backend */
	__u32 second;
	__u32 vain;   /* in that second: so many found no half-open flow */
	__u32 sparse; /* grows with tries in vain: half-open flows are few */
};
#define VAIN_SEARCHES 256 /* a power of two */
/* writer, reader: gateway. Of two backends in one place the later one counts. */
RW_MAP(vain_searches, BPF_MAP_TYPE_PERCPU_ARRAY, VAIN_SEARCHES, __u32, struct vain_search, 0);

/* writer: control, once, when a service needs it; reader: gateway, which writes its content. As many
 * buckets as `flows`. */
struct rw_shift_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct rw_shift_bucket));
} shift_template SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct rw_shift_map);
} shifts SEC(".maps");

/* writer, reader: gateway. The number of confirmed flows of a prefix. Two prefixes may share a
 * count. */
RW_MAP(kept_flows, BPF_MAP_TYPE_ARRAY, RW_CONFIRMED_COUNTS, __u32, __u32, 0);

/* writer: gateway; reader: status. By backend index. */
RW_MAP(traffic, BPF_MAP_TYPE_PERCPU_ARRAY, RW_MAX_BACKENDS, __u32, struct rw_traffic, 0);

/* writer: gateway; reader: gateway. Fragmented datagrams in flight.
 * Full: the oldest of a bucket is forgotten, and its remaining fragments are
 * dropped (fragment-early). */
RW_MAP(fragments, BPF_MAP_TYPE_ARRAY, RW_FRAGMENT_BUCKETS, __u32, struct rw_fragment_bucket, 0);

/* writer: control; reader: shield. */
RW_MAP(shield_control, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_shield_control, 0);

/* writer: control; reader: shield. The programs of all rules (crate filter): one for each
 * generation, whose place is a constant of it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, RW_SHIELD_GENERATIONS);
	__type(key, __u32);
	__type(value, __u32);
} rule_programs SEC(".maps");

/* writer: control; reader: shield. Prefixes of `ringway allow` and `ringway block`. Full: refused.
 * One more than there may be: old kernels refuse a full trie even the replacement of an entry. */
RW_MAP(runtime_allow, BPF_MAP_TYPE_LPM_TRIE, RW_SHIELD_RUNTIME + 1, struct rw_shield_prefix,
       struct rw_shield_runtime, BPF_F_NO_PREALLOC);
RW_MAP(runtime_block, BPF_MAP_TYPE_LPM_TRIE, RW_SHIELD_RUNTIME + 1, struct rw_shield_prefix,
       struct rw_shield_runtime, BPF_F_NO_PREALLOC);

/* writer, reader: shield. By place in shield_counts. */
RW_MAP(rule_budgets, BPF_MAP_TYPE_ARRAY, RW_SHIELD_RULES, __u32, struct rw_shield_budget, 0);

/* writer: control; reader: balancer. Limits of services, by id; in force with RW_SVC_LIMITED. */
RW_MAP(shield_policies, BPF_MAP_TYPE_ARRAY, RW_MAX_SERVICES, __u32, struct rw_shield_policy, 0);
/* writer: control; reader: balancer. By service: its armed limits are in force before this second. */
RW_MAP(shield_armed, BPF_MAP_TYPE_ARRAY, RW_MAX_SERVICES, __u32, __u32, 0);

/* writer: control; reader: balancer. Secret: nobody else reads it. */
RW_MAP(syn_secrets, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_syn_secrets, 0);

/* writer: balancer; reader: balancer, control, status. By service. */
RW_MAP(arrivals, BPF_MAP_TYPE_PERCPU_ARRAY, RW_MAX_SERVICES, __u32, struct rw_arrivals, 0);
/* By service: the last second in which a limit was exceeded. */
RW_MAP(shield_exceeded, BPF_MAP_TYPE_ARRAY, RW_MAX_SERVICES, __u32, __u32, 0);

/* writer, reader: balancer. */
RW_MAP(service_budgets, BPF_MAP_TYPE_ARRAY, RW_SERVICE_BUDGETS *RW_MAX_SERVICES, __u32,
       struct rw_shield_budget, 0);
RW_MAP(source_sketch, BPF_MAP_TYPE_PERCPU_ARRAY, RW_SKETCH_LINES, __u32, struct rw_sketch_line, 0);
/* Full: the one that has been silent longest gives way. */
RW_MAP(learnt_sources, BPF_MAP_TYPE_ARRAY, RW_LEARNT_BUCKETS, __u32, struct rw_rated, 0);
RW_MAP(flow_budgets, BPF_MAP_TYPE_ARRAY, RW_FLOW_BUDGET_BUCKETS, __u32, struct rw_rated, 0);

RW_MAP(proven, BPF_MAP_TYPE_ARRAY, RW_PROVEN_BUCKETS, __u32, struct rw_rated, 0);

/* writer: balancer; reader: balancer, status. Full: the same. */
RW_MAP(heavy_sources, BPF_MAP_TYPE_ARRAY, RW_HEAVY_BUCKETS, __u32, struct rw_heavy_bucket, 0);

/* writer: shield; reader: status. */
RW_MAP(shield_counts, BPF_MAP_TYPE_PERCPU_ARRAY, RW_SHIELD_COUNTS, __u32, struct rw_shield_count,
       0);
RW_MAP(shield_observed, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rw_shield_observed, 0);

/* writer: control; reader: status. Names of rules and lists, by place in shield_counts. */
RW_MAP(shield_labels, BPF_MAP_TYPE_ARRAY, RW_SHIELD_COUNTS, __u32, struct rw_label, 0);

/* writer: control, once a second; reader: status. */
RW_MAP(daemon, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_daemon, 0);

#endif
