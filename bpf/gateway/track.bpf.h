/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracked flows: a change of the ring must not move flows. Only flows of changed
 * slots of dsr services have a record here; the slots of a ring that has not changed
 * for a while need none (balancer/plan/src/history.rs).
 *
 * In a changed slot a flow with a record goes where the record says. A SYN without
 * a record goes to the current owner and gets one, and so does an ACK with a cookie.
 * Any other packet without a record is older than the change: it goes to the former
 * owner, and gets a record so that it stays while it is busy. A new flow that finds no room also goes to the former owner,
 * which is where flows without a record are looked for.
 *
 * A new record is on probation until its flow has sent packets more than a
 * second apart; only such records make room for new ones. A spoofed ACK looks like a
 * client's, because answers do not pass the gateway: each source prefix (/24, /64)
 * may therefore open a limited number of records in a second.
 *
 * A plain array without locks: a record is taken by compare-and-swap of `who`, and
 * read like a seqlock. A record that is idle for too long is free in place.
 *
 * A FIN or RST may be forged, and the answers that refute it do not pass: it
 * shortens its record's life until data follows, or anything after a pause, and
 * a SYN leads elsewhere only after such a pause.
 */
#ifndef RINGWAY_TRACK_H
#define RINGWAY_TRACK_H

#include "parse.bpf.h"
#include "proxy.bpf.h"
#include "ring.bpf.h"

#define TRACK_FREE 0
#define TRACK_BEING_WRITTEN 1

/* Ticks between two packets of a flow that prove more than a second. */
#define TRACK_APART 2

#define TRACK_SLOT_MASK ((1ull << RW_TRACK_SLOT_BITS) - 1)
#define TRACK_SEEN_MASK ((1u << RW_TRACK_SEEN_BITS) - 1)

/* Input and result of track_known() and track_unknown(). */
struct tracked {
	struct owners owners;
	__u32 service; /* its id */
	__u32 now;     /* seconds */
	bool look;     /* dry: nothing is opened or touched */
	bool data;     /* of TCP: it carries some, and neither SYN nor RST */
	bool cookie;   /* it brings one back */
	bool cookies;  /* it may be such an ACK */
	bool other;    /* out: then the record that was found is of another connection */
	__u32 refused; /* out: reason, or NONE */
};

/* The two buckets of one line each in which a flow's record may lie. */
struct track_place {
	__u64 who;
	__u32 bucket[2];
};

static __always_inline struct track_place
track_place(const struct rw_settings *set, const struct rw_tuple *t, __u32 service, __u32 slot)
{
	__u64 ports = (__u64)t->sport_be << 32 | (__u64)t->dport_be << 16 | t->proto;
	__u64 sum = keyed_tuple(set, t, ports) + set->keys[5] * (service + 1ull);
	__u64 h = hash_end(sum), g = hash_end(sum + set->keys[0]);
	struct track_place at;

	at.who = (h & ~TRACK_SLOT_MASK) | slot;
	/* Avoids the two values with another meaning. */
	if (at.who <= TRACK_BEING_WRITTEN)
		at.who |= 1ull << RW_TRACK_SLOT_BITS;
	at.bucket[0] = (__u32)(((g >> 32) * set->track_buckets) >> 32);
	at.bucket[1] = (__u32)(((g & 0xffffffff) * set->track_buckets) >> 32);
	return at;
}

static __always_inline __u64 track_what(__u32 backend, __u32 seen, __u32 state)
{
	return backend | (__u64)(seen & TRACK_SEEN_MASK) << 32 | (__u64)state << 60;
}

static __always_inline __u32 track_state(__u64 what)
{
	return (__u32)(what >> 60);
}

/* Seconds since a record was seen; another CPU's clock may be a tick ahead. */
static __always_inline __s32 track_age(__u64 what, __u32 now)
{
	__u32 past = (now - (__u32)(what >> 32)) & TRACK_SEEN_MASK;

	return (__s32)(past << (32 - RW_TRACK_SEEN_BITS)) >> (32 - RW_TRACK_SEEN_BITS);
}

static __always_inline bool track_alive(const struct rw_settings *set, __u64 what, __u32 now)
{
	__u32 state = track_state(what), timeout = set->timeout[RW_FLOW_ESTABLISHED];

	if (state & RW_TRACK_UDP)
		timeout = set->timeout[RW_FLOW_UDP];
	else if (state & RW_TRACK_CLOSING)
		timeout = set->timeout[RW_FLOW_FIN_CLIENT];
	else if (state & RW_TRACK_SYN)
		timeout = set->timeout[RW_FLOW_SYN];
	return track_age(what, now) <= (__s32)timeout;
}

static __always_inline bool is_syn(const struct rw_tuple *t)
{
	return t->proto == IPPROTO_TCP &&
	       (t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* A packet of a tracked flow: its record is written when something changes,
 * for a busy flow once a second. On probation `seen` is the first packet's. */
static __always_inline void track_touch(struct rw_track *track, __u64 what,
					const struct rw_tuple *t, const struct tracked *ask)
{
	__u32 now = ask->now;
	__u32 state = track_state(what), seen = (__u32)(what >> 32) & TRACK_SEEN_MASK;
	__s32 age = track_age(what, now);
	struct rw_tracking *count;
	__u64 next;

	if (!is_syn(t)) {
		state &= ~RW_TRACK_SYN;
		if (t->tcp_flags & (TCP_FIN | TCP_RST))
			state |= RW_TRACK_CLOSING;
		else if (ask->data || age >= TRACK_APART)
			state &= ~RW_TRACK_CLOSING;
		if (age >= TRACK_APART)
			state |= RW_TRACK_PROMOTED;
	}
	if ((state & RW_TRACK_PROMOTED) && age > 0)
		seen = now;
	next = track_what((__u32)what, seen, state);
	if (next == what || dry || __sync_val_compare_and_swap(&track->what, what, next) != what)
		return;
	if ((state & ~track_state(what)) & RW_TRACK_PROMOTED) {
		count = RW_ONLY(tracking);
		if (count)
			count->promoted++;
	}
}

/*
 * Whether a SYN on this tuple may go elsewhere: it is another connection on a finished
 * one's tuple, or the backend did not answer it before its checks failed.
 */
static __always_inline bool track_is_over(__u64 what, const struct rw_backend *backend, __u32 now)
{
	if (track_state(what) & RW_TRACK_CLOSING)
		return track_age(what, now) >= TRACK_APART;
	return (track_state(what) & RW_TRACK_SYN) && (backend->flags & RW_BACKEND_KEPT);
}

/* The backend of a flow with a live record; 0: it has none. */
static __always_inline __u32 track_find(const struct rw_settings *set, const struct track_place *at,
					const struct rw_tuple *t, struct tracked *ask)
{
	__u32 now = ask->now;

	for (int b = 0; b < 2; b++) {
		__u32 number = at->bucket[b & 1];
		struct rw_track_bucket *bucket = bpf_map_lookup_elem(&tracked, &number);

		if (!bucket)
			return 0;
		for (int i = 0; i < RW_BUCKET_TRACKS; i++) {
			struct rw_track *track = &bucket->tracks[i];
			struct rw_backend *backend;
			__u64 what;

			/* A plain load first: most records are others'. */
			if (READ_ONCE(track->who) != at->who ||
			    read_ordered(&track->who) != at->who)
				continue;
			what = READ_ONCE(track->what);
			if (read_ordered(&track->who) != at->who || !track_alive(set, what, now))
				continue;
			backend = backend_of((__u32)what);
			if (!backend || !(backend->flags & RW_BACKEND_UP))
				continue;
			ask->other = track_is_over(what, backend, now) && !ask->look &&
				     (ask->cookies || is_syn(t));
			if (ask->other && is_syn(t))
				continue;
			if (!ask->look && !ask->other)
				track_touch(track, what, t, ask);
			return (__u32)what;
		}
	}
	return 0;
}

/* Whether this source prefix may open another record in this second. */
static __always_inline bool track_within_quota(const struct rw_settings *set,
					       const struct rw_tuple *t, __u32 now)
{
	__u64 prefix = (__u64)t->saddr[0] << 32 | t->saddr[1], hash;
	__u32 number;
	__u64 *quota, value;

	if (!prefix && t->saddr[2] == bpf_htonl(0xffff))
		prefix = t->saddr[3] & bpf_htonl(0xffffff00);
	hash = hash_end(nh_pair(set->keys[1], (__u32)prefix, (__u32)(prefix >> 32)));
	number = (__u32)(hash >> 32) % RW_TRACK_QUOTAS;
	quota = bpf_map_lookup_elem(&track_quotas, &number);
	if (!quota)
		return false;
	value = READ_ONCE(*quota);
	if ((__u32)(value >> 32) != now) {
		if (!dry)
			WRITE_ONCE(*quota, (__u64)now << 32 | 1);
		return true;
	}
	if (set->track_quota && (__u32)value >= set->track_quota)
		return false;
	if (!dry)
		__sync_fetch_and_add(quota, 1);
	return true;
}

#define TRACK_WORTH_OWN 0xffffffff
#define TRACK_WORTH_FREE 0xfffffffe

/* How readily a record makes room: 0 not at all. */
static __always_inline __u32 track_worth(const struct rw_settings *set, __u64 who, __u64 what,
					 __u64 wanted, __u32 now)
{
	if (who == TRACK_BEING_WRITTEN)
		return 0;
	/* A stale record of this very flow first: it must not stay beside the new one. */
	if (who == wanted)
		return TRACK_WORTH_OWN;
	if (who == TRACK_FREE || !track_alive(set, what, now))
		return TRACK_WORTH_FREE;
	if (track_state(what) & RW_TRACK_PROMOTED)
		return 0;
	/* The oldest on probation, but only after its two seconds. */
	return track_age(what, now) > TRACK_APART ? (__u32)track_age(what, now) : 0;
}

/* Flows without a record go to the former owner while there may be any. */
static __always_inline void track_failed(__u32 service, __u32 now)
{
	__u32 *failed = bpf_map_lookup_elem(&untracked, &service);

	if (failed && !dry && READ_ONCE(*failed) != now)
		WRITE_ONCE(*failed, now);
}

/* The flow of a record that gives way. If it has sent more than SYNs, it goes to its
 * slot's former owner from now on, which must stay the same. */
static __always_inline void track_evicted(struct rw_tracking *count, __u64 what, __u32 now)
{
	struct rw_backend *backend = backend_of((__u32)what);

	count->evicted++;
	if (backend && !(track_state(what) & RW_TRACK_SYN))
		track_failed(backend->service, now);
}

/* The record of a bucket that makes room most readily. */
struct track_room {
	struct rw_track_bucket *bucket;
	__u32 number;
	__u32 worth; /* 0: none makes room */
	__u32 free;  /* records of the bucket that are */
};

static __always_inline void track_find_room(const struct rw_settings *set, __u64 wanted, __u32 now,
					    struct track_room *room)
{
	for (__u32 i = 0; i < RW_BUCKET_TRACKS; i++) {
		__u64 who = READ_ONCE(room->bucket->tracks[i].who);
		__u64 what = READ_ONCE(room->bucket->tracks[i].what);
		__u32 worth = track_worth(set, who, what, wanted, now);

		verifier_forget(worth, what);
		if (worth > room->worth) {
			room->worth = worth;
			room->number = i;
		}
		room->free += worth == TRACK_WORTH_FREE;
		verifier_forget(room->worth, what);
		verifier_forget(room->number, what);
		verifier_forget(room->free, what);
	}
}

/* Opens a record. False: there is no room. */
static __always_inline bool track_open(const struct rw_settings *set, const struct track_place *at,
				       __u64 what, __u32 now, struct rw_tracking *count)
{
	struct track_room room = {};
	struct rw_track *best;
	__u64 who, was;

	for (int b = 0; b < 2; b++) {
		struct track_room that = {};
		__u32 number = at->bucket[b & 1];

		that.bucket = bpf_map_lookup_elem(&tracked, &number);
		if (!that.bucket)
			return false;
		track_find_room(set, at->who, now, &that);
		/* Of two buckets the emptier one: both stay half as full. */
		if (that.worth > room.worth || (that.worth == TRACK_WORTH_FREE &&
						that.worth == room.worth && that.free > room.free))
			room = that;
	}
	if (!room.worth || !room.bucket)
		return false;
	if (dry)
		return true;
	best = &room.bucket->tracks[room.number % RW_BUCKET_TRACKS];
	who = READ_ONCE(best->who);
	was = READ_ONCE(best->what);
	if (track_worth(set, who, was, at->who, now) != room.worth ||
	    __sync_val_compare_and_swap(&best->who, who, TRACK_BEING_WRITTEN) != who)
		return false;
	/* It may have become live since it was read. */
	if (READ_ONCE(best->what) != was) {
		WRITE_ONCE(best->who, who);
		return false;
	}
	/* Exchanges, not stores: `what` is written before `who` names its flow. */
	__sync_lock_test_and_set(&best->what, what);
	__sync_lock_test_and_set(&best->who, at->who);
	if (room.worth < TRACK_WORTH_FREE)
		track_evicted(count, was, now);
	return true;
}

static __always_inline bool backend_has(__u32 reference, __u8 flag)
{
	struct rw_backend *backend = reference ? backend_of(reference) : NULL;

	return backend && (backend->flags & flag);
}

/* The backend of a packet in a changed slot, by its flow's record: its reference; 0: it has none. Not
 * inlined, so that it is verified once. */
__noinline __u32 track_known(const struct rw_tuple *t, struct tracked *ask)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct track_place at;
	__u32 found;

	if (!set || !t || !ask)
		return 0;
	at = track_place(set, t, ask->service, ask->owners.slot);
	found = track_find(set, &at, t, ask);
	if (dry)
		trace.tracked = !!found;
	return found;
}

/* Whether the packet opens a connection: with syn = "backend" the gateway has answered its SYN, and an
 * ACK is the first that a backend meets. One that may have been opened before the change, and has been
 * silent since, is its former owner's, as long as that takes others. */
static __always_inline bool opens_tracked(const struct rw_tuple *t, const struct tracked *ask)
{
	return is_syn(t) ||
	       (ask->cookie && (ask->other || ask->now - ask->owners.since > COOKIE_SECONDS ||
				!backend_has(ask->owners.former, RW_BACKEND_TAKES_NEW)));
}

/* The slot is settling, or its former owner has just died: flows need no record. */
static __always_inline bool needs_no_record(const struct owners *owners)
{
	return owners->current == owners->former || !backend_has(owners->former, RW_BACKEND_UP);
}

/* The same of a packet whose flow has no record, or that of another connection, and may get one; 0:
 * nobody, or the packet is refused (ask->refused). */
__noinline __u32 track_unknown(const struct rw_tuple *t, struct tracked *ask)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_tracking *count = RW_ONLY(tracking);
	__u32 current, former, state, owner, syn, opens;
	struct track_place at;

	if (!set || !count || !t || !ask)
		return 0;
	ask->refused = RW_REASON_NONE;
	current = ask->owners.current;
	former = ask->owners.former;
	opens = opens_tracked(t, ask);
	at = track_place(set, t, ask->service, ask->owners.slot);
	if (ask->other && !opens) {
		ask->cookies = false;
		return track_find(set, &at, t, ask);
	}
	if (!ask->other && needs_no_record(&ask->owners))
		return current;
	owner = opens ? current : former;
	if (!owner)
		return 0;
	syn = is_syn(t);
	state = t->proto == IPPROTO_UDP ? RW_TRACK_UDP : syn ? RW_TRACK_SYN : 0;
	if (!syn && (t->tcp_flags & (TCP_FIN | TCP_RST)))
		state |= RW_TRACK_CLOSING;
	/* Else the verifier goes on once for each. */
	verifier_forget(former, ask->now);
	verifier_forget(state, ask->now);
	verifier_forget(syn, ask->now);
	verifier_forget(opens, ask->now);
	if (!track_within_quota(set, t, ask->now)) {
		ask->refused = RW_REASON_TRACK_QUOTA;
		count->refused_quota++;
	} else if (!track_open(set, &at, track_what(owner, ask->now, state), ask->now, count)) {
		ask->refused = RW_REASON_TRACK_FULL;
		count->refused_full++;
	} else {
		count->opened += opens;
		count->adopted += !opens;
		return owner;
	}
	/* The client of a cookie is connected, and would not ask again. */
	if (syn && !backend_has(former, RW_BACKEND_TAKES_NEW))
		return 0;
	ask->refused = RW_REASON_NONE;
	track_failed(ask->service, ask->now);
	return former;
}

/*
 * The backend of a packet to a dsr service: its reference; 0: the service has
 * none for it, or, with a reason in *refused, the packet is dropped.
 */
static __always_inline __u32 dsr_owner(struct xdp_md *ctx, const struct packet *p,
				       const struct rw_service *service, bool look,
				       enum rw_reason *refused)
{
	struct tracked ask = {};
	__u32 reference, why;

	*refused = RW_REASON_NONE;
	if (!ring_owners(p->t, service, &ask.owners))
		return 0;
	if (!ask.owners.changed)
		return ask.owners.current;
	ask.service = service->id;
	ask.now = now_seconds();
	ask.look = look;
	ask.data = carries_data(ctx, p);
	ask.cookies = !look && (service->flags & RW_SVC_SYN_COOKIES);
	reference = track_known(p->t, &ask);
	if (look) { /* at the flow of a quoted packet, which opens none */
		if (!reference)
			reference = needs_no_record(&ask.owners) ? ask.owners.current :
								   ask.owners.former;
	} else if (!reference || ask.other) {
		ask.cookie = ask.cookies && cookie_met(ctx, service->id, 0, 0);
		reference = track_unknown(p->t, &ask);
	}
	why = ask.refused;
	if (dry)
		trace.chosen = reference;
	/* Otherwise clang joins the checks into one that tells the verifier of 6.1 nothing. */
	barrier_var(why);
	*refused = why < RW_REASON_SPACE ? why : RW_REASON_NO_STATE;
	return reference;
}

#endif
