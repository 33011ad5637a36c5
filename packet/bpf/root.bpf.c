// SPDX-License-Identifier: GPL-2.0-only
/*
 * The one program attached to an interface. It opens the packet's books and
 * hands it to the first stage. Loaded once per interface, so that iface_slot
 * is a constant.
 */
#include "stage.bpf.h"

const volatile __u32 iface_slot;

SEC("xdp.frags")
int ringway_root(struct xdp_md *ctx)
{
	__u32 slot = iface_slot;
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_scratch *scratched = RW_ONLY(scratch);
	struct rw_ledger *books = bpf_map_lookup_elem(&ledger, &slot);

	if (!set || !scratched || !books)
		return XDP_PASS; /* array elements exist: for the verifier */

	books->seen++;
	scratched->iface = slot;
	scratched->device = slot;
	scratched->tags[0] = 0;
	bpf_tail_call(ctx, &slots, RW_SLOT_SHIELD);
	bpf_tail_call(ctx, &slots, RW_SLOT_BALANCE);
	return next_stage(ctx, books, set->stages, RW_SLOT_BALANCE, RW_REASON_NO_STAGE);
}

char LICENSE[] SEC("license") = "GPL";
