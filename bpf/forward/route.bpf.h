/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Beside the kernel's routes: forwards a packet that the kernel would send on by another of our
 * interfaces, unchanged but for its hop limit. The kernel has all others: those to itself, those
 * that have to be answered, and those whose next hop has to be asked for.
 */
#ifndef RINGWAY_ROUTE_H
#define RINGWAY_ROUTE_H

#include "common/checksum.bpf.h"
#include "common/layers.bpf.h"
#include "maps.bpf.h"

#define AF_INET 2
#define AF_INET6 10

/* IPv4 addresses that no host has, or that leave no link: 0/8, 127/8, 224/3. */
static __always_inline bool is_special4(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

/* The same of IPv6: ::/96 with the mapped prefix, fe80::/10, ff00::/8. */
static __always_inline bool is_special6(const struct in6_addr *address)
{
	const __u32 *words = address->in6_u.u6_addr32;
	__u32 first = bpf_ntohl(words[0]);

	return first >> 24 == 0xff || first >> 22 == 0xfe80 >> 6 ||
	       !(words[0] | words[1] | (words[2] && words[2] != bpf_htonl(0xffff)));
}

/* The ports, by which the kernel may choose one of several ways. */
static __always_inline void note_ports(struct bpf_fib_lookup *fib, const void *l4, const void *end)
{
	const __be16 *port = l4;

	if ((fib->l4_protocol != IPPROTO_TCP && fib->l4_protocol != IPPROTO_UDP) ||
	    (void *)(port + 2) > end)
		return;
	fib->sport = port[0];
	fib->dport = port[1];
}

#define LINEAR 2048 /* a frame whose first part is shorter has no other */

/* Whether all of the packet is there. What is behind it is sent on with it. */
static __always_inline bool fits(const void *l3, __u32 len, const void *end)
{
	__u32 there = end - l3;

	return there >= LINEAR || len <= there;
}

static __always_inline enum rw_reason ask_ipv4(const struct iphdr *ip, const void *end,
					       struct bpf_fib_lookup *fib)
{
	if ((void *)(ip + 1) > end || *(__u8 *)ip != 0x45 || is_special4(ip->saddr) ||
	    is_special4(ip->daddr) || bpf_ntohs(ip->tot_len) < sizeof(*ip) ||
	    !fits(ip, bpf_ntohs(ip->tot_len), end) ||
	    csum_fold(csum_words((__u32 *)ip, sizeof(*ip) / 4)) != 0xffff)
		return RW_REASON_ROUTE_UNCOMMON;
	if (ip->ttl <= 1)
		return RW_REASON_ROUTE_HOP_LIMIT;
	fib->family = AF_INET;
	fib->l4_protocol = ip->protocol;
	fib->tot_len = bpf_ntohs(ip->tot_len);
	fib->tos = ip->tos;
	fib->ipv4_src = ip->saddr;
	fib->ipv4_dst = ip->daddr;
	if (!(ip->frag_off & bpf_htons(IP_FRAGMENT_MASK)))
		note_ports(fib, ip + 1, end);
	return RW_REASON_NONE;
}

static __always_inline enum rw_reason ask_ipv6(const struct ipv6hdr *ip, const void *end,
					       struct bpf_fib_lookup *fib)
{
	if ((void *)(ip + 1) > end || ip->version != 6 || ip->nexthdr == IPPROTO_HOPOPTS ||
	    is_special6(&ip->saddr) || is_special6(&ip->daddr) ||
	    !fits(ip, sizeof(*ip) + bpf_ntohs(ip->payload_len), end))
		return RW_REASON_ROUTE_UNCOMMON;
	if (ip->hop_limit <= 1)
		return RW_REASON_ROUTE_HOP_LIMIT;
	fib->family = AF_INET6;
	fib->l4_protocol = ip->nexthdr;
	fib->tot_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	fib->flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	copy_addr(fib->ipv6_src, ip->saddr.in6_u.u6_addr32);
	copy_addr(fib->ipv6_dst, ip->daddr.in6_u.u6_addr32);
	note_ports(fib, ip + 1, end);
	return RW_REASON_NONE;
}

static __always_inline bool may_be_own(struct rw_forwarding *state, __be32 address)
{
	__u32 bit = (address * RW_OWN_HASH) >> (32 - RW_OWN_BITS);

	return READ_ONCE(state->own[bit / 64]) >> (bit % 64) & 1;
}

/* Whether the kernel would take the source from this interface, or else is to judge it (RFC 3704).
 * Where it does not ask for the way back, it refuses only its own addresses. */
static __always_inline bool source_is_reached(struct packet_context *pctx,
					      const struct transit *transit,
					      const struct bpf_fib_lookup *asked)
{
	const struct rw_port *port = transit->port;
	struct bpf_fib_lookup back;
	long found;

	if (asked->family != AF_INET || (!(port->flags & (RW_PORT_STRICT | RW_PORT_LOOSE)) &&
					 !may_be_own(transit->state, asked->ipv4_src)))
		return true;
	back = *asked;
	back.ipv4_src = asked->ipv4_dst;
	back.ipv4_dst = asked->ipv4_src;
	back.tot_len = 0;
	found = bpf_fib_lookup(pctx->ctx, &back, sizeof(back), 0);
	/* To nowhere, or to this host, whose addresses nobody else has. */
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED)
		return false;
	if ((port->flags & (RW_PORT_STRICT | RW_PORT_LOOSE)) && found != BPF_FIB_LKUP_RET_SUCCESS &&
	    found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return false;
	return !(port->flags & RW_PORT_STRICT) || back.ifindex == pctx->in->ifindex;
}

/* The slot of an interface that is forwarded on. */
static __always_inline bool way_of(__u32 ifindex, __u32 *slot)
{
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < RW_WAY_TRIES; i++) {
		__u32 place = (ifindex + i) % RW_FORWARD_WAYS;
		struct rw_way *way = bpf_map_lookup_elem(&ways, &place);

		if (way && way->ifindex == ifindex) {
			*slot = way->slot;
			return true;
		}
	}
	return false;
}

static __always_inline enum rw_reason why_not(long answer)
{
	switch (answer) {
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return RW_REASON_ROUTE_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return RW_REASON_FORWARD_TOO_LONG;
	}
	return RW_REASON_ROUTE_NONE;
}

/* The next hop's entry stays fresh only if somebody says that it is used. */
static __always_inline void note_neighbour(struct rw_forwarding *state, const __u8 *mac)
{
	const __u16 *words = (const __u16 *)mac;
	__u32 place = (words[0] + words[1] * 3u + words[2] * 7u) % RW_USED_NEIGHBOURS;

	if (!forwarder.dry && !READ_ONCE(state->used[place]))
		WRITE_ONCE(state->used[place], 1);
}

static __always_inline void one_hop_less(struct ethhdr *eth)
{
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);

	if (eth->h_proto != bpf_htons(ETH_P_IP)) {
		ip6->hop_limit--;
		return;
	}
	/* A hop less in the upper half of its word: ~old + new, whatever they are. */
	ip->check = csum_apply(ip->check, bpf_htons(0xfeff));
	ip->ttl--;
}

/* NONE: the packet, without tags, leaves by transit's `out`. */
static __always_inline enum rw_reason route(struct packet_context *pctx, struct transit *transit)
{
	struct xdp_md *ctx = pctx->ctx;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct bpf_fib_lookup fib = {};
	enum rw_reason why;
	long answer;

	if ((void *)(eth + 1) > end || !frame_is_ours(pctx, eth))
		return RW_REASON_ROUTE_UNCOMMON;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		why = ask_ipv4((void *)(eth + 1), end, &fib);
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		why = ask_ipv6((void *)(eth + 1), end, &fib);
	else
		why = RW_REASON_ROUTE_UNCOMMON;
	if (why)
		return why;
	fib.ifindex = pctx->in->ifindex;
	if (!source_is_reached(pctx, transit, &fib))
		return RW_REASON_ROUTE_SOURCE;
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	if (answer != BPF_FIB_LKUP_RET_SUCCESS)
		return why_not(answer);
	/* The kernel tells the sender of a shorter way. */
	if (fib.ifindex == pctx->in->ifindex || !way_of(fib.ifindex, &transit->out))
		return RW_REASON_ROUTE_ELSEWHERE;
	copy_mac(pctx->scratch->icmp.mac, fib.dmac);
	return RW_REASON_NONE;
}

/* What changes when it leaves. */
static __always_inline bool rewrite_hop(struct packet_context *pctx, struct transit *transit,
					const struct rw_iface *out)
{
	struct ethhdr *eth = (void *)(long)pctx->ctx->data;

	/* What changes lies in the first bytes of either header. */
	if ((void *)(eth + 1) + sizeof(struct iphdr) > (void *)(long)pctx->ctx->data_end)
		return false;
	note_neighbour(transit->state, pctx->scratch->icmp.mac);
	copy_mac(eth->h_dest, pctx->scratch->icmp.mac);
	copy_mac(eth->h_source, out->mac);
	one_hop_less(eth);
	return true;
}

#endif
