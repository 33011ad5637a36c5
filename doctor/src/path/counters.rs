//! Counters of losses and of packets on their way, which the kernel always keeps.

use ringway_host::netlink::counters::Stats;

use super::{Loss, Scope, Step};
use crate::{Facts, Unknown};

/// Counters of a network namespace that say where received packets are lost. IPv4's and IPv6's.
/// Each packet is in one of them.
const NAMESPACE: [(Step, &str, &str); 31] = [
    (Step::Ip, "Ip", "InHdrErrors"),
    (Step::Ip, "Ip", "InAddrErrors"),
    (Step::Ip, "Ip", "InUnknownProtos"),
    (Step::Ip, "Ip", "InDiscards"),
    (Step::Ip, "Ip", "ReasmFails"),
    (Step::Ip, "IpExt", "InNoRoutes"),
    (Step::Ip, "IpExt", "InTruncatedPkts"),
    (Step::Ip, "TcpExt", "IPReversePathFilter"),
    (Step::Ip, "Ip6", "InHdrErrors"),
    (Step::Ip, "Ip6", "InTooBigErrors"),
    (Step::Ip, "Ip6", "InNoRoutes"),
    (Step::Ip, "Ip6", "InAddrErrors"),
    (Step::Ip, "Ip6", "InUnknownProtos"),
    (Step::Ip, "Ip6", "InTruncatedPkts"),
    (Step::Ip, "Ip6", "InDiscards"),
    (Step::Protocol, "Udp", "NoPorts"),
    (Step::Protocol, "Udp", "InCsumErrors"),
    (Step::Protocol, "Udp6", "NoPorts"),
    (Step::Protocol, "Udp6", "InCsumErrors"),
    (Step::Protocol, "Tcp", "InErrs"),
    (Step::Protocol, "TcpExt", "ListenDrops"),
    (Step::Protocol, "Icmp", "InErrors"),
    (Step::Socket, "Udp", "RcvbufErrors"),
    (Step::Socket, "Udp", "MemErrors"),
    (Step::Socket, "Udp6", "RcvbufErrors"),
    (Step::Socket, "Udp6", "MemErrors"),
    (Step::Socket, "TcpExt", "RcvPruned"),
    (Step::Socket, "TcpExt", "OfoPruned"),
    (Step::Socket, "TcpExt", "TCPOFODrop"),
    (Step::Socket, "TcpExt", "TCPBacklogDrop"),
    (Step::Socket, "TcpExt", "TCPRcvQDrop"),
];

/// Counters of packets that are sent.
const OUT: [(&str, &str); 7] = [
    ("Udp", "SndbufErrors"),
    ("Udp6", "SndbufErrors"),
    ("Tcp", "RetransSegs"),
    ("Ip", "OutDiscards"),
    ("Ip", "OutNoRoutes"),
    ("Ip6", "OutDiscards"),
    ("Ip6", "OutNoRoutes"),
];

/// A counter's difference. What IPv6 counts is in a file of its own, which is not there without
/// IPv6: then it is 0, as is what an older kernel does not count.
fn delta(facts: &Facts, group: &str, name: &str) -> u64 {
    if group.ends_with('6') {
        return six(facts, &format!("{group}{name}"));
    }
    facts.counter(group, name).map_or(0, |counter| counter.delta)
}

/// `Ip6InReceives    \t123`
fn six(facts: &Facts, name: &str) -> u64 {
    let find = |text: &str| {
        let line = text.lines().find(|line| line.split_ascii_whitespace().next() == Some(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let both = facts.texts("/proc/net/snmp6").ok();
    let both = both.and_then(|(before, after)| Some((find(before)?, find(after)?)));
    both.map_or(0, |(before, after)| after.saturating_sub(before))
}

/// IP's counters of the namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ip {
    pub received: u64,
    /// The same before GRO joined them.
    pub segments: u64,
    /// Handed to a protocol.
    pub delivered: u64,
    /// Routed on.
    pub forwarded: u64,
}

/// Of both families.
pub(super) fn ip(facts: &Facts) -> Result<Ip, Unknown> {
    // Without these nothing adds up, and none of them is 0 for want of a file.
    facts.counter("Ip", "InReceives")?;
    let of = |v4: (&str, &str), v6: &str| delta(facts, v4.0, v4.1) + delta(facts, "Ip6", v6);
    let marks = ["NoECTPkts", "ECT1Pkts", "ECT0Pkts", "CEPkts"];
    let segments = marks.map(|mark| {
        let name = format!("In{mark}");
        of(("IpExt", &name), &name)
    });
    Ok(Ip {
        received: of(("Ip", "InReceives"), "InReceives"),
        segments: segments.iter().sum(),
        delivered: of(("Ip", "InDelivers"), "InDelivers"),
        forwarded: of(("Ip", "ForwDatagrams"), "OutForwDatagrams"),
    })
}

/// Losses that the namespace's counters tell of.
pub(super) fn losses(facts: &Facts) -> Vec<(Step, Loss)> {
    let one = |(step, group, name): (Step, &str, &str)| {
        (step, Loss::new(format!("{group} {name}"), delta(facts, group, name), Scope::Namespace))
    };
    NAMESPACE.into_iter().map(one).filter(|(_, loss)| loss.packets > 0).collect()
}

/// The same of packets on their way out.
pub(super) fn losses_out(facts: &Facts) -> Vec<Loss> {
    let one = |(group, name): (&str, &str)| {
        Loss::new(format!("{group} {name}"), delta(facts, group, name), Scope::Namespace)
    };
    OUT.into_iter().map(one).filter(|loss| loss.packets > 0).collect()
}

/// Losses that the device reports before its driver had the packet.
pub(super) fn of_ring(before: &Stats, after: &Stats) -> Vec<Loss> {
    let one = |name: &str, of: fn(&Stats) -> u64| {
        Loss::new(name, of(after).saturating_sub(of(before)), Scope::Interface)
    };
    let all = [
        one("rx_missed_errors", |stats| stats.rx_missed_errors),
        one("rx_fifo_errors", |stats| stats.rx_fifo_errors),
        one("rx_crc_errors", |stats| stats.rx_crc_errors),
        one("rx_frame_errors", |stats| stats.rx_frame_errors),
        one("rx_length_errors", |stats| stats.rx_length_errors),
    ];
    all.into_iter().filter(|loss| loss.packets > 0).collect()
}

/// UDP sockets that lost datagrams, the worst first: `/proc/net/udp` and `udp6`.
pub(super) fn sockets(facts: &Facts) -> Vec<Loss> {
    let mut found = Vec::new();
    for path in ["/proc/net/udp", "/proc/net/udp6"] {
        let Ok((before, after)) = facts.texts(path) else { continue };
        let before: Vec<Socket> = before.lines().filter_map(socket).collect();
        for now in after.lines().filter_map(socket) {
            // One that was not there before has lost all of it meanwhile.
            let was = before.iter().find(|one| one.inode == now.inode).map_or(0, |one| one.drops);
            let lost = now.drops.saturating_sub(was);
            if lost > 0 {
                let name = path.trim_start_matches("/proc/net/");
                let what =
                    format!("socket {name} port {}, {} bytes waiting", now.port, now.waiting);
                found.push(Loss::new(what, lost, Scope::Namespace));
            }
        }
    }
    found.sort_by_key(|loss| std::cmp::Reverse(loss.packets));
    found.truncate(5);
    found
}

struct Socket {
    port: u16,
    waiting: u64,
    inode: u64,
    drops: u64,
}

/// `sl local:port remote:port st tx:rx tr:when retrnsmt uid timeout inode ref pointer drops`
/// (udp4_format_sock).
fn socket(line: &str) -> Option<Socket> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    Some(Socket {
        port: u16::from_str_radix(words.get(1)?.rsplit(':').next()?, 16).ok()?,
        waiting: u64::from_str_radix(words.get(4)?.split(':').nth(1)?, 16).ok()?,
        inode: words.get(9)?.parse().ok()?,
        drops: words.get(12)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, healthy};

    #[test]
    fn sockets_that_lose() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n";
        let line = |drops| {
            format!(
                "{head} 1: 0100000A:1388 00000000:0000 07 00000000:00000300 00:00000000 00000000 0 0 4711 2 0000 {drops}\n"
            )
        };
        let machine = healthy().put("/proc/net/udp", &line(5)).then("/proc/net/udp", &line(25));
        let found = sockets(&machine.facts());
        assert_eq!(found[0].what, "socket udp port 5000, 768 bytes waiting");
        assert_eq!((found.len(), found[0].packets), (1, 20));
    }

    #[test]
    fn both_families() {
        let six = |n| format!("Ip6InReceives                   \t{n}\nIp6InDelivers \t{n}\n");
        let machine = healthy().counts("Ip", "InReceives", 5);
        let machine = machine.put("/proc/net/snmp6", &six(7)).then("/proc/net/snmp6", &six(10));
        let found = ip(&machine.facts()).unwrap();
        assert_eq!((found.received, found.delivered, found.forwarded), (8, 3, 0));
        assert!(ip(&Machine::unknown().facts()).is_err());
    }
}
