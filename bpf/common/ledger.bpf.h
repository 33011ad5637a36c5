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

#endif
