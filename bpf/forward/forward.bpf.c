// SPDX-License-Identifier: GPL-2.0-only
/*
 * Forwards between the interfaces of the node what no stage before has taken: beside a Linux bridge
 * or beside the kernel's routes. It takes the frames for which that is easy; whatever is unusual is
 * the kernel's, which has the last word about every table.
 */
#include "bridge.bpf.h"
#include "route.bpf.h"
#include "unfinished.bpf.h"

static __always_inline int to_kernel(struct packet_context *pctx, enum rw_reason reason)
{
	if (!vlan_restore(pctx->ctx, pctx->scratch))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return next_stage(pctx->ctx, pctx->counters, pctx->set->stages, RW_SLOT_FORWARD, reason);
}

/* Bytes of the whole frame. */
static __always_inline __u32 frame_length(struct xdp_md *ctx)
{
	__u32 first = ctx->data_end - ctx->data;

	return first < LINEAR ? first : (__u32)bpf_xdp_get_buff_len(ctx);
}

/* NONE: the way out takes it. */
static __always_inline enum rw_reason way_out_takes(struct packet_context *pctx,
						    const struct rw_iface *out)
{
	if (!out->ifindex || (out->flags & RW_IFACE_LAYER3) ||
	    ((out->flags & RW_IFACE_GENERIC) && !(pctx->in->flags & RW_IFACE_GENERIC)))
		return RW_REASON_FORWARD_PORT;
	if (frame_length(pctx->ctx) > out->mtu + sizeof(struct ethhdr) + sizeof(struct vlan_tag))
		return RW_REASON_FORWARD_TOO_LONG;
	return is_unfinished(pctx, out) ? RW_REASON_FORWARD_UNFINISHED : RW_REASON_NONE;
}

static __always_inline int send(struct packet_context *pctx, const struct rw_iface *out, __u32 slot,
				enum rw_reason reason)
{
	if (out->tags[0] && !vlan_push(pctx->ctx, out->tags[0], out->tags[1]))
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_HEADROOM);
	if (bpf_redirect_map(&devices, out->device, XDP_DROP) != XDP_REDIRECT)
		return leave(pctx->counters, RW_DROP, RW_REASON_NO_DEVICE);
	return capture_way_out(leave_beyond(pctx->counters, RW_REDIRECT, reason), slot);
}

static __always_inline int forward(struct packet_context *pctx, struct transit *transit)
{
	bool routes = forwarder.mode == RW_FORWARDING_ROUTE;
	struct rw_iface *out;
	enum rw_reason why;

	why = routes ? route(pctx, transit) : bridge(pctx, transit);
	if (why)
		return to_kernel(pctx, why);
	out = bpf_map_lookup_elem(&ifaces, &transit->out);
	if (!out)
		return to_kernel(pctx, RW_REASON_FORWARD_PORT);
	why = way_out_takes(pctx, out);
	if (why)
		return to_kernel(pctx, why);
	if (routes && !rewrite_hop(pctx, transit, out))
		return to_kernel(pctx, RW_REASON_ROUTE_UNCOMMON);
	return send(pctx, out, transit->out, routes ? RW_REASON_ROUTED : RW_REASON_BRIDGED);
}

GATEWAY_PROGRAM(ringway_forward)
{
	struct packet_context pctx;
	struct transit transit = {};

	if (!open_packet_context(ctx, &pctx))
		return XDP_PASS; /* array elements exist: for the verifier */
	/* Stages before this one have put tags back, and a bridge takes them as they are. */
	pctx.slot = pctx.scratch->device;
	if (forwarder.mode == RW_FORWARDING_ROUTE && vlan_enter(ctx))
		pctx.slot = pctx.scratch->iface;
	pctx.in = bpf_map_lookup_elem(&ifaces, &pctx.slot);
	transit.port = bpf_map_lookup_elem(&ports, &pctx.slot);
	transit.state = RW_ONLY(forwarding);
	if (!pctx.in || !transit.port || !transit.state)
		return to_kernel(&pctx, RW_REASON_FORWARD_PORT);
	transit.now = now_seconds();
	if ((__s32)(transit.state->until - transit.now) < 0)
		return to_kernel(&pctx, RW_REASON_FORWARD_STALE);
	if (!(transit.port->flags & RW_PORT_FORWARDS))
		return to_kernel(&pctx, RW_REASON_FORWARD_PORT);
	return forward(&pctx, &transit);
}

char LICENSE[] SEC("license") = "GPL";
