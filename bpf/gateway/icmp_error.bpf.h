/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ICMP errors that we send: about a packet that does not fit the way out, and one
 * whose TTL ends here (RFC 792, 1191, 1812 section 4.3, 4443). They go back the way
 * of the packet, in its VLAN, and quote as much of it as the RFCs allow. They are
 * rate limited, and never about an ICMP packet or a later fragment, or to an address
 * that no host has.
 */
#ifndef RINGWAY_ICMP_ERROR_H
#define RINGWAY_ICMP_ERROR_H

#include <linux/icmpv6.h>

#include "checksum_bytes.bpf.h"
#include "dry.bpf.h"
#include "packet_context.bpf.h"
#include "limit.bpf.h"
#include "source.bpf.h"

/* Types and codes of RFC 792; linux/icmp.h drags in a C library's headers. */
#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_FRAG_NEEDED 4
#define ICMP_ECHO_REQUEST 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_BAD_PARAMETER 12

#define ICMP_HOPS 64
#define ICMP_TOS 0xc0	       /* internetwork control, RFC 1812 section 4.3.2.5 */
#define L3_AT_MAX 22	       /* Ethernet with two tags */
#define QUOTE4_MAX (576 - 28)  /* RFC 1812 section 4.3.2.3 */
#define QUOTE6_MAX (1280 - 48) /* RFC 4443 section 2.4 (c) */
#define IPV6_LEAST_MTU 1280
#define IPV4_LEAST_MTU 576 /* what every host takes (RFC 791 section 3.1) */
#define IP_DONT_FRAGMENT 0x4000

/* Byte `at` of the frame, below 128. clang knows the range of the offset and omits
 * the mask, while the verifier loses the range when it spills the offset. */
static __always_inline void *frame_at(struct xdp_md *ctx, __u32 at)
{
	barrier_var(at);
	return (void *)(long)ctx->data + (at & 0x7f);
}

/* The frame's link layer, while the bytes after it move. Without tags the end of
 * this is already layer 3, which is written later. */
struct link_layer {
	__u16 half[L3_AT_MAX / 2];
};

static __always_inline bool link_read(struct xdp_md *ctx, struct link_layer *link)
{
	struct link_layer *here = (void *)(long)ctx->data;

	if ((void *)(here + 1) > (void *)(long)ctx->data_end)
		return false;
	*link = *here;
	return true;
}

/* Returns it to its sender, by `mac`, in the same VLAN. */
static __always_inline bool link_write_back(struct xdp_md *ctx, const struct link_layer *link,
					    const __u8 *mac)
{
	struct link_layer *here = (void *)(long)ctx->data;

	if ((void *)(here + 1) > (void *)(long)ctx->data_end)
		return false;
	*here = *link;
	copy_mac((__u8 *)here->half, (const __u8 *)(link->half + 3));
	copy_mac((__u8 *)(here->half + 3), mac);
	return true;
}

/* The bytes before the quote. */
struct complaint {
	__u32 from[4];
	__u32 to[4];
	__u32 l3_at;
	__u32 quote; /* bytes */
	__u32 head;  /* first word of the ICMP header: type, code */
	__u32 mtu;
};

static __always_inline bool write_complaint4(struct xdp_md *ctx, const struct complaint *c)
{
	struct iphdr *ip = frame_at(ctx, c->l3_at);
	__u32 *icmp = (__u32 *)(ip + 1), *word = (__u32 *)ip;

	if ((void *)(icmp + 2) > (void *)(long)ctx->data_end)
		return false;
	word[0] = bpf_htonl(0x45000000 | ICMP_TOS << 16 | (28 + c->quote));
	word[1] = bpf_htonl(IP_DONT_FRAGMENT);
	word[2] = bpf_htonl(ICMP_HOPS << 24 | IPPROTO_ICMP << 16);
	word[3] = c->from[3];
	word[4] = c->to[3];
	ip->check = ~csum_fold(csum_words(word, 5));
	icmp[0] = c->head;
	icmp[1] = bpf_htonl(c->mtu); /* RFC 1191: in the lower half */
	return true;
}

static __always_inline bool write_complaint6(struct xdp_md *ctx, const struct complaint *c)
{
	struct ipv6hdr *ip = frame_at(ctx, c->l3_at);
	__u32 *icmp = (__u32 *)(ip + 1), *word = (__u32 *)ip;

	if ((void *)(icmp + 2) > (void *)(long)ctx->data_end)
		return false;
	word[0] = bpf_htonl(0x60000000 | ICMP_TOS << 20);
	word[1] = bpf_htonl((8 + c->quote) << 16 | IPPROTO_ICMPV6 << 8 | ICMP_HOPS);
	copy_addr(word + 2, c->from);
	copy_addr(word + 6, c->to);
	icmp[0] = c->head;
	icmp[1] = bpf_htonl(c->mtu);
	return true;
}

static __always_inline bool finish_complaint(struct xdp_md *ctx, const struct complaint *c,
					     const bool v6)
{
	__u32 at = c->l3_at + (v6 ? 40 : 20);
	__u64 sum = csum_bytes(ctx, at, 8 + c->quote);
	__u16 *icmp = frame_at(ctx, at);

	if (v6)
		sum += csum_pseudo(c->from, c->to, true, IPPROTO_ICMPV6, (__u16)(8 + c->quote));
	if ((void *)(icmp + 4) > (void *)(long)ctx->data_end)
		return false;
	icmp[1] = ~csum_fold(sum);
	return true;
}

/* The receiver of the error, and how much of the packet to quote. False: none. */
static __always_inline bool plan_complaint4(void *l3, void *end, __u32 task, __u32 mtu,
					    struct complaint *c)
{
	struct iphdr *ip = l3;
	__u32 total;

	if ((void *)(ip + 1) > end)
		return false;
	if (task == RW_ICMP_TOO_BIG && !(ip->frag_off & bpf_htons(IP_DONT_FRAGMENT)))
		return false;
	total = bpf_ntohs(ip->tot_len);
	map_addr4(c->to, ip->saddr);
	c->quote = total < QUOTE4_MAX ? total : QUOTE4_MAX;
	c->head = bpf_htonl(task == RW_ICMP_TOO_BIG ?
				    ICMP_UNREACHABLE << 24 | ICMP_FRAG_NEEDED << 16 :
				    ICMP_TIME_EXCEEDED << 24);
	c->mtu = mtu;
	return true;
}

static __always_inline bool plan_complaint6(void *l3, void *end, __u32 task, __u32 mtu,
					    struct complaint *c)
{
	struct ipv6hdr *ip = l3;
	__u32 total;

	if ((void *)(ip + 1) > end)
		return false;
	total = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	/* RFC 8200 section 5: nobody makes packets smaller than this. */
	if (task == RW_ICMP_TOO_BIG && total <= IPV6_LEAST_MTU)
		return false;
	copy_addr(c->to, ip->saddr.in6_u.u6_addr32);
	c->quote = total < QUOTE6_MAX ? total : QUOTE6_MAX;
	c->head = bpf_htonl(task == RW_ICMP_TOO_BIG ? ICMPV6_PKT_TOOBIG << 24 :
						      ICMPV6_TIME_EXCEED << 24);
	c->mtu = mtu < IPV6_LEAST_MTU && task == RW_ICMP_TOO_BIG ? IPV6_LEAST_MTU : mtu;
	return true;
}

static __always_inline bool send_complaint(struct xdp_md *ctx, const struct complaint *c,
					   const struct rw_iface *in, const bool v6)
{
	__u32 len = c->l3_at + c->quote, have = bpf_xdp_get_buff_len(ctx);
	struct link_layer link;

	if (!link_read(ctx, &link))
		return false;
	if (have > len &&
	    (!may_cut(ctx, in->flags) || bpf_xdp_adjust_tail(ctx, (int)len - (int)have)))
		return false;
	if (bpf_xdp_adjust_head(ctx, v6 ? -48 : -28))
		return false;
	if (!link_write_back(ctx, &link, in->mac))
		return false;
	if (!(v6 ? write_complaint6(ctx, c) : write_complaint4(ctx, c)))
		return false;
	return finish_complaint(ctx, c, v6);
}

/*
 * Turns the frame, a TCP or UDP packet, into an ICMP error about it, to its
 * sender, as scratch->icmp says. Returns the reason: of a drop, or SENT_... if the
 * frame is to be sent back.
 */
static __always_inline __u32 make_complaint(struct xdp_md *ctx, const bool v6)
{
	struct rw_scratch *scratched = RW_ONLY(scratch);
	void *end = (void *)(long)ctx->data_end;
	struct complaint c = {};
	enum rw_reason failed;
	struct rw_icmp *it;
	struct rw_iface *in;
	__u32 linear;
	void *l3;

	if (!scratched)
		return RW_REASON_NO_STATE;
	it = &scratched->icmp;
	failed = it->task == RW_ICMP_TOO_BIG ? RW_REASON_TOO_BIG : RW_REASON_TTL_EXPIRED;
	in = bpf_map_lookup_elem(&ifaces, &scratched->iface);
	c.l3_at = it->l3_at;
	if (!in || c.l3_at > L3_AT_MAX || scratched->layers.fragment == RW_FRAGMENT_LATER)
		return failed;
	l3 = frame_at(ctx, c.l3_at);
	if (!(v6 ? plan_complaint6(l3, end, it->task, it->mtu, &c) :
		   plan_complaint4(l3, end, it->task, it->mtu, &c)))
		return failed;
	if (unanswerable(c.to, v6))
		return failed;
	copy_addr(c.from, it->from);
	if (!may_answer((const struct rw_address *)c.to,
			it->task == RW_ICMP_TOO_BIG ? ANSWER_TOO_BIG : ANSWER_TIME_EXCEEDED))
		return RW_REASON_ICMP_LIMITED;
	/* Of a frame in several buffers the first one is enough. */
	linear = end - l3;
	c.quote = c.quote < linear ? c.quote : linear;
	if (!send_complaint(ctx, &c, in, v6))
		return failed;
	return it->task == RW_ICMP_TOO_BIG ? RW_REASON_SENT_TOO_BIG : RW_REASON_SENT_TIME_EXCEEDED;
}

__noinline __u32 icmp4_complain(struct xdp_md *ctx)
{
	return make_complaint(ctx, false);
}

__noinline __u32 icmp6_complain(struct xdp_md *ctx)
{
	return make_complaint(ctx, true);
}

#endif
