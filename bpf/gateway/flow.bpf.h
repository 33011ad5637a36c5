/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flow table: one record per translated flow, found from both directions.
 *
 * Reply direction: the record is in the bucket of its reply tuple's hash.
 * Request direction: an index entry leads to it. Both tables are plain arrays
 * without locks, allocation or a sweeper. A record whose idle time is over is dead
 * in place, and the next claim may take it.
 *
 * Writers agree through the record's key, one 64-bit word (abi.h). A claim is
 * a compare-and-swap from a dead key to a CLAIMED one that already names its
 * port; the record is then filled, and published by writing the key again.
 * The record is committed before its index entry, so a request never finds a flow
 * whose replies would not be found.
 */
#ifndef RINGWAY_FLOW_H
#define RINGWAY_FLOW_H

#include "dry.bpf.h"
#include "hash.bpf.h"
#include "maps.bpf.h"
#include "parse.bpf.h"

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

/* Whether a state is one of a set, a bit each. A jump for each state would multiply the verifier's
 * work. */
static __always_inline bool is_one_of(__u32 states, __u8 state)
{
	return states >> (state & 31) & 1;
}

static __always_inline __u64 key_with_state(__u64 key, __u8 state)
{
	return (key & 0x00ffffffffffffffull) | ((__u64)state << 56);
}

static __always_inline __u64 flow_key(__u32 backend, __u16 port, __u8 nat_addr, __u8 state)
{
	return backend | ((__u64)port << 32) | ((__u64)nat_addr << 48) | ((__u64)state << 56);
}

#define RESTING_STATES (1u << RW_FLOW_UDP_NEW | 1u << RW_FLOW_UDP | 1u << RW_FLOW_RESTING)

/* Whether a flow's port rests when it ends: for UDP, because a late answer does not name its flow.
 * With source = "client" the port is the client's own. */
static __always_inline bool key_rests(__u64 key)
{
	return is_one_of(RESTING_STATES, key_state(key)) && key_nat_addr(key) != RW_NAT_CLIENT;
}

/* A claimed record is alive whatever its age: its writer is at work. */
static __always_inline bool flow_alive(const struct rw_settings *set, __u64 key, __u32 seen,
				       __u32 now)
{
	__u32 state = key_state(key);

	if (state == RW_FLOW_RESET)
		state = RW_FLOW_CLOSED;
	/* Without this, newer compilers compare the whole key, and the verifier loses
	 * the bounds of state. */
	barrier_var(state);
	if (state <= RW_FLOW_CLAIMED)
		return state == RW_FLOW_CLAIMED;
	if (state >= RW_FLOW_TIMEOUTS)
		return false;
	/* Signed: another CPU's clock reading may be one tick ahead of ours. */
	return (__s32)(now - seen) <= (__s32)set->timeout[state];
}

/* Seconds for which the port of a finished UDP flow rests. */
#define PORT_REST 5

/* Whether a record holds its place against new flows: it is live, or its port rests. */
static __always_inline bool flow_holds(const struct rw_settings *set, __u64 key, __u32 seen,
				       __u32 now)
{
	__u32 rested = now - PORT_REST;

	if (flow_alive(set, key, seen, now))
		return true;
	if (!key_rests(key))
		return false;
	if (key_state(key) == RW_FLOW_RESTING)
		return (__s32)(rested - seen) <= 0;
	return flow_alive(set, key, seen, rested);
}

/* Two readings of a clock in seconds that differ by this much are at least a second apart. */
#define PROBATION_TICKS 2

/* A flow's value to a new one that finds no room: the least valuable gives way first. */
enum worth {
	WORTH_NOTHING,
	WORTH_HALF_OPEN, /* its handshake is not finished, or it is over */
	WORTH_CLOSING,
	WORTH_PROBATION,
	WORTH_CONFIRMED, /* gives way to nobody */
};

/* A TCP flow after a FIN of one side, or a RST of its client, and then silence of both: a live
 * connection would have refuted it by now. */
static __always_inline bool flow_closing(const struct rw_flow *flow, __u32 state, __u32 now)
{
	return (state == RW_FLOW_FIN_CLIENT || state == RW_FLOW_FIN_BACKEND ||
		state == RW_FLOW_RESET) &&
	       (__s32)(now - READ_ONCE(flow->seen)) >= PORT_REST;
}

/* Flows start on probation, so that a flood of first packets displaces only itself. */
static __always_inline enum worth flow_worth(const struct rw_flow *flow, __u64 key, __u32 now)
{
	__u32 state = key_state(key);

	if (state == RW_FLOW_CLOSED)
		return WORTH_HALF_OPEN;
	if (state <= RW_FLOW_CLAIMED || state == RW_FLOW_RESTING)
		return WORTH_CONFIRMED;
	if (flow_closing(flow, state, now))
		return WORTH_CLOSING;
	if (READ_ONCE(flow->confirmed) & RW_CONFIRMED)
		return WORTH_CONFIRMED;
	if (state == RW_FLOW_SYN || state == RW_FLOW_SYN_ACK || state == RW_FLOW_UDP_NEW)
		return WORTH_HALF_OPEN;
	return WORTH_PROBATION;
}

/* The first half of a seqlock read: no field is read before its key. */
static __always_inline __u64 flow_key_read(struct rw_flow *flow)
{
	return read_ordered(&flow->key);
}

/* The second half of a seqlock read: whether the record stayed the same. */
static __always_inline bool flow_unchanged(struct rw_flow *flow, __u64 key)
{
	return read_ordered(&flow->key) == key;
}

/* Two keys of one flow: nothing but its state differs. */
static __always_inline bool same_flow(__u64 a, __u64 b)
{
	return key_with_state(a, 0) == key_with_state(b, 0) && key_state(b) > RW_FLOW_CLAIMED;
}

/* Moves a flow to another state. False: someone was faster. */
static __always_inline bool flow_move(struct rw_flow *flow, __u64 *key, __u8 state)
{
	__u64 to = key_with_state(*key, state);

	if (__sync_val_compare_and_swap(&flow->key, *key, to) != *key)
		return false;
	*key = to;
	return true;
}

/* A record, and the port that its client talks to. */
struct flow_record {
	struct rw_flow *flow; /* NULL: there is no such place */
	__be16 *dport_be;
};

/* The record at a place: bucket << 2 | number + 1. Never 0. */
static __always_inline struct flow_record record_at(__u32 place)
{
	struct flow_record none = {};
	__u32 number = place >> 2;
	struct rw_flow_bucket *bucket = bpf_map_lookup_elem(&flows, &number);

	number = (place - 1) & 3;
	/* One pointer for all three, and the verifier goes on once. */
	barrier_var(number);
	if (!bucket || number >= RW_BUCKET_FLOWS)
		return none;
	return (struct flow_record){ &bucket->flows[number], &bucket->dport_be[number] };
}

static __always_inline struct rw_flow *flow_at(__u32 place)
{
	return record_at(place).flow;
}

/*
 * A client counts its ports up, so its connections differ only in the last bits.
 * Those share a page of the index, each in its own bucket, as evenly as a random
 * hash: with a thousand connections TLB misses dominate a look-up.
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
	__u64 h = hash_end(keyed_client(set, client, word));
	struct index_place at;

	at.tag = (__u32)(h >> 32) ^ (port % PORTS_TOGETHER) * 0x9e3779b1u;
	at.bucket[0] = ((__u32)h ^ (port % PORTS_TOGETHER)) & set->index_mask;
	at.bucket[1] = (at.bucket[0] ^ (at.tag * 0x9e3779b1u | 1)) & set->index_mask;
	return at;
}

/* Reads of one record before giving up: its state may move while we read. */
#define FLOW_READS 3

/* Whether the flow at `place` is that of this request. Then *key is its key. `reads`: at most, a
 * constant. */
static __always_inline bool flow_requests(const struct rw_settings *set, const struct rw_tuple *t,
					  __u16 service, __u32 place, __u32 now, int reads,
					  __u64 *key)
{
	struct flow_record of = record_at(place);

	if (!of.flow)
		return false;
	for (int i = 0; i < reads; i++) {
		__u64 before;

		/* Else the compiler keeps a pointer to each field on the stack, which is short. */
		barrier_var(of.flow);
		before = flow_key_read(of.flow);

		if (key_state(before) <= RW_FLOW_CLAIMED ||
		    !flow_alive(set, before, READ_ONCE(of.flow->seen), now))
			return false;
		if (!same_addr(of.flow->client, t->saddr) || of.flow->service != service ||
		    of.flow->client_port_be != t->sport_be || *of.dport_be != t->dport_be)
			return false;
		if (flow_unchanged(of.flow, before)) {
			*key = before;
			return true;
		}
	}
	return false;
}

/*
 * The flow of a request: its place, or 0. The tag is compared first, so only the
 * right record is touched (or once in 2^32 another's). Not inlined, like the others
 * without `static`, so that it is verified once and not for every kind of packet.
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
			    flow_requests(set, t, service, (__u32)entry, now, FLOW_READS, key)) {
				trace_flow((__u32)entry, *key);
				return (__u32)entry;
			}
		}
	}
	return 0;
}

/* The first entry with this tag: the place that it leads to, or 0. */
static __always_inline __u32 tagged(const struct index_place *at)
{
	for (int b = 0; b < 2; b++) {
		__u32 number = at->bucket[b];
		struct rw_index_bucket *bucket = bpf_map_lookup_elem(&flow_index, &number);

		if (!bucket)
			return 0; /* an array element exists: for the verifier */
		for (int i = 0; i < RW_INDEX_ENTRIES; i++) {
			__u64 entry = READ_ONCE(bucket->entries[i]);

			if ((__u32)(entry >> 32) == at->tag && (__u32)entry)
				return (__u32)entry;
		}
	}
	return 0;
}

/* The same where only its own entry has its tag, without a call. */
static __always_inline __u32 flow_of_client(const struct rw_settings *set, const struct rw_tuple *t,
					    __u32 service, __u32 now, __u64 *key)
{
	struct index_place at =
		index_place(set, t->saddr, t->sport_be, t->dport_be, (__u16)service);
	__u32 place = tagged(&at);

	if (!place)
		return 0;
	if (flow_requests(set, t, (__u16)service, place, now, 1, key)) {
		trace_flow(place, *key);
		return place;
	}
	return flow_by_client(t, service, now, key);
}

/* Nat ports are handed out in order too: neighbours share a page of the flow table. */
#define REPLIES_TOGETHER 32

/* `t` is a packet from a backend: daddr and dport are the nat source's. */
static __always_inline __u64 reply_hash(const struct rw_settings *set, const struct rw_tuple *t)
{
	__u64 word = (__u64)t->sport_be << 32 | bpf_ntohs(t->dport_be) / REPLIES_TOGETHER << 8 |
		     t->proto;

	return hash_end(keyed_tuple(set, t, word));
}

/* The same for flow_open(), whose stack has no room for it. */
__noinline __u64 reply_hash_of(const struct rw_tuple *t)
{
	struct rw_settings *set = RW_ONLY(settings);

	return set && t ? reply_hash(set, t) : 0;
}

/*
 * Buckets in which a flow may lie. One is enough under nat, where another port leads
 * to another bucket; with source = "client" there is no other port to try.
 */
#define REPLY_CHOICES 4

static __always_inline __u32 reply_bucket(const struct rw_settings *set, __u64 hash,
					  __be16 dport_be, __u32 choice)
{
	__u32 first = (__u32)hash + choice * ((__u32)(hash >> 32) | 1);

	return (first ^ (bpf_ntohs(dport_be) % REPLIES_TOGETHER)) & set->flow_mask;
}

/* Whether this live key, in this record, is the flow that t answers. */
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

/* The flow of a packet from a backend: its place, or 0. */
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

/* The same where a flow is most often, without a call. */
static __always_inline __u32 flow_of_reply(const struct rw_settings *set, const struct rw_tuple *t,
					   __u32 now, __u64 *key)
{
	__u32 number = reply_bucket(set, reply_hash(set, t), t->dport_be, 0), place = 0;
	struct rw_flow_bucket *bucket = bpf_map_lookup_elem(&flows, &number);
	struct flow_record of;
	__u64 found = 0;

	if (!bucket)
		return 0; /* an array element exists: for the verifier */
	for (__u32 i = 0; i < RW_BUCKET_FLOWS; i++) {
		found = READ_ONCE(bucket->flows[i].key);
		if (key_state(found) > RW_FLOW_CLAIMED &&
		    key_port(found) == bpf_ntohs(t->dport_be)) {
			place = number << 2 | (i + 1);
			break;
		}
	}
	if (!place && !set->source_client)
		return 0;
	of = record_at(place);
	if (of.flow && flow_answers(of.flow, found, *of.dport_be, t) &&
	    flow_alive(set, found, READ_ONCE(of.flow->seen), now)) {
		*key = found;
		trace_flow(place, found);
		return place;
	}
	return flow_by_reply(t, now, key);
}

/* The flow's word that holds where replies go. */
union way_back {
	struct {
		__u8 mac[6];
		__u8 iface;
		__u8 confirmed;
	};
	__u64 word;
};

/* Where a reply goes. */
struct flow_client {
	__u32 addr[4];
	__u32 iface;
	__u16 mac[3];
	__be16 port_be;
	__be16 dport_be; /* the port it talks to: the reply's source */
	__u16 service;
};

/* Reads all fields of one flow, whose key was *key when it was found. */
static __always_inline bool flow_read_client(__u32 place, __u64 *key, struct flow_client *client)
{
	struct flow_record of = record_at(place);
	struct rw_flow *flow = of.flow;

	if (!flow)
		return false;
	for (int reads = 0; reads < FLOW_READS; reads++) {
		union way_back way;
		__u64 before;

		barrier_var(flow);
		before = flow_key_read(flow);
		if (!same_flow(*key, before))
			return false;
		*key = before;
		copy_addr(client->addr, flow->client);
		way.word = READ_ONCE(*(__u64 *)flow->client_mac);
		copy_mac((__u8 *)client->mac, way.mac);
		client->iface = way.iface & ~RW_FLOW_SHIFTED;
		client->port_be = flow->client_port_be;
		client->dport_be = *of.dport_be;
		client->service = flow->service;
		if (flow_unchanged(flow, before))
			return true;
	}
	return false;
}

#endif
