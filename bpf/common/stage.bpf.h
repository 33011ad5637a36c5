/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shared by every stage: the maps that lead from one stage to the next, and the
 * exits. A stage ends a packet with leave() or passes it on with next_stage();
 * nothing else returns a verdict, so each packet is counted once.
 */
#ifndef RINGWAY_STAGE_H
#define RINGWAY_STAGE_H

#include "common.bpf.h"
#include "ledger.bpf.h"

/* writer: control; reader: gateway. Layout, timeouts, nat pool. */
RW_MAP(settings, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_settings, 0);

/* writer: control; reader: root, every stage. The stages, in enum rw_slot's order. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, RW_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

/* writer: control; reader: root, gateway. By interface slot. */
RW_MAP(ifaces, BPF_MAP_TYPE_ARRAY, RW_MAX_IFACES, __u32, struct rw_iface, 0);

/* writer: root, every stage, losses; reader: status. Per interface slot. */
RW_MAP(ledger, BPF_MAP_TYPE_PERCPU_ARRAY, RW_MAX_IFACES, __u32, struct rw_ledger, 0);

/* writer: control; reader: losses. Id of an attached root program -> interface
 * slot. Room for those of a daemon that takes over beside those of the last. */
RW_MAP(roots, BPF_MAP_TYPE_HASH, 4 * RW_MAX_IFACES, __u32, __u32, 0);

/* writer: root; reader: the stages after it. Lives for one packet. */
RW_MAP(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rw_scratch, 0);

#if RW_CAPTURING
/* writer: control; reader: gateway, capture. What a capture has in place of the stages. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, RW_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} capture_slots SEC(".maps");
#define OWN_SLOTS capture_slots
#else
#define OWN_SLOTS slots
#endif

/* Goes on with forwarding, where the packet's device takes part in it. */
static __always_inline void try_forward(struct xdp_md *ctx)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	struct rw_iface *in = s ? bpf_map_lookup_elem(&ifaces, &s->device) : NULL;

	if (!in || !(in->flags & RW_IFACE_FORWARDS))
		return;
	bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_FORWARD);
	if (capturing) /* which began before there was any: not captured */
		bpf_tail_call(ctx, &slots, RW_SLOT_FORWARD);
}

/*
 * Passes a packet to the stages after `from`, in order, then to the kernel.
 * A tail call returns only if its slot was emptied meanwhile.
 */
static __always_inline int next_stage(struct xdp_md *ctx, struct rw_ledger *counters, __u32 stages,
				      enum rw_slot from, enum rw_reason reason)
{
	if (stages & ~((2u << from) - 1)) {
		if (from < RW_SLOT_FORWARD && (stages & (1u << RW_SLOT_FORWARD)))
			try_forward(ctx);
		if (stages & (1u << RW_SLOT_ON_PASS)) {
			/* A user's program does not count, so this one does, before. */
			if (capturing)
				return (int)reason << 16 |
				       leave(counters, RW_PASS, RW_REASON_ON_PASS);
			counters->counts[RW_PASS][RW_REASON_ON_PASS]++;
			bpf_tail_call(ctx, &slots, RW_SLOT_ON_PASS);
			counters->counts[RW_PASS][RW_REASON_ON_PASS]--;
		}
	}
	return from == RW_SLOT_FORWARD ? leave_beyond(counters, RW_PASS, reason) :
					 leave(counters, RW_PASS, reason);
}

#endif
