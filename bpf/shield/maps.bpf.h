/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps of one generation of the shield: made with it, filled before a packet meets it, and
 * never changed. gateway/maps.bpf.h has those that outlive it.
 */
#ifndef RINGWAY_SHIELD_MAPS_H
#define RINGWAY_SHIELD_MAPS_H

#include "gateway/maps.bpf.h"

/* writer: control; reader: shield. */
const volatile struct rw_shield shield SEC(".rodata.shield") = {};
RW_MAP(list_index, BPF_MAP_TYPE_ARRAY, 1, __u32, __u64, BPF_F_MMAPABLE);
RW_MAP(list_spans, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_list_span, BPF_F_MMAPABLE);
RW_MAP(list_v4, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_list_v4, BPF_F_MMAPABLE);
RW_MAP(list_v6, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_list_v6, BPF_F_MMAPABLE);
RW_MAP(list_counts, BPF_MAP_TYPE_ARRAY, RW_SHIELD_LISTS, __u32, __u32, 0);
RW_MAP(rule_table, BPF_MAP_TYPE_ARRAY, RW_SHIELD_RULE_ROWS, __u32, struct rw_shield_rule, 0);

#endif
