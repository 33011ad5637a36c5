// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sends frames from within the kernel: run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES,
 * where what is redirected leaves by an interface. A frame comes as whoever had it before has left
 * it, so its headers are written anew each time.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Ethernet, a tag, IPv6, TCP and the stamp are 96 at most. */
#define HEAD 96
/* What a paced sender catches up with; what it missed before that is not sent. */
#define CATCH_UP_NS 10000000ULL

struct head {
	__u8 bytes[HEAD];
	__u16 len; /* of its frame */
};

/* Written by user space beforehand: flows that take turns, with a stamp whose sequence
 * number and time are 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct head);
} heads SEC(".maps");

/* Written by user space before. */
__u32 flows;	 /* heads there are */
__u32 head_len;	 /* bytes of a head, at least 1 */
__u32 frame_len; /* of the longest frame, which is what is run */
__u32 numbers_at; /* where sequence number and time are, of 6 bytes each (engine/engine/src/stamp/mod.rs) */
__u32 checksum_at; /* where the checksum over them is */
__u32 no_zero;	   /* whether it is UDP's, which is not sent as zero */
__u32 ways = 1;	   /* 1, or 2: frames leave by the one and the other in turn */
__u32 ifindex[2];  /* to leave by; heads of two ways are in turn, too */
__s64 since_1970;  /* nanoseconds from 1970 until the clock's beginning */

/* A paced sender keeps its rate by itself: frames before their time are dropped. */
__u64 interval;	 /* from frame to frame, 1024ths of a nanosecond; 0: as fast as it is called */
__u64 first;	 /* the number of its first frame */
__u64 count;	 /* frames from then on */
__u64 most_ns;	 /* how long it sends at most */
__u64 missed_ns; /* what it did not catch up with */

/* Read by user space. */
__u64 sequence; /* the next one's number, of both ways together */
__u64 begin_ns; /* of a paced sender */
__u64 end_ns;
__u32 over; /* it sends no more */

/* Written here alone. */
__u32 flow; /* the next one's */

static __always_inline void halves(__be16 *to, __u64 number)
{
	to[0] = bpf_htons(number >> 32);
	to[1] = bpf_htons(number >> 16);
	to[2] = bpf_htons(number);
}

/* RFC 1624; the numbers were 0. */
static __always_inline __u16 mended(__u16 checksum, const __be16 *numbers)
{
	__u32 sum = (__u16)~checksum;

#pragma unroll
	for (int i = 0; i < 6; i++)
		sum += numbers[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	checksum = ~sum;
	return no_zero && !checksum ? 0xffff : checksum;
}

/* When this frame was to be sent; 0: not yet, or not any more. */
static __always_inline __u64 due(__u64 now)
{
	__u64 at;

	if (!interval)
		return now;
	if (!begin_ns)
		begin_ns = now;
	at = begin_ns + missed_ns + ((sequence - first) * interval >> 10);
	if (sequence - first >= count || now - begin_ns > most_ns)
		over = 1;
	if (over || now < at)
		return 0;
	if (now - at > CATCH_UP_NS) {
		missed_ns += now - at - CATCH_UP_NS;
		at = now - CATCH_UP_NS;
	}
	end_ns = now;
	return at;
}

SEC("xdp")
int live(struct xdp_md *ctx)
{
	__u32 number = flow, rest = head_len - 1, way = ways > 1 ? sequence & 1 : 0;
	__u64 at = due(bpf_ktime_get_ns());
	__u16 checksum;
	__be16 numbers[6];
	struct head *head = bpf_map_lookup_elem(&heads, &number);

	if (!at)
		return XDP_DROP;
	/* In this form the verifier of 6.1 sees that the length below is not 0. */
	barrier_var(rest);
	if (!head || rest >= HEAD)
		return XDP_ABORTED;
	flow = number + 1 < flows ? number + 1 : 0;
	halves(numbers, ways > 1 ? sequence >> 1 : sequence);
	halves(numbers + 3, at + since_1970);
	if (bpf_xdp_store_bytes(ctx, 0, head->bytes, rest + 1) ||
	    bpf_xdp_load_bytes(ctx, checksum_at, &checksum, sizeof(checksum)))
		return XDP_ABORTED;
	checksum = mended(checksum, numbers);
	if (bpf_xdp_store_bytes(ctx, checksum_at, &checksum, sizeof(checksum)) ||
	    bpf_xdp_store_bytes(ctx, numbers_at, numbers, sizeof(numbers)))
		return XDP_ABORTED;
	/* At the end, for the verifier: it forgets bounds over a call. */
	if (head->len < frame_len && bpf_xdp_adjust_tail(ctx, head->len - (int)frame_len))
		return XDP_ABORTED;
	sequence++;
	return bpf_redirect(ifindex[way], 0);
}

char LICENSE[] SEC("license") = "GPL";
