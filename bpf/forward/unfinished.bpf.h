/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Frames whose checksum a later device has to finish (gateway/partial.bpf.h). Native XDP forgets
 * which those are, so of a stack of this machine only what can be seen to be finished is forwarded:
 * the kernel has the rest. A tunnel's packet may hold an unfinished one.
 */
#ifndef RINGWAY_UNFINISHED_H
#define RINGWAY_UNFINISHED_H

#include "common/checksum.bpf.h"
#include "common/layers.bpf.h"
#include "gateway/packet_context.bpf.h"

#define IPPROTO_ICMP6 58

/* UDP ports of tunnels: VXLAN, the same on Linux before, Geneve. */
static __always_inline bool is_tunnel(__be16 port)
{
	return port == bpf_htons(4789) || port == bpf_htons(8472) || port == bpf_htons(6081);
}

/* `pseudo`: the sum of addresses, protocol and length. */
static __always_inline bool l4_unfinished(const void *l4, const void *end, __u8 proto, __u64 pseudo)
{
	const struct tcphdr *tcp = l4;
	const struct udphdr *udp = l4;

	switch (proto) {
	case IPPROTO_ICMP:
	case IPPROTO_ICMP6:
	case IPPROTO_IGMP:
		return false;
	case IPPROTO_TCP:
		return (void *)(tcp + 1) > end || tcp->check == csum_fold(pseudo);
	case IPPROTO_UDP:
		return (void *)(udp + 1) > end || !udp->check || is_tunnel(udp->dest) ||
		       udp->check == csum_fold(pseudo);
	}
	return true;
}

static __always_inline bool ipv4_unfinished(const struct iphdr *ip, const void *end)
{
	if ((void *)(ip + 1) > end || *(__u8 *)ip != 0x45)
		return true;
	/* A stack finishes before it cuts a datagram. */
	if (ip->frag_off & bpf_htons(IP_FRAGMENT_MASK))
		return false;
	return l4_unfinished(ip + 1, end, ip->protocol,
			     (__u64)ip->saddr + ip->daddr + bpf_htons(ip->protocol) +
				     bpf_htons(bpf_ntohs(ip->tot_len) - sizeof(*ip)));
}

static __always_inline bool ipv6_unfinished(const struct ipv6hdr *ip, const void *end)
{
	if ((void *)(ip + 1) > end)
		return true;
	if (ip->nexthdr == IPPROTO_FRAGMENT)
		return false;
	return l4_unfinished(ip + 1, end, ip->nexthdr,
			     csum_words(ip->saddr.in6_u.u6_addr32, 8) + bpf_htons(ip->nexthdr) +
				     ip->payload_len);
}

/* Of any frame, with tags or without. */
static __always_inline bool may_be_unfinished(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	void *l3 = eth + 1;
	__be16 type;

	if (l3 > end)
		return true;
	type = eth->h_proto;
#pragma clang loop unroll(full)
	for (int tags = 0; tags < 2; tags++) {
		struct vlan_tag *tag = l3;

		if (!is_vlan(type))
			break;
		if ((void *)(tag + 1) > end)
			return true;
		type = tag->type;
		l3 = tag + 1;
	}
	if (type == bpf_htons(ETH_P_IP))
		return ipv4_unfinished(l3, end);
	if (type == bpf_htons(ETH_P_IPV6))
		return ipv6_unfinished(l3, end);
	return is_vlan(type);
}

/* Whether the frame has to go by the kernel for it. Generic XDP remembers, but the kernel finishes
 * nothing on the way from there. */
static __always_inline bool is_unfinished(const struct packet_context *pctx,
					  const struct rw_iface *out)
{
	__u32 in = pctx->in->flags;

	if (!(in & RW_IFACE_LOCAL) || ((in & RW_IFACE_GENERIC) && !(out->flags & RW_IFACE_RAW)))
		return false;
	return may_be_unfinished(pctx->ctx);
}

#endif
