/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Challenges: without state, of a keyed hash (SipHash-2-4, Aumasson and Bernstein) of the SYN's
 * addresses and ports and of the time. A challenge is the acknowledgement number of our answer, so
 * that the sender's RST has it as its sequence number (RFC 9293 section 3.10.7.3). Its lowest bit
 * tells in which of two periods it was made; whoever guesses needs 2^31 tries, half as many while two
 * keys are known.
 *
 * Who meets a challenge is nobody whom limits spare, as learnt sources are: bots can do it, in the
 * middle of an attack.
 */
#ifndef RINGWAY_CHALLENGE_H
#define RINGWAY_CHALLENGE_H

#include "cookie.bpf.h"
#include "rated.bpf.h"

/* Of addresses, ports and the period alone: 40 bytes. */
static __always_inline __u32 challenge_of(const struct rw_tuple *t, const __u64 *key, __u32 period)
{
	return (__u32)syn_hash(t, key[0], key[1], period, 40ull << 56);
}

/* Of now. */
static __always_inline __u32 new_challenge(const struct rw_tuple *t)
{
	struct rw_syn_secrets *secrets = RW_ONLY(syn_secrets);
	__u32 period;

	if (!secrets)
		return 0;
	period = (now_seconds() + secrets->wall) >> COOKIE_PERIOD_SHIFT;
	return (challenge_of(t, secrets->keys[0], period) & ~1u) | (period & 1);
}

/* Whether it was made of this tuple in the last 34 s, at most 98 s ago. */
static __always_inline bool was_challenged(const struct rw_tuple *t, __u32 challenge)
{
	struct rw_syn_secrets *secrets = RW_ONLY(syn_secrets);
	__u32 period;

	if (!secrets)
		return false;
	period = (now_seconds() + secrets->wall + CLOCK_SKEW) >> COOKIE_PERIOD_SHIFT;
	period -= (period ^ challenge) & 1;
	for (int i = 0; i < 2; i++) {
		const __u64 *key = secrets->keys[i];

		if (!((challenge_of(t, key, period) ^ challenge) & ~1u))
			return true;
		/* Both are the same, but for two minutes after a change. */
		if (key[0] == secrets->keys[1][0] && key[1] == secrets->keys[1][1])
			break;
	}
	return false;
}

/* The sequence number of the segment in scratch. */
static __always_inline __u32 sequence_of(struct xdp_md *ctx, const struct rw_scratch *s)
{
	__u32 at = READ_ONCE(s->layers.l4);
	struct tcphdr *tcp;

	barrier_var(at);
	if (at > MAX_L4_START)
		return 0;
	tcp = (void *)(long)ctx->data + at;
	return (void *)(tcp + 1) > (void *)(long)ctx->data_end ? 0 : bpf_ntohl(tcp->seq);
}

/* A connection whose SYN passes, and a source whose SYNs do, after a challenge was met. */
#define PROVEN_CONNECTION_SECONDS 64
#define PROVEN_SOURCE_SECONDS 500 /* the coarse clock tells 512 apart */
#define PROVEN_SOURCE(service) (1ull << 61 | (service))

static __always_inline struct rw_rated *proven_bucket(__u64 hash)
{
	__u32 place = (__u32)hash % RW_PROVEN_BUCKETS;

	return bpf_map_lookup_elem(&proven, &place);
}

static __always_inline __u64 connection_hash(const struct rw_settings *set,
					     const struct rw_tuple *t)
{
	return hash_end(keyed_tuple(set, t, t->sport_be | (__u32)t->dport_be << 16));
}

/* Whether it was written so many seconds ago at most; a source's may be ahead, by its rate. */
static __always_inline bool is_fresh(__u64 word, __u32 now, __u32 seconds, __u32 ahead)
{
	__u32 due = (__u32)word;

	return now - due < seconds << RW_COARSE_SHIFT || due - now <= ahead;
}

/* Writes that this was proven now. */
static __always_inline void prove(const struct rw_shield_policy *policy, __u64 hash)
{
	struct rw_rated *bucket = proven_bucket(hash);
	__u32 now = now_coarse(), tag = rated_tag(hash);
	__u64 found;

	if (!bucket)
		return;
	found = rated_find(bucket, tag, policy->learnt.window, now);
	if ((__u32)found)
		rated_renew(rated_own(bucket, found), tag, now);
	else
		rated_take(bucket, found, tag, now);
}

static __always_inline bool is_connection_proven(const struct rw_settings *set,
						 const struct rw_shield_policy *policy,
						 const struct rw_tuple *t)
{
	__u64 hash = connection_hash(set, t), *own;
	struct rw_rated *bucket = proven_bucket(hash);
	__u32 now = now_coarse();

	if (!bucket)
		return false;
	own = rated_own(bucket, rated_find(bucket, rated_tag(hash), policy->learnt.window, now));
	return own && is_fresh(READ_ONCE(*own), now, PROVEN_CONNECTION_SECONDS, 0);
}

static __always_inline bool is_learnt(const struct rw_settings *set,
				      const struct rw_shield_policy *policy, const __u32 *source)
{
	struct rw_address prefix;
	__u64 hash = source_hash(set, policy, source, &prefix, LEARNT_BY_TCP);
	struct rw_rated *bucket = learnt_bucket(hash, LEARNT_BY_TCP);

	return bucket &&
	       (__u32)rated_find(bucket, rated_tag(hash), policy->learnt.window, now_coarse());
}

/* Whether a SYN of this source passes: it was proven or learnt, and is within the rate of those. */
static __always_inline bool is_source_proven(const struct rw_settings *set,
					     const struct rw_shield_policy *policy,
					     const __u32 *source, __u32 service)
{
	const struct rw_single_rate *rate = &policy->learnt;
	struct rw_address prefix;
	__u64 hash = source_hash(set, policy, source, &prefix, PROVEN_SOURCE(service)), found, *own;
	struct rw_rated *bucket = proven_bucket(hash);
	__u32 now = now_coarse(), tag = rated_tag(hash);

	if (!bucket)
		return false;
	found = rated_find(bucket, tag, rate->window, now);
	own = rated_own(bucket, found);
	if (own &&
	    is_fresh(READ_ONCE(*own), now, PROVEN_SOURCE_SECONDS, 2 * rate->window + rate->gap))
		return within_rated(own, tag, rate, now);
	if (!is_learnt(set, policy, source))
		return false;
	if (own)
		rated_renew(own, tag, now + rate->gap);
	else
		rated_take(bucket, found, tag, now + rate->gap);
	return true;
}

/* Of the SYN or RST in scratch. NONE: it is not ours to answer. */
static __always_inline enum rw_reason answer_to(struct xdp_md *ctx, const struct rw_settings *set,
						const struct rw_shield_policy *policy,
						const struct rw_scratch *s, __u32 service)
{
	const struct rw_tuple *t = &s->tuple;
	enum rw_syn how = policy->syn & RW_SYN_KIND;
	struct rw_address prefix;

	if (t->tcp_flags & TCP_RST) {
		if (how == RW_SYN_PROXY || !was_challenged(t, sequence_of(ctx, s)))
			return RW_REASON_NONE;
		prove(policy, connection_hash(set, t));
		prove(policy, source_hash(set, policy, t->saddr, &prefix, PROVEN_SOURCE(service)));
		return RW_REASON_CHALLENGE_MET;
	}
	if (how == RW_SYN_PROXY)
		return RW_REASON_SYN_ANSWERED;
	if (is_connection_proven(set, policy, t))
		return RW_REASON_NONE;
	if (how == RW_SYN_BACKEND)
		return RW_REASON_SYN_ANSWERED;
	return is_source_proven(set, policy, t->saddr, service) ? RW_REASON_NONE :
								  RW_REASON_SYN_CHALLENGED;
}

static __always_inline void count_answer(__u32 service, const struct rw_scratch *s,
					 enum rw_reason reason)
{
	struct rw_arrivals *arrived = bpf_map_lookup_elem(&arrivals, &service);

	if (!arrived)
		return;
	if (reason == RW_REASON_SYN_CHALLENGED || reason == RW_REASON_SYN_ANSWERED)
		arrived->syns_answered++;
	else if (reason == RW_REASON_CHALLENGE_MET)
		arrived->answers_met++;
	/* What refuses a SYN and ACK has no ACK (RFC 9293 section 3.10.7.3), as few others. */
	else if ((s->tuple.tcp_flags & (TCP_RST | TCP_ACK)) == TCP_RST)
		arrived->answers_failed++;
}

/* Whether a SYN belongs to a flow that may go on. */
static __always_inline bool holds_place(__u32 place, __u64 key)
{
	struct rw_flow *flow = place ? flow_at(place) : NULL;
	__u8 state = key_state(key);

	if (!flow || state == RW_FLOW_CLOSED)
		return false;
	/* The same as in starts_anew(). */
	if (state == RW_FLOW_RESET && (READ_ONCE(flow->iface) & RW_FLOW_SHIFTED))
		return (__s32)(now_seconds() - READ_ONCE(flow->seen)) < PROBATION_TICKS;
	return state > RW_FLOW_SYN_ACK || !(READ_ONCE(flow->iface) & RW_FLOW_SHIFTED);
}

/* The same, in the service's mode. Those who come with an attack are not learnt. `place`, `key`: of its
 * nat flow, if any. */
__noinline __u32 challenged(struct xdp_md *ctx, __u32 service, __u32 place, __u64 key)
{
	struct rw_shield_policy *policy = bpf_map_lookup_elem(&shield_policies, &service);
	__u32 *last = bpf_map_lookup_elem(&shield_exceeded, &service);
	__u32 *armed = bpf_map_lookup_elem(&shield_armed, &service);
	struct rw_shield_control *control = RW_ONLY(shield_control);
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_scratch *s = RW_ONLY(scratch);
	enum rw_reason reason;
	__u32 now;

	if (!policy || !last || !armed || !control || !set || !s)
		return RW_REASON_NONE;
	reason = answer_to(ctx, set, policy, s, service);
	if (reason == RW_REASON_SYN_ANSWERED && holds_place(place, key))
		return RW_REASON_NONE;
	if (dry && reason)
		trace.shield_reason = reason;
	else if (!dry)
		count_answer(service, s, reason);
	now = now_seconds();
	if (!dry && reason != RW_REASON_CHALLENGE_MET && reason && now < *armed &&
	    READ_ONCE(*last) != now)
		WRITE_ONCE(*last, now);
	if (!reason || mode_now(control, policy->mode) == RW_SHIELD_ENFORCE)
		return reason;
	count_observed(reason);
	return RW_REASON_NONE;
}

#endif
