/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * `ringway explain`: the same object, loaded a second time upon the live maps
 * with `dry` set. It finds and decides as the first instance does, writes
 * nothing that others read, and says in `trace` what it found.
 * The constant's map is frozen: of every branch on it the verifier removes the
 * other half. To be looked at where something would be written, and no sooner.
 */
#ifndef RINGWAY_DRY_H
#define RINGWAY_DRY_H

#include "common/common.bpf.h"

const volatile bool dry SEC(".rodata.dry") = false;

/* writer: gateway, when dry; reader: explain. */
struct rw_trace trace SEC(".data.trace") = {};

/* A flow that a packet was found to belong to. */
static __always_inline void trace_flow(__u32 place, __u64 key)
{
	if (!dry)
		return;
	trace.flow_place = place;
	trace.flow_key = key;
}

#endif
