// SPDX-License-Identifier: GPL-2.0-only
/*
 * ringway decap, for backends without tunnel devices: removes the outer headers of
 * the gateway's tunnel packets (dsr-ipip, dsr-gue) in place and passes the requests
 * to the kernel as if they had come without a tunnel. Packets that are not a tunnel
 * packet to this host, with an inner packet for this host, pass unchanged.
 */
#include "decap.bpf.h"
#include "common/ledger.bpf.h"

const volatile __be16 gue_port_be;

/* writer: user space; reader: this program. Addresses of this host and their
 * use (enum rw_decap_address). User space refuses more than fit. */
RW_MAP(addresses, BPF_MAP_TYPE_HASH, RW_MAX_DECAP_ADDRESSES, struct rw_address, __u32, 0);

/* writer: this program; reader: user space. */
RW_MAP(ledger, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rw_ledger, 0);

static __always_inline bool is_ours(const __u32 *addr, __u32 as)
{
	__u32 *uses = bpf_map_lookup_elem(&addresses, addr);

	return uses && (*uses & as);
}

/* NONE: a tunnel packet to this host; t is at its inner header. */
static __always_inline enum rw_reason open_outer(struct xdp_md *ctx, struct tunnel *t)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	bool v4 = false;
	enum rw_reason why;
	__u32 end;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return RW_REASON_MALFORMED;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		v4 = true;
		why = outer_ipv4(ctx, t);
		break;
	case bpf_htons(ETH_P_IPV6):
		why = outer_ipv6(ctx, t);
		break;
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		return RW_REASON_VLAN;
	default:
		return RW_REASON_NOT_IP;
	}
	if (why)
		return why;
	if (t->proto != IPPROTO_UDP && inner_version(t))
		return RW_REASON_NO_TUNNEL;
	if (!is_ours(t->daddr, RW_DECAP_OUTER))
		return RW_REASON_NO_TUNNEL;
	end = t->at + t->len; /* of the outer packet */
	if (t->proto == IPPROTO_UDP)
		why = open_gue(ctx, t, gue_port_be);
	else if (t->options || t->fragment)
		why = RW_REASON_TUNNEL_OTHER;
	if (why)
		return why;
	if (v4 && outer_damaged(ctx))
		return RW_REASON_MALFORMED;
	if (end > bpf_xdp_get_buff_len(ctx))
		return RW_REASON_MALFORMED;
	return RW_REASON_NONE;
}

/* NONE: complete, for this host, and rewritten as it should leave. */
static __always_inline enum rw_reason open_inner(struct xdp_md *ctx, const struct tunnel *t)
{
	void *end = (void *)(long)ctx->data_end, *inner = here(ctx, t);
	struct iphdr *v4 = inner;
	struct ipv6hdr *v6 = inner;
	__u32 to[4], len;

	if (t->v6) {
		if ((void *)(v6 + 1) > end || v6->version != 6)
			return RW_REASON_MALFORMED;
		len = sizeof(*v6) + bpf_ntohs(v6->payload_len);
		copy_addr(to, v6->daddr.in6_u.u6_addr32);
	} else {
		if ((void *)(v4 + 1) > end || v4->version != 4)
			return RW_REASON_MALFORMED;
		len = bpf_ntohs(v4->tot_len);
		if (v4->ihl < 5 || v4->ihl * 4u > len)
			return RW_REASON_MALFORMED;
		map_addr4(to, v4->daddr);
	}
	if (len > t->len)
		return RW_REASON_MALFORMED;
	if (!is_ours(to, RW_DECAP_INNER))
		return RW_REASON_INNER_ELSEWHERE;
	if (!carry_ecn(inner, t->v6, t->ecn))
		return RW_REASON_ECN_CONFLICT;
	return RW_REASON_NONE;
}

/* Moves the Ethernet header up to the inner packet. */
static __always_inline bool strip(struct xdp_md *ctx, const struct tunnel *t)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ethhdr old;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	old = *eth;
	if (bpf_xdp_adjust_head(ctx, (int)t->at - ETH_HLEN))
		return false;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	*eth = old;
	eth->h_proto = t->v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return true;
}

static __always_inline bool is_damage(enum rw_reason why)
{
	return why == RW_REASON_MALFORMED || why == RW_REASON_ECN_CONFLICT;
}

SEC("xdp.frags")
int ringway_decap(struct xdp_md *ctx)
{
	struct rw_ledger *counters = RW_ONLY(ledger);
	struct tunnel t = {};
	enum rw_reason why;

	if (!counters)
		return XDP_PASS; /* array elements exist: for the verifier */
	counters->seen++;
	why = open_outer(ctx, &t);
	if (!why)
		why = open_inner(ctx, &t);
	if (why)
		return leave(counters, is_damage(why) ? RW_DROP : RW_PASS, why);
	if (!strip(ctx, &t))
		return leave(counters, RW_DROP, RW_REASON_NO_STATE);
	return leave(counters, RW_PASS, t.gue ? RW_REASON_DECAP_GUE : RW_REASON_DECAP_IPIP);
}

char LICENSE[] SEC("license") = "GPL";
