/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Unfinished checksums. A stack on this machine that sends into a veth, tap or
 * bridge leaves the pseudo-header's sum in the checksum field and marks the skb
 * (CHECKSUM_PARTIAL); a later device completes it.
 *
 * Generic XDP keeps that mark, and so does a packet that is passed to the
 * kernel: the field must then hold the new pseudo-header's sum. Native XDP loses the
 * mark in a redirect, and some devices send the field unchanged (RW_IFACE_RAW): then
 * the checksum is finished here.
 */
#ifndef RINGWAY_PARTIAL_H
#define RINGWAY_PARTIAL_H

#include "checksum_bytes.bpf.h"
#include "parse.bpf.h"
#include "send.bpf.h"

/* The packet's checksum, with its layers known. */
static __always_inline __u16 *checksum_of(struct xdp_md *ctx, const struct rw_scratch *s)
{
	__u32 at = READ_ONCE(s->layers.l4) + (s->tuple.proto == IPPROTO_TCP ?
						      offsetof(struct tcphdr, check) :
						      offsetof(struct udphdr, check));
	__u16 *check;

	barrier_var(at);
	if (at > MAX_L4_START + sizeof(struct tcphdr))
		return NULL;
	check = (void *)(long)ctx->data + at;
	return (void *)(check + 1) > (void *)(long)ctx->data_end ? NULL : check;
}

static __always_inline __u64 pseudo_of(const struct rw_scratch *s, bool v6)
{
	return csum_pseudo(s->tuple.saddr, s->tuple.daddr, v6, s->tuple.proto, s->layers.l4_len);
}

/*
 * Finishes the checksum of the packet in scratch. 1: the next device does that.
 * One finished checksum in 65536 equals the pseudo-header's sum: it is right over
 * the whole packet, and kept. Not inlined, to keep the balancer's path short.
 */
__noinline __u32 checksum_settle(struct xdp_md *ctx, __u32 v6, __u32 later)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	__u64 pseudo, all;
	__u16 *check;

	/* A stack finishes before it cuts a datagram. */
	if (!s || s->layers.fragment != RW_FRAGMENT_NONE)
		return 0;
	check = checksum_of(ctx, s);
	pseudo = pseudo_of(s, v6);
	if (!check || *check != csum_fold(pseudo))
		return 0;
	all = pseudo + csum_bytes(ctx, s->layers.l4, s->layers.l4_len);
	if (csum_fold(all) == 0xffff)
		return 0;
	/* Without what the field itself holds. */
	if (!later)
		*check = (__u16)~csum_fold(all + (__u16) ~*check) ?: 0xffff;
	return later;
}

#define SHORT_SEGMENT 60 /* a SYN with all options that fit */

/* Adds the words of a segment that is short, whole, and in the packet's first buffer. False: it is
 * none. */
static __always_inline bool sum_short(struct xdp_md *ctx, __u32 at, __u32 len, __u64 *sum)
{
	void *end = (void *)(long)ctx->data_end, *l4;
	__u64 words = *sum;

	barrier_var(at);
	if (at > MAX_L4_START || len > SHORT_SEGMENT || len % 2)
		return false;
	l4 = (void *)(long)ctx->data + at;
	for (__u32 i = 0; i < SHORT_SEGMENT; i += 4) {
		if (i + 4 > len)
			break;
		if (l4 + i + 4 > end)
			return false;
		words += *(__u32 *)(l4 + i);
	}
	if (len % 4) {
		l4 += (len - 2) & 63;
		if (l4 + 2 > end)
			return false;
		words += *(__u16 *)l4;
	}
	*sum = words;
	return true;
}

/* Whether the whole segment in scratch is as it was sent. Also true if that is unknown: for a
 * fragment, and for an unfinished checksum of this machine. */
__noinline __u32 checksum_holds(struct xdp_md *ctx, __u32 v6, __u32 local)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	__u64 pseudo;
	__u16 *check;

	if (!s || s->layers.fragment != RW_FRAGMENT_NONE)
		return 1;
	check = checksum_of(ctx, s);
	pseudo = pseudo_of(s, v6);
	if (!check || (local && *check == csum_fold(pseudo)))
		return 1;
	if (!sum_short(ctx, s->layers.l4, s->layers.l4_len, &pseudo))
		pseudo += csum_bytes(ctx, s->layers.l4, s->layers.l4_len);
	return csum_fold(pseudo) == 0xffff;
}

/* Whether `slot`, or the kernel behind it, finishes what leaves by it. */
static __always_inline bool finished_later(const struct packet_context *pctx, __u32 slot)
{
	struct rw_iface *out = bpf_map_lookup_elem(&ifaces, &slot);

	if (!out)
		return false;
	return must_pass(pctx, out) ||
	       ((pctx->in->flags & RW_IFACE_GENERIC) && !(out->flags & RW_IFACE_RAW));
}

/* Before anything is rewritten. `slot`: of the way out. */
static __always_inline void settle_checksum(struct packet_context *pctx, struct packet *p,
					    __u32 slot)
{
	if ((pctx->in->flags & RW_IFACE_LOCAL) && p->check)
		p->unfinished = checksum_settle(pctx->ctx, p->v6, finished_later(pctx, slot));
}

/* Whether headers and payload of the packet are as they were sent. */
static __always_inline bool segment_intact(const struct packet_context *pctx,
					   const struct packet *p, __u32 l4_at)
{
	__u32 header = l4_at - ETH_HLEN;

	if (!p->v6 && csum_fold(header == sizeof(struct iphdr) ?
					csum_words(p->l3, sizeof(struct iphdr) / 4) :
					csum_bytes(pctx->ctx, ETH_HLEN, header)) != 0xffff)
		return false;
	return checksum_holds(pctx->ctx, p->v6, pctx->in->flags & RW_IFACE_LOCAL);
}

#endif
