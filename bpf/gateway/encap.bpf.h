/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * dsr: the packet reaches the backend as the client sent it, except for its TTL;
 * in the frame of another MAC address (dsr-l2), or inside another packet:
 *
 *   dsr-ipip  IP in IP: RFC 2003 (4 in 4), 2473 (any in 6), 4213 (6 in 4)
 *   dsr-gue   IP in UDP: GUE variant 1 (draft-ietf-intarea-gue section 4): no
 *             GUE header, the inner packet's version identifies it
 *
 * The outer header has the inner one's DSCP and ECN (RFC 2983 section 4.1's
 * uniform model, RFC 6040's normal mode), TTL 64, and DF: packets that do not fit
 * were refused before. Its UDP checksum is 0, also under IPv6 (RFC 6935 section 5,
 * RFC 6936): the inner packet has its own checksums, and neither Linux's fou
 * (net/ipv4/fou_core.c; udp_sock_create6 sets no_check6_rx) nor `ringway
 * decap` requires more.
 */
#ifndef RINGWAY_ENCAP_H
#define RINGWAY_ENCAP_H

#include "hash.bpf.h"
#include "mss.bpf.h"
#include "parse.bpf.h"
#include "send.bpf.h"

#define OUTER_TTL 64
#define GUE_FIRST_PORT 0xc000 /* the ephemeral ports of RFC 6335 */

/* A frame's new front. */
struct outer {
	struct ethhdr eth;
	__u32 ip[5];
	__u32 more[5]; /* IPv6 goes on */
} __attribute__((packed, aligned(2)));

/* Fields of the inner packet that the outer header uses. */
struct inner {
	__u32 hash; /* of the flow */
	__u16 len;
	__u16 id;
	__u8 tos;
	__u8 proto; /* the inner packet's, as an outer header names it */
};

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

/* A hash for links and queues that spread by outer headers. It need not be the
 * ring's, nor hard to guess. */
static __always_inline __u32 spread(const struct rw_tuple *t)
{
	__u64 a = (__u64)(t->saddr[0] ^ t->daddr[3]) << 32 | (t->saddr[3] ^ t->daddr[0]);
	__u64 b = (__u64)(t->saddr[2] ^ t->daddr[1]) << 32 | (t->saddr[1] ^ t->daddr[2]);
	__u64 ports = (__u64)t->sport_be << 16 | t->dport_be;

	a = a * 0x9e3779b97f4a7c15ull + b * 0xc2b2ae3d27d4eb4full + ports * HASH_FINAL;
	return a >> 32;
}

/* Decrements the TTL, as every router does. */
static __always_inline void hop4(struct iphdr *ip)
{
	/* RFC 1624 for this one change, which is always the same. */
	__u32 check = (__u32)ip->check + bpf_htons(0x0100);

	ip->check = (__u16)(check + (check >= 0xffff));
	ip->ttl--;
}

/* Decrements the TTL, and reads what the outer header needs. */
static __always_inline bool enter(struct xdp_md *ctx, __u32 l3_at, struct inner *inner)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip4;
	struct ipv6hdr *ip6;

	/* The bound once more, on the register that is added: the verifier of 6.1 follows no copy. */
	barrier_var(l3_at);
	ip4 = data + (l3_at & 127);
	ip6 = (void *)ip4;
	if ((void *)(ip4 + 1) > end)
		return false;
	if (ip4->version == 4) {
		hop4(ip4);
		inner->tos = ip4->tos;
		inner->id = ip4->id;
		inner->len = bpf_ntohs(ip4->tot_len);
		inner->proto = IPPROTO_IPIP;
		return true;
	}
	if ((void *)(ip6 + 1) > end)
		return false;
	ip6->hop_limit--;
	inner->tos = (__u8)(bpf_ntohs(*(__be16 *)ip6) >> 4);
	inner->id = 0; /* DF is set: it means nothing (RFC 6864 section 4.1) */
	inner->len = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
	inner->proto = IPPROTO_IPV6;
	return true;
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

/*
 * Puts the outer headers in front; the frame keeps its MAC addresses. False:
 * there is no room. Every pointer into the packet is stale after it.
 * l3_at: start of the packet in the frame, after any tags.
 */
static __always_inline bool encapsulate(struct xdp_md *ctx, const struct rw_tuple *t, __u32 l3_at,
					const struct rw_backend *backend, bool v4, bool gue)
{
	__u32 udp_len = gue ? sizeof(struct udphdr) : 0, ip_len;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct inner inner;
	struct outer *outer;
	__s64 frame_len, longest; /* of its first buffer */
	__u16 macs[6];

	if (l3_at < ETH_HLEN)
		return false;
	/* Two bounds in one comparison tell the verifier of 6.1 nothing. */
	barrier_var(l3_at);
	if (l3_at > 64 || !enter(ctx, l3_at, &inner) ||
	    (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	copy_mac((__u8 *)macs, eth->h_dest);
	copy_mac((__u8 *)(macs + 3), eth->h_source);
	ip_len = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	inner.hash = v4 && !gue ? 0 : spread(t);
	/* RFC 894: bytes behind the packet are not part of it. If there is room, they
	 * are kept, like Ethernet's padding. */
	frame_len = (void *)(long)ctx->data_end - (void *)(long)ctx->data;
	longest = l3_at + (__s64)backend->mtu - ip_len - udp_len;
	if (frame_len > longest && frame_len > l3_at + inner.len &&
	    bpf_xdp_adjust_tail(ctx, (int)(l3_at + inner.len - frame_len)))
		return false;
	if (bpf_xdp_adjust_head(ctx, (int)l3_at - (int)(ETH_HLEN + ip_len + udp_len)))
		return false;
	outer = (void *)(long)ctx->data;
	/* Two IPv4 headers, or one of IPv6: so much there is in any case. */
	if ((void *)(outer + 1) > (void *)(long)ctx->data_end)
		return false;
	copy_mac(outer->eth.h_dest, (__u8 *)macs);
	copy_mac(outer->eth.h_source, (__u8 *)(macs + 3));
	if (v4) {
		outer->eth.h_proto = bpf_htons(ETH_P_IP);
		write_outer4(outer->ip, &inner, backend, inner.len + ip_len + udp_len,
			     gue ? IPPROTO_UDP : inner.proto);
		if (gue)
			write_gue(outer->more, &inner, backend);
		return true;
	}
	outer->eth.h_proto = bpf_htons(ETH_P_IPV6);
	write_outer6(outer->ip, &inner, backend, inner.len + udp_len,
		     gue ? IPPROTO_UDP : inner.proto);
	if (!gue)
		return true;
	if ((void *)(outer + 1) + sizeof(struct udphdr) > (void *)(long)ctx->data_end)
		return false;
	write_gue((__u32 *)(outer + 1), &inner, backend);
	return true;
}

/* Of any kind. Not inlined, so that it is verified once. */
__noinline bool encapsulate_any(struct xdp_md *ctx, const struct rw_tuple *t, __u32 l3_at,
				__u32 backend_index, bool gue)
{
	struct rw_backend *backend = bpf_map_lookup_elem(&backends, &backend_index);

	return backend && t && encapsulate(ctx, t, l3_at, backend, mapped_v4(backend->addr), gue);
}

/* Sends to the chosen backend, of this reference; all checks were made before. */
static __always_inline int dsr_send(struct xdp_md *ctx, struct packet_context *pctx,
				    struct packet *p, __u32 forward,
				    const struct rw_backend *backend, __u32 reference)
{
	__u32 l3_at = p->l3 - (void *)(long)ctx->data, index = RW_BACKEND_INDEX(reference);
	bool gue = forward == RW_FORWARD_DSR_GUE, done;

	if (forward == RW_FORWARD_DSR_L2) {
		if (p->v6)
			((struct ipv6hdr *)p->l3)->hop_limit--;
		else
			hop4(p->l3);
		return send_by(pctx, p, backend->iface, backend->dmac, RW_REASON_DSR_L2);
	}
	if (!gue && !p->v6 && mapped_v4(backend->addr)) /* common, and a call costs */
		done = encapsulate(ctx, p->t, l3_at, backend, true, false);
	else
		done = encapsulate_any(ctx, p->t, l3_at, index, gue);
	if (!done)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	p->eth = (void *)(long)ctx->data;
	p->l3 = p->eth + 1;
	p->v6 = !mapped_v4(backend->addr);
	if (p->l3 + sizeof(struct ipv6hdr) > (void *)(long)ctx->data_end)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return send_by(pctx, p, backend->iface, backend->dmac,
		       gue ? RW_REASON_DSR_GUE : RW_REASON_DSR_IPIP);
}

#endif
