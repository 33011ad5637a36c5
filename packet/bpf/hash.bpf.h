/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A multiply-and-shift hash over 64-bit words. The flow tables start it from a
 * random seed, so that nobody outside can aim at one bucket; the ring starts
 * it from a fixed one, so that every node chooses alike.
 */
#ifndef RINGWAY_HASH_H
#define RINGWAY_HASH_H

#include "common.bpf.h"

static __always_inline __u64 hash_word(__u64 h, __u64 word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ull;
	return h ^ (h >> 32);
}

static __always_inline __u64 hash_addr(__u64 h, const __u32 *addr)
{
	h = hash_word(h, (__u64)addr[0] << 32 | addr[1]);
	return hash_word(h, (__u64)addr[2] << 32 | addr[3]);
}

/* Last mixing, so that both halves depend on every bit. */
static __always_inline __u64 hash_end(__u64 h)
{
	h *= 0xd6e8feb86659fd93ull;
	return h ^ (h >> 29);
}

#endif
