/* SPDX-License-Identifier: GPL-2.0-only */
/* Answers the SYN in scratch with a cookie (shield/cookie.bpf.h). Not limited: the answer is a few
 * bytes longer than the SYN at most. */
#ifndef RINGWAY_SEND_COOKIE_H
#define RINGWAY_SEND_COOKIE_H

#include "challenge.bpf.h"
#include "segment.bpf.h"

#define ANSWER_TTL 64
#define LEAST_MSS4 536 /* RFC 9293 section 3.7.1 */
#define LEAST_MSS6 1220

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

/* Prepares the answer in syn_rooms. False: the SYN cannot be answered so. */
static __always_inline bool plan_cookie(struct xdp_md *ctx, const struct rw_scratch *s,
					struct syn_room *room, const struct rw_syn_offer *offer)
{
	__u32 l4 = READ_ONCE(s->layers.l4), isn, agreed, scale;
	struct rw_syn_secrets *secrets = RW_ONLY(syn_secrets);
	__u16 least = s->icmp.v6 ? LEAST_MSS6 : LEAST_MSS4;
	struct segment_out *out = &room->out;
	struct cookie cookie;
	struct tcphdr *tcp;
	__u8 flags;

	if (!secrets || l4 > MAX_L4_START)
		return false;
	tcp = (void *)(long)ctx->data + l4;
	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return false;
	isn = bpf_ntohl(tcp->seq);
	flags = s->tuple.tcp_flags & (TCP_ECE | TCP_CWR);
	agreed = agree(&room->options, offer, flags, least);
	cookie = new_cookie(secrets, &s->tuple, isn, agreed);
	copy_addr(out->saddr, s->tuple.daddr);
	copy_addr(out->daddr, s->tuple.saddr);
	out->hops = ANSWER_TTL;
	out->unfinished = 0;
	flags = TCP_SYN | TCP_ACK | (agreed & COOKIE_ECN ? TCP_ECE : 0);
	segment_begin(out, s->tuple.dport_be, s->tuple.sport_be, cookie.number, isn + 1, flags,
		      offer->window);
	scale = (agreed >> COOKIE_SCALE_SHIFT & 15) == COOKIE_NO_SCALE ? COOKIE_NO_SCALE :
									 RW_OFFERED_SCALE;
	segment_options(out, agreed, offer->mss ?: least, scale, cookie.stamp, room->options.stamp);
	return true;
}

/* What the backend would refuse: it makes no connection with smaller segments. */
static __always_inline bool is_too_small(const struct rw_syn_offer *offer,
					 const struct tcp_options *asked, bool v6)
{
	return offer->window && asked->mss && asked->mss < (v6 ? LEAST_MSS6 : LEAST_MSS4);
}

/* Not inlined: the stack is short. */
__noinline int send_cookie(struct xdp_md *ctx)
{
	struct packet_context opened, *pctx = &opened;
	struct rw_scratch *s = RW_ONLY(scratch);
	struct rw_shield_policy *policy;
	struct syn_room *room = RW_ONLY(syn_rooms);
	enum rw_reason why;
	struct ethhdr *eth;

	if (!s || !open_packet_context(ctx, pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	policy = bpf_map_lookup_elem(&shield_policies, &s->icmp.mtu);
	why = no_challenge(ctx, pctx);
	if (why)
		return leave(pctx->counters, RW_DROP, why);
	if (!policy || !room || !may_cut(ctx, pctx->in) ||
	    !read_options(ctx, READ_ONCE(s->layers.l4)))
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	if (is_too_small(&policy->offer, &room->options, s->icmp.v6))
		return send_challenge(ctx, pctx);
	if (!plan_cookie(ctx, s, room, &policy->offer) || !write_segment(ctx, s->icmp.v6))
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	copy_mac(eth->h_dest, eth->h_source);
	copy_mac(eth->h_source, pctx->in->mac);
	return send_back(pctx, RW_REASON_SYN_ANSWERED);
}

#endif
