/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The part of the contract that `ringway accept` on a backend has to itself. Part of abi.h, whose
 * rules of byte order hold.
 */
#ifndef RINGWAY_ABI_ACCEPT_H
#define RINGWAY_ABI_ACCEPT_H

#define RW_MAX_ACCEPT_LISTENERS 1024 /* addresses and ports */

/* Where a TCP segment to a listed address and port ends. Names and explanations are in
 * bpf/abi/src/accept.rs. */
enum rw_accept {
	/* passed to the kernel */
	RW_ACCEPT_OPENED,	 /* an ACK with a valid cookie: a connection of its own */
	RW_ACCEPT_TIME_WAIT,	 /* the same, and ends the TIME_WAIT of an earlier connection */
	RW_ACCEPT_KNOWN,	 /* of a connection that the kernel knows */
	RW_ACCEPT_HANDSHAKE,	 /* a SYN, or any other segment that is no bare ACK */
	RW_ACCEPT_KERNEL_COOKIE, /* an ACK with a cookie that this kernel has made */
	RW_ACCEPT_NO_LISTENER,	 /* nobody listens here: the kernel answers */
	/* dropped */
	RW_ACCEPT_NO_COOKIE, /* an ACK of no connection, without a valid cookie */
	RW_ACCEPT_REFUSED,   /* a valid cookie, and the kernel made no connection of it */
	RW_ACCEPTS,
};

/* Of one address and port, in packets. Per CPU. */
struct rw_accept_counts {
	__u64 packets[RW_ACCEPTS];
};

#endif
