/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Flows whose handshake the gateway has made itself (proxy.bpf.h): what the backend counts from
 * another number than the client was told is shifted in each segment. A flow's shift lies in a table of
 * its own, at the flow's place; a bit in the record leads there, and flows without it touch nothing of
 * this.
 *
 * The client's numbers are its own on both sides.
 */
#ifndef RINGWAY_SHIFT_H
#define RINGWAY_SHIFT_H

#include "confirm.bpf.h"
#include "segment.bpf.h"

/* Of a place of the flow table. */
static __always_inline struct rw_shift *shift_at(__u32 place)
{
	__u32 number = place >> 2, zero = 0;
	struct rw_shift_bucket *bucket;
	void *table;

	table = bpf_map_lookup_elem(&shifts, &zero);
	if (!table)
		return NULL;
	bucket = bpf_map_lookup_elem(table, &number);
	number = (place - 1) & 3;
	barrier_var(number);
	if (!bucket || number >= RW_BUCKET_FLOWS)
		return NULL;
	return &bucket->shifts[number];
}

static __always_inline bool is_shifted(const struct rw_flow *flow)
{
	return READ_ONCE(flow->iface) & RW_FLOW_SHIFTED;
}

#define MOST_BLOCKS 4 /* of SACK: RFC 2018 section 3 */

/* A segment's header, and how its checksum changes. */
struct shifted {
	struct tcphdr *tcp;
	void *end;
	__u64 change;
};

/* A word of options may begin at an odd place: its bytes are then halves of two checksum words. */
static __always_inline void shift_word(struct shifted *s, __u8 *at, bool odd, __u32 by)
{
	__be32 old = *(__be32 *)at, new = bpf_htonl(bpf_ntohl(old) + by);
	__u16 change = csum_fold(csum_change(old, new));

	*(__be32 *)at = new;
	s->change += odd ? __builtin_bswap16(change) : change;
}

static __always_inline void shift_window(struct shifted *s, const struct rw_shift *shift,
					 bool reply)
{
	__be16 old = s->tcp->window;
	__u32 window = bpf_ntohs(old);
	__s8 up = reply ? shift->up : shift->client_up;

	if (!up || !window)
		return;
	window = up < 0 ? (window >> (-up & 31)) ?: 1 : window << (up & 31);
	s->tcp->window = bpf_htons(window < 0xffff ? window : 0xffff);
	s->change += csum_change16(old, s->tcp->window);
}

/* Time stamps, and in requests SACK blocks, whose numbers are the backend's. */
static long shift_option(__u32 number, void *data)
{
	struct option_step *step = data;
	struct syn_room *room = step->room;
	bool odd = room->walk.at & 1;
	struct shifted s = { .end = (void *)(long)step->ctx->data_end };
	__u32 len;
	__u8 *option = next_option(step, &len);

	(void)number;
	if (!option)
		return !len;
	if (option[0] == TCP_OPT_STAMPS && len == TCP_OPT_STAMPS_LEN &&
	    (void *)(option + TCP_OPT_STAMPS_LEN) <= s.end)
		shift_word(&s, option + (room->reply ? 2 : 6), odd,
			   room->reply ? room->shift.stamp : -room->shift.stamp);
	if (option[0] == TCP_OPT_SACK && !room->reply)
		for (__u32 i = 0; i < 2 * MOST_BLOCKS; i++) {
			__u8 *edge = option + 2 + 4 * i;

			if (6 + 4 * i > len || (void *)(edge + 4) > s.end)
				break;
			shift_word(&s, edge, odd, -room->shift.seq);
		}
	room->change += s.change;
	return 0;
}

/* Most segments have no options but time stamps, padded as RFC 7323 appendix A has it. */
static __always_inline bool shift_common(struct shifted *s, const struct rw_shift *shift,
					 bool reply)
{
	__u32 *word = (__u32 *)(s->tcp + 1);

	if (s->tcp->doff == 5)
		return true;
	if (s->tcp->doff != 8 || (void *)(word + 3) > s->end ||
	    word[0] != bpf_htonl(TCP_OPT_NOP << 24 | TCP_OPT_NOP << 16 | TCP_OPT_STAMPS << 8 |
				 TCP_OPT_STAMPS_LEN))
		return false;
	if (reply)
		shift_word(s, (__u8 *)(word + 1), false, shift->stamp);
	else
		shift_word(s, (__u8 *)(word + 2), false, -shift->stamp);
	return true;
}

static __always_inline void shift_numbers(struct shifted *s, const struct rw_shift *shift,
					  bool reply)
{
	__u8 flags = ((__u8 *)s->tcp)[13];

	if (!reply && (flags & TCP_ACK))
		shift_word(s, (__u8 *)&s->tcp->ack_seq, false, -shift->seq);
	if (!reply)
		return;
	/* Before the backend's SYN: its refusal, whose number says nothing. */
	if (!(shift->flags & RW_SHIFT_KNOWN))
		shift_word(s, (__u8 *)&s->tcp->seq, false,
			   shift->number + 1 - bpf_ntohl(s->tcp->seq));
	else
		shift_word(s, (__u8 *)&s->tcp->seq, false, shift->seq);
}

/* Whether the segment is the backend's refusal of our SYN (RFC 9293 section 3.10.7.3). */
static __always_inline bool refuses(const struct tcphdr *tcp, const struct rw_shift *shift)
{
	__u8 flags = ((const __u8 *)tcp)[13];

	return (flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_ACK | TCP_RST) &&
	       isn_bits(bpf_ntohl(tcp->ack_seq)) == shift->isn;
}

/* Takes down the shift of the flow with this key at this place, in syn_rooms. */
static __always_inline struct syn_room *shift_read(__u32 place, __u64 key)
{
	struct syn_room *room = RW_ONLY(syn_rooms);
	struct rw_shift *shift = shift_at(place);
	struct rw_flow *flow = flow_at(place);

	if (!room || !shift || !flow)
		return NULL;
	room->shift = *shift;
	return same_flow(key, flow_key_read(flow)) ? room : NULL;
}

/* All but its numbers and window. */
static __always_inline bool shift_rest(struct xdp_md *ctx, struct syn_room *room, __u32 l4)
{
	struct option_step step = { .ctx = ctx, .room = room };

	if (!walk_begin(&room->walk, ctx, l4))
		return false;
	bpf_loop(OPTION_STEPS, shift_option, &step, 0);
	return true;
}

/* Shifts the segment in scratch, of the flow with this key at this place. 0: the flow is another one
 * now. */
__noinline __u32 shift_segment(struct xdp_md *ctx, __u32 place, __u64 key, __u32 reply,
			       __u32 unfinished)
{
	struct rw_scratch *scratched = RW_ONLY(scratch);
	struct syn_room *room = shift_read(place, key);
	struct shifted s = {};
	__u32 l4;

	if (!scratched || !room)
		return 0;
	/* Of another connection: this one may go on. */
	if (!reply && (scratched->tuple.tcp_flags & TCP_SYN) &&
	    (key_state(key) <= RW_FLOW_SYN_ACK || key_state(key) == RW_FLOW_RESET))
		return 0;
	if (scratched->layers.fragment == RW_FRAGMENT_LATER)
		return 1;
	l4 = READ_ONCE(scratched->layers.l4);
	if (l4 > MAX_L4_START)
		return 0;
	s.tcp = (void *)(long)ctx->data + l4;
	s.end = (void *)(long)ctx->data_end;
	if ((void *)(s.tcp + 1) > s.end)
		return 0;
	if (reply && !dry && !(room->shift.flags & RW_SHIFT_KNOWN) && !refuses(s.tcp, &room->shift))
		return 0;
	shift_numbers(&s, &room->shift, reply);
	if (!(scratched->tuple.tcp_flags & TCP_SYN))
		shift_window(&s, &room->shift, reply);
	if (!shift_common(&s, &room->shift, reply)) {
		room->change = 0;
		room->reply = reply;
		if (!shift_rest(ctx, room, l4))
			return 0;
		s.change += room->change;
		s.tcp = (void *)(long)ctx->data + l4;
		if ((void *)(s.tcp + 1) > (void *)(long)ctx->data_end)
			return 0;
	}
	if (!unfinished)
		s.tcp->check = csum_apply(s.tcp->check, s.change);
	return 1;
}

#endif
