/* SPDX-License-Identifier: GPL-2.0-only */
/* The rings' maps; those that only the gateway has are in maps.bpf.h. */
#ifndef RINGWAY_RING_MAPS_H
#define RINGWAY_RING_MAPS_H

#include "common/common.bpf.h"

/* writer: control, a new inner map for every change; reader: gateway. Sizes, not types: 6.1
 * distinguishes maps with types (BTF) from maps without. */
struct rw_ring_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct rw_ring));
} ring_template SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, RW_MAX_RINGS);
	__type(key, __u32);
	__array(values, struct rw_ring_map);
} rings SEC(".maps");

/* The same; by ring, only if a slot has changed. As many pairs as needed. */
struct rw_pairs_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct rw_pair));
} pairs_template SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, RW_MAX_RINGS);
	__type(key, __u32);
	__array(values, struct rw_pairs_map);
} pairs SEC(".maps");

#endif
