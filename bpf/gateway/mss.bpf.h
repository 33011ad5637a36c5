/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lowers the MSS option of a SYN (RFC 9293 section 3.7.1). The options are
 * walked in a bounded loop; a SYN is rare, so the code is simple.
 */
#ifndef RINGWAY_MSS_H
#define RINGWAY_MSS_H

#include "common/checksum.bpf.h"
#include "parse.bpf.h"

#define TCP_OPT_END 0
#define TCP_OPT_NOP 1
#define TCP_OPT_MSS 2
#define TCP_OPT_MSS_LEN 4
#define TCP_OPTIONS 40	    /* bytes, at most */
#define TCP_OPTIONS_SEEN 16 /* of them; MSS is the first in practice */

/* Verified once, by itself: changes bytes in place, no pointer becomes stale.
 * tcp_at: where the TCP header begins, in bytes from the frame's start.
 * unfinished: the checksum does not cover the options yet. */
__noinline int mss_clamp(struct xdp_md *ctx, __u32 tcp_at, __u32 most, __u32 unfinished)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp;
	__u32 at = sizeof(*tcp), stop, off;
	int i;

	if (!ctx || tcp_at > 255)
		return 0;
	tcp = data + tcp_at;
	if ((void *)(tcp + 1) > end)
		return 0;
	stop = tcp->doff * 4u;
	for (i = 0; i < TCP_OPTIONS_SEEN; i++) {
		__u8 *option;
		__u16 *mss, old, new;

		/* Every position looks the same to the verifier. */
		verifier_forget(at, most);
		/* No option that matters is shorter; and a bound for the verifier. */
		off = at;
		barrier_var(off);
		if (off > sizeof(*tcp) + TCP_OPTIONS || off + TCP_OPT_MSS_LEN > stop)
			return 0;
		option = (__u8 *)tcp + off;
		mss = (__u16 *)(option + 2);
		if ((void *)(option + TCP_OPT_MSS_LEN) > end)
			return 0;
		if (option[0] == TCP_OPT_NOP) {
			at++;
			continue;
		}
		if (option[0] == TCP_OPT_END || option[1] < 2)
			return 0;
		if (option[0] != TCP_OPT_MSS || option[1] != TCP_OPT_MSS_LEN) {
			at += option[1];
			continue;
		}
		old = *mss;
		new = bpf_htons((__u16)most);
		at += TCP_OPT_MSS_LEN;
		/* Of two, Linux takes the last. */
		if (bpf_ntohs(old) <= most)
			continue;
		*mss = new;
		/* At an odd offset its bytes are halves of two checksum words. */
		if (at & 1) {
			old = __builtin_bswap16(old);
			new = __builtin_bswap16(new);
		}
		if (!unfinished)
			tcp->check = csum_apply(tcp->check, csum_change16(old, new));
	}
	return 0;
}

#endif
