/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Parses packets other than the common one: IPv4 options, IPv6 extension
 * headers, fragments, multi-buffer. Every loop is bounded. It finds layer 4, in
 * bytes from the frame's start, and does not read it.
 */
#ifndef RINGWAY_LAYERS_H
#define RINGWAY_LAYERS_H

#include "common.bpf.h"

#define IP_FRAGMENT_MASK 0x3fff /* more fragments, or an offset */
#define IP_MORE 0x2000
#define IP_OFFSET 0x1fff
#define IP6_MORE 0x0001
#define IP6_OFFSET 0xfff8

#define MAX_EXTENSIONS 8	/* headers of one packet */
#define MAX_EXTENSION_BYTES 512 /* of all of them */
#define MAX_L4_START (ETH_HLEN + 40 + MAX_EXTENSION_BYTES)
#define MAX_IP_OPTIONS 40 /* bytes of them: as many fillers */

/* IPv4 options (RFC 791 section 3.1). */
#define IPOPT_ENDS 0
#define IPOPT_NOTHING 1
#define IPOPT_LOOSE_ROUTE 131
#define IPOPT_STRICT_ROUTE 137

/* The position of the walk. */
struct walk {
	void *start;
	void *end;
	__u32 frame; /* bytes of the whole frame; start..end may be its first part */
};

/* `len` bytes at `at`, or NULL. `at` is bounded, which the verifier must see. */
#define WALK_AT(walk, at, len)                                                         \
	({                                                                             \
		__u32 off = (at);                                                      \
		void *found = NULL;                                                    \
		barrier_var(off);                                                      \
		if (off <= MAX_L4_START && (walk)->start + off + (len) <= (walk)->end) \
			found = (walk)->start + off;                                   \
		found;                                                                 \
	})

/* NONE, or why the options are not acceptable. With a source route the destination
 * is not the packet's last. */
static __always_inline enum rw_reason walk_options(const struct walk *walk, __u32 at, __u32 until)
{
	for (int i = 0; i < MAX_IP_OPTIONS && at < until; i++) {
		__u8 *option;
		__u32 len;

		/* Makes every position look the same to the verifier. It knows that `until`
		 * is 14 and a multiple of 4; some 6.18 kernels, for a bug of their own, take
		 * values between two such positions when compared with a known one. */
		verifier_forget(at, walk->frame);
		option = WALK_AT(walk, at, 2);
		if (!option)
			return RW_REASON_IP_OPTIONS;
		if (option[0] == IPOPT_ENDS)
			return RW_REASON_NONE;
		if (option[0] == IPOPT_NOTHING) {
			at++;
			continue;
		}
		len = option[1];
		if (len < 2 || at + len > until)
			return RW_REASON_IP_OPTIONS;
		if (option[0] == IPOPT_LOOSE_ROUTE || option[0] == IPOPT_STRICT_ROUTE)
			return RW_REASON_SOURCE_ROUTE;
		at += len;
	}
	return RW_REASON_NONE;
}

static __always_inline enum rw_reason layers_ipv4(const struct walk *walk, struct rw_tuple *t,
						  struct rw_layers *l)
{
	struct iphdr *ip = WALK_AT(walk, ETH_HLEN, sizeof(*ip));
	__u32 total, header, fragment;

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return RW_REASON_MALFORMED;
	total = bpf_ntohs(ip->tot_len);
	header = ip->ihl * 4u;
	if (total < header || ETH_HLEN + total > walk->frame)
		return RW_REASON_MALFORMED;
	l->l3_len = total;
	l->l4 = ETH_HLEN + header;
	l->l4_len = total - header;
	t->proto = ip->protocol;
	map_addr4(t->saddr, ip->saddr);
	map_addr4(t->daddr, ip->daddr);
	fragment = bpf_ntohs(ip->frag_off);
	l->fragment_id = ip->id;
	if (fragment & IP_OFFSET)
		l->fragment = RW_FRAGMENT_LATER;
	else if (fragment & IP_MORE)
		l->fragment = RW_FRAGMENT_FIRST;
	return header > sizeof(*ip) ? walk_options(walk, ETH_HLEN + sizeof(*ip), l->l4) :
				      RW_REASON_NONE;
}

/* Length of an extension header that may be skipped; 0: it may not. */
static __always_inline __u32 extension_len(const __u8 *header, __u8 type)
{
	switch (type) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_DSTOPTS:
	case IPPROTO_ROUTING:
		return (header[1] + 1) * 8;
	}
	return 0;
}

/* AH covers the addresses, ESP hides the ports: neither can be balanced. */
static __always_inline bool is_extension(__u8 type)
{
	switch (type) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_DSTOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_FRAGMENT:
	case IPPROTO_AH:
	case IPPROTO_MH:
	case 139: /* HIP, RFC 7401 */
	case 140: /* Shim6, RFC 5533 */
		return true;
	}
	return false;
}

/* The fragment header (RFC 8200 section 4.5). One that is the whole packet is
 * an atomic fragment, treated as none (RFC 6946). */
static __always_inline void note_fragment(struct rw_layers *l, const __u8 *header)
{
	__u32 offset = (__u32)header[2] << 8 | header[3];

	l->fragment_id = *(const __u32 *)(header + 4);
	if (offset & IP6_OFFSET)
		l->fragment = RW_FRAGMENT_LATER;
	else if (offset & IP6_MORE)
		l->fragment = RW_FRAGMENT_FIRST;
}

static __always_inline enum rw_reason walk_extensions(const struct walk *walk, struct rw_tuple *t,
						      struct rw_layers *l)
{
	__u32 at = l->l4, until = ETH_HLEN + l->l3_len;

	for (int i = 0; i <= MAX_EXTENSIONS; i++) {
		__u8 type = t->proto, *header;
		__u32 len = 8;

		l->l4 = at;
		l->l4_len = until - at;
		if (at > MAX_L4_START)
			break;
		if (!is_extension(type) || l->fragment == RW_FRAGMENT_LATER)
			return RW_REASON_NONE;
		if (i == MAX_EXTENSIONS)
			break;
		header = WALK_AT(walk, at, 8);
		if (!header)
			return RW_REASON_MALFORMED;
		if (type == IPPROTO_FRAGMENT) {
			note_fragment(l, header);
		} else {
			len = extension_len(header, type);
			if (!len)
				break;
			if (type == IPPROTO_ROUTING && header[3])
				return RW_REASON_SOURCE_ROUTE;
		}
		if (at + len > until)
			return RW_REASON_MALFORMED;
		t->proto = header[0];
		at += len;
	}
	return RW_REASON_IPV6_EXTENSION;
}

static __always_inline enum rw_reason layers_ipv6(const struct walk *walk, struct rw_tuple *t,
						  struct rw_layers *l)
{
	struct ipv6hdr *ip = WALK_AT(walk, ETH_HLEN, sizeof(*ip));
	__u32 total;

	if (!ip || ip->version != 6)
		return RW_REASON_MALFORMED;
	total = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (total > 0xffff || ETH_HLEN + total > walk->frame)
		return RW_REASON_MALFORMED;
	l->l3_len = total;
	l->l4 = ETH_HLEN + sizeof(*ip);
	t->proto = ip->nexthdr;
	copy_addr(t->saddr, ip->saddr.in6_u.u6_addr32);
	copy_addr(t->daddr, ip->daddr.in6_u.u6_addr32);
	/* Never on a wire; in here these are the addresses of IPv4. */
	if (mapped_v4(t->saddr) || mapped_v4(t->daddr))
		return RW_REASON_MALFORMED;
	return walk_extensions(walk, t, l);
}

/*
 * Parses an IP packet: addresses and protocol into `t`, the rest into `l`. NONE: nothing stands
 * between layer 3 and 4. FRAGMENT: a later fragment, or not TCP or UDP. Not inlined, so that the
 * walk is verified once.
 */
__noinline __u32 parse_layers(struct xdp_md *ctx, struct rw_tuple *t, struct rw_layers *l)
{
	struct walk walk = { .start = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	struct ethhdr *eth = walk.start;
	enum rw_reason why;

	if (!t || !l)
		return RW_REASON_NO_STATE;
	if ((void *)(eth + 1) > walk.end)
		return RW_REASON_MALFORMED;
	walk.frame = bpf_xdp_get_buff_len(ctx);
	l->l3_len = 0;
	l->fragment = RW_FRAGMENT_NONE;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		why = layers_ipv4(&walk, t, l);
	else
		why = layers_ipv6(&walk, t, l);
	if (why || l->fragment == RW_FRAGMENT_NONE)
		return why;
	/* ICMP is answered whole or not at all. */
	if (l->fragment == RW_FRAGMENT_FIRST &&
	    (t->proto == IPPROTO_TCP || t->proto == IPPROTO_UDP))
		return RW_REASON_NONE;
	return RW_REASON_FRAGMENT;
}

#endif
