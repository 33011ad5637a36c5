// SPDX-License-Identifier: GPL-2.0-only
/*
 * The two ends of an I/O path for `ringway-lab size --calibrate`: run on frames that the kernel
 * itself makes (BPF_F_TEST_XDP_LIVE_FRAMES), `guard` drops them as one would that guards a host,
 * `pass` gives them to the kernel's stack.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Sources that are let in: nobody. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __be32);
	__type(value, __u64);
} friends SEC(".maps");

SEC("xdp")
int guard(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);

	if ((void *)(udp + 1) > end)
		return XDP_ABORTED;
	if (ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	return bpf_map_lookup_elem(&friends, &ip->saddr) ? XDP_PASS : XDP_DROP;
}

/* Ethernet, IPv4 and UDP. */
#define HEAD 42

struct frame {
	__u8 head[HEAD];
	__u8 copy[HEAD]; /* in the payload, which nobody on the way changes */
};

/* A frame is as its last user left it: a forwarded one has other addresses and a
 * smaller TTL. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct frame *frame = (void *)(long)ctx->data;

	if ((void *)(frame + 1) > end)
		return XDP_ABORTED;
	__builtin_memcpy(frame->head, frame->copy, HEAD);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
