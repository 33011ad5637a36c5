//! The steps of the receive path, what shows each, and which of them a packet was lost at.

use serde::Serialize;

/// Where on the receive path of docs/kernel-path.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    Ring,
    /// XDP, in the driver or generic: what a program decides.
    Xdp,
    /// Where the device below hands over: of a VLAN device, a macvlan.
    Upon,
    /// From the backlog to the protocol: taps, tc, bridge.
    Stack,
    /// IP: rules, routes, fragments; and the way out of what is passed on.
    Ip,
    /// UDP, TCP, ICMP: finding the socket.
    Protocol,
    Socket,
    /// A copy for a tap or a raw socket; the packet itself went on.
    Copy,
    /// This host's own packets on their way out.
    Out,
}

/// A step as docs/kernel-path.md numbers it, and what shows it.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    pub number: u8,
    pub name: &'static str,
    /// Checks of `ringway doctor`, by name.
    pub checks: &'static [&'static str],
}

pub const RECEIVE: [Shown; 9] = [
    Shown { number: 1, name: "ring", checks: &["nic-rings", "nic-missed", "queue-balance"] },
    Shown { number: 2, name: "interrupt", checks: &["irq-sharing", "irq-on-first", "coalescing"] },
    Shown { number: 3, name: "softirq", checks: &["softirq-load", "time-squeeze", "xdp-generic"] },
    Shown { number: 4, name: "GRO", checks: &["offloads", "lro"] },
    Shown { number: 5, name: "stack", checks: &["softnet-backlog", "flow-limit", "dropped"] },
    Shown {
        number: 6,
        name: "IP",
        checks: &["long-chains", "no-route", "reverse-path", "conntrack-full", "filter-drops"],
    },
    Shown {
        number: 7,
        name: "protocol",
        checks: &["listen-overflows", "listen-drops", "syn-queue"],
    },
    Shown { number: 8, name: "queue", checks: &["udp-buffers", "receive-pruned", "tcp-memory"] },
    Shown { number: 9, name: "recv", checks: &[] },
];

pub const SEND: [Shown; 8] = [
    Shown { number: 1, name: "send", checks: &["udp-buffers"] },
    Shown { number: 2, name: "copy", checks: &[] },
    Shown { number: 3, name: "TCP", checks: &["retransmissions", "tcp-window"] },
    Shown { number: 4, name: "IP", checks: &["long-chains", "no-route"] },
    Shown { number: 5, name: "neighbour", checks: &["neighbour-table"] },
    Shown { number: 6, name: "qdisc", checks: &["qdisc-drops", "xps"] },
    Shown { number: 7, name: "driver", checks: &["dropped", "offloads", "link-flaps"] },
    Shown { number: 8, name: "wire", checks: &["softirq-load", "time-squeeze"] },
];

/// Reasons by how their names begin; the first that fits. What is not here is told by the function
/// that freed the packet.
const REASONS: [(&str, Step); 42] = [
    ("XDP", Step::Xdp),
    ("CPU_BACKLOG", Step::Stack),
    ("TC_EGRESS", Step::Out),
    ("TC_", Step::Stack),
    ("UNHANDLED_PROTO", Step::Stack),
    ("OTHERHOST", Step::Stack),
    ("BRIDGE_", Step::Stack),
    ("MAC_", Step::Stack),
    ("LOCAL_MAC", Step::Stack),
    ("VXLAN_", Step::Stack),
    ("PFMEMALLOC", Step::Stack),
    ("PACKET_SOCK_ERROR", Step::Copy),
    ("NETFILTER_DROP", Step::Ip),
    ("IP_OUTNOROUTES", Step::Out),
    ("IP_", Step::Ip),
    ("UNICAST_IN_L2_MULTICAST", Step::Ip),
    ("XFRM_POLICY", Step::Ip),
    ("DUP_FRAG", Step::Ip),
    ("FRAG_", Step::Ip),
    ("PKT_TOO_BIG", Step::Ip),
    ("IPV6DISABLED", Step::Ip),
    ("IPV6_BAD_EXTHDR", Step::Ip),
    ("INVALID_PROTO", Step::Ip),
    ("NO_SOCKET", Step::Protocol),
    ("UDP_CSUM", Step::Protocol),
    ("ICMP_CSUM", Step::Protocol),
    ("IPV6_NDISC", Step::Protocol),
    ("TCP_OFO", Step::Socket),
    ("TCP_ZEROWINDOW", Step::Socket),
    ("TCP_", Step::Protocol),
    ("SOCKET_", Step::Socket),
    ("PROTO_MEM", Step::Socket),
    ("QUEUE_PURGE", Step::Socket),
    ("BPF_CGROUP_EGRESS", Step::Out),
    ("NEIGH_", Step::Out),
    ("QDISC_", Step::Out),
    ("CAKE_", Step::Out),
    ("FQ_", Step::Out),
    ("DUALPI2", Step::Out),
    ("DEV_READY", Step::Out),
    ("FULL_RING", Step::Out),
    ("SKB_GSO_SEG", Step::Out),
];

/// Functions of the kernel by what is in their names; the first that fits.
const FUNCTIONS: [(&str, Step); 21] = [
    ("packet_rcv", Step::Copy),
    ("raw_", Step::Copy),
    ("rawv6_", Step::Copy),
    ("xdp", Step::Xdp),
    ("nf_", Step::Ip),
    ("nft_", Step::Ip),
    ("ipt_", Step::Ip),
    ("xmit", Step::Out),
    ("qdisc", Step::Out),
    ("neigh", Step::Out),
    ("_output", Step::Out),
    ("ip_", Step::Ip),
    ("ip6_", Step::Ip),
    ("ipv6_", Step::Ip),
    ("arp_", Step::Protocol),
    ("ndisc_", Step::Protocol),
    ("icmp", Step::Protocol),
    ("udp", Step::Protocol),
    ("tcp", Step::Protocol),
    ("sock", Step::Socket),
    ("sk_", Step::Socket),
];

/// Functions on the way in that free a packet before the stack knows of it.
const EARLY: [&str; 5] = ["receive", "backlog", "_rx", "napi", "gro_"];

impl Step {
    /// Where a packet was lost, by the kernel's reason and the function that freed it.
    pub fn of(reason: &str, function: &str) -> Step {
        let copy = ["packet_rcv", "raw_", "rawv6_"].iter().any(|word| function.contains(word));
        if copy {
            return Step::Copy;
        }
        let found = REASONS.iter().find(|(start, _)| reason.starts_with(start));
        let found = found.or_else(|| FUNCTIONS.iter().find(|(part, _)| function.contains(part)));
        found.map_or(Step::Stack, |(_, step)| *step)
    }

    /// The same for one of which the stack did not know where it came in: it was on its way in only
    /// if that is plain.
    pub fn of_near(reason: &str, function: &str) -> Step {
        let early = reason == "CPU_BACKLOG" || EARLY.iter().any(|part| function.contains(part));
        match Step::of(reason, function) {
            Step::Xdp => Step::Xdp,
            Step::Copy => Step::Copy,
            Step::Out => Step::Out,
            _ if early => Step::Stack,
            _ => Step::Out,
        }
    }
}

/// Whether a packet that was lost on its way out had been put before a device's queue, and so was
/// counted as passed on.
pub(super) fn after_queue(reason: &str, function: &str) -> bool {
    ["QDISC_", "CAKE_", "FQ_", "DUALPI2", "DEV_READY", "FULL_RING", "SKB_GSO_SEG"]
        .iter()
        .any(|start| reason.starts_with(start))
        || function.contains("xmit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn reasons_and_functions() {
        for (reason, function, wanted) in [
            ("NO_SOCKET", "__udp4_lib_rcv", Step::Protocol),
            ("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", Step::Socket),
            ("SOCKET_RCVBUFF", "packet_rcv", Step::Copy),
            ("NOT_SPECIFIED", "nf_hook_slow", Step::Ip),
            ("NOT_SPECIFIED", "tcp_v4_rcv", Step::Protocol),
            ("NOT_SPECIFIED", "something_new", Step::Stack),
            ("TC_INGRESS", "__netif_receive_skb_core", Step::Stack),
            ("IP_OUTNOROUTES", "ip_forward", Step::Out),
            ("REASON_999", "ip_rcv_core", Step::Ip),
        ] {
            assert_eq!(Step::of(reason, function), wanted, "{reason} in {function}");
        }
        assert_eq!(Step::of_near("CPU_BACKLOG", "enqueue_to_backlog"), Step::Stack);
        assert_eq!(Step::of_near("XDP", "veth_xdp_rcv_skb"), Step::Xdp);
        assert_eq!(Step::of_near("NOT_SPECIFIED", "tcp_v4_rcv"), Step::Out);
        assert!(after_queue("QDISC_DROP", "") && !after_queue("NEIGH_FAILED", "neigh_probe"));
    }

    /// docs/kernel-path.md: each step has a line of its own, and names what shows it.
    #[test]
    fn every_step_is_linked_to_what_shows_it() {
        let text = include_str!("../../../docs/kernel-path.md");
        let (receive, send) = text.split_once("## Sending").unwrap();
        for (part, steps) in [(receive, RECEIVE.as_slice()), (send, SEND.as_slice())] {
            let drawn = part.lines().filter(|line| line.trim_start().starts_with('[')).count();
            assert_eq!(drawn, steps.len(), "steps in the drawing");
            for step in steps {
                let line = part.lines().find(|line| {
                    let first = line.strip_prefix('|').and_then(|line| line.split('|').next());
                    let name = |first: &str| {
                        let (number, name) = first.trim().split_once(' ')?;
                        Some((number.to_owned(), name.to_owned()))
                    };
                    first.and_then(name) == Some((step.number.to_string(), step.name.to_owned()))
                });
                let line =
                    line.unwrap_or_else(|| panic!("no line for {} {}", step.number, step.name));
                for check in step.checks {
                    assert!(rules::find(check).is_some(), "there is no check {check}");
                    assert!(line.contains(&format!("`{check}`")), "{check} is not in {line}");
                }
                let shown = line.trim_end().trim_end_matches('|').rsplit('|').next().unwrap();
                assert!(shown.contains("`ringway"), "no command in {line}");
            }
        }
    }
}
