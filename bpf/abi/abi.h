/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The only contract between the packet path and user space: keys, values,
 * verdicts, reasons, limits and the layout version. Included by every eBPF
 * program and turned into Rust by bpf/abi at build time.
 *
 * Byte order: fields named *_be and every address are in network byte order,
 * as on the wire. Everything else is in host byte order.
 * Addresses are 16 bytes; IPv4 is held IPv4-mapped (::ffff:a.b.c.d), so one
 * structure and one code path serve both families.
 */
#ifndef RINGWAY_ABI_H
#define RINGWAY_ABI_H

/* Words are compared and swapped whole whose fields others read one by one. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Ringway's maps are laid out for little-endian processors"
#endif

/* Raised whenever a pinned map changes in meaning or size. A daemon that
 * finds another number under its pins refuses to take them over. */
#define RW_LAYOUT 3

#define RW_MAX_IFACES 64       /* interface slots, key of ifaces, ledger, devmap */
#define RW_MAX_SERVICES 4096   /* (address, port, protocol) triples */
#define RW_MAX_BACKENDS 131072 /* one per (service, real); the maps may hold fewer */
#define RW_MAX_MEMBERS 1024    /* backends of a service */
#define RW_MAX_MEMBER_PLACES (4 * RW_MAX_BACKENDS) /* room to move a service's members */
#define RW_MAX_RINGS 16384	    /* services with equal members share one; room to replace all */
#define RW_MAX_NAT_ADDRS 64	    /* source addresses of nat, both families */
#define RW_RING_SLOTS 65537	    /* prime, Maglev's table size */
#define RW_NO_MEMBER 0xffff	    /* ring slot without a backend */
#define RW_BUCKET_FLOWS 3	    /* records in a flow bucket (128 bytes) */
#define RW_INDEX_ENTRIES 8	    /* entries in an index bucket (64 bytes) */
#define RW_HASH_KEYS 6		    /* one per word of a tuple, and one to start from */
#define RW_LABEL_LEN 64		    /* service name, NUL-terminated */
#define RW_MAX_DECAP_ADDRESSES 4096 /* of the host that ringway decap runs on */

/* Slots of the node's prog_array: the stages in the order a packet meets them,
 * then parts of a stage that only some packets meet. */
enum rw_slot {
	RW_SLOT_SHIELD,
	RW_SLOT_BALANCE,
	RW_SLOT_CAPTURE, /* before all others; a place that no release before used */
	RW_SLOT_FORWARD,
	RW_SLOT_ON_PASS, /* a user's own program; last, instead of XDP_PASS */
	RW_SLOT_ICMP,	 /* part of the balancer */
	RW_SLOTS,
};

/* The same numbers as enum xdp_action (linux/bpf.h). */
enum rw_verdict {
	RW_ABORTED,
	RW_DROP,
	RW_PASS,
	RW_TX,
	RW_REDIRECT,
	RW_VERDICTS,
};

/* Why a packet got its verdict. Append only; names and explanations are in
 * bpf/abi/src/reason.rs, whose match fails to compile when one is missing. */
enum rw_reason {
	RW_REASON_NONE, /* never counted: a zero here is a bug */
	/* passed to the kernel */
	RW_REASON_NOT_IP,	  /* ARP, LLDP, ... not for us */
	RW_REASON_VLAN,		  /* tagged frame */
	RW_REASON_NO_SERVICE,	  /* not a service's address and port */
	RW_REASON_ICMP,		  /* ICMP to a service address */
	RW_REASON_OTHER_PROTOCOL, /* neither TCP nor UDP, to a service address */
	RW_REASON_ON_PASS,	  /* handed to the user's on_pass program */
	RW_REASON_NO_STAGE,	  /* no program in any slot */
	RW_REASON_OTHER_HOST,	  /* the frame is for another MAC address */
	/* dropped */
	RW_REASON_MALFORMED,	  /* header cut short or lengths that disagree */
	RW_REASON_IP_OPTIONS,	  /* IPv4 options that make no sense, to a service address */
	RW_REASON_IPV6_EXTENSION, /* cannot be stepped over, to a service address */
	RW_REASON_FRAGMENT,	  /* of another protocol than TCP and UDP, to a service address */
	RW_REASON_TTL_EXPIRED,
	RW_REASON_NO_BACKEND,	 /* none healthy, when_none_healthy = "drop" */
	RW_REASON_NO_NEIGHBOUR,	 /* backend's next hop has no MAC address */
	RW_REASON_NAT_EXHAUSTED, /* no free port towards this backend */
	RW_REASON_NAT_CONFLICT,	 /* source = "client": port in use to this backend */
	RW_REASON_FLOW_TABLE_FULL,
	RW_REASON_HAIRPIN,	/* source = "client": client is a backend */
	RW_REASON_TOO_BIG,	/* longer than the way out allows */
	RW_REASON_LOOP,		/* source is a service address, or under dsr one of the node's */
	RW_REASON_RESET_FAILED, /* a reset was due but could not be built */
	RW_REASON_NO_FLOW,	/* RST of an unknown flow: never answered */
	RW_REASON_NO_DEVICE,	/* no device in the way out's slot */
	RW_REASON_NO_STATE,	/* a table of ours is missing: a bug, never silent */
	/* sent on */
	RW_REASON_NAT_FORWARD,	      /* client -> backend */
	RW_REASON_NAT_REPLY,	      /* backend -> client */
	RW_REASON_RESET_NO_BACKEND,   /* RST: none healthy */
	RW_REASON_RESET_BACKEND_DOWN, /* RST: the flow's backend died */
	RW_REASON_RESET_NO_FLOW,      /* RST: TCP segment of an unknown flow */
	RW_REASON_ARP_REPLY,
	RW_REASON_ND_REPLY,
	RW_REASON_DSR_L2,
	RW_REASON_DSR_IPIP,
	RW_REASON_DSR_GUE,
	RW_REASON_NO_HEADROOM,	  /* drop: no room for the outer header */
	RW_REASON_PASS_REWRITTEN, /* pass: rewritten, the kernel forwards it */
	/* ringway decap, on a backend */
	RW_REASON_NO_TUNNEL,	   /* pass: not a tunnel packet to this host */
	RW_REASON_TUNNEL_OTHER,	   /* pass: of a kind that is not opened here */
	RW_REASON_INNER_ELSEWHERE, /* pass: what is inside is not for this host */
	RW_REASON_ECN_CONFLICT,	   /* drop: congestion marked, inner not capable */
	RW_REASON_DECAP_IPIP,	   /* pass, without its outer header */
	RW_REASON_DECAP_GUE,	   /* pass, without its outer headers */
	RW_REASON_ECHO_REPLY,
	RW_REASON_ICMP_TO_BACKEND,    /* an ICMP error, by its embedded packet */
	RW_REASON_ICMP_TO_CLIENT,     /* the same */
	RW_REASON_ICMP_NO_FLOW,	      /* drop: the embedded packet is of no flow */
	RW_REASON_SENT_TOO_BIG,	      /* answered: it does not fit */
	RW_REASON_SENT_TIME_EXCEEDED, /* answered: its TTL ends here */
	RW_REASON_ICMP_LIMITED,	      /* drop: an answer was due, the rate limit spoke */
	RW_REASON_SOURCE_ROUTE, /* drop: IPv4 source route, or a routing header with segments left */
	RW_REASON_TRACK_FULL,	/* drop: new flow in a changed slot, no room for its record */
	RW_REASON_TRACK_QUOTA,	/* drop: the same, its source prefix opened too many */
	RW_REASON_FRAGMENT_EARLY,  /* drop: the first of its datagram is not known */
	RW_REASON_OUT_OF_STATE,	   /* drop: nat, the handshake does not allow this segment */
	RW_REASON_RESET_STRAY,	   /* RST to a backend: its segment is of an earlier connection */
	RW_REASON_WRONG_INTERFACE, /* drop: nobody who may send this is on this interface */
	RW_REASON_MARTIAN_SOURCE,  /* drop: the source is the address of no host */
	RW_REASON_RESET_LIMITED,   /* drop: a reset was due, the rate limit spoke */
	RW_REASON_SYN_CHALLENGED,  /* sent back: a SYN's answer that only a real sender refuses */
	RW_REASON_SYN_ANSWERED,	   /* sent back: a SYN's answer with a cookie */
	RW_REASON_RESET_NO_STAMPS, /* RST to both: the backend lacks what its client was promised */
	/* Dropped by the shield. From here on a reason goes with one verdict alone (rw_ledger). */
	RW_REASON_TCP_FLAGS = 64,   /* flags that no segment has */
	RW_REASON_LAND,		    /* source and destination are one address */
	RW_REASON_FRAGMENT_TINY,    /* a first fragment without its ports, or one that is none */
	RW_REASON_FRAGMENT_OVERLAP, /* a later fragment that would overwrite the ports */
	RW_REASON_BLOCKED,	    /* the source is in a block list, or was blocked */
	RW_REASON_RULE,		    /* a rule with action "drop" */
	RW_REASON_RULE_LIMIT,	    /* a rule with action "limit", over its rate */
	RW_REASON_SERVICE_LIMIT,    /* a service, or its address, gets more than its rate */
	RW_REASON_NEW_FLOW_LIMIT,   /* a service gets more new flows than its rate */
	RW_REASON_SOURCE_LIMIT,	    /* a source prefix sends more to a service than its rate */
	RW_REASON_CHALLENGE_MET,    /* the RST that a challenge asked for: its sender is there */
	/* Forwarded between interfaces, */
	RW_REASON_BRIDGED,
	RW_REASON_ROUTED,
	/* or left to the kernel: of any mode, */
	RW_REASON_FORWARD_STALE,      /* nobody has kept the tables for RW_FORWARD_LEASE seconds */
	RW_REASON_FORWARD_PORT,	      /* the port, or the way out, does not forward this now */
	RW_REASON_FORWARD_TOO_LONG,   /* longer than the way out takes */
	RW_REASON_FORWARD_UNFINISHED, /* its checksum is, or may be, unfinished */
	/* of a bridge, */
	RW_REASON_BRIDGE_GROUP,	      /* to a group: multicast, broadcast, spanning tree */
	RW_REASON_BRIDGE_SOURCE,      /* its source is not known at this port */
	RW_REASON_BRIDGE_DESTINATION, /* its destination is not known */
	RW_REASON_BRIDGE_VLAN,	      /* its VLAN is not allowed, or a tag changes */
	/* of routes */
	RW_REASON_ROUTE_UNCOMMON, /* not for us, not IP, or addresses or options that the kernel judges */
	RW_REASON_ROUTE_HOP_LIMIT, /* its TTL ends here */
	RW_REASON_ROUTE_SOURCE,	   /* the reverse path filter would drop it */
	RW_REASON_ROUTE_NONE,	   /* to this host, or nowhere */
	RW_REASON_ROUTE_NEIGHBOUR, /* the next hop's MAC address is not known */
	RW_REASON_ROUTE_ELSEWHERE, /* out by an interface that is not forwarded on, or back */
	RW_REASONS,
};
#define RW_REASON_SPACE 64 /* reasons in a row of the ledger */

/* Why the kernel dropped a packet that had our TX or REDIRECT already. Append
 * only; names and explanations are in bpf/abi/src/loss.rs. */
enum rw_loss {
	RW_LOSS_TOO_BIG, /* longer than the device's MTU allows */
	RW_LOSS_DEVICE_DOWN,
	RW_LOSS_NO_RECEIVER, /* the device takes no redirected frames */
	RW_LOSS_QUEUE_FULL,  /* the device took fewer than it was given */
	RW_LOSS_TX_REFUSED,  /* the driver could not send back */
	RW_LOSS_NO_MEMORY,
	RW_LOSS_OTHER,
	RW_LOSSES,
};
#define RW_LOSS_SPACE 16 /* room in the ledger */

/* One interface's ledger. root counts `seen` on entry; every exit counts one
 * (verdict, reason). seen - sum(counts) must be 0. A reason from RW_REASON_SPACE on goes with
 * one verdict alone, and is counted in the row of RW_ABORTED, a verdict that Ringway never gives.
 * lost: packets counted as TX or REDIRECT that the kernel dropped afterwards. */
struct rw_ledger {
	__u64 seen;
	__u64 counts[RW_VERDICTS][RW_REASON_SPACE];
	__u64 lost[RW_LOSS_SPACE];
};

/* Addresses, ports and protocol of a packet. */
struct rw_tuple {
	__u32 saddr[4];
	__u32 daddr[4];
	__u16 sport_be;
	__u16 dport_be;
	__u8 proto;
	__u8 tcp_flags;
	__u16 pad;
};

enum rw_fragment {
	RW_FRAGMENT_NONE,
	RW_FRAGMENT_FIRST, /* has the ports */
	RW_FRAGMENT_LATER,
};

/* Positions in an IP packet, in bytes. */
struct rw_layers {
	__u16 l3_len; /* by its own header; 0: nothing to rely on */
	__u16 l4;     /* from the frame's start */
	__u16 l4_len;
	__u16 fragment; /* enum rw_fragment */
	__u32 fragment_id;
};

/* Input and result of opening a flow. */
struct rw_opening {
	__u64 key;     /* out: of the published flow */
	__u32 backend; /* reference */
	__u32 iface;   /* slot the request came in by */
	__u32 now;     /* seconds */
	__u16 service;
	__u8 source_client;
	__u8 failed;  /* out: enum rw_reason */
	__u8 mac[6];  /* the request's L2 source */
	__u8 isn;     /* as in rw_flow's confirmed, in state SYN */
	__u8 shifted; /* 1: its client was answered with a cookie, which is in syn_rooms */
};

/* Tasks that the balancer passes to its part for what is rare, mostly ICMP. */
enum rw_icmp_task {
	RW_ICMP_ARRIVED,       /* an ICMP packet to us */
	RW_ICMP_TOO_BIG,       /* a packet does not fit the way out */
	RW_ICMP_TIME_EXCEEDED, /* a packet's TTL ends here */
	RW_ICMP_OPEN,	       /* an ACK brings back a cookie (proxy.bpf.h) */
	RW_ICMP_ASK_AGAIN,     /* its flow, whose key opening has, waits for the backend */
	RW_ICMP_ANSWERED,      /* the backend has answered; the same */
};

struct rw_icmp {
	__u32 task;
	__u32 v6;
	__u32 l3_at; /* bytes of the frame before layer 3 */
	__u32 mtu;   /* TOO_BIG: what fits; ASK_AGAIN, ANSWERED: the flow's place */
	__u32 from
		[4]; /* TOO_BIG, TIME_EXCEEDED: an address of ours, to tell it by; OPEN: the cookie */
	__u32 reason; /* out */
	__u32 iface;  /* out: of the way on, as is mac */
	__u8 mac[6];
	__u16 pad;
	__u32 pad2;
};

#define RW_BLOCK_ALL 16 /* the block of all ports */

/* Entries in `services`: blocks of ports, and addresses. */
#define RW_MAX_SERVICE_ENTRIES (2 * RW_MAX_SERVICES + RW_MAX_BACKENDS)

/* Key (address, 0, 0) is an address entry: the flags of the address alone;
 * its id has bit b set if a service of the address has blocks of 2^b ports. */
struct rw_service_key {
	__u32 addr[4];
	__u16 port_be; /* the first of 2^block ports */
	__u8 proto;
	__u8 block;
};

/* In rw_scratch's tags: the packet came without an Ethernet header, and ours was added. */
#define RW_NO_HEADER 1

/* Results of a stage for the stages after it, because tail calls do not return.
 * Per CPU; valid for one packet. */
struct rw_scratch {
	__u32 iface;   /* interface slot the packet came in by: of the VLAN device, if any */
	__u32 device;  /* slot of the device itself, whose ledger counts it */
	__u32 tags[2]; /* taken off the frame, as they were: ethertype << 16 | TCI; 0: none;
			* or RW_NO_HEADER */
	struct rw_tuple tuple;
	struct rw_tuple reply; /* as the backend will answer it */
	struct rw_opening opening;
	struct rw_layers layers;
	struct rw_service_key key;
	__u32 allowed; /* 1: the shield's lists allow the source */
	struct rw_icmp icmp;
};

enum rw_iface_flags {
	/* Send back by redirect, not by XDP_TX: veth hands over what XDP_TX
	 * sends only when its far end runs native XDP (drivers/net/veth.c,
	 * veth_xdp_flush); a redirected frame arrives with GRO alone as well. */
	RW_IFACE_REDIRECT = 1,
	/* Runs the program in the kernel's generic path. Packets from native XDP
	 * cannot be redirected into it: the kernel has to forward them. */
	RW_IFACE_GENERIC = 2,
	/* Has no Ethernet header (WireGuard, tun): no redirect can enter it. */
	RW_IFACE_LAYER3 = 4,
	/* Its packets may come from a stack of this machine with unfinished
	 * checksums (partial.bpf.h): generic path, veth, tap. */
	RW_IFACE_LOCAL = 8,
	/* Sends checksums as they are, finished or not. */
	RW_IFACE_RAW = 16,
	/* Faces clients only, by the configuration: their flows may move to it. */
	RW_IFACE_CLIENTS = 32,
	/* Faces backends only, by the configuration: any backend may answer on it, and no
	 * client's packet is accepted. */
	RW_IFACE_BACKENDS = 64,
	/* Leads, or led, to a backend: unless it faces clients, no flow moves to it. */
	RW_IFACE_WAY_OUT = 128,
	/* What no stage before it takes is forwarded, or may be (bpf/forward). */
	RW_IFACE_FORWARDS = 256,
};

struct rw_iface {
	__u32 ifindex;
	__u8 mac[6];
	__u8 alt_mac[6]; /* also ours: the bridge's or bond's; else same as mac */
	__u16 mtu;	 /* L3 bytes */
	__u16 flags;
	__u32 device;  /* slot in `devices`: its own, or that of the device below a VLAN's */
	__u32 tags[2]; /* of a VLAN device: ethertype << 16 | VID, outer first; 0: none */
};

/* Key of an interface slot: a device and the tags of its frames. */
struct rw_vlan_key {
	__u32 device;
	__u32 tags[2]; /* as in rw_iface; a tag of VID 0 is left out (IEEE 802.1Q section 6.9) */
};

/* How a service's packets reach its backends. All but nat are dsr: the backend
 * has the service address and answers the client directly. */
enum rw_forward {
	RW_FORWARD_NAT,	     /* addresses and ports rewritten, both ways */
	RW_FORWARD_DSR_L2,   /* only the frame's MAC addresses */
	RW_FORWARD_DSR_IPIP, /* IP in IP (RFC 2003, 2473, 4213), any family in any */
	RW_FORWARD_DSR_GUE,  /* IP in UDP: GUE variant 1, no GUE header at all */
	RW_FORWARDS,
};

enum rw_service_flags {
	/* of a service */
	RW_SVC_SOURCE_CLIENT = 1,   /* keep the client's address */
	RW_SVC_NONE_RESET = 2,	    /* none healthy: RST, else drop */
	RW_SVC_AFFINITY_SOURCE = 4, /* the client's address alone chooses the slot */
	/* Two bits from RW_SVC_SHIELD_SHIFT on: 1 + enum rw_shield_mode; 0: as the node's. */
	RW_SVC_LIMITED = 8, /* it has a row in shield_policies */
	/* of an address entry */
	RW_ADDR_SERVICE = 16,  /* some service has this address */
	RW_ADDR_ANNOUNCE = 32, /* answer ARP and ND for it */
	RW_ADDR_BACKEND = 64,  /* backend of a source = "client" service */
	RW_ADDR_NODE = 128,    /* the node's own: no client of a dsr service */
};

#define RW_SVC_SYN_COOKIES 1024 /* an ACK without a flow may bring back a cookie */
#define RW_SVC_SHIELD_SHIFT 8
#define RW_SVC_SHIELD_MASK 3

struct rw_service {
	__u32 id; /* into service_info; < RW_MAX_SERVICES */
	__u32 ring;
	__u32 flags;
	__u32 forward; /* enum rw_forward */
	__u32 members; /* the service's members: places from here on in `members` */
	__u32 member_count;
};

/*
 * The rows of `services` once more, where a look-up takes loads alone: parts of service_places, of
 * which one is in force. In a part a key is in one of two places (cuckoo hashing).
 */
#define RW_SERVICE_PARTS 4

struct rw_service_part {
	__u64 keys[3];
	__u32 first;  /* of its places */
	__u32 mask;   /* those in use - 1 */
	__u32 blocks; /* 1: a service has more than one port */
	__u32 pad;
};

struct rw_service_index {
	struct rw_service_part parts[RW_SERVICE_PARTS];
	__u32 in_force;
	__u32 epoch; /* settings.services_epoch after it was written: else another release wrote */
};

/* One cache line. */
struct rw_service_place {
	struct rw_service_key key;
	__u32 pad;
	struct rw_service service;
	__u64 pad2[2];
};

/* The service's address for its clients, used for replies. */
struct rw_service_info {
	__u32 addr[4];
	__u16 port_be;
	__u8 proto;
	__u8 used;
	__u32 flags;
	__u32 forward;	    /* enum rw_forward */
	__u16 last_port_be; /* of a range; else as port_be */
	__u16 pad;
};

struct rw_label {
	char name[RW_LABEL_LEN];
};

/*
 * A ring as one value, so that replacing the inner map replaces all of it. A slot
 * holds: below RW_MAX_MEMBERS, a member of the service, which has all its flows;
 * RW_NO_MEMBER, nobody; else RW_MAX_MEMBERS + n, the nth pair of the ring
 * (ring.bpf.h).
 */
struct rw_ring {
	__u16 slots[RW_RING_SLOTS];
	__u16 pad;
};

/* Owners of a slot that has changed: members, or RW_NO_MEMBER. */
struct rw_pair {
	__u16 current; /* new flows */
	__u16 former;  /* flows without a record */
	__u32 since;   /* seconds, CLOCK_MONOTONIC; for control alone */
};

/* A backend reference is index | generation << 17. The generation changes
 * when an index is given to another backend, so a flow of the former one is
 * recognised and never sent to the wrong machine. */
#define RW_BACKEND_BITS 17
#define RW_BACKEND_INDEX(ref) ((RW_MAX_BACKENDS - 1) & (ref))
#define RW_BACKEND_GENERATION(ref) ((ref) >> RW_BACKEND_BITS)

enum rw_backend_flags {
	RW_BACKEND_UP = 1,	  /* its flows live */
	RW_BACKEND_RESOLVED = 2,  /* dmac, iface and mtu are valid */
	RW_BACKEND_TAKES_NEW = 4, /* in its service's ring */
	RW_BACKEND_KEPT = 8,	  /* its checks fail, but its established TCP flows go on */
};

struct rw_backend {
	__u32 addr[4];
	__u16 port_be; /* 0: the one the client asked for */
	__u8 proto;
	__u8 flags;
	__u16 generation;
	__u16 service;
	__u8 dmac[6];
	__u16 mtu;	 /* L3 bytes, of the way out */
	__u32 iface;	 /* interface slot of the way out */
	__u32 nat_first; /* nat_addrs[nat_first .. nat_first + nat_count] */
	__u32 nat_count;
	__u32 tunnel_saddr[4]; /* tunnels: outer source; the outer destination is addr */
	__u16 tunnel_port_be;  /* dsr-gue: outer UDP destination */
	__u16 mss;	       /* a SYN's MSS is lowered to this; 0: left alone */
};

struct rw_address {
	__u32 addr[4];
};

/* Uses of a host's address by ringway decap. */
enum rw_decap_address {
	RW_DECAP_OUTER = 1, /* tunnels end here */
	RW_DECAP_INNER = 2, /* what comes out of them may be for this */
};

/* Destination of a health check of a dsr backend (probe.bpf.c); key: the mark of
 * its socket. */
struct rw_probe {
	__u32 forward;	/* enum rw_forward, none but dsr */
	__u32 ifindex;	/* the way out */
	__u32 saddr[4]; /* of the outer header */
	__u32 daddr[4];
	__u8 smac[6];
	__u8 dmac[6];
	__u16 port_be; /* dsr-gue: UDP destination */
	__u16 pad;
};

/* Results for packets of health checks. */
enum rw_probe_outcome {
	RW_PROBE_SENT,
	RW_PROBE_UNMARKED, /* dropped: no check's, or of one that has no way */
	RW_PROBE_FAILED,   /* dropped: no memory, or the device is gone */
	RW_PROBE_OUTCOMES,
};

enum rw_flow_state {
	RW_FLOW_FREE,	     /* never used, or given back */
	RW_FLOW_CLAIMED,     /* being written by one CPU */
	RW_FLOW_SYN,	     /* client's SYN seen */
	RW_FLOW_SYN_ACK,     /* backend's answer seen */
	RW_FLOW_ESTABLISHED, /* client's ACK of it seen */
	RW_FLOW_FIN_CLIENT,
	RW_FLOW_FIN_BACKEND,
	RW_FLOW_CLOSED,	 /* FIN from both, or RST from the backend */
	RW_FLOW_UDP_NEW, /* no answer yet */
	RW_FLOW_UDP,
	RW_FLOW_RESET,	 /* RST from the client: the backend's next segment refutes it */
	RW_FLOW_RESTING, /* UDP, evicted: its port is not given away yet */
	RW_FLOW_STATES,
};
/* States with a timeout of their own: those before RESET. */
#define RW_FLOW_TIMEOUTS 10

/* nat_addr of a flow whose source stays the client's (source = "client"). */
#define RW_NAT_CLIENT 0xff

/*
 * One translated flow, found from both directions: by the reply's tuple
 * (whose hash selects the bucket) and through the forward index.
 * key is one 64-bit word: it changes first when a record is claimed and last
 * when it is published, by compare-and-swap. A reader that sees the same live
 * key before and after has read one flow, not parts of two.
 *   key = backend ref | nat_port << 32 | nat_addr << 48 | state << 56
 *   (nat_port in host byte order)
 */
struct rw_flow {
	__u64 key;
	__u32 client[4];
	/* The next 8 bytes are one aligned word: it moves by compare-and-swap (faces.bpf.h). */
	__u8 client_mac[6]; /* where replies go: L2 source of the requests */
	__u8 iface;	    /* interface slot of the requests; RW_FLOW_SHIFTED */
	__u8 confirmed; /* RW_CONFIRMED, RW_ASKED, RW_ACKED; during the handshake RW_ISN_SHIFT */
	__u16 client_port_be;
	__u16 service;
	__u32 seen; /* seconds, CLOCK_MONOTONIC */
};

/* Beside the slot: the flow has a shift. */
#define RW_FLOW_SHIFTED 0x80
_Static_assert(RW_MAX_IFACES <= RW_FLOW_SHIFTED, "a slot and a bit");

/*
 * How the numbers of a flow's backend are shifted for its client, to whom the gateway itself has
 * answered. By the flow's place. Host byte order.
 */
struct rw_shift {
	__u32 seq;    /* is added to what the backend sends, and taken off what it gets */
	__u32 stamp;  /* the same of time stamps */
	__u32 number; /* the cookie: our ISN towards the client */
	__u32 last;   /* the time stamp that the client has seen last, in the handshake */
	__u8 flags;
	__s8 up;	/* windows that the backend offers, to the left */
	__s8 client_up; /* those that the client offers */
	__u8 isn;	/* of the client, as in rw_flow's confirmed */
};
#define RW_SHIFT_KNOWN 1 /* the backend has answered: seq, stamp, up and client_up are set */

/* As a flow bucket. */
struct rw_shift_bucket {
	struct rw_shift shifts[RW_BUCKET_FLOWS];
	__u32 pad;
};

/*
 * Bits of a flow's `confirmed`. A flow without RW_CONFIRMED is on probation: a new one may
 * take its place.
 */
#define RW_CONFIRMED 1
#define RW_ASKED 2 /* its client has sent something after the flow's first seconds */
#define RW_ACKED 4 /* its client has ended the handshake; the backend has sent nothing since */
/* From here on, in states SYN and SYN_ACK: the lowest 7 bits of the number that
 * acknowledges the client's SYN (0: unknown), and the backend's. */
#define RW_ISN_SHIFT 1

/* dport_be[i]: the port to which flows[i]'s client sends. */
struct rw_flow_bucket {
	__u16 dport_be[RW_BUCKET_FLOWS];
	__u16 pad;
	struct rw_flow flows[RW_BUCKET_FLOWS];
};

/* Forward index entry: tag << 32 | bucket << 2 | place + 1; 0 is empty.
 * The tag is the upper half of the client tuple's hash. */
struct rw_index_bucket {
	__u64 entries[RW_INDEX_ENTRIES];
};

/*
 * A tracked flow of a dsr service: only flows of changed slots have one.
 *   who  = keyed hash of tuple and service, upper 47 bits | ring slot
 *   what = backend ref | seen << 32 | state << 60
 *   (seen in seconds, CLOCK_MONOTONIC, 28 bits)
 * who 0 is free, 1 is being written.
 */
struct rw_track {
	__u64 who;
	__u64 what;
};
#define RW_TRACK_SLOT_BITS 17
#define RW_TRACK_SEEN_BITS 28
#define RW_BUCKET_TRACKS 4

struct rw_track_bucket {
	struct rw_track tracks[RW_BUCKET_TRACKS];
};

/* Bits of a tracked flow's state. */
enum rw_track_state {
	RW_TRACK_PROMOTED = 1, /* packets a second apart: no new flow may evict it */
	RW_TRACK_SYN = 2,      /* nothing but SYNs yet */
	RW_TRACK_CLOSING = 4,  /* FIN or RST from the client */
	RW_TRACK_UDP = 8,
};

/* New flows of one source prefix in one second: second << 32 | flows. */
#define RW_TRACK_QUOTAS 65536

/* Kept flows of one source prefix towards one backend, by hash. */
#define RW_CONFIRMED_COUNTS 65536

/* Counts about tracked flows. Per CPU. */
struct rw_tracking {
	__u64 opened;  /* new flows, tracked */
	__u64 adopted; /* flows older than their slot's change, tracked */
	__u64 promoted;
	__u64 evicted;	    /* on probation, by newer ones */
	__u64 refused_full; /* no room: to the former owner, or dropped */
	__u64 refused_quota;
};

/*
 * The ports of a fragmented datagram, noted from its first fragment.
 *   ports = sport_be | dport_be << 16 | seen << 32, bit 63: TCP, else UDP
 *   check = ports ^ keyed hash of (addresses, identification, protocol)
 * A reader that catches half of a write finds that the two disagree.
 */
struct rw_fragments {
	__u64 check;
	__u64 ports;
};

#define RW_FRAGMENT_BUCKETS 8192 /* of 4 datagrams: 512 KiB */
#define RW_BUCKET_FRAGMENTS 4
#define RW_FRAGMENT_TIMEOUT 30 /* seconds, as Linux's ipfrag_time */

struct rw_fragment_bucket {
	struct rw_fragments datagrams[RW_BUCKET_FRAGMENTS];
};

/* Per CPU. Host byte order. */
struct rw_traffic {
	__u64 packets; /* client -> backend */
	__u64 bytes;
	__u64 reply_packets;
	__u64 reply_bytes;
	__u64 flows;		 /* flows begun */
	__u64 partial_checksums; /* SYNs whose checksum the sender left unfinished */
	__u64 ports; /* claim.bpf.h: the next place in the ring; above, the second when none was free */
	__u64 evicted; /* flows on probation that gave way to new ones */
};

/* How the flow tables' hash is computed (hash.bpf.h). */
enum rw_hash {
	RW_HASH_MULTILINEAR, /* tables made by 0.1.0 or before */
	RW_HASH_NH,
};

/* Written by user space, read per packet. Seconds. */
struct rw_settings {
	__u32 layout;	  /* RW_LAYOUT */
	__u32 flow_mask;  /* flow buckets - 1 */
	__u32 index_mask; /* index buckets - 1 */
	__u32 port_first; /* nat pool, host byte order */
	__u32 port_count;
	__u32 reply_first;	  /* every port that a flow may have: pools of */
	__u32 reply_count;	  /* earlier configurations too */
	__u32 cpus;		  /* possible CPUs; for earlier releases alone */
	__u64 keys[RW_HASH_KEYS]; /* random: of the flow tables' hash; the ring's are fixed */
	__u32 timeout[RW_FLOW_TIMEOUTS];
	__u32 source_client; /* a service has or had RW_SVC_SOURCE_CLIENT */
	__u32 stages;	     /* bit per filled slot: 1 << RW_SLOT_... */
	/* Answers of our own, per CPU and kind (limit.bpf.h): one per gap, and this many at
	 * once; to everyone, and to one prefix (/24, /56). */
	__u32 icmp_gap_us;
	__u32 icmp_prefix_gap_us;
	__u32 icmp_burst;
	__u32 track_buckets;  /* of tracked flows; any number */
	__u32 track_quota;    /* new records a second of one prefix (/24, /64); 0: any number */
	__u32 port_blocks;    /* a service has more than one port: for earlier releases alone */
	__u32 services_epoch; /* raised when `services` has changed */
	__u32 hash;	      /* enum rw_hash: stays what it was when the flow tables were made */
};

/* Results of the dry instance, for `ringway explain` (dry.bpf.h). */
struct rw_trace {
	__u64 flow_key;	  /* of the flow found last; 0: none was */
	__u64 freed_key;  /* of a flow that would have been given up for a new one */
	__u32 flow_place; /* as the index holds it */
	__u32 ring;	  /* 1: the ring was asked, and the fields below are set */
	__u32 ring_slot;
	__u32 changed; /* the slot is changing or settling */
	__u32 current; /* its owners: backend references; 0: nobody */
	__u32 former;
	__u32 chosen;	     /* the backend for this packet; 0: none */
	__u32 tracked;	     /* 1: it was a record that said so */
	__u32 shield_reason; /* enum rw_reason: why the shield refused it, or would; 0: it did not */
	__u32 shield_list;   /* 1 + the number of the list that the source is in */
	__u32 shield_runtime; /* 1: the source was allowed or blocked at run time */
	__u32 shield_rule;    /* 1 + the number of the rule that matched */
	__u32 shield_mode;    /* 1 + enum rw_shield_mode; 0: the packet is not for it to judge */
	__u32 limit;	      /* enum rw_limit: the one it is over */
	__u32 exempt;	      /* enum rw_exemption: why it passes all the same */
	__u32 armed_until;    /* second (CLOCK_MONOTONIC) at which armed limits end; 0: none are */
};

#define RW_CAPTURES 11	       /* at once: a packet may take so many tail calls */
#define RW_CAPTURE_BYTES 16384 /* of a packet, before and after rewriting each */
#define RW_CAPTURE_HEAD 128    /* of one that no filter matches as it comes */
#define RW_NO_SERVICE 0xffff   /* a service's id: none */
#define RW_ANY 0xffffffff      /* in rw_capture: all of them */

/* Places in `capture_chain`: a packet's way through the filters. Below
 * RW_CAPTURES: what follows the filter of that capture. */
enum rw_chain {
	RW_CHAIN_FIRST = RW_CAPTURES, /* the first filter */
	RW_CHAIN_LAST,		      /* what is behind all of them: ringway_capture */
	RW_CHAIN_PLACES,
};

/*
 * Tail calls of a packet on its longest way: ringway_capture_enter, each filter, ringway_capture,
 * the shield twice (before and after a VLAN tag is taken off), its rules, SYN cookies, the
 * balancer, ICMP, forwarding, each filter and ringway_capture once more, on_pass. Kernels before 6.12 count
 * those that find their slot empty, too; on this way there is none.
 */
#define RW_LONGEST_CHAIN (1 + RW_CAPTURES + 1 + 2 + 1 + 1 + 1 + 1 + 1 + RW_CAPTURES + 1 + 1)

/* A capture: which packets it wants, beside its filter. */
struct rw_capture {
	__u64 reasons[2]; /* bit by reason */
	__u32 verdicts;	  /* bit by verdict */
	__u32 snaplen;	  /* bytes to keep: 1 to RW_CAPTURE_BYTES */
	__u32 sample;	  /* one in so many that the filter matches; 0, 1: all */
	__u32 device;	  /* slot of the device it comes in by, or RW_ANY; as iface's */
	__u32 iface;	  /* interface slot, or RW_ANY */
	__u32 service;	  /* id, or RW_ANY */
	__u32 backend;	  /* index, or RW_ANY */
	__u32 pid;	  /* of the process that reads */
};

/* Counts of a capture. Per CPU. */
struct rw_capture_counts {
	__u64 filtered; /* packets that its filter matches, where it takes samples */
	__u64 matched;	/* packets that it wants */
	__u64 lost;	/* of these: no room for their records */
};

/* A packet in a capture's ring; the bytes follow, first those before rewriting: as
 * many as the capture with the largest snaplen wants. Each reader cuts off what is
 * beyond its own. */
struct rw_capture_record {
	__u64 time_ns;	    /* CLOCK_MONOTONIC */
	__u32 iface;	    /* interface slot it came in by */
	__u32 backend;	    /* reference; 0: none */
	__u32 before_len;   /* of the frame as it came */
	__u32 before_bytes; /* of it that are here */
	__u32 after_len;    /* of the frame as it leaves; 0: it was not rewritten */
	__u32 after_bytes;  /* of it that are here */
	__u16 service;	    /* id, or RW_NO_SERVICE */
	__u8 verdict;
	__u8 reason;
	__u32 out; /* interface slot it leaves by, + 1; 0: its bytes after rewriting tell */
};

/* State of a packet on a capturing node. Per CPU; valid for one packet. */
struct rw_capture_state {
	__u32 mask;    /* captures that want it, a bit each: filters set what matches */
	__u32 before;  /* of these, those whose filter matches the packet as it came */
	__u32 skipped; /* those that do not take this sample */
	__u32 met;     /* 1: every filter has matched it as it came */
	__u32 leaving; /* 1: on its way out */
	__u32 layer3;  /* 1: of a device without Ethernet header */
	__u32 shown;   /* 1: has got its Ethernet header back, to be looked at */
	__u32 end;     /* verdict and reason (ledger.bpf.h) */
	__u32 wanted;  /* bytes of it */
};

/* A packet as it is written to rings. By CPU; valid for one packet. */
struct rw_capture_packet {
	struct rw_capture_record record;
	__u8 bytes[2 * RW_CAPTURE_BYTES];
};

#define RW_STEER_QUEUES 256 /* of an interface; packets of those beyond go to the kernel */
#define RW_MAX_STEER_RULES 32

/* The subject of a rule of steer.bpf.c: an IP protocol's number, or one of these. */
enum rw_steer_kind {
	RW_STEER_IP = 256, /* any protocol but neighbour discovery */
	RW_STEER_ARP,
	RW_STEER_ND, /* ICMPv6 types 133 to 137 (RFC 4861); these are not of kind 58 */
};

#define RW_STEER_NO_PORT 0x10000 /* beyond every port */

/* The root program's constants about its interface. */
struct rw_root {
	__u32 slot;
	__u32 layer3; /* 1: its packets have no Ethernet header */
};

/* A clock's constants: seconds since boot (CLOCK_MONOTONIC) are
 * (jiffies * per_tick + base) >> RW_TICK_SHIFT. The sum wraps as it must. */
#define RW_TICK_SHIFT 35
struct rw_clock {
	__u64 per_tick; /* seconds << RW_TICK_SHIFT */
	__u64 base;	/* the same */
};

/* Packets that go to user space: those that match all of this. */
struct rw_steer_rule {
	__u32 addr[4]; /* where they go to; of ARP and neighbour solicitations: who is asked for */
	__u32 mask[4]; /* the bits of it that count */
	__u32 kind;
	__u32 family;	  /* 4, 6; 0: both */
	__u32 first_port; /* destination ports, both included; */
	__u32 last_port;  /* RW_STEER_NO_PORT: also packets that show none */
};

struct rw_steer {
	__u32 rules; /* of these, the first so many; 0: all packets come to user space */
	/* Queues, a bit each, whose packets are dropped when their socket is gone; packets
	 * of other queues then go to the kernel. */
	__u32 drop[RW_STEER_QUEUES / 32];
	struct rw_steer_rule rule[RW_MAX_STEER_RULES];
};

/* Counters of drop_reasons.bpf.c, of one network namespace. */
enum rw_seen {
	RW_SEEN_RECEIVED,  /* handed to the stack by this device, after GRO */
	RW_SEEN_PASSED_ON, /* came in by this device, and is put before another's queue */
	RW_SEEN_QUEUED,	   /* put before this device's queue */
	RW_SEEN_LOST,	   /* came in by this device, and freed for a reason */
	RW_SEEN_LOST_NEAR, /* freed at this device: before the stack knew of it, or of this host's own */
};

struct rw_seen_key {
	__u64 location; /* of what was lost: the address in the kernel that freed it */
	__u32 ifindex;
	__u32 reason;	/* enum skb_drop_reason of the running kernel */
	__u32 protocol; /* EtherType */
	__u32 seen;	/* enum rw_seen */
};

#define RW_MAX_SEEN 4096 /* reasons by location, protocol and device */

/* By CPU. */
struct rw_seen_count {
	__u64 packets;
	__u64 segments; /* as GRO or the sender joined them: at least one a packet */
};

/* Written once a second by the daemon: the process that runs this node. */
struct rw_daemon {
	__u64 pid;
	__u64 started_unix_ns;
	__u64 alive_unix_ns;
};

#include "shield.h"
#include "accept.h"
#include "forward.h"

_Static_assert(sizeof(struct rw_service_key) == 20, "layout");
_Static_assert(sizeof(struct rw_service_place) == 64, "one cache line");
_Static_assert(sizeof(struct rw_backend) == 64, "one cache line");
_Static_assert(sizeof(struct rw_flow) == 40, "layout");
_Static_assert(RW_FLOW_TIMEOUTS == RW_FLOW_RESET, "layout");
_Static_assert(__builtin_offsetof(struct rw_flow, client_mac) % 8 == 0, "one word");
_Static_assert(sizeof(struct rw_flow_bucket) == 128, "two cache lines");
_Static_assert(sizeof(struct rw_index_bucket) == 64, "one cache line");
_Static_assert(sizeof(struct rw_fragment_bucket) == 64, "one cache line");
_Static_assert(RW_REASONS <= 2 * RW_REASON_SPACE, "ledger too small");
_Static_assert(RW_REASON_RESET_LIMITED < RW_REASON_SPACE, "with other verdicts than drop");
_Static_assert(RW_LOSSES <= RW_LOSS_SPACE, "ledger too small");
_Static_assert(RW_MAX_BACKENDS == 1 << RW_BACKEND_BITS, "backend index");
_Static_assert(sizeof(struct rw_ring) == 131076, "layout");
_Static_assert(sizeof(struct rw_track_bucket) == 64, "one cache line");
_Static_assert(sizeof(struct rw_capture_record) == 40, "layout");
_Static_assert(sizeof(struct rw_station_bucket) == 64, "one cache line");
_Static_assert(sizeof(struct rw_port) == 8, "one word");
_Static_assert(sizeof(struct rw_seen_key) == 24, "no padding: it is a key");
_Static_assert(RW_REASONS <= 128, "rw_capture has a bit for each");
_Static_assert(RW_LONGEST_CHAIN <= 33, "MAX_TAIL_CALL_CNT");
_Static_assert((RW_CAPTURE_BYTES & (RW_CAPTURE_BYTES - 1)) == 0, "a power of two");

#endif
