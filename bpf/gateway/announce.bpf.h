/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * announce = "arp": the gateway itself answers ARP (RFC 826) and neighbour
 * solicitations (RFC 4861) for service addresses, so no kernel has to own them.
 * All other packets of both protocols go to the kernel.
 */
#ifndef RINGWAY_ANNOUNCE_H
#define RINGWAY_ANNOUNCE_H

#include <linux/icmpv6.h>

#include "checksum_bytes.bpf.h"
#include "packet_context.bpf.h"
#include "parse.bpf.h"
#include "service.bpf.h"

/* ARP for IPv4 over Ethernet. */
struct arp_ipv4 {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_len;
	__u8 protocol_len;
	__be16 op;
	__u8 sender_mac[6];
	__u8 sender_ip[4];
	__u8 target_mac[6];
	__u8 target_ip[4];
} __attribute__((packed));

#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

#define ND_SOLICIT 135
#define ND_ADVERT 136
#define ND_OPT_SOURCE_MAC 1
#define ND_OPT_TARGET_MAC 2
#define ND_OPTIONS 8 /* of one message; RFC 4861 knows one, others are skipped */
#define ND_SOLICITED 0x40000000
#define ND_OVERRIDE 0x20000000
#define ND_HOP_LIMIT 255 /* anything else came through a router */

/* A solicitation's, of a packet without extension headers. */
#define ND_OPTIONS_AT (ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct icmp6hdr) + 16)

/* A solicitation or advertisement with one link-layer option. */
struct nd_message {
	struct icmp6hdr head;
	__u32 target[4];
	__u8 opt_type;
	__u8 opt_len; /* units of 8 bytes */
	__u8 opt_mac[6];
} __attribute__((packed));

static __always_inline bool announced(const __u32 *addr)
{
	struct rw_service_key key = {};
	struct rw_service *entry;

	copy_addr(key.addr, addr);
	entry = address_entry(&key);
	return entry && (entry->flags & RW_ADDR_ANNOUNCE);
}

/* True if the frame was a request for us; it is the reply now. */
static __always_inline bool answer_arp(struct xdp_md *ctx, struct packet_context *pctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct arp_ipv4 *arp = (void *)(eth + 1);
	__u32 target[4];
	__u16 *ip, theirs[2];

	if ((void *)(arp + 1) > (void *)(long)ctx->data_end || !frame_reaches_us(pctx, eth))
		return false;
	if (arp->hardware != bpf_htons(ARP_ETHERNET) || arp->protocol != bpf_htons(ETH_P_IP) ||
	    arp->hardware_len != 6 || arp->protocol_len != 4 || arp->op != bpf_htons(ARP_REQUEST))
		return false;
	ip = (__u16 *)arp->target_ip;
	map_addr4(target, (__u32)ip[0] | (__u32)ip[1] << 16);
	if (!announced(target))
		return false;
	/* Also answers an address probe of a second owner (RFC 5227). */
	theirs[0] = ((__u16 *)arp->sender_ip)[0];
	theirs[1] = ((__u16 *)arp->sender_ip)[1];
	arp->op = bpf_htons(ARP_REPLY);
	copy_mac(arp->target_mac, arp->sender_mac);
	((__u16 *)arp->sender_ip)[0] = ip[0];
	((__u16 *)arp->sender_ip)[1] = ip[1];
	copy_mac(arp->sender_mac, pctx->in->mac);
	ip[0] = theirs[0];
	ip[1] = theirs[1];
	copy_mac(eth->h_dest, eth->h_source);
	copy_mac(eth->h_source, pctx->in->mac);
	return true;
}

/* Whether it has an option of no length, or its sender's link-layer address although
 * the sender has no address. */
static __always_inline bool options_spoil(struct xdp_md *ctx, __u32 stop, bool nameless)
{
	__u8 *option = (void *)(long)ctx->data + ND_OPTIONS_AT;
	__u32 at = 0;

	for (int i = 0; i < ND_OPTIONS && at < stop; i++) {
		if ((void *)(option + 2) > (void *)(long)ctx->data_end)
			return true;
		if (!option[1] || (nameless && option[0] == ND_OPT_SOURCE_MAC))
			return true;
		at += option[1] * 8u;
		option += option[1] * 8u;
	}
	return at != stop;
}

/* Whether the solicitation in scratch is valid by RFC 4861 section 7.1.1 and its source
 * can be a host. Not inlined, because few packets are one. */
__noinline __u32 solicitation_valid(struct xdp_md *ctx)
{
	struct rw_scratch *s = RW_ONLY(scratch);
	__u32 *from, *to, len;
	bool nameless;
	__u64 sum;

	if (!s)
		return 0;
	from = s->tuple.saddr;
	to = s->tuple.daddr;
	len = s->layers.l4_len;
	nameless = !(from[0] | from[1] | from[2] | from[3]);
	/* From ::1, or multicast. */
	if ((!(from[0] | from[1] | from[2]) && from[3] == bpf_htonl(1)) ||
	    (from[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000))
		return 0;
	/* To a solicited-node address, ff02::1:ff00:0/104. */
	if (nameless && (to[0] != bpf_htonl(0xff020000) || to[1] || to[2] != bpf_htonl(1) ||
			 (to[3] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000)))
		return 0;
	if (options_spoil(ctx, len - (ND_OPTIONS_AT - ETH_HLEN - sizeof(struct ipv6hdr)), nameless))
		return 0;
	sum = csum_pseudo(from, to, true, IPPROTO_ICMPV6, (__u16)len);
	return csum_fold(sum + csum_bytes(ctx, s->layers.l4, len)) == 0xffff;
}

static __always_inline bool solicits_us(struct xdp_md *ctx, const struct packet *p, __u32 *target)
{
	struct ipv6hdr *ip = p->l3;
	struct icmp6hdr *icmp = (void *)(ip + 1);
	__u32 *asked = (__u32 *)(icmp + 1);

	if ((void *)(asked + 4) > (void *)(long)ctx->data_end || p->l3_len < 64 ||
	    p->at->l4 != ETH_HLEN + sizeof(*ip))
		return false;
	if (icmp->icmp6_type != ND_SOLICIT || icmp->icmp6_code || ip->hop_limit != ND_HOP_LIMIT)
		return false;
	copy_addr(target, asked);
	return announced(target) && solicitation_valid(ctx);
}

/* To the sender; to all nodes if it has no address yet (duplicate address
 * detection, RFC 4861 section 7.2.4). */
static __always_inline void write_advert(struct nd_message *nd, const struct packet_context *pctx,
					 const __u32 *from, const __u32 *to, bool solicited)
{
	__u32 flags = ND_OVERRIDE | (solicited ? ND_SOLICITED : 0);

	nd->head.icmp6_type = ND_ADVERT;
	nd->head.icmp6_code = 0;
	nd->head.icmp6_cksum = 0;
	nd->head.icmp6_dataun.un_data32[0] = bpf_htonl(flags);
	copy_addr(nd->target, from);
	nd->opt_type = ND_OPT_TARGET_MAC;
	nd->opt_len = 1;
	copy_mac(nd->opt_mac, pctx->in->mac);
	nd->head.icmp6_cksum = ~csum_fold(csum_words((__u32 *)nd, sizeof(*nd) / 4) +
					  csum_pseudo(from, to, true, IPPROTO_ICMPV6, sizeof(*nd)));
}

static __always_inline bool answer_nd(struct xdp_md *ctx, struct packet_context *pctx,
				      struct packet *p)
{
	__u32 want = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct nd_message);
	__u32 target[4], to[4] = {};
	bool solicited = p->t->saddr[0] | p->t->saddr[1] | p->t->saddr[2] | p->t->saddr[3];
	struct nd_message *nd;
	struct ipv6hdr *ip;
	struct ethhdr *eth;

	if (!frame_reaches_us(pctx, p->eth) || !solicits_us(ctx, p, target))
		return false;
	if (bpf_xdp_adjust_tail(ctx, (int)want - (int)bpf_xdp_get_buff_len(ctx)))
		return false;
	eth = (void *)(long)ctx->data;
	ip = (void *)(eth + 1);
	nd = (void *)(ip + 1);
	if ((void *)(nd + 1) > (void *)(long)ctx->data_end)
		return false;
	to[0] = bpf_htonl(0xff020000); /* ff02::1 */
	to[3] = bpf_htonl(1);
	copy_addr(to, solicited ? p->t->saddr : to);
	ip->payload_len = bpf_htons(sizeof(*nd));
	copy_addr(ip->saddr.in6_u.u6_addr32, target);
	copy_addr(ip->daddr.in6_u.u6_addr32, to);
	write_advert(nd, pctx, target, to, solicited);
	if (solicited) {
		copy_mac(eth->h_dest, eth->h_source);
	} else {
		((__u16 *)eth->h_dest)[0] = bpf_htons(0x3333);
		((__u16 *)eth->h_dest)[1] = 0;
		((__u16 *)eth->h_dest)[2] = bpf_htons(1);
	}
	copy_mac(eth->h_source, pctx->in->mac);
	return true;
}

#endif
