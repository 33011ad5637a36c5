/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Handshakes that the gateway makes, under nat. A SYN is answered with a cookie and an empty window,
 * so that the client sends nothing yet. The ACK that brings the cookie back opens the flow and becomes
 * a SYN to the backend. The backend's answer becomes a segment that opens the window, and asks for an
 * ACK by a byte that the client has already: what it sends then ends the backend's handshake.
 *
 * Nothing here waits for a time: what is lost is sent again by the client, which probes the empty
 * window, or by the backend.
 */
#ifndef RINGWAY_PROXY_H
#define RINGWAY_PROXY_H

#include "confirm.bpf.h"
#include "partial.bpf.h"
#include "shift.bpf.h"

/* The scale that was agreed for windows of the client. */
static __always_inline __u32 agreed_scale(__u32 number)
{
	return number >> COOKIE_SCALE_SHIFT & 15;
}

/* Whether cookies of this node may be under way. */
static __always_inline bool has_answered(const struct rw_shield_policy *policy, __u32 service)
{
	__u32 *armed = bpf_map_lookup_elem(&shield_armed, &service);

	/* Of a time in the past the difference is huge. */
	return policy->syn & RW_SYN_ALWAYS ||
	       (armed && *armed && (__s32)(now_seconds() - *armed) < COOKIE_SECONDS);
}

/* The cookie that came back, on its way to the program that opens its flow. */
struct cookie_ack {
	__u32 isn; /* the client's */
	struct cookie cookie;
	__u32 pad;
};
_Static_assert(sizeof(struct cookie_ack) == sizeof(((struct rw_icmp *)0)->from), "in its place");

static __always_inline struct cookie_ack *ack_in(struct rw_scratch *s)
{
	return (struct cookie_ack *)s->icmp.from;
}

/* States, or none, of a tuple whose flow is over or not there yet. */
#define NOT_BEGUN ((2u << RW_FLOW_SYN_ACK) - 1)
#define COOKIE_STATES (NOT_BEGUN | 1u << RW_FLOW_CLOSED | 1u << RW_FLOW_RESET)

/* Whether a packet of this flow, or none, may bring back a cookie. */
static __always_inline bool may_bring_cookie(__u64 key)
{
	return is_one_of(COOKIE_STATES, key_state(key));
}

/* An ACK of no flow and without data, as answers are, fits none: guessed, late, of another node's key
 * or flow. In peace it is of a connection that is over. */
static __always_inline void count_failed(const struct rw_shield_policy *policy, __u32 service)
{
	struct rw_arrivals *arrived = bpf_map_lookup_elem(&arrivals, &service);

	if (arrived && !dry && has_answered(policy, service))
		arrived->answers_failed++;
}

/* Whether the segment in scratch is as it was sent: else it is nobody's answer. */
static __always_inline bool is_intact(struct xdp_md *ctx, const struct rw_scratch *s)
{
	__u32 slot = s->iface;
	struct rw_iface *in = bpf_map_lookup_elem(&ifaces, &slot);

	return checksum_holds(ctx, !mapped_v4(s->tuple.saddr), in && (in->flags & RW_IFACE_LOCAL));
}

/* Whether the segment in scratch brings back a cookie, which is then in ack_in(). `place`, `key`: of
 * its nat flow, if any. The cookie that it was opened with does not count, whatever RSTs and FINs have
 * come since. */
__noinline __u32 cookie_met(struct xdp_md *ctx, __u32 service, __u32 place, __u64 key)
{
	struct rw_shift *shift = key ? shift_at(place) : NULL;
	struct rw_shield_policy *policy = bpf_map_lookup_elem(&shield_policies, &service);
	struct rw_syn_secrets *secrets = RW_ONLY(syn_secrets);
	struct syn_room *room = RW_ONLY(syn_rooms);
	struct rw_scratch *s = RW_ONLY(scratch);
	struct cookie_ack *ack;
	struct tcphdr *tcp;
	bool empty, holds, proxied;

	if (!secrets || !room || !s || s->tuple.proto != IPPROTO_TCP ||
	    s->layers.fragment != RW_FRAGMENT_NONE ||
	    (s->tuple.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_ACK || !policy ||
	    !(secrets->shared || has_answered(policy, service)))
		return 0;
	proxied = (policy->syn & RW_SYN_KIND) == RW_SYN_PROXY;
	/* What ends a connection does not open one at a backend. */
	if (!proxied && (s->tuple.tcp_flags & TCP_FIN))
		return 0;
	tcp = tcp_of(ctx, s);
	if (!tcp)
		return 0;
	ack = ack_in(s);
	empty = s->layers.l4_len == tcp->doff * 4u;
	ack->isn = bpf_ntohl(tcp->seq) - 1;
	ack->cookie.number = bpf_ntohl(tcp->ack_seq) - 1;
	if (shift && shift->number == ack->cookie.number)
		return 0;
	if (!read_options(ctx, READ_ONCE(s->layers.l4)))
		return 0;
	ack->cookie.stamp = room->options.echo;
	holds = cookie_holds(secrets, &s->tuple, ack->isn, ack->cookie, room->options.stamps);
	if (!holds) {
		if (!empty || !proxied)
			return 0;
		/* A probe of the window has the number before. */
		ack->isn++;
		holds = cookie_holds(secrets, &s->tuple, ack->isn, ack->cookie,
				     room->options.stamps);
	}
	if (holds)
		return is_intact(ctx, s);
	if (!key)
		count_failed(policy, service);
	return 0;
}

/* What acknowledges the SYN that a cookie stands for, as in rw_flow's confirmed. */
static __always_inline __u8 isn_asked(void)
{
	struct syn_room *room = RW_ONLY(syn_rooms);

	return room ? isn_bits(room->isn + 1) : 0;
}

#endif
