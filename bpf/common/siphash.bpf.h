/* SPDX-License-Identifier: GPL-2.0-only */
/* SipHash-2-4 (Aumasson and Bernstein, 2012), of what a SYN is recognised by. */
#ifndef RINGWAY_SIPHASH_H
#define RINGWAY_SIPHASH_H

#include "common.bpf.h"

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate(__u64 x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static __always_inline void sip_round(struct siphash *h)
{
	h->v0 += h->v1;
	h->v2 += h->v3;
	h->v1 = rotate(h->v1, 13) ^ h->v0;
	h->v3 = rotate(h->v3, 16) ^ h->v2;
	h->v0 = rotate(h->v0, 32) + h->v3;
	h->v2 += h->v1;
	h->v3 = rotate(h->v3, 21) ^ h->v0;
	h->v1 = rotate(h->v1, 17) ^ h->v2;
	h->v2 = rotate(h->v2, 32);
}

static __always_inline void sip_word(struct siphash *h, __u64 word)
{
	h->v3 ^= word;
	sip_round(h);
	sip_round(h);
	h->v0 ^= word;
}

/* Of both addresses and ports, in network byte order, of the period, and of the message's last word,
 * whose upper byte is its length (SipHash section 2.2). */
__noinline __u64 syn_hash(const struct rw_tuple *t, __u64 key0, __u64 key1, __u32 period,
			  __u64 last)
{
	struct siphash h = {
		.v0 = key0 ^ 0x736f6d6570736575ull,
		.v1 = key1 ^ 0x646f72616e646f6dull,
		.v2 = key0 ^ 0x6c7967656e657261ull,
		.v3 = key1 ^ 0x7465646279746573ull,
	};

	if (!t)
		return 0;
	sip_word(&h, t->saddr[0] | (__u64)t->saddr[1] << 32);
	sip_word(&h, t->saddr[2] | (__u64)t->saddr[3] << 32);
	sip_word(&h, t->daddr[0] | (__u64)t->daddr[1] << 32);
	sip_word(&h, t->daddr[2] | (__u64)t->daddr[3] << 32);
	sip_word(&h, t->sport_be | (__u32)t->dport_be << 16 | (__u64)period << 32);
	sip_word(&h, last);
	h.v2 ^= 0xff;
	sip_round(&h);
	sip_round(&h);
	sip_round(&h);
	sip_round(&h);
	return h.v0 ^ h.v1 ^ h.v2 ^ h.v3;
}

#endif
