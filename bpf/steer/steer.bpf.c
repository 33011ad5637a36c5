// SPDX-License-Identifier: GPL-2.0-only
/*
 * ringway engine --only: sends packets that match a rule (all, without rules) to
 * AF_XDP sockets. All others go to the kernel as without this program, and so do
 * packets that it cannot read. If a socket is gone because its engine died, its
 * packets go to the kernel, or are dropped and counted (--when-dead). The program is
 * attached to the interface directly, not in a slot of the gateway.
 *
 * Tags (at most two), IPv4 options and IPv6 extension headers are skipped. Fragments
 * have no ports here, not even the first, so all of a datagram match the same rules
 * and can be reassembled in one place.
 */
#include "common/layers.bpf.h"

#define MAX_TAGS 2
#define ND_FIRST 133 /* router solicitation */
#define ND_SOLICITATION 135
#define ND_LAST 137 /* redirect */

/* writer: user space, before the program is attached; reader: this program. */
RW_MAP(rules, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_steer, 0);

/* writer: user space; reader: this program. By queue. */
RW_MAP(sockets, BPF_MAP_TYPE_XSKMAP, RW_STEER_QUEUES, __u32, __u32, 0);

/* writer: this program; reader: user space. Packets of queues whose socket is gone. */
RW_MAP(dropped, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, __u64, 0);

struct vlan_tag {
	__be16 tag;
	__be16 proto;
};

/* ARP for IPv4 over Ethernet (RFC 826). */
struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 operation;
	__u8 sender[10];
	__u8 target_mac[ETH_ALEN];
	__be32 target;
} __attribute__((packed, aligned(2)));

struct nd {
	__u8 type;
	__u8 code;
	__be16 check;
	__be32 reserved;
	__u32 target[4];
};

/* The fields that rules match. */
struct sight {
	__u32 addr[4];
	__u32 kind;
	__u32 family;
	__u32 port;
};

static __always_inline bool see_arp(const struct walk *walk, __u32 at, struct sight *s)
{
	struct arp *arp = WALK_AT(walk, at, sizeof(*arp));

	if (!arp || arp->protocol != bpf_htons(ETH_P_IP) || arp->hardware_len != ETH_ALEN ||
	    arp->protocol_len != 4)
		return false;
	s->kind = RW_STEER_ARP;
	s->family = 4;
	map_addr4(s->addr, arp->target);
	return true;
}

/* These have their ports in the same place. A truncated packet has none. */
static __always_inline void see_port(const struct walk *walk, __u32 at, struct sight *s)
{
	struct udphdr *udp;

	if (s->kind != IPPROTO_TCP && s->kind != IPPROTO_UDP && s->kind != IPPROTO_SCTP &&
	    s->kind != IPPROTO_UDPLITE)
		return;
	udp = WALK_AT(walk, at, sizeof(*udp));
	if (udp)
		s->port = bpf_ntohs(udp->dest);
}

static __always_inline bool see_ipv4(const struct walk *walk, __u32 at, struct sight *s)
{
	struct iphdr *ip = WALK_AT(walk, at, sizeof(*ip));

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return false;
	s->kind = ip->protocol;
	s->family = 4;
	map_addr4(s->addr, ip->daddr);
	if (!(ip->frag_off & bpf_htons(IP_FRAGMENT_MASK)))
		see_port(walk, at + ip->ihl * 4u, s);
	return true;
}

static __always_inline bool is_stepped_over(__u8 type)
{
	return type == IPPROTO_HOPOPTS || type == IPPROTO_DSTOPTS || type == IPPROTO_ROUTING ||
	       type == IPPROTO_FRAGMENT;
}

/* A fragment's protocol is that of its fragment header: the same in all of a datagram's. */
static __always_inline bool is_fragment(const __u8 *header)
{
	__u32 offset = (__u32)header[2] << 8 | header[3];

	return offset & (IP6_OFFSET | IP6_MORE);
}

static __always_inline void see_nd(const struct walk *walk, __u32 at, struct sight *s)
{
	struct nd *nd = WALK_AT(walk, at, 8);

	if (!nd || nd->type < ND_FIRST || nd->type > ND_LAST)
		return;
	s->kind = RW_STEER_ND;
	if (nd->type != ND_SOLICITATION)
		return;
	nd = WALK_AT(walk, at, sizeof(*nd));
	if (nd)
		copy_addr(s->addr, nd->target);
}

static __always_inline bool see_ipv6(const struct walk *walk, __u32 at, struct sight *s)
{
	struct ipv6hdr *ip = WALK_AT(walk, at, sizeof(*ip));

	if (!ip || ip->version != 6)
		return false;
	s->kind = ip->nexthdr;
	s->family = 6;
	copy_addr(s->addr, ip->daddr.in6_u.u6_addr32);
	at += sizeof(*ip);
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		__u8 type = s->kind, *header;
		__u32 len = 8;

		if (!is_stepped_over(type))
			break;
		header = WALK_AT(walk, at, 8);
		if (!header)
			return false;
		if (type != IPPROTO_FRAGMENT)
			len = extension_len(header, type);
		s->kind = header[0];
		if (type == IPPROTO_FRAGMENT && is_fragment(header))
			return true;
		at += len;
	}
	if (s->kind == IPPROTO_ICMPV6)
		see_nd(walk, at, s);
	else
		see_port(walk, at, s);
	return true;
}

static __always_inline bool see(const struct walk *walk, struct sight *s)
{
	struct ethhdr *eth = walk->start;
	__u32 at = sizeof(*eth);
	__be16 proto;

	if ((void *)(eth + 1) > walk->end)
		return false;
	proto = eth->h_proto;
	for (int i = 0; i < MAX_TAGS; i++) {
		struct vlan_tag *tag;

		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		tag = WALK_AT(walk, at, sizeof(*tag));
		if (!tag)
			return false;
		proto = tag->proto;
		at += sizeof(*tag);
	}
	switch (proto) {
	case bpf_htons(ETH_P_ARP):
		return see_arp(walk, at, s);
	case bpf_htons(ETH_P_IP):
		return see_ipv4(walk, at, s);
	case bpf_htons(ETH_P_IPV6):
		return see_ipv6(walk, at, s);
	}
	return false;
}

static __always_inline bool fits(const struct rw_steer_rule *rule, const struct sight *s)
{
	__u32 kind = rule->kind, differs = 0;

	if (kind != s->kind && (kind != RW_STEER_IP || s->kind >= RW_STEER_IP))
		return false;
	if ((rule->family && rule->family != s->family) || s->port < rule->first_port ||
	    s->port > rule->last_port)
		return false;
	for (int i = 0; i < 4; i++)
		differs |= (s->addr[i] ^ rule->addr[i]) & rule->mask[i];
	return !differs;
}

/* Into the queue's socket. Without one the kernel's helper returns the given action. */
static __always_inline int bring(struct xdp_md *ctx, const struct rw_steer *steer)
{
	__u32 queue = ctx->rx_queue_index, drop = 0;
	__u64 *packets;
	int action;

	if (queue < RW_STEER_QUEUES)
		drop = steer->drop[queue / 32] >> (queue % 32) & 1;
	action = bpf_redirect_map(&sockets, queue, drop ? XDP_DROP : XDP_PASS);
	if (action != XDP_DROP)
		return action;
	packets = RW_ONLY(dropped);
	if (packets)
		(*packets)++;
	return action;
}

SEC("xdp.frags")
int ringway_steer(struct xdp_md *ctx)
{
	struct walk walk = { .start = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct sight s = { .port = RW_STEER_NO_PORT };
	struct rw_steer *steer = RW_ONLY(rules);

	if (!steer)
		return XDP_PASS;
	if (!steer->rules)
		return bring(ctx, steer);
	if (!see(&walk, &s))
		return XDP_PASS;
	for (__u32 i = 0; i < RW_MAX_STEER_RULES && i < steer->rules; i++)
		if (fits(&steer->rule[i], &s))
			return bring(ctx, steer);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
