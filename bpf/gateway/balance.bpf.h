/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Finds the flow and the backend. Replies come first if the packet may be one, then
 * services. A flow stays with its backend while that lives; a new one gets the
 * backend of its ring slot.
 */
#ifndef RINGWAY_BALANCE_H
#define RINGWAY_BALANCE_H

#include "claim.bpf.h"
#include "encap.bpf.h"
#include "faces.bpf.h"
#include "fragment.bpf.h"
#include "nat_state.bpf.h"
#include "partial.bpf.h"
#include "proxy.bpf.h"
#include "refuse.bpf.h"
#include "reset.bpf.h"
#include "shield/limits.bpf.h"
#include "track.bpf.h"

struct chosen {
	struct rw_backend *backend;
	__u32 reference;
};

/*
 * The ring's backend for a new flow; false when the ring has none. Rows are written before
 * rings: the ring may name a backend that has just gone, and then other slots are tried. Not under
 * dsr: the flow's next packet would find no record and use the ring alone.
 */
static __always_inline bool ring_choose(const struct packet *p, const struct rw_service *service,
					struct chosen *chosen)
{
	struct owners owners = {};
	__u32 other;

	if (!ring_owners(p->t, service, &owners) || !owners.current)
		return false;
	chosen->reference = owners.current;
	chosen->backend = backend_of(chosen->reference);
	if (chosen->backend &&
	    (chosen->backend->flags & RW_BACKEND_NEW_FLOWS) == RW_BACKEND_NEW_FLOWS)
		return true;
	other = ring_other(p->t, service);
	if (!other) { /* the ring's choice, unless that backend is dead */
		trace_ring(&owners);
		return chosen->backend && (chosen->backend->flags & RW_BACKEND_UP);
	}
	chosen->reference = other;
	chosen->backend = backend_of(other);
	return chosen->backend != NULL;
}

/* An unfinished checksum where none was expected: no device would finish it. */
static __always_inline void count_unfinished(const struct packet_context *pctx,
					     const struct packet *p, struct rw_traffic *t)
{
	if (p->check && !(pctx->in->flags & RW_IFACE_LOCAL))
		t->partial_checksums +=
			*p->check == csum_fold(csum_pseudo(p->t->saddr, p->t->daddr, p->v6,
							   p->t->proto, p->l4_len));
}

static __always_inline void count_request(const struct packet_context *pctx, const struct packet *p,
					  __u32 reference, bool new_flow)
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
	if (p->t->proto == IPPROTO_TCP)
		count_unfinished(pctx, p, t);
}

static __always_inline void count_damaged(const struct packet_context *pctx, const struct packet *p,
					  __u32 reference)
{
	__u32 index = RW_BACKEND_INDEX(reference);
	struct rw_traffic *t = bpf_map_lookup_elem(&traffic, &index);

	if (t && !dry)
		count_unfinished(pctx, p, t);
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

/* client -> backend, by a flow that exists or, without `flow`, has just been opened. */
static __always_inline int nat_request(struct xdp_md *ctx, struct packet_context *pctx,
				       struct packet *p, const struct rw_flow *flow, __u32 place,
				       __u64 key, struct rw_backend *backend)
{
	__u32 nat = key_nat_addr(key);
	struct rewrite to = {
		.saddr = p->t->saddr,
		.daddr = backend->addr,
		.sport_be = bpf_htons(key_port(key)),
		.dport_be = backend->port_be ?: p->t->dport_be,
	};

	count_request(pctx, p, key_backend(key), !flow);
	settle_checksum(pctx, p, backend->iface);
	if (flow && is_shifted(flow) && !shift_segment(ctx, place, key, false, p->unfinished))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_FLOW);
	if (nat != RW_NAT_CLIENT) {
		struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);

		if (!own)
			return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
		to.saddr = own->addr;
	}
	rewrite(p, &to);
	return send_by(pctx, p, backend->iface, backend->dmac, RW_REASON_NAT_FORWARD);
}

/* Whether a packet may leave for this backend with so many more bytes. NONE: yes. */
static __always_inline enum rw_reason reachable(const struct packet *p,
						const struct rw_backend *backend, __u32 overhead)
{
	if (!(backend->flags & RW_BACKEND_RESOLVED))
		return RW_REASON_NO_NEIGHBOUR;
	return may_forward(p, backend->mtu - overhead);
}

/*
 * Sources for which the gateway would send to itself, or past itself. A packet from the node's own
 * address is a health check that its backend has forwarded because it lacks the service address:
 * another backend's answer would count as its own.
 */
static __always_inline enum rw_reason refuse_source(const struct packet *p,
						    const struct rw_service *service)
{
	__u32 flags = address_flags(p->t->saddr);

	if (flags & RW_ADDR_SERVICE)
		return RW_REASON_LOOP;
	if ((flags & RW_ADDR_NODE) && service->forward != RW_FORWARD_NAT)
		return RW_REASON_LOOP;
	if ((flags & RW_ADDR_BACKEND) && (service->flags & RW_SVC_SOURCE_CLIENT))
		return RW_REASON_HAIRPIN;
	return RW_REASON_NONE;
}

static __always_inline int no_backend(struct xdp_md *ctx, struct packet_context *pctx,
				      struct packet *p, __u32 service_flags)
{
	if (p->t->proto == IPPROTO_TCP && (service_flags & RW_SVC_NONE_RESET))
		return send_reset(ctx, pctx, p, RW_REASON_RESET_NO_BACKEND);
	return leave(pctx->counters, RW_DROP, RW_REASON_NO_BACKEND);
}

/* Opens a flow and returns it in *key and *backend; or ends the packet with *verdict. */
static __always_inline bool new_flow(struct xdp_md *ctx, struct packet_context *pctx,
				     struct packet *p, const struct rw_service *service, __u64 *key,
				     struct rw_backend **backend, __u32 now, bool cookie,
				     int *verdict)
{
	enum rw_reason refused = RW_REASON_MARTIAN_SOURCE;
	struct chosen chosen = {};
	struct rw_opening *open = &pctx->scratch->opening;

	if (is_host(p->t->saddr, p->v6))
		refused = refuse_source(p, service);
	if (refused) {
		*verdict = leave(pctx->counters, RW_DROP, refused);
		return false;
	}
	if (!ring_choose(p, service, &chosen)) {
		*verdict = no_backend(ctx, pctx, p, service->flags);
		return false;
	}
	capture_backend(pctx->scratch, chosen.reference);
	refused = reachable(p, chosen.backend, 0);
	if (refused) {
		*verdict = refuse(ctx, pctx, p, refused, chosen.backend->mtu, NULL);
		return false;
	}
	open->backend = chosen.reference;
	open->iface = pctx->slot;
	open->now = now;
	open->service = (__u16)service->id;
	open->source_client = !!(service->flags & RW_SVC_SOURCE_CLIENT);
	copy_mac(open->mac, p->eth->h_source);
	open->isn = 0;
	if (p->t->proto == IPPROTO_TCP) {
		if (!segment_intact(pctx, p, p->l4 - (void *)p->eth)) {
			count_damaged(pctx, p, chosen.reference);
			*verdict = leave(pctx->counters, RW_DROP, RW_REASON_MALFORMED);
			return false;
		}
		open->isn = cookie ? isn_asked() : syn_isn(ctx, p);
	}
	open->shifted = cookie;
	refused = flow_open(p->t, &pctx->scratch->reply, open, chosen.backend);
	if (refused) {
		*verdict = leave(pctx->counters, RW_DROP, refused);
		return false;
	}
	*key = open->key;
	*backend = chosen.backend;
	return true;
}

static __always_inline void flow_give_up(const struct packet_context *pctx, struct rw_flow *flow,
					 __u64 key, __u32 now)
{
	if (dry)
		trace.freed_key = key;
	else if (flow_hold(flow, key))
		flow_release(pctx->set, flow, key, now);
}

/*
 * Whether this segment starts another connection on a finished one's tuple. After a
 * RST of the client's the backend may still have the connection, and says so. If the
 * backend takes no new flows, only a recent RST counts: a live connection refutes it
 * soon.
 */
static __always_inline bool starts_anew(const struct packet *p, const struct rw_flow *flow,
					__u8 state, const struct rw_backend *backend, __u32 now)
{
	if ((p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
		return false;
	if (state == RW_FLOW_CLOSED)
		return true;
	return state == RW_FLOW_RESET &&
	       (!(backend->flags & RW_BACKEND_TAKES_NEW) || is_shifted(flow)) &&
	       (__s32)(now - READ_ONCE(flow->seen)) >= PROBATION_TICKS;
}

static __always_inline bool opens_flow(const struct packet *p)
{
	if (!p->l4)
		return false; /* a later fragment */
	return p->t->proto == IPPROTO_UDP ||
	       (p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* Whether the gateway has begun a handshake for the flow that nobody goes on with. */
static __always_inline bool is_half_made(const struct rw_flow *flow, __u32 state, __u32 now)
{
	/* Else the verifier goes on once for each. */
	barrier_var(state);
	return state <= RW_FLOW_SYN_ACK && is_shifted(flow) &&
	       (__s32)(now - READ_ONCE(flow->seen)) >= PROBATION_TICKS;
}

/*
 * Whether a request stays with its flow's backend. A kept backend has only its
 * established flows: the SYN of a half-open one tries another backend.
 */
static __always_inline bool flow_stays(const struct packet *p, const struct rw_flow *flow,
				       __u8 state, const struct rw_backend *backend, __u32 now)
{
	if (!flow || !backend || !(backend->flags & RW_BACKEND_UP) ||
	    starts_anew(p, flow, state, backend, now))
		return false;
	/* Its client has been answered already, and would not ask again. */
	if (opens_flow(p) && is_half_made(flow, state, now))
		return false;
	return !(backend->flags & RW_BACKEND_KEPT) || state > RW_FLOW_SYN_ACK || !opens_flow(p);
}

/* Whether the client of this flow was reset because the backend is down. The backend's
 * next segment is then answered with a reset, too. */
static __always_inline bool flow_cut_off(const struct packet *p, __u64 key)
{
	struct rw_backend *backend = backend_of(key_backend(key));

	if (p->t->proto != IPPROTO_TCP || (p->t->tcp_flags & TCP_RST))
		return false;
	return key_state(key) == RW_FLOW_CLOSED && backend && !(backend->flags & RW_BACKEND_UP);
}

/* client -> backend of a dsr service, whose answers do not pass the gateway. */
static __always_inline int dsr_request(struct xdp_md *ctx, struct packet_context *pctx,
				       struct packet *p, const struct rw_service *service)
{
	bool begins = opens_flow(p), syn = begins && p->t->proto == IPPROTO_TCP;
	struct chosen chosen = {};
	enum rw_reason refused;
	__u32 overhead;

	if (!is_host(p->t->saddr, p->v6))
		return leave(pctx->counters, RW_DROP, RW_REASON_MARTIAN_SOURCE);
	if (same_addr(p->t->saddr, p->t->daddr))
		return leave(pctx->counters, RW_DROP, RW_REASON_LOOP);
	if (begins) {
		refused = refuse_source(p, service);
		if (refused)
			return leave(pctx->counters, RW_DROP, refused);
	}
	chosen.reference = dsr_owner(ctx, p, service, false, &refused);
	capture_backend(pctx->scratch, chosen.reference);
	if (refused)
		return leave(pctx->counters, RW_DROP, refused);
	chosen.backend = backend_of(chosen.reference);
	if (!chosen.reference || !chosen.backend)
		return no_backend(ctx, pctx, p, service->flags);
	overhead = encap_overhead(service->forward, chosen.backend);
	refused = reachable(p, chosen.backend, overhead);
	if (refused)
		return refuse(ctx, pctx, p, refused, chosen.backend->mtu - overhead, NULL);
	/* The backend forwards it to us: it lacks the service address. */
	if (service->forward == RW_FORWARD_DSR_L2 &&
	    same_mac(p->eth->h_source, chosen.backend->dmac))
		return leave(pctx->counters, RW_DROP, RW_REASON_LOOP);
	count_request(pctx, p, chosen.reference, syn);
	settle_checksum(pctx, p, chosen.backend->iface);
	if (syn && chosen.backend->mss)
		mss_clamp(ctx, p->l4 - (void *)p->eth, chosen.backend->mss, p->unfinished);
	return dsr_send(ctx, pctx, p, service->forward, chosen.backend, chosen.reference);
}

/* Updates the record for a packet of an existing flow. */
static __always_inline void flow_follow(const struct packet_context *pctx, const struct packet *p,
					struct rw_flow *flow, __u32 place, __u64 *key, __u32 now)
{
	flow_requested(pctx, p, flow, key, now);
	client_follow(pctx, p, flow, place, now);
}

/*
 * Under nat the fragments of all clients have one source at the backend, which may join
 * pieces of two clients: a checksum must detect that.
 */
static __always_inline bool is_mixable(const struct packet *p, const struct rw_service *service)
{
	return p->at->fragment == RW_FRAGMENT_FIRST && service->forward == RW_FORWARD_NAT &&
	       !p->v6 && p->t->proto == IPPROTO_UDP && p->check && !*p->check &&
	       !(service->flags & RW_SVC_SOURCE_CLIENT);
}

/* NONE, or why the packet is over the limits of its service. */
static __always_inline enum rw_reason limited(const struct rw_service *service, bool nat,
					      bool cookie, __u32 place, __u64 key)
{
	if (!(service->flags & RW_SVC_LIMITED))
		return RW_REASON_NONE;
	return over_limits(service->id, nat, cookie, place, key);
}

/* What only a handshake that the gateway makes has before the backend's answer. */
static __always_inline int early(struct xdp_md *ctx, struct packet_context *pctx,
				 const struct rw_flow *flow, __u32 place, __u64 key)
{
	if (!is_shifted(flow))
		return leave(pctx->counters, RW_DROP, RW_REASON_OUT_OF_STATE);
	pctx->scratch->opening.key = key;
	return shake_hands(ctx, pctx, RW_ICMP_ASK_AGAIN, place);
}

/* Without a live flow, UDP, a SYN and an ACK with a cookie start one; anything else is reset. */
static __always_inline int request(struct xdp_md *ctx, struct packet_context *pctx,
				   struct packet *p, const struct rw_service *service)
{
	enum rw_reason refused, reset = RW_REASON_RESET_NO_FLOW;
	struct rw_backend *backend = NULL;
	struct rw_flow *flow;
	__u32 now, place;
	__u64 key = 0;
	bool cookie;
	int verdict;

	capture_service(pctx->scratch, service->id);
	if (!takes_requests(pctx->in))
		return leave(pctx->counters, RW_DROP, RW_REASON_WRONG_INTERFACE);
	if (is_mixable(p, service))
		return leave(pctx->counters, RW_DROP, RW_REASON_FRAGMENT);
	if (service->forward != RW_FORWARD_NAT) {
		/* Backends open what cookies bring: to know it here is worth its time in a flood. */
		cookie = (service->flags & RW_SVC_SYN_COOKIES) && is_exceeded(service->id) &&
			 cookie_met(ctx, service->id, 0, 0);
		refused = limited(service, false, cookie, 0, 0);
		if (refused)
			return leave_shielded(pctx->counters, refused);
		note_first(pctx, p);
		return dsr_request(ctx, pctx, p, service);
	}
	now = now_seconds();
	place = flow_of_client(pctx->set, p->t, service->id, now, &key);
	flow = flow_at(place);
	if (flow) {
		backend = backend_of(key_backend(key));
		capture_backend(pctx->scratch, key_backend(key));
	}
	cookie = (service->flags & RW_SVC_SYN_COOKIES) && may_bring_cookie(key) &&
		 cookie_met(ctx, service->id, place, key);
	refused = limited(service, true, cookie, place, key);
	if (refused)
		return leave_shielded(pctx->counters, refused);
	note_first(pctx, p);
	if (!cookie && flow_stays(p, flow, key_state(key), backend, now)) {
		if (key_state(key) == RW_FLOW_SYN && (is_shifted(flow) || !handshakes(p)))
			return early(ctx, pctx, flow, place, key);
		refused = reachable(p, backend, 0);
		if (refused)
			return refuse(ctx, pctx, p, refused, backend->mtu, NULL);
		flow_follow(pctx, p, flow, place, &key, now);
		return nat_request(ctx, pctx, p, flow, place, key, backend);
	}
	if (cookie)
		return shake_hands(ctx, pctx, RW_ICMP_OPEN, 0);
	if (opens_flow(p)) {
		if (flow && p->t->proto == IPPROTO_TCP && !may_change(pctx, p))
			return leave(pctx->counters, RW_DROP, RW_REASON_MALFORMED);
		if (flow)
			flow_give_up(pctx, flow, key, now);
		if (!new_flow(ctx, pctx, p, service, &key, &backend, now, false, &verdict))
			return verdict;
		return nat_request(ctx, pctx, p, NULL, 0, key, backend);
	}
	if (flow) {
		if (p->t->proto == IPPROTO_TCP && !dry)
			flow_to(pctx->set, flow, &key, RW_FLOW_CLOSED);
		reset = RW_REASON_RESET_BACKEND_DOWN;
	}
	return send_reset(ctx, pctx, p, reset);
}

/* A segment of a former connection on this port: resets the backend's old socket. */
static __always_inline int stray_reply(struct xdp_md *ctx, struct packet_context *pctx,
				       struct packet *p)
{
	if (!p->l4)
		return leave(pctx->counters, RW_DROP, RW_REASON_OUT_OF_STATE);
	return send_reset(ctx, pctx, p, RW_REASON_RESET_STRAY);
}

/* backend -> client. */
static __always_inline int nat_reply(struct xdp_md *ctx, struct packet_context *pctx,
				     struct packet *p, __u32 place, __u64 key, __u32 now)
{
	struct rw_flow *flow = flow_at(place);
	struct rw_service_info *info;
	struct flow_client client;
	struct rw_backend *backend;
	struct rewrite to = {};
	struct rw_iface *way;
	enum rw_reason refused;
	__u32 id;

	if (!flow)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	if (!flow_read_client(place, &key, &client))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_FLOW);
	id = client.service;
	capture_service(pctx->scratch, id);
	capture_backend(pctx->scratch, key_backend(key));
	backend = backend_of(key_backend(key));
	if (!takes_replies(pctx->in, pctx->slot, backend))
		return leave(pctx->counters, RW_DROP, RW_REASON_WRONG_INTERFACE);
	note_first(pctx, p);
	if (key_state(key) == RW_FLOW_SYN && is_stray(pctx, p, flow))
		return stray_reply(ctx, pctx, p);
	info = bpf_map_lookup_elem(&service_info, &id);
	way = bpf_map_lookup_elem(&ifaces, &client.iface);
	if (!info || !way)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	if (flow_cut_off(p, key))
		return send_reset(ctx, pctx, p, RW_REASON_RESET_BACKEND_DOWN);
	to.saddr = info->addr;
	to.sport_be = client.dport_be;
	to.daddr = client.addr;
	to.dport_be = client.port_be;
	refused = may_forward(p, way->mtu);
	/* Sent to the client's own address, the packet does not name a nat address. */
	if (refused)
		return refuse(ctx, pctx, p, refused, way->mtu,
			      key_nat_addr(key) == RW_NAT_CLIENT ? info->addr : NULL);
	settle_checksum(pctx, p, client.iface);
	if (is_shifted(flow)) {
		if ((p->t->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
			return shake_hands(ctx, pctx, RW_ICMP_ANSWERED, place);
		if (!shift_segment(ctx, place, key, true, p->unfinished))
			return leave(pctx->counters, RW_DROP, RW_REASON_NO_FLOW);
	}
	if (!flow_replied(pctx, p, flow, &key, now, is_its_own(pctx->in, p->eth, backend)))
		return leave(pctx->counters, RW_DROP, RW_REASON_OUT_OF_STATE);
	count_reply(p, key_backend(key));
	rewrite(p, &to);
	return send_by(pctx, p, client.iface, (__u8 *)client.mac, RW_REASON_NAT_REPLY);
}

#endif
