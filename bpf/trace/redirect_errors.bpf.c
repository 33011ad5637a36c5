// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts what the kernel drops after our verdict, from its own tracepoints
 * (include/trace/events/xdp.h), in the ledger of the packet's interface of
 * arrival. Tracepoints see the whole machine: only packets of the node's root
 * programs are ours.
 * Loaded once per node. While nothing is lost, the tracepoints cost only one test
 * per batch of up to 16 redirected frames.
 */
#include <linux/errno.h>

#include "common/stage.bpf.h"

/* The kernel's own, fitted to the running one by its BTF when loaded. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct bpf_link {
	struct bpf_prog *prog;
};

struct bpf_xdp_link {
	struct bpf_link link;
};

struct bpf_xdp_entity {
	struct bpf_xdp_link *link;
};

struct net_device {
	struct bpf_xdp_entity xdp_state[3];
};

#pragma clang attribute pop

/* enum bpf_xdp_mode, linux/netdevice.h: native. Batches exist there alone. */
#define XDP_MODE_DRV 1

/* The ledger of the interface to which this program is attached, if it is ours. */
static __always_inline struct rw_ledger *counters_of(const struct bpf_prog *program)
{
	__u32 id = program->aux->id;
	__u32 *slot = bpf_map_lookup_elem(&roots, &id);

	return slot ? bpf_map_lookup_elem(&ledger, slot) : NULL;
}

/* Ours are attached by links alone, see kernel/src/link/mod.rs. */
static __always_inline struct rw_ledger *counters_on(const struct net_device *device)
{
	const struct bpf_xdp_link *link = device->xdp_state[XDP_MODE_DRV].link;

	return link ? counters_of(link->link.prog) : NULL;
}

static __always_inline void lose(struct rw_ledger *counters, enum rw_loss loss, __u32 packets)
{
	if (counters)
		counters->lost[loss] += packets;
}

static __always_inline enum rw_loss loss_of(int error)
{
	switch (-error) {
	case EMSGSIZE:
		return RW_LOSS_TOO_BIG;
	case ENETDOWN:
		return RW_LOSS_DEVICE_DOWN;
	case EOPNOTSUPP: /* no ndo_xdp_xmit, or a veth peer that does not poll */
	case ENXIO:	 /* the latter before 6.3: drivers/net/veth.c, veth_xdp_xmit */
		return RW_LOSS_NO_RECEIVER;
	case 0:
	case ENOSPC:
	case EBUSY:
		return RW_LOSS_QUEUE_FULL;
	case ENOMEM:
	case EOVERFLOW:
		return RW_LOSS_NO_MEMORY;
	}
	return RW_LOSS_OTHER;
}

/* The arguments are those of the tracepoint, one word each. */

/* One frame that could not be handed to the other device.
 * (receiving device, program, target, error, ...) */
SEC("tp_btf/xdp_redirect_err")
int ringway_lost_redirect(__u64 *args)
{
	lose(counters_of((const struct bpf_prog *)args[1]), loss_of((int)args[3]), 1);
	return 0;
}

/* A batch that the other device took, wholly or in part.
 * (receiving device, sending device, sent, drops, error) */
SEC("tp_btf/xdp_devmap_xmit")
int ringway_lost_batch(__u64 *args)
{
	int drops = (int)args[3];

	if (drops > 0)
		lose(counters_on((const struct net_device *)args[0]), loss_of((int)args[4]), drops);
	return 0;
}

/* The same for XDP_TX, where the driver batches it (veth).
 * (device, sent, drops, error) */
SEC("tp_btf/xdp_bulk_tx")
int ringway_lost_back(__u64 *args)
{
	int drops = (int)args[2];

	if (drops > 0)
		lose(counters_on((const struct net_device *)args[0]), loss_of((int)args[3]), drops);
	return 0;
}

/* One frame that could not be sent back; in generic mode also one redirected.
 * xdp_redirect_err has already counted an XDP_REDIRECT that a driver reports here.
 * (device, program, action) */
SEC("tp_btf/xdp_exception")
int ringway_lost_tx(__u64 *args)
{
	if ((__u32)args[2] == XDP_TX)
		lose(counters_of((const struct bpf_prog *)args[1]), RW_LOSS_TX_REFUSED, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
