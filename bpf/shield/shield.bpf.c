// SPDX-License-Identifier: GPL-2.0-only
/*
 * The shield: in front of the balancer, for packets to service addresses and, if it is told
 * to, to the node's own. In this order: sanity; prefixes that are allowed; prefixes that are
 * blocked; rules; answers to SYNs. Limits are the balancer's, which knows the flow. Loaded anew, with constants,
 * lists and rules of its own, for each change of the configuration: a generation. The slot leads
 * to one of them at any time.
 */
#include "gateway/packet_context.bpf.h"
#include "answer.bpf.h"
#include "calm.bpf.h"
#include "lists.bpf.h"
#include "rules.bpf.h"
#include "sanity.bpf.h"

/* ICMPv6 types of neighbour discovery (RFC 4861). */
#define ND_FIRST 133
#define ND_LAST 137
#define IPPROTO_ICMP6 58

static __always_inline int go_on(struct xdp_md *ctx, struct packet_context *pctx)
{
	bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_BALANCE);
	if (!vlan_restore(ctx, pctx->scratch))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return next_stage(ctx, pctx->counters, pctx->set->stages, RW_SLOT_BALANCE,
			  RW_REASON_NO_STAGE);
}

/* The service of a packet with ports, or NULL. */
static __always_inline struct rw_service *service_at(struct packet_context *pctx,
						     const struct packet *p)
{
	struct rw_service_key *key = &pctx->scratch->key;

	copy_addr(key->addr, p->t->daddr);
	key_set_port(key, p->t->dport_be, p->t->proto);
	return service_of(key);
}

/* A service's own mode; else the node's. Needs ports, which a later fragment lacks. */
static __always_inline __u32 mode_of(struct packet_context *pctx, const struct packet *p,
				     enum rw_reason why)
{
	struct rw_service *service;
	__u32 own;

	if (!shield.modes || why)
		return shield.mode;
	service = service_at(pctx, p);
	own = service ? service->flags >> RW_SVC_SHIELD_SHIFT & RW_SVC_SHIELD_MASK : 0;
	return own ? own - 1 : shield.mode;
}

/* Whether the packet in scratch is of a connection of this host, which stays whatever the shield is
 * told. Not inlined: the stack is short. */
__noinline __u32 is_connected(struct xdp_md *ctx)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	struct bpf_sock_tuple tuple = {};
	const struct rw_tuple *t;
	struct bpf_sock *sock;
	__u32 len, state;

	if (!s)
		return 0;
	t = &s->tuple;
	if (t->proto != IPPROTO_TCP || (t->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return 0;
	if (mapped_v4(t->saddr)) {
		tuple.ipv4.saddr = t->saddr[3];
		tuple.ipv4.daddr = t->daddr[3];
		tuple.ipv4.sport = t->sport_be;
		tuple.ipv4.dport = t->dport_be;
		len = sizeof(tuple.ipv4);
	} else {
		copy_addr(tuple.ipv6.saddr, t->saddr);
		copy_addr(tuple.ipv6.daddr, t->daddr);
		tuple.ipv6.sport = t->sport_be;
		tuple.ipv6.dport = t->dport_be;
		len = sizeof(tuple.ipv6);
	}
	sock = bpf_skc_lookup_tcp(ctx, &tuple, len, BPF_F_CURRENT_NETNS, 0);
	if (!sock)
		return 0;
	state = sock->state;
	bpf_sk_release(sock);
	return state != BPF_TCP_LISTEN;
}

/* Neighbour discovery and DHCP, without which nobody reaches this host. */
static __always_inline bool keeps_the_link(const struct xdp_md *ctx, const struct packet *p,
					   bool to_node)
{
	if (p->v6 && p->t->proto == IPPROTO_ICMP6 && p->at->fragment == RW_FRAGMENT_NONE) {
		__u32 at = READ_ONCE(p->at->l4);
		struct ipv6hdr *ip = p->l3;
		__u8 *type;

		if (at > MAX_L4_START)
			return false;
		type = (void *)p->eth + at;
		return (void *)(type + 1) <= (void *)(long)ctx->data_end &&
		       (void *)(ip + 1) <= (void *)(long)ctx->data_end && ip->hop_limit == 255 &&
		       *type >= ND_FIRST && *type <= ND_LAST;
	}
	if (!to_node || p->t->proto != IPPROTO_UDP || !p->l4)
		return false;
	switch (p->t->dport_be) {
	case bpf_htons(67):
	case bpf_htons(68):
	case bpf_htons(546):
	case bpf_htons(547):
		return true;
	}
	return false;
}

/* To a port towards backends. */
static __always_inline bool may_be_reply(const struct packet_context *pctx, const struct packet *p)
{
	return bpf_ntohs(p->t->dport_be) - pctx->set->reply_first < pctx->set->reply_count;
}

/* A backend's answer to a nat address, which is one of the node's: to a port that flows have, and
 * no service. */
static __always_inline bool may_be_answer(struct packet_context *pctx, const struct packet *p)
{
	return may_be_reply(pctx, p) && !service_at(pctx, p);
}

static __always_inline void capture_service_at(struct packet_context *pctx, const struct packet *p)
{
	struct rw_service *service = service_at(pctx, p);

	if (service)
		capture_service(pctx->scratch, service->id);
}

/* Whether a packet that is to be dropped for this reason is; else it is counted. */
static __always_inline bool refuse_packet(struct xdp_md *ctx, const struct packet *p, __u32 mode,
					  bool to_node, enum rw_reason reason)
{
	if (to_node && p->l4 && is_connected(ctx))
		return false;
	if (mode == RW_SHIELD_ENFORCE)
		return true;
	count_observed(reason);
	return false;
}

static __always_inline void trace_list(__u32 list, bool runtime)
{
	if (dry) {
		trace.shield_list = runtime ? 0 : list + 1;
		trace.shield_runtime = runtime;
	}
}

static __always_inline void count_list(__u32 list, __u32 bytes)
{
	__u32 *place = bpf_map_lookup_elem(&list_counts, &list);

	trace_list(list, false);
	if (place)
		count_shield(*place, bytes);
}

enum listed {
	LISTED_NOWHERE,
	LISTED_ALLOW,
	LISTED_BLOCK,
};

static __always_inline enum listed listed(const struct rw_shield_control *control,
					  const struct packet *p)
{
	__u32 list;

	if (control->allows && at_runtime(&runtime_allow, p->t->saddr, p->v6)) {
		trace_list(0, true);
		count_shield(RW_SHIELD_COUNT_RUNTIME_ALLOW, p->l3_len);
		return LISTED_ALLOW;
	}
	list = allowed(p->t->saddr, p->v6);
	if (list != NOT_LISTED) {
		count_list(list, p->l3_len);
		return LISTED_ALLOW;
	}
	if (control->blocks && at_runtime(&runtime_block, p->t->saddr, p->v6)) {
		trace_list(0, true);
		count_shield(RW_SHIELD_COUNT_RUNTIME_BLOCK, p->l3_len);
		return LISTED_BLOCK;
	}
	list = blocked(p->t->saddr, p->v6);
	if (list == NOT_LISTED)
		return LISTED_NOWHERE;
	count_list(list, p->l3_len);
	return LISTED_BLOCK;
}

/* NONE: the packet may go on. `matched`: what run_rules() found of a calm packet, about which
 * neither sanity nor lists have anything to say. */
static __always_inline enum rw_reason judge(struct xdp_md *ctx, struct packet_context *pctx,
					    const struct rw_shield_control *control,
					    const struct packet *p, enum rw_reason why, bool calm,
					    __u64 matched)
{
	if (!calm) {
		enum rw_reason reason = shield.sanity ? insane(ctx, p, why) : RW_REASON_NONE;
		enum listed where;

		if (reason)
			return reason;
		where = listed(control, p);
		if (where == LISTED_BLOCK)
			return RW_REASON_BLOCKED;
		if (where == LISTED_ALLOW) {
			pctx->scratch->allowed = 1;
			return RW_REASON_NONE;
		}
		if (!shield.rules)
			return RW_REASON_NONE;
		matched = run_rules(ctx);
	}
	switch (ruled_by(matched, p->l3_len)) {
	case RULED_DROP:
		return RW_REASON_RULE;
	case RULED_LIMITED:
		return RW_REASON_RULE_LIMIT;
	default:
		return RW_REASON_NONE;
	}
}

/* Whether parse() has found the addresses. */
static __always_inline bool has_addresses(const struct packet *p, enum rw_reason why)
{
	switch (why) {
	case RW_REASON_NONE:
	case RW_REASON_ICMP:
	case RW_REASON_OTHER_PROTOCOL:
	case RW_REASON_FRAGMENT:
	case RW_REASON_IP_OPTIONS:
	case RW_REASON_SOURCE_ROUTE:
	case RW_REASON_IPV6_EXTENSION:
		return true;
	case RW_REASON_MALFORMED:
		/* Cut off within layer 4. */
		return p->at->fragment == RW_FRAGMENT_FIRST;
	default:
		return false;
	}
}

/* NONE, or why a packet to this node is dropped. */
static __always_inline enum rw_reason refused(struct xdp_md *ctx, struct packet_context *pctx,
					      const struct rw_shield_control *control,
					      const struct packet *p, enum rw_reason why, bool calm,
					      __u64 matched)
{
	__u32 flags = address_flags(p->t->daddr), mode;
	bool to_node = flags & RW_ADDR_NODE;
	enum rw_reason reason;

	if (!(flags & RW_ADDR_SERVICE) && !(shield.protect_host && to_node))
		return RW_REASON_NONE;
	if (to_node && !why && may_be_answer(pctx, p))
		return RW_REASON_NONE;
	mode = mode_now(control, mode_of(pctx, p, why));
	if (dry)
		trace.shield_mode = mode + 1;
	if (mode == RW_SHIELD_OFF || keeps_the_link(ctx, p, to_node))
		return RW_REASON_NONE;
	reason = judge(ctx, pctx, control, p, why, calm, matched);
	if (dry)
		trace.shield_reason = reason;
	return reason && refuse_packet(ctx, p, mode, to_node, reason) ? reason : RW_REASON_NONE;
}

/* The number of the service whose policy says what answers its SYNs; RW_MAX_SERVICES: none. As in the
 * balancer, a flow's reply is no request, though a service has all ports. */
static __always_inline __u32 answering(struct packet_context *pctx, const struct packet *p)
{
	struct rw_service *service;
	__u64 key = 0;

	if (may_be_reply(pctx, p) && flow_by_reply(p->t, now_seconds(), &key))
		return RW_MAX_SERVICES;
	service = service_at(pctx, p);
	return service && (service->flags & RW_SVC_LIMITED) ? service->id : RW_MAX_SERVICES;
}

GATEWAY_PROGRAM(ringway_shield)
{
	struct rw_shield_control *control = RW_ONLY(shield_control);
	struct packet p = {};
	struct packet_context pctx;
	enum rw_reason why, reason;
	__u64 matched = 0;
	__u32 has_ports, service;
	bool calm;

	if (!control)
		return XDP_PASS; /* array elements exist: for the verifier */
	calm = is_calm(ctx, control);
	if (calm && shield.rules)
		matched = run_rules(ctx);
	if (calm && !matched && !(shield.answers && calm_shakes_hands(ctx)))
		bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_BALANCE);
	if (!open_packet_context(ctx, &pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	p.t = &pctx.scratch->tuple;
	p.at = &pctx.scratch->layers;
	p.at->fragment = RW_FRAGMENT_NONE;
	why = parse(ctx, &p);
	if (why == RW_REASON_VLAN && vlan_enter(ctx))
		bpf_tail_call(ctx, &OWN_SLOTS, RW_SLOT_SHIELD);
	if (!p.eth || !has_addresses(&p, why) || !frame_is_ours(&pctx, p.eth))
		return go_on(ctx, &pctx);
	has_ports = !why;
	/* Else the verifier goes on once for each `why`. */
	verifier_forget(has_ports, p.l3_len);
	if (!calm || matched) {
		reason = refused(ctx, &pctx, control, &p, why, calm, matched);
		if (reason) {
			if (capturing && has_ports)
				capture_service_at(&pctx, &p);
			return leave_shielded(pctx.counters, reason);
		}
	}
	if (shield.answers && has_ports && may_be_met(&pctx, &p)) {
		service = answering(&pctx, &p);
		reason = service < RW_MAX_SERVICES ? met_at_service(ctx, service) : RW_REASON_NONE;
		barrier_var(reason);
		if (reason)
			return meet(ctx, p.v6, reason);
	}
	return go_on(ctx, &pctx);
}

char LICENSE[] SEC("license") = "GPL";
