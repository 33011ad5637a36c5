// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gateway, top to bottom: parse -> balance -> send. One header per step.
 * Loaded once per node and shared by all its interfaces.
 */
#include "announce.bpf.h"
#include "balance.bpf.h"
#include "fragment.bpf.h"
#include "handshake.bpf.h"
#include "icmp.bpf.h"
#include "parse.bpf.h"
#include "service.bpf.h"

static __always_inline int pass(struct xdp_md *ctx, struct packet_context *pctx,
				enum rw_reason reason)
{
	if (!vlan_restore(ctx, pctx->scratch))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return next_stage(ctx, pctx->counters, pctx->set->stages, RW_SLOT_BALANCE, reason);
}

/* IP that cannot be balanced: to the kernel, unless it is for a service. */
static __always_inline int unbalanced(struct xdp_md *ctx, struct packet_context *pctx,
				      struct packet *p, enum rw_reason why)
{
	bool ours = frame_is_ours(pctx, p->eth);

	if (why == RW_REASON_ICMP) {
		struct rw_icmp *icmp = &pctx->scratch->icmp;

		icmp->task = RW_ICMP_ARRIVED;
		icmp->v6 = p->v6;
		icmp->l3_at = p->l3 - (void *)(long)ctx->data;
		if (p->v6 && answer_nd(ctx, pctx, p))
			return send_back(pctx, RW_REASON_ND_REPLY);
		if (!ours)
			return pass(ctx, pctx, RW_REASON_OTHER_HOST);
		bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_ICMP);
		return pass(ctx, pctx, RW_REASON_NO_STAGE);
	}
	if (!ours)
		return pass(ctx, pctx, RW_REASON_OTHER_HOST);
	if (!is_service_address(p->t->daddr))
		return pass(ctx, pctx, RW_REASON_NO_SERVICE);
	if (why == RW_REASON_OTHER_PROTOCOL)
		return pass(ctx, pctx, why);
	return leave(pctx->counters, RW_DROP, why);
}

/* Whether this could be a backend's answer: cheap, and correct for every possible flow. */
static __always_inline bool may_be_reply(const struct packet_context *pctx, const struct packet *p)
{
	return pctx->set->source_client ||
	       bpf_ntohs(p->t->dport_be) - pctx->set->reply_first < pctx->set->reply_count;
}

static __always_inline int balance(struct xdp_md *ctx, struct packet_context *pctx,
				   struct packet *p)
{
	struct rw_service_key *key = &pctx->scratch->key;
	struct rw_service *service = NULL;
	__u32 now = 0, place = 0;
	__u64 flow_key = 0;

	if (!frame_is_ours(pctx, p->eth))
		return pass(ctx, pctx, RW_REASON_OTHER_HOST);
	if (may_be_reply(pctx, p)) {
		now = now_seconds();
		place = flow_of_reply(pctx->set, p->t, now, &flow_key);
	}
	if (!place) {
		copy_addr(key->addr, p->t->daddr);
		key_set_port(key, p->t->dport_be, p->t->proto);
		service = service_of(key);
		if (!service)
			return pass(ctx, pctx, RW_REASON_NO_SERVICE);
	}
	if (place)
		return nat_reply(ctx, pctx, p, place, flow_key, now);
	/* The second half is for the verifier. */
	return service ? request(ctx, pctx, p, service) : pass(ctx, pctx, RW_REASON_NO_SERVICE);
}

GATEWAY_PROGRAM(ringway_balance)
{
	struct packet p = {};
	enum rw_reason why;
	struct packet_context pctx;

	if (!open_packet_context(ctx, &pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	p.t = &pctx.scratch->tuple;
	p.at = &pctx.scratch->layers;
	why = parse(ctx, &p);
	if (why == RW_REASON_FRAGMENT && has_noted_first(&p))
		why = fragment_follow(&pctx, &p) ? RW_REASON_NONE : RW_REASON_FRAGMENT_EARLY;
	switch (why) {
	case RW_REASON_NONE:
		return balance(ctx, &pctx, &p);
	case RW_REASON_NOT_IP:
		if (p.eth->h_proto == bpf_htons(ETH_P_ARP) && answer_arp(ctx, &pctx))
			return send_back(&pctx, RW_REASON_ARP_REPLY);
		return pass(ctx, &pctx, why);
	case RW_REASON_VLAN:
		/* Parses again without tags; or the packet is not for us. */
		if (vlan_enter(ctx))
			bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_BALANCE);
		return pass(ctx, &pctx, why);
	case RW_REASON_MALFORMED:
		if (p.eth && !frame_is_ours(&pctx, p.eth))
			return pass(ctx, &pctx, RW_REASON_OTHER_HOST);
		return leave(pctx.counters, RW_DROP, why);
	default:
		return unbalanced(ctx, &pctx, &p, why);
	}
}

/* ICMP and our part in handshakes: a program of its own, which keeps the balancer's path short. */
GATEWAY_PROGRAM(ringway_icmp)
{
	struct rw_icmp *icmp;
	struct packet_context pctx;
	__u32 next;

	if (!open_packet_context(ctx, &pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	icmp = &pctx.scratch->icmp;
	if (icmp->task == RW_ICMP_ANSWERED)
		return handshake_answered(ctx);
	if (icmp->task >= RW_ICMP_OPEN)
		return handshake_asks(ctx);
	if (icmp->task != RW_ICMP_ARRIVED)
		return icmp_complain(ctx, &pctx);
	next = icmp->v6 ? icmp6_arrived(ctx) : icmp4_arrived(ctx);
	if (next == ICMP_PASS && icmp->reason < RW_REASON_SPACE)
		return pass(ctx, &pctx, icmp->reason);
	return icmp->v6 ? icmp6_leave(ctx, next) : icmp4_leave(ctx, next);
}

char LICENSE[] SEC("license") = "GPL";
