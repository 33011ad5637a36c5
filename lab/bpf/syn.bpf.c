// SPDX-License-Identifier: GPL-2.0-only
/*
 * What answers to SYNs are measured beside, and what counts them. `answer` and `cookie` turn each
 * SYN into a SYN and ACK, and know no service; `answers` is where these arrive, `syns` where a flood
 * arrives that nobody has stopped.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FLAGS_SYN 0x02
#define FLAGS_SYN_ACK 0x12

/* Written by user space before they are attached: where the flood comes from, and goes to. */
__be32 flood_from, flood_mask;
__be16 flood_port;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");
#define COUNT_ANSWERS 0
#define COUNT_SYNS 1

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate(__u64 x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static __always_inline void sip_round(struct siphash *h)
{
	h->v0 += h->v1;
	h->v2 += h->v3;
	h->v1 = rotate(h->v1, 13) ^ h->v0;
	h->v3 = rotate(h->v3, 16) ^ h->v2;
	h->v0 = rotate(h->v0, 32) + h->v3;
	h->v2 += h->v1;
	h->v3 = rotate(h->v3, 21) ^ h->v0;
	h->v1 = rotate(h->v1, 17) ^ h->v2;
	h->v2 = rotate(h->v2, 32);
}

static __always_inline void sip_word(struct siphash *h, __u64 word)
{
	h->v3 ^= word;
	sip_round(h);
	sip_round(h);
	h->v0 ^= word;
}

/* SipHash-2-4 with a key that nobody need guess. */
static __always_inline __u32 hash(const __u64 *addresses, const int words, __u64 ports)
{
	struct siphash h = { 0x736f6d6570736575, 0x646f72616e646f6d, 0x6c7967656e657261,
			     0x7465646279746573 };

	for (int i = 0; i < words; i++)
		sip_word(&h, addresses[i]);
	sip_word(&h, ports);
	sip_word(&h, (8ull * words + 8) << 56);
	h.v2 ^= 0xff;
	sip_round(&h);
	sip_round(&h);
	sip_round(&h);
	sip_round(&h);
	return h.v0 ^ h.v1 ^ h.v2 ^ h.v3;
}

static __always_inline __u32 halves(__u32 word)
{
	return (word & 0xffff) + (word >> 16);
}

/* RFC 1624: ports and addresses change places, which no sum notices. */
static __always_inline void turn(struct tcphdr *tcp, __be32 number)
{
	__be32 ack = bpf_htonl(bpf_ntohl(tcp->seq) + 1);
	__u32 sum = (__u16)~tcp->check;
	__be16 port = tcp->source;

	sum += halves(~tcp->seq) + halves(~tcp->ack_seq) + halves(number) + halves(ack);
	sum += bpf_htons(FLAGS_SYN_ACK - FLAGS_SYN);
	sum = halves(halves(sum));
	tcp->check = ~sum;
	tcp->source = tcp->dest;
	tcp->dest = port;
	tcp->seq = number;
	tcp->ack_seq = ack;
	((__u8 *)tcp)[13] = FLAGS_SYN_ACK;
}

static __always_inline void turn_ethernet(struct ethhdr *eth)
{
	__u16 *to = (void *)eth->h_dest, *from = (void *)eth->h_source, word;

	for (int i = 0; i < 3; i++) {
		word = to[i];
		to[i] = from[i];
		from[i] = word;
	}
}

static __always_inline bool is_syn(const struct tcphdr *tcp)
{
	return ((const __u8 *)tcp)[13] == FLAGS_SYN;
}

static __always_inline int turn_v4(struct iphdr *ip, struct tcphdr *tcp, bool hashed)
{
	__u64 addresses = ip->saddr | (__u64)ip->daddr << 32;
	__u32 number = 1;

	if (ip->ihl != 5 || ip->protocol != IPPROTO_TCP || !is_syn(tcp))
		return XDP_PASS;
	if (hashed)
		number = hash(&addresses, 1, *(__u32 *)tcp);
	ip->saddr = addresses >> 32;
	ip->daddr = addresses;
	turn(tcp, number);
	return XDP_TX;
}

static __always_inline int turn_v6(struct ipv6hdr *ip, struct tcphdr *tcp, bool hashed)
{
	__u64 addresses[4];
	__u32 number = 1;

	if (ip->nexthdr != IPPROTO_TCP || !is_syn(tcp))
		return XDP_PASS;
	__builtin_memcpy(addresses, &ip->saddr, sizeof(addresses));
	if (hashed)
		number = hash(addresses, 4, *(__u32 *)tcp);
	__builtin_memcpy(&ip->saddr, addresses + 2, 16);
	__builtin_memcpy(&ip->daddr, addresses, 16);
	turn(tcp, number);
	return XDP_TX;
}

static __always_inline int reply(struct xdp_md *ctx, bool hashed)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	int verdict = XDP_PASS;

	if ((void *)ip + sizeof(*ip) + sizeof(struct tcphdr) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		verdict = turn_v4(ip, (void *)(ip + 1), hashed);
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6) &&
		 (void *)(ip6 + 1) + sizeof(struct tcphdr) <= end)
		verdict = turn_v6(ip6, (void *)(ip6 + 1), hashed);
	if (verdict == XDP_TX)
		turn_ethernet(eth);
	return verdict;
}

SEC("xdp.frags")
int answer(struct xdp_md *ctx)
{
	return reply(ctx, false);
}

/* The same with a number that shows later that it was sent. */
SEC("xdp.frags")
int cookie(struct xdp_md *ctx)
{
	return reply(ctx, true);
}

/* The first, out by another way: XDP_TX of a veth device wants a program at its far end. */
SEC("xdp.frags")
int redirected(struct xdp_md *ctx)
{
	int verdict = reply(ctx, false);

	return verdict == XDP_TX ? bpf_redirect(ctx->ingress_ifindex, 0) : verdict;
}

/* The TCP segment over IPv4 with these flags, or NULL. */
static __always_inline struct iphdr *segment(struct xdp_md *ctx, __u8 flags)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	__u8 *tcp = (void *)(ip + 1);

	if ((void *)(tcp + sizeof(struct tcphdr)) > (void *)(long)ctx->data_end ||
	    eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_TCP ||
	    (tcp[13] & FLAGS_SYN_ACK) != flags)
		return NULL;
	return ip;
}

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counts, &what);

	if (counter)
		++*counter;
}

/* Takes the answers to a flood, and lets everything else pass. */
SEC("xdp.frags")
int answers(struct xdp_md *ctx)
{
	struct iphdr *ip = segment(ctx, FLAGS_SYN_ACK);

	if (!ip || (ip->daddr & flood_mask) != flood_from)
		return XDP_PASS;
	count(COUNT_ANSWERS);
	return XDP_DROP;
}

SEC("xdp.frags")
int syns(struct xdp_md *ctx)
{
	struct iphdr *ip = segment(ctx, FLAGS_SYN);

	if (ip && ((struct tcphdr *)(ip + 1))->dest == flood_port)
		count(COUNT_SYNS);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
