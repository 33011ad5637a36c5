/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether an address is in a list of prefixes: one that the generation was made with (abi/shield.h
 * has the layout), or one of those that come and go at run time.
 */
#ifndef RINGWAY_LISTS_H
#define RINGWAY_LISTS_H

#include "gateway/dry.bpf.h"
#include "maps.bpf.h"

#define LIST_STEPS 20 /* halvings of at most 2^20 leaves */
#define NOT_LISTED 0xffffffff

/* Of these leaves the last one that begins at or before the address. `begins(number)`: -1 where
 * there is no such leaf, 0 where it begins behind the address, 1 where it does not. */
#define LIST_SEARCH(low, high, begins)                  \
	for (int step = 0; step < LIST_STEPS; step++) { \
		__u32 middle;                           \
		int before;                             \
                                                        \
		if (low >= high)                        \
			break;                          \
		middle = low + ((high - low + 1) >> 1); \
		before = begins(middle);                \
		if (before < 0)                         \
			return NOT_LISTED;              \
		if (before)                             \
			low = middle;                   \
		else                                    \
			high = middle - 1;              \
		verifier_forget(low, step);             \
		verifier_forget(high, step);            \
	}

/* The leaves that an address at this distance from the base may be in. */
static __always_inline bool list_leaves(const volatile struct rw_list_section *section, __u64 x,
					__u32 *low, __u32 *high)
{
	__u64 slot = x >> (section->shift & 63);
	__u32 at = section->index + (__u32)slot;
	struct rw_list_slot *found;

	if (slot >= section->slots)
		return false;
	found = bpf_map_lookup_elem(&list_index, &at);
	if (!found)
		return false;
	*low = found->first;
	*high = found->last;
	return true;
}

static __always_inline struct rw_list_v4 *leaf4(const volatile struct rw_list_section *section,
						__u32 number)
{
	__u32 place = section->leaf + number;

	return bpf_map_lookup_elem(&list_v4, &place);
}

static __always_inline int begins4(const volatile struct rw_list_section *section, __u32 number,
				   __u32 addr)
{
	struct rw_list_v4 *leaf = leaf4(section, number);

	return leaf ? leaf->start[0] <= addr : -1;
}

/* The list that the address (host byte order) is in, by number. */
static __always_inline __u32 listed4(const volatile struct rw_list_section *section, __u32 addr)
{
	__u32 low = 0, high = 0, last = -1, len;
	struct rw_list_v4 *leaf;

	if (addr < section->base || !list_leaves(section, addr - section->base, &low, &high))
		return NOT_LISTED;
#define BEGINS(number) begins4(section, number, addr)
	LIST_SEARCH(low, high, BEGINS)
#undef BEGINS
	leaf = leaf4(section, low);
	if (!leaf)
		return NOT_LISTED;
	/* A difference of 64 bits is negative where start <= addr. No jump to predict. */
	for (int i = 0; i < RW_LIST_V4_PREFIXES; i++)
		last += (__u32)(((__u64)leaf->start[i] - addr - 1) >> 63);
	barrier_var(last);
	if (last >= RW_LIST_V4_PREFIXES)
		return NOT_LISTED;
	len = leaf->length[last];
	if (len > 32 || (__u64)(leaf->start[last] ^ addr) >> (32 - len))
		return NOT_LISTED;
	return leaf->list[last];
}

static __always_inline struct rw_list_v6 *leaf6(const volatile struct rw_list_section *section,
						__u32 number)
{
	__u32 place = section->leaf + number;

	return bpf_map_lookup_elem(&list_v6, &place);
}

static __always_inline bool not_above(const __u64 *start, __u64 high, __u64 low)
{
	return start[0] < high || (start[0] == high && start[1] <= low);
}

static __always_inline int begins6(const volatile struct rw_list_section *section, __u32 number,
				   __u64 high, __u64 low)
{
	struct rw_list_v6 *leaf = leaf6(section, number);

	return leaf ? not_above(leaf->start[0], high, low) : -1;
}

/* Whether the first `len` bits agree. */
static __always_inline bool agree6(const __u64 *start, __u64 high, __u64 low, __u32 len)
{
	if (len <= 64)
		return !len || !((start[0] ^ high) >> (64 - len));
	return start[0] == high && !((start[1] ^ low) >> ((128 - len) & 63));
}

static __always_inline __u32 listed6(const volatile struct rw_list_section *section, __u64 a_high,
				     __u64 a_low)
{
	__u32 low = 0, high = 0, last = 0, len;
	struct rw_list_v6 *leaf;

	if (a_high < section->base || !list_leaves(section, a_high - section->base, &low, &high))
		return NOT_LISTED;
#define BEGINS(number) begins6(section, number, a_high, a_low)
	LIST_SEARCH(low, high, BEGINS)
#undef BEGINS
	leaf = leaf6(section, low);
	if (!leaf)
		return NOT_LISTED;
	for (__u32 step = 4; step; step >>= 1) {
		__u32 at = last + step;

		barrier_var(at);
		if (at < RW_LIST_V6_PREFIXES && not_above(leaf->start[at], a_high, a_low))
			last = at;
		verifier_forget(last, low);
		/* 6.1 believes that the upper half is unknown. */
		last &= 7;
	}
	if (last >= RW_LIST_V6_PREFIXES || !not_above(leaf->start[last], a_high, a_low))
		return NOT_LISTED;
	len = leaf->length[last];
	if (len > 128 || !agree6(leaf->start[last], a_high, a_low, len))
		return NOT_LISTED;
	return leaf->list[last];
}

static __always_inline __u64 half(const __u32 *addr)
{
	return (__u64)bpf_ntohl(addr[0]) << 32 | bpf_ntohl(addr[1]);
}

/* Not inlined, so that the searches are verified once. */
__noinline __u32 blocked6(__u64 high, __u64 low)
{
	return listed6(&shield.block6, high, low);
}

__noinline __u32 allowed6(__u64 high, __u64 low)
{
	return listed6(&shield.allow6, high, low);
}

static __always_inline __u32 blocked(const __u32 *addr, bool v6)
{
	if (v6)
		return shield.block6.leaves ? blocked6(half(addr), half(addr + 2)) : NOT_LISTED;
	return shield.block4.leaves ? listed4(&shield.block4, bpf_ntohl(addr[3])) : NOT_LISTED;
}

static __always_inline __u32 allowed(const __u32 *addr, bool v6)
{
	if (v6)
		return shield.allow6.leaves ? allowed6(half(addr), half(addr + 2)) : NOT_LISTED;
	return shield.allow4.leaves ? listed4(&shield.allow4, bpf_ntohl(addr[3])) : NOT_LISTED;
}

/* Whether the longest prefix with this address is still valid. Control gives a prefix within
 * another the later end of both. */
static __always_inline bool at_runtime(void *trie, const __u32 *addr, bool v6)
{
	struct rw_shield_prefix key = { .len = 128 };
	struct rw_shield_runtime *found;

	copy_addr(key.addr, addr);
	found = bpf_map_lookup_elem(trie, &key);
	return found && found->v6 == v6 && now_seconds() < found->until;
}

#endif
