/* SPDX-License-Identifier: GPL-2.0-only */
/* The one way out of every XDP program of ours. */
#ifndef RINGWAY_LEDGER_H
#define RINGWAY_LEDGER_H

#include "common.bpf.h"

/* Ends a packet. The only way out, so that the ledger's sum is its seen. */
static __always_inline int leave(struct rw_ledger *books, enum rw_verdict verdict,
				 enum rw_reason reason)
{
	books->counts[verdict][reason]++;
	/* capture_out() tells them apart again. */
	return capturing ? (int)(verdict | reason << 8) : (int)verdict;
}

#endif
