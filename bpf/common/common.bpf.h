/* SPDX-License-Identifier: GPL-2.0-only */
/* Kernel headers and the few helpers that every eBPF file needs. */
#ifndef RINGWAY_COMMON_H
#define RINGWAY_COMMON_H

#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "abi/abi.h"

/* Set by capture.bpf.c, which is the gateway compiled again. A compile-time constant: other
 * objects have no code for captures. */
#ifndef RW_CAPTURING
#define RW_CAPTURING 0
#endif
static const bool capturing = RW_CAPTURING;

#define RW_MAP(NAME, TYPE, ENTRIES, KEY, VALUE, FLAGS) \
	struct {                                       \
		__uint(type, TYPE);                    \
		__uint(max_entries, ENTRIES);          \
		__uint(map_flags, FLAGS);              \
		__type(key, KEY);                      \
		__type(value, VALUE);                  \
	} NAME SEC(".maps")

/* One load, not re-read or torn by the compiler. */
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/* x86 alone keeps loads in order; elsewhere a seqlock's reader needs barriers. */
#ifdef __TARGET_ARCH_x86
#define WEAK_MEMORY 0
#else
#define WEAK_MEMORY 1
#endif

/* Loads the word that guards the fields beside it: no earlier load moves after it, and no later
 * load before it. */
static __always_inline __u64 read_ordered(__u64 *word)
{
	__u64 value;

	if (WEAK_MEMORY)
		return __sync_fetch_and_or(word, 0);
	barrier();
	value = READ_ONCE(*word);
	barrier();
	return value;
}

/* Orders loads before it and after it. `own`: a word that only this CPU uses. */
static __always_inline void read_fence(void *own)
{
	if (WEAK_MEMORY)
		__sync_fetch_and_or((__u64 *)own, 0);
	barrier();
}

/* Leaves x unchanged, but hides its value (and its relation to y) from the verifier, so that paths
 * of a loop that differ only in x count as one. 6.1 treats every known number as significant. */
#define verifier_forget(x, y)          \
	do {                           \
		(x) ^= (typeof(x))(y); \
		barrier_var(x);        \
		(x) ^= (typeof(x))(y); \
	} while (0)

/* Looks up element 0 of a one-element array. */
#define RW_ONLY(map)                                \
	({                                          \
		__u32 zero = 0;                     \
		bpf_map_lookup_elem(&(map), &zero); \
	})

static __always_inline void copy_addr(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline bool same_addr(const __u32 *a, const __u32 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]));
}

/* IPv4 as ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2). */
static __always_inline void map_addr4(__u32 *to, __be32 addr)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = addr;
}

static __always_inline bool mapped_v4(const __u32 *addr)
{
	return !(addr[0] | addr[1] | (addr[2] ^ bpf_htonl(0xffff)));
}

/* By 16-bit words: a MAC address in a packet or map is 2-byte aligned. */
static __always_inline void copy_mac(__u8 *to, const __u8 *from)
{
	__u16 *t = (__u16 *)to;
	const __u16 *f = (const __u16 *)from;

	t[0] = f[0];
	t[1] = f[1];
	t[2] = f[2];
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]));
}

#endif
