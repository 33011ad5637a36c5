/* SPDX-License-Identifier: GPL-2.0-only */
/* What leaves in place of the segments of a handshake that the gateway makes (proxy.bpf.h). */
#ifndef RINGWAY_HANDSHAKE_H
#define RINGWAY_HANDSHAKE_H

#include "balance.bpf.h"
#include "proxy.bpf.h"
#include "service.bpf.h"

/* Whether the segment in scratch, of a flow whose backend has not answered yet, is its client's ACK
 * once more. Then syn_rooms has the cookie. */
__noinline __u32 asks_again(struct xdp_md *ctx, __u32 place)
{
	struct syn_room *room = RW_ONLY(syn_rooms);
	struct rw_scratch *s = RW_ONLY(scratch);
	struct rw_shift *shift = shift_at(place);
	struct rw_flow *flow = flow_at(place);
	struct tcphdr *tcp;
	__u32 seq;

	if (!room || !s || !shift || !flow || !is_shifted(flow) ||
	    s->layers.fragment != RW_FRAGMENT_NONE ||
	    (s->tuple.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_ACK)
		return 0;
	tcp = tcp_of(ctx, s);
	if (!tcp || bpf_ntohl(tcp->ack_seq) != shift->number + 1)
		return 0;
	seq = bpf_ntohl(tcp->seq);
	room->isn = isn_known(flow) == isn_bits(seq + 1) ? seq : seq - 1;
	room->cookie.number = shift->number;
	room->cookie.stamp = shift->last;
	return read_options(ctx, READ_ONCE(s->layers.l4));
}

/* Prepares the SYN to the backend. */
static __always_inline bool ask_backend(struct xdp_md *ctx, const struct rw_scratch *s,
					struct syn_room *room, __be16 sport_be, __be16 dport_be,
					__u16 most_mss)
{
	struct tcphdr *tcp = tcp_of(ctx, s);
	__u32 agreed, mss, scale, window, flags = TCP_SYN;

	if (!tcp)
		return false;
	agreed = room->cookie.number & COOKIE_AGREED;
	if (room->options.stamps)
		agreed |= COOKIE_STAMPS;
	if (agreed & COOKIE_ECN)
		flags |= TCP_ECE | TCP_CWR;
	scale = agreed_scale(agreed);
	window = bpf_ntohs(tcp->window);
	if (scale != COOKIE_NO_SCALE)
		window <<= scale;
	if (window > 0xffff)
		window = 0xffff;
	mss = cookie_mss(agreed);
	if (most_mss && mss > most_mss)
		mss = most_mss;
	/* Else the verifier goes on once for each. */
	verifier_forget(mss, agreed);
	verifier_forget(flags, agreed);
	verifier_forget(scale, agreed);
	segment_begin(&room->out, sport_be, dport_be, room->isn, 0, flags, (__u16)window);
	segment_options(&room->out, agreed, mss, scale, room->options.stamp, 0);
	return true;
}

/* Learns the flow's shift from the backend's SYN and ACK in scratch. */
static __always_inline bool shift_learn(struct xdp_md *ctx, const struct rw_scratch *s,
					struct rw_shift *shift)
{
	struct syn_room *room = RW_ONLY(syn_rooms);
	struct tcphdr *tcp;
	__u32 by, scale;

	if (!room)
		return false;
	tcp = tcp_of(ctx, s);
	if (!tcp)
		return false;
	if (isn_bits(bpf_ntohl(tcp->ack_seq)) != shift->isn)
		return false; /* of a former connection on this port */
	by = shift->number - bpf_ntohl(tcp->seq);
	if (!read_options(ctx, READ_ONCE(s->layers.l4)))
		return false;
	/* Another socket of the backend, which has lost the first, counts from another number. */
	if (!(shift->flags & RW_SHIFT_KNOWN) || by != shift->seq)
		shift->stamp = shift->last - room->options.stamp;
	shift->last = room->options.stamp + shift->stamp;
	shift->seq = by;
	scale = agreed_scale(shift->number);
	if (scale != COOKIE_NO_SCALE) {
		bool none = room->options.scale == COOKIE_NO_SCALE;

		shift->up = (none ? 0 : room->options.scale) - RW_OFFERED_SCALE;
		shift->client_up = none ? scale : 0;
	}
	shift->flags = RW_SHIFT_KNOWN;
	return true;
}

/* Prepares what tells the client that its backend has answered: a window, and a byte that it has. */
static __always_inline bool tell_client(struct xdp_md *ctx, const struct rw_scratch *s,
					struct syn_room *room, __u32 place,
					const struct flow_client *client)
{
	struct rw_shift *shift = shift_at(place);
	struct tcphdr *tcp = tcp_of(ctx, s);
	__u32 window, stamp;

	if (!shift || !tcp || !read_options(ctx, READ_ONCE(s->layers.l4)))
		return false;
	tcp = tcp_of(ctx, s);
	if (!tcp)
		return false;
	window = bpf_ntohs(tcp->window);
	if (window && agreed_scale(shift->number) != COOKIE_NO_SCALE)
		window = (window >> RW_OFFERED_SCALE) ?: 1;
	segment_begin(&room->out, client->dport_be, client->port_be, shift->number,
		      bpf_ntohl(tcp->ack_seq), TCP_ACK, (__u16)window);
	/* Of a dry run the segment is as it came. */
	stamp = room->options.stamp + (dry ? room->shift.stamp : 0);
	if (room->options.stamps)
		segment_stamps(&room->out, false, stamp, room->options.echo);
	room->out.payload = 1;
	return true;
}

/* Whether the packet can be replaced: an unfinished checksum is finished where it stands. */
static __always_inline bool may_replace(struct xdp_md *ctx, const struct packet_context *pctx,
					const struct packet *p)
{
	__u32 l4 = READ_ONCE(p->at->l4);

	return may_cut(ctx, pctx->in->flags) &&
	       (!p->unfinished ||
		l4 == ETH_HLEN + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)));
}

/* Sends what is in syn_rooms in place of the packet. */
static __always_inline int send_prepared(struct xdp_md *ctx, struct packet_context *pctx,
					 struct packet *p, struct syn_room *room, __u32 iface,
					 const __u8 *mac, enum rw_reason reason)
{
	__u16 hop[3];

	copy_mac((__u8 *)hop, mac);
	room->out.hops =
		(p->v6 ? ((struct ipv6hdr *)p->l3)->hop_limit : ((struct iphdr *)p->l3)->ttl) - 1;
	settle_checksum(pctx, p, iface);
	room->out.unfinished = p->unfinished;
	if (!may_replace(ctx, pctx, p) || !write_segment(ctx, p->v6))
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	p->eth = (void *)(long)ctx->data;
	p->l3 = p->eth + 1;
	if (p->l3 + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) >
	    (void *)(long)ctx->data_end)
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	return send_by(pctx, p, iface, (__u8 *)hop, reason);
}

/* A SYN to the backend of the flow, in place of its client's ACK. */
static __always_inline int send_syn(struct xdp_md *ctx, struct packet_context *pctx,
				    struct packet *p, __u64 key, bool new_flow)
{
	struct rw_backend *backend = backend_of(key_backend(key));
	struct syn_room *room = RW_ONLY(syn_rooms);
	__u32 nat = key_nat_addr(key);
	struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);
	enum rw_reason refused;

	if (!backend || !room || (!own && nat != RW_NAT_CLIENT))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	refused = reachable(p, backend, 0);
	if (refused)
		return leave(pctx->counters, RW_DROP, refused);
	if (!ask_backend(ctx, pctx->scratch, room, bpf_htons(key_port(key)),
			 backend->port_be ?: p->t->dport_be, backend->mss))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	copy_addr(room->out.saddr, own ? own->addr : p->t->saddr);
	copy_addr(room->out.daddr, backend->addr);
	count_request(pctx, p, key_backend(key), new_flow);
	return send_prepared(ctx, pctx, p, room, backend->iface, backend->dmac,
			     RW_REASON_NAT_FORWARD);
}

/* Whether a flow is one whose backend is being asked because this cookie came back. */
static __always_inline bool is_of_cookie(__u32 place, __u64 key, __u32 number)
{
	struct rw_shift *shift = shift_at(place);
	struct rw_flow *flow = flow_at(place);

	return shift && flow && is_shifted(flow) && key_state(key) == RW_FLOW_SYN &&
	       shift->number == number;
}

/* The ACK brings back a cookie: opens its flow, in place of one that is over. */
static __always_inline int open_proxied(struct xdp_md *ctx, struct packet_context *pctx,
					struct packet *p)
{
	struct rw_service *service = service_of(&pctx->scratch->key);
	struct syn_room *room = RW_ONLY(syn_rooms);
	__u32 now = now_seconds(), place;
	struct rw_backend *backend = NULL;
	struct rw_arrivals *arrived;
	struct rw_flow *flow;
	__u64 key = 0;
	int verdict;

	if (!service || !room || !read_options(ctx, READ_ONCE(p->at->l4)))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	arrived = bpf_map_lookup_elem(&arrivals, &service->id);
	if (arrived && !dry)
		arrived->answers_met++;
	room->isn = ack_in(pctx->scratch)->isn;
	room->cookie = ack_in(pctx->scratch)->cookie;
	place = flow_by_client(p->t, service->id, now, &key);
	if (place && is_of_cookie(place, key, room->cookie.number))
		return send_syn(ctx, pctx, p, key, false);
	flow = place ? flow_at(place) : NULL;
	if (flow)
		flow_give_up(pctx, flow, key, now);
	if (!new_flow(ctx, pctx, p, service, &key, &backend, now, true, &verdict))
		return verdict;
	/* With source = "client" there may be another flow in its place. */
	if (!dry &&
	    !is_of_cookie(flow_by_client(p->t, service->id, now, &key), key, room->cookie.number))
		return leave(pctx->counters, RW_DROP, RW_REASON_NAT_CONFLICT);
	return send_syn(ctx, pctx, p, key, true);
}

static __always_inline int ask_again(struct xdp_md *ctx, struct packet_context *pctx,
				     struct packet *p)
{
	if (!may_change(pctx, p))
		return leave(pctx->counters, RW_DROP, RW_REASON_MALFORMED);
	if (!asks_again(ctx, pctx->scratch->icmp.mtu))
		return leave(pctx->counters, RW_DROP, RW_REASON_OUT_OF_STATE);
	return send_syn(ctx, pctx, p, pctx->scratch->opening.key, false);
}

/* The effect of the backend's answer on its flow. The shift is known before the flow's state says so. */
static __always_inline bool follow_answer(struct xdp_md *ctx, struct packet_context *pctx,
					  struct packet *p, struct syn_room *room, __u32 place,
					  __u64 *key)
{
	struct rw_backend *backend = backend_of(key_backend(*key));
	__u32 own = is_its_own(pctx->in, p->eth, backend);
	struct rw_shift *shift = shift_at(place);
	struct rw_flow *flow = flow_at(place);

	if (!shift || !flow || !may_change(pctx, p))
		return false;
	if (dry) {
		room->shift = *shift;
		return shift_learn(ctx, pctx->scratch, &room->shift);
	}
	/* Once it is known, only the backend itself may change it. */
	if (is_one_of(NOT_BEGUN, key_state(*key)) && (own || !(shift->flags & RW_SHIFT_KNOWN)) &&
	    !shift_learn(ctx, pctx->scratch, shift))
		return false;
	return (shift->flags & RW_SHIFT_KNOWN) &&
	       shift_segment(ctx, place, *key, true, p->unfinished) &&
	       flow_replied(pctx, p, flow, key, now_seconds(), own);
}

/* Whether the backend's answer in scratch lacks the time stamps that its client was promised. */
static __always_inline bool lacks_stamps(struct xdp_md *ctx, const struct rw_scratch *s,
					 const struct syn_room *room, __u32 place)
{
	struct rw_shift *shift = shift_at(place);
	struct tcphdr *tcp;

	if (!shift || !shift->last || (shift->flags & RW_SHIFT_KNOWN) ||
	    !read_options(ctx, READ_ONCE(s->layers.l4)) || room->options.stamps)
		return false;
	tcp = tcp_of(ctx, s);
	return tcp && isn_bits(bpf_ntohl(tcp->ack_seq)) == shift->isn;
}

/* The backend does not have what its client was promised: it has changed since it was checked. The
 * client is reset, and the backend when it repeats its answer. */
static __always_inline int reset_both(struct xdp_md *ctx, struct packet_context *pctx,
				      struct packet *p, struct syn_room *room, __u32 place,
				      __u64 key, const struct flow_client *client)
{
	struct tcphdr *tcp = tcp_of(ctx, pctx->scratch);
	struct rw_shift *shift = shift_at(place);
	struct rw_flow *flow = flow_at(place);

	if (!tcp || !shift || !flow || !may_change(pctx, p))
		return leave(pctx->counters, RW_DROP, RW_REASON_OUT_OF_STATE);
	if (key_state(key) == RW_FLOW_CLOSED)
		return send_reset(ctx, pctx, p, RW_REASON_RESET_NO_STAMPS);
	segment_begin(&room->out, client->dport_be, client->port_be, shift->number + 1,
		      bpf_ntohl(tcp->ack_seq), TCP_RST | TCP_ACK, 0);
	if (!dry)
		flow_to(pctx->set, flow, &key, RW_FLOW_CLOSED);
	return send_prepared(ctx, pctx, p, room, client->iface, (__u8 *)client->mac,
			     RW_REASON_RESET_NO_STAMPS);
}

/* The backend has answered. */
static __always_inline int pass_answer(struct xdp_md *ctx, struct packet_context *pctx,
				       struct packet *p)
{
	struct syn_room *room = RW_ONLY(syn_rooms);
	__u32 place = pctx->scratch->icmp.mtu, id;
	struct rw_service_info *info;
	struct flow_client client;
	__u64 key = 0;

	if (!room)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	if (flow_by_reply(p->t, now_seconds(), &key) != place ||
	    !flow_read_client(place, &key, &client))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_FLOW);
	id = client.service;
	info = bpf_map_lookup_elem(&service_info, &id);
	if (!info)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	copy_addr(room->out.saddr, info->addr);
	copy_addr(room->out.daddr, client.addr);
	if (lacks_stamps(ctx, pctx->scratch, room, place))
		return reset_both(ctx, pctx, p, room, place, key, &client);
	settle_checksum(pctx, p, client.iface);
	if (!follow_answer(ctx, pctx, p, room, place, &key) ||
	    !tell_client(ctx, pctx->scratch, room, place, &client))
		return leave(pctx->counters, RW_DROP, RW_REASON_OUT_OF_STATE);
	count_reply(p, key_backend(key));
	return send_prepared(ctx, pctx, p, room, client.iface, (__u8 *)client.mac,
			     RW_REASON_NAT_REPLY);
}

/* Parses the packet once more, for the program that it was passed on to. */
static __always_inline bool open_again(struct xdp_md *ctx, struct packet_context *pctx,
				       struct packet *p)
{
	if (!open_packet_context(ctx, pctx))
		return false;
	p->t = &pctx->scratch->tuple;
	p->at = &pctx->scratch->layers;
	return parse(ctx, p) == RW_REASON_NONE;
}

/* These are not inlined: the stack is short. */
__noinline int handshake_asks(struct xdp_md *ctx)
{
	struct packet_context pctx = {};
	struct packet p = {};

	if (!open_again(ctx, &pctx, &p))
		return pctx.counters ? leave(pctx.counters, RW_DROP, RW_REASON_MALFORMED) :
				       XDP_PASS; /* array elements exist: for the verifier */
	return pctx.scratch->icmp.task == RW_ICMP_OPEN ? open_proxied(ctx, &pctx, &p) :
							 ask_again(ctx, &pctx, &p);
}

__noinline int handshake_answered(struct xdp_md *ctx)
{
	struct packet_context pctx = {};
	struct packet p = {};

	if (!open_again(ctx, &pctx, &p))
		return pctx.counters ? leave(pctx.counters, RW_DROP, RW_REASON_MALFORMED) :
				       XDP_PASS;
	return pass_answer(ctx, &pctx, &p);
}

#endif
