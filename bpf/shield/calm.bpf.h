/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Nearly every packet in peace: one that neither sanity nor a list has anything to say about,
 * whomever it is for. It costs no look-up but those in the lists. All others, and those that a rule
 * matches, are parsed and judged in full.
 */
#ifndef RINGWAY_CALM_H
#define RINGWAY_CALM_H

#include "lists.bpf.h"
#include "sanity.bpf.h"

static __always_inline bool is_common4(const struct iphdr *ip)
{
	return *(const __u8 *)ip == 0x45 && !(ip->frag_off & bpf_htons(IP_FRAGMENT_MASK));
}

static __always_inline bool is_common6(const struct ipv6hdr *ip)
{
	return (*(const __u8 *)ip & 0xf0) == 0x60 &&
	       (ip->nexthdr == IPPROTO_TCP || ip->nexthdr == IPPROTO_UDP ||
		ip->nexthdr == IPPROTO_ICMPV6);
}

/* Of a segment whose header begins here; the flags are its 14th byte. */
static __always_inline bool flags_are_calm(const void *l4, const void *end, __u8 proto)
{
	if (!shield.sanity || proto != IPPROTO_TCP)
		return true;
	return l4 + 14 <= end && tcp_flags_fit(((const __u8 *)l4)[13]);
}

/* Whether no prefix of run time has this source. */
static __always_inline bool runtime_is_calm(const struct rw_shield_control *control,
					    const __u32 *source, bool v6)
{
	return !(control->allows && at_runtime(&runtime_allow, source, v6)) &&
	       !(control->blocks && at_runtime(&runtime_block, source, v6));
}

static __always_inline bool source4_is_calm(const struct rw_shield_control *control, __u32 source,
					    __u32 destination)
{
	__u32 mapped[4];
	__u32 first = source >> 24;

	if (shield.sanity && (source == destination || !first || first == 127 || first >= 224))
		return false;
	if (control->allows || control->blocks) {
		map_addr4(mapped, bpf_htonl(source));
		if (!runtime_is_calm(control, mapped, false))
			return false;
	}
	return listed4(&shield.allow4, source) == NOT_LISTED &&
	       listed4(&shield.block4, source) == NOT_LISTED;
}

static __always_inline bool source6_is_calm(const struct rw_shield_control *control,
					    const __u32 *source, const __u32 *destination)
{
	if (shield.sanity && (same_addr(source, destination) || !is_host(source, true)))
		return false;
	return runtime_is_calm(control, source, true) && allowed(source, true) == NOT_LISTED &&
	       blocked(source, true) == NOT_LISTED;
}

static __always_inline bool is_calm(const struct xdp_md *ctx,
				    const struct rw_shield_control *control)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);

	/* What is to be explained is judged in full. */
	if (dry || (void *)(ip + 1) > end)
		return false;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return is_common4(ip) && flags_are_calm(ip + 1, end, ip->protocol) &&
		       source4_is_calm(control, bpf_ntohl(ip->saddr), bpf_ntohl(ip->daddr));
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
		return false;
	return is_common6(ip6) && flags_are_calm(ip6 + 1, end, ip6->nexthdr) &&
	       source6_is_calm(control, ip6->saddr.in6_u.u6_addr32, ip6->daddr.in6_u.u6_addr32);
}

#endif
