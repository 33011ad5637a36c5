/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SYN cookies (RFC 4987 section 3.6): what the answer to a SYN has to be known by, in numbers that the
 * client's ACK brings back, so that nothing is kept of the SYN. All nodes with one key know one
 * another's.
 *
 * The answer's sequence number, from its upper end: 22 bits of a keyed hash, the period's lowest bit,
 * and what was agreed: the MSS' place in a table (3 bits), the client's window scale (4), SACK, ECN.
 * If time stamps were agreed, the answer's is the hash's upper half. Who guesses needs 2^22 tries, half
 * as many while two keys are known, and 2^54 with time stamps.
 */
#ifndef RINGWAY_COOKIE_H
#define RINGWAY_COOKIE_H

#include "common/siphash.bpf.h"
#include "gateway/clock.bpf.h"

#define COOKIE_PERIOD_SHIFT 6 /* 64 s */
#define CLOCK_SKEW 30	      /* seconds by which nodes' clocks may differ */
#define COOKIE_SECONDS 98     /* for so long at most does one hold */

/* What the two sides agreed upon. */
#define COOKIE_ECN 1
#define COOKIE_SACK 2
#define COOKIE_SCALE_SHIFT 2 /* 4 bits */
#define COOKIE_MSS_SHIFT 6   /* 3 bits */
#define COOKIE_AGREED 0x1ff  /* as many bits of the number */
#define COOKIE_STAMPS 0x200  /* not in the number */
#define COOKIE_PERIOD 0x200
#define COOKIE_HASH_SHIFT 10

#define COOKIE_NO_SCALE 15 /* more than RFC 7323 section 2.3 allows */

struct cookie {
	__u32 number; /* the answer's sequence number */
	__u32 stamp;  /* its TSval */
};

static __always_inline __u16 cookie_mss(__u32 agreed)
{
	switch ((agreed >> COOKIE_MSS_SHIFT) & 7) {
	case 0:
		return 216;
	case 1:
		return 536; /* what RFC 9293 section 3.7.1 has for a SYN without it */
	case 2:
		return 1220; /* the same of IPv6 */
	case 3:
		return 1360;
	case 4:
		return 1400;
	case 5:
		return 1440;
	case 6:
		return 1460;
	default:
		return 8940;
	}
}

/* The largest of them that is not above, or the least. */
static __always_inline __u32 mss_place(__u32 mss)
{
	return (mss >= 536) + (mss >= 1220) + (mss >= 1360) + (mss >= 1400) + (mss >= 1440) +
	       (mss >= 1460) + (mss >= 8940);
}

/* `isn`: the client's, in our byte order. The message has 46 bytes. */
static __always_inline __u64 cookie_hash(const struct rw_tuple *t, const __u64 *key, __u32 period,
					 __u32 isn, __u32 agreed)
{
	return syn_hash(t, key[0], key[1], period, isn | (__u64)agreed << 32 | 46ull << 56);
}

/* Of now. */
static __always_inline struct cookie new_cookie(const struct rw_syn_secrets *secrets,
						const struct rw_tuple *t, __u32 isn, __u32 agreed)
{
	__u32 period = (now_seconds() + secrets->wall) >> COOKIE_PERIOD_SHIFT;
	__u64 hash = cookie_hash(t, secrets->keys[0], period, isn, agreed);

	return (struct cookie){
		.number = (__u32)hash << COOKIE_HASH_SHIFT | (period & 1 ? COOKIE_PERIOD : 0) |
			  (agreed & COOKIE_AGREED),
		.stamp = (__u32)(hash >> 32),
	};
}

/* Whether it was made of this tuple and ISN in the last 34 s, at most 98 s ago. `stamped`: whether its
 * stamp came back, too. */
static __always_inline bool cookie_holds(const struct rw_syn_secrets *secrets,
					 const struct rw_tuple *t, __u32 isn, struct cookie cookie,
					 bool stamped)
{
	__u32 period = (now_seconds() + secrets->wall + CLOCK_SKEW) >> COOKIE_PERIOD_SHIFT;
	__u32 agreed = (cookie.number & COOKIE_AGREED) | (stamped ? COOKIE_STAMPS : 0);

	period -= (period ^ !!(cookie.number & COOKIE_PERIOD)) & 1;
	for (int i = 0; i < 2; i++) {
		const __u64 *key = secrets->keys[i];
		__u64 hash = cookie_hash(t, key, period, isn, agreed);

		if ((__u32)hash << COOKIE_HASH_SHIFT >> COOKIE_HASH_SHIFT ==
			    cookie.number >> COOKIE_HASH_SHIFT &&
		    (!stamped || hash >> 32 == cookie.stamp))
			return true;
		/* Both are the same, but for two minutes after a change. */
		if (key[0] == secrets->keys[1][0] && key[1] == secrets->keys[1][1])
			break;
	}
	return false;
}

#endif
