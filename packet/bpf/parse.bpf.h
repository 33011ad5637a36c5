/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Step 1: what is this frame? Every length is checked here, once; later steps
 * rely on it. IPv4 options, IPv6 extension headers and fragments are named,
 * not looked into.
 */
#ifndef RINGWAY_PARSE_H
#define RINGWAY_PARSE_H

#include "common.bpf.h"

/* TCP flags, byte 13 of the header (RFC 9293 section 3.1). */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define IP_FRAGMENT_MASK 0x3fff /* more fragments, or an offset */

struct packet {
	struct rw_tuple *t; /* in scratch */
	struct ethhdr *eth; /* NULL: not even that */
	void *l3;	    /* iphdr or ipv6hdr, without options or extensions */
	void *l4;	    /* tcphdr or udphdr: ports lie alike in both */
	__u16 *check;	    /* the layer-4 checksum */
	__u16 l3_len;	    /* bytes of layer 3, by its own header */
	bool v6;
};

/* Bytes in the whole frame, of which data..data_end may be the first part. */
static __always_inline __u32 frame_len(struct xdp_md *ctx, __u32 needed)
{
	__u32 linear = ctx->data_end - ctx->data;

	return needed <= linear ? linear : (__u32)bpf_xdp_get_buff_len(ctx);
}

static __always_inline enum rw_reason parse_l4(struct packet *p, void *end, __u32 l4_len)
{
	if (p->t->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = p->l4;

		if ((void *)(tcp + 1) > end || l4_len < sizeof(*tcp))
			return RW_REASON_MALFORMED;
		if (tcp->doff < 5 || tcp->doff * 4u > l4_len)
			return RW_REASON_MALFORMED;
		p->t->sport_be = tcp->source;
		p->t->dport_be = tcp->dest;
		p->check = &tcp->check;
		p->t->tcp_flags = ((__u8 *)tcp)[13];
		return RW_REASON_NONE;
	}
	if (p->t->proto == IPPROTO_UDP) {
		struct udphdr *udp = p->l4;
		__u32 udp_len;

		if ((void *)(udp + 1) > end || l4_len < sizeof(*udp))
			return RW_REASON_MALFORMED;
		udp_len = bpf_ntohs(udp->len);
		if (udp_len < sizeof(*udp) || udp_len > l4_len)
			return RW_REASON_MALFORMED;
		p->t->sport_be = udp->source;
		p->t->dport_be = udp->dest;
		p->check = &udp->check;
		p->t->tcp_flags = 0;
		return RW_REASON_NONE;
	}
	if (p->t->proto == (p->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return RW_REASON_ICMP;
	return RW_REASON_OTHER_PROTOCOL;
}

static __always_inline enum rw_reason parse_ipv4(struct xdp_md *ctx, struct packet *p, void *end)
{
	struct iphdr *ip = p->l3;
	__u32 total;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return RW_REASON_MALFORMED;
	total = bpf_ntohs(ip->tot_len);
	if (total < ip->ihl * 4u ||
	    sizeof(struct ethhdr) + total > frame_len(ctx, ETH_HLEN + total))
		return RW_REASON_MALFORMED;
	p->v6 = false;
	p->l3_len = total;
	p->t->proto = ip->protocol;
	map_addr4(p->t->saddr, ip->saddr);
	map_addr4(p->t->daddr, ip->daddr);
	if (ip->ihl > 5)
		return RW_REASON_IP_OPTIONS;
	if (ip->frag_off & bpf_htons(IP_FRAGMENT_MASK))
		return RW_REASON_FRAGMENT;
	p->l4 = ip + 1;
	return parse_l4(p, end, total - sizeof(*ip));
}

static __always_inline enum rw_reason parse_ipv6(struct xdp_md *ctx, struct packet *p, void *end)
{
	struct ipv6hdr *ip = p->l3;
	__u32 payload;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return RW_REASON_MALFORMED;
	payload = bpf_ntohs(ip->payload_len);
	if (sizeof(*ip) + payload > 0xffff ||
	    ETH_HLEN + sizeof(*ip) + payload > frame_len(ctx, ETH_HLEN + sizeof(*ip) + payload))
		return RW_REASON_MALFORMED;
	p->v6 = true;
	p->l3_len = sizeof(*ip) + payload;
	p->t->proto = ip->nexthdr;
	copy_addr(p->t->saddr, ip->saddr.in6_u.u6_addr32);
	copy_addr(p->t->daddr, ip->daddr.in6_u.u6_addr32);
	switch (ip->nexthdr) {
	case IPPROTO_FRAGMENT:
		return RW_REASON_FRAGMENT;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
	case IPPROTO_MH:
	case 139: /* HIP, RFC 7401 */
	case 140: /* Shim6, RFC 5533 */
		return RW_REASON_IPV6_EXTENSION;
	}
	p->l4 = ip + 1;
	return parse_l4(p, end, payload);
}

/*
 * NONE: TCP or UDP, all fields set. ICMP, OTHER_PROTOCOL, IP_OPTIONS,
 * IPV6_EXTENSION, FRAGMENT: addresses and lengths set. Anything else: eth at
 * most.
 */
static __always_inline enum rw_reason parse(struct xdp_md *ctx, struct packet *p)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > end)
		return RW_REASON_MALFORMED;
	p->eth = eth;
	p->l3 = eth + 1;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return parse_ipv4(ctx, p, end);
	case bpf_htons(ETH_P_IPV6):
		return parse_ipv6(ctx, p, end);
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		return RW_REASON_VLAN;
	}
	return RW_REASON_NOT_IP;
}

#endif
