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

#include "maps.bpf.h"

/* Turns a port's key into that of its block. False: it is in none. */
__noinline __u32 service_block(struct rw_service_key *key)
{
	struct rw_service_key at = {};
	struct rw_service *address;
	__u32 port, blocks;

	if (!key)
		return 0;
	copy_addr(at.addr, key->addr);
	address = bpf_map_lookup_elem(&services, &at);
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
		if (bpf_map_lookup_elem(&services, &at)) {
			key->port_be = at.port_be;
			key->block = at.block;
			return 1;
		}
	}
	return 0;
}

/* The service at an address, port and protocol, or NULL. */
static __always_inline struct rw_service *service_at(const struct rw_settings *set,
						     struct rw_service_key *key)
{
	struct rw_service *service = bpf_map_lookup_elem(&services, key);

	if (service || !set->port_blocks || !service_block(key))
		return service;
	return bpf_map_lookup_elem(&services, key);
}

/*
 * The services that this CPU used last, so that the common packet pays for neither
 * the hash of its key nor two cache lines. An entry is valid while control changes no
 * service (settings.services_epoch). Private to the program: a new daemon loads
 * another, empty one. Full: the older entry goes.
 */
#define SERVICES_REMEMBERED 64 /* a power of two */

/* Copies an entry that may change meanwhile. */
#define SERVICE_COPIES 3

struct remembered_service {
	struct rw_service_key key;
	__u32 epoch;
	struct rw_service service;
};

RW_MAP(services_met, BPF_MAP_TYPE_PERCPU_ARRAY, SERVICES_REMEMBERED, __u32,
       struct remembered_service, 0);

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

/* The service of a packet, or NULL. May change the key. */
static __always_inline struct rw_service *service_of(const struct rw_settings *set,
						     struct rw_service_key *key)
{
	__u32 epoch = READ_ONCE(set->services_epoch), place;
	struct remembered_service *met;
	struct rw_service *service, *again;

	place = key->addr[3] ^ key->addr[2] ^ ((__u32 *)key)[4];
	place = (place * 0x9e3779b1u) >> 26;
	met = bpf_map_lookup_elem(&services_met, &place);
	if (!met)
		return NULL; /* an array element exists: for the verifier */
	if (met->epoch == epoch && same_key(&met->key, key))
		return &met->service;
	/* The epoch was read before the entry: if the entry changes meanwhile, the next
	 * packet looks it up again. */
	met->key = *key;
	read_fence(&met->service);
	service = service_at(set, key);
	for (int i = 0; i < SERVICE_COPIES && service; i++) {
		met->service = *service;
		read_fence(&met->service);
		/* The kernel reuses a deleted entry's place at once: the entry is the right
		 * one only if it was so before and after. `key` is its own key by now. */
		again = bpf_map_lookup_elem(&services, key);
		if (again == service) {
			met->epoch = epoch;
			return &met->service;
		}
		service = again;
	}
	met->key.proto = 0; /* nobody's */
	return NULL;
}

#endif
