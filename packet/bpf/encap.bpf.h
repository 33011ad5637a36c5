/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * dsr: the packet reaches the backend as the client sent it, but for its TTL;
 * in the frame of another MAC address (dsr-l2), or inside a packet of ours:
 *
 *   dsr-ipip  IP in IP: RFC 2003 (4 in 4), 2473 (any in 6), 4213 (6 in 4)
 *   dsr-gue   IP in UDP: GUE variant 1 (draft-ietf-intarea-gue section 4): no
 *             GUE header, the inner packet's own version tells what it is
 *
 * The outer header has the inner one's DSCP and ECN (RFC 2983 section 4.1's
 * uniform model, RFC 6040's normal mode), TTL 64, and DF: what does not fit is
 * refused before. Its UDP checksum is 0, also under IPv6 (RFC 6935 section 5,
 * RFC 6936): the inner packet has its own checksums, and neither Linux's fou
 * (net/ipv4/fou_core.c; udp_sock_create6 sets no_check6_rx) nor `ringway
 * decap` asks for more.
 */
#ifndef RINGWAY_ENCAP_H
#define RINGWAY_ENCAP_H

#include "hash.bpf.h"
#include "mss.bpf.h"
#include "parse.bpf.h"
#include "send.bpf.h"

#define OUTER_TTL 64
#define GUE_FIRST_PORT 0xc000 /* the ephemeral ports of RFC 6335 */

struct outer4 {
	__be16 mac[6];
	__be16 type;
	__u32 ip[5];
} __attribute__((packed, aligned(2)));

struct outer6 {
	__be16 mac[6];
	__be16 type;
	__u32 ip[10];
} __attribute__((packed, aligned(2)));

/* What the outer header takes from the inner packet. */
struct inner {
	__u32 hash; /* of the flow */
	__u16 len;
	__u16 id;
	__u8 tos;
	bool v6;
};

static __always_inline bool mapped_v4(const __u32 *addr)
{
	return !(addr[0] | addr[1] | (addr[2] ^ bpf_htonl(0xffff)));
}

/* Bytes in front of the packet. */
static __always_inline __u32 encap_overhead(__u32 forward, const struct rw_backend *backend)
{
	__u32 ip = mapped_v4(backend->addr) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	switch (forward) {
	case RW_FORWARD_DSR_IPIP:
		return ip;
	case RW_FORWARD_DSR_GUE:
		return ip + sizeof(struct udphdr);
	}
	return 0;
}

/* One of the flow's own, for links and queues that spread by outer headers. It
 * need not be the ring's, nor hard to guess. */
static __always_inline __u32 flow_label_hash(const struct rw_tuple *t)
{
	__u64 a = (__u64)(t->saddr[0] ^ t->daddr[3]) << 32 | (t->saddr[3] ^ t->daddr[0]);
	__u64 b = (__u64)(t->saddr[2] ^ t->daddr[1]) << 32 | (t->saddr[1] ^ t->daddr[2]);
	__u64 ports = (__u64)t->sport_be << 16 | t->dport_be;

	return (a * 0x9e3779b97f4a7c15ull + b * 0xc2b2ae3d27d4eb4full +
		ports * 0xd6e8feb86659fd93ull) >>
	       32;
}

/* Takes a hop off, as every router does, and reads what the outer header needs. */
static __always_inline void enter(const struct packet *p, struct inner *inner)
{
	inner->len = p->l3_len;
	inner->v6 = p->v6;
	inner->hash = flow_label_hash(p->t);
	if (p->v6) {
		struct ipv6hdr *ip = p->l3;

		ip->hop_limit--;
		inner->tos = (__u8)(bpf_ntohs(*(__be16 *)ip) >> 4);
		inner->id = 0; /* DF is set: it means nothing (RFC 6864 section 4.1) */
	} else {
		struct iphdr *ip = p->l3;
		__u16 hops = *(__u16 *)&ip->ttl;

		ip->ttl--;
		ip->check = csum_apply(ip->check, csum_change16(hops, *(__u16 *)&ip->ttl));
		inner->tos = ip->tos;
		inner->id = ip->id;
	}
}

static __always_inline void write_outer4(__u32 *ip, const struct inner *inner,
					 const struct rw_backend *backend, __u16 len, __u8 proto)
{
	ip[0] = bpf_htonl(0x45000000 | (__u32)inner->tos << 16 | len);
	ip[1] = (__u32)inner->id | bpf_htonl(0x4000); /* id is the first half */
	ip[2] = bpf_htonl((__u32)OUTER_TTL << 24 | (__u32)proto << 16);
	ip[3] = backend->tunnel_saddr[3];
	ip[4] = backend->addr[3];
	((__u16 *)ip)[5] = ~csum_fold(csum_words(ip, 5));
}

static __always_inline void write_outer6(__u32 *ip, const struct inner *inner,
					 const struct rw_backend *backend, __u16 payload, __u8 next)
{
	ip[0] = bpf_htonl(0x60000000 | (__u32)inner->tos << 20 | (inner->hash & 0xfffff));
	ip[1] = bpf_htonl((__u32)payload << 16 | (__u32)next << 8 | OUTER_TTL);
	copy_addr(ip + 2, backend->tunnel_saddr);
	copy_addr(ip + 6, backend->addr);
}

static __always_inline void write_gue(__u32 *udp, const struct inner *inner,
				      const struct rw_backend *backend)
{
	__u16 sport = GUE_FIRST_PORT | (inner->hash >> 18);

	udp[0] = (__u32)bpf_htons(sport) | (__u32)backend->tunnel_port_be << 16;
	udp[1] = bpf_htons(inner->len + sizeof(struct udphdr)); /* checksum 0 */
}

/* The new front of the frame: layer 2 without its addresses, and outer headers.
 * Behind them is a whole IP header, so there is room for UDP's in any case. */
static __always_inline bool write_front4(struct xdp_md *ctx, const struct inner *inner,
					 const struct rw_backend *backend, bool gue)
{
	struct outer4 *front = (void *)(long)ctx->data;
	__u32 *udp = (__u32 *)(front + 1);

	if ((void *)(udp + 2) > (void *)(long)ctx->data_end)
		return false;
	front->type = bpf_htons(ETH_P_IP);
	if (gue) {
		write_outer4(front->ip, inner, backend, inner->len + 28, IPPROTO_UDP);
		write_gue(udp, inner, backend);
	} else {
		write_outer4(front->ip, inner, backend, inner->len + 20,
			     inner->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP);
	}
	return true;
}

static __always_inline bool write_front6(struct xdp_md *ctx, const struct inner *inner,
					 const struct rw_backend *backend, bool gue)
{
	struct outer6 *front = (void *)(long)ctx->data;
	__u32 *udp = (__u32 *)(front + 1);

	if ((void *)(udp + 2) > (void *)(long)ctx->data_end)
		return false;
	front->type = bpf_htons(ETH_P_IPV6);
	if (gue) {
		write_outer6(front->ip, inner, backend, inner->len + 8, IPPROTO_UDP);
		write_gue(udp, inner, backend);
	} else {
		write_outer6(front->ip, inner, backend, inner->len,
			     inner->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP);
	}
	return true;
}

/* Puts the outer headers in front. On success p is the outer packet: eth, l3
 * and v6 alone. */
static __always_inline bool encapsulate(struct xdp_md *ctx, struct packet *p, bool gue,
					const struct rw_backend *backend)
{
	/* What is there of layer 2 is used again, whatever its tags. */
	int grow = (int)((void *)p->eth - p->l3) + ETH_HLEN;
	bool v6 = !mapped_v4(backend->addr);
	struct inner inner;

	enter(p, &inner);
	grow += (v6 ? 40 : 20) + (gue ? 8 : 0);
	if (bpf_xdp_adjust_head(ctx, -grow))
		return false;
	if (!(v6 ? write_front6(ctx, &inner, backend, gue) :
		   write_front4(ctx, &inner, backend, gue)))
		return false;
	p->eth = (void *)(long)ctx->data;
	p->l3 = p->eth + 1;
	p->v6 = v6;
	return p->l3 + (v6 ? 40 : 20) <= (void *)(long)ctx->data_end;
}

/* To the backend chosen for it; everything has been asked before. */
static __always_inline int dsr_send(struct xdp_md *ctx, struct env *env, struct packet *p,
				    __u32 forward, const struct rw_backend *backend)
{
	enum rw_reason sent = RW_REASON_DSR_L2;

	if (forward == RW_FORWARD_DSR_L2) {
		struct inner unused;

		enter(p, &unused);
	} else {
		bool gue = forward == RW_FORWARD_DSR_GUE;

		sent = gue ? RW_REASON_DSR_GUE : RW_REASON_DSR_IPIP;
		if (!encapsulate(ctx, p, gue, backend))
			return leave(env->books, RW_DROP, RW_REASON_NO_HEADROOM);
	}
	return send_by(env, p, backend->iface, backend->dmac, sent);
}

#endif
