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

/* Of these leaves the last one that begins at or before the address. `begins(place)`: -1 where
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

/* An address, in host byte order; of IPv4 the lower half alone. */
struct listable {
	__u64 high;
	__u64 low;
	bool v6;
};

/* The part of the index for an address, or NOT_INDEXED. */
#define NOT_INDEXED (~0ull)
static __always_inline __u64 index_part(const volatile struct rw_list_span *span,
					const struct listable *addr)
{
	__u64 low = addr->low - span->base[1], high, under;
	__u32 shift = span->shift;

	if (!addr->v6)
		return addr->low < span->base[1] ? NOT_INDEXED : low >> (shift & 31);
	under = addr->low < span->base[1];
	high = addr->high - span->base[0];
	if (addr->high < span->base[0] || high < under)
		return NOT_INDEXED;
	high -= under;
	if (shift >= 64)
		return high >> (shift & 63);
	return high >> shift ? NOT_INDEXED : high << 1 << (63 - shift) | low >> shift;
}

/* The slot for an address; false: nothing there has it. */
static __always_inline bool index_slot(const volatile struct rw_list_span *span,
				       const struct listable *addr, __u64 *slot)
{
	__u64 part = index_part(span, addr), *found;
	__u32 at = span->index + (__u32)(part >> 4);

	if (part >> 4 >= span->slots)
		return false;
	found = bpf_map_lookup_elem(&list_index, &at);
	if (!found)
		return false;
	*slot = *found;
	return *found >> RW_SLOT_PARTS >> (part & 15) & 1;
}

/* The leaves that an address may be in; false: it is in none. */
static __always_inline bool list_leaves(const volatile struct rw_list_section *section,
					const struct listable *addr, __u32 *low, __u32 *high)
{
	struct rw_list_span *nested;
	__u32 number;
	__u64 slot;

	if (!index_slot(&section->span, addr, &slot))
		return false;
	if (slot & RW_SLOT_NESTED) {
		number = slot & RW_SLOT_NUMBER;
		nested = bpf_map_lookup_elem(&list_spans, &number);
		if (!nested || !index_slot(nested, addr, &slot))
			return false;
	}
	*low = slot & RW_SLOT_NUMBER;
	*high = slot >> RW_SLOT_LAST & RW_SLOT_NUMBER;
	return true;
}

static __always_inline int begins4(__u32 place, __u32 addr)
{
	struct rw_list_v4 *leaf = bpf_map_lookup_elem(&list_v4, &place);

	return leaf ? leaf->start[0] <= addr : -1;
}

/* The list that the address is in, if it is in one of these leaves. */
static __always_inline __u32 search4(__u32 low, __u32 high, __u32 addr)
{
	__u32 last = -1, len;
	struct rw_list_v4 *leaf;

#define BEGINS(place) begins4(place, addr)
	LIST_SEARCH(low, high, BEGINS)
#undef BEGINS
	leaf = bpf_map_lookup_elem(&list_v4, &low);
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

static __always_inline bool not_above(const __u64 *start, __u64 high, __u64 low)
{
	return start[0] < high || (start[0] == high && start[1] <= low);
}

static __always_inline int begins6(__u32 place, __u64 high, __u64 low)
{
	struct rw_list_v6 *leaf = bpf_map_lookup_elem(&list_v6, &place);

	return leaf ? not_above(leaf->start[0], high, low) : -1;
}

/* Whether the first `len` bits agree. */
static __always_inline bool agree6(const __u64 *start, __u64 high, __u64 low, __u32 len)
{
	if (len <= 64)
		return !len || !((start[0] ^ high) >> (64 - len));
	return start[0] == high && !((start[1] ^ low) >> ((128 - len) & 63));
}

/* The list that the address is in, if it is in one of these leaves. Not inlined, so that it is
 * verified once. */
__noinline __u32 search6(__u32 low, __u32 high, __u64 a_high, __u64 a_low)
{
	__u32 last = 0, len;
	struct rw_list_v6 *leaf;

#define BEGINS(place) begins6(place, a_high, a_low)
	LIST_SEARCH(low, high, BEGINS)
#undef BEGINS
	leaf = bpf_map_lookup_elem(&list_v6, &low);
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

static __always_inline __u32 listed4(const volatile struct rw_list_section *section, __u32 addr)
{
	struct listable listable = { .low = addr };
	__u32 low = 0, high = 0;

	if (!section->leaves || !list_leaves(section, &listable, &low, &high))
		return NOT_LISTED;
	return search4(section->leaf + low, section->leaf + high, addr);
}

static __always_inline __u32 listed6(const volatile struct rw_list_section *section,
				     const __u32 *addr)
{
	struct listable listable = { .high = half(addr), .low = half(addr + 2), .v6 = true };
	__u32 low = 0, high = 0;

	if (!section->leaves || !list_leaves(section, &listable, &low, &high))
		return NOT_LISTED;
	return search6(section->leaf + low, section->leaf + high, listable.high, listable.low);
}

static __always_inline __u32 blocked(const __u32 *addr, bool v6)
{
	return v6 ? listed6(&shield.block6, addr) : listed4(&shield.block4, bpf_ntohl(addr[3]));
}

static __always_inline __u32 allowed(const __u32 *addr, bool v6)
{
	return v6 ? listed6(&shield.allow6, addr) : listed4(&shield.allow4, bpf_ntohl(addr[3]));
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
