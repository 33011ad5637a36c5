/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Last step: rewrite in place and send. Lengths do not change under nat, so
 * every checksum is updated from the changed words (RFC 1624).
 */
#ifndef RINGWAY_SEND_H
#define RINGWAY_SEND_H

#include "common/checksum.bpf.h"
#include "packet_context.bpf.h"

/* The packet's new addresses and ports. */
struct rewrite {
	const __u32 *saddr;
	const __u32 *daddr;
	__be16 sport_be;
	__be16 dport_be;
};

static __always_inline void rewrite_ipv4(struct iphdr *ip, const struct rewrite *to)
{
	/* A hop less in the upper half of its word: ~old + new, whatever they are. */
	__u64 change = csum_change(ip->saddr, to->saddr[3]) + csum_change(ip->daddr, to->daddr[3]) +
		       bpf_htons(0xfeff);

	ip->saddr = to->saddr[3];
	ip->daddr = to->daddr[3];
	ip->ttl--;
	ip->check = csum_apply(ip->check, change);
}

static __always_inline void rewrite_ipv6(struct ipv6hdr *ip, const struct rewrite *to)
{
	copy_addr(ip->saddr.in6_u.u6_addr32, to->saddr);
	copy_addr(ip->daddr.in6_u.u6_addr32, to->daddr);
	ip->hop_limit--;
}

static __always_inline void rewrite_l4(struct packet *p, const struct rewrite *to)
{
	__u64 change;
	__be16 *ports = p->l4;
	__u16 check;

	if (!ports || !p->check)
		return; /* a later fragment */
	if (p->unfinished) {
		ports[0] = to->sport_be;
		ports[1] = to->dport_be;
		*p->check =
			csum_fold(csum_pseudo(to->saddr, to->daddr, p->v6, p->t->proto, p->l4_len));
		return;
	}
	change = csum_change_addr(p->t->saddr, to->saddr) +
		 csum_change_addr(p->t->daddr, to->daddr) +
		 csum_change16(p->t->sport_be, to->sport_be) +
		 csum_change16(p->t->dport_be, to->dport_be);
	ports[0] = to->sport_be;
	ports[1] = to->dport_be;
	if (p->t->proto == IPPROTO_TCP) {
		*p->check = csum_apply(*p->check, change);
		return;
	}
	/* 0: the sender computed none (RFC 768); a computed 0 is sent as ffff. */
	check = *p->check;
	if (check)
		*p->check = csum_apply(check, change) ?: 0xffff;
}

/* A redirect from native XDP reaches native XDP, one from generic XDP any Ethernet
 * device: the packet then has an Ethernet header. */
static __always_inline bool must_pass(const struct packet_context *pctx, const struct rw_iface *out)
{
	if (out->flags & RW_IFACE_LAYER3)
		return out->device != pctx->in->device;
	return (out->flags & RW_IFACE_GENERIC) && !(pctx->in->flags & RW_IFACE_GENERIC);
}

/* Passes a rewritten packet, still addressed to our MAC, for the kernel to route. The
 * kernel decrements the TTL, so ours is restored. */
static __always_inline int pass_rewritten(struct packet_context *pctx, struct packet *p)
{
	if (p->v6) {
		((struct ipv6hdr *)p->l3)->hop_limit++;
	} else {
		struct iphdr *ip = p->l3;
		__u16 hops = *(__u16 *)&ip->ttl;

		ip->ttl++;
		ip->check = csum_apply(ip->check, csum_change16(hops, *(__u16 *)&ip->ttl));
	}
	if (!vlan_restore(pctx->ctx, pctx->scratch))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return leave(pctx->counters, RW_PASS, RW_REASON_PASS_REWRITTEN);
}

/* Sends by an interface slot: back by the same device, or by another. */
static __always_inline int send_by(struct packet_context *pctx, struct packet *p, __u32 slot,
				   const __u8 *next_hop, enum rw_reason reason)
{
	struct rw_iface *out = bpf_map_lookup_elem(&ifaces, &slot);

	if (!out)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_DEVICE);
	/* Under dsr-l2 the MAC address is the rewrite. */
	if (reason == RW_REASON_DSR_L2 && (must_pass(pctx, out) || (out->flags & RW_IFACE_LAYER3)))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_DEVICE);
	if (must_pass(pctx, out))
		return pass_rewritten(pctx, p);
	copy_mac(p->eth->h_dest, next_hop);
	copy_mac(p->eth->h_source, out->mac);
	return send_out(pctx, out, reason);
}

/* Checks TTL and length before anything is changed. NONE: may be forwarded. */
static __always_inline enum rw_reason may_forward(const struct packet *p, __u32 mtu)
{
	__u8 hops = p->v6 ? ((struct ipv6hdr *)p->l3)->hop_limit : ((struct iphdr *)p->l3)->ttl;

	if (hops <= 1)
		return RW_REASON_TTL_EXPIRED;
	return p->l3_len > mtu ? RW_REASON_TOO_BIG : RW_REASON_NONE;
}

static __always_inline void rewrite(struct packet *p, const struct rewrite *to)
{
	rewrite_l4(p, to);
	if (p->v6)
		rewrite_ipv6(p->l3, to);
	else
		rewrite_ipv4(p->l3, to);
}

#endif
