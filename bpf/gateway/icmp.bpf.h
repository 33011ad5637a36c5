/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ICMP and ICMPv6 that arrive. An echo request to a service address is answered
 * here, whoever owns the address. An error belongs to the flow of the packet
 * that it quotes: under nat it is translated like that flow's packets, and the
 * quote is translated back to what its receiver once sent; under dsr it goes
 * unchanged to the flow's backend, so that path MTU discovery works. Everything
 * else goes to the kernel.
 */
#ifndef RINGWAY_ICMP_H
#define RINGWAY_ICMP_H

#include "balance.bpf.h"
#include "icmp_error.bpf.h"
#include "service.bpf.h"

/* An IP packet's upper layer, behind options or extension headers. */
struct upper {
	__u32 at;    /* from the start of layer 3 */
	__u32 proto; /* 0: not reached */
	__u32 later; /* 1: a fragment without the upper layer's header */
};

/* Extension headers that are searched. Legitimate packets have no more. */
#define EXTENSIONS_MAX 6
#define UPPER_AT_MAX 1024 /* a power of two */

static __always_inline struct upper upper6(void *l3, void *end)
{
	struct ipv6hdr *ip = l3;
	struct upper upper = { .at = sizeof(*ip) };
	__u8 next;

	if ((void *)(ip + 1) > end)
		return upper;
	next = ip->nexthdr;
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 *extension = l3 + upper.at;
		__u32 len;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			break;
		if ((void *)(extension + 8) > end)
			return upper;
		len = 8;
		if (next == IPPROTO_FRAGMENT)
			upper.later |= !!(*(__be16 *)(extension + 2) & bpf_htons(0xfff8));
		else
			len += extension[1] * 8u;
		next = extension[0];
		upper.at += len;
		if (upper.at > UPPER_AT_MAX)
			return upper;
	}
	/* Else the verifier goes on once for each extension. */
	verifier_forget(upper.at, ip->daddr.in6_u.u6_addr32[3]);
	verifier_forget(upper.later, ip->daddr.in6_u.u6_addr32[3]);
	upper.proto = next;
	return upper;
}

static __always_inline struct upper upper4(void *l3, void *end)
{
	struct iphdr *ip = l3;
	struct upper upper = {};

	if ((void *)(ip + 1) > end)
		return upper;
	upper.at = ip->ihl * 4u;
	upper.proto = ip->protocol;
	upper.later = !!(ip->frag_off & bpf_htons(IP_OFFSET));
	return upper;
}

/* The next step; the packet's reason, and the way out, are in scratch. */
enum icmp_next {
	ICMP_PASS,
	ICMP_DROP,
	ICMP_BACK,    /* back the way it came */
	ICMP_SEND,    /* out by scratch->icmp */
	ICMP_BALANCE, /* to the backend of scratch->tuple's flow */
};

/* writer, reader: gateway; nobody else. For one packet: data too large for the stack,
 * which has 512 bytes for a packet's whole path. */
struct icmp_room {
	struct flow_client client;
	struct rw_service_key key;
	__u32 outer[4]; /* the error's own source */
};
RW_MAP(icmp_rooms, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct icmp_room, 0);

/* An ICMP packet in a frame. */
struct icmp_packet {
	void *l3;
	__u16 *icmp; /* its header, of 8 bytes at least */
	void *end;
	__u32 l3_len;
	__u32 icmp_len;
	__u32 head_len; /* of layer 3 */
	bool v6;	/* known when compiled, so that the verifier sees one family */
};

/* The packet that an error quotes, or the first part of it. */
struct quoted {
	void *l3;
	__be16 *l4;   /* 8 bytes at least */
	__u32 l4_len; /* bytes of it that are there */
};

static __always_inline bool icmp_open(struct xdp_md *ctx, __u32 l3_at, __u32 l4_at,
				      struct icmp_packet *it, const bool v6)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (l3_at > L3_AT_MAX || l4_at > MAX_L4_START || l4_at < l3_at)
		return false;
	it->end = (void *)(long)ctx->data_end;
	it->l3 = frame_at(ctx, l3_at);
	it->icmp = (void *)(long)ctx->data + l4_at;
	it->head_len = l4_at - l3_at;
	it->v6 = v6;
	ip = it->l3;
	ip6 = it->l3;
	if (it->l3 + (v6 ? sizeof(*ip6) : sizeof(*ip)) > it->end ||
	    (void *)(it->icmp + 4) > it->end)
		return false;
	it->l3_len = v6 ? sizeof(*ip6) + bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip->tot_len);
	it->icmp_len = it->l3_len - it->head_len;
	return it->l3_len >= it->head_len + 8;
}

/* Whether the checksums of the message and of its IPv4 header are right (RFC 1122 sections 3.2.1.2
 * and 3.2.2, RFC 4443 section 2.4). */
static __always_inline bool icmp_sums_up(struct xdp_md *ctx, const struct rw_scratch *s,
					 const struct icmp_packet *it)
{
	__u64 sum = csum_bytes(ctx, s->layers.l4, it->icmp_len);

	if (!it->v6 &&
	    csum_fold(csum_bytes(ctx, s->layers.l4 - it->head_len, it->head_len)) != 0xffff)
		return false;
	if (it->v6)
		sum += csum_pseudo(s->tuple.saddr, s->tuple.daddr, true, IPPROTO_ICMPV6,
				   (__u16)it->icmp_len);
	return csum_fold(sum) == 0xffff;
}

/* An answer goes to a host only, and one that is not ourselves. */
static __always_inline enum icmp_next answer_echo(struct xdp_md *ctx, struct rw_scratch *s,
						  struct icmp_packet *it)
{
	struct ipv6hdr *ip6 = it->l3;
	struct iphdr *ip = it->l3;
	__u16 hops, head;

	s->icmp.reason = unanswerable(s->tuple.saddr, it->v6);
	if (s->icmp.reason)
		return ICMP_DROP;
	/* The answer would need record route and the like, too. */
	s->icmp.reason = it->v6 ? RW_REASON_IPV6_EXTENSION : RW_REASON_IP_OPTIONS;
	if (it->head_len != (it->v6 ? sizeof(*ip6) : sizeof(*ip)))
		return ICMP_DROP;
	s->icmp.reason = RW_REASON_MALFORMED;
	if (!icmp_sums_up(ctx, s, it))
		return ICMP_DROP;
	s->icmp.reason = RW_REASON_ICMP_LIMITED;
	if (!may_answer((const struct rw_address *)s->tuple.saddr, ANSWER_ECHO))
		return ICMP_DROP;
	if (it->v6) {
		copy_addr(ip6->saddr.in6_u.u6_addr32, s->tuple.daddr);
		copy_addr(ip6->daddr.in6_u.u6_addr32, s->tuple.saddr);
		ip6->hop_limit = ICMP_HOPS;
	} else {
		hops = *(__u16 *)&ip->ttl;
		ip->saddr = s->tuple.daddr[3];
		ip->daddr = s->tuple.saddr[3];
		ip->ttl = ICMP_HOPS;
		ip->check = csum_apply(ip->check, csum_change16(hops, *(__u16 *)&ip->ttl));
	}
	head = it->icmp[0];
	*(__u8 *)it->icmp = it->v6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY;
	/* Of a message of zeroes the sum is -0, not the +0 that RFC 1624's arithmetic comes to. */
	it->icmp[1] = csum_apply(it->icmp[1], csum_change16(head, it->icmp[0])) ?: 0xffff;
	s->icmp.reason = RW_REASON_ECHO_REPLY;
	return ICMP_BACK;
}

/* Errors that quote a packet (RFC 792, RFC 4443). Redirects and source quench
 * do not concern a flow (RFC 6633). */
static __always_inline bool quotes_a_packet(__u8 type, bool v6)
{
	if (v6)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_BAD_PARAMETER;
}

/*
 * Reads the quote into `t`, mirrored: the tuple of a packet that would answer
 * it, which goes the way of the error. The destination is already there: it is
 * the error's. NONE: TCP or UDP.
 */
static __always_inline enum rw_reason quote_read(struct icmp_packet *it, struct rw_tuple *t,
						 struct quoted *q)
{
	struct upper upper;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	bool forged;
	__u32 len;

	q->l3 = it->icmp + 4;
	ip = q->l3;
	ip6 = q->l3;
	if ((void *)(ip + 1) > it->end || ip->version != (it->v6 ? 6 : 4))
		return RW_REASON_MALFORMED;
	if (it->v6) {
		if ((void *)(ip6 + 1) > it->end)
			return RW_REASON_MALFORMED;
		upper = upper6(q->l3, it->end);
		len = sizeof(*ip6) + bpf_ntohs(ip6->payload_len);
		copy_addr(t->saddr, ip6->daddr.in6_u.u6_addr32);
		if (mapped_v4(t->saddr))
			return RW_REASON_MALFORMED;
		forged = !same_addr(t->daddr, ip6->saddr.in6_u.u6_addr32);
	} else {
		upper = upper4(q->l3, it->end);
		len = bpf_ntohs(ip->tot_len);
		map_addr4(t->saddr, ip->daddr);
		forged = t->daddr[3] != ip->saddr;
		if (upper.at < sizeof(*ip))
			return RW_REASON_MALFORMED;
	}
	t->proto = upper.proto;
	t->tcp_flags = TCP_ACK;
	t->sport_be = 0;
	t->dport_be = 0;
	if (upper.proto && upper.proto != IPPROTO_TCP && upper.proto != IPPROTO_UDP)
		return RW_REASON_ICMP;
	/* An error sent to one address about another's packet is a forgery. */
	if (upper.proto && (upper.later || forged))
		return RW_REASON_ICMP_NO_FLOW;
	/* Lengths as the quoted header has them, and as much of it as was quoted. */
	if (len > it->icmp_len - 8)
		len = it->icmp_len - 8;
	/* The verifier of 6.1 follows no copy of what was checked. */
	barrier_var(upper.at);
	q->l4 = q->l3 + (upper.at & (2 * UPPER_AT_MAX - 1));
	if (!upper.proto || len < upper.at + 8 || (void *)(q->l4 + 4) > it->end)
		return RW_REASON_MALFORMED;
	q->l4_len = len - upper.at;
	t->sport_be = q->l4[1];
	t->dport_be = q->l4[0];
	return RW_REASON_NONE;
}

/* The quote's layer-4 checksum, if that much was quoted. UDP's 0: none. */
static __always_inline __u16 *quote_check(struct icmp_packet *it, struct quoted *q, __u8 proto)
{
	if (proto == IPPROTO_UDP)
		return q->l4[3] ? q->l4 + 3 : NULL;
	if (q->l4_len < 18 || (void *)(q->l4 + 9) > it->end)
		return NULL;
	return q->l4 + 8;
}

/*
 * Translates the quote: its source becomes `to`'s destination and the reverse.
 * Returns the change of the ICMP message's sum.
 */
static __always_inline __u64 translate_quote(struct icmp_packet *it, struct quoted *q,
					     const struct rw_tuple *t, const struct rewrite *to)
{
	__u64 addrs = csum_change_addr(t->saddr, to->saddr) + csum_change_addr(t->daddr, to->daddr);
	__u64 ports =
		csum_change16(t->sport_be, to->sport_be) + csum_change16(t->dport_be, to->dport_be);
	__u64 sum = addrs + ports;
	__u16 *check = quote_check(it, q, t->proto), old;

	if (it->v6) {
		struct ipv6hdr *ip6 = q->l3;

		copy_addr(ip6->saddr.in6_u.u6_addr32, to->daddr);
		copy_addr(ip6->daddr.in6_u.u6_addr32, to->saddr);
	} else {
		struct iphdr *ip = q->l3;

		ip->saddr = to->daddr[3];
		ip->daddr = to->saddr[3];
		old = ip->check;
		ip->check = csum_apply(old, addrs);
		sum += csum_change16(old, ip->check);
	}
	if (check) {
		old = *check;
		*check = csum_apply(old, addrs + ports);
		if (t->proto == IPPROTO_UDP && !*check)
			*check = 0xffff;
		sum += csum_change16(old, *check);
	}
	q->l4[0] = to->dport_be;
	q->l4[1] = to->sport_be;
	return sum;
}

/* The same for the error itself; `saddr` is its own source's successor. */
static __always_inline void translate_error(struct icmp_packet *it, struct quoted *q,
					    const struct rw_tuple *t, const struct rewrite *to,
					    const __u32 *saddr)
{
	struct rewrite outside = { .saddr = saddr, .daddr = to->daddr };
	__u64 sum = translate_quote(it, q, t, to);

	if (it->v6) {
		struct ipv6hdr *ip6 = it->l3;

		sum += csum_change_addr(ip6->saddr.in6_u.u6_addr32, saddr) +
		       csum_change_addr(ip6->daddr.in6_u.u6_addr32, to->daddr);
		rewrite_ipv6(ip6, &outside);
	} else {
		rewrite_ipv4(it->l3, &outside);
	}
	it->icmp[1] = csum_apply(it->icmp[1], sum);
}

/*
 * Whether the error names an MTU that a path must not have (RFC 791, RFC 8200
 * section 5). A stack stores it by destination, which under nat is our address:
 * one client would reduce the packets to all of them.
 */
static __always_inline bool says_tiny_mtu(const struct icmp_packet *it)
{
	__u32 mtu = bpf_ntohl(*(__u32 *)(it->icmp + 2));

	if (it->v6)
		return *(__u8 *)it->icmp == ICMPV6_PKT_TOOBIG && mtu < IPV6_LEAST_MTU;
	return it->icmp[0] == bpf_htons(ICMP_UNREACHABLE << 8 | ICMP_FRAG_NEEDED) &&
	       (mtu & 0xffff) < IPV4_LEAST_MTU;
}

/* Ends an error that cannot be forwarded: no error is sent about an error. */
static __always_inline enum rw_reason may_forward_error(struct icmp_packet *it, __u32 mtu)
{
	__u8 hops = it->v6 ? ((struct ipv6hdr *)it->l3)->hop_limit : ((struct iphdr *)it->l3)->ttl;

	if (hops <= 1)
		return RW_REASON_TTL_EXPIRED;
	return it->l3_len > mtu ? RW_REASON_TOO_BIG : RW_REASON_NONE;
}

/* In state SYN: whether the error quotes a segment of the port's former connection. */
static __always_inline bool is_anothers(const struct rw_flow *flow, __u64 key,
					const struct quoted *q)
{
	__u32 seq = (__u32)bpf_ntohs(q->l4[2]) << 16 | bpf_ntohs(q->l4[3]);

	if (key_state(key) != RW_FLOW_SYN || !flow)
		return false;
	return isn_known(flow) && isn_known(flow) != isn_bits(seq + 1);
}

/* An error about a packet to a backend: goes to the client, as a reply of the flow. */
static __always_inline enum icmp_next error_to_client(struct rw_scratch *s, struct icmp_packet *it,
						      struct quoted *q, const struct rw_iface *in,
						      __u32 place, __u64 key,
						      struct flow_client *client)
{
	struct rw_service_info *info;
	struct rewrite to = {};
	struct rw_iface *way;
	__u32 id;

	s->icmp.reason = RW_REASON_WRONG_INTERFACE;
	if (!takes_replies(in, s->iface, backend_of(key_backend(key))))
		return ICMP_DROP;
	s->icmp.reason = RW_REASON_ICMP_NO_FLOW;
	if (!flow_read_client(place, &key, client))
		return ICMP_DROP;
	id = client->service;
	capture_service(s, id);
	capture_backend(s, key_backend(key));
	if (is_anothers(flow_at(place), key, q))
		return ICMP_DROP;
	info = bpf_map_lookup_elem(&service_info, &id);
	way = bpf_map_lookup_elem(&ifaces, &client->iface);
	s->icmp.reason = RW_REASON_NO_STATE;
	if (!info || !way)
		return ICMP_DROP;
	s->icmp.reason = may_forward_error(it, way->mtu);
	if (s->icmp.reason)
		return ICMP_DROP;
	to.saddr = info->addr;
	to.sport_be = client->dport_be;
	to.daddr = client->addr;
	to.dport_be = client->port_be;
	/* From the service's address: routers behind us do not concern the client. */
	translate_error(it, q, &s->tuple, &to, info->addr);
	s->icmp.reason = RW_REASON_ICMP_TO_CLIENT;
	s->icmp.iface = client->iface;
	copy_mac(s->icmp.mac, (__u8 *)client->mac);
	return ICMP_SEND;
}

/* The number of a quoted segment to the client, as the flow's backend has sent it. */
static __always_inline void shift_quote(struct icmp_packet *it, struct quoted *q, __u32 place,
					__u64 key)
{
	__u32 old = (__u32)q->l4[2] | (__u32)q->l4[3] << 16, new;
	__u16 *check = quote_check(it, q, IPPROTO_TCP), before;
	struct rw_flow *flow = flow_at(place);
	struct syn_room *room;
	__u64 change;

	if (!flow || !is_shifted(flow))
		return;
	room = shift_read(place, key);
	if (!room || !(room->shift.flags & RW_SHIFT_KNOWN))
		return;
	new = bpf_htonl(bpf_ntohl(old) - room->shift.seq);
	change = csum_change(old, new);
	q->l4[2] = (__u16) new;
	q->l4[3] = (__u16)(new >> 16);
	if (check) {
		before = *check;
		*check = csum_apply(before, change);
		change += csum_change16(before, *check);
	}
	it->icmp[1] = csum_apply(it->icmp[1], change);
}

/* An error about a packet to a client: goes to the backend, as a request of the flow. */
static __always_inline enum icmp_next error_to_backend(struct rw_scratch *s, struct icmp_packet *it,
						       struct quoted *q, __u64 key, __u32 *outer)
{
	struct rw_backend *backend = backend_of(key_backend(key));
	__u32 nat = key_nat_addr(key);
	struct rewrite to = { .saddr = s->tuple.saddr, .sport_be = bpf_htons(key_port(key)) };
	const __u32 *saddr = outer;

	capture_backend(s, key_backend(key));
	s->icmp.reason = RW_REASON_ICMP_NO_FLOW;
	if (!backend)
		return ICMP_DROP;
	s->icmp.reason = RW_REASON_NO_NEIGHBOUR;
	if (!(backend->flags & RW_BACKEND_RESOLVED))
		return ICMP_DROP;
	s->icmp.reason = may_forward_error(it, backend->mtu);
	if (s->icmp.reason)
		return ICMP_DROP;
	to.daddr = backend->addr;
	to.dport_be = backend->port_be ?: s->tuple.dport_be;
	if (nat == RW_NAT_CLIENT) {
		/* The backend has a route to clients, whoever sent the error. */
		if (it->v6)
			copy_addr(outer, ((struct ipv6hdr *)it->l3)->saddr.in6_u.u6_addr32);
		else
			map_addr4(outer, ((struct iphdr *)it->l3)->saddr);
	} else {
		struct rw_address *own = bpf_map_lookup_elem(&nat_addrs, &nat);

		s->icmp.reason = RW_REASON_NO_STATE;
		if (!own)
			return ICMP_DROP;
		to.saddr = own->addr;
		saddr = own->addr;
		s->icmp.reason = RW_REASON_MALFORMED;
		if (says_tiny_mtu(it))
			return ICMP_DROP;
	}
	translate_error(it, q, &s->tuple, &to, saddr);
	s->icmp.reason = RW_REASON_ICMP_TO_BACKEND;
	s->icmp.iface = backend->iface;
	copy_mac(s->icmp.mac, backend->dmac);
	return ICMP_SEND;
}

/* Whether the quoted packet could be one that we sent to a backend. */
static __always_inline bool may_be_ours(const struct rw_settings *set, const struct rw_tuple *t)
{
	return set->source_client || bpf_ntohs(t->dport_be) - set->reply_first < set->reply_count;
}

static __always_inline enum icmp_next find_flow(struct rw_scratch *s, struct icmp_packet *it,
						bool to_service)
{
	struct rw_settings *set = RW_ONLY(settings);
	struct icmp_room *room = RW_ONLY(icmp_rooms);
	struct rw_iface *in = bpf_map_lookup_elem(&ifaces, &s->iface);
	struct rw_service *service;
	struct quoted q = {};
	__u64 flow = 0;
	__u32 place;

	s->icmp.reason = quote_read(it, &s->tuple, &q);
	if (!set || !room || !in || s->icmp.reason)
		goto unknown;
	if (may_be_ours(set, &s->tuple)) {
		place = flow_by_reply(&s->tuple, now_seconds(), &flow);
		if (place)
			return error_to_client(s, it, &q, in, place, flow, &room->client);
	}
	s->icmp.reason = RW_REASON_ICMP;
	if (!to_service)
		goto unknown;
	copy_addr(room->key.addr, s->tuple.daddr);
	room->key.port_be = s->tuple.dport_be;
	room->key.proto = s->tuple.proto;
	room->key.block = 0; /* of the last packet's */
	service = service_of(&room->key);
	if (!service)
		return ICMP_PASS;
	capture_service(s, service->id);
	s->icmp.reason = RW_REASON_WRONG_INTERFACE;
	if (!takes_requests(in))
		return ICMP_DROP;
	if (service->forward != RW_FORWARD_NAT)
		return ICMP_BALANCE;
	place = flow_by_client(&s->tuple, service->id, now_seconds(), &flow);
	if (place) {
		if (s->tuple.proto == IPPROTO_TCP)
			shift_quote(it, &q, place, flow);
		return error_to_backend(s, it, &q, flow, room->outer);
	}
	s->icmp.reason = RW_REASON_ICMP_NO_FLOW;
	return ICMP_DROP;
unknown:
	if (!to_service) {
		s->icmp.reason = RW_REASON_NO_SERVICE;
		return ICMP_PASS;
	}
	return s->icmp.reason == RW_REASON_ICMP ? ICMP_PASS : ICMP_DROP;
}

static __always_inline enum icmp_next icmp_look(struct xdp_md *ctx, const bool v6)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	struct icmp_packet it = {};
	bool to_service;
	__u8 type;

	if (!s)
		return ICMP_PASS;
	to_service = is_service_address(s->tuple.daddr);
	s->icmp.reason = to_service ? RW_REASON_MALFORMED : RW_REASON_NO_SERVICE;
	if (!icmp_open(ctx, s->icmp.l3_at, s->layers.l4, &it, v6))
		return to_service ? ICMP_DROP : ICMP_PASS;
	/* The first of several fragments: the quote or the request is not complete. */
	s->icmp.reason = to_service ? RW_REASON_FRAGMENT : RW_REASON_NO_SERVICE;
	if (s->layers.fragment != RW_FRAGMENT_NONE)
		return to_service ? ICMP_DROP : ICMP_PASS;
	type = *(__u8 *)it.icmp;
	if (quotes_a_packet(type, v6)) {
		s->icmp.reason = unanswerable(s->tuple.saddr, v6);
		if (!s->icmp.reason)
			return find_flow(s, &it, to_service);
		if (to_service)
			return ICMP_DROP;
	}
	s->icmp.reason = RW_REASON_NO_SERVICE;
	if (!to_service)
		return ICMP_PASS;
	if (type == (v6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST))
		return answer_echo(ctx, s, &it);
	s->icmp.reason = RW_REASON_ICMP;
	return ICMP_PASS;
}

/* An ICMP packet to us, whose addresses are in scratch->tuple, and where it lies
 * in scratch->icmp. Returns enum icmp_next. */
__noinline __u32 icmp4_arrived(struct xdp_md *ctx)
{
	return icmp_look(ctx, false);
}

__noinline __u32 icmp6_arrived(struct xdp_md *ctx)
{
	return icmp_look(ctx, true);
}

/* Parses layer 2 and 3 of the packet again, for steps that send it. */
static __always_inline bool icmp_packet_again(struct xdp_md *ctx, __u32 l3_at, struct packet *p,
					      const bool v6)
{
	void *end = (void *)(long)ctx->data_end;

	p->eth = (void *)(long)ctx->data;
	p->l3 = frame_at(ctx, l3_at);
	p->v6 = v6;
	if ((void *)(p->eth + 1) > end ||
	    p->l3 + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) > end)
		return false;
	p->l3_len =
		v6 ? sizeof(struct ipv6hdr) + bpf_ntohs(((struct ipv6hdr *)p->l3)->payload_len) :
		     bpf_ntohs(((struct iphdr *)p->l3)->tot_len);
	return true;
}

/* Under dsr: forwards the error unchanged to the flow's backend. */
static __always_inline int dsr_error(struct xdp_md *ctx, struct packet_context *pctx,
				     struct packet *p, struct rw_service_key *key)
{
	struct rw_service *service = service_of(key);
	struct rw_backend *backend;
	enum rw_reason refused;
	__u32 reference;

	if (!service)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_STATE);
	reference = dsr_owner(ctx, p, service, true, &refused);
	capture_backend(pctx->scratch, reference);
	if (refused)
		return leave(pctx->counters, RW_DROP, refused);
	backend = backend_of(reference);
	if (!reference || !backend)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_BACKEND);
	refused = reachable(p, backend, encap_overhead(service->forward, backend));
	if (refused)
		return leave(pctx->counters, RW_DROP, refused);
	if (service->forward == RW_FORWARD_DSR_L2 && same_mac(p->eth->h_source, backend->dmac))
		return leave(pctx->counters, RW_DROP, RW_REASON_LOOP);
	return dsr_send(ctx, pctx, p, service->forward, backend, reference);
}

static __always_inline int icmp_leave(struct xdp_md *ctx, __u32 next, const bool v6)
{
	struct icmp_room *room = RW_ONLY(icmp_rooms);
	struct packet p = {};
	struct rw_icmp *way;
	struct packet_context pctx;
	__u32 reason;

	if (!room || !open_packet_context(ctx, &pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	way = &pctx.scratch->icmp;
	reason = way->reason;
	p.t = &pctx.scratch->tuple;
	if (reason >= RW_REASON_SPACE || !icmp_packet_again(ctx, way->l3_at, &p, v6))
		return leave(pctx.counters, RW_DROP, RW_REASON_NO_STATE);
	switch (next) {
	case ICMP_BACK:
		copy_mac(p.eth->h_dest, p.eth->h_source);
		copy_mac(p.eth->h_source, pctx.in->mac);
		return send_back(&pctx, reason);
	case ICMP_SEND:
		return send_by(&pctx, &p, way->iface, way->mac, reason);
	case ICMP_BALANCE:
		return dsr_error(ctx, &pctx, &p, &room->key);
	}
	return leave(pctx.counters, RW_DROP, reason);
}

/* Ends a packet that cannot be forwarded. */
static __always_inline int icmp_complain(struct xdp_md *ctx, struct packet_context *pctx)
{
	__u32 reason = pctx->scratch->icmp.v6 ? icmp6_complain(ctx) : icmp4_complain(ctx);

	/* clang knows the function's results and would drop the check below. */
	barrier_var(reason);
	if (reason == RW_REASON_SENT_TOO_BIG || reason == RW_REASON_SENT_TIME_EXCEEDED)
		return send_back(pctx, reason);
	if (reason >= RW_REASON_SPACE)
		reason = RW_REASON_NO_STATE;
	return leave(pctx->counters, RW_DROP, reason);
}

/* Ends a packet as icmp.._arrived said, unless it is to be passed. */
__noinline int icmp4_leave(struct xdp_md *ctx, __u32 next)
{
	return icmp_leave(ctx, next, false);
}

__noinline int icmp6_leave(struct xdp_md *ctx, __u32 next)
{
	return icmp_leave(ctx, next, true);
}

#endif
