/* SPDX-License-Identifier: GPL-2.0-only */
/* Budgets of rates: generic cell rate algorithms on the kernel's clock. */
#ifndef RINGWAY_BUDGET_H
#define RINGWAY_BUDGET_H

#include "gateway/dry.bpf.h"
#include "gateway/maps.bpf.h"

#define BUDGET_TRIES 4

/* Whether one more packet conforms; if so, it counts (GCRA). Who loses the race for the budget
 * again and again is over it: the rate is never exceeded. */
static __always_inline bool within_budget(struct rw_shield_budget *budget, __u64 gap, __u64 window)
{
	__u64 now = now_fine();

	for (int i = 0; i < BUDGET_TRIES; i++) {
		__u64 due = READ_ONCE(budget->due), next = due;

		/* A clock that went back would leave `due` far ahead: it begins anew. */
		if ((__s64)(due - now) < 0 || due - now > 2 * window + gap)
			next = now;
		next += gap;
		if (next - now > window)
			return false;
		if (dry || __sync_val_compare_and_swap(&budget->due, due, next) == due)
			return true;
	}
	return false;
}

/* The mode that was set at run time, or this one. */
static __always_inline __u32 mode_now(const struct rw_shield_control *control, __u32 mode)
{
	if (control->until && now_seconds() < control->until)
		return control->mode;
	return mode;
}

/* A packet that would have been dropped. */
static __always_inline void count_observed(enum rw_reason reason)
{
	struct rw_shield_observed *observed = dry ? NULL : RW_ONLY(shield_observed);

	if (observed)
		observed->packets[reason % (2 * RW_REASON_SPACE)]++;
}

#endif
