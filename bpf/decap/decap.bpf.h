/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The parts of a tunnel packet: IP in IP (RFC 2003, 2473, 4213) and GUE
 * (draft-ietf-intarea-gue: variant 1, the inner header directly behind UDP;
 * variant 0 without options). FOU looks like variant 1.
 */
#ifndef RINGWAY_DECAP_H
#define RINGWAY_DECAP_H

#include "common/checksum.bpf.h"

/* Of frag_off, RFC 791. */
#define IP_MORE_FRAGMENTS 0x2000
#define IP_OFFSET_MASK 0x1fff

/* RFC 3168 */
#define ECN_NOT_CAPABLE 0
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE 3

struct gue_v0 {
	__u8 head; /* variant (2 bits), control (1), length of options in words (5) */
	__u8 proto;
	__be16 flags;
};

/* Kernel's ip6_tunnel puts one before the inner packet (RFC 2473 section 4.1.1). */
struct encap_limit {
	__u8 next;
	__u8 len; /* units of 8 bytes beyond the first */
	__u8 options[6];
};

/* A tunnel packet, as far as it has been read. */
struct tunnel {
	__u32 daddr[4]; /* of the outer header */
	__u32 at;	/* bytes from the frame's start to what is read next */
	__u32 len;	/* bytes from there to the end of the packet, by its headers */
	__u8 proto;
	__u8 ecn;      /* of the outer header */
	bool v6;       /* inner */
	bool fragment; /* its later fragments are elsewhere */
	bool options;  /* IPv4 options */
	bool gue;
};

/* The position of t, bounded to 74 for verifiers that lose its range. */
static __always_inline void *here(struct xdp_md *ctx, const struct tunnel *t)
{
	__u64 at = t->at;

	asm volatile("%0 &= 0x7f" : "+r"(at));
	return (void *)(long)ctx->data + at;
}

static __always_inline __u8 ecn_of(const void *ip, bool v6)
{
	__u8 second = ((const __u8 *)ip)[1];

	return (v6 ? second >> 4 : second) & 3;
}

/* NONE: t says what follows the outer header. */
static __always_inline enum rw_reason outer_ipv4(struct xdp_md *ctx, struct tunnel *t)
{
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = (void *)(long)ctx->data + ETH_HLEN;
	__u32 total;

	if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return RW_REASON_MALFORMED;
	map_addr4(t->daddr, ip->daddr);
	t->proto = ip->protocol;
	t->ecn = ecn_of(ip, false);
	t->options = ip->ihl > 5;
	t->fragment = ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_OFFSET_MASK);
	/* A later fragment has no port. */
	if (t->proto == IPPROTO_UDP && (ip->frag_off & bpf_htons(IP_OFFSET_MASK)))
		return RW_REASON_NO_TUNNEL;
	t->at = ETH_HLEN + sizeof(*ip);
	total = bpf_ntohs(ip->tot_len);
	t->len = total < sizeof(*ip) ? 0 : total - sizeof(*ip);
	return RW_REASON_NONE;
}

/* The kernel will not see this header, so this verifies its checksum. */
static __always_inline bool outer_damaged(struct xdp_md *ctx)
{
	struct iphdr *ip = (void *)(long)ctx->data + ETH_HLEN;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return true;
	return csum_fold(csum_words((__u32 *)ip, 5)) != 0xffff;
}

static __always_inline enum rw_reason outer_ipv6(struct xdp_md *ctx, struct tunnel *t)
{
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = (void *)(long)ctx->data + ETH_HLEN;
	struct encap_limit *limit = (void *)(ip + 1);

	if ((void *)(ip + 1) > end || ip->version != 6)
		return RW_REASON_MALFORMED;
	copy_addr(t->daddr, ip->daddr.in6_u.u6_addr32);
	t->proto = ip->nexthdr;
	t->ecn = ecn_of(ip, true);
	t->at = ETH_HLEN + sizeof(*ip);
	t->len = bpf_ntohs(ip->payload_len);
	if (t->proto == IPPROTO_DSTOPTS && (void *)(limit + 1) <= end && !limit->len &&
	    t->len >= sizeof(*limit)) {
		t->proto = limit->next;
		t->at += sizeof(*limit);
		t->len -= sizeof(*limit);
	}
	return RW_REASON_NONE;
}

static __always_inline enum rw_reason inner_version(struct tunnel *t)
{
	if (t->proto != IPPROTO_IPIP && t->proto != IPPROTO_IPV6)
		return RW_REASON_TUNNEL_OTHER;
	t->v6 = t->proto == IPPROTO_IPV6;
	return RW_REASON_NONE;
}

/* UDP to our port: moves on to the inner header. */
static __always_inline enum rw_reason open_gue(struct xdp_md *ctx, struct tunnel *t, __be16 port)
{
	void *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = here(ctx, t);
	struct gue_v0 *gue = (void *)(udp + 1);
	__u32 udp_len;

	if ((void *)(udp + 1) > end)
		return t->options || t->fragment ? RW_REASON_NO_TUNNEL : RW_REASON_MALFORMED;
	/* With options, these are not the ports. */
	if (t->options || udp->dest != port)
		return RW_REASON_NO_TUNNEL;
	if (t->fragment)
		return RW_REASON_TUNNEL_OTHER;
	udp_len = bpf_ntohs(udp->len);
	if (udp_len < sizeof(*udp) || udp_len > t->len)
		return RW_REASON_MALFORMED;
	t->gue = true;
	t->at += sizeof(*udp);
	t->len = udp_len - sizeof(*udp);
	if ((void *)(gue + 1) > end || t->len < sizeof(*gue))
		return RW_REASON_MALFORMED;
	switch (gue->head >> 4) {
	case 4: /* variant 1: the version of IP begins with its bits */
	case 6:
		t->v6 = gue->head >> 4 == 6;
		return RW_REASON_NONE;
	case 0:
		if (gue->head || gue->flags) /* control message, or options */
			return RW_REASON_TUNNEL_OTHER;
		t->at += sizeof(*gue);
		t->len -= sizeof(*gue);
		t->proto = gue->proto;
		return inner_version(t);
	}
	return RW_REASON_TUNNEL_OTHER;
}

/*
 * RFC 6040 figure 4: what the inner packet leaves with; false: drop it. The
 * inner header is changed in place.
 */
static __always_inline bool carry_ecn(__u8 *ip, bool v6, __u8 outer)
{
	__u8 inner = ecn_of(ip, v6), ecn = inner, old = ip[1];

	if (outer == ECN_CE) {
		if (inner == ECN_NOT_CAPABLE)
			return false;
		ecn = ECN_CE;
	} else if (outer == ECN_ECT1 && inner == ECN_ECT0) {
		ecn = ECN_ECT1;
	}
	if (ecn == inner)
		return true;
	if (v6) {
		ip[1] = (old & 0xcf) | ecn << 4;
		return true;
	}
	ip[1] = (old & 0xfc) | ecn;
	((struct iphdr *)ip)->check = csum_apply(((struct iphdr *)ip)->check,
						 csum_change16(bpf_htons(old), bpf_htons(ip[1])));
	return true;
}

#endif
