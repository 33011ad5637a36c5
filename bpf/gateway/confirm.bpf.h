/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Confirmed flows: those that no new flow may evict. A TCP flow is confirmed when its
 * client has acknowledged the backend's SYN and the backend has then sent something
 * else. Any other flow needs a packet of the client after the flow's first seconds, and
 * then one of the backend. One source prefix has at most half of a backend's ports; the
 * rest of its flows stay on probation. Confirmed flows whose time is over count until
 * their ports are taken; while there are such ports, no flow on probation gives way.
 */
#ifndef RINGWAY_CONFIRM_H
#define RINGWAY_CONFIRM_H

#include "flow.bpf.h"
#include "shield/rated.bpf.h"

/* The number of confirmed flows towards a backend: of this client's prefix (/24, /64), or of all
 * without a client. */
static __always_inline __u32 *confirmed_count(const struct rw_settings *set, const __u32 *client,
					      __u32 backend)
{
	__u32 high = 0, low = 0, number;
	__u64 hash;

	if (client) {
		high = client[0];
		low = client[1];
		if (!high && !low && client[2] == bpf_htonl(0xffff))
			low = client[3] & bpf_htonl(0xffffff00);
	}
	hash = hash_end(nh_pair(set->keys[1], high, low) + nh_pair(set->keys[2], backend, !client));
	number = (__u32)(hash >> 32) % RW_CONFIRMED_COUNTS;
	return bpf_map_lookup_elem(&kept_flows, &number);
}

/* Half of the ports towards a backend; with source = "client", a third of the table. */
static __always_inline __u32 confirmed_limit(const struct rw_settings *set, __u64 key)
{
	__u32 index = RW_BACKEND_INDEX(key_backend(key));
	struct rw_backend *backend = bpf_map_lookup_elem(&backends, &index);

	if (key_nat_addr(key) == RW_NAT_CLIENT || !backend)
		return set->flow_mask + 1;
	return set->port_count * (backend->nat_count ?: 1) / 2;
}

/* client_mac, iface and confirmed share one word: a writer must keep what another CPU wrote. */
static __always_inline __u64 *flow_way(struct rw_flow *flow)
{
	return (__u64 *)flow->client_mac;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "confirmed is the word's upper byte");
#define CONFIRMED_SHIFT 56
#define CONFIRMED_IN_WAY ((__u64)RW_CONFIRMED << CONFIRMED_SHIFT)

/*
 * During a flow's handshake `confirmed` holds what acknowledges the SYN, first the client's and
 * then the backend's, in seven bits; 0 is unknown. A segment with another number invalidates it
 * until the backend repeats its SYN, so nobody can try all numbers.
 */
#define ISN_KINDS 126
#define ISN_SPOILT 127

static __always_inline __u8 isn_bits(__u32 acknowledges)
{
	return 1 + acknowledges % ISN_KINDS;
}

static __always_inline __u8 isn_known(const struct rw_flow *flow)
{
	return READ_ONCE(flow->confirmed) >> RW_ISN_SHIFT;
}

/* The bits of `confirmed` beside RW_CONFIRMED. Lost if another CPU writes at the same time. */
static __always_inline void confirmed_note(struct rw_flow *flow, __u8 note)
{
	__u64 way = READ_ONCE(*flow_way(flow)),
	      mask = (0xffull << CONFIRMED_SHIFT) & ~CONFIRMED_IN_WAY;

	__sync_val_compare_and_swap(flow_way(flow), way,
				    (way & ~mask) | (__u64)note << CONFIRMED_SHIFT);
}

/* UDP senders may be forged, so all prefixes together also have half of the ports. */
static __always_inline __u32 *confirmed_of_all(const struct rw_settings *set, __u64 key)
{
	return key_rests(key) ? confirmed_count(set, NULL, key_backend(key)) : NULL;
}

/* Protects the flow against eviction, unless too many are confirmed. */
static __always_inline void flow_confirm(const struct rw_settings *set, struct rw_flow *flow,
					 __u64 key)
{
	__u32 *count = confirmed_count(set, flow->client, key_backend(key));
	__u32 *all = confirmed_of_all(set, key), limit = confirmed_limit(set, key);

	if (!count || READ_ONCE(*count) >= limit || (all && READ_ONCE(*all) >= limit))
		return;
	if (__sync_fetch_and_or(flow_way(flow), CONFIRMED_IN_WAY) & CONFIRMED_IN_WAY)
		return;
	__sync_fetch_and_add(count, 1);
	if (all)
		__sync_fetch_and_add(all, 1);
	learn_source((const struct rw_address *)flow->client, flow->service,
		     key_state(key) == RW_FLOW_UDP_NEW || key_state(key) == RW_FLOW_UDP);
}

/* Flows of a former release were not counted. */
static __always_inline void count_down(__u32 *count)
{
	if (count && (__s32)READ_ONCE(*count) > 0)
		__sync_fetch_and_add(count, -1);
}

/* Ends the confirmation of a flow that is over or gives way. */
static __always_inline void flow_unconfirm(const struct rw_settings *set, struct rw_flow *flow,
					   __u64 key)
{
	if (!(READ_ONCE(*flow_way(flow)) & CONFIRMED_IN_WAY) ||
	    !(__sync_fetch_and_and(flow_way(flow), ~CONFIRMED_IN_WAY) & CONFIRMED_IN_WAY))
		return;
	count_down(confirmed_count(set, flow->client, key_backend(key)));
	count_down(confirmed_of_all(set, key));
}

/* Ends a flow: its place is free, except for a resting port. The caller holds it, CLAIMED. */
static __always_inline void flow_release(const struct rw_settings *set, struct rw_flow *flow,
					 __u64 key, __u32 now)
{
	flow_unconfirm(set, flow, key);
	if (!key_rests(key)) {
		WRITE_ONCE(flow->key, 0);
		return;
	}
	WRITE_ONCE(flow->seen, now);
	/* Exchange, not store: a full barrier between the time and the key. */
	__sync_lock_test_and_set(&flow->key, key_with_state(key, RW_FLOW_RESTING));
}

static __always_inline bool flow_hold(struct rw_flow *flow, __u64 key)
{
	return __sync_val_compare_and_swap(&flow->key, key, key_with_state(key, RW_FLOW_CLAIMED)) ==
	       key;
}

/* Ends a flow that gives way. False: another CPU was faster, or the flow is confirmed now. */
static __always_inline bool flow_evict(const struct rw_settings *set, struct rw_flow *flow,
				       __u64 key, __u32 now)
{
	if (!flow_hold(flow, key))
		return false;
	if (flow_worth(flow, key, now) == WORTH_CONFIRMED) {
		WRITE_ONCE(flow->key, key);
		return false;
	}
	flow_release(set, flow, key, now);
	return true;
}

#endif
