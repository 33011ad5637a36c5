// SPDX-License-Identifier: GPL-2.0-only
/*
 * ringway accept, for backends of services with syn = "backend": the gateway has answered the SYN
 * with a cookie and kept nothing; here the client's ACK opens the connection, at the listener,
 * as if the kernel had made the cookie itself. Segments of connections that the kernel knows pass
 * untouched, as does everything that is not to a listed address and port.
 *
 * Needs bpf_sk_assign_tcp_reqsk() (Linux 6.9). The program loads without it, and then opens nothing.
 */
#include <linux/pkt_cls.h>

#include "segment.bpf.h"
#include "shield/cookie.bpf.h"

/* As the kernel has it (include/net/tcp.h). */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

/* Of the kernel's, what is read here. */
struct sock_common {
	__u32 skc_tw_rcv_nxt;
} __attribute__((preserve_access_index));

struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	__u32 tw_ts_recent;
} __attribute__((preserve_access_index));

/* libbpf compares types by name and kind: declared alone it would be of another kind. */
struct sock {
};

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk,
				   struct bpf_tcp_req_attrs *attrs, int attrs__sz) __ksym __weak;

/* writer: user space; reader: this program. */
RW_MAP(syn_secrets, BPF_MAP_TYPE_ARRAY, 1, __u32, struct rw_syn_secrets, 0);

/* Keys: user space writes them. Values: writer: this program; reader: user space. */
RW_MAP(listeners, BPF_MAP_TYPE_PERCPU_HASH, RW_MAX_ACCEPT_LISTENERS, struct rw_service_key,
       struct rw_accept_counts, 0);

/* Whether a gateway made this segment's cookie. */
static __always_inline bool has_cookie(const struct segment *s)
{
	struct rw_syn_secrets *secrets = RW_ONLY(syn_secrets);
	struct cookie cookie = { .number = s->ack - 1, .stamp = s->tsecr };

	return secrets && cookie_holds(secrets, &s->tuple, s->seq - 1, cookie, s->timestamps);
}

/* The cookie of this kernel, which it makes when its own queue of SYNs is full. Where that was not so
 * lately, this costs no hash. */
static __always_inline bool has_kernel_cookie(struct segment *s, struct bpf_sock *listener)
{
	void *ip = s->v6 ? (void *)&s->ip6 : (void *)&s->ip4;
	__u32 len = s->v6 ? sizeof(s->ip6) : sizeof(s->ip4);

	return !bpf_tcp_check_syncookie(listener, ip, len, &s->tcp, sizeof(s->tcp));
}

static __always_inline void fill_agreed(const struct segment *s, struct bpf_tcp_req_attrs *attrs)
{
	__u32 agreed = s->ack - 1, scale = agreed >> COOKIE_SCALE_SHIFT & 15;

	attrs->mss = cookie_mss(agreed);
	attrs->sack_ok = !!(agreed & COOKIE_SACK);
	attrs->ecn_ok = agreed & COOKIE_ECN;
	if (scale != COOKIE_NO_SCALE) {
		attrs->wscale_ok = 1;
		attrs->snd_wscale = scale;
		attrs->rcv_wscale = RW_OFFERED_SCALE;
	}
	if (s->timestamps) {
		attrs->tstamp_ok = 1;
		attrs->rcv_tsval = s->tsval;
		attrs->rcv_tsecr = s->tsecr;
	}
}

static __always_inline enum rw_accept open_connection(struct __sk_buff *skb, struct segment *s,
						      struct bpf_sock *listener)
{
	struct bpf_tcp_req_attrs attrs = {};
	struct tcp_sock *sock;

	read_timestamps(skb, s);
	if (!bpf_ksym_exists(bpf_sk_assign_tcp_reqsk) || !has_cookie(s))
		return has_kernel_cookie(s, listener) ? RW_ACCEPT_KERNEL_COOKIE :
							RW_ACCEPT_NO_COOKIE;
	fill_agreed(s, &attrs);
	sock = bpf_skc_to_tcp_sock(listener);
	if (!sock || bpf_sk_assign_tcp_reqsk(skb, (struct sock *)sock, &attrs, sizeof(attrs)))
		return RW_ACCEPT_REFUSED;
	return RW_ACCEPT_OPENED;
}

/* Whether a connection began after the one before it had ended: as the kernel asks of a SYN. */
static __always_inline bool is_newer(const struct segment *s, const struct tcp_timewait_sock *tw,
				     __u32 expected)
{
	if (s->timestamps && (__s32)(s->tsval - tw->tw_ts_recent) > 0)
		return true;
	return (__s32)(s->seq - 1 - expected) > 0;
}

/*
 * The SYN, which never came here, would have ended an earlier connection's TIME_WAIT. A RST with the
 * number that is expected does, too; so the ACK becomes one. The next segment opens the connection.
 */
static __always_inline enum rw_accept end_time_wait(struct __sk_buff *skb, struct segment *s,
						    struct bpf_sock *sock)
{
	struct tcp_timewait_sock *tw = bpf_skc_to_tcp_timewait_sock(sock);
	__u32 expected;

	if (!tw)
		return RW_ACCEPT_KNOWN;
	expected = tw->tw_sk.__tw_common.skc_tw_rcv_nxt;
	read_timestamps(skb, s);
	if (!is_newer(s, tw, expected) || !has_cookie(s))
		return RW_ACCEPT_KNOWN;
	return make_reset(skb, s, bpf_htonl(expected)) ? RW_ACCEPT_TIME_WAIT : RW_ACCEPT_KNOWN;
}

static __always_inline enum rw_accept judge(struct __sk_buff *skb, struct segment *s)
{
	enum rw_accept end = RW_ACCEPT_KNOWN;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;
	__u32 len;

	if (!s->tcp.ack || s->tcp.syn || s->tcp.rst)
		return RW_ACCEPT_HANDSHAKE;
	len = socket_tuple(s, &tuple);
	sock = bpf_skc_lookup_tcp(skb, &tuple, len, BPF_F_CURRENT_NETNS, 0);
	if (!sock)
		return RW_ACCEPT_NO_LISTENER;
	if (sock->state == BPF_TCP_LISTEN)
		end = open_connection(skb, s, sock);
	else if (sock->state == BPF_TCP_TIME_WAIT)
		end = end_time_wait(skb, s, sock);
	bpf_sk_release(sock);
	return end;
}

SEC("tc")
int ringway_accept(struct __sk_buff *skb)
{
	struct rw_service_key key = { .proto = IPPROTO_TCP };
	struct rw_accept_counts *counts;
	struct segment s = {};
	enum rw_accept end;

	if (!read_segment(skb, &s))
		return TC_ACT_UNSPEC;
	copy_addr(key.addr, s.tuple.daddr);
	key.port_be = s.tuple.dport_be;
	counts = bpf_map_lookup_elem(&listeners, &key);
	if (!counts)
		return TC_ACT_UNSPEC;
	end = judge(skb, &s);
	counts->packets[end]++;
	return end < RW_ACCEPT_NO_COOKIE ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
