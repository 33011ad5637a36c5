/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Segments of our own in place of a client's or a backend's: what was agreed in a handshake, read from
 * options and written as options.
 */
#ifndef RINGWAY_SEGMENT_H
#define RINGWAY_SEGMENT_H

#include "mss.bpf.h"
#include "packet_context.bpf.h"
#include "shield/cookie.bpf.h"

#define TCP_ECE 0x40
#define TCP_CWR 0x80

#define TCP_OPT_SCALE 3
#define TCP_OPT_SCALE_LEN 3
#define TCP_OPT_SACK_OK 4
#define TCP_OPT_SACK 5
#define TCP_OPT_STAMPS 8
#define TCP_OPT_STAMPS_LEN 10
#define MOST_SCALE 14 /* RFC 7323 section 2.3 */

#define SEGMENT_WORDS 10 /* a header with what we write */

/* Options of a SYN, or of the ACK that ends a handshake. Host byte order. */
struct tcp_options {
	__u32 stamp;
	__u32 echo;
	__u16 mss;  /* 0: none */
	__u8 scale; /* COOKIE_NO_SCALE: none */
	__u8 sack_ok;
	__u8 stamps; /* 1: it has stamp and echo */
};

/* A segment to be written, without its MAC addresses. */
struct segment_out {
	__u32 saddr[4];
	__u32 daddr[4];
	__u32 word[16]; /* the TCP header; its length and checksum are set last */
	__u32 words;
	__u32 payload;	  /* bytes of it: zeroes, 1 at most */
	__u32 hops;	  /* TTL */
	__u32 unfinished; /* 1: the next device finishes the checksum */
};

/* A walk through a segment's options. */
struct option_walk {
	__u32 tcp_at; /* of the frame */
	__u32 at;     /* of the TCP header: the next option */
	__u32 stop;   /* its end */
};

/* writer, reader: gateway. For one packet, as icmp_rooms. */
struct syn_room {
	struct tcp_options options;
	struct cookie cookie; /* that came back */
	__u32 isn;	      /* the client's */
	struct segment_out out;
	struct option_walk walk;
	struct rw_shift shift; /* what a segment is shifted by */
	__u64 change;	       /* of its checksum */
	__u32 reply;
};
RW_MAP(syn_rooms, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct syn_room, 0);

/* The TCP header of the segment in scratch. */
static __always_inline struct tcphdr *tcp_of(struct xdp_md *ctx, const struct rw_scratch *s)
{
	__u32 at = READ_ONCE(s->layers.l4);
	struct tcphdr *tcp;

	barrier_var(at);
	if (at > MAX_L4_START)
		return NULL;
	tcp = (void *)(long)ctx->data + at;
	return (void *)(tcp + 1) > (void *)(long)ctx->data_end ? NULL : tcp;
}

/* What a step of a walk has: it is a callback of bpf_loop(), so that the verifier follows one. The
 * stack is short. */
struct option_step {
	struct xdp_md *ctx;
	struct syn_room *room;
};

#define OPTION_STEPS TCP_OPTIONS /* each may be one byte */

/* The option to look at, which is not padding; `len`: its bytes, `bytes` at least. NULL: there is none
 * at this step; `len` is 0 when the walk is over. */
static __always_inline __u8 *next_option(const struct option_step *step, __u32 *len)
{
	struct option_walk *walk = &step->room->walk;
	void *end = (void *)(long)step->ctx->data_end;
	__u32 at = walk->tcp_at + walk->at;
	__u8 *option;

	*len = 0;
	barrier_var(at);
	if (walk->at + 2 > walk->stop || at > MAX_L4_START + sizeof(struct tcphdr) + TCP_OPTIONS)
		return NULL;
	option = (void *)(long)step->ctx->data + at;
	if ((void *)(option + 2) > end || option[0] == TCP_OPT_END)
		return NULL;
	if (option[0] == TCP_OPT_NOP) {
		*len = 1;
		walk->at++;
		return NULL;
	}
	if (option[1] < 2 || walk->at + option[1] > walk->stop)
		return NULL;
	*len = option[1];
	walk->at += *len;
	return option;
}

static long read_option(__u32 number, void *data)
{
	struct option_step *step = data;
	struct tcp_options *options = &step->room->options;
	void *end = (void *)(long)step->ctx->data_end;
	__u32 len;
	__u8 *option = next_option(step, &len);

	(void)number;
	if (!option)
		return !len;
	if (option[0] == TCP_OPT_SACK_OK && len == 2)
		options->sack_ok = 1;
	if (option[0] == TCP_OPT_MSS && len == TCP_OPT_MSS_LEN &&
	    (void *)(option + TCP_OPT_MSS_LEN) <= end)
		options->mss = bpf_ntohs(*(__be16 *)(option + 2));
	if (option[0] == TCP_OPT_SCALE && len == TCP_OPT_SCALE_LEN &&
	    (void *)(option + TCP_OPT_SCALE_LEN) <= end)
		options->scale = option[2] < MOST_SCALE ? option[2] : MOST_SCALE;
	if (option[0] == TCP_OPT_STAMPS && len == TCP_OPT_STAMPS_LEN &&
	    (void *)(option + TCP_OPT_STAMPS_LEN) <= end) {
		options->stamp = bpf_ntohl(*(__be32 *)(option + 2));
		options->echo = bpf_ntohl(*(__be32 *)(option + 6));
		options->stamps = 1;
	}
	return 0;
}

/* Begins a walk through the options of the segment at tcp_at. */
static __always_inline bool walk_begin(struct option_walk *walk, struct xdp_md *ctx, __u32 tcp_at)
{
	struct tcphdr *tcp;

	if (tcp_at > MAX_L4_START)
		return false;
	tcp = (void *)(long)ctx->data + tcp_at;
	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return false;
	walk->tcp_at = tcp_at;
	walk->at = sizeof(*tcp);
	walk->stop = tcp->doff * 4u;
	return true;
}

/* Reads the options of the segment at tcp_at into syn_rooms. */
__noinline __u32 read_options(struct xdp_md *ctx, __u32 tcp_at)
{
	struct option_step step = { .ctx = ctx, .room = RW_ONLY(syn_rooms) };

	if (!step.room || !walk_begin(&step.room->walk, ctx, tcp_at))
		return 0;
	step.room->options = (struct tcp_options){ .scale = COOKIE_NO_SCALE };
	bpf_loop(OPTION_STEPS, read_option, &step, 0);
	return 1;
}

static __always_inline void segment_begin(struct segment_out *out, __be16 sport_be, __be16 dport_be,
					  __u32 seq, __u32 ack, __u32 flags, __u16 window)
{
	out->word[0] = sport_be | (__u32)dport_be << 16;
	out->word[1] = bpf_htonl(seq);
	out->word[2] = bpf_htonl(ack);
	out->word[3] = bpf_htonl(flags << 16 | window);
	out->word[4] = 0;
	out->words = 5;
	out->payload = 0;
}

static __always_inline void segment_word(struct segment_out *out, __u32 word)
{
	out->word[out->words & 15] = bpf_htonl(word);
	out->words++;
}

/* SACK permitted where two bytes of padding would be. */
static __always_inline void segment_stamps(struct segment_out *out, bool sack_ok, __u32 stamp,
					   __u32 echo)
{
	segment_word(out, (sack_ok ? TCP_OPT_SACK_OK << 24 | 2 << 16 :
				     TCP_OPT_NOP << 24 | TCP_OPT_NOP << 16) |
				  TCP_OPT_STAMPS << 8 | TCP_OPT_STAMPS_LEN);
	segment_word(out, stamp);
	segment_word(out, echo);
}

/* The options of a SYN. `scale`: ours. */
static __always_inline void segment_options(struct segment_out *out, __u32 agreed, __u32 mss,
					    __u32 scale, __u32 stamp, __u32 echo)
{
	segment_word(out, TCP_OPT_MSS << 24 | TCP_OPT_MSS_LEN << 16 | (mss & 0xffff));
	if (agreed & COOKIE_STAMPS)
		segment_stamps(out, agreed & COOKIE_SACK, stamp, echo);
	else if (agreed & COOKIE_SACK)
		segment_word(out, TCP_OPT_NOP << 24 | TCP_OPT_NOP << 16 | TCP_OPT_SACK_OK << 8 | 2);
	if (scale != COOKIE_NO_SCALE)
		segment_word(out, TCP_OPT_NOP << 24 | TCP_OPT_SCALE << 16 | TCP_OPT_SCALE_LEN << 8 |
					  (scale & 15));
}

static __always_inline bool write_segment4(struct xdp_md *ctx, const struct segment_out *out,
					   __u32 tcp_len)
{
	struct iphdr *ip = (void *)(long)ctx->data + ETH_HLEN;
	__u32 *word = (__u32 *)ip;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return false;
	word[0] = bpf_htonl(0x45000000 | (sizeof(*ip) + tcp_len));
	word[1] = bpf_htonl(0x4000); /* don't fragment */
	word[2] = bpf_htonl((out->hops & 0xff) << 24 | IPPROTO_TCP << 16);
	word[3] = out->saddr[3];
	word[4] = out->daddr[3];
	ip->check = ~csum_fold(csum_words(word, 5));
	return true;
}

static __always_inline bool write_segment6(struct xdp_md *ctx, const struct segment_out *out,
					   __u32 tcp_len)
{
	struct ipv6hdr *ip = (void *)(long)ctx->data + ETH_HLEN;
	__u32 *word = (__u32 *)ip;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return false;
	word[0] = bpf_htonl(0x60000000);
	word[1] = bpf_htonl(tcp_len << 16 | IPPROTO_TCP << 8 | (out->hops & 0xff));
	copy_addr(ip->saddr.in6_u.u6_addr32, out->saddr);
	copy_addr(ip->daddr.in6_u.u6_addr32, out->daddr);
	return true;
}

static __always_inline void finish_segment(struct segment_out *out, bool v6, __u32 tcp_len)
{
	__u64 sum = csum_pseudo(out->saddr, out->daddr, v6, IPPROTO_TCP, (__u16)tcp_len);
	__u16 check = csum_fold(sum);

	out->word[3] |= bpf_htonl(out->words << 28);
	if (!out->unfinished) {
		for (__u32 i = 0; i < SEGMENT_WORDS; i++)
			sum += i < out->words ? out->word[i] : 0;
		check = ~csum_fold(sum);
	}
	out->word[4] = check;
}

static __always_inline bool write_words(struct xdp_md *ctx, const struct segment_out *out,
					__u32 tcp_at)
{
	void *end = (void *)(long)ctx->data_end;
	__u32 *word = (void *)(long)ctx->data + tcp_at;
	__u8 *byte;

	for (__u32 i = 0; i < SEGMENT_WORDS && i < out->words; i++, word++) {
		if ((void *)(word + 1) > end)
			return false;
		*word = out->word[i];
	}
	/* Payload, and padding up to Ethernet's minimum: RFC 894 wants zeros. */
	byte = (__u8 *)word;
	for (int i = 0; i < 6 && (void *)(byte + 1) <= end; i++)
		WRITE_ONCE(*byte++, 0);
	return true;
}

/* Cuts the packet, or makes it longer in front: there always is room (XDP_PACKET_HEADROOM), and behind
 * it there may be none. The Ethernet header stays the first. */
static __always_inline bool set_length(struct xdp_md *ctx, __u32 have, __u32 want, bool unfinished)
{
	struct ethhdr *eth = (void *)(long)ctx->data, old;

	if (have == want)
		return true;
	/* A checksum that a device finishes is where the kernel has noted it. */
	if (have > want || unfinished)
		return !bpf_xdp_adjust_tail(ctx, (int)want - (int)have);
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	old = *eth;
	if (bpf_xdp_adjust_head(ctx, (int)have - (int)want))
		return false;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	*eth = old;
	return true;
}

/* Writes what is in syn_rooms in place of the packet, which gets its length. 0: it cannot get it. */
__noinline __u32 write_segment(struct xdp_md *ctx, __u32 v6)
{
	struct syn_room *room = RW_ONLY(syn_rooms);
	__u32 have = bpf_xdp_get_buff_len(ctx), head = ETH_HLEN + (v6 ? 40 : 20), want, tcp_len;

	if (!room || room->out.words < 5 || room->out.words > SEGMENT_WORDS)
		return 0;
	tcp_len = room->out.words * 4 + room->out.payload;
	want = head + tcp_len;
	if (want < MIN_FRAME && have >= MIN_FRAME)
		want = MIN_FRAME;
	if (!set_length(ctx, have, want, room->out.unfinished))
		return 0;
	finish_segment(&room->out, v6, tcp_len);
	return (v6 ? write_segment6(ctx, &room->out, tcp_len) :
		     write_segment4(ctx, &room->out, tcp_len)) &&
	       write_words(ctx, &room->out, head);
}

#endif
