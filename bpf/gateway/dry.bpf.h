/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * `ringway explain`: the same object, loaded a second time over the live maps with
 * `dry` set. It finds and decides like the first instance, writes nothing that
 * others read, and records in `trace` what it found.
 * The constant's map is frozen: the verifier removes the other half of every branch
 * on it. Test it only where something would be written.
 */
#ifndef RINGWAY_DRY_H
#define RINGWAY_DRY_H

#include "clock.bpf.h"

const volatile bool dry SEC(".rodata.dry") = false;

/* writer: gateway, when dry; reader: explain. */
struct rw_trace trace SEC(".data.trace") = {};

/* Notes the flow of the packet. */
static __always_inline void trace_flow(__u32 place, __u64 key)
{
	if (!dry)
		return;
	trace.flow_place = place;
	trace.flow_key = key;
}

#endif
