/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The Internet checksum, incremental as in RFC 1624: HC' = ~(~HC + ~m + m').
 * Sums are kept in 64 bits and folded once; words are in network byte order
 * throughout, which one's complement addition does not mind (RFC 1071).
 */
#ifndef RINGWAY_CHECKSUM_H
#define RINGWAY_CHECKSUM_H

#include "common.bpf.h"

static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/* The difference of the sum when a word changes from `old` to `new`. */
static __always_inline __u64 csum_change(__u32 old, __u32 new)
{
	return (__u64)(__u32)~old + new;
}

static __always_inline __u64 csum_change_addr(const __u32 *old, const __u32 *new)
{
	return csum_change(old[0], new[0]) + csum_change(old[1], new[1]) +
	       csum_change(old[2], new[2]) + csum_change(old[3], new[3]);
}

/* 16-bit words: ~old must not carry ones into the upper half. */
static __always_inline __u64 csum_change16(__u16 old, __u16 new)
{
	return (__u64)(__u16)~old + new;
}

static __always_inline __u16 csum_apply(__u16 check, __u64 change)
{
	return ~csum_fold((__u16)~check + change);
}

/* Sum of `words` 32-bit words, a constant. */
static __always_inline __u64 csum_words(const __u32 *word, int words)
{
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* Pseudo-header of TCP, UDP and ICMPv6 (RFC 9293, RFC 8200 section 8.1). The
 * mapped prefix of an IPv4 address is not part of it. */
static __always_inline __u64 csum_pseudo(const __u32 *saddr, const __u32 *daddr, bool v6,
					 __u8 proto, __u16 l4_len)
{
	__u64 sum = (__u64)saddr[3] + daddr[3] + bpf_htons(proto) + bpf_htons(l4_len);

	if (v6)
		sum += csum_words(saddr, 3) + csum_words(daddr, 3);
	return sum;
}

#endif
