/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * New flows: a free port towards a backend, a record that holds it, and an
 * index entry that leads there. The number of ports tried is bounded.
 *
 * The ports towards a backend form a ring and are handed out in its order: a port
 * is used again after all others. Each CPU takes a few places of the ring at a
 * time (port_hands). When no port is free, flows on probation give way, the oldest
 * first, which is the next in the ring.
 *
 * A UDP port rests before it is used again. A flow that takes a port therefore ends
 * the flow on probation half a round ahead: such flows use at most half of the
 * ports, and a port has rested when its turn comes. If more flows than half of the
 * ports arrive in PORT_REST seconds, the rest are dropped.
 */
#ifndef RINGWAY_CLAIM_H
#define RINGWAY_CLAIM_H

#include "confirm.bpf.h"
#include "shift.bpf.h"

/* Whether two keys name the same source towards one backend. (They share a bucket,
 * so the backend is nearly always the same too; a chance match of another backend
 * costs only a second try.) */
static __always_inline bool same_source(__u64 a, __u64 b)
{
	return !(((a ^ b) >> 32) & 0xffffff);
}

/* Ports tried at the ring's hand, and then elsewhere. */
#define TRIES_NEXT 4
#define TRIES_FREE (TRIES_NEXT + 27)
/* If none of those is free: half-open flows give way; then a closing one that was met; then any on
 * probation, if half-open flows are few. */
#define TRIES_NEXT_EVICT 8
#define TRIES_HALF_OPEN (TRIES_NEXT_EVICT + 27)
#define TRIES_ANY 8
#define TRIES (TRIES_FREE + TRIES_HALF_OPEN + 1 + TRIES_ANY)
/* Tries of either after many failures in this second. */
#define TRIES_VAIN 2
/* For UDP, while ports run out: nothing to evict, they have to rest. */
#define TRIES_UDP_FULL (TRIES_NEXT + 4)
#define PORT_STRIDE 2654435761u /* odd, and far from any small fraction of a ring */
#define PLACES_TOGETHER 32	/* of the ring, taken by a CPU at once; a power of two */

/* A dry run leaves in place the flow that would have given way. */
static __always_inline bool claim_alive(const struct rw_settings *set, __u64 key, __u32 seen,
					__u32 now)
{
	return flow_alive(set, key, seen, now) && !(dry && key == trace.freed_key);
}

static __always_inline bool claim_held(const struct rw_settings *set, __u64 key, __u32 seen,
				       __u32 now)
{
	return flow_holds(set, key, seen, now) && !(dry && key == trace.freed_key);
}

/* Whether a record that holds its place has our source. Under source = "client" the client's
 * address is part of it, and is known once the record is published. */
static __always_inline bool is_rival(const struct rw_settings *set, struct rw_flow *flow, __u64 key,
				     __u32 now, const struct rw_address *client)
{
	__u64 other = READ_ONCE(flow->key);

	if (!same_source(other, key) || !claim_held(set, other, READ_ONCE(flow->seen), now))
		return false;
	return !client || key_state(other) <= RW_FLOW_CLAIMED ||
	       same_addr(flow->client, client->addr) || !flow_unchanged(flow, other);
}

/* The record of a bucket to take, and what it holds. */
struct victim {
	__u64 key;
	__u32 number; /* RW_BUCKET_FLOWS: none */
	__u32 seen;
	__u32 alive;
	__u32 worth;
};

/* A search for a record: what is wanted, its progress, and why it failed. */
struct claim_ask {
	__u64 key; /* in state CLAIMED: for the record's writer to fill and publish */
	__u32 bucket;
	__u32 now;
	__u32 evict;	   /* enum worth: what may give way */
	__u32 conflicting; /* out: place of the record that has our source already */
	struct victim victim;
	__u32 places;	 /* in the ring of ports */
	__u32 udp;	 /* 1: the backend's protocol */
	__u32 full;	 /* 1: no port was free in this second */
	__u32 half_open; /* tries for one */
	__u32 any;	 /* and for any that gives way */
	__u32 at;	 /* the next in the ring's order */
	__u32 place;	 /* that is asked for */
	__u32 closing;	 /* 1 + a place with a closing flow; 0: none was met */
};

/* writer, reader: gateway. By CPU: one search at a time; the stack is short. */
RW_MAP(claims, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct claim_ask, 0);

enum considered {
	LOOK_ON,
	TAKE_THIS,
	GIVE_UP, /* it has our source, and stays */
};

static __always_inline void take(struct victim *victim, __u64 key, __u32 number, __u32 seen,
				 __u32 alive, __u32 worth)
{
	victim->key = key;
	victim->number = number;
	victim->seen = seen;
	victim->alive = alive;
	victim->worth = worth;
}

/* Whether this live flow gives way before the one found so far. */
static __always_inline bool is_worse(const struct victim *victim, __u32 worth, __u32 seen)
{
	if (victim->number >= RW_BUCKET_FLOWS)
		return true;
	if (!victim->alive || worth != victim->worth)
		return victim->alive && worth < victim->worth;
	return (__s32)(seen - victim->seen) < 0;
}

static __always_inline enum considered consider(const struct rw_settings *set, struct rw_flow *flow,
						__u32 i, struct claim_ask *ask,
						const struct rw_address *client)
{
	struct victim *victim = &ask->victim;
	__u64 key = READ_ONCE(flow->key);
	__u32 seen = READ_ONCE(flow->seen);
	__u32 held = claim_held(set, key, seen, ask->now);
	/* A resting port is free for nobody. */
	__u32 worth = key_rests(key) ? WORTH_CONFIRMED : flow_worth(flow, key, ask->now);

	verifier_forget(held, seen);
	verifier_forget(worth, seen);
	if (is_rival(set, flow, ask->key, ask->now, client)) {
		if (worth == WORTH_CLOSING)
			ask->closing = ask->place + 1;
		/* Under source = "client" the conflicting record is this very flow. */
		if (worth > ask->evict || client)
			return GIVE_UP;
		take(victim, key, i, seen, held, worth);
		return TAKE_THIS;
	}
	if (held) {
		if (worth <= ask->evict && is_worse(victim, worth, seen))
			take(victim, key, i, seen, held, worth);
		return LOOK_ON;
	}
	/* A dead record of this very port first, so that it does not stay beside the new one. */
	if (victim->number >= RW_BUCKET_FLOWS || victim->alive || same_source(key, ask->key))
		take(victim, key, i, seen, held, WORTH_NOTHING);
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
				       __u32 mine, struct claim_ask *ask,
				       const struct rw_address *client)
{
	struct rw_flow *flow = &bucket->flows[mine];
	struct victim *victim = &ask->victim;

	if (__sync_val_compare_and_swap(&flow->key, victim->key, ask->key) != victim->key)
		return false;
	/* Since the search it may have been claimed and published under the same key, or
	 * have left probation. */
	if (victim->alive ? flow_worth(flow, victim->key, ask->now) > ask->evict :
			    key_state(victim->key) > RW_FLOW_CLAIMED &&
				    flow_holds(set, victim->key, READ_ONCE(flow->seen), ask->now)) {
		WRITE_ONCE(flow->key, victim->key);
		return false;
	}
	flow_unconfirm(set, flow, victim->key);
	for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
		if (i != mine && is_rival(set, &bucket->flows[i], ask->key, ask->now, client)) {
			WRITE_ONCE(flow->key, 0);
			ask->conflicting = ask->bucket << 2 | (i + 1);
			return false;
		}
	}
	return true;
}

/* Selects the port at a place of the ring. */
static __always_inline bool select_port(const struct rw_settings *set, struct claim_ask *ask,
					struct rw_tuple *reply, const struct rw_backend *backend,
					__u32 place)
{
	__u32 count = set->port_count ?: 1, addrs = backend->nat_count ?: 1;
	__u32 nat = (backend->nat_first + place / count % addrs) & 0xff;
	__u32 port = set->port_first + place % count;
	struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);

	if (!own)
		return false;
	copy_addr(reply->daddr, own->addr);
	reply->dport_be = bpf_htons((__u16)port);
	ask->key = flow_key(key_backend(ask->key), (__u16)port, nat, RW_FLOW_CLAIMED);
	ask->bucket = reply_bucket(set, reply_hash(set, reply), reply->dport_be, 0);
	ask->place = place;
	return true;
}

/*
 * Takes a dead record of a bucket, or one that must give way. `client` is set
 * when the source stays the client's; without it, the port at ask->place is
 * selected, and its bucket. Returns its place; 0: there is none.
 * Two CPUs that claim one port in two records of a bucket see each other after
 * their own compare-and-swap, a full barrier; at least one gives way.
 */
__noinline __u32 flow_claim(struct claim_ask *ask, const struct rw_address *client,
			    struct rw_tuple *reply, const struct rw_backend *backend)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_flow_bucket *bucket;
	__u32 number, mine;

	if (!set || !ask)
		return 0;
	if (!client && (!reply || !backend || !select_port(set, ask, reply, backend, ask->place)))
		return 0;
	number = ask->bucket;
	bucket = bpf_map_lookup_elem(&flows, &number);
	if (!bucket)
		return 0;
	ask->conflicting = 0;
	ask->victim.number = RW_BUCKET_FLOWS;
	for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
		enum considered found = consider(set, &bucket->flows[i], i, ask, client);

		if (found == TAKE_THIS)
			break;
		if (found == GIVE_UP) {
			ask->conflicting = number << 2 | (i + 1);
			return 0;
		}
	}
	mine = ask->victim.number;
	barrier_var(mine);
	if (mine >= RW_BUCKET_FLOWS)
		return 0;
	if (!dry && !claim_take(set, bucket, mine, ask, client))
		return 0;
	if (ask->victim.alive)
		count_evicted(key_backend(ask->victim.key));
	return number << 2 | (mine + 1);
}

/* Whether the record of an entry is dead, or no longer belongs to the entry. */
static __always_inline bool entry_stale(const struct rw_settings *set, __u64 entry, __u32 now)
{
	struct flow_record of = record_at((__u32)entry);
	struct rw_flow *flow = of.flow;
	struct index_place at;
	__u64 key;

	if (!flow)
		return true;
	/* Claimed: by another flow, whose own entry is yet to come. */
	key = READ_ONCE(flow->key);
	if (key_state(key) == RW_FLOW_CLAIMED || !claim_alive(set, key, READ_ONCE(flow->seen), now))
		return true;
	at = index_place(set, flow->client, flow->client_port_be, *of.dport_be, flow->service);
	return at.tag != (__u32)(entry >> 32);
}

/* Whether an entry may be overwritten: it is empty or stale. */
static __always_inline bool entry_free(const struct rw_settings *set, __u64 entry, __u32 now)
{
	return !entry || entry_stale(set, entry, now);
}

static __always_inline bool entry_swap(__u64 *at, __u64 old, __u64 new)
{
	return dry || __sync_val_compare_and_swap(at, old, new) == old;
}

/* The entry of a bucket whose flow gives way first: the oldest among the least valuable.
 * RW_INDEX_ENTRIES: none gives way. */
static __always_inline __u32 entry_least(const struct rw_index_bucket *bucket, __u32 now)
{
	__u64 least = (__u64)WORTH_CONFIRMED << 32;
	__u32 number = RW_INDEX_ENTRIES;

	for (__u32 i = 0; i < RW_INDEX_ENTRIES; i++) {
		struct rw_flow *flow = flow_at((__u32)READ_ONCE(bucket->entries[i]));
		__u32 seen;
		__u64 that;

		if (!flow)
			continue;
		seen = READ_ONCE(flow->seen);
		/* Its worth, then its age; another CPU's clock may be a tick ahead. */
		that = (__u64)flow_worth(flow, READ_ONCE(flow->key), now) << 32 |
		       (seen - now + 0x80000000);
		verifier_forget(that, seen);
		if (that < least) {
			least = that;
			number = i;
		}
		verifier_forget(least, seen);
		verifier_forget(number, seen);
	}
	return number;
}

/* Points the request tuple to its record, in place of a flow that gives way. */
__noinline __u32 index_evict(const struct index_place *at, __u32 place, __u32 now)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_index_bucket *bucket;
	struct rw_flow *flow;
	__u32 number, i;
	__u64 old, key;

	if (!set || !at)
		return 0;
	number = at->bucket[0];
	bucket = bpf_map_lookup_elem(&flow_index, &number);
	if (!bucket)
		return 0;
	i = entry_least(bucket, now);
	if (i >= RW_INDEX_ENTRIES)
		return 0;
	old = READ_ONCE(bucket->entries[i]);
	flow = flow_at((__u32)old);
	if (!flow)
		return 0;
	key = READ_ONCE(flow->key);
	if (!dry && !flow_evict(set, flow, key, now))
		return 0;
	count_evicted(key_backend(key));
	return entry_swap(&bucket->entries[i], old, (__u64)at->tag << 32 | place);
}

/* Points the request tuple to its record. 0: no entry of both buckets is free. */
__noinline __u32 index_free(const struct index_place *at, __u32 place, __u32 now)
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

			if (entry_free(set, old, now) &&
			    entry_swap(&bucket->entries[i], old, entry))
				return 1;
		}
	}
	return 0;
}

/* Points the request tuple to its record. 0: both buckets are full. */
static __always_inline __u32 index_flow(const struct index_place *at, __u32 place, __u32 now)
{
	return index_free(at, place, now) ?: index_evict(at, place, now);
}

/*
 * The next place in the ring of the ports towards a backend: those of the pool
 * at each of its nat addresses. Places that this CPU took long ago wait for their next turn.
 */
static __always_inline __u32 place_next(struct rw_traffic *t, __u32 *hand, struct claim_ask *ask)
{
	__u32 at = ask->at, newest = READ_ONCE(*hand);

	/* Signed: a dry run leaves the hand in place. */
	if (at % PLACES_TOGETHER == 0 ||
	    (__s32)(newest - at) > (__s32)(ask->places / 4 + PLACES_TOGETHER))
		at = dry ? newest : __sync_fetch_and_add(hand, PLACES_TOGETHER);
	ask->at = at + 1;
	if (!dry)
		t->ports = (t->ports & ~0xffffffffull) | ask->at;
	return at;
}

/* A place elsewhere. For UDP shortly ahead of every CPU's, where the places are free: flows on
 * probation must stay in half of the ring. */
static __always_inline __u32 place_elsewhere(const __u32 *hand, const struct claim_ask *ask,
					     __u32 n)
{
	__u32 apart = ask->places / 256 + 1;

	if (ask->udp)
		return READ_ONCE(*hand) + ask->at % PLACES_TOGETHER +
		       n * (apart < PLACES_TOGETHER ? apart : PLACES_TOGETHER + 1);
	return ask->at % ask->places + n * PORT_STRIDE % ask->places;
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

/* Ends the UDP flow on probation half a round ahead; one whose time is over is no longer counted. */
__noinline __u32 rest_port(struct claim_ask *ask, struct rw_tuple *reply,
			   const struct rw_backend *backend)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_flow_bucket *bucket;
	__u32 number;

	if (!set || !ask || !reply || !backend ||
	    !select_port(set, ask, reply, backend, ask->place + ask->places / 2))
		return 0;
	number = ask->bucket;
	bucket = bpf_map_lookup_elem(&flows, &number);
	if (!bucket)
		return 0;
	for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
		struct rw_flow *flow = &bucket->flows[i];
		__u64 key = READ_ONCE(flow->key);
		__u32 seen = READ_ONCE(flow->seen);

		/* Not by same_source(): it may be another backend's. */
		if (key_with_state(key, 0) != key_with_state(ask->key, 0) || !key_rests(key))
			continue;
		if (!flow_holds(set, key, seen, ask->now)) {
			if (flow_hold(flow, key)) {
				flow_unconfirm(set, flow, key);
				WRITE_ONCE(flow->key, 0);
			}
		} else if (flow_alive(set, key, seen, ask->now) &&
			   flow_evict(set, flow, key, ask->now)) {
			count_evicted(key_backend(key));
		}
	}
	return 0;
}

/* After so many failures in a second the next searches are short. */
#define VAIN_ENOUGH 16

static __always_inline struct vain_search *vain_search(__u32 index)
{
	__u32 at = index % VAIN_SEARCHES;

	return bpf_map_lookup_elem(&vain_searches, &at);
}

/* Half-open flows are few if fewer than one in SPARSE_MEET tries finds one; SPARSE_ENOUGH tries
 * decide. */
#define SPARSE_MEET 100
#define SPARSE_ENOUGH 256
#define SPARSE_MOST (2 * SPARSE_ENOUGH)

/* Sets the limits of a search. */
static __always_inline void plan_search(struct claim_ask *ask, __u32 index)
{
	struct vain_search *vain = vain_search(index);
	bool enough;

	ask->closing = 0;
	ask->half_open = TRIES_HALF_OPEN;
	ask->any = 0;
	if (!vain || vain->index != index)
		return;
	enough = vain->second == ask->now && vain->vain >= VAIN_ENOUGH;
	if (enough)
		ask->half_open = TRIES_VAIN;
	if (vain->sparse >= SPARSE_ENOUGH)
		ask->any = enough ? TRIES_VAIN : TRIES_ANY;
}

/* Records the result of a search. */
static __always_inline void note_search(const struct claim_ask *ask, __u32 index, bool found)
{
	struct vain_search *vain = vain_search(index);

	if (!vain || ask->udp || dry || ask->evict == WORTH_NOTHING)
		return;
	if (vain->index != index)
		vain->sparse = 0;
	if (vain->index != index || vain->second != ask->now)
		vain->vain = 0;
	vain->index = index;
	vain->second = ask->now;
	if (found && ask->evict == WORTH_HALF_OPEN) {
		vain->sparse -= vain->sparse < SPARSE_MEET ? vain->sparse : SPARSE_MEET;
		return;
	}
	vain->vain++;
	if (vain->sparse < SPARSE_MOST)
		vain->sparse += ask->half_open;
}

/* The nth place to try, and what may give way there. False: no more. */
static __always_inline bool nth_place(struct rw_traffic *t, __u32 *hand, struct claim_ask *ask,
				      __u32 n)
{
	__u32 m = n - TRIES_FREE;
	bool ordered = n < TRIES_NEXT;

	if (n < TRIES_FREE) {
		ask->evict = WORTH_NOTHING;
		if (ask->udp && ask->full && n >= TRIES_UDP_FULL)
			return false;
	} else if (ask->udp) {
		return false;
	} else if (m < ask->half_open) {
		ask->evict = WORTH_HALF_OPEN;
		ordered = m < TRIES_NEXT_EVICT;
	} else if (m == ask->half_open && ask->closing) {
		ask->evict = WORTH_CLOSING;
		ask->place = ask->closing - 1;
		return true;
	} else if (m > ask->half_open + ask->any || !ask->any) {
		return false;
	} else {
		ask->evict = WORTH_PROBATION;
	}
	ask->place = ordered ? place_next(t, hand, ask) : place_elsewhere(hand, ask, n);
	return true;
}

/* The upper half of rw_traffic.ports: the second in which no port was free. Another search in the
 * same second skips the first part. */
static __always_inline bool ports_full(const struct rw_traffic *t, __u32 now)
{
	return (__u32)(t->ports >> 32) == now;
}

static __always_inline void ports_note_full(struct rw_traffic *t, __u32 now)
{
	if (!dry)
		t->ports = (__u64)now << 32 | (__u32)t->ports;
}

/* nat: a port of the pool towards open->backend. Its record's place; or 0, and open->failed. */
__noinline __u32 claim_port(struct rw_tuple *reply, struct rw_opening *open)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct claim_ask *ask = RW_ONLY(claims);
	struct rw_backend *backend;
	__u32 index, record, *hand;
	struct rw_traffic *t;

	if (!set || !ask || !reply || !open)
		return 0;
	index = RW_BACKEND_INDEX(open->backend);
	backend = bpf_map_lookup_elem(&backends, &index);
	t = bpf_map_lookup_elem(&traffic, &index);
	hand = bpf_map_lookup_elem(&port_hands, &index);
	if (!backend || !t || !hand)
		return 0;
	ask->key = open->backend;
	ask->now = open->now;
	ask->places = set->port_count * (backend->nat_count ?: 1) ?: 1;
	ask->udp = backend->proto == IPPROTO_UDP;
	ask->full = ports_full(t, open->now);
	ask->at = (__u32)t->ports;
	plan_search(ask, index);
	for (__u32 n = ask->full && !ask->udp ? TRIES_FREE : 0; n < TRIES; n++) {
		if (!nth_place(t, hand, ask, n))
			break;
		if (n + 1 == TRIES_FREE)
			ports_note_full(t, ask->now);
		record = flow_claim(ask, NULL, reply, backend);
		if (!record)
			continue;
		open->key = ask->key;
		if (ask->udp && !dry)
			rest_port(ask, reply, backend);
		note_search(ask, RW_BACKEND_INDEX(open->backend), true);
		return record;
	}
	note_search(ask, RW_BACKEND_INDEX(open->backend), false);
	/* The last port that was tried is taken; or it is free, and its bucket full. */
	open->failed = ask->conflicting ? RW_REASON_NAT_EXHAUSTED : RW_REASON_FLOW_TABLE_FULL;
	return 0;
}

/* Waits for a bounded time while another CPU fills a record: some 100 ns. */
#define RIVAL_SPINS 128

static __always_inline void await_conflicting(__u32 place)
{
	struct rw_flow *flow = flow_at(place);

	for (int i = 0; flow && i < RIVAL_SPINS; i++)
		if (key_state(READ_ONCE(flow->key)) != RW_FLOW_CLAIMED)
			break;
}

/* Whether a flow of this reply's tuple exists. open->failed then has the consequence: none
 * if it is our own flow, just opened by another CPU. */
static __always_inline bool claimed_before(struct rw_tuple *reply, struct rw_opening *open)
{
	__u64 key = 0;

	if (!flow_by_reply(reply, open->now, &key))
		return false;
	/* A backend belongs to one service: with two, answers could be for either. */
	open->failed = key_backend(key) == open->backend ? RW_REASON_NONE : RW_REASON_NAT_CONFLICT;
	open->key = key;
	return true;
}

/* The record of a client's own port in one of the buckets where it may lie. False:
 * not here, try on. */
static __always_inline bool claim_choice(const struct rw_settings *set, const struct rw_tuple *t,
					 struct rw_opening *open, struct rw_tuple *reply,
					 struct claim_ask *ask, __u32 choice, __u32 *place)
{
	ask->bucket = reply_bucket(set, reply_hash_of(reply), reply->dport_be, choice);
	*place = flow_claim(ask, (const struct rw_address *)t->saddr, NULL, NULL);
	if (*place) {
		open->key = ask->key;
		return true;
	}
	if (!ask->conflicting)
		return false;
	await_conflicting(ask->conflicting);
	return claimed_before(reply, open);
}

/* source = "client": the client's own port, or nothing. The record's place, or
 * 0: then open->failed says why, nothing when another CPU has just opened the flow. */
__noinline __u32 claim_client(const struct rw_tuple *t, struct rw_tuple *reply,
			      struct rw_opening *open)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct claim_ask *ask = RW_ONLY(claims);
	__u32 place = 0;

	if (!set || !ask || !t || !reply || !open)
		return 0;
	copy_addr(reply->daddr, t->saddr);
	reply->dport_be = t->sport_be;
	if (claimed_before(reply, open))
		return 0;
	ask->now = open->now;
	ask->evict = WORTH_NOTHING;
	ask->key = flow_key(open->backend, bpf_ntohs(t->sport_be), RW_NAT_CLIENT, RW_FLOW_CLAIMED);
#pragma clang loop unroll(full) /* a call at a loop's end is no bounded loop to 6.1 */
	for (__u32 n = 0; n < REPLY_CHOICES; n++)
		if (claim_choice(set, t, open, reply, ask, n, &place))
			return place;
	/* One that must give way, in the first of them. */
	ask->evict = WORTH_PROBATION;
	if (!claim_choice(set, t, open, reply, ask, 0, &place))
		open->failed = RW_REASON_FLOW_TABLE_FULL;
	return place;
}

/* Fills the record that is claimed under open->key and publishes it in both directions.
 * open->key: the flow's, another CPU's if that was faster. 0: the index has no room. */
__noinline __u32 publish_flow(const struct rw_tuple *t, struct rw_opening *open, __u32 at_place)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct flow_record of = record_at(at_place);
	struct rw_flow *flow = of.flow;
	struct index_place at;
	__u64 first = 0;
	__u32 place;

	if (!set || !t || !open || !flow)
		return 0;
	at = index_place(set, t->saddr, t->sport_be, t->dport_be, open->service);
	open->key =
		key_with_state(open->key, t->proto == IPPROTO_TCP ? RW_FLOW_SYN : RW_FLOW_UDP_NEW);
	if (dry)
		return index_flow(&at, at_place, open->now);
	copy_addr(flow->client, t->saddr);
	copy_mac(flow->client_mac, open->mac);
	flow->iface = (__u8)open->iface | (open->shifted ? RW_FLOW_SHIFTED : 0);
	flow->confirmed = open->isn << RW_ISN_SHIFT;
	flow->client_port_be = t->sport_be;
	flow->service = open->service;
	*of.dport_be = t->dport_be;
	WRITE_ONCE(flow->seen, open->now);
	/* Exchange, not store: a full barrier between the fields and the key. */
	__sync_lock_test_and_set(&flow->key, open->key);
	if (!index_flow(&at, at_place, open->now)) {
		WRITE_ONCE(flow->key, 0);
		return 0;
	}
	/* Two CPUs may open one client's flow at once: the first in the index stays. */
	if (tagged(&at) == at_place)
		return 1;
	place = flow_by_client(t, open->service, open->now, &first);
	if (place && place != at_place && key_backend(first) == open->backend) {
		WRITE_ONCE(flow->key, 0);
		open->key = first;
	}
	return 1;
}

/* Before its record is published. */
static __always_inline bool shift_begin(__u32 place, __u8 isn)
{
	struct syn_room *room = RW_ONLY(syn_rooms);
	struct rw_shift *shift = shift_at(place);
	struct rw_flow *flow = flow_at(place);

	if (!room || !flow)
		return false;
	if (!shift) {
		WRITE_ONCE(flow->key, 0);
		return false;
	}
	*shift = (struct rw_shift){
		.number = room->cookie.number,
		.last = room->cookie.stamp,
		.isn = isn,
	};
	return true;
}

/* Opens a flow towards open->backend. 0, or the reason why not. */
static __always_inline enum rw_reason flow_open(const struct rw_tuple *t, struct rw_tuple *reply,
						struct rw_opening *open,
						const struct rw_backend *backend)
{
	__u32 place;

	reply_from(reply, backend, t->dport_be);
	open->key = 0;
	open->failed = RW_REASON_NO_STATE;
	place = open->source_client ? claim_client(t, reply, open) : claim_port(reply, open);
	if (!place)
		return open->failed < RW_REASON_SPACE ? open->failed : RW_REASON_NO_STATE;
	if (open->shifted && !dry && !shift_begin(place, open->isn))
		return RW_REASON_NO_STATE;
	return publish_flow(t, open, place) ? RW_REASON_NONE : RW_REASON_FLOW_TABLE_FULL;
}

#endif
