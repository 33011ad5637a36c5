/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The shield's part of the contract: lists of prefixes, rules, and what it counts. Part of
 * abi.h; the rules of byte order there hold, except that prefix lists are in host byte order
 * throughout, because they are searched by comparison.
 */
#ifndef RINGWAY_ABI_SHIELD_H
#define RINGWAY_ABI_SHIELD_H

#define RW_SHIELD_LISTS 64  /* list files */
#define RW_SHIELD_RULES 256 /* rules, in order */
#define RW_SHIELD_NOTES 48  /* of these, rules that only count */
#define RW_SHIELD_RUNTIME \
	65536 /* prefixes that were blocked or allowed at run time, of each kind */

/*
 * Lists of prefixes. A leaf holds disjoint prefixes, sorted by their first addresses; leaves are
 * sorted, too; unused places of the last one repeat its last prefix, so that the address of all
 * ones finds it. An index leads from the distance between an address and the first prefix to the few
 * leaves that may hold its prefix, or tells that none does. Where many leaves are in one slot it
 * leads to another index, of this slot alone. Allow and block lists of both families are sections of
 * the same maps.
 */
#define RW_LIST_V4_PREFIXES 10 /* in a leaf */
#define RW_LIST_V6_PREFIXES 7

struct rw_list_v4 {
	__u32 start[RW_LIST_V4_PREFIXES];
	__u8 length[RW_LIST_V4_PREFIXES];
	__u8 list[RW_LIST_V4_PREFIXES]; /* number of the list file */
	__u32 pad;
};

struct rw_list_v6 {
	__u64 start[RW_LIST_V6_PREFIXES][2]; /* upper half first */
	__u8 length[RW_LIST_V6_PREFIXES];
	__u8 list[RW_LIST_V6_PREFIXES];
	__u16 pad;
};

/*
 * A slot of the index, in one word: a bit for each sixteenth that has addresses in prefixes
 * << RW_SLOT_PARTS | the last leaf that its addresses may be in << RW_SLOT_LAST | the first one.
 * Leaves are counted from the section's first one.
 */
#define RW_SLOT_PARTS 48
#define RW_SLOT_LAST 24
#define RW_SLOT_NESTED 0x800000 /* in place of the first leaf, with the number of a span */
#define RW_SLOT_NUMBER 0x7fffff /* of a leaf or span */

/*
 * Addresses that a part of the index is for. With x = (address - base) >> shift: the slot is x / 16,
 * and its part x % 16. Below base or behind the last slot is no prefix.
 */
struct rw_list_span {
	__u64 base[2]; /* upper half first; of IPv4 the lower half alone */
	__u32 index;   /* place of its first slot in the index */
	__u32 slots;   /* a power of two */
	__u32 shift;
	__u32 pad;
};

struct rw_list_section {
	struct rw_list_span span;
	__u32 leaf;   /* first leaf; the index counts from here */
	__u32 leaves; /* 0: the section is empty */
};

enum rw_shield_mode {
	RW_SHIELD_ENFORCE,
	RW_SHIELD_OBSERVE, /* counts what it would drop */
	RW_SHIELD_OFF,
	RW_SHIELD_MODES,
};

/* Constants of one generation of the shield. A change loads another generation beside it. */
struct rw_shield {
	struct rw_list_section allow4;
	struct rw_list_section allow6;
	struct rw_list_section block4;
	struct rw_list_section block6;
	__u32 mode; /* enum rw_shield_mode */
	__u32 sanity;
	__u32 protect_host;
	__u32 rules;   /* how many */
	__u32 modes;   /* 1: services have modes of their own */
	__u32 place;   /* of its rules' program */
	__u32 answers; /* 1: a service answers SYNs */
	__u32 pad;
};
#define RW_SHIELD_GENERATIONS 4 /* with packets under way, at once */

/* What changes without another generation. */
struct rw_shield_control {
	__u32 mode;   /* enum rw_shield_mode, in place of every other, ... */
	__u32 until;  /* ... before this second (CLOCK_MONOTONIC) */
	__u32 allows; /* prefixes allowed at run time */
	__u32 blocks;
	__u32 place; /* of the newest generation's rules */
	__u32 pad;
};

/* Longest-prefix match; IPv4 as ::ffff:a.b.c.d, its prefixes 96 bits longer. */
struct rw_shield_prefix {
	__u32 len;
	__u32 addr[4];
};

struct rw_shield_runtime {
	__u32 until; /* seconds, CLOCK_MONOTONIC: not valid from then on */
	__u32 v6;    /* 1: of IPv6, even if it covers the addresses that stand for IPv4 */
};

enum rw_rule_action {
	RW_RULE_DROP,
	RW_RULE_PASS,
	RW_RULE_LIMIT,
	RW_RULE_COUNT,
	RW_RULE_ACTIONS,
};

/* A rule, by its number; those that only count once more behind all, in their order. */
struct rw_shield_rule {
	__u32 action; /* enum rw_rule_action */
	__u32 count;  /* place in shield_counts */
	__u64 gap;    /* LIMIT: between two packets */
	__u64 window; /* LIMIT: so far ahead of time may packets be: the burst */
};
#define RW_SHIELD_RULE_ROWS (RW_SHIELD_RULES + RW_SHIELD_NOTES)

/* The fine clock: seconds << RW_FINE_SHIFT, to a tick of the kernel. It wraps. */
#define RW_FINE_SHIFT RW_TICK_SHIFT

/*
 * Limits of services, by id. A rate is a generic cell rate algorithm's; gap 0: there is none. All
 * CPUs share a service's budget, and each takes packets from it in batches.
 */
struct rw_shared_rate {
	__u64 gap;    /* between two packets, on the fine clock */
	__u64 window; /* so far ahead of time may packets be: the burst */
	__u32 batch;  /* packets that a CPU takes at once */
	__u32 budget; /* place in service_budgets */
};

/* A rate of one source prefix or flow. Its budget is a word of rw_rated. */
struct rw_single_rate {
	__u32 gap;    /* on the coarse clock */
	__u32 window; /* the same */
};

struct rw_limits {
	struct rw_shared_rate packets;
	struct rw_shared_rate destination; /* all services of the address together */
	struct rw_shared_rate new_flows;
	struct rw_single_rate source;
	__u32 unasked; /* a source's packets in a second on one CPU for which nobody asks its budget */
	__u32 pad;
};

/*
 * How SYNs are answered. Challenge, unless their source is learnt: with a SYN and ACK that no stack
 * accepts, to which it replies with a RST (RFC 9293 section 3.10.7.3) that proves its address. The
 * others: with a cookie (shield/cookie.bpf.h).
 */
enum rw_syn {
	RW_SYN_FORWARDED,
	RW_SYN_CHALLENGE,
	RW_SYN_PROXY,	/* nat: who brings it back is connected by the gateway */
	RW_SYN_BACKEND, /* dsr: the backend knows it as well (`ringway accept`) */
	RW_SYNS,
};
#define RW_SYN_KIND 0xff
#define RW_SYN_ALWAYS 0x100 /* beside it: not only while shield_armed says so */

/* What an answer with a cookie offers a client, if its SYN does: no more than every backend of the
 * service takes. Host byte order. */
struct rw_syn_offer {
	__u16 mss; /* 0: the least that every host takes */
	__u8 options;
	__u8 pad;
	__u16 window; /* of the answer: 0 where the backend's is not known yet */
	__u16 pad2;
};
#define RW_OFFER_SACK 1
#define RW_OFFER_STAMPS 2
#define RW_OFFER_SCALE 4
#define RW_OFFER_ECN 8
#define RW_OFFERED_SCALE 7 /* of windows, towards the client */

/* What challenges are made of. All nodes with these keys know one another's. */
struct rw_syn_secrets {
	__u64 keys[2][2]; /* of SipHash; the former one last, which is known as well for a time */
	__u32 wall;	  /* CLOCK_REALTIME - CLOCK_MONOTONIC, seconds */
	__u32 since;	  /* CLOCK_MONOTONIC, seconds: since then the first key is in use */
	__u32 shared;	  /* 1: it is of a file, and other nodes may have it */
	__u32 pad;
};

#define RW_LEARN_TCP 1 /* of handshakes: by every service */
#define RW_LEARN_UDP 2 /* of answered datagrams: for the service alone */
struct rw_shield_policy {
	struct rw_limits always;
	struct rw_limits armed;	      /* in their place while shield_armed says so */
	struct rw_single_rate flow;   /* of an established nat flow, when a limit is exceeded */
	struct rw_single_rate learnt; /* the same of a source that was learnt */
	__u32 mode;		      /* enum rw_shield_mode */
	__u32 learns;		      /* RW_LEARN_...: whose sources are learnt, under nat */
	__u32 prefix[4];	      /* mask of a source prefix of IPv6 */
	__u32 prefix4;		      /* of IPv4 */
	__u32 syn;		      /* enum rw_syn | RW_SYN_ALWAYS */
	struct rw_syn_offer offer;
};

/* Places in service_budgets, each RW_MAX_SERVICES: by service; a destination's is that of the
 * address' first service. */
enum rw_service_budget {
	RW_BUDGET_PACKETS,
	RW_BUDGET_NEW_FLOWS,
	RW_BUDGET_DESTINATION,
	RW_SERVICE_BUDGETS,
};

/* What a CPU has taken from a budget and not used. */
struct rw_lease {
	__u32 left;
	__u32 empty; /* tick of the kernel's clock at which the budget had nothing left */
};

/* The limit that a packet is over. */
enum rw_limit {
	RW_LIMIT_NONE,
	RW_LIMIT_PACKETS,
	RW_LIMIT_DESTINATION,
	RW_LIMIT_NEW_FLOWS,
	RW_LIMIT_SOURCE,
	RW_LIMITS,
};

/* Why a packet over a limit passes all the same. */
enum rw_exemption {
	RW_EXEMPT_NOT,
	RW_EXEMPT_ESTABLISHED, /* an established nat flow, within its rate */
	RW_EXEMPT_LEARNT,      /* its source was learnt, and is within its rate */
	RW_EXEMPTIONS,
};

/* Of a service with a policy. Per CPU. */
struct rw_arrivals {
	__u64 packets;		     /* that met limits */
	__u64 new_flows;	     /* of these */
	__u64 over[RW_LIMITS];	     /* of these packets, by limit: dropped, or would have been */
	__u64 exempt[RW_EXEMPTIONS]; /* of these packets: over a limit, and passed */
	struct rw_lease leases[RW_SERVICE_BUDGETS];
	__u64 syns_answered;  /* by the gateway, or would have been */
	__u64 answers_met;    /* by a sender that is there */
	__u64 answers_failed; /* look like a sender's, and fit no answer of ours */
};

/*
 * How many packets the source prefixes have sent to a service in this second, as a CPU has seen it:
 * a count-min sketch (Cormode and Muthukrishnan, 2005) whose rows share a cache line. A prefix has a
 * count in each row; the lesser one is at least the true number. Of N packets in the second it is
 * more by over 4 N / (RW_SKETCH_LINES * RW_SKETCH_WIDTH) with a probability of a quarter at most.
 */
#define RW_SKETCH_LINES 2048
#define RW_SKETCH_WIDTH 8 /* counts of a row in a line */
#define RW_SKETCH_ROWS 2
#define RW_SKETCH_MOST 0xffffff /* packets that a count can tell */
struct rw_sketch_line {
	__u32 counts[RW_SKETCH_ROWS][RW_SKETCH_WIDTH]; /* second, 8 bits << 24 | packets */
};

/*
 * A budget with its owner, in one word: the owner's tag << 32 | when its next packet conforms, on
 * the coarse clock. 0: free. Eight make a bucket, which the owner's hash chooses. One that finds
 * none of its own there takes the place of the one that has been silent longest, as far as the clock
 * tells it.
 */
#define RW_BUCKET_RATED 8
struct rw_rated {
	__u64 words[RW_BUCKET_RATED];
};
#define RW_LEARNT_BUCKETS 32768	    /* of sources that were learnt: 262 144 */
#define RW_LEARNT_UDP_BUCKETS 8192  /* the first of them, by datagrams */
#define RW_FLOW_BUDGET_BUCKETS 8192 /* of established flows, while a limit is exceeded: 65 536 */

/* What has met a challenge: sources, for one service each, and connections, which pass whatever
 * others send in the name of their source. */
#define RW_PROVEN_BUCKETS 32768

/* The same of the sources that the sketch suspects, with their addresses for people. */
struct rw_heavy_source {
	__u32 prefix[4];
	__u16 service;
	__u16 learnt; /* 1: it was learnt, and is over its own rate: others may send in its name */
	__u32 over;   /* packets that were dropped or observed for it */
	__u32 seen;   /* the last of them: seconds, CLOCK_MONOTONIC */
	__u32 since;  /* the first of them; after RW_HEAVY_SECONDS without any it begins anew */
};
#define RW_HEAVY_SECONDS 60
struct rw_heavy_bucket {
	struct rw_rated budgets;
	struct rw_heavy_source sources[RW_BUCKET_RATED];
};
#define RW_HEAVY_BUCKETS 4096

/* The coarse clock: seconds << RW_COARSE_SHIFT, which wraps after 1024 s. */
#define RW_COARSE_SHIFT 22

/* When the next packet of a limit conforms (GCRA), on the fine clock. A cache line. */
struct rw_shield_budget {
	__u64 due;
	__u64 pad[7];
};

/* Places in shield_counts. Rules and lists keep theirs while they keep their names. */
#define RW_SHIELD_COUNT_LISTS RW_SHIELD_RULES
#define RW_SHIELD_COUNT_RUNTIME_ALLOW (RW_SHIELD_COUNT_LISTS + RW_SHIELD_LISTS)
#define RW_SHIELD_COUNT_RUNTIME_BLOCK (RW_SHIELD_COUNT_RUNTIME_ALLOW + 1)
#define RW_SHIELD_COUNTS (RW_SHIELD_COUNT_RUNTIME_BLOCK + 1)

/* Packets that a rule or list decided. Per CPU. */
struct rw_shield_count {
	__u64 packets;
	__u64 bytes; /* of layer 3 */
	__u64 over;  /* of these packets, over the rate of a rule: dropped, or would have been */
};

/* Packets that would have been dropped, by reason. Per CPU. */
struct rw_shield_observed {
	__u64 packets[2 * RW_REASON_SPACE];
};

_Static_assert(sizeof(struct rw_list_v4) == 64, "one cache line");
_Static_assert(sizeof(struct rw_list_v6) == 128, "two cache lines");
_Static_assert(sizeof(struct rw_sketch_line) == 64, "one cache line");
_Static_assert(sizeof(struct rw_rated) == 64, "one cache line");
_Static_assert(sizeof(struct rw_list_span) == 32, "half a cache line");
_Static_assert(sizeof(struct rw_list_section) == 40, "layout");
_Static_assert(sizeof(struct rw_shield_prefix) == 20, "a key of the kernel's trie");

#endif
