// SPDX-License-Identifier: GPL-2.0-only
/*
 * The gateway, top to bottom: parse -> balance -> send. One header per step.
 * Loaded once per node and shared by all its interfaces.
 */
#include "announce.bpf.h"
#include "balance.bpf.h"
#include "fragment.bpf.h"
#include "icmp.bpf.h"
#include "parse.bpf.h"
#include "service.bpf.h"

static __always_inline int pass(struct xdp_md *ctx, struct packet_context *pkt,
				enum rw_reason reason)
{
	if (!vlan_restore(ctx, pkt->scratch))
		return leave(pkt->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return next_stage(ctx, pkt->counters, pkt->set->stages, RW_SLOT_BALANCE, reason);
}

/* IP that cannot be balanced: to the kernel, unless it is for a service. */
static __always_inline int unbalanced(struct xdp_md *ctx, struct packet_context *pkt,
				      struct packet *p, enum rw_reason why)
{
	bool ours = frame_is_ours(pkt, p->eth);

	if (why == RW_REASON_ICMP) {
		struct rw_icmp *icmp = &pkt->scratch->icmp;

		icmp->task = RW_ICMP_ARRIVED;
		icmp->v6 = p->v6;
		icmp->l3_at = p->l3 - (void *)(long)ctx->data;
		if (p->v6 && answer_nd(ctx, pkt, p))
			return send_back(pkt, RW_REASON_ND_REPLY);
		if (!ours)
			return pass(ctx, pkt, RW_REASON_OTHER_HOST);
		bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_ICMP);
		return pass(ctx, pkt, RW_REASON_NO_STAGE);
	}
	if (!ours)
		return pass(ctx, pkt, RW_REASON_OTHER_HOST);
	if (!is_service_address(p->t->daddr))
		return pass(ctx, pkt, RW_REASON_NO_SERVICE);
	if (why == RW_REASON_OTHER_PROTOCOL)
		return pass(ctx, pkt, why);
	return leave(pkt->counters, RW_DROP, why);
}

/* Whether this could be a backend's answer: cheap, and correct for every possible flow. */
static __always_inline bool may_be_reply(const struct packet_context *pkt, const struct packet *p)
{
	return pkt->set->source_client ||
	       bpf_ntohs(p->t->dport_be) - pkt->set->reply_first < pkt->set->reply_count;
}

static __always_inline int balance(struct xdp_md *ctx, struct packet_context *pkt, struct packet *p)
{
	struct rw_service_key *key = &pkt->scratch->key;
	struct rw_service *service = NULL;
	__u32 now = 0, place = 0;
	__u64 flow_key = 0;

	if (!frame_is_ours(pkt, p->eth))
		return pass(ctx, pkt, RW_REASON_OTHER_HOST);
	if (may_be_reply(pkt, p)) {
		now = now_seconds();
		place = flow_by_reply(p->t, now, &flow_key);
	}
	if (!place) {
		copy_addr(key->addr, p->t->daddr);
		key_set_port(key, p->t->dport_be, p->t->proto);
		service = service_of(pkt->set, key);
		if (!service)
			return pass(ctx, pkt, RW_REASON_NO_SERVICE);
	}
	if (p->at->fragment == RW_FRAGMENT_FIRST &&
	    (place ? takes_replies(pkt->in, pkt->slot, backend_of(key_backend(flow_key))) :
		     takes_requests(pkt->in)))
		fragment_note(pkt, p);
	if (place)
		return nat_reply(ctx, pkt, p, place, flow_key, now);
	/* The second half is for the verifier. */
	return service ? request(ctx, pkt, p, service) : pass(ctx, pkt, RW_REASON_NO_SERVICE);
}

GATEWAY_PROGRAM(ringway_balance)
{
	struct packet p = {};
	enum rw_reason why;
	struct packet_context pkt;

	if (!open_packet_context(ctx, &pkt))
		return XDP_PASS; /* array elements exist: for the verifier */
	p.t = &pkt.scratch->tuple;
	p.at = &pkt.scratch->layers;
	why = parse(ctx, &p);
	if (why == RW_REASON_FRAGMENT && has_noted_first(&p))
		why = fragment_follow(&pkt, &p) ? RW_REASON_NONE : RW_REASON_FRAGMENT_EARLY;
	switch (why) {
	case RW_REASON_NONE:
		return balance(ctx, &pkt, &p);
	case RW_REASON_NOT_IP:
		if (p.eth->h_proto == bpf_htons(ETH_P_ARP) && answer_arp(ctx, &pkt))
			return send_back(&pkt, RW_REASON_ARP_REPLY);
		return pass(ctx, &pkt, why);
	case RW_REASON_VLAN:
		/* Parses again without tags; or the packet is not for us. */
		if (vlan_enter(ctx))
			bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_BALANCE);
		return pass(ctx, &pkt, why);
	case RW_REASON_MALFORMED:
		if (p.eth && !frame_is_ours(&pkt, p.eth))
			return pass(ctx, &pkt, RW_REASON_OTHER_HOST);
		return leave(pkt.counters, RW_DROP, why);
	default:
		return unbalanced(ctx, &pkt, &p, why);
	}
}

/* ICMP is a program of its own, which keeps the balancer's path short. */
GATEWAY_PROGRAM(ringway_icmp)
{
	struct rw_icmp *icmp;
	struct packet_context pkt;
	__u32 next;

	if (!open_packet_context(ctx, &pkt))
		return XDP_PASS; /* array elements exist: for the verifier */
	icmp = &pkt.scratch->icmp;
	if (icmp->task != RW_ICMP_ARRIVED)
		return icmp_complain(ctx, &pkt);
	next = icmp->v6 ? icmp6_arrived(ctx) : icmp4_arrived(ctx);
	if (next == ICMP_PASS && icmp->reason < RW_REASON_SPACE)
		return pass(ctx, &pkt, icmp->reason);
	return icmp->v6 ? icmp6_leave(ctx, next) : icmp4_leave(ctx, next);
}

char LICENSE[] SEC("license") = "GPL";
