/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Challenges: without state, of a keyed hash (SipHash-2-4, Aumasson and Bernstein) of the SYN's
 * addresses and ports and of the time. A challenge is the acknowledgement number of our answer, so
 * that the sender's RST has it as its sequence number (RFC 9293 section 3.10.7.3). Its lowest bit
 * tells in which of two periods it was made; whoever guesses needs 2^31 tries, half as many while two
 * keys are known.
 */
#ifndef RINGWAY_CHALLENGE_H
#define RINGWAY_CHALLENGE_H

#include "cookie.bpf.h"
#include "proven.bpf.h"

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

static __always_inline bool is_learnt(const struct rw_settings *set,
				      const struct rw_shield_policy *policy, const __u32 *source)
{
	struct rw_address prefix;
	__u64 hash = source_hash(set, policy, source, &prefix, LEARNT_BY_TCP);
	struct rw_rated *bucket = learnt_bucket(hash, LEARNT_BY_TCP);

	return bucket && rated_tagged(bucket, rated_tag(hash));
}

/* Notes a source that was learnt as one that is proven: of what it may send, this SYN is the first. */
static __always_inline void prove_learnt(const struct rw_single_rate *rate, struct rw_rated *bucket,
					 __u32 tag)
{
	__u32 now = now_coarse();
	__u64 found = rated_find(bucket, tag, rate->window, now), *own = rated_own(bucket, found);

	if (own)
		rated_renew(own, tag, now + rate->gap);
	else
		rated_take(bucket, found, tag, now + rate->gap);
}

/* Whether a SYN passes: its connection is proven; or its source was proven or learnt, and is within
 * the rate of those. */
static __always_inline bool is_proven(const struct rw_settings *set,
				      const struct rw_shield_policy *policy,
				      const struct rw_tuple *t, __u32 service)
{
	const struct rw_single_rate *rate = &policy->learnt;
	struct rw_address prefix;
	__u64 hash = source_hash(set, policy, t->saddr, &prefix, PROVEN_SOURCE(service)), *own;
	struct rw_rated *bucket = proven_bucket(hash);
	__u32 now = now_coarse(), tag = rated_tag(hash);

	if (!bucket)
		return false;
	own = proven_source(bucket, tag, rate, now);
	/* Who proves a connection proves its source. */
	if (own)
		return is_connection_proven(set, t) || within_rated(own, tag, rate, now);
	if (!is_learnt(set, policy, t->saddr))
		return false;
	prove_learnt(rate, bucket, tag);
	return true;
}

#endif
