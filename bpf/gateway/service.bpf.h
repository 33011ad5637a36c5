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

/* The part in force. A packet asks once: it stays as it is until the packet has left. NULL: for the
 * verifier. */
static __always_inline const struct rw_service_part *services_in_force(void)
{
	struct rw_service_index *index = RW_ONLY(service_index);

	return index ? &index->parts[READ_ONCE(index->in_force) % RW_SERVICE_PARTS] : NULL;
}

/* The entry of this key, or NULL. */
static __always_inline struct rw_service *service_entry(const struct rw_service_part *part,
							const struct rw_service_key *key)
{
	__u64 h = hash_end(nh_addr(part->keys, key->addr) +
			   nh_pair(part->keys[2], ((__u32 *)key)[4], 0));
	__u32 first = part->first + ((__u32)h & part->mask), second;
	struct rw_service_place *place = bpf_map_lookup_elem(&service_places, &first);

	if (place && same_key(&place->key, key))
		return &place->service;
	second = part->first + ((__u32)(h >> 32) & part->mask);
	place = bpf_map_lookup_elem(&service_places, &second);
	return place && same_key(&place->key, key) ? &place->service : NULL;
}

/* Turns a port's key into that of its block. False: it is in none. */
__noinline __u32 service_block(const struct rw_service_part *part, struct rw_service_key *key)
{
	struct rw_service_key at = {};
	struct rw_service *address;
	__u32 port, blocks;

	if (!part || !key)
		return 0;
	copy_addr(at.addr, key->addr);
	address = service_entry(part, &at);
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
		if (service_entry(part, &at)) {
			key->port_be = at.port_be;
			key->block = at.block;
			return 1;
		}
	}
	return 0;
}

/* The service of a packet, or NULL. May change the key. */
static __always_inline struct rw_service *service_of(struct rw_service_key *key)
{
	const struct rw_service_part *part = services_in_force();
	struct rw_service *service;

	if (!part)
		return NULL;
	service = service_entry(part, key);
	if (service || !part->blocks || !service_block(part, key))
		return service;
	return service_entry(part, key);
}

/* The entry of an address alone, or NULL. */
static __always_inline struct rw_service *address_entry(const struct rw_service_key *key)
{
	const struct rw_service_part *part = services_in_force();

	return part ? service_entry(part, key) : NULL;
}

#endif
