// SPDX-License-Identifier: GPL-2.0-only
/*
 * `ringway capture`: the gateway compiled again, over the live maps. It is loaded
 * only while somebody captures, so it costs nothing otherwise. It has a slot of its
 * own, which root tries first:
 *
 *   root -> ringway_capture_enter -> filters -> ringway_capture: on arrival
 *        -> the shield (capture_shield.bpf.c), this gateway -> filters, if rewritten and one has not matched -> ringway_capture: out
 *
 * The filters are programs that user space makes (crate filter), one per capture, each
 * at its own place in `capture_chain`. A filter that matches sets its capture's
 * bit; none ends a packet. Captures do not see packets that root ends, nor what
 * happens to a packet after the verdict.
 */
#define RW_CAPTURING 1
#include "gateway/gateway.bpf.c"

/* writer: control; reader: this. The captures under way. */
RW_MAP(captures, BPF_MAP_TYPE_ARRAY, RW_CAPTURES, __u32, struct rw_capture, 0);

/* writer: control; reader: this. Bits of the captures whose filters run: `mask` if all match. */
RW_MAP(capture_linked, BPF_MAP_TYPE_ARRAY, 1, __u32, __u32, 0);

/* writer: this; reader: control. */
RW_MAP(capture_counts, BPF_MAP_TYPE_PERCPU_ARRAY, RW_CAPTURES, __u32, struct rw_capture_counts, 0);

/* writer, reader: this. Indexed by CPU; per-CPU elements would end at 32 KiB. */
RW_MAP(capture_packet, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_capture_packet, 0);

/* writer: this; reader: each capture. Full: the record is lost, and counted. */
struct rw_capture_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} capture_ring_template SEC(".maps");

/* writer: control; reader: this. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, RW_CAPTURES);
	__type(key, __u32);
	__array(values, struct rw_capture_ring);
} capture_rings SEC(".maps");

static __always_inline __u32 least(__u32 a, __u32 b)
{
	return a < b ? a : b;
}

static __always_inline struct rw_capture_packet *packet_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&capture_packet, &cpu);
}

/* Copies the frame's first bytes. Returns how many. */
static __always_inline __u32 copy_frame(struct xdp_md *ctx, __u8 *to, __u32 len)
{
	/* 1 to RW_CAPTURE_BYTES in any case, so that the verifier of 6.1 sees it. */
	barrier_var(len);
	len = ((len - 1) & (RW_CAPTURE_BYTES - 1)) + 1;
	return bpf_xdp_load_bytes(ctx, 0, to, len) ? 0 : len;
}

/* Whether the capture wants this packet, of those that its filter matches. */
static __always_inline bool takes_sample(const struct rw_capture *capture, __u32 number)
{
	struct rw_capture_counts *counts;

	if (capture->sample <= 1)
		return true;
	counts = bpf_map_lookup_elem(&capture_counts, &number);
	return counts && counts->filtered++ % capture->sample == 0;
}

/* Adds or removes one capture that keeps so many bytes of the packet. In memory, because the
 * verifier would track every choice of captures in registers as a case of its own. */
static __always_inline void settle(struct rw_capture_state *state, __u32 number, __u32 snaplen)
{
	if (!snaplen)
		state->mask &= ~(1u << number);
	else if (snaplen > state->wanted)
		state->wanted = snaplen;
}

/* Calls `take` for each capture whose bit is set. */
#define FOR_EACH_CAPTURE(state, call)                            \
	for (__u32 number = 0; number < RW_CAPTURES; number++) { \
		__u32 rest = READ_ONCE((state)->mask) >> number; \
                                                                 \
		if (!rest)                                       \
			break;                                   \
		if (rest & 1)                                    \
			call(number);                            \
	}

static __always_inline __u32 begins(struct rw_capture_state *state, __u32 number)
{
	struct rw_capture *capture = bpf_map_lookup_elem(&captures, &number);
	struct rw_scratch *s = RW_ONLY(scratch);

	if (!capture || !s)
		return 0;
	if (capture->device != RW_ANY && capture->device != s->device)
		return 0;
	if (takes_sample(capture, number))
		return capture->snaplen;
	state->skipped |= 1u << number;
	return 0;
}

/* A capture whose filter matches the packet on arrival. Not inlined, like those below, so that it
 * is verified once. */
__noinline int capture_begin(__u32 number)
{
	struct rw_capture_state *state = RW_ONLY(capture_state);

	if (state && number < RW_CAPTURES)
		settle(state, number, begins(state, number));
	return 0;
}

/* Copies the packet before anything is changed: the bytes that captures keep, and of other packets
 * the head, because the rewritten packet may match. */
static __always_inline void capture_in(struct xdp_md *ctx, struct rw_capture_state *state)
{
	struct rw_capture_packet *packet = packet_here();
	__u32 len = bpf_xdp_get_buff_len(ctx), *linked = RW_ONLY(capture_linked);

	if (!packet || !linked)
		return;
	state->met = state->mask == *linked;
	state->wanted = RW_CAPTURE_HEAD;
	FOR_EACH_CAPTURE(state, capture_begin);
	state->before = state->mask;
	packet->record.before_len = len;
	packet->record.before_bytes = copy_frame(ctx, packet->bytes, least(len, state->wanted));
}

/* Whether the capture wants the packet after all conditions. */
static __always_inline bool capture_fits(const struct rw_capture *capture,
					 const struct rw_capture_record *record)
{
	if (!(capture->verdicts >> (record->verdict & 31) & 1) ||
	    !(capture->reasons[record->reason >> 6 & 1] >> (record->reason & 63) & 1))
		return false;
	if (capture->iface != RW_ANY && capture->iface != record->iface)
		return false;
	if (capture->service != RW_ANY && capture->service != record->service)
		return false;
	return capture->backend == RW_ANY ||
	       (record->backend && capture->backend == RW_BACKEND_INDEX(record->backend));
}

static __always_inline __u32 wants(const struct rw_capture_state *state, __u32 number)
{
	struct rw_capture *capture = bpf_map_lookup_elem(&captures, &number);
	struct rw_capture_packet *packet = packet_here();

	if (!capture || !packet || !capture_fits(capture, &packet->record))
		return 0;
	/* Samples among packets whose filter matches only the rewritten packet. */
	if (!(state->before & (1u << number)) && !takes_sample(capture, number))
		return 0;
	return capture->snaplen;
}

/* A capture whose filter matches, when the packet's result is known. */
__noinline int capture_decide(__u32 number)
{
	struct rw_capture_state *state = RW_ONLY(capture_state);

	if (state && number < RW_CAPTURES)
		settle(state, number, wants(state, number));
	return 0;
}

/* Writes the packet to a capture's ring, without waking its reader, which polls. The record has
 * all bytes that any capture keeps, so it is copied in one piece; the reader takes its share. */
__noinline int capture_deliver(__u32 number)
{
	struct rw_capture_counts *counts = bpf_map_lookup_elem(&capture_counts, &number);
	void *ring = bpf_map_lookup_elem(&capture_rings, &number);
	struct rw_capture_packet *packet = packet_here();
	__u32 before, after;

	if (!counts || !ring || !packet)
		return 0;
	counts->matched++;
	before = packet->record.before_bytes;
	after = packet->record.after_bytes;
	if (before > RW_CAPTURE_BYTES || after > RW_CAPTURE_BYTES)
		return 0; /* copy_frame() keeps no more: for the verifier */
	if (bpf_ringbuf_output(ring, packet, sizeof(packet->record) + before + after,
			       BPF_RB_NO_WAKEUP))
		counts->lost++;
	return 0;
}

/* The result of the packet, as records show it. */
static __always_inline void capture_describe(struct rw_capture_record *record, __u32 end,
					     const struct rw_scratch *s)
{
	record->verdict = END_VERDICT(end);
	record->reason = END_REASON(end);
	record->iface = s->iface;
	record->service = s->opening.service;
	record->backend = s->opening.backend;
	record->out = END_OUT(end);
	record->after_len = 0;
	record->after_bytes = 0;
}

/* Appends the rewritten bytes to those before. */
static __always_inline void capture_after(struct xdp_md *ctx, struct rw_capture_packet *packet,
					  __u32 wanted)
{
	__u32 len = bpf_xdp_get_buff_len(ctx), before = packet->record.before_bytes;

	if (before > RW_CAPTURE_BYTES)
		return; /* copy_frame() keeps no more: for the verifier */
	packet->record.after_len = len;
	packet->record.after_bytes = copy_frame(ctx, packet->bytes + before, least(len, wanted));
}

/* Gives the packet to every capture that wants it. */
static __always_inline void capture_leaving(struct xdp_md *ctx, struct rw_capture_state *state,
					    const struct rw_scratch *s)
{
	struct rw_capture_packet *packet = packet_here();

	state->mask &= ~state->skipped;
	if (!state->mask || !packet)
		return;
	state->wanted = 0;
	capture_describe(&packet->record, state->end, s);
	FOR_EACH_CAPTURE(state, capture_decide);
	if (!state->mask)
		return;
	packet->record.time_ns = bpf_ktime_get_ns();
	if (was_rewritten(state->end))
		capture_after(ctx, packet, state->wanted);
	FOR_EACH_CAPTURE(state, capture_deliver);
}

/* On arrival: continues with the shield, if any, and the gateway. */
static __always_inline int capture_go_on(struct xdp_md *ctx)
{
	struct packet_context pctx;

	bpf_tail_call(ctx, &capture_slots, RW_SLOT_SHIELD);
	bpf_tail_call(ctx, &capture_slots, RW_SLOT_BALANCE);
	/* The slot was emptied meanwhile. */
	bpf_tail_call(ctx, &slots, RW_SLOT_BALANCE);
	if (!open_packet_context(ctx, &pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	return END_VERDICT(pass(ctx, &pctx, RW_REASON_NO_STAGE));
}

/* Runs before the first filter. */
SEC("xdp.frags")
int ringway_capture_enter(struct xdp_md *ctx)
{
	struct rw_capture_state *state = RW_ONLY(capture_state);
	struct rw_capture_packet *packet = packet_here();
	struct rw_scratch *s = RW_ONLY(scratch);

	if (!state || !packet || !s)
		return XDP_PASS; /* array elements exist: for the verifier */
	packet->record.before_len = 0;
	packet->record.before_bytes = 0;
	state->mask = 0;
	state->before = 0;
	state->skipped = 0;
	state->met = 0;
	state->leaving = 0;
	state->layer3 = s->tags[0] == RW_NO_HEADER;
	state->shown = 0;
	s->opening.service = RW_NO_SERVICE;
	s->opening.backend = 0;
	bpf_tail_call(ctx, &capture_chain, RW_CHAIN_FIRST);
	return capture_go_on(ctx);
}

/* Runs after the last filter. */
SEC("xdp.frags")
int ringway_capture(struct xdp_md *ctx)
{
	struct rw_capture_state *state = RW_ONLY(capture_state);
	struct rw_scratch *s = RW_ONLY(scratch);

	if (!state || !s)
		return XDP_PASS; /* array elements exist: for the verifier */
	if (!state->leaving) {
		capture_in(ctx, state);
		return capture_go_on(ctx);
	}
	capture_leaving(ctx, state, s);
	return capture_end(ctx, state);
}
