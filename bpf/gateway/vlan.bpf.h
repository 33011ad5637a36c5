/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VLAN tags (IEEE 802.1Q, 802.1ad), up to two. A device with its tags is an
 * interface slot, like the kernel's VLAN devices. Tags are removed on arrival, so no
 * other file has to know them. On departure the frame gets the tags of its slot; a
 * frame that is passed on gets its own back. Tags that belong to none of our slots
 * are left alone.
 */
#ifndef RINGWAY_VLAN_H
#define RINGWAY_VLAN_H

#include "layer3.bpf.h"
#include "maps.bpf.h"

#define VLAN_VID 0xfff

struct vlan_tag {
	__be16 tci;
	__be16 type; /* of what follows */
};

struct macs {
	__u32 words[3];
};

static __always_inline bool is_vlan(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

static __always_inline __u32 tag_of(__be16 type, __be16 tci)
{
	return (__u32)bpf_ntohs(type) << 16 | bpf_ntohs(tci);
}

/* Adds a tag to the key. A tag without a VID has only a priority. */
static __always_inline void add_tag(struct rw_vlan_key *key, __u32 tag)
{
	if (!(tag & VLAN_VID))
		return;
	tag &= 0xffff0000 | VLAN_VID;
	if (key->tags[0])
		key->tags[1] = tag;
	else
		key->tags[0] = tag;
}

/* Finds the slot of the frame and notes its tags in scratch. False: none has it. */
static __always_inline bool vlan_find(struct xdp_md *ctx, struct rw_scratch *s, __u32 *slot)
{
	struct rw_vlan_key key = { .device = s->device };
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	__u32 *found;

	if ((void *)(tag + 1) > (void *)(long)ctx->data_end || !is_vlan(eth->h_proto))
		return false;
	s->tags[0] = tag_of(eth->h_proto, tag->tci);
	s->tags[1] = 0;
	add_tag(&key, s->tags[0]);
	if (is_vlan(tag->type)) {
		if ((void *)(tag + 2) > (void *)(long)ctx->data_end || is_vlan(tag[1].type))
			return false;
		s->tags[1] = tag_of(tag->type, tag[1].tci);
		add_tag(&key, s->tags[1]);
	}
	*slot = s->device;
	if (!key.tags[0])
		return true;
	found = bpf_map_lookup_elem(&vlans, &key);
	if (found)
		*slot = *found;
	return found;
}

/* Removes the tags of our frame. 0: it has none, or has lost them before. */
__noinline __u32 vlan_enter(struct xdp_md *ctx)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	struct macs *from, *to, macs;
	__u32 slot = 0, len;

	if (!s || s->tags[0])
		return 0;
	if (!vlan_find(ctx, s, &slot)) {
		s->tags[0] = 0;
		return 0;
	}
	from = (void *)(long)ctx->data;
	if ((void *)(from + 1) > (void *)(long)ctx->data_end)
		return 0;
	macs = *from;
	len = s->tags[1] ? 8 : 4;
	if (bpf_xdp_adjust_head(ctx, (int)len)) {
		s->tags[0] = 0;
		return 0;
	}
	to = (void *)(long)ctx->data;
	if ((void *)(to + 1) > (void *)(long)ctx->data_end)
		return 0;
	*to = macs;
	s->iface = slot;
	return 1;
}

/* Puts tags on a frame, outer first. 0: there is no room. */
__noinline __u32 vlan_push(struct xdp_md *ctx, __u32 outer, __u32 inner)
{
	struct macs *from = (void *)(long)ctx->data, *to, macs;
	struct vlan_tag *tag;
	__be16 *type;

	if ((void *)(from + 1) > (void *)(long)ctx->data_end)
		return 0;
	macs = *from;
	if (bpf_xdp_adjust_head(ctx, inner ? -8 : -4))
		return 0;
	to = (void *)(long)ctx->data;
	type = (void *)(to + 1);
	tag = (void *)(type + 1);
	/* Behind the tags is what was behind the addresses: the frame's own type. */
	if ((void *)(tag + 2) > (void *)(long)ctx->data_end)
		return 0;
	*to = macs;
	*type = bpf_htons(outer >> 16);
	tag[0].tci = bpf_htons((__u16)outer);
	if (inner) {
		tag[0].type = bpf_htons(inner >> 16);
		tag[1].tci = bpf_htons((__u16)inner);
	}
	return 1;
}

/* Restores what was removed, and removes what was added. 0: there is no room. */
__noinline __u32 frame_restore(struct xdp_md *ctx)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	__u32 outer;

	if (!s)
		return 0;
	outer = s->tags[0];
	s->tags[0] = 0;
	return outer == RW_NO_HEADER ? layer3_leave(ctx) : vlan_push(ctx, outer, s->tags[1]);
}

/* Restores the frame before it is passed on. */
static __always_inline bool vlan_restore(struct xdp_md *ctx, const struct rw_scratch *s)
{
	return !s->tags[0] || frame_restore(ctx);
}

#endif
