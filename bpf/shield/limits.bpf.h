/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rates of services, their addresses, new flows and sources. In calm a CPU writes no cache line that
 * others write: it takes packets from a service's budget in batches, and counts sources in a sketch
 * of its own. Only a source that the sketch suspects has a budget, which all CPUs share.
 *
 * What is over a limit passes all the same if it is of an established nat flow or of a source that
 * was learnt in peace, each within a rate of its own. A source that has brought back a cookie is spared
 * by the rates of services and addresses alone.
 */
#ifndef RINGWAY_LIMITS_H
#define RINGWAY_LIMITS_H

#include "gateway/flow.bpf.h"
#include "proven.bpf.h"

#define EXCEEDED_SECONDS 2

/* Whether the packet in scratch opens a flow, without a cookie. Under dsr only a SYN shows that. */
static __always_inline bool is_new_flow(const struct rw_scratch *s, bool nat, bool has_flow)
{
	if (s->layers.fragment == RW_FRAGMENT_LATER)
		return false;
	if (s->tuple.proto == IPPROTO_UDP)
		return nat && !has_flow;
	return (s->tuple.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* Both sides have shown that they are there. */
static __always_inline bool is_established(__u32 place, __u64 key)
{
	struct rw_flow *flow = flow_at(place);
	__u8 state = key_state(key);

	if (!flow)
		return false;
	if (state == RW_FLOW_UDP_NEW || state == RW_FLOW_UDP)
		return READ_ONCE(flow->confirmed) & RW_CONFIRMED;
	/* A guess may have ended the handshake: its backend would not go on. */
	return state >= RW_FLOW_ESTABLISHED && state != RW_FLOW_RESTING &&
	       state != RW_FLOW_CLOSED && !(READ_ONCE(flow->confirmed) & RW_ACKED);
}

/* A CPU asks an empty budget again in the next 1 / 1024 s. */
#define LEASE_TICKS_SHIFT 10

/* One packet from the lease, or a batch from the budget. A flood finds the budget empty once a
 * tick. */
static __always_inline bool take_leased(struct rw_lease *lease, const struct rw_shared_rate *rate)
{
	__u32 tick = (__u32)(now_fine() >> (RW_FINE_SHIFT - LEASE_TICKS_SHIFT));
	__u32 place = rate->budget;
	struct rw_shield_budget *budget;

	if (!rate->gap)
		return true;
	if (lease->left) {
		lease->left -= !dry;
		return true;
	}
	/* 0: never, or once in 48 days. */
	if (tick && lease->empty == tick)
		return false;
	budget = bpf_map_lookup_elem(&service_budgets, &place);
	if (budget && within_budget(budget, rate->gap * rate->batch, rate->window)) {
		if (!dry)
			lease->left = rate->batch - 1;
		return true;
	}
	if (!dry)
		lease->empty = tick;
	return false;
}

/* Counts a packet of this hash, and returns how many there are at most in this second. */
static __always_inline __u32 sketch_add(__u64 hash)
{
	__u32 place = (__u32)hash % RW_SKETCH_LINES, second = now_seconds() << 24;
	struct rw_sketch_line *line = bpf_map_lookup_elem(&source_sketch, &place);
	__u64 least = RW_SKETCH_MOST;

	if (!line)
		return 0;
	for (int row = 0; row < RW_SKETCH_ROWS; row++) {
		__u32 *count = &line->counts[row][hash >> (32 + 3 * row) & (RW_SKETCH_WIDTH - 1)];
		__u64 seen = *count;

		/* Of another second it is nothing; 256 later it looks like this one. */
		seen = seen & RW_SKETCH_MOST & if_less((seen ^ second) >> 24, 1);
		seen -= if_less(seen, RW_SKETCH_MOST);
		if (!dry)
			*count = second | (__u32)seen;
		least ^= (least ^ seen) & if_less(seen, least);
	}
	return (__u32)least;
}

/* Whether one more packet of a suspect conforms. One that finds no place is not limited: the
 * service is. */
static __always_inline bool within_heavy(__u64 hash, const struct rw_address *prefix, __u32 service,
					 const struct rw_single_rate *rate,
					 struct rw_heavy_source **heavy)
{
	__u32 place = (__u32)hash % RW_HEAVY_BUCKETS, now = now_coarse(), tag = rated_tag(hash);
	struct rw_heavy_bucket *bucket = bpf_map_lookup_elem(&heavy_sources, &place);
	struct rw_heavy_source *source;
	__u64 found, *own;
	__u32 number;

	if (!bucket)
		return true;
	found = rated_find(&bucket->budgets, tag, rate->window, now);
	own = rated_own(&bucket->budgets, found);
	if (own) {
		if (within_rated(own, tag, rate, now))
			return true;
		*heavy = &bucket->sources[((__u32)found - 1) % RW_BUCKET_RATED];
		return false;
	}
	number = rated_take(&bucket->budgets, found, tag, now + rate->gap);
	if (number) {
		source = &bucket->sources[(number - 1) % RW_BUCKET_RATED];
		copy_addr(source->prefix, prefix->addr);
		source->service = service;
		source->over = 0;
		source->seen = 0;
		source->since = 0;
	}
	return true;
}

static __always_inline bool within_learnt(const struct rw_settings *set,
					  const struct rw_shield_policy *policy,
					  const __u32 *source, __u64 by, bool *learnt)
{
	struct rw_address prefix;
	__u64 hash = source_hash(set, policy, source, &prefix, by), *own;
	__u32 now = now_coarse(), tag = rated_tag(hash);
	struct rw_rated *bucket = learnt_bucket(hash, by);

	if (!bucket)
		return false;
	own = rated_own(bucket, rated_find(bucket, tag, policy->learnt.window, now));
	*learnt |= own != NULL;
	return own && within_rated(own, tag, &policy->learnt, now);
}

/* `flow`: its place, which nobody else has at the same time. */
static __always_inline bool within_flow(const struct rw_shield_policy *policy, __u32 flow)
{
	__u32 place = (__u32)(hash_end(flow) >> 32) % RW_FLOW_BUDGET_BUCKETS, now = now_coarse();
	struct rw_rated *bucket = bpf_map_lookup_elem(&flow_budgets, &place);
	__u64 found, *own;

	if (!bucket)
		return true;
	found = rated_find(bucket, flow, policy->flow.window, now);
	own = rated_own(bucket, found);
	if (own)
		return within_rated(own, flow, &policy->flow, now);
	rated_take(bucket, found, flow, now + policy->flow.gap);
	return true;
}

static __always_inline enum rw_limit
exceeded(const struct rw_settings *set, const struct rw_shield_policy *policy,
	 const struct rw_limits *limits, struct rw_arrivals *arrived, const __u32 *source,
	 __u32 service, bool new_flow, struct rw_heavy_source **heavy)
{
	struct rw_address prefix;
	__u64 hash;

	if (limits->source.gap) {
		hash = source_hash(set, policy, source, &prefix, service);
		/* Dry, another CPU's sketch would be asked than the packet's. */
		if ((dry || sketch_add(hash) > limits->unasked) &&
		    !within_heavy(hash, &prefix, service, &limits->source, heavy))
			return RW_LIMIT_SOURCE;
	}
	if (new_flow && !take_leased(&arrived->leases[RW_BUDGET_NEW_FLOWS], &limits->new_flows))
		return RW_LIMIT_NEW_FLOWS;
	if (!take_leased(&arrived->leases[RW_BUDGET_PACKETS], &limits->packets))
		return RW_LIMIT_PACKETS;
	if (!take_leased(&arrived->leases[RW_BUDGET_DESTINATION], &limits->destination))
		return RW_LIMIT_DESTINATION;
	return RW_LIMIT_NONE;
}

static __always_inline enum rw_reason reason_of(enum rw_limit limit)
{
	switch (limit) {
	case RW_LIMIT_NEW_FLOWS:
		return RW_REASON_NEW_FLOW_LIMIT;
	case RW_LIMIT_SOURCE:
		return RW_REASON_SOURCE_LIMIT;
	default:
		return RW_REASON_SERVICE_LIMIT;
	}
}

/* Of a packet over a limit. `place`, `key`: as for over_limits(). */
static __always_inline enum rw_exemption exemption(const struct rw_settings *set,
						   const struct rw_shield_policy *policy,
						   const struct rw_scratch *s, __u32 service,
						   enum rw_limit limit, bool new_flow, __u32 place,
						   __u64 key, bool cookie, bool *learnt)
{
	if (!new_flow && is_established(place, key) && within_flow(policy, place))
		return RW_EXEMPT_ESTABLISHED;
	if (within_learnt(set, policy, s->tuple.saddr, LEARNT_BY_TCP, learnt) ||
	    (s->tuple.proto == IPPROTO_UDP &&
	     within_learnt(set, policy, s->tuple.saddr, LEARNT_BY_UDP(service), learnt)))
		return RW_EXEMPT_LEARNT;
	/* Bots can answer: what they open and how much each sends is limited. Dry, no source is noted. */
	if (policy->syn && s->tuple.proto == IPPROTO_TCP &&
	    (limit == RW_LIMIT_PACKETS || limit == RW_LIMIT_DESTINATION) &&
	    within_proven(set, policy, s->tuple.saddr, service, dry && cookie))
		return RW_EXEMPT_LEARNT;
	return RW_EXEMPT_NOT;
}

/* Of a packet for which nothing speaks. One source that sends too much is no attack on a service, in
 * which nobody is learnt: else it could see to that. */
static __always_inline void note_excess(struct rw_heavy_source *heavy, __u32 *last,
					enum rw_limit limit, bool learnt, __u32 now)
{
	if (limit != RW_LIMIT_SOURCE) {
		if (READ_ONCE(*last) != now)
			WRITE_ONCE(*last, now);
	} else if (heavy) {
		if (!heavy->over || now - heavy->seen > RW_HEAVY_SECONDS) {
			heavy->over = 0;
			heavy->since = now;
		} else if (now - heavy->since > RW_HEAVY_SECONDS) {
			/* Its rate is that of now: who begins slowly is not slow for long. */
			heavy->over /= 2;
			heavy->since += (now - heavy->since) / 2;
		}
		heavy->seen = now;
		heavy->learnt = learnt;
		heavy->over += heavy->over != (__u32)-1;
	}
}

/* Whether packets to this service were over a limit lately. */
static __always_inline bool is_exceeded(__u32 service)
{
	__u32 *last = bpf_map_lookup_elem(&shield_exceeded, &service);

	return last && *last && now_seconds() - *last < EXCEEDED_SECONDS;
}

/* NONE, or why the packet in scratch is to be dropped. `place`, `key`: of its nat flow, if any.
 * `cookie`: it brings one back. Under nat that opens a flow, which was counted by its SYN; under dsr
 * nobody knows whether it was brought before. */
__noinline __u32 over_limits(__u32 service, __u32 nat, __u32 cookie, __u32 place, __u64 key)
{
	struct rw_shield_policy *policy = bpf_map_lookup_elem(&shield_policies, &service);
	struct rw_arrivals *arrived = bpf_map_lookup_elem(&arrivals, &service);
	__u32 *armed = bpf_map_lookup_elem(&shield_armed, &service);
	__u32 *last = bpf_map_lookup_elem(&shield_exceeded, &service);
	struct rw_shield_control *control = RW_ONLY(shield_control);
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_scratch *s = RW_ONLY(scratch);
	__u32 now = now_seconds(), mode;
	struct rw_heavy_source *heavy = NULL;
	enum rw_exemption exempt;
	enum rw_limit limit;
	bool new_flow, is_armed, learnt = false;

	if (!policy || !arrived || !armed || !last || !control || !set || !s)
		return RW_REASON_NONE;
	mode = mode_now(control, policy->mode);
	if (mode == RW_SHIELD_OFF || s->allowed)
		return RW_REASON_NONE;
	new_flow = is_new_flow(s, nat, place);
	if (!dry) {
		arrived->packets++;
		arrived->new_flows += new_flow;
	}
	is_armed = now < *armed;
	limit = exceeded(set, policy, is_armed ? &policy->armed : &policy->always, arrived,
			 s->tuple.saddr, service, new_flow || (nat && cookie), &heavy);
	cookie = cookie && limit != RW_LIMIT_NEW_FLOWS && limit != RW_LIMIT_SOURCE;
	if (cookie && !dry)
		prove_source(set, policy, s->tuple.saddr, PROVEN_BY_COOKIE(service));
	if (!limit)
		return RW_REASON_NONE;
	exempt = exemption(set, policy, s, service, limit, new_flow, place, key, cookie, &learnt);
	if (dry) {
		trace.limit = limit;
		trace.exempt = exempt;
		trace.armed_until = is_armed ? *armed : 0;
		trace.shield_reason = exempt ? RW_REASON_NONE : reason_of(limit);
	} else if (exempt) {
		arrived->exempt[exempt]++;
	} else {
		arrived->over[limit]++;
		note_excess(heavy, last, limit, learnt, now);
	}
	if (exempt)
		return RW_REASON_NONE;
	if (mode == RW_SHIELD_ENFORCE)
		return reason_of(limit);
	count_observed(reason_of(limit));
	return RW_REASON_NONE;
}

#endif
