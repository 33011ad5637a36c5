// SPDX-License-Identifier: GPL-2.0-only
/*
 * Feeds a program under BPF_PROG_TEST_RUN with stored frames of any kind in turn. From cycle to
 * cycle their source ports grow, so that each packet is of another flow.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define LEAST 14 /* bytes of a frame that the kernel takes */
#define HEAD 184 /* bytes that are stored; those behind them are 0 in all frames */

struct stored {
	__u16 len;	/* of the frame */
	__u16 port_at;	/* where its source port is; 0: it has none */
	__u16 check_at; /* the checksum over it */
	__u16 program;	/* place of the one that it is fed to */
	__u8 head[HEAD];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set before load */
	__type(key, __u32);
	__type(value, struct stored);
} frames SEC(".maps");

/* The programs that are measured, and the one beside them. */
#define MEASURED 3
#define BESIDE MEASURED
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MEASURED + 1);
	__type(key, __u32);
	__type(value, __u32);
} fed SEC(".maps");

__u32 next;  /* number of the next frame */
__u32 cycle; /* how often all have been sent */
__u64 begin; /* where the frames of this call begin; 0, by user space: it has sent none */

/* Volatile: what is read back is a number for the verifier, and no pointer. */
volatile __u64 data;

/* Takes back what the program has put in front of the last frame, or has cut off. */
static __always_inline bool take_back(struct xdp_md *ctx)
{
	data = (__u64)(void *)(long)ctx->data;
	if (!begin)
		begin = data;
	return !bpf_xdp_adjust_head(ctx, (int)(begin - data));
}

/* A word at an even place of a frame. */
static __always_inline __u16 *word_at(struct stored *stored, __u32 at)
{
	return (__u16 *)&stored->head[at < HEAD - 1 ? at : 0];
}

static __always_inline bool change_port(struct xdp_md *ctx, struct stored *stored)
{
	__be16 before = *word_at(stored, stored->port_at), port;
	__u32 sum = (__u16) ~*word_at(stored, stored->check_at);
	__u16 check;

	port = bpf_htons(bpf_ntohs(before) + cycle);
	sum += (__u16)~before + port;
	sum = (sum & 0xffff) + (sum >> 16);
	check = ~((sum & 0xffff) + (sum >> 16));
	return !bpf_xdp_store_bytes(ctx, stored->port_at, &port, sizeof(port)) &&
	       !bpf_xdp_store_bytes(ctx, stored->check_at, &check, sizeof(check));
}

/* NULL: impossible, for the verifier. */
static __always_inline struct stored *next_frame(struct xdp_md *ctx)
{
	__u32 number = next, len;
	struct stored *stored = bpf_map_lookup_elem(&frames, &number);

	if (!stored) {
		number = 0;
		cycle++;
		stored = bpf_map_lookup_elem(&frames, &number);
		if (!stored)
			return NULL;
	}
	next = number + 1;
	len = stored->len;
	if (!take_back(ctx) || bpf_xdp_adjust_tail(ctx, (int)len - (int)bpf_xdp_get_buff_len(ctx)))
		return NULL;
	if (len > HEAD)
		len = HEAD;
	if (len < LEAST || bpf_xdp_store_bytes(ctx, 0, stored->head, len) ||
	    (stored->port_at && !change_port(ctx, stored)))
		return NULL;
	return stored;
}

SEC("xdp.frags")
int measured(struct xdp_md *ctx)
{
	struct stored *stored = next_frame(ctx);

	if (!stored)
		return XDP_ABORTED;
	switch (stored->program) {
	case 0:
		bpf_tail_call(ctx, &fed, 0);
		break;
	case 1:
		bpf_tail_call(ctx, &fed, 1);
		break;
	case 2:
		bpf_tail_call(ctx, &fed, 2);
	}
	return XDP_ABORTED;
}

SEC("xdp.frags")
int beside(struct xdp_md *ctx)
{
	if (next_frame(ctx))
		bpf_tail_call(ctx, &fed, BESIDE);
	return XDP_ABORTED;
}

char LICENSE[] SEC("license") = "GPL";
