// SPDX-License-Identifier: GPL-2.0-only
/*
 * The short cut between a proxy and its backends on one host: what one writes into a connection
 * goes to the other's socket, and no segment is made. The programs see sockets of one control group.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#define AF_INET 2

/* A socket's own view of its connection. Ports are in the host's byte order. */
struct ends {
	__be32 local, remote;
	__u32 local_port, remote_port;
};

/* What was redirected. */
struct redirected {
	__u64 messages, bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct ends);
	__type(value, __u64);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct redirected);
} counts SEC(".maps");

/* Filled in before loading: the proxy, whose clients' connections stay as they are. */
const volatile __be32 proxy;

/* Both ends of a connection between proxy and backend enter the map when they are established. */
SEC("sockops")
int established(struct bpf_sock_ops *ops)
{
	struct ends key = {
		.local = ops->local_ip4,
		.remote = ops->remote_ip4,
		.local_port = ops->local_port,
		.remote_port = bpf_ntohl(ops->remote_port),
	};
	bool connected = ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && key.local == proxy;
	bool accepted = ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && key.remote == proxy;

	if (ops->family == AF_INET && (connected || accepted))
		bpf_sock_hash_update(ops, &connections, &key, BPF_NOEXIST);
	return 1;
}

/* To the other end, if it is in the map; else the message goes as TCP. */
SEC("sk_msg")
int written(struct sk_msg_md *msg)
{
	struct ends other = {
		.local = msg->remote_ip4,
		.remote = msg->local_ip4,
		.local_port = bpf_ntohl(msg->remote_port),
		.remote_port = msg->local_port,
	};
	struct redirected *count;
	__u32 zero = 0;

	if (bpf_msg_redirect_hash(msg, &connections, &other, BPF_F_INGRESS) != SK_PASS)
		return SK_PASS;
	count = bpf_map_lookup_elem(&counts, &zero);
	if (count) {
		count->messages++;
		count->bytes += msg->size;
	}
	return SK_PASS;
}

char LICENSE[] SEC("license") = "GPL";
