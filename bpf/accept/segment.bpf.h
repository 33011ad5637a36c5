/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads TCP segments at tc ingress, whatever device they come by and wherever their bytes are. */
#ifndef RINGWAY_SEGMENT_H
#define RINGWAY_SEGMENT_H

#include <linux/if_packet.h>

#include "common/common.bpf.h"

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_TIMESTAMPS 8
#define MAX_TCP_OPTIONS 40 /* each has a byte at least */
#define TCP_RST 4
#define IP_FRAGMENTED bpf_htons(0x3fff) /* more fragments follow, or this is a later one */

/* Bytes before the IP header: of Ethernet, or none. */
const volatile __u32 l2_len;

struct segment {
	struct rw_tuple tuple;
	struct iphdr ip4;
	struct ipv6hdr ip6;
	struct tcphdr tcp;
	__u32 l4; /* where TCP begins, from the IP header on */
	__u32 seq;
	__u32 ack;
	__u32 tsval;
	__u32 tsecr;
	bool timestamps;
	bool v6;
};

static __always_inline bool read_at(struct __sk_buff *skb, __u32 at, void *to, __u32 len)
{
	return !bpf_skb_load_bytes_relative(skb, at, to, len, BPF_HDR_START_NET);
}

/* Where TCP begins, from the IP header on; 0: not TCP, in fragments, or behind options or
 * extension headers: nothing that a client's ACK has. */
static __always_inline __u32 read_ip(struct __sk_buff *skb, struct segment *s)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (!read_at(skb, 0, &s->ip4, sizeof(s->ip4)) || s->ip4.ihl != 5 ||
		    s->ip4.protocol != IPPROTO_TCP || s->ip4.frag_off & IP_FRAGMENTED)
			return 0;
		map_addr4(s->tuple.saddr, s->ip4.saddr);
		map_addr4(s->tuple.daddr, s->ip4.daddr);
		return sizeof(s->ip4);
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || !read_at(skb, 0, &s->ip6, sizeof(s->ip6)) ||
	    s->ip6.nexthdr != IPPROTO_TCP)
		return 0;
	s->v6 = true;
	copy_addr(s->tuple.saddr, s->ip6.saddr.in6_u.u6_addr32);
	copy_addr(s->tuple.daddr, s->ip6.daddr.in6_u.u6_addr32);
	return sizeof(s->ip6);
}

/* Where they are in nearly all segments (RFC 7323, appendix A). */
static __always_inline bool read_usual_timestamps(struct __sk_buff *skb, struct segment *s)
{
	struct {
		__be32 head, tsval, tsecr;
	} option;

	if (s->tcp.doff * 4 < sizeof(s->tcp) + sizeof(option) ||
	    !read_at(skb, s->l4 + sizeof(s->tcp), &option, sizeof(option)) ||
	    option.head != bpf_htonl(TCP_OPTION_NOP << 24 | TCP_OPTION_NOP << 16 |
				     TCP_OPTION_TIMESTAMPS << 8 | 10))
		return false;
	s->timestamps = true;
	s->tsval = bpf_ntohl(option.tsval);
	s->tsecr = bpf_ntohl(option.tsecr);
	return true;
}

/* Of the option, where the segment has it. */
static __always_inline void read_timestamps(struct __sk_buff *skb, struct segment *s)
{
	__u32 at = s->l4 + sizeof(s->tcp), end = s->l4 + s->tcp.doff * 4;
	struct {
		__u8 kind, len;
		__be32 tsval, tsecr;
	} __attribute__((packed)) option;

	if (read_usual_timestamps(skb, s))
		return;
	for (int n = 0; n < MAX_TCP_OPTIONS; n++) {
		if (at >= end || !read_at(skb, at, &option.kind, 1) ||
		    option.kind == TCP_OPTION_END)
			return;
		if (option.kind == TCP_OPTION_NOP) {
			at++;
			continue;
		}
		if (!read_at(skb, at, &option, 2) || option.len < 2)
			return;
		if (option.kind == TCP_OPTION_TIMESTAMPS) {
			s->timestamps = option.len == sizeof(option) &&
					at + sizeof(option) <= end &&
					read_at(skb, at, &option, sizeof(option));
			s->tsval = bpf_ntohl(option.tsval);
			s->tsecr = bpf_ntohl(option.tsecr);
			return;
		}
		at += option.len;
	}
}

/* A segment to this host. */
static __always_inline bool read_segment(struct __sk_buff *skb, struct segment *s)
{
	if (skb->pkt_type != PACKET_HOST)
		return false;
	s->l4 = read_ip(skb, s);
	if (!s->l4 || !read_at(skb, s->l4, &s->tcp, sizeof(s->tcp)))
		return false;
	s->tuple.sport_be = s->tcp.source;
	s->tuple.dport_be = s->tcp.dest;
	s->seq = bpf_ntohl(s->tcp.seq);
	s->ack = bpf_ntohl(s->tcp.ack_seq);
	return true;
}

/* Makes a RST of it, with this sequence number (network order). False: untouched, or not whole. */
static __always_inline bool make_reset(struct __sk_buff *skb, const struct segment *s, __be32 seq)
{
	__u32 tcp = l2_len + s->l4, check = tcp + offsetof(struct tcphdr, check);
	__u32 flags_at = tcp + offsetof(struct tcphdr, ack_seq) + 4;
	__be32 old = s->tcp.seq;
	__be16 flags, reset;

	if (bpf_skb_load_bytes(skb, flags_at, &flags, sizeof(flags)))
		return false;
	reset = flags | bpf_htons(TCP_RST);
	return !bpf_l4_csum_replace(skb, check, old, seq, 4) &&
	       !bpf_l4_csum_replace(skb, check, flags, reset, 2) &&
	       !bpf_skb_store_bytes(skb, tcp + offsetof(struct tcphdr, seq), &seq, 4, 0) &&
	       !bpf_skb_store_bytes(skb, flags_at, &reset, 2, 0);
}

static __always_inline __u32 socket_tuple(const struct segment *s, struct bpf_sock_tuple *tuple)
{
	if (s->v6) {
		copy_addr(tuple->ipv6.saddr, s->tuple.saddr);
		copy_addr(tuple->ipv6.daddr, s->tuple.daddr);
		tuple->ipv6.sport = s->tuple.sport_be;
		tuple->ipv6.dport = s->tuple.dport_be;
		return sizeof(tuple->ipv6);
	}
	tuple->ipv4.saddr = s->ip4.saddr;
	tuple->ipv4.daddr = s->ip4.daddr;
	tuple->ipv4.sport = s->tuple.sport_be;
	tuple->ipv4.dport = s->tuple.dport_be;
	return sizeof(tuple->ipv4);
}

#endif
