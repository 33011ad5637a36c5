// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the frames of a trial end (live.bpf.c sends them): counted by their sequence numbers, and how
 * long each was on its way. What is not of a trial goes on to the kernel.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Of a way, how far back a frame is known to have come already. */
#define WINDOW (1 << 16)
/* Nanoseconds by their highest bit and the five below it. */
#define BUCKETS (48 << 5)
#define MASK ((1ULL << 48) - 1)
/* Milliseconds in which losses are told apart: those of the phase after an overload. */
#define LOSSES (1 << 13)

/* engine/engine/src/stamp/mod.rs */
struct stamp {
	__u8 magic[4];
	__be16 stream;
	__be16 sequence[3];
	__be16 time[3];
} __attribute__((packed));

/* Two ways, the stream's lowest bit. One writer each: the queue's NAPI. */
struct way {
	__u64 unique;
	__u64 duplicate;
	__u64 reordered; /* after a frame with a higher number (RFC 4737) */
	__u64 too_late;	 /* by so much that it may be a duplicate */
	__u64 next;	 /* above the highest number so far */
	__u64 last_ns;	 /* when the last one came */
	__u64 gap_ns;	 /* the longest time between two */
	__u64 hole;	 /* where the last numbers that were missing begin */
	__u64 missing;	 /* of them, those that have not come since */
	__u64 hole_ns;	 /* when they were seen to be missing */
};

/* Written by user space. */
__u32 trial;	/* the streams of both ways but for the lowest bit; not 0 */
__u32 stamp_at; /* where it is in a frame */

/* Read by user space, which sets them to 0. */
struct way ways[2];
__u64 buckets[2][BUCKETS];
__u64 stale; /* frames of earlier trials */
/* When numbers were missing that have not come since: the last time of a millisecond. */
__u64 losses[2][LOSSES];

/* The last number that came, of those that are the same modulo WINDOW, and its trial. */
__u64 came[2][WINDOW];

static __always_inline __u64 whole(const __be16 *halves)
{
	return (__u64)bpf_ntohs(halves[0]) << 32 | (__u64)bpf_ntohs(halves[1]) << 16 |
	       bpf_ntohs(halves[2]);
}

static __always_inline __u32 bucket(__u64 ns)
{
	__u32 bit = 5;

	if (ns < 1 << 5)
		return ns;
	for (__u32 step = 32; step; step >>= 1)
		if (bit + step < 48 && ns >> (bit + step))
			bit += step;
	return (bit - 4) << 5 | ((ns >> (bit - 5)) & 31);
}

/* A hole may yet be filled by frames that were overtaken, so it counts once the next one opens. */
static __always_inline void missing(struct way *way, __u64 *losses, __u64 sequence, __u64 now)
{
	if (way->missing)
		losses[way->hole_ns / 1000000 % LOSSES] = way->hole_ns;
	way->hole = way->next;
	way->missing = sequence - way->next;
	way->hole_ns = now;
}

static __always_inline void number(struct way *way, __u64 *losses, __u64 *came, __u64 sequence,
				   __u64 now)
{
	__u64 tag = (__u64)trial << 48 | sequence;

	if (*came == tag) {
		way->duplicate++;
		return;
	}
	if (*came > tag) {
		way->too_late++;
		return;
	}
	*came = tag;
	way->unique++;
	if (sequence < way->next) {
		way->reordered++;
		if (sequence >= way->hole && way->missing)
			way->missing--;
		return;
	}
	if (sequence > way->next)
		missing(way, losses, sequence, now);
	way->next = sequence + 1;
}

SEC("xdp")
int arrive(struct xdp_md *ctx)
{
	__u64 now = bpf_ktime_get_ns(), sequence, ns;
	struct stamp stamp;
	__u32 side, at;
	struct way *way;

	if (bpf_xdp_load_bytes(ctx, stamp_at, &stamp, sizeof(stamp)) ||
	    __builtin_memcmp(stamp.magic, "RwGn", 4))
		return XDP_PASS;
	side = bpf_ntohs(stamp.stream) & 1;
	if (bpf_ntohs(stamp.stream) >> 1 != trial) {
		stale++;
		return XDP_DROP;
	}
	sequence = whole(stamp.sequence);
	/* The verifier of 6.1 does not see that bpf_ntohs() ends at 65535, and the compiler, which
	 * does, leaves the mask out. */
	at = sequence;
	barrier_var(at);
	at %= WINDOW;
	way = &ways[side];
	number(way, losses[side], &came[side][at], sequence, now);
	if (way->last_ns && now - way->last_ns > way->gap_ns)
		way->gap_ns = now - way->last_ns;
	way->last_ns = now;
	ns = (now - whole(stamp.time)) & MASK;
	at = bucket(ns);
	buckets[side][at < BUCKETS ? at : BUCKETS - 1]++;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
