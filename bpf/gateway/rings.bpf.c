// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copies a ring to where user space can read it. Never attached; run by
 * BPF_PROG_TEST_RUN. A ring is an inner map: user space may open one, by its
 * id, only with CAP_SYS_ADMIN (kernel/bpf/syscall.c, bpf_map_get_fd_by_id),
 * and up to 6.7 that takes an RCU grace period. A program needs neither.
 */
#include "ring_maps.bpf.h"

#define MAX_PAIRS (RW_NO_MEMBER - RW_MAX_MEMBERS)

/* writer: control; reader: this. The id of the ring. */
RW_MAP(wanted, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32, 0);

/* writer: this; reader: control. */
RW_MAP(ring_copy, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_ring, 0);
RW_MAP(pairs_copy, BPF_MAP_TYPE_ARRAY, MAX_PAIRS, __u32, struct rw_pair, 0);

static long copy_pair(__u32 number, void *ring)
{
	__u32 id = *(__u32 *)ring;
	void *inner = bpf_map_lookup_elem(&pairs, &id);
	struct rw_pair *pair;

	if (!inner)
		return 1;
	pair = bpf_map_lookup_elem(inner, &number);
	if (!pair)
		return 1;
	return bpf_map_update_elem(&pairs_copy, &number, pair, BPF_ANY) ? 1 : 0;
}

/* The number of its pairs, plus 1; 0: there is no such ring. */
SEC("xdp")
int ringway_copy_ring(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 zero = 0, id, *ring = RW_ONLY(wanted);
	void *inner, *slots;
	long looked;

	if (!ring)
		return 0;
	id = *ring;
	inner = bpf_map_lookup_elem(&rings, &id);
	if (!inner)
		return 0;
	slots = bpf_map_lookup_elem(inner, &zero);
	if (!slots || bpf_map_update_elem(&ring_copy, &zero, slots, BPF_ANY))
		return 0;
	looked = bpf_loop(MAX_PAIRS, copy_pair, &id, 0);
	/* The last look found none, unless all are there. */
	if (looked < 0)
		return 0;
	return looked;
}

char LICENSE[] SEC("license") = "GPL";
