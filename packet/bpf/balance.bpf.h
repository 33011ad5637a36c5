/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which flow, which backend? Replies first when they may be ours, then
 * services. A flow stays with its backend while that lives; a new one takes
 * the backend its slot of the ring names.
 */
#ifndef RINGWAY_BALANCE_H
#define RINGWAY_BALANCE_H

#include "claim.bpf.h"
#include "encap.bpf.h"
#include "refuse.bpf.h"
#include "reset.bpf.h"
#include "track.bpf.h"

struct chosen {
	struct rw_backend *backend;
	__u32 reference;
};

/* The ring's backend for a new flow; false when the ring has none. */
static __always_inline bool ring_choose(const struct packet *p, const struct rw_service *service,
					struct chosen *chosen)
{
	struct owners owners = {};

	if (!ring_owners(p->t, service, &owners) || !owners.current)
		return false;
	chosen->reference = owners.current;
	chosen->backend = backend_of(chosen->reference);
	return chosen->backend != NULL;
}

static __always_inline void count_request(const struct packet *p, __u32 reference, bool new_flow)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_traffic *t = bpf_map_lookup_elem(&traffic, &index);

	if (!t || dry)
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

	if (t && !dry) {
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

/* Two readings of a clock that counts seconds, so far apart, are a second apart at least. */
#define PROBATION_TICKS 2

/*
 * Written only when it changes: a busy flow dirties its line once a second. A
 * flow on probation keeps the time it began at, until a packet ends that; a
 * handshake that nobody answers does not.
 */
static __always_inline void flow_touch(struct rw_flow *flow, __u64 *key, __u8 state, __u32 now)
{
	__u32 idle = now - READ_ONCE(flow->seen);

	if (dry)
		return;
	if (idle && (flow->kept || state == RW_FLOW_SYN || state == RW_FLOW_SYN_ACK)) {
		WRITE_ONCE(flow->seen, now);
	} else if ((__s32)idle >= PROBATION_TICKS) {
		flow->kept = 1;
		WRITE_ONCE(flow->seen, now);
	}
	if (state != key_state(*key))
		flow_move(flow, key, state);
}

/* client -> backend, by a flow that exists or has just been opened. */
static __always_inline int nat_request(struct env *env, struct packet *p, __u64 key,
				       struct rw_backend *backend, bool new_flow)
{
	__u32 nat = key_nat_addr(key);
	struct rewrite to = {
		.saddr = p->t->saddr,
		.daddr = backend->addr,
		.sport_be = bpf_htons(key_port(key)),
		.dport_be = backend->port_be ?: p->t->dport_be,
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

/* May a packet leave for this backend now, behind so many more bytes? NONE: yes. */
static __always_inline enum rw_reason reachable(const struct packet *p,
						const struct rw_backend *backend, __u32 overhead)
{
	if (!(backend->flags & RW_BACKEND_RESOLVED))
		return RW_REASON_NO_NEIGHBOUR;
	return may_forward(p, backend->mtu - overhead);
}

/*
 * Sources that would make us talk to ourselves, or past ourselves. From an
 * address of the node's comes a health check that its backend has sent on, since
 * it lacks the service address: another backend's answer would count as its own.
 */
static __always_inline enum rw_reason refuse_source(const struct packet *p,
						    const struct rw_service *service)
{
	struct rw_service_key key = {};
	struct rw_service *entry;

	copy_addr(key.addr, p->t->saddr);
	entry = bpf_map_lookup_elem(&services, &key);
	if (!entry)
		return RW_REASON_NONE;
	if (entry->flags & RW_ADDR_SERVICE)
		return RW_REASON_LOOP;
	if ((entry->flags & RW_ADDR_NODE) && service->forward != RW_FORWARD_NAT)
		return RW_REASON_LOOP;
	if ((entry->flags & RW_ADDR_BACKEND) && (service->flags & RW_SVC_SOURCE_CLIENT))
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

/* Opens a flow, of which *key and *backend tell; or ends the packet, with *verdict. */
static __always_inline bool new_flow(struct xdp_md *ctx, struct env *env, struct packet *p,
				     const struct rw_service *service, __u64 *key,
				     struct rw_backend **backend, __u32 now, int *verdict)
{
	enum rw_reason refused = refuse_source(p, service);
	struct chosen chosen = {};
	struct rw_opening *open = &env->scratch->opening;

	if (refused) {
		*verdict = leave(env->books, RW_DROP, refused);
		return false;
	}
	if (!ring_choose(p, service, &chosen)) {
		*verdict = no_backend(ctx, env, p, service->flags);
		return false;
	}
	capture_backend(env->scratch, chosen.reference);
	refused = reachable(p, chosen.backend, 0);
	if (refused) {
		*verdict = refuse(ctx, env, p, refused, chosen.backend->mtu, NULL);
		return false;
	}
	open->backend = chosen.reference;
	open->iface = env->slot;
	open->now = now;
	open->service = (__u16)service->id;
	open->source_client = !!(service->flags & RW_SVC_SOURCE_CLIENT);
	copy_mac(open->mac, p->eth->h_source);
	refused = flow_open(p->t, &env->scratch->reply, open);
	if (refused >= RW_REASON_SPACE)
		refused = RW_REASON_NO_STATE;
	if (refused) {
		*verdict = leave(env->books, RW_DROP, refused);
		return false;
	}
	*key = open->key;
	*backend = chosen.backend;
	return true;
}

static __always_inline void flow_give_up(struct rw_flow *flow, __u64 *key)
{
	if (dry)
		trace.freed_key = *key;
	else
		flow_move(flow, key, RW_FLOW_FREE);
}

/* Is this segment the start of another connection on a finished one's tuple? */
static __always_inline bool starts_anew(const struct packet *p, __u8 state)
{
	return (p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN &&
	       state == RW_FLOW_CLOSED;
}

static __always_inline bool opens_flow(const struct packet *p)
{
	if (!p->l4)
		return false; /* a later fragment */
	return p->t->proto == IPPROTO_UDP ||
	       (p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* client -> backend of a dsr service, which answers past us. */
static __always_inline int dsr_request(struct xdp_md *ctx, struct env *env, struct packet *p,
				       const struct rw_service *service)
{
	bool begins = opens_flow(p), syn = begins && p->t->proto == IPPROTO_TCP;
	struct chosen chosen = {};
	enum rw_reason refused;
	__u32 overhead;

	if (begins) {
		refused = refuse_source(p, service);
		if (refused)
			return leave(env->books, RW_DROP, refused);
	}
	chosen.reference = dsr_owner(p->t, service, false, &refused);
	capture_backend(env->scratch, chosen.reference);
	if (refused)
		return leave(env->books, RW_DROP, refused);
	chosen.backend = backend_of(chosen.reference);
	if (!chosen.reference || !chosen.backend)
		return no_backend(ctx, env, p, service->flags);
	overhead = encap_overhead(service->forward, chosen.backend);
	refused = reachable(p, chosen.backend, overhead);
	if (refused)
		return refuse(ctx, env, p, refused, chosen.backend->mtu - overhead, NULL);
	/* The backend itself sends it on to us: it lacks the service address. */
	if (service->forward == RW_FORWARD_DSR_L2 &&
	    same_mac(p->eth->h_source, chosen.backend->dmac))
		return leave(env->books, RW_DROP, RW_REASON_LOOP);
	count_request(p, chosen.reference, syn);
	if (syn && chosen.backend->mss)
		mss_clamp(ctx, p->l4 - (void *)p->eth, chosen.backend->mss);
	return dsr_send(ctx, env, p, service->forward, chosen.backend, chosen.reference);
}

/* A packet of a flow that exists: what it changes in the record. */
static __always_inline void flow_follow(const struct env *env, const struct packet *p,
					struct rw_flow *flow, __u64 *key, __u32 now)
{
	flow_touch(flow, key, state_after_request(key_state(*key), p->t->tcp_flags), now);
	if (!same_mac(flow->client_mac, p->eth->h_source) && !dry)
		copy_mac(flow->client_mac, p->eth->h_source);
	if (flow->iface != env->slot && !dry)
		flow->iface = (__u8)env->slot;
}

/* Without a flow, or with one whose time is over, UDP and a SYN begin another;
 * anything else is reset. */
static __always_inline int request(struct xdp_md *ctx, struct env *env, struct packet *p,
				   const struct rw_service *service)
{
	enum rw_reason refused, reset = RW_REASON_RESET_NO_FLOW;
	struct rw_backend *backend = NULL;
	struct rw_flow *flow;
	__u64 key = 0;
	int verdict;
	__u32 now;

	capture_service(env->scratch, service->id);
	if (service->forward != RW_FORWARD_NAT)
		return dsr_request(ctx, env, p, service);
	now = now_seconds();
	flow = flow_at(flow_by_client(p->t, service->id, now, &key));
	if (flow) {
		backend = backend_of(key_backend(key));
		capture_backend(env->scratch, key_backend(key));
	}
	if (backend && (backend->flags & RW_BACKEND_UP) && !starts_anew(p, key_state(key))) {
		refused = reachable(p, backend, 0);
		if (refused)
			return refuse(ctx, env, p, refused, backend->mtu, NULL);
		flow_follow(env, p, flow, &key, now);
		return nat_request(env, p, key, backend, false);
	}
	if (opens_flow(p)) {
		if (flow)
			flow_give_up(flow, &key);
		if (!new_flow(ctx, env, p, service, &key, &backend, now, &verdict))
			return verdict;
		return nat_request(env, p, key, backend, true);
	}
	if (flow) {
		flow_touch(flow, &key, RW_FLOW_CLOSED, now);
		reset = RW_REASON_RESET_BACKEND_DOWN;
	}
	return send_reset(ctx, env, p, reset);
}

/* backend -> client. */
static __always_inline int nat_reply(struct xdp_md *ctx, struct env *env, struct packet *p,
				     __u32 place, __u64 key, __u32 now)
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
	if (!flow_read_client(place, &key, &client))
		return leave(env->books, RW_DROP, RW_REASON_NO_FLOW);
	id = client.service;
	capture_service(env->scratch, id);
	capture_backend(env->scratch, key_backend(key));
	info = bpf_map_lookup_elem(&service_info, &id);
	way = bpf_map_lookup_elem(&ifaces, &client.iface);
	if (!info || !way)
		return leave(env->books, RW_DROP, RW_REASON_NO_STATE);
	to.saddr = info->addr;
	to.sport_be = client.dport_be;
	to.daddr = client.addr;
	to.dport_be = client.port_be;
	refused = may_forward(p, way->mtu);
	/* Sent to the client's own address, the packet says nothing of ours. */
	if (refused)
		return refuse(ctx, env, p, refused, way->mtu,
			      key_nat_addr(key) == RW_NAT_CLIENT ? info->addr : NULL);
	flow_touch(flow, &key, state_after_reply(key_state(key), p->t->tcp_flags), now);
	count_reply(p, key_backend(key));
	rewrite(p, &to);
	return send_by(env, p, client.iface, (__u8 *)client.mac, RW_REASON_NAT_REPLY);
}

#endif
