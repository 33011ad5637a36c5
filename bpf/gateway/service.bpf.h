/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Finds the service. A service of one port has one entry. One of many ports has an
 * entry for each block of ports, aligned and a power of two, of its range
 * (8000-8100: 8000/64, 8064/32, 8096/4, 8100); "*" is one block of all.
 * The address entry lists the sizes in use; the smallest block with the port
 * wins: a port's own service, then a range's, then that of "*".
 */
#ifndef RINGWAY_SERVICE_H
#define RINGWAY_SERVICE_H

#include "hash.bpf.h"
#include "maps.bpf.h"

/* Port, protocol and block in one store: they are read as one word at once, and
 * a load that depends on two stores waits until both have left the CPU. */
static __always_inline void key_set_port(struct rw_service_key *key, __be16 port, __u8 proto)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	((__u32 *)key)[4] = port | (__u32)proto << 16;
#else
	((__u32 *)key)[4] = (__u32)port << 16 | (__u32)proto << 8;
#endif
}

static __always_inline bool same_key(const struct rw_service_key *a, const struct rw_service_key *b)
{
	return same_addr(a->addr, b->addr) && ((__u32 *)a)[4] == ((__u32 *)b)[4];
}

/* The entry of this key, or NULL. Nobody writes it before this packet has left. */
static __always_inline struct rw_service *service_entry(const struct rw_settings *set,
							const struct rw_service_key *key)
{
	__u32 half = READ_ONCE(set->services_epoch) & 1, first, second;
	struct rw_service_hash *by = bpf_map_lookup_elem(&service_hashes, &half);
	struct rw_service_place *place;
	__u64 h;

	if (!by)
		return NULL; /* an array element exists: for the verifier */
	h = hash_end(nh_addr(by->keys, key->addr) + nh_pair(by->keys[2], ((__u32 *)key)[4], 0));
	first = by->first + ((__u32)h & by->mask);
	place = bpf_map_lookup_elem(&service_places, &first);
	if (place && same_key(&place->key, key))
		return &place->service;
	second = by->first + ((__u32)(h >> 32) & by->mask);
	place = bpf_map_lookup_elem(&service_places, &second);
	if (place && same_key(&place->key, key))
		return &place->service;
	return NULL;
}

/* Turns a port's key into that of its block. False: it is in none. */
__noinline __u32 service_block(struct rw_service_key *key)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_service_key at = {};
	struct rw_service *address;
	__u32 port, blocks;

	if (!key || !set)
		return 0;
	copy_addr(at.addr, key->addr);
	address = service_entry(set, &at);
	if (!address)
		return 0;
	blocks = address->id;
	port = bpf_ntohs(key->port_be);
	at.proto = key->proto;
	for (__u32 bits = 1; bits <= RW_BLOCK_ALL; bits++) {
		if (!(blocks & (1u << bits)))
			continue;
		at.block = (__u8)bits;
		at.port_be = bpf_htons((__u16)(port >> bits << bits));
		if (service_entry(set, &at)) {
			key->port_be = at.port_be;
			key->block = at.block;
			return 1;
		}
	}
	return 0;
}

/* The service of a packet, or NULL. May change the key. */
static __always_inline struct rw_service *service_of(const struct rw_settings *set,
						     struct rw_service_key *key)
{
	struct rw_service *service = service_entry(set, key);

	if (service || !set->port_blocks || !service_block(key))
		return service;
	return service_entry(set, key);
}

#endif
