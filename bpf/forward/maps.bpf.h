/* SPDX-License-Identifier: GPL-2.0-only */
/* Forwarding's own maps (abi/forward.h). Not pinned; "control" is the daemon. */
#ifndef RINGWAY_FORWARD_MAPS_H
#define RINGWAY_FORWARD_MAPS_H

#include "gateway/clock.bpf.h"
#include "gateway/packet_context.bpf.h"

/* Set when the object is loaded. */
const volatile struct rw_forwarder forwarder SEC(".rodata.forward") = {};

/* writer: control, and here `seen`; reader: here, control. Full: frames of the others go to the
 * kernel. */
RW_MAP(stations, BPF_MAP_TYPE_ARRAY, RW_STATION_BUCKETS, __u32, struct rw_station_bucket,
       BPF_F_MMAPABLE);

/* writer: control; reader: here. By interface slot. */
RW_MAP(ports, BPF_MAP_TYPE_ARRAY, RW_MAX_IFACES, __u32, struct rw_port, 0);
RW_MAP(port_vlans, BPF_MAP_TYPE_ARRAY, RW_MAX_IFACES, __u32, struct rw_port_vlans, 0);
RW_MAP(ways, BPF_MAP_TYPE_ARRAY, RW_FORWARD_WAYS, __u32, struct rw_way, 0);

/* writer: control, and here `used`; reader: here, control. */
RW_MAP(forwarding, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_forwarding, BPF_F_MMAPABLE);

/* A frame on its way between two ports. */
struct transit {
	struct rw_forwarding *state;
	struct rw_port *port; /* it came in by */
	__u32 out;	      /* interface slot */
	__u32 now;	      /* seconds */
};

#endif
