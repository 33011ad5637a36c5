/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sources that an interface accepts. XDP comes before the kernel's reverse path filter, so a
 * source address proves nothing: a host on one link must not speak for hosts on another.
 *
 * - A backend's packets are accepted on the interface that leads to it, and on any that faces
 *   only backends. The end of a connection is believed only on the latter, or from the MAC address
 *   that leads to the backend: clients may use the same interface.
 * - Clients' packets are accepted on any other interface.
 * - Replies leave by the interface of the requests. They move to another one only if no backend is
 *   reached by it, or if it faces only clients. On one interface the MAC address follows the
 *   requests: clients' routers change. Neither moves after one packet. A host on the clients' own
 *   link can still lie about that, as with ARP.
 */
#ifndef RINGWAY_FACES_H
#define RINGWAY_FACES_H

#include "dry.bpf.h"
#include "packet_context.bpf.h"
#include "parse.bpf.h"

/* Replies that another gateway sends through its tunnel would have to be accepted here, by the
 * tunnel's outer source. */
static __always_inline bool takes_replies(const struct rw_iface *in, __u32 slot,
					  const struct rw_backend *backend)
{
	return backend && ((in->flags & RW_IFACE_BACKENDS) ||
			   ((backend->flags & RW_BACKEND_RESOLVED) && backend->iface == slot));
}

/* Whether only the backend, or its router, can have sent this. */
static __always_inline bool is_its_own(const struct rw_iface *in, const struct ethhdr *eth,
				       const struct rw_backend *backend)
{
	return (in->flags & (RW_IFACE_BACKENDS | RW_IFACE_LAYER3)) ||
	       (backend && same_mac(eth->h_source, backend->dmac));
}

/*
 * Other senders of flows' requests, seen once: the same one in a later second is believed. A single
 * packet thus moves no flow, and routers that take turns dirty its record once a second. Private to
 * the program. Of two flows in one place the later one counts.
 */
struct other_sender {
	__u32 place; /* of the flow */
	__u32 second;
	__u64 way; /* union way_back, without `confirmed` */
};
#define OTHER_SENDERS 1024 /* a power of two */
RW_MAP(other_senders, BPF_MAP_TYPE_PERCPU_ARRAY, OTHER_SENDERS, __u32, struct other_sender, 0);

static __always_inline bool seen_before(__u32 place, __u64 way, __u32 now)
{
	__u32 at = (place * 0x9e3779b1u) % OTHER_SENDERS;
	struct other_sender *other = bpf_map_lookup_elem(&other_senders, &at);

	if (!other)
		return false;
	if (other->place != place || other->way != way) {
		other->place = place;
		other->way = way;
		other->second = now;
		return false;
	}
	return other->second != now;
}

/* Sends the flow's replies to another sender from now on, interface and MAC address at once, if
 * that is allowed. `faces`: enum rw_iface_flags of the interface. */
__noinline __u32 client_moves(__u32 place, __u64 to, __u32 faces, __u32 now)
{
	struct rw_flow *flow = flow_at(place);
	union way_back old, way = { .word = to };

	if (!flow)
		return 0;
	old.word = READ_ONCE(*(__u64 *)flow->client_mac);
	if ((old.iface ^ way.iface) & ~RW_FLOW_SHIFTED &&
	    (faces & (RW_IFACE_CLIENTS | RW_IFACE_WAY_OUT)) == RW_IFACE_WAY_OUT)
		return 0;
	if (!seen_before(place, to, now))
		return 0;
	way.confirmed = old.confirmed;
	way.iface = (way.iface & ~RW_FLOW_SHIFTED) | (old.iface & RW_FLOW_SHIFTED);
	__sync_val_compare_and_swap((__u64 *)flow->client_mac, old.word, way.word);
	return 1;
}

static __always_inline void client_follow(const struct packet_context *pctx, const struct packet *p,
					  struct rw_flow *flow, __u32 place, __u32 now)
{
	__u8 iface = READ_ONCE(flow->iface);
	union way_back way = { .iface = (iface & RW_FLOW_SHIFTED) | (__u8)pctx->slot };

	if (dry || (same_mac(flow->client_mac, p->eth->h_source) && iface == way.iface))
		return;
	copy_mac(way.mac, p->eth->h_source);
	client_moves(place, way.word, pctx->in->flags, now);
}

#endif
