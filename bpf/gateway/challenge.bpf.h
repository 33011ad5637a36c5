/* SPDX-License-Identifier: GPL-2.0-only */
/* Answers the SYN in scratch with a challenge (shield/challenge.bpf.h). Not limited: the answer is no
 * longer than the SYN. */
#ifndef RINGWAY_SEND_CHALLENGE_H
#define RINGWAY_SEND_CHALLENGE_H

#include "partial.bpf.h"
#include "reset.bpf.h"
#include "shield/challenge.bpf.h"

/* NONE: it may be answered. */
static __always_inline enum rw_reason no_challenge(struct xdp_md *ctx,
						   const struct packet_context *pctx)
{
	const struct rw_scratch *s = pctx->scratch;

	if (!checksum_holds(ctx, s->icmp.v6, pctx->in->flags & RW_IFACE_LOCAL))
		return RW_REASON_MALFORMED;
	return unanswerable(s->tuple.saddr, s->icmp.v6);
}

static __always_inline int send_challenge(struct xdp_md *ctx, struct packet_context *pctx)
{
	struct rw_scratch *s = pctx->scratch;
	enum rw_reason why = no_challenge(ctx, pctx);
	struct ethhdr *eth;

	if (why)
		return leave(pctx->counters, RW_DROP, why);
	if (!may_cut(ctx, pctx->in) ||
	    !reset_segment(ctx, &s->tuple, READ_ONCE(s->layers.l4), s->layers.l4_len,
			   new_challenge(&s->tuple) ?: 1))
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return leave(pctx->counters, RW_DROP, RW_REASON_RESET_FAILED);
	copy_mac(eth->h_source, pctx->in->mac);
	return send_back(pctx, RW_REASON_SYN_CHALLENGED);
}

#endif
