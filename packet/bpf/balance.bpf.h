/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which flow, which backend? Replies first when they may be ours, then
 * services. A flow stays with its backend while that lives; a new one takes
 * the backend its slot of the ring names.
 */
#ifndef RINGWAY_BALANCE_H
#define RINGWAY_BALANCE_H

#include "claim.bpf.h"
#include "reset.bpf.h"

/* The ring's hash starts alike on every node: same flow, same slot. */
#define RING_SEED 0x52494e47574159ull

struct chosen {
	struct rw_backend *backend;
	__u32 reference;
};

static __always_inline struct rw_backend *backend_of(__u32 reference)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_backend *backend = bpf_map_lookup_elem(&backends, &index);

	if (!backend || backend->generation != RW_BACKEND_GENERATION(reference))
		return NULL;
	return backend;
}

static __always_inline __u32 ring_slot(const struct packet *p)
{
	__u64 h = hash_addr(hash_addr(RING_SEED, p->t->saddr), p->t->daddr);

	h = hash_end(hash_word(h, (__u64)p->t->sport_be << 32 | (__u64)p->t->dport_be << 16 |
					  p->t->proto));
	return (__u32)(((h >> 32) * RW_RING_SLOTS) >> 32);
}

/* The ring's backend for this packet; false when the ring has none. */
static __always_inline bool ring_choose(const struct packet *p, __u32 id, struct chosen *chosen)
{
	void *inner = bpf_map_lookup_elem(&rings, &id);
	__u32 zero = 0, slot = ring_slot(p);
	struct rw_ring *ring;
	__u32 member;

	if (!inner)
		return false;
	ring = bpf_map_lookup_elem(inner, &zero);
	/* clang proves the bound and drops the check; the verifier of 6.1 cannot. */
	barrier_var(slot);
	if (!ring || slot >= RW_RING_SLOTS)
		return false;
	member = ring->slots[slot];
	if (member >= RW_MAX_MEMBERS)
		return false;
	chosen->reference = ring->backends[member];
	chosen->backend = backend_of(chosen->reference);
	return chosen->backend != NULL;
}

static __always_inline void count_request(const struct packet *p, __u32 reference, bool new_flow)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_traffic *t = bpf_map_lookup_elem(&traffic, &index);

	if (!t)
		return;
	t->packets++;
	t->bytes += p->l3_len;
	if (!new_flow)
		return;
	t->flows++;
	/* A local stack with checksum offload leaves just the pseudo-header's sum
	 * there (CHECKSUM_PARTIAL): our change to it cannot come out right. */
	if (p->t->proto == IPPROTO_TCP && p->check)
		t->partial_checksums +=
			*p->check == csum_fold(csum_pseudo(p->t->saddr, p->t->daddr, p->v6,
							   p->t->proto, p->l4_len));
}

static __always_inline void count_reply(const struct packet *p, __u32 reference)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_traffic *t = bpf_map_lookup_elem(&traffic, &index);

	if (t) {
		t->reply_packets++;
		t->reply_bytes += p->l3_len;
	}
}

/* A flow's next state, by who sent the segment. */
static __always_inline __u8 state_after_request(__u8 state, __u8 tcp_flags)
{
	if (tcp_flags & TCP_RST)
		return RW_FLOW_CLOSED;
	if (tcp_flags & TCP_FIN) {
		if (state == RW_FLOW_FIN_BACKEND)
			return RW_FLOW_CLOSED;
		return state == RW_FLOW_CLOSED ? state : RW_FLOW_FIN_CLIENT;
	}
	return state == RW_FLOW_SYN_ACK && (tcp_flags & TCP_ACK) ? RW_FLOW_ESTABLISHED : state;
}

static __always_inline __u8 state_after_reply(__u8 state, __u8 tcp_flags)
{
	if (state == RW_FLOW_UDP_NEW)
		return RW_FLOW_UDP;
	if (tcp_flags & TCP_RST)
		return RW_FLOW_CLOSED;
	if (tcp_flags & TCP_FIN) {
		if (state == RW_FLOW_FIN_CLIENT)
			return RW_FLOW_CLOSED;
		return state == RW_FLOW_CLOSED ? state : RW_FLOW_FIN_BACKEND;
	}
	return state == RW_FLOW_SYN && (tcp_flags & TCP_SYN) ? RW_FLOW_SYN_ACK : state;
}

/* Written only when it changes: a busy flow dirties its line once a second. */
static __always_inline void flow_touch(struct rw_flow *flow, __u64 *key, __u8 state, __u32 now)
{
	if (READ_ONCE(flow->seen) != now)
		WRITE_ONCE(flow->seen, now);
	if (state != key_state(*key))
		flow_move(flow, key, state);
}

/* client -> backend, by a flow that exists. */
static __always_inline int nat_request(struct env *env, struct packet *p, __u64 key,
				       struct rw_backend *backend, bool new_flow)
{
	__u32 nat = key_nat_addr(key);
	struct rewrite to = {
		.saddr = p->t->saddr,
		.daddr = backend->addr,
		.sport_be = bpf_htons(key_port(key)),
		.dport_be = backend->port_be,
	};

	if (nat != RW_NAT_CLIENT) {
		struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);

		if (!own)
			return leave(env->books, RW_DROP, RW_REASON_NO_STATE);
		to.saddr = own->addr;
	}
	count_request(p, key_backend(key), new_flow);
	rewrite(p, &to);
	return send_by(env, p, backend->iface, backend->dmac, RW_REASON_NAT_FORWARD);
}

/* May a packet leave for this backend now? NONE: yes. */
static __always_inline enum rw_reason reachable(const struct packet *p,
						const struct rw_backend *backend)
{
	if (!(backend->flags & RW_BACKEND_RESOLVED))
		return RW_REASON_NO_NEIGHBOUR;
	return may_forward(p, backend->mtu);
}

/* Sources that would make us talk to ourselves, or past ourselves. */
static __always_inline enum rw_reason refuse_source(const struct packet *p, __u32 service_flags)
{
	struct rw_service_key key = {};
	struct rw_service *entry;

	copy_addr(key.addr, p->t->saddr);
	entry = bpf_map_lookup_elem(&services, &key);
	if (!entry)
		return RW_REASON_NONE;
	if (entry->flags & RW_ADDR_SERVICE)
		return RW_REASON_LOOP;
	if ((entry->flags & RW_ADDR_BACKEND) && (service_flags & RW_SVC_SOURCE_CLIENT))
		return RW_REASON_HAIRPIN;
	return RW_REASON_NONE;
}

static __always_inline int no_backend(struct xdp_md *ctx, struct env *env, struct packet *p,
				      __u32 service_flags)
{
	if (p->t->proto == IPPROTO_TCP && (service_flags & RW_SVC_NONE_RESET))
		return send_reset(ctx, env, p, RW_REASON_RESET_NO_BACKEND);
	return leave(env->books, RW_DROP, RW_REASON_NO_BACKEND);
}

static __always_inline int new_flow(struct xdp_md *ctx, struct env *env, struct packet *p,
				    const struct rw_service *service)
{
	enum rw_reason refused = refuse_source(p, service->flags);
	struct chosen chosen = {};
	struct rw_opening *open = &env->scratch->opening;

	if (refused)
		return leave(env->books, RW_DROP, refused);
	if (!ring_choose(p, service->ring, &chosen))
		return no_backend(ctx, env, p, service->flags);
	refused = reachable(p, chosen.backend);
	if (refused)
		return leave(env->books, RW_DROP, refused);
	open->backend = chosen.reference;
	open->iface = env->slot;
	open->now = env->now;
	open->service = (__u16)service->id;
	open->source_client = !!(service->flags & RW_SVC_SOURCE_CLIENT);
	copy_mac(open->mac, p->eth->h_source);
	refused = flow_open(p->t, &env->scratch->reply, open);
	if (refused >= RW_REASON_SPACE)
		refused = RW_REASON_NO_STATE;
	if (refused)
		return leave(env->books, RW_DROP, refused);
	return nat_request(env, p, open->key, chosen.backend, true);
}

/* Is this segment the start of another connection on a finished one's tuple? */
static __always_inline bool starts_anew(const struct packet *p, __u8 state)
{
	return (p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN &&
	       state == RW_FLOW_CLOSED;
}

static __always_inline bool opens_flow(const struct packet *p)
{
	return p->t->proto == IPPROTO_UDP ||
	       (p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

static __always_inline int request(struct xdp_md *ctx, struct env *env, struct packet *p,
				   const struct rw_service *service)
{
	__u64 key = 0;
	struct rw_flow *flow = flow_at(flow_by_client(p->t, service->id, env->now, &key));
	struct rw_backend *backend;
	enum rw_reason refused;

	if (!flow) {
		if (opens_flow(p))
			return new_flow(ctx, env, p, service);
		return send_reset(ctx, env, p, RW_REASON_RESET_NO_FLOW);
	}
	backend = backend_of(key_backend(key));
	if (!backend || !(backend->flags & RW_BACKEND_UP) || starts_anew(p, key_state(key))) {
		/* The flow's time is over: UDP and a SYN begin another. */
		if (opens_flow(p)) {
			flow_move(flow, &key, RW_FLOW_FREE);
			return new_flow(ctx, env, p, service);
		}
		flow_touch(flow, &key, RW_FLOW_CLOSED, env->now);
		return send_reset(ctx, env, p, RW_REASON_RESET_BACKEND_DOWN);
	}
	refused = reachable(p, backend);
	if (refused)
		return leave(env->books, RW_DROP, refused);
	flow_touch(flow, &key, state_after_request(key_state(key), p->t->tcp_flags), env->now);
	if (!same_mac(flow->client_mac, p->eth->h_source))
		copy_mac(flow->client_mac, p->eth->h_source);
	if (flow->iface != env->slot)
		flow->iface = (__u8)env->slot;
	return nat_request(env, p, key, backend, false);
}

/* backend -> client. */
static __always_inline int nat_reply(struct env *env, struct packet *p, __u32 place, __u64 key)
{
	struct rw_flow *flow = flow_at(place);
	struct rw_service_info *info;
	struct flow_client client;
	struct rewrite to = {};
	struct rw_iface *way;
	enum rw_reason refused;
	__u32 id;

	if (!flow)
		return leave(env->books, RW_DROP, RW_REASON_NO_STATE);
	if (!flow_read_client(flow, &key, &client))
		return leave(env->books, RW_DROP, RW_REASON_NO_FLOW);
	id = client.service;
	info = bpf_map_lookup_elem(&service_info, &id);
	way = bpf_map_lookup_elem(&ifaces, &client.iface);
	if (!info || !way)
		return leave(env->books, RW_DROP, RW_REASON_NO_STATE);
	to.saddr = info->addr;
	to.sport_be = info->port_be;
	to.daddr = client.addr;
	to.dport_be = client.port_be;
	refused = may_forward(p, way->mtu);
	if (refused)
		return leave(env->books, RW_DROP, refused);
	flow_touch(flow, &key, state_after_reply(key_state(key), p->t->tcp_flags), env->now);
	count_reply(p, key_backend(key));
	rewrite(p, &to);
	return send_by(env, p, client.iface, (__u8 *)client.mac, RW_REASON_NAT_REPLY);
}

#endif
