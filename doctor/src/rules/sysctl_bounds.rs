//! Settings that are a path and a bound: a row each.

use crate::{Facts, Looked, Outcome, Rule, Severity, Unknown, each};

/// The kernel's own default is within each bound.
pub const RULE: Rule = Rule {
    number: 84,
    name: "sysctl-bounds",
    rule: "no setting is where connections fail or stall, though all else is well",
    source: "kernel documentation, networking/ip-sysctl; each finding names the source of its bound",
    why: "Such a value is copied from somewhere, or was set for an experiment, and nothing else tells of it.",
    profiles: &[],
    check,
};

/// What a setting may hold.
enum Bound {
    AtLeast(i64),
    AtMost(i64),
    OneOf(&'static [i64]),
    /// Any word but this.
    Not(&'static str),
}
use Bound::{AtLeast, AtMost, Not, OneOf};

struct Row {
    /// Below /proc/sys. `*` stands for `all` and each interface that is up.
    key: &'static str,
    bound: Bound,
    /// Where the bound comes from.
    because: &'static str,
    severity: Severity,
    /// What a value out of bounds does.
    means: &'static str,
    /// What the kernel starts with, or the smallest value that is well.
    set: &'static str,
}

const ROWS: [Row; 18] = [
    row(
        ("net/ipv4/conf/*/arp_ignore", AtMost(7), Severity::Crit),
        "this host answers no ARP request, so that nobody on the link reaches it",
        ("8 is for no local address at all (net/ipv4/arp.c, arp_ignore)", "0"),
    ),
    row(
        ("net/ipv4/ip_default_ttl", AtLeast(32), Severity::Warn),
        "packets die before they have crossed as many routers as the Internet has",
        ("RFC 1122, 3.2.1.7; the kernel starts with 64 (IPDEFTTL)", "64"),
    ),
    row(
        ("net/ipv4/ip_no_pmtu_disc", OneOf(&[0, 3]), Severity::Warn),
        "packets are cut on the way, or are too large for it, since the path's MTU is not found out",
        ("the kernel starts with 0; 3 only hardens it", "0"),
    ),
    row(
        ("net/ipv4/icmp_echo_ignore_all", AtMost(0), Severity::Info),
        "this host answers no ping: who watches it takes it for dead",
        ("RFC 1122, 3.2.2.6; the kernel starts with 0", "0"),
    ),
    row(
        ("net/ipv4/tcp_retries2", AtLeast(8), Severity::Warn),
        "connections end with ETIMEDOUT after a short interruption",
        ("RFC 1122, 4.2.3.5: 100 s at least, which takes 8; the kernel starts with 15", "15"),
    ),
    row(
        ("net/ipv4/tcp_syn_retries", AtLeast(3), Severity::Warn),
        "connect(2) fails when few SYNs are lost",
        ("heuristic of Ringway: 15 s; the kernel starts with 6 (TCP_SYN_RETRIES)", "6"),
    ),
    row(
        ("net/ipv4/tcp_synack_retries", AtLeast(2), Severity::Warn),
        "a handshake is forgotten when one or two answers to it are lost",
        ("heuristic of Ringway: 7 s; the kernel starts with 5 (TCP_SYNACK_RETRIES)", "5"),
    ),
    row(
        ("net/ipv4/tcp_abort_on_overflow", AtMost(0), Severity::Warn),
        "a full accept queue resets clients, which would otherwise try again",
        ("kernel documentation: only where the program cannot be made faster", "0"),
    ),
    row(
        ("net/ipv4/tcp_moderate_rcvbuf", AtLeast(1), Severity::Warn),
        "the kernel tunes no receive buffer: each stays at the second number of tcp_rmem",
        ("the kernel starts with 1", "1"),
    ),
    row(
        ("net/ipv4/tcp_limit_output_bytes", AtLeast(65_536), Severity::Warn),
        "a connection hands a few segments at a time to the device, and waits",
        ("one TSO packet is 64 KiB; the kernel starts with 1048576 or more", "1048576"),
    ),
    row(
        ("net/ipv4/tcp_notsent_lowat", AtLeast(4096), Severity::Warn),
        "programs are woken for each segment, and connections run dry between two writes",
        ("heuristic of Ringway: a page; the kernel starts with 4294967295", "4294967295"),
    ),
    row(
        ("net/ipv4/tcp_base_mss", AtLeast(512), Severity::Info),
        "where tcp_mtu_probing finds a black hole, connections go on with tiny segments",
        ("RFC 879: 536 fit everywhere; the kernel starts with 1024 (TCP_BASE_MSS)", "1024"),
    ),
    row(
        ("net/ipv4/tcp_fin_timeout", AtMost(120), Severity::Warn),
        "connections that the program has closed are kept for minutes when the peer is gone",
        ("heuristic of Ringway: twice the kernel's 60 (TCP_FIN_TIMEOUT)", "60"),
    ),
    row(
        ("net/ipv4/tcp_reordering", AtLeast(3), Severity::Warn),
        "segments that overtake each other are taken for lost, and the connection slows down",
        ("RFC 5681, 3.2: three; the kernel starts with 3 (TCP_FASTRETRANS_THRESH)", "3"),
    ),
    row(
        ("net/ipv4/tcp_early_retrans", AtLeast(3), Severity::Warn),
        "no tail loss probe is sent: when the last segment is lost, a timeout passes",
        ("RFC 8985; the kernel starts with 3, and takes 3 and 4 alone for on", "3"),
    ),
    row(
        ("net/ipv4/tcp_congestion_control", Not("reno"), Severity::Warn),
        "connections recover slowly from a loss on fast or long paths",
        ("RFC 9438; the kernel starts with cubic", "cubic"),
    ),
    row(
        ("net/unix/max_dgram_qlen", AtLeast(10), Severity::Warn),
        "programs that log or notify by a Unix datagram socket wait for the reader, or lose messages",
        ("the kernel starts with 10 (net/unix/af_unix.c, unix_net_init)", "10"),
    ),
    row(
        ("net/ipv6/conf/all/disable_ipv6", AtMost(0), Severity::Info),
        "IPv6 is turned off: addresses of names that have both families fail at first",
        ("RFC 6540; the kernel starts with 0", "0"),
    ),
];

const fn row(
    (key, bound, severity): (&'static str, Bound, Severity),
    means: &'static str,
    (because, set): (&'static str, &'static str),
) -> Row {
    Row { key, bound, because, severity, means, set }
}

fn check(facts: &Facts) -> Looked {
    let mut found = Vec::new();
    for row in &ROWS {
        match keys(facts, row) {
            Ok(keys) => found.extend(each(keys, Clone::clone, |key| one(facts, row, key))),
            Err(why) => found.push(Outcome::unknown(row.key, why)),
        }
    }
    Ok(found)
}

fn keys(facts: &Facts, row: &Row) -> Result<Vec<String>, Unknown> {
    if !row.key.contains('*') {
        return Ok(vec![row.key.into()]);
    }
    let interfaces = facts.interfaces()?;
    let names = interfaces.iter().map(|one| one.link.name.as_str());
    Ok(["all"].into_iter().chain(names).map(|name| row.key.replace('*', name)).collect())
}

fn one(facts: &Facts, row: &Row, key: &str) -> Result<Outcome, Unknown> {
    let path = format!("/proc/sys/{key}");
    let value = facts.text(&path)?;
    let well = match row.bound {
        AtLeast(least) => facts.number(&path)? >= least,
        AtMost(most) => facts.number(&path)? <= most,
        OneOf(values) => values.contains(&facts.number(&path)?),
        Not(word) => value != word,
    };
    if well {
        return Ok(Outcome::ok(key, value));
    }
    let said = format!("it is {value}: {} ({})", row.means, row.because);
    let outcome = Outcome::new(row.severity, key, said).saw(path, value);
    Ok(outcome.change(facts.set(key, row.set)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    /// The last value that is well, and the first that is not.
    fn edge(bound: &Bound) -> (String, String) {
        match bound {
            AtLeast(least) => (least.to_string(), (least - 1).to_string()),
            AtMost(most) => (most.to_string(), (most + 1).to_string()),
            OneOf(values) => (values[0].to_string(), (values[0] + 1).to_string()),
            Not(word) => ("cubic".into(), (*word).into()),
        }
    }

    #[test]
    fn each_row_at_its_bound() {
        for row in &ROWS {
            let key = row.key.replace('*', "veth0");
            let with = |value: &str| Machine::healthy().put(&format!("/proc/sys/{key}"), value);
            let (well, ill) = edge(&row.bound);
            assert_eq!(with(&well).worst(&RULE), Severity::Ok, "{key}");
            let name = key.replace('/', ".");
            assert_eq!(with(&ill).fixes(&RULE), [format!("sysctl -w {name}={}", row.set)]);
            assert_eq!(with(&ill).undos(&RULE), [format!("sysctl -w {name}={ill}")]);
            table(&RULE, [(with(row.set), Severity::Ok), (with(&ill), row.severity)]);
        }
        let all = Machine::healthy().put("/proc/sys/net/ipv4/conf/all/arp_ignore", "8");
        table(&RULE, [(all, Severity::Crit)]);
    }
}
