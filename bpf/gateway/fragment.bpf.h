/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fragments: the first has the ports and decides. It is noted, and the other
 * fragments of its datagram follow it. Fragments that come before the first are
 * dropped: holding them would let anyone fill our memory. This works in both
 * directions, so that fragmented answers find their client.
 *
 * A first fragment that its interface may not send, or that is over a limit, is not
 * noted. Nobody can divert another's fragments: all of a datagram come by one interface
 * and from one MAC address.
 */
#ifndef RINGWAY_FRAGMENT_H
#define RINGWAY_FRAGMENT_H

#include "dry.bpf.h"
#include "packet_context.bpf.h"
#include "hash.bpf.h"
#include "parse.bpf.h"

#define FRAGMENTS_TCP (1ull << 63)

/* The hash of what all fragments of a datagram share. Under IPv6 not the protocol:
 * another extension may follow the fragment header (RFC 8200 section 4.5), and only
 * the first fragment shows what is behind it. */
static __always_inline __u64 fragment_hash(const struct rw_settings *set,
					   const struct rw_layers *at, const struct rw_tuple *t,
					   bool v6, __u64 from)
{
	__u64 id = (__u64)READ_ONCE(at->fragment_id) << 8 | (v6 ? 0 : t->proto);

	return hash_end(keyed_tuple(set, t, id) +
			nh_pair(set->keys[5], (__u32)from, (__u32)(from >> 32)));
}

/* Interface and MAC address that the packet comes from, in a word. */
static __always_inline __u64 came_from(__u32 slot, const struct ethhdr *eth)
{
	union way_back from = { .iface = (__u8)slot };

	copy_mac(from.mac, eth->h_source);
	return from.word;
}

/* Whether this is a later fragment of a datagram whose first one fragment_note() notes.
 * A ping's is not. Behind IPv6 extensions there may be anything. */
static __always_inline bool has_noted_first(const struct packet *p)
{
	__u8 proto = p->t->proto;

	return p->at->fragment == RW_FRAGMENT_LATER &&
	       (proto == IPPROTO_TCP || proto == IPPROTO_UDP || (p->v6 && is_extension(proto)));
}

static __always_inline struct rw_fragment_bucket *fragment_bucket(__u64 hash)
{
	__u32 number = (__u32)hash & (RW_FRAGMENT_BUCKETS - 1);

	return bpf_map_lookup_elem(&fragments, &number);
}

static __always_inline __u32 fragments_seen(__u64 ports)
{
	return (ports >> 32) & 0x7fffffff;
}

static __always_inline bool fragments_old(__u64 ports, __u32 now)
{
	return now - fragments_seen(ports) > RW_FRAGMENT_TIMEOUT;
}

/* Notes the ports of the first fragment in scratch. The newest goes first, and the others a place on
 * each, up to that of the same datagram: the oldest gives way. `slot`: of its interface. */
__noinline __u32 fragment_note(struct xdp_md *ctx, __u32 slot, __u32 v6)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct rw_settings *set = RW_ONLY(settings);
	struct rw_scratch *s = RW_ONLY(scratch);
	struct rw_fragment_bucket *bucket;
	__u64 hash, ports, check;

	if (!set || !s || dry || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return 0;
	hash = fragment_hash(set, &s->layers, &s->tuple, v6, came_from(slot, eth));
	bucket = fragment_bucket(hash);
	if (!bucket)
		return 0;
	ports = (__u64)s->tuple.sport_be | (__u64)s->tuple.dport_be << 16 |
		(__u64)(now_seconds() & 0x7fffffff) << 32;
	if (s->tuple.proto == IPPROTO_TCP)
		ports |= FRAGMENTS_TCP;
	check = hash ^ ports;
	for (__u32 i = 0; i < RW_BUCKET_FRAGMENTS; i++) {
		struct rw_fragments *d = &bucket->datagrams[i];
		__u64 next_check = READ_ONCE(d->check), next_ports = READ_ONCE(d->ports);

		WRITE_ONCE(d->check, check);
		WRITE_ONCE(d->ports, ports);
		if ((next_check ^ next_ports) == hash)
			break;
		check = next_check;
		ports = next_ports;
	}
	return 1;
}

/* Of a packet that is going to be sent on. */
static __always_inline void note_first(const struct packet_context *pctx, const struct packet *p)
{
	if (p->at->fragment == RW_FRAGMENT_FIRST)
		fragment_note(pctx->ctx, pctx->slot, p->v6);
}

/* A later fragment: takes the ports of its first one. False: that one is unknown. */
static __always_inline bool fragment_follow(const struct packet_context *pctx, struct packet *p)
{
	__u64 hash = fragment_hash(pctx->set, p->at, p->t, p->v6, came_from(pctx->slot, p->eth));
	struct rw_fragment_bucket *bucket = fragment_bucket(hash);

	if (!bucket)
		return false;
	for (__u32 i = 0; i < RW_BUCKET_FRAGMENTS; i++) {
		__u64 ports = READ_ONCE(bucket->datagrams[i].ports);

		if ((READ_ONCE(bucket->datagrams[i].check) ^ ports) != hash ||
		    fragments_old(ports, now_seconds()))
			continue;
		p->t->sport_be = (__u16)ports;
		p->t->dport_be = (__u16)(ports >> 16);
		p->t->proto = ports & FRAGMENTS_TCP ? IPPROTO_TCP : IPPROTO_UDP;
		/* Neither starts nor ends a connection. */
		p->t->tcp_flags = TCP_ACK;
		p->l4 = NULL;
		p->check = NULL;
		return true;
	}
	return false;
}

#endif
