/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flow table: one record per translated flow, found from both directions.
 *
 * Reply direction: the record lies in the bucket its reply tuple hashes to.
 * Request direction: an index entry leads to it. Both tables are plain arrays:
 * no locks, no allocation, nothing that sweeps. A record whose idle time is
 * over is dead wherever it lies, and the next claim may take its place.
 *
 * Writers agree through the record's key, one 64-bit word (abi.h). A claim is
 * a compare-and-swap from a dead key to a CLAIMED one that already names its
 * port; the record is then filled, and published by writing the key again.
 * The record is committed before the index entry that leads to it, so a
 * request never finds a flow whose replies would not.
 */
#ifndef RINGWAY_FLOW_H
#define RINGWAY_FLOW_H

#include "dry.bpf.h"
#include "hash.bpf.h"
#include "maps.bpf.h"
#include "parse.bpf.h"

/* Ports tried in this CPU's block, and then anywhere in the pool. 37 with those below: a
 * prime, so that refused rounds do not fall into step with the pool's size. */
#define FLOW_TRIES_OWN 4
#define FLOW_TRIES_ALL 27
/* When all of those are taken, these of the own block are taken over, oldest first. */
#define FLOW_TRIES_EVICT 6
#define FLOW_TRIES (FLOW_TRIES_OWN + FLOW_TRIES_ALL + FLOW_TRIES_EVICT)
#define PORT_STRIDE 2654435761u /* prime > any block: visits each port once a round */

/* x86 alone keeps loads in order; elsewhere a seqlock's reader needs barriers. */
#ifdef __TARGET_ARCH_x86
#define WEAK_MEMORY 0
#else
#define WEAK_MEMORY 1
#endif

static __always_inline __u32 key_backend(__u64 key)
{
	return (__u32)key;
}

static __always_inline __u16 key_port(__u64 key)
{
	return (__u16)(key >> 32);
}

static __always_inline __u8 key_nat_addr(__u64 key)
{
	return (__u8)(key >> 48);
}

static __always_inline __u8 key_state(__u64 key)
{
	return (__u8)(key >> 56);
}

static __always_inline __u64 key_with_state(__u64 key, __u8 state)
{
	return (key & 0x00ffffffffffffffull) | ((__u64)state << 56);
}

static __always_inline __u64 flow_key(__u32 backend, __u16 port, __u8 nat_addr, __u8 state)
{
	return backend | ((__u64)port << 32) | ((__u64)nat_addr << 48) | ((__u64)state << 56);
}

/* A claimed record is alive whatever its age: its writer is at work. */
static __always_inline bool flow_alive(const struct rw_settings *set, __u64 key, __u32 seen,
				       __u32 now)
{
	__u32 state = key_state(key);

	/* Newer compilers would compare the whole key, and the verifier lose state's bounds. */
	barrier_var(state);
	if (state <= RW_FLOW_CLAIMED)
		return state == RW_FLOW_CLAIMED;
	if (state >= RW_FLOW_STATES)
		return false;
	/* Signed: another CPU's clock reading may be one tick ahead of ours. */
	return (__s32)(now - seen) <= (__s32)set->timeout[state];
}

/*
 * May a new flow take this one's place when there is no other? Flows begin on
 * probation, so that a flood of first packets displaces itself and nothing
 * else; one that is over has nothing to lose.
 */
static __always_inline bool flow_evictable(const struct rw_flow *flow, __u64 key)
{
	return key_state(key) > RW_FLOW_CLAIMED &&
	       (!flow->kept || key_state(key) == RW_FLOW_CLOSED);
}

/* The first half of a seqlock read: no field may be read before its key. */
static __always_inline __u64 flow_key_read(struct rw_flow *flow)
{
	__u64 key;

	if (WEAK_MEMORY)
		return __sync_fetch_and_or(&flow->key, 0);
	key = READ_ONCE(flow->key);
	barrier();
	return key;
}

/* The second half of a seqlock read: was the record the same throughout? */
static __always_inline bool flow_unchanged(struct rw_flow *flow, __u64 key)
{
	if (WEAK_MEMORY)
		return __sync_fetch_and_or(&flow->key, 0) == key;
	barrier();
	return READ_ONCE(flow->key) == key;
}

/* Two keys of one flow: nothing but its state differs. */
static __always_inline bool same_flow(__u64 a, __u64 b)
{
	return key_with_state(a, 0) == key_with_state(b, 0) && key_state(b) > RW_FLOW_CLAIMED;
}

/* Moves a flow to another state, unless someone was faster. */
static __always_inline void flow_move(struct rw_flow *flow, __u64 *key, __u8 state)
{
	__u64 to = key_with_state(*key, state);

	if (__sync_val_compare_and_swap(&flow->key, *key, to) == *key)
		*key = to;
}

/* A record's place: bucket << 2 | number + 1. Never 0. */
static __always_inline struct rw_flow *flow_at(__u32 place)
{
	__u32 number = place >> 2;
	struct rw_flow_bucket *bucket = bpf_map_lookup_elem(&flows, &number);

	if (!bucket)
		return NULL;
	switch (place & 3) {
	case 1:
		return &bucket->flows[0];
	case 2:
		return &bucket->flows[1];
	case 3:
		return &bucket->flows[2];
	}
	return NULL;
}

/* The port its client talks to. */
static __always_inline __be16 *flow_dport(__u32 place)
{
	__u32 number = place >> 2;
	struct rw_flow_bucket *bucket = bpf_map_lookup_elem(&flows, &number);

	if (!bucket)
		return NULL;
	switch (place & 3) {
	case 1:
		return &bucket->dport_be[0];
	case 2:
		return &bucket->dport_be[1];
	case 3:
		return &bucket->dport_be[2];
	}
	return NULL;
}

/*
 * A client counts its ports up, so that many connections differ in the last
 * bits only. Those share a page of the index, each in a bucket of its own, as
 * evenly as chance would: at a thousand connections what a look-up costs is
 * the TLB's misses.
 */
#define PORTS_TOGETHER 64

/* Where a request's tuple is indexed: two buckets, one tag. */
struct index_place {
	__u32 tag;
	__u32 bucket[2];
};

static __always_inline struct index_place index_place(const struct rw_settings *set,
						      const __u32 *client, __be16 port_be,
						      __be16 dport_be, __u16 service)
{
	__u32 port = bpf_ntohs(port_be);
	__u64 word = (__u64)service << 32 | (__u64)dport_be << 16 | port / PORTS_TOGETHER;
	__u64 h = hash_end(hash_addr(set->keys[0], set->keys[1], client) + set->keys[2] * word);
	struct index_place at;

	at.tag = (__u32)(h >> 32) ^ (port % PORTS_TOGETHER) * 0x9e3779b1u;
	at.bucket[0] = ((__u32)h ^ (port % PORTS_TOGETHER)) & set->index_mask;
	at.bucket[1] = (at.bucket[0] ^ (at.tag * 0x9e3779b1u | 1)) & set->index_mask;
	return at;
}

/* Reads of one record before giving up: its state may move while we read. */
#define FLOW_READS 3

/* Is the flow at `place` that of this request? Then *key is what it was read by. */
static __always_inline bool flow_requests(const struct rw_settings *set, const struct rw_tuple *t,
					  __u16 service, __u32 place, __u32 now, __u64 *key)
{
	struct rw_flow *flow = flow_at(place);
	__be16 *dport_be = flow_dport(place);

	if (!flow || !dport_be)
		return false;
	for (int reads = 0; reads < FLOW_READS; reads++) {
		__u64 before = flow_key_read(flow);

		if (key_state(before) <= RW_FLOW_CLAIMED ||
		    !flow_alive(set, before, READ_ONCE(flow->seen), now))
			return false;
		if (!same_addr(flow->client, t->saddr) || flow->service != service ||
		    flow->client_port_be != t->sport_be || *dport_be != t->dport_be)
			return false;
		if (flow_unchanged(flow, before)) {
			*key = before;
			return true;
		}
	}
	return false;
}

/*
 * The flow of a request: its place, or 0. The tag is compared first, so a
 * record is touched only when it is ours (or once in 2^32 someone else's).
 * A function of its own, so that it is verified once and not for every kind
 * of packet that may come here; so are the others without `static`.
 */
__noinline __u32 flow_by_client(const struct rw_tuple *t, __u32 service, __u32 now, __u64 *key)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct index_place at;

	if (!set || !t || !key)
		return 0;
	at = index_place(set, t->saddr, t->sport_be, t->dport_be, (__u16)service);
	for (int b = 0; b < 2; b++) {
		__u32 number = at.bucket[b & 1];
		struct rw_index_bucket *bucket = bpf_map_lookup_elem(&flow_index, &number);

		if (!bucket)
			return 0;
		for (int i = 0; i < RW_INDEX_ENTRIES; i++) {
			__u64 entry = READ_ONCE(bucket->entries[i]);

			if ((__u32)(entry >> 32) == at.tag &&
			    flow_requests(set, t, service, (__u32)entry, now, key)) {
				trace_flow((__u32)entry, *key);
				return (__u32)entry;
			}
		}
	}
	return 0;
}

/* Nat ports are handed out in order too: these share a page of the flow table. */
#define REPLIES_TOGETHER 32

/* `t` is a packet from a backend: daddr and dport are the nat source's. */
static __always_inline __u64 reply_hash(const struct rw_settings *set, const struct rw_tuple *t)
{
	const __u64 *key = set->keys;
	__u64 word = (__u64)t->sport_be << 32 | bpf_ntohs(t->dport_be) / REPLIES_TOGETHER << 8 |
		     t->proto;

	return hash_end(hash_addr(key[0], key[1], t->saddr) + hash_addr(key[2], key[3], t->daddr) +
			key[4] * word);
}

/*
 * Buckets a flow may lie in. One is enough under nat, where another port leads
 * to another bucket; with source = "client" there is no other port to try.
 */
#define REPLY_CHOICES 4

static __always_inline __u32 reply_bucket(const struct rw_settings *set, __u64 hash,
					  __be16 dport_be, __u32 choice)
{
	__u32 first = (__u32)hash + choice * ((__u32)(hash >> 32) | 1);

	return (first ^ (bpf_ntohs(dport_be) % REPLIES_TOGETHER)) & set->flow_mask;
}

/* Is this live key, in this record, the flow that t answers? */
static __always_inline bool flow_answers(struct rw_flow *flow, __u64 key, __be16 dport_be,
					 const struct rw_tuple *t)
{
	__u32 index = RW_BACKEND_INDEX(key_backend(key)), nat = key_nat_addr(key);
	struct rw_backend *backend;

	if (key_port(key) != bpf_ntohs(t->dport_be))
		return false;
	if (nat == RW_NAT_CLIENT) {
		if (!same_addr(flow->client, t->daddr))
			return false;
	} else {
		struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);

		if (!own || !same_addr(own->addr, t->daddr))
			return false;
	}
	backend = bpf_map_lookup_elem(&backends, &index);
	return backend && backend->generation == RW_BACKEND_GENERATION(key_backend(key)) &&
	       (backend->port_be ?: dport_be) == t->sport_be && backend->proto == t->proto &&
	       same_addr(backend->addr, t->saddr);
}

/* The flow that a packet from a backend belongs to: its place, or 0. */
__noinline __u32 flow_by_reply(const struct rw_tuple *t, __u32 now, __u64 *key)
{
	struct rw_settings *set = RW_ONLY(settings);
	__u32 choices;
	__u64 hash;

	if (!set || !t || !key)
		return 0;
	choices = set->source_client ? REPLY_CHOICES : 1;
	hash = reply_hash(set, t);
	for (__u32 choice = 0; choice < REPLY_CHOICES && choice < choices; choice++) {
		__u32 number = reply_bucket(set, hash, t->dport_be, choice);
		struct rw_flow_bucket *bucket = bpf_map_lookup_elem(&flows, &number);

		if (!bucket)
			return 0;
#pragma clang loop unroll(full) /* counted down, the verifier takes it for endless */
		for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
			struct rw_flow *flow = &bucket->flows[i];
			__u64 seen_key = READ_ONCE(flow->key);

			if (key_state(seen_key) <= RW_FLOW_CLAIMED ||
			    !flow_answers(flow, seen_key, bucket->dport_be[i], t) ||
			    !flow_alive(set, seen_key, READ_ONCE(flow->seen), now))
				continue;
			*key = seen_key;
			trace_flow(number << 2 | (i + 1), seen_key);
			return number << 2 | (i + 1);
		}
	}
	return 0;
}

/* Where a reply goes. */
struct flow_client {
	__u32 addr[4];
	__u32 iface;
	__u16 mac[3];
	__be16 port_be;
	__be16 dport_be; /* the port it talks to: the reply's source */
	__u16 service;
};

/* Reads all of it from one flow, whose key was *key when it was found. */
static __always_inline bool flow_read_client(__u32 place, __u64 *key, struct flow_client *client)
{
	struct rw_flow *flow = flow_at(place);
	__be16 *dport_be = flow_dport(place);

	if (!flow || !dport_be)
		return false;
	for (int reads = 0; reads < FLOW_READS; reads++) {
		__u64 before = flow_key_read(flow);

		if (!same_flow(*key, before))
			return false;
		*key = before;
		copy_addr(client->addr, flow->client);
		copy_mac((__u8 *)client->mac, flow->client_mac);
		client->iface = flow->iface;
		client->port_be = flow->client_port_be;
		client->dport_be = *dport_be;
		client->service = flow->service;
		if (flow_unchanged(flow, before))
			return true;
	}
	return false;
}

#endif
