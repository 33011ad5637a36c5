/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Answers a TCP segment with a reset, so that a client whose backend is gone
 * learns it now instead of after its timeouts. Sequence numbers follow RFC 9293
 * section 3.10.7.1.
 */
#ifndef RINGWAY_RESET_H
#define RINGWAY_RESET_H

#include "common/checksum.bpf.h"
#include "limit.bpf.h"
#include "partial.bpf.h"
#include "send.bpf.h"
#include "source.bpf.h"

#define RESET_TTL 64

struct reset {
	__be32 seq;
	__be32 ack;
	__u8 flags;
};

/* The reset's fields, from the segment that it answers. */
static __always_inline struct reset reset_for(const struct packet *p)
{
	const struct tcphdr *tcp = p->l4;
	__u32 used = p->l4_len - tcp->doff * 4u;
	struct reset r = {};

	if (p->t->tcp_flags & TCP_ACK) {
		r.seq = tcp->ack_seq;
		r.flags = TCP_RST;
		return r;
	}
	used += !!(p->t->tcp_flags & TCP_SYN) + !!(p->t->tcp_flags & TCP_FIN);
	r.ack = bpf_htonl(bpf_ntohl(tcp->seq) + used);
	r.flags = TCP_RST | TCP_ACK;
	return r;
}

static __always_inline void write_tcp_reset(struct tcphdr *tcp, const struct packet *p,
					    const struct reset *r)
{
	__u32 *word = (__u32 *)tcp;

	word[0] = (__u32)p->t->dport_be | (__u32)p->t->sport_be << 16;
	word[1] = r->seq;
	word[2] = r->ack;
	word[3] = 0;
	word[4] = 0;
	((__u8 *)tcp)[12] = 5 << 4;
	((__u8 *)tcp)[13] = r->flags;
	tcp->check = ~csum_fold(csum_words(word, 5) +
				csum_pseudo(p->t->daddr, p->t->saddr, p->v6, IPPROTO_TCP, 20));
}

static __always_inline bool write_reset4(struct xdp_md *ctx, const struct packet *p,
					 const struct reset *r)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 *word = (__u32 *)ip;
	void *end = (void *)(long)ctx->data_end;
	__u16 *padding;

	if ((void *)(tcp + 1) > end)
		return false;
	word[0] = bpf_htonl(0x45000000 | (sizeof(*ip) + sizeof(*tcp)));
	word[1] = bpf_htonl(0x4000); /* don't fragment */
	word[2] = bpf_htonl(RESET_TTL << 24 | IPPROTO_TCP << 16);
	word[3] = p->t->daddr[3];
	word[4] = p->t->saddr[3];
	ip->check = ~csum_fold(csum_words(word, 5));
	write_tcp_reset(tcp, p, r);
	/* The next bytes pad the frame up to Ethernet's minimum: RFC 894 wants zeros. */
	padding = (void *)(tcp + 1);
	if ((void *)(padding + 3) <= end)
		padding[0] = padding[1] = padding[2] = 0;
	return true;
}

static __always_inline bool write_reset6(struct xdp_md *ctx, const struct packet *p,
					 const struct reset *r)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 *word = (__u32 *)ip;

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return false;
	word[0] = bpf_htonl(0x60000000);
	word[1] = bpf_htonl(sizeof(*tcp) << 16 | IPPROTO_TCP << 8 | RESET_TTL);
	copy_addr(ip->saddr.in6_u.u6_addr32, p->t->daddr);
	copy_addr(ip->daddr.in6_u.u6_addr32, p->t->saddr);
	write_tcp_reset(tcp, p, r);
	return true;
}

/*
 * Turns the segment into a reset. The frame is cut to size first, which
 * invalidates every pointer into it. Not inlined, so that it is verified once and
 * stays out of the common path. l4_at: start of TCP in the frame.
 */
__noinline bool reset_segment(struct xdp_md *ctx, const struct rw_tuple *t, __u32 l4_at,
			      __u32 l4_len)
{
	void *data = (void *)(long)ctx->data;
	struct packet p = { .t = (struct rw_tuple *)t, .l4_len = (__u16)l4_len };
	__u32 len = bpf_xdp_get_buff_len(ctx), want;
	struct ethhdr *eth = data;
	struct reset r;
	__u16 mac[3];

	if (!t || l4_at > MAX_L4_START)
		return false;
	p.l4 = data + l4_at;
	if (p.l4 + sizeof(struct tcphdr) > (void *)(long)ctx->data_end ||
	    (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	p.v6 = eth->h_proto == bpf_htons(ETH_P_IPV6);
	r = reset_for(&p);
	copy_mac((__u8 *)mac, eth->h_source);
	want = ETH_HLEN + (p.v6 ? 40 : 20) + 20;
	/* Keeps padding only if there was some: a device adds the rest. */
	if (want < MIN_FRAME && len >= MIN_FRAME)
		want = MIN_FRAME;
	if (len > want && bpf_xdp_adjust_tail(ctx, (int)want - (int)len))
		return false;
	if (!(p.v6 ? write_reset6(ctx, &p, &r) : write_reset4(ctx, &p, &r)))
		return false;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	copy_mac(eth->h_dest, (__u8 *)mac);
	return true;
}

/* Why a segment gets no reset. NONE: it does, and that is counted against the limit. */
static __always_inline enum rw_reason no_reset(const struct packet_context *pctx,
					       const struct packet *p, enum answer kind)
{
	enum rw_reason why;

	if (!p->l4)
		return RW_REASON_FRAGMENT_EARLY;
	if (p->t->tcp_flags & TCP_RST)
		return RW_REASON_NO_FLOW;
	/* RFC 9293 section 3.1: to be discarded, not answered. */
	if (!segment_intact(pctx, p, p->l4 - (void *)p->eth))
		return RW_REASON_MALFORMED;
	why = unanswerable(p->t->saddr, p->v6);
	if (why)
		return why;
	return may_answer((const struct rw_address *)p->t->saddr, kind) ? RW_REASON_NONE :
									  RW_REASON_RESET_LIMITED;
}

/* Sends a reset back the way the segment came. */
static __always_inline int send_reset(struct xdp_md *ctx, struct packet_context *pctx,
				      struct packet *p, enum rw_reason reason)
{
	enum answer kind = reason == RW_REASON_RESET_STRAY ? ANSWER_STRAY : ANSWER_RESET;
	enum rw_reason why = no_reset(pctx, p, kind);
	struct ethhdr *eth;

	if (why)
		return leave(pctx->counters, RW_DROP, why);
	if (!may_cut(ctx, pctx->in->flags) ||
	    !reset_segment(ctx, p->t, p->l4 - (void *)p->eth, p->l4_len))
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	copy_mac(eth->h_source, pctx->in->mac);
	return send_back(pctx, reason);
}

#endif
