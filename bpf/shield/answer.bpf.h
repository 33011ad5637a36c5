/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Answers SYNs in place of the backends: with a challenge (challenge.bpf.h) or a cookie (cookie.bpf.h).
 * The last step of the shield: what is answered meets no limit, no flow and no backend.
 *
 * A challenge is the SYN itself, turned round: ports and addresses change places, which no sum notices,
 * so an error in the SYN stays one in the answer, and nothing is longer than what came. Any other answer
 * is written anew. Neither is limited: it is a few bytes longer than the SYN at most.
 */
#ifndef RINGWAY_ANSWER_H
#define RINGWAY_ANSWER_H

#include "challenge.bpf.h"
#include "gateway/flow.bpf.h"
#include "gateway/partial.bpf.h"
#include "gateway/segment.bpf.h"
#include "gateway/source.bpf.h"

#define ANSWER_TTL 64
#define LEAST_MSS4 536 /* RFC 9293 section 3.7.1 */
#define LEAST_MSS6 1220

/* A SYN, or the RST that a challenge asks for. */
static __always_inline bool shakes_hands(__u8 flags)
{
	return (flags & TCP_RST) || (flags & (TCP_SYN | TCP_ACK | TCP_FIN)) == TCP_SYN;
}

/* The same of a packet that is_calm() knows. */
static __always_inline bool calm_shakes_hands(const struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	const __u8 *l4 = (void *)(ip + 1);
	__u8 proto;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return false;
	proto = ip->protocol;
	if (eth->h_proto != bpf_htons(ETH_P_IP)) {
		proto = ip6->nexthdr;
		l4 = (void *)(ip6 + 1);
	}
	return proto == IPPROTO_TCP && (void *)(l4 + 14) <= (void *)(long)ctx->data_end &&
	       shakes_hands(l4[13]);
}

/* What the SYN asks for and the service offers. */
static __always_inline __u32 agree(const struct tcp_options *asked,
				   const struct rw_syn_offer *offer, __u8 ecn, __u32 least_mss)
{
	__u32 scale = offer->options & RW_OFFER_SCALE ? asked->scale : COOKIE_NO_SCALE;

	return mss_place(asked->mss ?: least_mss) << COOKIE_MSS_SHIFT |
	       scale << COOKIE_SCALE_SHIFT |
	       (asked->sack_ok && offer->options & RW_OFFER_SACK ? COOKIE_SACK : 0) |
	       (asked->stamps && offer->options & RW_OFFER_STAMPS ? COOKIE_STAMPS : 0) |
	       (ecn == (TCP_ECE | TCP_CWR) && offer->options & RW_OFFER_ECN ? COOKIE_ECN : 0);
}

/* What the backend would refuse: it makes no connection with smaller segments. */
static __always_inline bool is_too_small(const struct rw_syn_offer *offer,
					 const struct tcp_options *asked, __u16 least)
{
	return offer->window && asked->mss && asked->mss < least;
}

/* An answer without options. */
static __always_inline void plan_challenge(const struct rw_scratch *s, struct segment_out *out,
					   __u32 challenge)
{
	segment_begin(out, s->tuple.dport_be, s->tuple.sport_be, 0, challenge, TCP_SYN | TCP_ACK,
		      0);
}

static __always_inline void plan_cookie(const struct rw_scratch *s, struct syn_room *room,
					const struct rw_syn_secrets *secrets,
					const struct rw_syn_offer *offer, __u32 isn, __u16 least)
{
	__u8 ecn = s->tuple.tcp_flags & (TCP_ECE | TCP_CWR);
	__u32 agreed = agree(&room->options, offer, ecn, least);
	struct cookie cookie = new_cookie(secrets, &s->tuple, isn, agreed);
	struct segment_out *out = &room->out;
	__u32 scale = COOKIE_NO_SCALE;

	segment_begin(out, s->tuple.dport_be, s->tuple.sport_be, cookie.number, isn + 1,
		      TCP_SYN | TCP_ACK | (agreed & COOKIE_ECN ? TCP_ECE : 0), offer->window);
	if ((agreed >> COOKIE_SCALE_SHIFT & 15) != COOKIE_NO_SCALE)
		scale = RW_OFFERED_SCALE;
	segment_options(out, agreed, offer->mss ?: least, scale, cookie.stamp, room->options.stamp);
}

/* Prepares the answer in syn_rooms: this challenge, or, of none, a cookie. NONE: it is there. */
static __always_inline enum rw_reason plan_answer(struct xdp_md *ctx, __u32 service, bool v6,
						  __u32 challenge)
{
	struct rw_shield_policy *policy = bpf_map_lookup_elem(&shield_policies, &service);
	struct rw_syn_secrets *secrets = RW_ONLY(syn_secrets);
	struct rw_scratch *s = RW_ONLY(scratch);
	struct syn_room *room = RW_ONLY(syn_rooms);
	__u16 least = v6 ? LEAST_MSS6 : LEAST_MSS4;
	struct tcphdr *tcp;
	__u32 isn;

	if (!policy || !secrets || !s || !room)
		return RW_REASON_NO_STATE;
	tcp = tcp_of(ctx, s);
	if (!tcp)
		return RW_REASON_MALFORMED;
	isn = bpf_ntohl(tcp->seq);
	if (!read_options(ctx, READ_ONCE(s->layers.l4)))
		return RW_REASON_MALFORMED;
	copy_addr(room->out.saddr, s->tuple.daddr);
	copy_addr(room->out.daddr, s->tuple.saddr);
	room->out.hops = ANSWER_TTL;
	room->out.unfinished = 0;
	if (!challenge && is_too_small(&policy->offer, &room->options, least))
		challenge = new_challenge(&s->tuple);
	if (challenge)
		plan_challenge(s, &room->out, challenge);
	else
		plan_cookie(s, room, secrets, &policy->offer, isn, least);
	return RW_REASON_NONE;
}

/* Writes an answer in place of the SYN in scratch, but for the Ethernet header. `iface`: flags of the
 * interface it came in by. Not inlined: the stack is short. */
__noinline __u32 write_answer(struct xdp_md *ctx, __u32 service, __u32 v6, __u32 challenge,
			      __u32 iface)
{
	enum rw_reason why;

	if (!checksum_holds(ctx, v6, iface & RW_IFACE_LOCAL))
		return RW_REASON_MALFORMED;
	if (!may_cut(ctx, iface))
		return RW_REASON_RESET_FAILED;
	why = plan_answer(ctx, service, v6, challenge);
	if (why)
		return why;
	return write_segment(ctx, v6) ? RW_REASON_NONE : RW_REASON_RESET_FAILED;
}

/* Whether a SYN can be turned round: nothing stands between its headers, it carries no data, and its
 * checksum is finished. `iface`: flags of the interface it came in by. */
static __always_inline bool is_bare(const struct rw_scratch *s, bool v6, const struct tcphdr *tcp,
				    __u32 iface)
{
	if (s->layers.l4 != ETH_HLEN + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) ||
	    s->layers.fragment != RW_FRAGMENT_NONE || s->layers.l4_len != tcp->doff * 4u)
		return false;
	return !(iface & RW_IFACE_LOCAL) || tcp->check != csum_fold(pseudo_of(s, v6));
}

static __always_inline void turn_segment(struct tcphdr *tcp, __be32 challenge)
{
	__u32 *word = (__u32 *)tcp, flags = word[3];
	__u64 change;

	((__u8 *)tcp)[13] = TCP_SYN | TCP_ACK;
	change = csum_change(word[1], 0) + csum_change(word[2], challenge) +
		 csum_change(flags, word[3]);
	word[0] = word[0] << 16 | word[0] >> 16;
	word[1] = 0;
	word[2] = challenge;
	tcp->check = csum_apply(tcp->check, change);
}

static __always_inline void turn_ipv4(struct iphdr *ip, const struct rw_tuple *t)
{
	__u32 *word = (__u32 *)ip, old[2] = { word[0], word[2] };

	/* Its priority is the sender's choice, not the answer's. */
	ip->tos = 0;
	ip->ttl = ANSWER_TTL;
	ip->check =
		csum_apply(ip->check, csum_change(old[0], word[0]) + csum_change(old[1], word[2]));
	ip->saddr = t->daddr[3];
	ip->daddr = t->saddr[3];
}

static __always_inline void turn_ipv6(struct ipv6hdr *ip, const struct rw_tuple *t)
{
	*(__u32 *)ip = bpf_htonl(0x60000000);
	ip->hop_limit = ANSWER_TTL;
	copy_addr(ip->saddr.in6_u.u6_addr32, t->daddr);
	copy_addr(ip->daddr.in6_u.u6_addr32, t->saddr);
}

/* Turns the SYN in scratch into this challenge, but for the Ethernet header. 0: it has to be written
 * anew. */
__noinline __u32 turn_syn(struct xdp_md *ctx, __u32 v6, __u32 challenge, __u32 iface)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	void *l3 = (void *)(long)ctx->data + ETH_HLEN;
	struct tcphdr *tcp = l3 + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));

	if (!s || (void *)(tcp + 1) > (void *)(long)ctx->data_end || !is_bare(s, v6, tcp, iface))
		return 0;
	turn_segment(tcp, bpf_htonl(challenge));
	if (v6)
		turn_ipv6(l3, &s->tuple);
	else
		turn_ipv4(l3, &s->tuple);
	return 1;
}

/* Whether a SYN belongs to a flow that may go on. */
static __always_inline bool holds_place(const struct rw_tuple *t, __u32 service)
{
	__u32 now = now_seconds(), place;
	struct rw_flow *flow;
	__u64 key = 0;
	__u8 state;

	place = flow_by_client(t, service, now, &key);
	flow = place ? flow_at(place) : NULL;
	state = key_state(key);
	if (!flow || state == RW_FLOW_CLOSED)
		return false;
	/* The same as in starts_anew(). */
	if (state == RW_FLOW_RESET && (READ_ONCE(flow->iface) & RW_FLOW_SHIFTED))
		return (__s32)(now - READ_ONCE(flow->seen)) < PROBATION_TICKS;
	return state > RW_FLOW_SYN_ACK || !(READ_ONCE(flow->iface) & RW_FLOW_SHIFTED);
}

/* Of a RST with this sequence number. NONE: it meets no challenge. */
static __always_inline enum rw_reason rst_meets(const struct rw_settings *set,
						const struct rw_shield_policy *policy,
						const struct rw_tuple *t, __u32 number,
						__u32 service)
{
	if ((policy->syn & RW_SYN_KIND) == RW_SYN_PROXY || !was_challenged(t, number))
		return RW_REASON_NONE;
	prove(policy, connection_hash(set, t));
	prove_source(set, policy, t->saddr, PROVEN_SOURCE(service));
	return RW_REASON_CHALLENGE_MET;
}

/* Of a SYN. NONE: it passes. */
static __always_inline enum rw_reason answer_to(const struct rw_settings *set,
						const struct rw_shield_policy *policy,
						const struct rw_tuple *t, __u32 service)
{
	enum rw_syn how = policy->syn & RW_SYN_KIND;

	if (how == RW_SYN_PROXY)
		return holds_place(t, service) ? RW_REASON_NONE : RW_REASON_SYN_ANSWERED;
	if (how == RW_SYN_BACKEND)
		return is_connection_proven(set, t) ? RW_REASON_NONE : RW_REASON_SYN_ANSWERED;
	return is_proven(set, policy, t, service) ? RW_REASON_NONE : RW_REASON_SYN_CHALLENGED;
}

/* What ends here meets no limit, and counts all the same. */
static __always_inline void count_handshake(struct rw_arrivals *arrived, __u8 flags,
					    enum rw_reason reason, bool ends)
{
	bool syn = !(flags & TCP_RST);

	if (dry)
		return;
	arrived->packets += ends;
	arrived->new_flows += ends && syn;
	if (syn)
		arrived->syns_answered += !!reason;
	else if (reason)
		arrived->answers_met++;
	/* What refuses a SYN and ACK has no ACK (RFC 9293 section 3.10.7.3), as few others. */
	else if (!(flags & TCP_ACK))
		arrived->answers_failed++;
}

/* Who comes with an attack is not learnt. */
static __always_inline void note_attack(__u32 service)
{
	__u32 *last = bpf_map_lookup_elem(&shield_exceeded, &service), now = now_seconds();

	if (!dry && last && READ_ONCE(*last) != now)
		WRITE_ONCE(*last, now);
}

/* What becomes of the SYN or RST in scratch, in its service's mode. NONE: it goes on. */
static __always_inline enum rw_reason judge_handshake(const struct rw_scratch *s, __u32 number,
						      __u32 service)
{
	struct rw_shield_policy *policy = bpf_map_lookup_elem(&shield_policies, &service);
	struct rw_arrivals *arrived = bpf_map_lookup_elem(&arrivals, &service);
	__u32 *until = bpf_map_lookup_elem(&shield_armed, &service), mode;
	struct rw_shield_control *control = RW_ONLY(shield_control);
	const struct rw_settings *set = RW_ONLY(settings);
	enum rw_reason reason;
	__u64 armed;

	if (!policy || !arrived || !until || !control || !set)
		return RW_REASON_NONE;
	mode = mode_now(control, policy->mode);
	armed = if_less(now_seconds(), *until);
	if (mode == RW_SHIELD_OFF || !(policy->syn & (RW_SYN_ALWAYS | (armed & RW_SYN_KIND))))
		return RW_REASON_NONE;
	if (s->tuple.tcp_flags & TCP_RST)
		reason = rst_meets(set, policy, &s->tuple, number, service);
	else
		reason = answer_to(set, policy, &s->tuple, service);
	if (dry && reason)
		trace.shield_reason = reason;
	count_handshake(arrived, s->tuple.tcp_flags, reason, reason && mode == RW_SHIELD_ENFORCE);
	if (armed && reason && reason != RW_REASON_CHALLENGE_MET)
		note_attack(service);
	if (!reason || mode == RW_SHIELD_ENFORCE)
		return reason;
	count_observed(reason);
	return RW_REASON_NONE;
}

/* The same; the service is then in `opening`. Not inlined, so that it is verified once. */
__noinline __u32 met_at_service(struct xdp_md *ctx, __u32 service)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	struct tcphdr *tcp;
	enum rw_reason reason;

	tcp = s ? tcp_of(ctx, s) : NULL;
	if (!tcp)
		return RW_REASON_NONE;
	s->opening.service = (__u16)service;
	reason = judge_handshake(s, bpf_ntohl(tcp->seq), service);
	if (reason == RW_REASON_NONE || reason == RW_REASON_CHALLENGE_MET)
		return reason;
	return unanswerable(s->tuple.saddr, !mapped_v4(s->tuple.saddr)) ?: reason;
}

/* Sends the answer back the way the SYN came. */
static __always_inline int send_answer(struct xdp_md *ctx, struct packet_context *pctx, bool v6,
				       enum rw_reason how)
{
	const struct rw_scratch *s = pctx->scratch;
	__u32 challenge = how == RW_REASON_SYN_CHALLENGED ? new_challenge(&s->tuple) ?: 1 : 0;
	__u32 iface = pctx->in->flags, why = RW_REASON_NONE;
	struct ethhdr *eth;

	if (!challenge || !turn_syn(ctx, v6, challenge, iface))
		why = write_answer(ctx, s->opening.service, v6, challenge, iface);
	barrier_var(why);
	if (why)
		return leave(pctx->counters, RW_DROP, why & (RW_REASON_SPACE - 1));
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	copy_mac(eth->h_dest, eth->h_source);
	copy_mac(eth->h_source, pctx->in->mac);
	/* One of two: 6.1's verifier has forgotten. */
	barrier_var(how);
	return send_back(pctx, how & (RW_REASON_SPACE - 1));
}

/* Whether the packet is one that answers are about. */
static __always_inline bool may_be_met(const struct packet_context *pctx, const struct packet *p)
{
	return p->t->proto == IPPROTO_TCP && shakes_hands(p->t->tcp_flags) &&
	       !pctx->scratch->allowed && takes_requests(pctx->in);
}

/* Ends the packet that met_at_service() has given this reason for. Not inlined, for the same. */
__noinline int meet(struct xdp_md *ctx, __u32 v6, __u32 reason)
{
	struct packet_context opened, *pctx = &opened;

	if (!open_packet_context(ctx, pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	if (reason == RW_REASON_SYN_ANSWERED || reason == RW_REASON_SYN_CHALLENGED)
		return send_answer(ctx, pctx, v6, reason);
	if (reason == RW_REASON_CHALLENGE_MET)
		return leave_shielded(pctx->counters, RW_REASON_CHALLENGE_MET);
	return leave(pctx->counters, RW_DROP, reason & (RW_REASON_SPACE - 1));
}

#endif
