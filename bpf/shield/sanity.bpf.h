/* SPDX-License-Identifier: GPL-2.0-only */
/* Packets that no correct sender makes. parse() has checked the lengths. */
#ifndef RINGWAY_SANITY_H
#define RINGWAY_SANITY_H

#include "gateway/parse.bpf.h"
#include "gateway/source.bpf.h"

#define TCP_FLAG_BITS 0x3f /* FIN, SYN, RST, PSH, ACK, URG; ECE and CWR go with any */
#define TCP_LEAST 20	   /* bytes of its header */
#define LONGEST_DATAGRAM 65535

/* SYN, RST and FIN exclude each other, and all but SYN and RST acknowledge (RFC 9293). */
static __always_inline bool tcp_flags_fit(__u8 flags)
{
	__u32 ends = flags & (TCP_SYN | TCP_RST | TCP_FIN);

	return !(ends & (ends - 1)) && (flags & (TCP_SYN | TCP_RST | TCP_ACK));
}

/* The fragment's offset in bytes; bit 0: more follow. Negative: not readable. */
static __always_inline __s32 fragment_word(const struct xdp_md *ctx, const struct packet *p)
{
	void *end = (void *)(long)ctx->data_end;
	__u32 word;

	if (p->v6) {
		__u32 at = READ_ONCE(p->at->l4) - 8;
		__u8 *header;

		/* The fragment header lies right before what it cuts, unless this is the first. */
		barrier_var(at);
		if (p->at->fragment != RW_FRAGMENT_LATER || at > MAX_L4_START)
			return p->at->fragment == RW_FRAGMENT_FIRST ? 1 : -1;
		header = (void *)p->eth + at;
		if ((void *)(header + 8) > end)
			return -1;
		word = (__u32)header[2] << 8 | header[3];
		return (word & IP6_OFFSET) | (word & IP6_MORE);
	} else {
		struct iphdr *ip = p->l3;

		if ((void *)(ip + 1) > end)
			return -1;
		word = bpf_ntohs(ip->frag_off);
		return (word & IP_OFFSET) << 3 | !!(word & IP_MORE);
	}
}

static __always_inline enum rw_reason insane_fragment(const struct xdp_md *ctx,
						      const struct packet *p)
{
	__s32 word = fragment_word(ctx, p);
	__u32 offset = (__u32)word & ~7u, len = p->l4_len;

	if (word < 0)
		return RW_REASON_NONE;
	if (!len)
		return RW_REASON_FRAGMENT_TINY;
	if ((word & 1) && (len & 7))
		return RW_REASON_MALFORMED;
	if (offset + len > LONGEST_DATAGRAM)
		return RW_REASON_FRAGMENT_OVERLAP;
	if (offset && offset < TCP_LEAST && p->t->proto == IPPROTO_TCP)
		return RW_REASON_FRAGMENT_OVERLAP;
	return RW_REASON_NONE;
}

/* NONE, or what is wrong with a packet that parse() ended with `why`. */
static __always_inline enum rw_reason insane(const struct xdp_md *ctx, const struct packet *p,
					     enum rw_reason why)
{
	if (same_addr(p->t->saddr, p->t->daddr))
		return RW_REASON_LAND;
	if (!is_host(p->t->saddr, p->v6))
		return RW_REASON_MARTIAN_SOURCE;
	if (why == RW_REASON_IP_OPTIONS)
		return why;
	if (p->at->fragment != RW_FRAGMENT_NONE)
		return why == RW_REASON_MALFORMED ? RW_REASON_FRAGMENT_TINY :
						    insane_fragment(ctx, p);
	if (why == RW_REASON_NONE && p->t->proto == IPPROTO_TCP && !tcp_flags_fit(p->t->tcp_flags))
		return RW_REASON_TCP_FLAGS;
	return RW_REASON_NONE;
}

#endif
