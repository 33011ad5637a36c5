// SPDX-License-Identifier: GPL-2.0-only
/* Where packets end as early as they can: counted in the driver, and dropped. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

SEC("xdp")
int end(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&packets, &zero);

	(void)ctx;
	if (count)
		++*count;
	return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
