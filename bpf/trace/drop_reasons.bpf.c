// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts what happens to packets in one network namespace, from the kernel's own
 * tracepoints (include/trace/events/{skb,net}.h): what each device passes to
 * the stack, what is passed on, and what is freed for a reason.
 * `ringway doctor --path` loads it for some seconds; nothing is pinned.
 *
 * A device's index means nothing outside its namespace, so everything is matched by
 * the namespace first. An skb's `dev` shares its place with other fields once a
 * socket has the packet: it is then an arbitrary number, and the namespace to which
 * it leads is not ours.
 */
#include "common/common.bpf.h"

#include <bpf/bpf_core_read.h>

/* The kernel's own, fitted to the running one by its BTF when loaded. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct net_device {
	int ifindex;
	struct {
		struct net *net;
	} nd_net;
};

struct sock_common {
	struct {
		struct net *net;
	} skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct dst_entry {
	struct net_device *dev;
};

struct skb_shared_info {
	unsigned short gso_segs;
};

struct sk_buff {
	struct net_device *dev;
	int skb_iif;
	__be16 protocol;
	unsigned int end;
	unsigned char *head;
	unsigned long _skb_refdst;
};

/* Since 6.11 the tracepoint tells which socket a packet was for. */
struct trace_event_raw_kfree_skb {
	const void *rx_sk;
};

#pragma clang attribute pop

/* SKB_DST_NOREF and its kin, linux/skbuff.h */
#define DST_FLAGS 3UL

/* Inode of the network namespace to look at. */
const volatile __u32 netns = 0;

RW_MAP(seen, BPF_MAP_TYPE_PERCPU_HASH, RW_MAX_SEEN, struct rw_seen_key, struct rw_seen_count, 0);

/* Counts for which the map had no room. */
RW_MAP(unseen, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, __u64, 0);

static __always_inline bool is_here(const struct net_device *device)
{
	return device && device->nd_net.net && device->nd_net.net->ns.inum == netns;
}

static __always_inline __u64 segments_of(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = (const void *)((unsigned long)skb->head + skb->end);
	unsigned short segments = 0;

	bpf_core_read(&segments, sizeof(segments), &shared->gso_segs);
	return segments ? segments : 1;
}

static __always_inline void count(const struct rw_seen_key *key, const struct sk_buff *skb)
{
	struct rw_seen_count *found = bpf_map_lookup_elem(&seen, key);
	struct rw_seen_count none = {};
	__u64 *missed;

	if (!found) {
		/* Another CPU may have been faster. */
		bpf_map_update_elem(&seen, key, &none, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&seen, key);
	}
	if (found) {
		found->packets++;
		found->segments += segments_of(skb);
		return;
	}
	missed = RW_ONLY(unseen);
	if (missed)
		(*missed)++;
}

static __always_inline void count_at(enum rw_seen what, __u32 ifindex, const struct sk_buff *skb)
{
	struct rw_seen_key key = {
		.ifindex = ifindex,
		.protocol = bpf_ntohs(skb->protocol),
		.seen = what,
	};

	count(&key, skb);
}

/* Whether a packet without a device was for this namespace: by its socket, else by its route. */
static __always_inline bool was_for_here(const struct sk_buff *skb, const struct sock *sk)
{
	const struct dst_entry *route = (const void *)(skb->_skb_refdst & ~DST_FLAGS);
	struct net_device *device = NULL;
	struct net *net = NULL;
	__u32 inode = 0;

	if (sk)
		bpf_core_read(&net, sizeof(net), &sk->__sk_common.skc_net.net);
	else if (route && !bpf_core_read(&device, sizeof(device), &route->dev) && device)
		bpf_core_read(&net, sizeof(net), &device->nd_net.net);
	return net && !bpf_core_read(&inode, sizeof(inode), &net->ns.inum) && inode == netns;
}

/* The arguments are those of the tracepoint, one word each. */

/* (skb) */
SEC("tp_btf/netif_receive_skb")
int ringway_seen_received(__u64 *args)
{
	const struct sk_buff *skb = (const struct sk_buff *)args[0];

	if (is_here(skb->dev))
		count_at(RW_SEEN_RECEIVED, skb->dev->ifindex, skb);
	return 0;
}

/* (skb) */
SEC("tp_btf/net_dev_queue")
int ringway_seen_queued(__u64 *args)
{
	const struct sk_buff *skb = (const struct sk_buff *)args[0];

	if (!is_here(skb->dev))
		return 0;
	count_at(RW_SEEN_QUEUED, skb->dev->ifindex, skb);
	if (skb->skb_iif)
		count_at(RW_SEEN_PASSED_ON, skb->skb_iif, skb);
	return 0;
}

/* (skb, location, reason, socket) */
SEC("tp_btf/kfree_skb")
int ringway_seen_lost(__u64 *args)
{
	const struct sk_buff *skb = (const struct sk_buff *)args[0];
	struct rw_seen_key key = {
		.location = args[1],
		.reason = args[2],
		.protocol = bpf_ntohs(skb->protocol),
	};
	const struct sock *sk = NULL;

	if (bpf_core_field_exists(struct trace_event_raw_kfree_skb, rx_sk))
		sk = (const struct sock *)args[3];
	if (is_here(skb->dev)) {
		key.seen = skb->skb_iif ? RW_SEEN_LOST : RW_SEEN_LOST_NEAR;
		key.ifindex = skb->skb_iif ? skb->skb_iif : skb->dev->ifindex;
	} else if (skb->skb_iif && was_for_here(skb, sk)) {
		key.seen = RW_SEEN_LOST;
		key.ifindex = skb->skb_iif;
	} else {
		return 0;
	}
	count(&key, skb);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
