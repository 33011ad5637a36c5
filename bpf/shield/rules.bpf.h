/* SPDX-License-Identifier: GPL-2.0-only */
/* The operator's rules: one program tells which of them match; what follows from it is here. */
#ifndef RINGWAY_RULES_H
#define RINGWAY_RULES_H

#include "gateway/dry.bpf.h"
#include "budget.bpf.h"
#include "maps.bpf.h"

/*
 * Bits 0 to 15: 1 + the number of the first rule that matches and ends the search; 0: none. Bit
 * 16 + i: the ith rule that only counts has matched before it. A tail call from a function
 * returns to the function's caller. Not static, because up to 6.17 the verifier would believe that
 * the result is what is here.
 */
__noinline __u64 run_rules(struct xdp_md *ctx)
{
	__u64 none = 0;

	bpf_tail_call(ctx, &rule_programs, shield.place);
	/* Else the compiler knows the result. */
	barrier_var(none);
	return none;
}

static __always_inline struct rw_shield_count *count_shield(__u32 place, __u32 bytes)
{
	struct rw_shield_count *count = bpf_map_lookup_elem(&shield_counts, &place);

	if (count && !dry) {
		count->packets++;
		count->bytes += bytes;
	}
	return count;
}

static __always_inline bool within_rule(const struct rw_shield_rule *rule)
{
	__u32 place = rule->count;
	struct rw_shield_budget *budget = bpf_map_lookup_elem(&rule_budgets, &place);

	return budget && within_budget(budget, rule->gap, rule->window);
}

static __always_inline void count_notes(__u64 notes, __u32 bytes)
{
	for (int i = 0; i < RW_SHIELD_NOTES && notes; i++, notes >>= 1) {
		__u32 row = RW_SHIELD_RULES + i;
		struct rw_shield_rule *rule;

		if (!(notes & 1))
			continue;
		rule = bpf_map_lookup_elem(&rule_table, &row);
		if (rule)
			count_shield(rule->count, bytes);
	}
}

enum ruled {
	RULED_NOTHING, /* no rule, or none that ends */
	RULED_PASS,
	RULED_DROP,
	RULED_LIMITED,
};

static __always_inline enum ruled ruled_by(__u64 matched, __u32 bytes)
{
	__u32 row = (matched & 0xffff) - 1;
	struct rw_shield_count *count;
	struct rw_shield_rule *rule;

	if (matched >> 16)
		count_notes(matched >> 16, bytes);
	if (row >= RW_SHIELD_RULES)
		return RULED_NOTHING;
	rule = bpf_map_lookup_elem(&rule_table, &row);
	if (!rule)
		return RULED_NOTHING;
	count = count_shield(rule->count, bytes);
	if (dry)
		trace.shield_rule = row + 1;
	switch (rule->action) {
	case RW_RULE_DROP:
		return RULED_DROP;
	case RW_RULE_LIMIT:
		if (within_rule(rule))
			return RULED_NOTHING;
		if (count && !dry)
			count->over++;
		return RULED_LIMITED;
	case RW_RULE_PASS:
		return RULED_PASS;
	}
	return RULED_NOTHING;
}

#endif
