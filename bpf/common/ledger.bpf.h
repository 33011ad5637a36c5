/* SPDX-License-Identifier: GPL-2.0-only */
/* The only exit of every XDP program. */
#ifndef RINGWAY_LEDGER_H
#define RINGWAY_LEDGER_H

#include "common.bpf.h"

/* Ends a packet. The only exit, so that the counts add up to `seen`. */
static __always_inline int leave(struct rw_ledger *counters, enum rw_verdict verdict,
				 enum rw_reason reason)
{
	counters->counts[verdict][reason]++;
	/* capture_out() tells them apart again. */
	return capturing ? (int)(verdict | reason << 8) : (int)verdict;
}

/* The same for a reason from RW_REASON_SPACE on, whose row no verdict uses. */
static __always_inline int leave_beyond(struct rw_ledger *counters, enum rw_verdict verdict,
					enum rw_reason reason)
{
	counters->counts[RW_ABORTED][reason % RW_REASON_SPACE]++;
	return capturing ? (int)(verdict | reason << 8) : (int)verdict;
}

/* The same for a drop by the shield, some of whose reasons are in that row. */
static __always_inline int leave_shielded(struct rw_ledger *counters, enum rw_reason reason)
{
	/* ABORTED's place is before DROP's: without a jump, after which the verifier goes on twice. */
	__u32 row = RW_DROP - (reason / RW_REASON_SPACE & 1);

	counters->counts[row][reason % RW_REASON_SPACE]++;
	return capturing ? (int)(RW_DROP | reason << 8) : (int)RW_DROP;
}

#endif
