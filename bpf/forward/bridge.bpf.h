/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Beside a Linux bridge: forwards a frame if the bridge would send it, unchanged, by one port, and
 * would learn nothing from it. The daemon mirrors what the bridge has learnt in `stations`.
 */
#ifndef RINGWAY_BRIDGE_H
#define RINGWAY_BRIDGE_H

#include "maps.bpf.h"

static __always_inline __u64 station_key(const __u8 *mac, __u32 vlan)
{
	const __u16 *words = (const __u16 *)mac;

	return words[0] | (__u64)words[1] << 16 | (__u64)words[2] << 32 | (__u64)vlan << 48;
}

/* The place of a key in a bucket, or NULL. */
static __always_inline struct rw_station *station_in(__u32 bucket, __u64 key)
{
	struct rw_station_bucket *found;

	bucket &= RW_STATION_BUCKETS - 1;
	found = bpf_map_lookup_elem(&stations, &bucket);
	if (!found)
		return NULL;
#pragma clang loop unroll(full)
	for (int i = 0; i < RW_BUCKET_STATIONS; i++) {
		if (READ_ONCE(found->stations[i].key) == key)
			return &found->stations[i];
	}
	return NULL;
}

/* The station with this key, and its port. NULL: it is not known. */
static __always_inline struct rw_station *station_of(struct rw_scratch *s, __u64 key, __u32 *port)
{
	__u64 hash = (key ^ forwarder.keys[0]) * forwarder.keys[1];
	struct rw_station *found;

	hash = (hash ^ hash >> 29) * forwarder.keys[1];
	found = station_in(hash >> 40, key) ?: station_in(hash >> 16, key);
	if (!found)
		return NULL;
	read_fence(&s->opening.key);
	*port = READ_ONCE(found->port);
	read_fence(&s->opening.key);
	return READ_ONCE(found->key) == key ? found : NULL;
}

/* The VLAN that the bridge takes a frame to be in, and whether it has its tag. False: the port does
 * not accept it. */
static __always_inline bool vlan_of(struct xdp_md *ctx, const struct packet_context *pctx,
				    const struct rw_port *port, __u32 *vlan, bool *tagged)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	struct rw_port_vlans *vlans;

	*tagged = false;
	*vlan = port->pvid;
	if ((void *)tag > (void *)(long)ctx->data_end)
		return false;
	if (eth->h_proto == port->vlan_proto_be) {
		if ((void *)(tag + 1) > (void *)(long)ctx->data_end)
			return false;
		*vlan = bpf_ntohs(tag->tci) & VLAN_VID;
		*tagged = true;
		if (!*vlan)
			return false; /* a priority: the bridge takes the tag off */
	}
	vlans = bpf_map_lookup_elem(&port_vlans, &pctx->slot);
	return vlans && *vlan && (vlans->flags[*vlan & VLAN_VID] & RW_VLAN_MEMBER);
}

/* Whether it leaves by this port as it came. */
static __always_inline bool leaves_unchanged(__u32 slot, __u32 vlan, bool tagged)
{
	struct rw_port_vlans *vlans = bpf_map_lookup_elem(&port_vlans, &slot);
	__u32 flags = vlans ? vlans->flags[vlan & VLAN_VID] : 0;

	return (flags & RW_VLAN_MEMBER) && !(flags & RW_VLAN_UNTAGGED) == tagged;
}

/* NONE: the frame leaves by transit's `out`. */
static __always_inline enum rw_reason bridge(struct packet_context *pctx, struct transit *transit)
{
	struct xdp_md *ctx = pctx->ctx;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct rw_port *port = transit->port, *to;
	struct rw_station *source;
	bool tagged = false;
	__u32 vlan = 0, at = 0;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end || (eth->h_dest[0] & 1))
		return RW_REASON_BRIDGE_GROUP;
	if ((port->flags & RW_PORT_FILTERS) && !vlan_of(ctx, pctx, port, &vlan, &tagged))
		return RW_REASON_BRIDGE_VLAN;
	source = station_of(pctx->scratch, station_key(eth->h_source, vlan), &at);
	if (!source || at != pctx->slot)
		return RW_REASON_BRIDGE_SOURCE;
	if (!station_of(pctx->scratch, station_key(eth->h_dest, vlan), &transit->out))
		return RW_REASON_BRIDGE_DESTINATION;
	to = bpf_map_lookup_elem(&ports, &transit->out);
	if (!to || transit->out == pctx->slot || !(to->flags & RW_PORT_FORWARDS) ||
	    (port->flags & to->flags & RW_PORT_ISOLATED))
		return RW_REASON_FORWARD_PORT;
	if ((port->flags & RW_PORT_FILTERS) && !leaves_unchanged(transit->out, vlan, tagged))
		return RW_REASON_BRIDGE_VLAN;
	if (!forwarder.dry && READ_ONCE(source->seen) != transit->now)
		WRITE_ONCE(source->seen, transit->now);
	return RW_REASON_NONE;
}

#endif
