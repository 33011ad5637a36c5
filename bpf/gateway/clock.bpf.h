/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Seconds since boot. A clock's helper is a call, which costs 10 ns or more on common CPUs; the
 * verifier turns the one that counts ticks into a load.
 */
#ifndef RINGWAY_CLOCK_H
#define RINGWAY_CLOCK_H

#include "common/common.bpf.h"

/* Set when the object is loaded. */
const volatile struct rw_clock ticks SEC(".rodata.clock") = {};

/* The fine clock: seconds << RW_FINE_SHIFT, to a tick. */
static __always_inline __u64 now_fine(void)
{
	return bpf_jiffies64() * ticks.per_tick + ticks.base;
}

/* CLOCK_MONOTONIC, to a tick. */
static __always_inline __u32 now_seconds(void)
{
	return (__u32)(now_fine() >> RW_FINE_SHIFT);
}

#endif
