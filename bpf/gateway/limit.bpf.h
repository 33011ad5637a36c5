/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The rate of our own answers: each kind has a budget for everyone and one for each prefix, so a
 * flood that causes one kind uses up no other's.
 */
#ifndef RINGWAY_LIMIT_H
#define RINGWAY_LIMIT_H

#include "clock.bpf.h"
#include "dry.bpf.h"
#include "hash.bpf.h"
#include "common/stage.bpf.h"

enum answer {
	ANSWER_TOO_BIG, /* path MTU discovery needs these */
	ANSWER_TIME_EXCEEDED,
	ANSWER_ECHO,
	ANSWER_RESET,
	ANSWER_STRAY, /* to backends: sockets of connections that are over */
	ANSWERS,
};

/* Echo replies and resets are no longer than their cause: so many for one ICMP error. */
#define ANSWERS_PER_ERROR 10

/*
 * writer, reader: gateway; nobody else, so it is not shared or pinned. For each kind the first
 * element is for everyone, the others are for prefixes, by keyed hash: two prefixes may share
 * one, and its budget. The time of the next conforming answer (GCRA), on the fine clock.
 */
#define ANSWER_PREFIXES 1024 /* a power of two */
#define ANSWER_BUCKETS (1 + ANSWER_PREFIXES)
RW_MAP(answer_due, BPF_MAP_TYPE_PERCPU_ARRAY, ANSWERS *ANSWER_BUCKETS, __u32, __u64, 0);

/* Whether one more answer conforms; if so, it counts as sent (generic cell rate algorithm). */
static __always_inline bool within(__u32 bucket, __u64 gap, __u64 window, __u64 now)
{
	__u64 *due = bpf_map_lookup_elem(&answer_due, &bucket), ahead;

	if (!due)
		return false;
	ahead = *due - now;
	/* In the past, or never set. */
	if (ahead > window)
		ahead = 0;
	if (ahead + gap > window)
		return false;
	if (!dry)
		*due = now + ahead + gap;
	return true;
}

static __always_inline __u64 fine_of_us(__u32 us)
{
	return ((__u64)us << RW_FINE_SHIFT) / 1000000;
}

/* By /24 or /56. */
static __always_inline __u64 answer_hash(const struct rw_settings *set, const __u32 *to)
{
	__u32 low = to[1];

	if (!to[0] && !low && to[2] == bpf_htonl(0xffff))
		low = to[3];
	return hash_end(nh_pair(set->keys[3], to[0], low & bpf_htonl(0xffffff00)));
}

/* Whether an answer of this kind (enum answer) may leave for this address now. The prefix comes
 * first, so one that asks too much does not use up what others need. */
__noinline bool may_answer(const struct rw_address *to, __u32 kind)
{
	__u64 now = now_fine(), gap, prefix_gap;
	struct rw_settings *set = RW_ONLY(settings);
	__u32 first = kind * ANSWER_BUCKETS, prefix, burst;

	if (!set || !to || kind >= ANSWERS)
		return false;
	gap = fine_of_us(set->icmp_gap_us);
	prefix_gap = fine_of_us(set->icmp_prefix_gap_us);
	burst = set->icmp_burst;
	if (kind >= ANSWER_ECHO) {
		gap /= ANSWERS_PER_ERROR;
		prefix_gap /= ANSWERS_PER_ERROR;
		burst *= ANSWERS_PER_ERROR;
	}
	prefix = first + 1 + (__u32)(answer_hash(set, to->addr) >> 32) % ANSWER_PREFIXES;
	return within(prefix, prefix_gap, prefix_gap * burst, now) &&
	       within(first, gap, gap * burst, now);
}

#endif
