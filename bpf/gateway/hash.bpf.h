/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Two hashes of a packet's addresses and ports.
 *
 * keyed_...: for the flow tables. NH (RFC 4418 section 5.2.2): a key is added to
 * each of two 32-bit words, the pair is multiplied, and the products are summed. With
 * random keys two inputs collide with a probability of 2^-32 at most, even if an
 * attacker chooses them. The keys come from the settings.
 *
 * hash_addr: for the ring. The sum of 64-bit words, each times a key. Its keys are
 * fixed, so that every node chooses alike; anyone can make two flows collide.
 * Do not change it: another hash would move flows at an upgrade.
 *
 * In both the products are independent, unlike in a chained hash.
 */
#ifndef RINGWAY_HASH_H
#define RINGWAY_HASH_H

#include "common/common.bpf.h"

#define HASH_FINAL 0xd6e8feb86659fd93ull

static __always_inline __u64 hash_addr(__u64 key0, __u64 key1, const __u32 *addr)
{
	return key0 * ((__u64)addr[0] << 32 | addr[1]) + key1 * ((__u64)addr[2] << 32 | addr[3]);
}

/* Two words, 32 bits of the key to each. */
static __always_inline __u64 nh_pair(__u64 key, __u32 a, __u32 b)
{
	return (__u64)(a + (__u32)key) * (__u32)(b + (__u32)(key >> 32));
}

static __always_inline __u64 nh_addr(const __u64 *key, const __u32 *addr)
{
	return nh_pair(key[0], addr[0], addr[1]) + nh_pair(key[1], addr[2], addr[3]);
}

/* An address and another word. A node that took its flows over from a program
 * before RW_HASH_NH uses that program's hash to find them. */
static __always_inline __u64 keyed_client(const struct rw_settings *set, const __u32 *addr,
					  __u64 word)
{
	const __u64 *k = set->keys;

	if (set->hash == RW_HASH_NH)
		return nh_addr(k, addr) + nh_pair(k[2], (__u32)word, (__u32)(word >> 32));
	return hash_addr(k[0], k[1], addr) + k[2] * word;
}

/* Both addresses and another word. */
static __always_inline __u64 keyed_tuple(const struct rw_settings *set, const struct rw_tuple *t,
					 __u64 word)
{
	const __u64 *k = set->keys;

	if (set->hash == RW_HASH_NH)
		return nh_addr(k, t->saddr) + nh_addr(k + 2, t->daddr) +
		       nh_pair(k[4], (__u32)word, (__u32)(word >> 32));
	return hash_addr(k[0], k[1], t->saddr) + hash_addr(k[2], k[3], t->daddr) + k[4] * word;
}

/* Last mixing, so that both halves depend on every bit. */
static __always_inline __u64 hash_end(__u64 h)
{
	h = (h ^ (h >> 32)) * HASH_FINAL;
	return h ^ (h >> 32);
}

#endif
