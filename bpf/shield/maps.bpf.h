/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The shield's maps. Those of one generation are made with it, filled before a packet meets
 * it, and never changed; the others are pinned beside the gateway's.
 */
#ifndef RINGWAY_SHIELD_MAPS_H
#define RINGWAY_SHIELD_MAPS_H

#include "common/common.bpf.h"

/* Of one generation. writer: control; reader: shield. */
const volatile struct rw_shield shield SEC(".rodata.shield") = {};
RW_MAP(list_index, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32, BPF_F_MMAPABLE);
RW_MAP(list_v4, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_list_v4, BPF_F_MMAPABLE);
RW_MAP(list_v6, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_list_v6, BPF_F_MMAPABLE);
RW_MAP(list_counts, BPF_MAP_TYPE_ARRAY, RW_SHIELD_LISTS, __u32, __u32, 0);
RW_MAP(rule_table, BPF_MAP_TYPE_ARRAY, RW_SHIELD_RULE_ROWS, __u32, struct rw_shield_rule, 0);

/* Of one generation. The program of all rules (crate filter), at 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} rule_program SEC(".maps");

/* writer: control; reader: shield. */
RW_MAP(shield_control, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_shield_control, 0);

/* writer: control; reader: shield. Prefixes of `ringway allow` and `ringway block`. Full: refused. */
RW_MAP(runtime_allow, BPF_MAP_TYPE_LPM_TRIE, RW_SHIELD_RUNTIME, struct rw_shield_prefix,
       struct rw_shield_runtime, BPF_F_NO_PREALLOC);
RW_MAP(runtime_block, BPF_MAP_TYPE_LPM_TRIE, RW_SHIELD_RUNTIME, struct rw_shield_prefix,
       struct rw_shield_runtime, BPF_F_NO_PREALLOC);

/* writer, reader: shield. By place in shield_counts. */
RW_MAP(rule_budgets, BPF_MAP_TYPE_ARRAY, RW_SHIELD_RULES, __u32, struct rw_shield_budget, 0);

/* writer: shield; reader: status. */
RW_MAP(shield_counts, BPF_MAP_TYPE_PERCPU_ARRAY, RW_SHIELD_COUNTS, __u32, struct rw_shield_count,
       0);
RW_MAP(shield_observed, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rw_shield_observed, 0);

/* writer: control; reader: status. Names of rules and lists, by place in shield_counts. */
RW_MAP(shield_labels, BPF_MAP_TYPE_ARRAY, RW_SHIELD_COUNTS, __u32, struct rw_label, 0);

#endif
