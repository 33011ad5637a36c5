// SPDX-License-Identifier: GPL-2.0-only
/*
 * Feeds a program under BPF_PROG_TEST_RUN, which gives every repetition the packet as the last one
 * left it: makes a fresh one, of the next flow in turn, and tail-calls the program. What this costs
 * is measured with `nothing` in the program's place.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Bytes of a frame, in 8-byte words: Ethernet, IP, TCP and a little payload. */
#define WORDS_V4 8  /* 14 + 20 + 20 + 10 */
#define WORDS_V6 11 /* 14 + 40 + 20 + 14 */

/* The program that is fed. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} fed SEC(".maps");

/* Where replies come from and go to, in a flow's turn: last byte of the backend's address, last byte
 * of ours, port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set before load */
	__type(key, __u32);
	__type(value, __u32);
} replies SEC(".maps");

/* Written by user space between runs. */
__u64 frame[WORDS_V6]; /* every packet, but for what tells flows apart */
__u32 flows;	       /* that take turns */
__u32 next;	       /* the next one's number */

/*
 * A flow's number, scattered over 32 bits and still unique: 24 of them become the low bits of its
 * address, 8 its port. So neighbours in time are not neighbours in any table, whatever it is hashed
 * with.
 */
static __always_inline __u32 next_flow(void)
{
	__u32 number = next, scattered = number * 0x85ebca6b;

	next = number + 1 < flows ? number + 1 : 0;
	return scattered ^ (scattered >> 15);
}

static __always_inline __be16 port_of(__u32 flow)
{
	return bpf_htons(1024 + (flow & 0xff) * 251);
}

/* A checksum with more words under it: all it covers is 0 there in `frame`. */
static __always_inline __u16 csum_with(__u16 check, __be32 address, __be16 port)
{
	__u32 sum = (__u16)~check + (address & 0xffff) + (address >> 16) + port;

	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

/* The frame anew, in its full length. NULL: impossible, for the verifier. */
static __always_inline void *fresh(struct xdp_md *ctx, const int words)
{
	int longer = (int)(ctx->data_end - ctx->data) - 8 * words;
	const __u64 *from = frame;
	__u64 *to;

	/* Something was put in front. Also by 0, so that it costs the same whoever was fed. */
	if (longer >= 0 && bpf_xdp_adjust_head(ctx, longer))
		return NULL;
	/* Cut off behind: a reset. */
	if (longer < 0 && bpf_xdp_adjust_tail(ctx, -longer))
		return NULL;
	to = (void *)(long)ctx->data;
	if ((void *)(to + words) > (void *)(long)ctx->data_end)
		return NULL;
#pragma unroll
	for (int i = 0; i < words; i++)
		to[i] = from[i];
	return to;
}

SEC("xdp.frags")
int feed_v4(struct xdp_md *ctx)
{
	struct ethhdr *eth = fresh(ctx, WORDS_V4);
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 flow;

	if (!eth)
		return XDP_ABORTED;
	flow = next_flow();
	ip->saddr = bpf_htonl(10u << 24 | flow >> 8);
	ip->check = csum_with(ip->check, ip->saddr, 0);
	tcp->source = port_of(flow);
	tcp->check = csum_with(tcp->check, ip->saddr, tcp->source);
	bpf_tail_call(ctx, &fed, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int feed_v6(struct xdp_md *ctx)
{
	struct ethhdr *eth = fresh(ctx, WORDS_V6);
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__u32 flow;

	if (!eth)
		return XDP_ABORTED;
	flow = next_flow();
	ip->saddr.in6_u.u6_addr32[3] = bpf_htonl(flow >> 8);
	tcp->source = port_of(flow);
	tcp->check = csum_with(tcp->check, ip->saddr.in6_u.u6_addr32[3], tcp->source);
	bpf_tail_call(ctx, &fed, 0);
	return XDP_ABORTED;
}

/* The same, from networks of their own: a flow's number is in the first 48 bits of its address. */
SEC("xdp.frags")
int feed_networks_v6(struct xdp_md *ctx)
{
	struct ethhdr *eth = fresh(ctx, WORDS_V6);
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__be32 network[2];
	__u32 flow;

	if (!eth)
		return XDP_ABORTED;
	flow = next_flow();
	network[0] = bpf_htonl(flow >> 24);
	network[1] = bpf_htonl(flow >> 8 << 16);
	ip->saddr.in6_u.u6_addr32[0] |= network[0];
	ip->saddr.in6_u.u6_addr32[1] = network[1];
	tcp->source = port_of(flow);
	tcp->check = csum_with(csum_with(tcp->check, network[0], 0), network[1], tcp->source);
	bpf_tail_call(ctx, &fed, 0);
	return XDP_ABORTED;
}

/* The next flow's. */
static __always_inline __u32 next_reply(void)
{
	__u32 number = next, *reply = bpf_map_lookup_elem(&replies, &number);

	next = number + 1 < flows ? number + 1 : 0;
	return reply ? *reply : 0;
}

SEC("xdp.frags")
int feed_reply_v4(struct xdp_md *ctx)
{
	struct ethhdr *eth = fresh(ctx, WORDS_V4);
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__be32 from, to;
	__u32 reply;

	if (!eth)
		return XDP_ABORTED;
	reply = next_reply();
	from = bpf_htonl(reply >> 24);
	to = bpf_htonl(reply >> 16 & 0xff);
	ip->saddr |= from;
	ip->daddr |= to;
	ip->check = csum_with(csum_with(ip->check, from, 0), to, 0);
	tcp->dest = bpf_htons((__u16)reply);
	tcp->check = csum_with(csum_with(tcp->check, from, 0), to, tcp->dest);
	bpf_tail_call(ctx, &fed, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int feed_reply_v6(struct xdp_md *ctx)
{
	struct ethhdr *eth = fresh(ctx, WORDS_V6);
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	__be32 from, to;
	__u32 reply;

	if (!eth)
		return XDP_ABORTED;
	reply = next_reply();
	from = bpf_htonl(reply >> 24);
	to = bpf_htonl(reply >> 16 & 0xff);
	ip->saddr.in6_u.u6_addr32[3] = from;
	ip->daddr.in6_u.u6_addr32[3] = to;
	tcp->dest = bpf_htons((__u16)reply);
	tcp->check = csum_with(csum_with(tcp->check, from, 0), to, tcp->dest);
	bpf_tail_call(ctx, &fed, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int nothing(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
