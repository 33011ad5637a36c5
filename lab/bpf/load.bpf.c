// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load, and what becomes of it, in the kernel. `load` runs under BPF_PROG_TEST_RUN with live frames
 * and sends each by an interface when its time has come; those that come before their time are not
 * sent. `arrived` is where packets end: it counts them, and how long each was on its way.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Of a packet that is behind, by so much, nobody waits any more. */
#define LATE_NS 1000000ULL
/* Microseconds that are told apart; the last stands for all that is longer. */
#define TIMES 10001
/* Of the first client. */
#define FIRST_PORT 10000

/* `load` counts in the first, `arrived` in the second. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

/* Packets by the microseconds that they took. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TIMES);
	__type(key, __u32);
	__type(value, __u64);
} times SEC(".maps");

/* Written by user space before they are loaded. */
const volatile __u32 towards;	  /* index of an interface */
const volatile __u64 interval_ns; /* from packet to packet; 0: as fast as it goes */
const volatile __u32 base_sum;	  /* UDP checksum's sum of all but the time and the source port */
const volatile __u32 clients = 1; /* source ports, which take turns */
const volatile __u32 timed;	  /* whether `arrived` looks at the time in a packet */

__u64 next_ns;
__u32 client;

/* The form of all packets; `bid` asks and answers with its number at this place. */
struct packet {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	__u8 before[8];
	__u64 sent_ns;
} __attribute__((packed));

/* One writer at a time: a run, or a queue's NAPI. */
static __always_inline void count(void *map, __u32 index)
{
	__u64 *counter = bpf_map_lookup_elem(map, &index);

	if (counter)
		*counter += 1;
}

/* RFC 768: 0 says that there is none. */
static __always_inline __u16 checksum(__u64 added, __u16 source)
{
	__u32 sum = base_sum + source + (__u16)added + (__u16)(added >> 16) + (__u16)(added >> 32) +
		    (__u16)(added >> 48);

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff ? sum : ~sum;
}

SEC("xdp")
int load(struct xdp_md *ctx)
{
	struct packet *packet = (void *)(long)ctx->data;
	__u64 now = bpf_ktime_get_ns();

	if ((void *)(packet + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	if (interval_ns) {
		if (now < next_ns)
			return XDP_DROP;
		next_ns = (now - next_ns > LATE_NS ? now : next_ns) + interval_ns;
	}
	packet->sent_ns = now;
	client = client + 1 < clients ? client + 1 : 0;
	packet->udp.source = bpf_htons(FIRST_PORT + client);
	packet->udp.check = checksum(now, packet->udp.source);
	count(&packets, 0);
	return bpf_redirect(towards, 0);
}

SEC("xdp")
int arrived(struct xdp_md *ctx)
{
	struct packet *packet = (void *)(long)ctx->data;
	__u64 us;

	if ((void *)(packet + 1) > (void *)(long)ctx->data_end ||
	    packet->eth.h_proto != bpf_htons(ETH_P_IP) || packet->ip.protocol != IPPROTO_UDP)
		return XDP_DROP;
	count(&packets, 1);
	if (timed) {
		us = (bpf_ktime_get_ns() - packet->sent_ns) / 1000;
		count(&times, us < TIMES ? us : TIMES - 1);
	}
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
