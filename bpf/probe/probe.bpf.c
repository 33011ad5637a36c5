// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sends health checks of dsr backends on the traffic's path. The daemon connects to
 * the service address from a socket with the backend's mark. A routing rule leads
 * marked packets into a device of the daemon. This program, at that device's egress,
 * adds the outer header or frame of that backend and sends them out. Replies come from
 * the service address straight to the node, and pass like any packet to it.
 *
 * The device itself gets no packet: one without a way is dropped.
 */
#include <linux/pkt_cls.h>

#include "common/checksum.bpf.h"

#define OUTER_TTL 64
#define GUE_FIRST_PORT 0xc000 /* the ephemeral ports of RFC 6335 */

/* writer: control; reader: this program. Key: mark. */
RW_MAP(probes, BPF_MAP_TYPE_HASH, RW_MAX_BACKENDS, __u32, struct rw_probe, BPF_F_NO_PREALLOC);

/* writer: this program; reader: control. By enum rw_probe_outcome. */
RW_MAP(outcomes, BPF_MAP_TYPE_PERCPU_ARRAY, RW_PROBE_OUTCOMES, __u32, __u64, 0);

struct outer {
	__u32 ip[10]; /* IPv4: the first five */
	__u32 udp[2];
};

static __always_inline int count(enum rw_probe_outcome outcome, int verdict)
{
	__u32 key = outcome;
	__u64 *packets = bpf_map_lookup_elem(&outcomes, &key);

	if (packets)
		(*packets)++;
	return verdict;
}

static __always_inline bool is_v4(const __u32 *addr)
{
	return !(addr[0] | addr[1] | (addr[2] ^ bpf_htonl(0xffff)));
}

/* Makes room behind the Ethernet header and writes the outer headers there. */
static __always_inline bool encapsulate(struct __sk_buff *skb, const struct rw_probe *p)
{
	bool v4 = is_v4(p->daddr), gue = p->forward == RW_FORWARD_DSR_GUE;
	__u32 ip_len = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u32 udp_len = gue ? sizeof(struct udphdr) : 0, len = skb->len - ETH_HLEN + udp_len;
	__u8 inner = skb->protocol == bpf_htons(ETH_P_IP) ? IPPROTO_IPIP : IPPROTO_IPV6;
	__u8 proto = gue ? IPPROTO_UDP : inner;
	__be16 ethertype = v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO |
		      (v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6) |
		      (gue ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP : 0);
	struct outer o = {};

	if (len + ip_len > 0xffff)
		return false;
	if (v4) {
		o.ip[0] = bpf_htonl(0x45000000 | (len + ip_len));
		o.ip[1] = bpf_htonl(0x4000); /* don't fragment */
		o.ip[2] = bpf_htonl(OUTER_TTL << 24 | proto << 16);
		o.ip[3] = p->saddr[3];
		o.ip[4] = p->daddr[3];
		((__u16 *)o.ip)[5] = ~csum_fold(csum_words(o.ip, 5));
	} else {
		o.ip[0] = bpf_htonl(0x60000000);
		o.ip[1] = bpf_htonl(len << 16 | proto << 8 | OUTER_TTL);
		copy_addr(o.ip + 2, p->saddr);
		copy_addr(o.ip + 6, p->daddr);
	}
	/* Checksum 0, under IPv6 too (RFC 6935): the inner packet has its own. */
	o.udp[0] = bpf_htons(GUE_FIRST_PORT | (skb->mark & 0x3fff)) | (__u32)p->port_be << 16;
	o.udp[1] = bpf_htons(len);
	if (bpf_skb_adjust_room(skb, (int)(ip_len + udp_len), BPF_ADJ_ROOM_MAC, flags))
		return false;
	if (v4 ? bpf_skb_store_bytes(skb, ETH_HLEN, o.ip, sizeof(struct iphdr), 0) :
		 bpf_skb_store_bytes(skb, ETH_HLEN, o.ip, sizeof(struct ipv6hdr), 0))
		return false;
	if (gue && bpf_skb_store_bytes(skb, ETH_HLEN + ip_len, o.udp, sizeof(o.udp), 0))
		return false;
	return !bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype,
				    sizeof(ethertype), 0);
}

SEC("tc")
int ringway_probe(struct __sk_buff *skb)
{
	__u32 mark = skb->mark;
	struct rw_probe *p = bpf_map_lookup_elem(&probes, &mark);

	if (!p || (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6)))
		return count(RW_PROBE_UNMARKED, TC_ACT_SHOT);
	if (p->forward != RW_FORWARD_DSR_L2 && !encapsulate(skb, p))
		return count(RW_PROBE_FAILED, TC_ACT_SHOT);
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_dest), p->dmac, ETH_ALEN, 0) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_source), p->smac, ETH_ALEN, 0))
		return count(RW_PROBE_FAILED, TC_ACT_SHOT);
	if (bpf_redirect(p->ifindex, 0) != TC_ACT_REDIRECT)
		return count(RW_PROBE_FAILED, TC_ACT_SHOT);
	return count(RW_PROBE_SENT, TC_ACT_REDIRECT);
}

char LICENSE[] SEC("license") = "GPL";
