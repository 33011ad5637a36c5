// SPDX-License-Identifier: GPL-2.0-only
/*
 * The only program attached to an interface. It counts the packet in the ledger and
 * passes it to the first stage. Loaded once per interface, so that its facts about
 * the interface are constants.
 */
#include "layer3.bpf.h"

const volatile struct rw_root iface;

SEC("xdp.frags")
int ringway_root(struct xdp_md *ctx)
{
	__u32 slot = iface.slot;
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_scratch *scratched = RW_ONLY(scratch);
	struct rw_ledger *counters = bpf_map_lookup_elem(&ledger, &slot);
	enum rw_reason why;

	if (!set || !scratched || !counters)
		return XDP_PASS; /* array elements exist: for the verifier */

	counters->seen++;
	scratched->iface = slot;
	scratched->device = slot;
	scratched->tags[0] = 0;
	scratched->allowed = 0;
	if (iface.layer3) {
		why = layer3_enter(ctx, scratched);
		if (why == RW_REASON_NOT_IP)
			return next_stage(ctx, counters, set->stages, RW_SLOT_BALANCE, why);
		if (why)
			return leave(counters, RW_DROP, why);
	}
	bpf_tail_call(ctx, &slots, RW_SLOT_CAPTURE);
	bpf_tail_call(ctx, &slots, RW_SLOT_SHIELD);
	bpf_tail_call(ctx, &slots, RW_SLOT_BALANCE);
	if (iface.layer3 && !layer3_leave(ctx))
		return leave(counters, RW_DROP, RW_REASON_NO_HEADROOM);
	return next_stage(ctx, counters, set->stages, RW_SLOT_BALANCE, RW_REASON_NO_STAGE);
}

char LICENSE[] SEC("license") = "GPL";
