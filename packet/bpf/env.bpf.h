/* SPDX-License-Identifier: GPL-2.0-only */
/* What a stage needs for every packet, looked up once at its entry. */
#ifndef RINGWAY_ENV_H
#define RINGWAY_ENV_H

#include "maps.bpf.h"
#include "stage.bpf.h"

struct env {
	struct rw_ledger *books;
	struct rw_settings *set;
	struct rw_scratch *scratch;
	struct rw_iface *in; /* the interface the packet came in by */
	__u32 slot;	     /* its slot */
	__u32 now;	     /* seconds */
};

/* False only where a map is missing, which the loader rules out. */
static __always_inline bool env_open(struct env *env)
{
	struct rw_scratch *scratched = RW_ONLY(scratch);

	if (!scratched)
		return false;
	env->scratch = scratched;
	env->slot = scratched->iface;
	env->books = bpf_map_lookup_elem(&ledger, &env->slot);
	env->set = RW_ONLY(settings);
	env->in = bpf_map_lookup_elem(&ifaces, &env->slot);
	env->now = now_seconds();
	return env->books && env->set && env->in;
}

static __always_inline bool frame_is_ours(const struct env *env, const struct ethhdr *eth)
{
	return same_mac(eth->h_dest, env->in->mac) || same_mac(eth->h_dest, env->in->alt_mac);
}

/* For us, or for everyone (broadcast, multicast). */
static __always_inline bool frame_reaches_us(const struct env *env, const struct ethhdr *eth)
{
	return (eth->h_dest[0] & 1) || frame_is_ours(env, eth);
}

/* Out by another device, or by the same one as if it were another. */
static __always_inline int send_across(struct env *env, __u32 slot, enum rw_reason reason)
{
	if (bpf_redirect_map(&devices, slot, XDP_DROP) != XDP_REDIRECT)
		return leave(env->books, RW_DROP, RW_REASON_NO_DEVICE);
	return leave(env->books, RW_REDIRECT, reason);
}

/* Out by the device it came in by. */
static __always_inline int send_back(struct env *env, enum rw_reason reason)
{
	if (env->in->flags & RW_IFACE_REDIRECT)
		return send_across(env, env->slot, reason);
	return leave(env->books, RW_TX, reason);
}

#endif
