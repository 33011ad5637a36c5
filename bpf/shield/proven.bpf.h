/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who has answered us: met a challenge, or brought back a cookie. Bots can do that too, in the middle
 * of an attack, so these sources are kept apart from those that were learnt in peace, for a while and
 * for one service each. The rates of services and addresses spare who brought a cookie, each within the
 * rate of those. Not who met a challenge: a host that is there does so, whoever asked in its name.
 */
#ifndef RINGWAY_PROVEN_H
#define RINGWAY_PROVEN_H

#include "rated.bpf.h"

/* A connection whose SYN passes, and a source whose SYNs do, after a challenge was met. */
#define PROVEN_CONNECTION_SECONDS 64
#define PROVEN_SOURCE_SECONDS 500 /* the coarse clock tells 512 apart */
#define PROVEN_SOURCE(service) (1ull << 61 | (service))
#define PROVEN_BY_COOKIE(service) (1ull << 60 | (service))

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
						 const struct rw_tuple *t)
{
	__u64 hash = connection_hash(set, t), *own;
	struct rw_rated *bucket = proven_bucket(hash);

	if (!bucket)
		return false;
	own = rated_tagged(bucket, rated_tag(hash));
	return own && is_fresh(READ_ONCE(*own), now_coarse(), PROVEN_CONNECTION_SECONDS, 0);
}

/* The source's word, or NULL: it has not answered us lately. */
static __always_inline __u64 *proven_source(struct rw_rated *bucket, __u32 tag,
					    const struct rw_single_rate *rate, __u32 now)
{
	__u64 *own = rated_tagged(bucket, tag);

	return own && is_fresh(READ_ONCE(*own), now, PROVEN_SOURCE_SECONDS,
			       2 * rate->window + rate->gap) ?
		       own :
		       NULL;
}

/* Whether the source has brought back a cookie lately, and is within the rate of those that have.
 * `unknown`: of one about which nothing is known. */
static __always_inline bool within_proven(const struct rw_settings *set,
					  const struct rw_shield_policy *policy,
					  const __u32 *source, __u32 service, bool unknown)
{
	struct rw_address prefix;
	__u64 hash = source_hash(set, policy, source, &prefix, PROVEN_BY_COOKIE(service)), *own;
	struct rw_rated *bucket = proven_bucket(hash);
	__u32 now = now_coarse(), tag = rated_tag(hash);

	own = bucket ? proven_source(bucket, tag, &policy->learnt, now) : NULL;
	return own ? within_rated(own, tag, &policy->learnt, now) : unknown;
}

/* Notes that the source has answered us, in one of the two ways. */
static __always_inline void prove_source(const struct rw_settings *set,
					 const struct rw_shield_policy *policy, const __u32 *source,
					 __u64 how)
{
	struct rw_address prefix;

	prove(policy, source_hash(set, policy, source, &prefix, how));
}

#endif
