/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * New flows: a free port towards a backend, a record that holds it, and an
 * index entry that leads there. Bounded: a fixed number of ports is tried.
 */
#ifndef RINGWAY_CLAIM_H
#define RINGWAY_CLAIM_H

#include "flow.bpf.h"

/* Do two keys name the same source towards one backend? (They share a bucket,
 * so nearly always the backend is the same too; a chance match of another
 * backend only costs a second try.) */
static __always_inline bool same_source(__u64 a, __u64 b)
{
	return !(((a ^ b) >> 32) & 0xffffff);
}

/* When dry, a flow that would have been given up for this one still lies there. */
static __always_inline bool claim_alive(const struct rw_settings *set, __u64 key, __u32 seen,
					__u32 now)
{
	return flow_alive(set, key, seen, now) && !(dry && key == trace.freed_key);
}

/* Has a living record our source? Under source = "client" the client's address
 * is part of it, and known once published. */
static __always_inline bool is_rival(const struct rw_settings *set, struct rw_flow *flow, __u64 key,
				     __u32 now, const struct rw_address *client)
{
	__u64 other = READ_ONCE(flow->key);

	if (!same_source(other, key) || !claim_alive(set, other, READ_ONCE(flow->seen), now))
		return false;
	return !client || key_state(other) <= RW_FLOW_CLAIMED ||
	       same_addr(flow->client, client->addr) || !flow_unchanged(flow, other);
}

/* Which record is asked for, and why there was none. */
struct claim_ask {
	__u64 key; /* in state CLAIMED: for the record's writer to fill and publish */
	__u32 bucket;
	__u32 now;
	__u32 evict; /* 1: a flow on probation gives way */
	__u32 rival; /* out: place of the record that has our source already */
};

/* The record of a bucket to take, and what it holds. */
struct prey {
	__u32 number; /* RW_BUCKET_FLOWS: none */
	__u32 seen;
	__u64 key;
	bool alive;
};

enum considered {
	LOOK_ON,
	TAKE_THIS,
	GIVE_UP, /* it has our source, and stays */
};

static __always_inline enum considered consider(const struct rw_settings *set, struct rw_flow *flow,
						__u32 i, const struct claim_ask *ask,
						const struct rw_address *client, struct prey *prey)
{
	__u64 key = READ_ONCE(flow->key);
	struct prey this = { i, READ_ONCE(flow->seen), key,
			     claim_alive(set, key, READ_ONCE(flow->seen), ask->now) };
	bool gives_way = ask->evict && flow_evictable(flow, key);

	if (is_rival(set, flow, ask->key, ask->now, client)) {
		/* Under source = "client" a rival is this very flow. */
		if (!gives_way || client)
			return GIVE_UP;
		*prey = this;
		return TAKE_THIS;
	}
	if (this.alive) {
		bool first = prey->number >= RW_BUCKET_FLOWS;

		if (gives_way && (first || (prey->alive && (__s32)(this.seen - prey->seen) < 0)))
			*prey = this;
		return LOOK_ON;
	}
	/* A dead record of this very port first: it must not linger beside. */
	if (prey->number >= RW_BUCKET_FLOWS || prey->alive || same_source(key, ask->key))
		*prey = this;
	return LOOK_ON;
}

static __always_inline void count_evicted(__u32 reference)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_traffic *t = bpf_map_lookup_elem(&traffic, &index);

	if (t && !dry)
		t->evicted++;
}

/* The claim itself. False: another CPU was faster. */
static __always_inline bool claim_take(const struct rw_settings *set, struct rw_flow_bucket *bucket,
				       const struct prey *prey, struct claim_ask *ask,
				       const struct rw_address *client)
{
	struct rw_flow *flow = &bucket->flows[prey->number];

	if (__sync_val_compare_and_swap(&flow->key, prey->key, ask->key) != prey->key)
		return false;
	/* Since we looked, it may have been claimed and published under this very
	 * key, or have come off probation. */
	if (prey->alive ? !flow_evictable(flow, prey->key) :
			  key_state(prey->key) > RW_FLOW_CLAIMED &&
				  flow_alive(set, prey->key, READ_ONCE(flow->seen), ask->now)) {
		WRITE_ONCE(flow->key, prey->key);
		return false;
	}
	for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
		if (i != prey->number &&
		    is_rival(set, &bucket->flows[i], ask->key, ask->now, client)) {
			WRITE_ONCE(flow->key, 0);
			ask->rival = ask->bucket << 2 | (i + 1);
			return false;
		}
	}
	return true;
}

/*
 * Takes a dead record of a bucket, or one that must give way. `client` is set
 * when the source stays the client's. Returns its place; 0: there is none.
 * Two CPUs that claim one port in two records of a bucket each see the other
 * after their own compare-and-swap, a full barrier; at least one gives way.
 */
__noinline __u32 flow_claim(struct claim_ask *ask, const struct rw_address *client)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct prey prey = { .number = RW_BUCKET_FLOWS };
	struct rw_flow_bucket *bucket;
	__u32 number, mine;

	if (!set || !ask)
		return 0;
	number = ask->bucket;
	bucket = bpf_map_lookup_elem(&flows, &number);
	if (!bucket)
		return 0;
	ask->rival = 0;
	for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
		enum considered found = consider(set, &bucket->flows[i], i, ask, client, &prey);

		if (found == TAKE_THIS)
			break;
		if (found == GIVE_UP) {
			ask->rival = number << 2 | (i + 1);
			return 0;
		}
	}
	mine = prey.number;
	if (mine >= RW_BUCKET_FLOWS)
		return 0;
	if (!dry && !claim_take(set, bucket, &prey, ask, client))
		return 0;
	if (prey.alive)
		count_evicted(key_backend(ask->key));
	return number << 2 | (mine + 1);
}

/* Is the record an entry leads to dead, or no longer the entry's? */
static __always_inline bool entry_stale(const struct rw_settings *set, __u64 entry, __u32 now)
{
	struct rw_flow *flow = flow_at((__u32)entry);
	__be16 *dport_be = flow_dport((__u32)entry);
	struct index_place at;
	__u64 key;

	if (!flow || !dport_be)
		return true;
	/* Claimed: by another flow, whose own entry is yet to come. */
	key = READ_ONCE(flow->key);
	if (key_state(key) == RW_FLOW_CLAIMED || !claim_alive(set, key, READ_ONCE(flow->seen), now))
		return true;
	at = index_place(set, flow->client, flow->client_port_be, *dport_be, flow->service);
	return at.tag != (__u32)(entry >> 32);
}

/* Where an entry may be put: nothing there, or nothing that counts any more. */
static __always_inline bool entry_free(const struct rw_settings *set, __u64 entry, __u32 now,
				       bool evict)
{
	struct rw_flow *flow;
	__u64 key;

	if (!entry || entry_stale(set, entry, now))
		return true;
	flow = flow_at((__u32)entry);
	if (!evict || !flow)
		return false;
	key = READ_ONCE(flow->key);
	return flow_evictable(flow, key) &&
	       (dry || __sync_val_compare_and_swap(&flow->key, key, 0) == key);
}

/* Leads the request tuple to its record. 0: both buckets are full. */
__noinline __u32 index_flow(const struct index_place *at, __u32 place, __u32 now, __u32 evict)
{
	struct rw_settings *set = RW_ONLY(settings);
	__u64 entry;

	if (!set || !at)
		return 0;
	entry = (__u64)at->tag << 32 | place;
	for (int b = 0; b < 2; b++) {
		__u32 number = at->bucket[b & 1];
		struct rw_index_bucket *bucket = bpf_map_lookup_elem(&flow_index, &number);

		if (!bucket)
			return 0;
		for (int i = 0; i < RW_INDEX_ENTRIES; i++) {
			__u64 old = READ_ONCE(bucket->entries[i]);

			if (!entry_free(set, old, now, evict))
				continue;
			if (dry ||
			    __sync_val_compare_and_swap(&bucket->entries[i], old, entry) == old)
				return 1;
		}
	}
	return 0;
}

/* A source to try: a port, and which of the backend's nat addresses. */
struct nat_source {
	__u32 port;
	__u32 addr;
};

/* The nth source to try: own block first, in order, so that a backend's flows
 * lie side by side and a port rests as long as can be; then anywhere. */
static __always_inline struct nat_source nth_source(const struct rw_settings *set, __u32 n,
						    __u32 cursor, __u32 addrs)
{
	__u32 cpus = set->cpus ?: 1, block = set->port_count / cpus;
	__u32 cpu = bpf_get_smp_processor_id() % cpus;
	struct nat_source source;

	/* A pool smaller than the number of CPUs has no blocks. */
	if ((n < FLOW_TRIES_OWN || n >= FLOW_TRIES_OWN + FLOW_TRIES_ALL) && block) {
		source.port = set->port_first + cpu * block + cursor % block;
		source.addr = cursor / block % addrs;
		return source;
	}
	source.port = set->port_first +
		      (__u32)((__u64)(cursor / addrs) * PORT_STRIDE % (set->port_count ?: 1));
	source.addr = cursor % addrs;
	return source;
}

/* The reply's tuple, but for the nat source. */
static __always_inline void reply_from(struct rw_tuple *reply, const struct rw_backend *backend,
				       __be16 dport_be)
{
	copy_addr(reply->saddr, backend->addr);
	reply->sport_be = backend->port_be ?: dport_be;
	reply->proto = backend->proto;
	reply->tcp_flags = 0;
	reply->pad = 0;
}

/* nat: a port of the pool towards this backend. Its record's place, or 0. */
static __always_inline __u32 claim_port(const struct rw_settings *set,
					const struct rw_backend *backend, __u32 reference,
					struct rw_tuple *reply, struct claim_ask *ask)
{
	__u32 index = RW_BACKEND_INDEX(reference), place;
	struct rw_traffic *t = bpf_map_lookup_elem(&traffic, &index);

	if (!t)
		return 0;
	for (__u32 n = 0; n < FLOW_TRIES; n++) {
		__u32 cursor = dry ? (__u32)t->ports + n : (__u32)t->ports++;
		struct nat_source source = nth_source(set, n, cursor, backend->nat_count ?: 1);
		__u32 nat = (backend->nat_first + source.addr) & 0xff, port = source.port;
		struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);

		if (!own)
			return 0;
		copy_addr(reply->daddr, own->addr);
		reply->dport_be = bpf_htons((__u16)port);
		ask->key = flow_key(reference, (__u16)port, nat, RW_FLOW_CLAIMED);
		ask->bucket = reply_bucket(set, reply_hash(set, reply), reply->dport_be, 0);
		ask->evict = n >= FLOW_TRIES_OWN + FLOW_TRIES_ALL;
		place = flow_claim(ask, NULL);
		if (place)
			return place;
	}
	return 0;
}

/* Waits, but not for ever, while another CPU fills a record: some 100 ns. */
#define RIVAL_SPINS 128

static __always_inline void await_rival(__u32 place)
{
	struct rw_flow *flow = flow_at(place);

	for (int i = 0; flow && i < RIVAL_SPINS; i++)
		if (key_state(READ_ONCE(flow->key)) != RW_FLOW_CLAIMED)
			break;
}

/* Is there a flow of this reply's tuple already? Then *failed says what that
 * means: nothing when it is our own, just opened by another CPU. */
static __always_inline bool claimed_before(struct rw_tuple *reply, struct rw_opening *open,
					   enum rw_reason *failed)
{
	__u64 key = 0;

	if (!flow_by_reply(reply, open->now, &key))
		return false;
	/* A backend belongs to one service: with another, answers could be for either. */
	*failed = key_backend(key) == open->backend ? RW_REASON_NONE : RW_REASON_NAT_CONFLICT;
	open->key = key;
	return true;
}

/* The record of a client's own port in one of the buckets it may lie in. False:
 * not here, try on. */
static __always_inline bool claim_choice(const struct rw_settings *set, const struct rw_tuple *t,
					 struct rw_opening *open, struct rw_tuple *reply,
					 struct claim_ask *ask, __u32 choice, __u32 *place,
					 enum rw_reason *failed)
{
	ask->bucket = reply_bucket(set, reply_hash(set, reply), reply->dport_be, choice);
	*place = flow_claim(ask, (const struct rw_address *)t->saddr);
	if (*place)
		return true;
	if (!ask->rival)
		return false;
	await_rival(ask->rival);
	return claimed_before(reply, open, failed);
}

/* source = "client": the client's own port, or nothing. The record's place, or
 * 0: then *failed says why, nothing when another CPU has just opened the flow. */
static __always_inline __u32 claim_client(const struct rw_settings *set, const struct rw_tuple *t,
					  struct rw_opening *open, struct rw_tuple *reply,
					  struct claim_ask *ask, enum rw_reason *failed)
{
	__u32 place = 0;

	copy_addr(reply->daddr, t->saddr);
	reply->dport_be = t->sport_be;
	if (claimed_before(reply, open, failed))
		return 0;
	ask->key = flow_key(open->backend, bpf_ntohs(t->sport_be), RW_NAT_CLIENT, RW_FLOW_CLAIMED);
#pragma clang loop unroll(full) /* a call at a loop's end is no bounded loop to 6.1 */
	for (__u32 n = 0; n < REPLY_CHOICES; n++)
		if (claim_choice(set, t, open, reply, ask, n, &place, failed))
			return place;
	/* One that must give way, in the first of them. */
	ask->evict = 1;
	if (!claim_choice(set, t, open, reply, ask, 0, &place, failed))
		*failed = RW_REASON_FLOW_TABLE_FULL;
	return place;
}

/* Fills a claimed record and makes it known in both directions. */
static __always_inline bool publish_flow(const struct rw_settings *set, const struct rw_tuple *t,
					 struct rw_opening *open, __u64 claimed, __u32 at_place)
{
	__u8 state = t->proto == IPPROTO_TCP ? RW_FLOW_SYN : RW_FLOW_UDP_NEW;
	struct index_place at = index_place(set, t->saddr, t->sport_be, t->dport_be, open->service);
	__u64 key = key_with_state(claimed, state);
	struct rw_flow *flow = flow_at(at_place);
	__be16 *dport_be = flow_dport(at_place);
	__u64 first = 0;
	__u32 place;

	if (!flow || !dport_be)
		return false;
	if (dry) {
		open->key = key;
		return index_flow(&at, at_place, open->now, 0) ||
		       index_flow(&at, at_place, open->now, 1);
	}
	copy_addr(flow->client, t->saddr);
	copy_mac(flow->client_mac, open->mac);
	flow->iface = (__u8)open->iface;
	flow->kept = 0;
	flow->client_port_be = t->sport_be;
	flow->service = open->service;
	*dport_be = t->dport_be;
	WRITE_ONCE(flow->seen, open->now);
	/* Exchange, not store: a full barrier between the fields and the key. */
	__sync_lock_test_and_set(&flow->key, key);
	if (!index_flow(&at, at_place, open->now, 0) && !index_flow(&at, at_place, open->now, 1)) {
		WRITE_ONCE(flow->key, 0);
		return false;
	}
	open->key = key;
	/* Two CPUs may open one client's flow at once: the first in the index stays. */
	place = flow_by_client(t, open->service, open->now, &first);
	if (place && place != at_place && key_backend(first) == open->backend) {
		WRITE_ONCE(flow->key, 0);
		open->key = first;
	}
	return true;
}

/* Opens a flow towards open->backend. 0, or the reason why not. */
__noinline __u32 flow_open(const struct rw_tuple *t, struct rw_tuple *reply,
			   struct rw_opening *open)
{
	struct rw_settings *set = RW_ONLY(settings);
	enum rw_reason failed = RW_REASON_NONE;
	struct claim_ask ask = {};
	struct rw_backend *backend;
	__u32 index, place;

	if (!set || !t || !reply || !open)
		return RW_REASON_NO_STATE;
	index = RW_BACKEND_INDEX(open->backend);
	backend = bpf_map_lookup_elem(&backends, &index);
	if (!backend)
		return RW_REASON_NO_STATE;
	reply_from(reply, backend, t->dport_be);
	open->key = 0;
	ask.now = open->now;
	if (open->source_client) {
		place = claim_client(set, t, open, reply, &ask, &failed);
	} else {
		place = claim_port(set, backend, open->backend, reply, &ask);
		/* The last port that was tried is taken; or it is free, and its bucket full. */
		if (!place)
			failed = ask.rival ? RW_REASON_NAT_EXHAUSTED : RW_REASON_FLOW_TABLE_FULL;
	}
	if (!place)
		return failed;
	return publish_flow(set, t, open, ask.key, place) ? RW_REASON_NONE :
							    RW_REASON_FLOW_TABLE_FULL;
}

#endif
