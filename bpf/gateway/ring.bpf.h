/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ring: the owner of a packet's slot. A stable slot costs one cache line of the
 * ring. The pairs of a changing ring are a map of their own, read only for changed
 * slots. The ring is equal on every node: hash and slots depend on the configuration,
 * not on the node.
 */
#ifndef RINGWAY_RING_H
#define RINGWAY_RING_H

#include "dry.bpf.h"
#include "hash.bpf.h"
#include "maps.bpf.h"

/* The ring's keys are those of every node: same flow, same slot. Square roots
 * of the primes from 3 on, as in FIPS 180-4 section 5.3.5. */
#define RING_KEY_0 0xbb67ae8584caa73bull
#define RING_KEY_1 0x3c6ef372fe94f82bull
#define RING_KEY_2 0xa54ff53a5f1d36f1ull
#define RING_KEY_3 0x510e527fade682d1ull
#define RING_KEY_4 0x9b05688c2b3e6c1full

/* The owners of a slot, as backend references; 0: nobody. */
struct owners {
	__u32 current; /* new flows */
	__u32 former;  /* flows without a record */
	__u32 slot;
	__u32 changed; /* flows must be looked up (track.bpf.h) */
	__u32 since;   /* when it changed: seconds, CLOCK_MONOTONIC */
};

static __always_inline struct rw_backend *backend_of(__u32 reference)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_backend *backend = bpf_map_lookup_elem(&backends, &index);

	if (!backend || backend->generation != RW_BACKEND_GENERATION(reference))
		return NULL;
	return backend;
}

/* By 5-tuple, or with affinity = "source" by the client's address alone. */
static __always_inline __u32 ring_slot(const struct rw_tuple *t, __u32 service_flags)
{
	__u64 h = hash_addr(RING_KEY_0, RING_KEY_1, t->saddr);

	if (!(service_flags & RW_SVC_AFFINITY_SOURCE)) {
		__u64 ports = (__u64)t->sport_be << 32 | (__u64)t->dport_be << 16 | t->proto;

		h += hash_addr(RING_KEY_2, RING_KEY_3, t->daddr) + RING_KEY_4 * ports;
	}
	return (__u32)(((hash_end(h) >> 32) * RW_RING_SLOTS) >> 32);
}

/* The reference of a service's member; 0: it has none of that number. */
static __always_inline __u32 ring_member(const struct rw_service *service, __u32 number)
{
	__u32 place = service->members + number;
	__u32 *reference;

	if (number >= service->member_count)
		return 0;
	reference = bpf_map_lookup_elem(&members, &place);
	return reference ? *reference : 0;
}

static __always_inline void trace_ring(const struct owners *owners)
{
	if (!dry)
		return;
	trace.ring = 1;
	trace.ring_slot = owners->slot;
	trace.changed = owners->changed;
	trace.current = owners->current;
	trace.former = owners->former;
	trace.chosen = owners->current;
}

/* The owners of this slot. False: the service has no ring, which the loader rules out. */
static __always_inline bool slot_owners(const struct rw_service *service, __u32 slot,
					struct owners *owners)
{
	__u32 id = service->ring, zero = 0;
	void *inner = bpf_map_lookup_elem(&rings, &id);
	struct rw_ring *ring;
	struct rw_pair *pair;
	__u32 number;

	owners->slot = slot;
	owners->changed = false;
	if (!inner)
		return false;
	ring = bpf_map_lookup_elem(inner, &zero);
	/* clang proves the bound and drops the check; the verifier of 6.1 cannot. */
	barrier_var(slot);
	if (!ring || slot >= RW_RING_SLOTS)
		return false;
	number = ring->slots[slot];
	if (number < RW_MAX_MEMBERS || number == RW_NO_MEMBER) {
		owners->current = ring_member(service, number);
		owners->former = owners->current;
		trace_ring(owners);
		return true;
	}
	inner = bpf_map_lookup_elem(&pairs, &id);
	if (!inner)
		return false;
	number -= RW_MAX_MEMBERS;
	pair = bpf_map_lookup_elem(inner, &number);
	if (!pair)
		return false;
	owners->current = ring_member(service, pair->current);
	owners->former = ring_member(service, pair->former);
	owners->changed = true;
	owners->since = pair->since;
	trace_ring(owners);
	return true;
}

static __always_inline bool ring_owners(const struct rw_tuple *t, const struct rw_service *service,
					struct owners *owners)
{
	return slot_owners(service, ring_slot(t, service->flags), owners);
}

/* The flags of a backend's row while its ring may name it. */
#define RW_BACKEND_NEW_FLOWS (RW_BACKEND_UP | RW_BACKEND_TAKES_NEW)

#define RING_OTHERS 8
#define RING_STRIDE 24593 /* a prime, and no divisor of the slots */

/* A backend that takes new flows, from other slots: its reference; 0: none of those tried. */
__noinline __u32 ring_other(const struct rw_tuple *t, const struct rw_service *service)
{
	struct owners owners = {};
	__u32 slot;

	if (!t || !service)
		return 0;
	slot = ring_slot(t, service->flags);
	for (int i = 0; i < RING_OTHERS; i++) {
		struct rw_backend *backend;

		slot = (slot + RING_STRIDE) % RW_RING_SLOTS;
		if (!slot_owners(service, slot, &owners) || !owners.current)
			continue;
		backend = backend_of(owners.current);
		if (backend && (backend->flags & RW_BACKEND_NEW_FLOWS) == RW_BACKEND_NEW_FLOWS)
			return owners.current;
	}
	return 0;
}

#endif
