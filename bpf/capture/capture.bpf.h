/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The gateway's hooks for captures: which service and backend a packet belongs
 * to, and its bytes at the end. The live gateway has none of this; while
 * somebody captures, the gateway in capture.bpf.c replaces it.
 */
#ifndef RINGWAY_CAPTURE_H
#define RINGWAY_CAPTURE_H

#include "gateway/layer3.bpf.h"

#if RW_CAPTURING
/* writer: filters, every program of capture.bpf.c; reader: these. */
RW_MAP(capture_state, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rw_capture_state, 0);

/* writer: control; reader: filters, every program of capture.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, RW_CHAIN_PLACES);
	__type(key, __u32);
	__type(value, __u32);
} capture_chain SEC(".maps");

_Static_assert(RW_MAX_IFACES < 0xff, "END_OUT");

/* The result of leave(): verdict, reason, and the verdict without on_pass. */
#define END_VERDICT(end) ((end)&0xff)
#define END_REASON(end) ((end) >> 8 & 0xff)
#define END_OTHERWISE(end) ((end) >> 16 & 0xff)
/* Of a frame that leaves as it came: the interface slot + 1. */
#define END_OUT(end) ((end) >> 24 & 0xff)

static __always_inline bool was_rewritten(__u32 end)
{
	return END_VERDICT(end) == RW_TX || END_VERDICT(end) == RW_REDIRECT ||
	       END_REASON(end) == RW_REASON_PASS_REWRITTEN;
}

/* Calls the user's own program; if it was removed meanwhile, acts as next_stage(). */
static __always_inline int capture_on_pass(struct xdp_md *ctx, __u32 otherwise)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	struct rw_ledger *counters;

	bpf_tail_call(ctx, &slots, RW_SLOT_ON_PASS);
	counters = s ? bpf_map_lookup_elem(&ledger, &s->device) : NULL;
	if (counters && otherwise < 2 * RW_REASON_SPACE) {
		counters->counts[RW_PASS][RW_REASON_ON_PASS]--;
		counters->counts[otherwise < RW_REASON_SPACE ? RW_PASS : RW_ABORTED]
				[otherwise % RW_REASON_SPACE]++;
	}
	return RW_PASS;
}

/* Ends the packet as without a capture. */
static __always_inline int capture_end(struct xdp_md *ctx, struct rw_capture_state *state)
{
	__u32 end = state->end;

	if (state->shown)
		layer3_leave(ctx);
	if (END_REASON(end) == RW_REASON_ON_PASS)
		return capture_on_pass(ctx, END_OTHERWISE(end));
	return END_VERDICT(end);
}

/*
 * Every program of the gateway ends here. `end`: what leave() returned. A rewritten
 * packet runs the filters again, unless all have matched: they may ask for the new
 * bytes. Any other packet is unchanged since the filters saw it.
 */
static __always_inline int capture_out(struct xdp_md *ctx, int end)
{
	struct rw_capture_state *state = RW_ONLY(capture_state);

	if (!state)
		return END_VERDICT(end); /* array elements exist: for the verifier */
	state->end = (__u32)end;
	state->leaving = 1;
	if (was_rewritten(state->end) && (state->mask || !state->met)) {
		/* The header that was added for such a device, and removed, is still there. */
		if (state->layer3 && END_VERDICT(state->end) != RW_REDIRECT)
			state->shown = !bpf_xdp_adjust_head(ctx, -ETH_HLEN);
		if (!state->met)
			bpf_tail_call(ctx, &capture_chain, RW_CHAIN_FIRST);
	}
	if (state->mask)
		bpf_tail_call(ctx, &capture_chain, RW_CHAIN_LAST);
	return capture_end(ctx, state);
}

/* A program of the gateway, whose body follows. */
#define GATEWAY_PROGRAM(NAME)                                    \
	static __always_inline int NAME##_body(struct xdp_md *); \
	SEC("xdp.frags")                                         \
	int NAME(struct xdp_md *ctx)                             \
	{                                                        \
		return capture_out(ctx, NAME##_body(ctx));       \
	}                                                        \
	static __always_inline int NAME##_body(struct xdp_md *ctx)

#else
#define GATEWAY_PROGRAM(NAME) \
	SEC("xdp.frags")      \
	int NAME(struct xdp_md *ctx)
#endif

/* Notes the way out of a frame that leaves as it came; its addresses do not tell. */
static __always_inline int capture_way_out(int end, __u32 slot)
{
	return capturing ? (int)(end | (slot + 1) << 24) : end;
}

/* Notes the packet's service. */
static __always_inline void capture_service(struct rw_scratch *s, __u32 id)
{
	if (capturing)
		s->opening.service = (__u16)id;
}

/* Notes the packet's backend, by reference: the destination or the source. */
static __always_inline void capture_backend(struct rw_scratch *s, __u32 reference)
{
	if (capturing)
		s->opening.backend = reference;
}

#endif
