/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Budgets of single sources and flows, each a word with its owner's tag (abi/shield.h), in buckets
 * that the owner's hash chooses. An owner that meets another with its tag shares that budget.
 */
#ifndef RINGWAY_RATED_H
#define RINGWAY_RATED_H

#include "budget.bpf.h"
#include "gateway/hash.bpf.h"

/* No limit for this long: sources are learnt again. */
#define PEACE_SECONDS 10

/* Seconds << RW_COARSE_SHIFT. */
static __always_inline __u32 now_coarse(void)
{
	return (__u32)(now_fine() >> (RW_FINE_SHIFT - RW_COARSE_SHIFT));
}

static __always_inline __u64 rated_word(__u32 tag, __u32 due)
{
	return (__u64)tag << 32 | due;
}

/* Whether one more packet conforms; if so, it counts. Who loses the race again and again is over the
 * rate, who has lost the place is not. */
__noinline bool within_rated(__u64 *word, __u32 tag, const struct rw_single_rate *rate, __u32 now)
{
	if (!word || !rate)
		return true;
	for (int i = 0; i < BUDGET_TRIES; i++) {
		__u64 was = READ_ONCE(*word);
		__u32 next = (__u32)was;

		if (was >> 32 != tag)
			return true;
		/* Silent for long, or the clock went back. */
		if ((__s32)(next - now) < 0 || next - now > 2 * rate->window + rate->gap)
			next = now;
		next += rate->gap;
		if (next - now > rate->window)
			return false;
		if (dry || __sync_val_compare_and_swap(word, was, rated_word(tag, next)) == was)
			return true;
	}
	return false;
}

/* For the verifier, to which a jump is two programs: all ones if a < b, both below 2^63. */
static __always_inline __u64 if_less(__u64 a, __u64 b)
{
	return -((a - b) >> 63);
}

/* In a bucket, each 1 + its number or 0: the owner's word, and, in the upper half, the one that has
 * been silent longest and is not in use. */
__noinline __u64 rated_find(const struct rw_rated *bucket, __u32 tag, __u32 window, __u32 now)
{
	__u64 own = 0, idlest = 0;

	if (!bucket)
		return 0;
	for (__u64 i = 0; i < RW_BUCKET_RATED; i++) {
		__u64 word = READ_ONCE(bucket->words[i]);
		__u32 idle = (now - (__u32)word + window) | if_less(word >> 32, 1);
		__u64 mine = if_less((word >> 32) ^ tag, 1), candidate;

		own = (own & ~mine) | ((i + 1) & mine);
		/* One that is in use is less than its window ahead. */
		candidate = ((__u64)idle << 4 | (i + 1)) & if_less(window, idle);
		idlest ^= (idlest ^ candidate) & if_less(idlest, candidate);
	}
	return own | (idlest & 15) << 32;
}

static __always_inline __u64 *rated_own(struct rw_rated *bucket, __u64 found)
{
	return (__u32)found ? &bucket->words[((__u32)found - 1) % RW_BUCKET_RATED] : NULL;
}

/* The owner's word, or NULL: without a call, where there is mostly none. */
static __always_inline __u64 *rated_tagged(struct rw_rated *bucket, __u32 tag)
{
	__u64 own = 0;

	/* Of two with this tag, for which two CPUs have raced, the last, as rated_find() does. */
	for (__u64 i = 0; i < RW_BUCKET_RATED; i++) {
		__u64 mine = if_less((READ_ONCE(bucket->words[i]) >> 32) ^ tag, 1);

		own = (own & ~mine) | ((i + 1) & mine);
	}
	return own ? &bucket->words[(own - 1) % RW_BUCKET_RATED] : NULL;
}

/* Takes the idlest place, and returns 1 + its number; 0: there is none. */
static __always_inline __u32 rated_take(struct rw_rated *bucket, __u64 found, __u32 tag, __u32 due)
{
	__u32 number = (__u32)(found >> 32);
	__u64 *word = &bucket->words[(number - 1) % RW_BUCKET_RATED], was = READ_ONCE(*word);

	if (dry || !number || __sync_val_compare_and_swap(word, was, rated_word(tag, due)) != was)
		return 0;
	return number;
}

/* Notes that the owner was seen, unless it is ahead of its rate. */
static __always_inline bool rated_renew(__u64 *word, __u32 tag, __u32 now)
{
	__u64 was = READ_ONCE(*word);

	return !dry && was >> 32 == tag && (__s32)((__u32)was - now) < 0 &&
	       __sync_val_compare_and_swap(word, was, rated_word(tag, now)) == was;
}

/* Of a hash; the other half chooses the bucket. Not 0, which is free. */
static __always_inline __u32 rated_tag(__u64 hash)
{
	return (__u32)(hash >> 32) ?: 1;
}

/* Of a source's prefix and another word, by the keys of the flow tables. */
static __always_inline __u64 source_hash(const struct rw_settings *set,
					 const struct rw_shield_policy *policy, const __u32 *addr,
					 struct rw_address *prefix, __u64 word)
{
	copy_addr(prefix->addr, addr);
	if (mapped_v4(addr)) {
		prefix->addr[3] &= policy->prefix4;
	} else {
		for (int i = 0; i < 4; i++)
			prefix->addr[i] &= policy->prefix[i];
	}
	return hash_end(keyed_client(set, prefix->addr, word));
}

/* What a source was learnt by. The sender of a datagram may be forged, though its answer goes
 * elsewhere: it is learnt for its service alone, and beside those that have shaken hands. */
#define LEARNT_BY_TCP (1ull << 63)
#define LEARNT_BY_UDP(service) (1ull << 62 | (service))

static __always_inline struct rw_rated *learnt_bucket(__u64 hash, __u64 by)
{
	__u32 place = (__u32)hash % RW_LEARNT_UDP_BUCKETS;

	if (by == LEARNT_BY_TCP)
		place = RW_LEARNT_UDP_BUCKETS +
			(__u32)hash % (RW_LEARNT_BUCKETS - RW_LEARNT_UDP_BUCKETS);
	return bpf_map_lookup_elem(&learnt_sources, &place);
}

/* Learns the source of a flow that is confirmed. In peace only: who comes with an attack is not
 * learnt. */
__noinline __u32 learn_source(const struct rw_address *source, __u32 service, __u32 udp)
{
	struct rw_shield_policy *policy = bpf_map_lookup_elem(&shield_policies, &service);
	__u32 *exceeded = bpf_map_lookup_elem(&shield_exceeded, &service);
	__u64 by = udp ? LEARNT_BY_UDP(service) : LEARNT_BY_TCP, hash, found;
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_address prefix;
	struct rw_rated *bucket;
	__u32 now;

	if (!source || !policy || !exceeded || !set ||
	    !(policy->learns & (udp ? RW_LEARN_UDP : RW_LEARN_TCP)))
		return 0;
	if (*exceeded && now_seconds() - *exceeded < PEACE_SECONDS)
		return 0;
	hash = source_hash(set, policy, source->addr, &prefix, by);
	bucket = learnt_bucket(hash, by);
	if (!bucket)
		return 0;
	now = now_coarse();
	found = rated_find(bucket, rated_tag(hash), policy->learnt.window, now);
	if (!(__u32)found)
		return rated_take(bucket, found, rated_tag(hash), now);
	return rated_renew(rated_own(bucket, found), rated_tag(hash), now);
}

#endif
