/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Step 1: classifies the frame. Every length is checked here, once; later steps
 * rely on it. The common frame (no tag, no option, no extension, no fragment)
 * is parsed in a straight line; layers.bpf.h parses all others.
 */
#ifndef RINGWAY_PARSE_H
#define RINGWAY_PARSE_H

#include "common/layers.bpf.h"

/* TCP flags, byte 13 of the header (RFC 9293 section 3.1). */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct packet {
	struct xdp_md *ctx;
	struct rw_tuple *t;
	struct rw_layers *at;
	struct ethhdr *eth; /* NULL: not even that */
	void *l3;	    /* iphdr or ipv6hdr, maybe with options or extensions behind */
	void *l4;	    /* tcphdr or udphdr: ports lie alike in both; NULL: a later fragment */
	__u16 *check;	    /* the layer-4 checksum; NULL: a later fragment */
	__u16 l3_len;	    /* bytes of layer 3, by its own header */
	__u16 l4_len;	    /* of these, layer 4's */
	bool v6;
	__u32 unfinished; /* 1: *check is the pseudo-header's sum, and stays that (partial.bpf.h) */
};

static __always_inline enum rw_reason parse_tcp(struct packet *p, void *end)
{
	struct tcphdr *tcp = p->l4;

	if ((void *)(tcp + 1) > end || p->l4_len < sizeof(*tcp))
		return RW_REASON_MALFORMED;
	if (tcp->doff < 5 || tcp->doff * 4u > p->l4_len)
		return RW_REASON_MALFORMED;
	p->t->sport_be = tcp->source;
	p->t->dport_be = tcp->dest;
	p->t->tcp_flags = ((__u8 *)tcp)[13];
	p->check = &tcp->check;
	return RW_REASON_NONE;
}

static __always_inline enum rw_reason parse_udp(struct packet *p, void *end)
{
	struct udphdr *udp = p->l4;
	__u32 udp_len;

	if ((void *)(udp + 1) > end || p->l4_len < sizeof(*udp))
		return RW_REASON_MALFORMED;
	udp_len = bpf_ntohs(udp->len);
	/* A first fragment holds less than the datagram. */
	if (udp_len < sizeof(*udp) || (udp_len > p->l4_len && p->at->fragment != RW_FRAGMENT_FIRST))
		return RW_REASON_MALFORMED;
	p->t->sport_be = udp->source;
	p->t->dport_be = udp->dest;
	p->t->tcp_flags = 0; /* scratch still has those of this CPU's last segment */
	p->check = &udp->check;
	return RW_REASON_NONE;
}

static __always_inline enum rw_reason parse_l4(struct packet *p, void *end)
{
	switch (p->t->proto) {
	case IPPROTO_TCP:
		return parse_tcp(p, end);
	case IPPROTO_UDP:
		return parse_udp(p, end);
	case IPPROTO_ICMP:
		return p->v6 ? RW_REASON_OTHER_PROTOCOL : RW_REASON_ICMP;
	case IPPROTO_ICMPV6:
		return p->v6 ? RW_REASON_ICMP : RW_REASON_OTHER_PROTOCOL;
	}
	return RW_REASON_OTHER_PROTOCOL;
}

static __always_inline void lies_at(struct rw_layers *at, __u32 l4, __u32 l3_len, __u32 l4_len)
{
	at->l3_len = l3_len;
	at->l4 = l4;
	at->l4_len = l4_len;
	at->fragment = RW_FRAGMENT_NONE;
}

/* True for a common IPv4 packet, which is then parsed up to layer 4. */
static __always_inline bool common_ipv4(struct packet *p, void *end)
{
	struct iphdr *ip = p->l3;
	__u32 total;

	if ((void *)(ip + 1) > end || *(__u8 *)ip != 0x45 ||
	    (ip->frag_off & bpf_htons(IP_FRAGMENT_MASK)))
		return false;
	total = bpf_ntohs(ip->tot_len);
	/* 6.1's verifier knows no bounds of a swapped word. */
	barrier_var(total);
	total &= 0xffff;
	/* Longer than the linear part: multi-buffer, or cut short. */
	if (total < sizeof(*ip) || (void *)ip + total > end)
		return false;
	lies_at(p->at, ETH_HLEN + sizeof(*ip), total, total - sizeof(*ip));
	p->t->proto = ip->protocol;
	map_addr4(p->t->saddr, ip->saddr);
	map_addr4(p->t->daddr, ip->daddr);
	return true;
}

static __always_inline bool common_ipv6(struct packet *p, void *end)
{
	struct ipv6hdr *ip = p->l3;
	__u32 payload;

	if ((void *)(ip + 1) > end || (*(__u8 *)ip & 0xf0) != 0x60)
		return false;
	if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP &&
	    ip->nexthdr != IPPROTO_ICMPV6)
		return false;
	payload = bpf_ntohs(ip->payload_len);
	barrier_var(payload);
	payload &= 0xffff;
	if ((void *)(ip + 1) + payload > end)
		return false;
	lies_at(p->at, ETH_HLEN + sizeof(*ip), sizeof(*ip) + payload, payload);
	p->t->proto = ip->nexthdr;
	copy_addr(p->t->saddr, ip->saddr.in6_u.u6_addr32);
	copy_addr(p->t->daddr, ip->daddr.in6_u.u6_addr32);
	/* layers_ipv6() says what is wrong with it. */
	return !mapped_v4(p->t->saddr) && !mapped_v4(p->t->daddr);
}

/* Any other packet. */
static __always_inline enum rw_reason parse_uncommon(struct packet *p, void *end)
{
	__u32 why = parse_layers(p->ctx, p->t, p->at);

	/* Always set by our own functions, but the verifier does not know their results. */
	barrier_var(why);
	if (why >= RW_REASON_SPACE)
		return RW_REASON_NO_STATE;
	if (p->l3 + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) > end)
		return RW_REASON_MALFORMED;
	return why;
}

/* From here on only `at` says whether a packet is common: read from memory, so that
 * the verifier does not walk the rest once for each. */
static __always_inline enum rw_reason point_at_l4(struct packet *p)
{
	__u32 l4 = READ_ONCE(p->at->l4);

	if (l4 > MAX_L4_START)
		return RW_REASON_MALFORMED;
	p->l4 = (void *)p->eth + l4;
	return RW_REASON_NONE;
}

/*
 * NONE: TCP or UDP, all fields set. ICMP, OTHER_PROTOCOL: all but ports and
 * check. FRAGMENT, a later one: all but layer 4's. SOURCE_ROUTE,
 * IPV6_EXTENSION: addresses and lengths of layer 3. Anything else: eth at most.
 */
static __always_inline enum rw_reason parse(struct xdp_md *ctx, struct packet *p)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	enum rw_reason why = RW_REASON_NONE;
	bool common;

	p->ctx = ctx;
	if ((void *)(eth + 1) > end)
		return RW_REASON_MALFORMED;
	p->eth = eth;
	p->l3 = eth + 1;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		common = common_ipv4(p, end);
		break;
	case bpf_htons(ETH_P_IPV6):
		p->v6 = true;
		common = common_ipv6(p, end);
		break;
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		return RW_REASON_VLAN;
	default:
		return RW_REASON_NOT_IP;
	}
	if (!common)
		why = parse_uncommon(p, end);
	p->l3_len = READ_ONCE(p->at->l3_len);
	p->l4_len = READ_ONCE(p->at->l4_len);
	if (why)
		return why;
	why = point_at_l4(p);
	return why ? why : parse_l4(p, end);
}

/* Whether the segment has payload. Unknown for a fragment. */
static __always_inline bool has_data(const struct packet *p, const struct tcphdr *tcp)
{
	return !(p->t->tcp_flags & (TCP_SYN | TCP_RST)) && p->l4_len > tcp->doff * 4u;
}

/* The same of any packet. */
static __always_inline bool carries_data(const struct xdp_md *ctx, const struct packet *p)
{
	const struct tcphdr *tcp = p->l4;

	/* The last holds since parse(): for the verifier. */
	return p->t->proto == IPPROTO_TCP && tcp &&
	       (void *)(tcp + 1) <= (void *)(long)ctx->data_end && has_data(p, tcp);
}

#endif
