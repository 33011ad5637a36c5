/* SPDX-License-Identifier: GPL-2.0-only */
/* The sum over as much of a frame as one likes: for what only few packets need. */
#ifndef RINGWAY_CSUM_BYTES_H
#define RINGWAY_CSUM_BYTES_H

#include "common/checksum.bpf.h"

#define CSUM_CHUNK 512 /* what bpf_csum_diff() of Linux 6.1 takes */
#define CSUM_CHUNKS (0x10000 / CSUM_CHUNK)

struct csum_room {
	__be32 words[CSUM_CHUNK / 4];
};

/* writer, reader: gateway; nobody else. For one packet. */
RW_MAP(csum_rooms, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct csum_room, 0);

static __always_inline __u64 csum_room_words(struct csum_room *room, __u32 words)
{
	return (__u32)bpf_csum_diff(NULL, 0, room->words, words * 4, 0);
}

/* Folded sum of `len` bytes of the frame from byte `at`, in any of its buffers;
 * 0 if the frame is shorter. Changes no packet byte: pointers stay valid. */
__noinline __u32 csum_bytes(struct xdp_md *ctx, __u32 at, __u32 len)
{
	struct csum_room *room = RW_ONLY(csum_rooms);
	__u32 rest = len % CSUM_CHUNK, last;
	__u64 sum = 0;

	if (!ctx || !room)
		return 0;
	for (__u32 i = 0; i < CSUM_CHUNKS && i < len / CSUM_CHUNK; i++) {
		if (bpf_xdp_load_bytes(ctx, at, room->words, CSUM_CHUNK))
			return 0;
		sum += csum_room_words(room, CSUM_CHUNK / 4);
		at += CSUM_CHUNK;
	}
	if (!rest)
		return csum_fold(sum);
	/* 0 to 511, as the verifier of 6.1 sees it, too. */
	rest--;
	barrier_var(rest);
	rest &= CSUM_CHUNK - 1;
	last = rest / 4;
	room->words[last] = 0;
	if (bpf_xdp_load_bytes(ctx, at, room->words, rest + 1))
		return 0;
	return csum_fold(sum + csum_room_words(room, last + 1));
}

#endif
