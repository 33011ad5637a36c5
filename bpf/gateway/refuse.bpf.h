/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet that cannot be forwarded, whose sender may want to know: the ICMP
 * program sends an error or counts why not. Called before anything in the packet
 * is changed or put in front of it.
 */
#ifndef RINGWAY_REFUSE_H
#define RINGWAY_REFUSE_H

#include "packet_context.bpf.h"
#include "parse.bpf.h"

static __always_inline int complain(struct xdp_md *ctx, struct packet_context *pctx,
				    const struct packet *p, enum rw_icmp_task task, __u32 mtu,
				    const __u32 *from)
{
	struct rw_icmp *icmp = &pctx->scratch->icmp;

	icmp->task = task;
	icmp->v6 = p->v6;
	icmp->l3_at = p->l3 - (void *)(long)ctx->data;
	icmp->mtu = mtu;
	copy_addr(icmp->from, from);
	bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_ICMP);
	/* The slot was emptied meanwhile. */
	switch (task) {
	case RW_ICMP_TOO_BIG:
		return leave(pctx->counters, RW_DROP, RW_REASON_TOO_BIG);
	default:
		return leave(pctx->counters, RW_DROP, RW_REASON_TTL_EXPIRED);
	}
}

/* A packet's part in a handshake that the gateway makes (handshake.bpf.h). `place`: of its flow. */
static __always_inline int shake_hands(struct xdp_md *ctx, struct packet_context *pctx,
				       enum rw_icmp_task task, __u32 place)
{
	struct rw_icmp *icmp = &pctx->scratch->icmp;

	icmp->task = task;
	icmp->mtu = place;
	bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_ICMP);
	return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
}

/* Longer than `mtu`, the bytes of layer 3 that still fit. */
static __always_inline int too_big(struct xdp_md *ctx, struct packet_context *pctx,
				   const struct packet *p, __u32 mtu)
{
	return complain(ctx, pctx, p, RW_ICMP_TOO_BIG, mtu, p->t->daddr);
}

/* For a reason of may_forward() or the like. `from`: our address as the error's source,
 * if that is not the packet's destination. */
static __always_inline int refuse(struct xdp_md *ctx, struct packet_context *pctx,
				  const struct packet *p, enum rw_reason reason, __u32 mtu,
				  const __u32 *from)
{
	if (!from)
		from = p->t->daddr;
	if (!p->l4)
		return leave(pctx->counters, RW_DROP, reason); /* RFC 1122 section 3.2.2 */
	if (reason == RW_REASON_TOO_BIG)
		return complain(ctx, pctx, p, RW_ICMP_TOO_BIG, mtu, from);
	if (reason == RW_REASON_TTL_EXPIRED)
		return complain(ctx, pctx, p, RW_ICMP_TIME_EXCEEDED, 0, from);
	return leave(pctx->counters, RW_DROP, reason);
}

#endif
