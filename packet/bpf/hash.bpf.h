/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Multilinear hashing: the sum of 64-bit words, each times a key of its own.
 * The products do not wait for one another, which a chained hash's do. With
 * random keys two tuples collide by chance only, whoever chooses them: the
 * flow tables take them from the settings. The ring's are fixed, so that every
 * node chooses alike.
 */
#ifndef RINGWAY_HASH_H
#define RINGWAY_HASH_H

#include "common.bpf.h"

#define HASH_FINAL 0xd6e8feb86659fd93ull

static __always_inline __u64 hash_addr(__u64 key0, __u64 key1, const __u32 *addr)
{
	return key0 * ((__u64)addr[0] << 32 | addr[1]) + key1 * ((__u64)addr[2] << 32 | addr[3]);
}

/* Last mixing, so that both halves depend on every bit. */
static __always_inline __u64 hash_end(__u64 h)
{
	h = (h ^ (h >> 32)) * HASH_FINAL;
	return h ^ (h >> 32);
}

#endif
