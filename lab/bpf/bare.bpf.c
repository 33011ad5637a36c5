// SPDX-License-Identifier: GPL-2.0-only
/*
 * The floor that balancers are measured against: a fixed rewriter inside the balancer's container.
 * It knows one service and two backends, keeps no state, counts nothing and checks next to nothing.
 * A client's source port picks the backend, so a connection stays where it is (its second bit, for
 * connect() prefers ports of one parity); ports are kept, which works for one client only.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct host {
	__be32 addr;
	__u8 mac[ETH_ALEN];
};

/* Filled in before loading. */
const volatile struct host this, client, backend[2];
const volatile __be16 port;

/* RFC 1624, over the two addresses that change. */
static __always_inline __sum16 replaced(__sum16 check, __be32 from, __be32 to)
{
	__u64 sum = (__u16)~check;

	sum += (__u16)~from + (__u16)(~from >> 16);
	sum += (__u16)to + (to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

static __always_inline void move(__be32 *addr, __be32 to, struct iphdr *ip, struct tcphdr *tcp)
{
	ip->check = replaced(ip->check, *addr, to);
	tcp->check = replaced(tcp->check, *addr, to);
	*addr = to;
}

SEC("xdp")
int bare(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1);
	const volatile struct host *to;

	if ((void *)(tcp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_TCP || ip->daddr != this.addr)
		return XDP_PASS;
	if (tcp->dest == port)
		to = tcp->source & bpf_htons(2) ? &backend[1] : &backend[0];
	else if (tcp->source == port)
		to = &client;
	else
		return XDP_PASS;
	move(&ip->saddr, ip->daddr, ip, tcp);
	move(&ip->daddr, to->addr, ip, tcp);
	for (int i = 0; i < ETH_ALEN; i++) {
		eth->h_source[i] = this.mac[i];
		eth->h_dest[i] = to->mac[i];
	}
	return XDP_TX;
}

char LICENSE[] SEC("license") = "GPL";
