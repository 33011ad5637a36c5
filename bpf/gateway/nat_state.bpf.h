/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The effect of a packet on its nat flow: the next state, and the flow's
 * lifetime. The gateway does not track windows, so no segment is final: the
 * backend's next segment (a challenge ACK, RFC 5961) refutes a client's RST, and later
 * data of its sender refutes a FIN (RFC 7857 section 2.2).
 *
 * A reply that another host may have sent ends nothing and proves nothing
 * (faces.bpf.h).
 *
 * A client may get a port while its backend still has a socket of the former
 * client. Such a socket answers the new SYN with an ACK that carries its own
 * sequence numbers: in state SYN only the handshake itself passes.
 */
#ifndef RINGWAY_NAT_STATE_H
#define RINGWAY_NAT_STATE_H

#include "confirm.bpf.h"
#include "partial.bpf.h"

/* A segment, as far as it matters to its connection. */
struct segment {
	__u8 flags;
	__u8 fin;
	__u8 data;   /* has payload */
	__u8 number; /* isn_bits() of its own, of a SYN that which acknowledges it; 0: unknown */
	__u8 acked;  /* of what it acknowledges */
};

static __always_inline struct segment segment_of(const struct packet_context *pctx,
						 const struct packet *p)
{
	struct segment s = { .flags = p->t->tcp_flags };
	const struct tcphdr *tcp = p->l4;

	/* The second half holds since parse(): for the verifier. */
	if (!tcp || (void *)(tcp + 1) > (void *)(long)pctx->ctx->data_end)
		return s;
	s.fin = (s.flags & (TCP_FIN | TCP_ACK)) == (TCP_FIN | TCP_ACK);
	s.data = s.flags && has_data(p, tcp);
	s.number = isn_bits(bpf_ntohl(tcp->seq) + !!(s.flags & TCP_SYN));
	s.acked = isn_bits(bpf_ntohl(tcp->ack_seq));
	/* Else the verifier goes on once for each. */
	verifier_forget(s.fin, s.acked);
	verifier_forget(s.data, s.acked);
	return s;
}

/* Whether the segment may change its flow: not if it is damaged, or cannot be verified. */
static __always_inline bool may_change(const struct packet_context *pctx, const struct packet *p)
{
	return p->l4 && p->at->fragment == RW_FRAGMENT_NONE &&
	       segment_intact(pctx, p, p->l4 - (void *)p->eth);
}

/* A flow's next state, by the sender of the segment. Before the end of the handshake a RST changes
 * nothing: the flow gives way soon anyway. */
static __always_inline __u8 state_after_request(__u8 state, const struct segment *s)
{
	switch (state) {
	case RW_FLOW_SYN_ACK:
		/* A backend may answer a SYN with an ACK, which must not confirm its forger. */
		if ((s->flags & (TCP_ACK | TCP_SYN | TCP_RST)) != TCP_ACK)
			return state;
		return s->fin ? RW_FLOW_FIN_CLIENT : RW_FLOW_ESTABLISHED;
	case RW_FLOW_ESTABLISHED:
		if (s->flags & TCP_RST)
			return RW_FLOW_RESET;
		return s->fin ? RW_FLOW_FIN_CLIENT : state;
	case RW_FLOW_FIN_CLIENT:
		if (s->flags & TCP_RST)
			return RW_FLOW_RESET;
		return s->data && !s->fin ? RW_FLOW_ESTABLISHED : state;
	case RW_FLOW_FIN_BACKEND:
		if (s->flags & TCP_RST)
			return RW_FLOW_RESET;
		return s->fin ? RW_FLOW_CLOSED : state;
	case RW_FLOW_CLOSED:
		return s->data && !s->fin ? RW_FLOW_FIN_BACKEND : state;
	}
	return state;
}

static __always_inline __u8 state_after_reply(__u8 state, const struct segment *s)
{
	bool rst = s->flags & TCP_RST;

	switch (state) {
	case RW_FLOW_SYN:
		return s->flags & TCP_SYN ? RW_FLOW_SYN_ACK : state;
	case RW_FLOW_SYN_ACK:
		if (s->fin)
			return RW_FLOW_FIN_BACKEND;
		return s->data ? RW_FLOW_ESTABLISHED : state;
	case RW_FLOW_ESTABLISHED:
		return rst ? RW_FLOW_CLOSED : s->fin ? RW_FLOW_FIN_BACKEND : state;
	case RW_FLOW_FIN_CLIENT:
		return rst || s->fin ? RW_FLOW_CLOSED : state;
	case RW_FLOW_FIN_BACKEND:
		if (rst)
			return RW_FLOW_CLOSED;
		return s->data && !s->fin ? RW_FLOW_ESTABLISHED : state;
	case RW_FLOW_CLOSED:
		return s->data && !s->fin ? RW_FLOW_FIN_CLIENT : state;
	case RW_FLOW_RESET:
		if (!s->flags)
			return state;
		if (s->flags & TCP_SYN)
			return RW_FLOW_SYN_ACK;
		return rst ? RW_FLOW_CLOSED : s->fin ? RW_FLOW_FIN_BACKEND : RW_FLOW_ESTABLISHED;
	}
	return state;
}

/* Whether the segment may pass in state SYN: the handshake, a simultaneous open's too, and its
 * refusal. */
static __always_inline bool handshakes(const struct packet *p)
{
	return p->l4 && (p->t->tcp_flags & (TCP_SYN | TCP_RST));
}

/* The number that acknowledges this SYN; if it has data, the backend may accept that or not. */
static __always_inline __u8 syn_isn(struct xdp_md *ctx, const struct packet *p)
{
	const struct tcphdr *tcp = p->l4;

	/* The second half holds since parse(): for the verifier. */
	if (!tcp || (void *)(tcp + 1) > (void *)(long)ctx->data_end || p->l4_len > tcp->doff * 4u)
		return 0;
	return isn_bits(bpf_ntohl(tcp->seq) + 1);
}

/* In state SYN: whether the backend's segment belongs to a former connection on this port. */
static __always_inline bool is_stray(const struct packet_context *pctx, const struct packet *p,
				     const struct rw_flow *flow)
{
	const struct tcphdr *tcp = p->l4;
	__u8 isn = isn_known(flow);

	if (!handshakes(p))
		return true;
	if ((p->t->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != (TCP_SYN | TCP_ACK) || !isn)
		return false;
	if ((void *)(tcp + 1) > (void *)(long)pctx->ctx->data_end)
		return true;
	return isn != isn_bits(bpf_ntohl(tcp->ack_seq));
}

/* In state SYN_ACK: whether the segment may be a former connection's, which the network delayed past
 * the backend's SYN. It resets nothing: it may be this connection's, out of order. */
static __always_inline bool is_late(const struct segment *s, const struct rw_flow *flow)
{
	__u8 isn = isn_known(flow);

	return s->number && !(s->flags & (TCP_SYN | TCP_RST)) && isn && isn != ISN_SPOILT &&
	       isn != s->number;
}

#define HALF_OPEN_STATES (1u << RW_FLOW_SYN | 1u << RW_FLOW_SYN_ACK)

/* Updates the time of last use. Written only when it changes: a busy flow dirties its line once a
 * second, one on probation once in two. */
static __always_inline void flow_seen(struct rw_flow *flow, __u8 state, __u32 now, bool request)
{
	__u32 idle = now - READ_ONCE(flow->seen);

	if (!idle)
		return;
	if ((flow->confirmed & RW_CONFIRMED) || is_one_of(HALF_OPEN_STATES, state)) {
		WRITE_ONCE(flow->seen, now);
	} else if ((__s32)idle >= PROBATION_TICKS) {
		WRITE_ONCE(flow->seen, now);
		if (request)
			confirmed_note(flow, RW_ASKED | (READ_ONCE(flow->confirmed) & RW_ACKED));
	}
}

/* Whether it answers a request. A segment without data may answer a forged segment. */
static __always_inline bool answers(const struct packet_context *pctx, const struct packet *p)
{
	return p->t->proto == IPPROTO_UDP || carries_data(pctx->ctx, p);
}

/* Whether both sides have used it long enough to confirm it. */
static __always_inline bool proves_itself(const struct rw_flow *flow, __u8 state)
{
	return (flow->confirmed & (RW_CONFIRMED | RW_ASKED)) == RW_ASKED && state != RW_FLOW_SYN &&
	       state != RW_FLOW_SYN_ACK && state != RW_FLOW_CLOSED && state != RW_FLOW_RESET;
}

static __always_inline void flow_to(const struct rw_settings *set, struct rw_flow *flow, __u64 *key,
				    __u8 state)
{
	if (state == key_state(*key) || !flow_move(flow, key, state))
		return;
	if (state == RW_FLOW_CLOSED)
		flow_unconfirm(set, flow, *key);
}

/* The client's first segment after the backend's SYN: whether it proves that the client saw it. */
static __always_inline bool handshake_ends(struct rw_flow *flow, const struct segment *s)
{
	if (isn_known(flow) != s->acked) {
		confirmed_note(flow, ISN_SPOILT << RW_ISN_SHIFT);
		return false;
	}
	confirmed_note(flow, RW_ACKED);
	return true;
}

/* A doubtful reply: a RST may be refuted, a FIN does not count. */
static __always_inline __u8 state_in_doubt(__u8 state, __u8 next, bool rst)
{
	if (next == RW_FLOW_CLOSED || next == RW_FLOW_FIN_BACKEND)
		return rst && state != RW_FLOW_CLOSED ? RW_FLOW_RESET : state;
	return next;
}

/*
 * A reply to a flow on probation. A forger of a client's address may guess the end of its
 * handshake. The backend, if it accepts the guess at all, then sends its SYN-ACK again, a RST, or
 * nothing.
 */
static __always_inline void reply_proves(const struct packet_context *pctx, const struct packet *p,
					 struct rw_flow *flow, __u64 key, __u8 state)
{
	__u8 confirmed = READ_ONCE(flow->confirmed);

	if (confirmed & RW_ACKED) {
		confirmed_note(flow, confirmed & RW_ASKED);
		if (!(p->t->tcp_flags & TCP_RST))
			flow_confirm(pctx->set, flow, key);
	} else if (proves_itself(flow, state) && answers(pctx, p)) {
		flow_confirm(pctx->set, flow, key);
	}
}

/* Most segments change nothing. */
static __always_inline bool segment_plain(const struct packet *p, __u8 state)
{
	return state == RW_FLOW_ESTABLISHED && !(p->t->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST));
}

/* A request of an existing flow. */
static __always_inline void flow_requested(const struct packet_context *pctx,
					   const struct packet *p, struct rw_flow *flow, __u64 *key,
					   __u32 now)
{
	__u8 state = key_state(*key), next = state;
	struct segment s;
	bool again;

	if (dry)
		return;
	if (p->t->proto == IPPROTO_TCP && !segment_plain(p, state)) {
		s = segment_of(pctx, p);
		next = state_after_request(state, &s);
		verifier_forget(next, *key);
		verifier_forget(state, *key);
		again = state == RW_FLOW_SYN && (s.flags & TCP_SYN);
		if ((again || next != state) && !may_change(pctx, p))
			next = state;
		else if (again)
			confirmed_note(flow, syn_isn(pctx->ctx, p) << RW_ISN_SHIFT);
		else if (state == RW_FLOW_SYN_ACK && next != state && !handshake_ends(flow, &s))
			next = state;
	}
	flow_seen(flow, next, now, true);
	flow_to(pctx->set, flow, key, next);
}

/* A reply of an existing flow. `own`: only its backend can have sent it (faces.bpf.h). False: it
 * does not pass. */
static __always_inline bool flow_replied(const struct packet_context *pctx, const struct packet *p,
					 struct rw_flow *flow, __u64 *key, __u32 now, __u32 own)
{
	bool tells = p->t->proto == IPPROTO_TCP && !segment_plain(p, key_state(*key));
	__u8 state = key_state(*key), next = state;
	struct segment s = {};

	/* Else the verifier goes on once for each. */
	verifier_forget(own, *key);
	if (tells) {
		s = segment_of(pctx, p);
		if (state == RW_FLOW_SYN_ACK && is_late(&s, flow))
			return false;
	}
	if (dry)
		return true;
	if (p->t->proto == IPPROTO_UDP) {
		next = RW_FLOW_UDP;
	} else if (tells) {
		next = state_after_reply(state, &s);
		/* The backend did not see the end of its handshake. */
		if (own && state == RW_FLOW_ESTABLISHED && (s.flags & TCP_SYN) &&
		    (READ_ONCE(flow->confirmed) & (RW_CONFIRMED | RW_ACKED)) == RW_ACKED)
			next = RW_FLOW_SYN_ACK;
		if (!own)
			next = state_in_doubt(state, next, s.flags & TCP_RST);
		verifier_forget(next, *key);
		verifier_forget(state, *key);
		if ((next != state || (s.flags & TCP_SYN)) && !may_change(pctx, p)) {
			next = state;
			s.flags = 0;
		}
	}
	flow_seen(flow, next, now, false);
	if (next == RW_FLOW_SYN_ACK && (s.flags & TCP_SYN)) {
		if (own || state != next)
			confirmed_note(flow, s.number << RW_ISN_SHIFT);
	} else if (state == RW_FLOW_SYN_ACK) {
		if (next != state)
			confirmed_note(flow, 0);
	} else if (own &&
		   (READ_ONCE(flow->confirmed) & (RW_CONFIRMED | RW_ACKED)) != RW_CONFIRMED) {
		reply_proves(pctx, p, flow, *key, next);
	}
	flow_to(pctx->set, flow, key, next);
	return true;
}

#endif
