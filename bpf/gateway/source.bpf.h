/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sources that are not accepted: an address that no host has (RFC 1122 section 3.2.1.3, RFC 4291
 * section 2.5), and our own. Such a packet opens no flow and gets no answer.
 */
#ifndef RINGWAY_SOURCE_H
#define RINGWAY_SOURCE_H

#include "service.bpf.h"

/* Whether this address can be answered: not if it stands for many, for nobody, or for the sender
 * itself. A subnet's broadcast address looks like any other from here. */
static __always_inline bool is_host(const __u32 *addr, bool v6)
{
	__u8 first;

	if (v6)
		return (addr[0] | addr[1] | addr[2] | (addr[3] & ~bpf_htonl(1))) &&
		       (addr[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000);
	first = bpf_ntohl(addr[3]) >> 24;
	return first && first != 127 && first < 224;
}

/* The tables' flags for an address alone: enum rw_service_flags, RW_ADDR_...; 0: none. */
static __always_inline __u32 address_flags(const __u32 *addr)
{
	struct rw_service_key key = {};
	struct rw_service *entry;

	copy_addr(key.addr, addr);
	entry = address_entry(&key);
	return entry ? entry->flags : 0;
}

static __always_inline bool is_service_address(const __u32 *addr)
{
	return address_flags(addr) & RW_ADDR_SERVICE;
}

/* Whether this source may get an answer of ours (a reset, an echo reply, an ICMP error). NONE:
 * yes. */
static __always_inline enum rw_reason unanswerable(const __u32 *addr, bool v6)
{
	if (!is_host(addr, v6))
		return RW_REASON_MARTIAN_SOURCE;
	return address_flags(addr) & (RW_ADDR_SERVICE | RW_ADDR_NODE) ? RW_REASON_LOOP :
									RW_REASON_NONE;
}

#endif
