// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the shield is measured beside, and what watches it: a drop that asks nothing, a drop by the
 * kernel's own trie of prefixes, and a look at the clock in front of each packet. And an attack:
 * `flood` runs under BPF_PROG_TEST_RUN with live frames and sends each by an interface; those that
 * come before their time are not sent.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct prefix4 {
	__u32 len;
	__be32 addr;
};

struct prefix6 {
	__u32 len;
	struct in6_addr addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set before load */
	__type(key, struct prefix4);
	__type(value, __u32);
} trie4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set before load */
	__type(key, struct prefix6);
	__type(value, __u32);
} trie6 SEC(".maps");

/* The program that is watched. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

/* Read by user space. */
__u64 not_listed;

/* Written by user space between runs. */
__u64 last_ns;	  /* when the packet before came; 0: there was none */
__u64 longest_ns; /* between two packets */

/* Of a packet that is behind, by so much, nobody waits any more. */
#define LATE_NS 1000000ULL
/* 8-byte words that are written anew in each frame: headers. */
#define HEAD_WORDS 8

/* Written by user space before `flood` runs. */
__u64 head[HEAD_WORDS]; /* its low bits of source and port are 0 */
__u32 towards;		/* index of an interface */
__u32 sources;		/* that take turns, at most 2^20 */
__u32 ports;		/* mask of the source port's bits that change */
__u64 interval_ns;	/* from packet to packet; 0: as fast as it goes */
/* Bytes behind each packet, which are not sent. The kernel uses a frame again as its receiver has
 * left it, shorter perhaps, unless this program has changed its length. */
__u32 behind;

__u32 turn;
__u64 next_ns;

static __always_inline __u16 csum_with(__u16 check, __be32 address, __be16 port)
{
	__u32 sum = (__u16)~check + (address & 0xffff) + (address >> 16) + port;

	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

SEC("xdp")
int flood(struct xdp_md *ctx)
{
	__u64 *to = (void *)(long)ctx->data, now;
	struct iphdr *ip = (void *)to + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);
	__be32 source;
	__be16 port;

	if ((void *)(to + HEAD_WORDS) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	if (interval_ns) {
		now = bpf_ktime_get_ns();
		if (now < next_ns)
			return XDP_DROP;
		next_ns = (now - next_ns > LATE_NS ? now : next_ns) + interval_ns;
	}
#pragma unroll
	for (int i = 0; i < HEAD_WORDS; i++)
		to[i] = head[i];
	turn = turn + 1 < sources ? turn + 1 : 0;
	/* Neighbours in time are not neighbours in any table. */
	source = bpf_htonl(turn * 0x9e3b1 & 0xfffff);
	port = bpf_htons(turn & ports);
	ip->saddr |= source;
	ip->check = csum_with(ip->check, source, 0);
	tcp->source |= port;
	if (ip->protocol == IPPROTO_TCP)
		tcp->check = csum_with(tcp->check, source, port);
	if (behind && bpf_xdp_adjust_tail(ctx, -(int)behind))
		return XDP_ABORTED;
	return bpf_redirect(towards, 0);
}

SEC("xdp.frags")
int bare(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_DROP;
}

SEC("xdp.frags")
int trie(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end, *found = NULL;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && (void *)(ip + 1) <= end) {
		struct prefix4 key = { .len = 32, .addr = ip->saddr };

		found = bpf_map_lookup_elem(&trie4, &key);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end) {
		struct prefix6 key = { .len = 128, .addr = ip6->saddr };

		found = bpf_map_lookup_elem(&trie6, &key);
	}
	if (found)
		return XDP_DROP;
	not_listed++;
	return XDP_PASS;
}

SEC("xdp.frags")
int watch(struct xdp_md *ctx)
{
	__u64 now = bpf_ktime_get_ns(), before = last_ns;

	last_ns = now;
	if (before && now - before > longest_ns)
		longest_ns = now - before;
	bpf_tail_call(ctx, &watched, 0);
	return XDP_ABORTED;
}

char LICENSE[] SEC("license") = "GPL";
