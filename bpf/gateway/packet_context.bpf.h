/* SPDX-License-Identifier: GPL-2.0-only */
/* Map entries that a stage needs for every packet, looked up once at its entry. */
#ifndef RINGWAY_PACKET_CONTEXT_H
#define RINGWAY_PACKET_CONTEXT_H

#include "capture/capture.bpf.h"
#include "maps.bpf.h"
#include "common/stage.bpf.h"
#include "vlan.bpf.h"

#define MIN_FRAME 60 /* Ethernet's minimum, without FCS */

struct packet_context {
	struct xdp_md *ctx;
	struct rw_ledger *counters;
	struct rw_settings *set;
	struct rw_scratch *scratch;
	struct rw_iface *in; /* the interface the packet came in by */
	__u32 slot;	     /* its slot */
};

/* False only where a map is missing, which the loader rules out. */
static __always_inline bool open_packet_context(struct xdp_md *ctx, struct packet_context *pctx)
{
	struct rw_scratch *scratched = RW_ONLY(scratch);

	if (!scratched)
		return false;
	pctx->ctx = ctx;
	pctx->scratch = scratched;
	pctx->slot = scratched->iface;
	pctx->counters = bpf_map_lookup_elem(&ledger, &scratched->device);
	pctx->set = RW_ONLY(settings);
	pctx->in = bpf_map_lookup_elem(&ifaces, &pctx->slot);
	return pctx->counters && pctx->set && pctx->in;
}

static __always_inline bool frame_is_ours(const struct packet_context *pctx,
					  const struct ethhdr *eth)
{
	return same_mac(eth->h_dest, pctx->in->mac) || same_mac(eth->h_dest, pctx->in->alt_mac);
}

/* Clients are accepted there (faces.bpf.h). */
static __always_inline bool takes_requests(const struct rw_iface *in)
{
	return !(in->flags & RW_IFACE_BACKENDS);
}

/*
 * Whether the frame may be cut. Generic XDP of newer kernels keeps a long packet's
 * bytes beyond its first page in pages that it frees wrongly after a cut (seen on
 * 6.12 and 7.3: "BUG: Bad page state").
 */
static __always_inline bool may_cut(struct xdp_md *ctx, __u32 iface)
{
	return !(iface & RW_IFACE_GENERIC) ||
	       (__s64)bpf_xdp_get_buff_len(ctx) ==
		       (void *)(long)ctx->data_end - (void *)(long)ctx->data;
}

/* For us, or for everyone (broadcast, multicast). */
static __always_inline bool frame_reaches_us(const struct packet_context *pctx,
					     const struct ethhdr *eth)
{
	return (eth->h_dest[0] & 1) || frame_is_ours(pctx, eth);
}

/*
 * Sends by an interface: back by the device on which the packet came, or by another.
 * The frame is complete except for tags, and is not read afterwards.
 */
static __always_inline int send_out(struct packet_context *pctx, const struct rw_iface *out,
				    enum rw_reason reason)
{
	if (!out->ifindex)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_DEVICE);
	if (out->flags & RW_IFACE_LAYER3) /* the one it came in by, see must_pass() */
		return vlan_restore(pctx->ctx, pctx->scratch) ?
			       leave(pctx->counters, RW_TX, reason) :
			       leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	if (out->tags[0] && !vlan_push(pctx->ctx, out->tags[0], out->tags[1]))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	if (out->device == pctx->in->device && !(out->flags & RW_IFACE_REDIRECT))
		return leave(pctx->counters, RW_TX, reason);
	if (bpf_redirect_map(&devices, out->device, XDP_DROP) != XDP_REDIRECT)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_DEVICE);
	return leave(pctx->counters, RW_REDIRECT, reason);
}

/* Out by the interface it came in by. */
static __always_inline int send_back(struct packet_context *pctx, enum rw_reason reason)
{
	return send_out(pctx, pctx->in, reason);
}

#endif
