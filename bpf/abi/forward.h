/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Forwarding between interfaces (`ringway forward`, [forward]): what the daemon tells the packet
 * path of a bridge's forwarding table and ports, or of interfaces to route between. Part of abi.h.
 * None of it is pinned: the program in RW_SLOT_FORWARD keeps it, and a start makes it anew.
 */
#ifndef RINGWAY_ABI_FORWARD_H
#define RINGWAY_ABI_FORWARD_H

#define RW_BUCKET_STATIONS 4
#define RW_STATION_BUCKETS \
	32768 /* a power of two; half full with as many stations as a bridge has */
#define RW_MAX_STATIONS 65536
#define RW_FORWARD_WAYS 256 /* places for RW_MAX_IFACES interface indexes */
#define RW_WAY_TRIES 8
#define RW_USED_NEIGHBOURS 4096 /* a power of two */
#define RW_OWN_BITS 13
#define RW_OWN_HASH 0x9e3779b1u
#define RW_FORWARD_LEASE 5 /* seconds that the daemon may be silent */
#define RW_VLANS 4096

/*
 * A host behind a bridge's port. key = MAC address as a number, its first byte lowest, | VLAN << 48
 * (0: the bridge does not filter VLANs); 0 is free. It is in one of its two buckets:
 *   h = (key ^ keys[0]) * keys[1]; h = (h ^ h >> 29) * keys[1]
 *   h >> 40 and h >> 16, lowest bits
 * The daemon writes port before key, and key 0 before anything else takes the place: who reads the
 * key again after the port has not read another's port.
 */
struct rw_station {
	__u64 key;
	__u32 port; /* interface slot */
	__u32 seen; /* second (CLOCK_MONOTONIC) in which a frame of it was forwarded last */
};

struct rw_station_bucket {
	struct rw_station stations[RW_BUCKET_STATIONS];
};

enum rw_port_flags {
	RW_PORT_FORWARDS = 1, /* may receive and send now */
	RW_PORT_FILTERS = 2,  /* its bridge filters VLANs */
	RW_PORT_ISOLATED = 4, /* sends to no other isolated port */
	RW_PORT_STRICT = 8,   /* sources have to be reached by it (rp_filter 1) */
	RW_PORT_LOOSE = 16,   /* sources have to be reached at all (rp_filter 2) */
};

/* By interface slot. */
struct rw_port {
	__u32 flags;
	__u16 pvid;	     /* VLAN of untagged frames; 0: they are not accepted */
	__u16 vlan_proto_be; /* EtherType of the bridge's tags */
};

enum rw_vlan_flags {
	RW_VLAN_MEMBER = 1,
	RW_VLAN_UNTAGGED = 2, /* leaves without tag */
};

/* By interface slot: the VLANs of a port. */
struct rw_port_vlans {
	__u8 flags[RW_VLANS];
};

/* An interface slot by its interface index, from place ifindex % RW_FORWARD_WAYS on. */
struct rw_way {
	__u32 ifindex; /* 0: free */
	__u32 slot;
};

enum rw_forward_mode {
	RW_FORWARDING_BRIDGE,
	RW_FORWARDING_ROUTE,
	RW_FORWARDING_MODES,
};

/* Constants of the program. */
struct rw_forwarder {
	__u64 keys[2]; /* random; the second is odd */
	__u32 mode;
	__u32 dry;
};

struct rw_forwarding {
	__u32 until; /* second (CLOCK_MONOTONIC) after which all frames go to the kernel */
	__u32 pad;
	__u8 used[RW_USED_NEIGHBOURS]; /* 1: a frame was sent to a MAC address of this place */
	/* A bit for each IPv4 address of this host, at (address * RW_OWN_HASH) >> (32 - RW_OWN_BITS),
	 * with the address as the packet has it: a source without its bit is not this host's. */
	__u64 own[(1 << RW_OWN_BITS) / 64];
};

#endif
