/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Devices without an Ethernet header: WireGuard, tun, IP tunnels. Their packets
 * get one on arrival, so that no other file has to know, and lose it before they are
 * passed on or sent back by the same device. A redirect leads to an Ethernet device
 * and needs it.
 *
 * The kernel (net/core/dev.c, bpf_prog_run_generic_xdp) compares the first 14
 * bytes before and after, whatever they are. If they differ, as after a rewrite, it
 * reads the 14 bytes before the packet as an Ethernet header: that is our header,
 * still in place, with the right type and the device's own address.
 */
#ifndef RINGWAY_LAYER3_H
#define RINGWAY_LAYER3_H

#include "common/stage.bpf.h"

/* Adds a header. NOT_IP: the packet stays unchanged. */
static __always_inline enum rw_reason layer3_enter(struct xdp_md *ctx, struct rw_scratch *s)
{
	struct rw_iface *in = bpf_map_lookup_elem(&ifaces, &s->device);
	__u8 *version = (void *)(long)ctx->data;
	struct ethhdr *eth;
	__be16 proto;

	if (!in || (void *)(version + 1) > (void *)(long)ctx->data_end)
		return RW_REASON_NOT_IP;
	switch (*version >> 4) {
	case 4:
		proto = bpf_htons(ETH_P_IP);
		break;
	case 6:
		proto = bpf_htons(ETH_P_IPV6);
		break;
	default:
		return RW_REASON_NOT_IP;
	}
	if (bpf_xdp_adjust_head(ctx, -ETH_HLEN))
		return RW_REASON_NO_HEADROOM;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return RW_REASON_NO_HEADROOM;
	copy_mac(eth->h_dest, in->mac);
	__builtin_memset(eth->h_source, 0, sizeof(eth->h_source));
	eth->h_proto = proto;
	s->tags[0] = RW_NO_HEADER;
	return RW_REASON_NONE;
}

/* Removes the header. False: the packet is shorter than a header. */
static __always_inline bool layer3_leave(struct xdp_md *ctx)
{
	return !bpf_xdp_adjust_head(ctx, ETH_HLEN);
}

#endif
