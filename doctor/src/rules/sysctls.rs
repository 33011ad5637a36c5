//! Settings that are a path and a bound: a row each.

use ringway_host::SysctlValue;

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Severity, Unknown, each};

pub const NUMA_BALANCING: Rule = Rule {
    number: 33,
    name: "numa-balancing",
    rule: "kernel.numa_balancing is 0",
    source: "TuneD, profile network-latency",
    why: "Pages that it takes away for a look cost their program a fault, and a delay, each.",
    profiles: &[Profile::Latency, Profile::Bypass],
    check: |facts| {
        let texts = ["off", "the kernel takes pages away for a look"];
        let row = of_rule(("kernel/numa_balancing", AtMost(0), Severity::Info), texts, Number(0));
        rows(facts, &[row])
    },
};

pub const SLOW_START_AFTER_IDLE: Rule = Rule {
    number: 47,
    name: "slow-start-after-idle",
    rule: "net.ipv4.tcp_slow_start_after_idle is 0 where connections stay open between bursts",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, tcp_slow_start_after_idle",
    why: "After a pause of one retransmission time the first burst is sent in small bits again.",
    profiles: &[Profile::Throughput, Profile::Latency],
    check: |facts| {
        let key = "net/ipv4/tcp_slow_start_after_idle";
        let texts = ["windows stay as they are", "connections forget their window when they pause"];
        let row = of_rule((key, AtMost(0), Severity::Info), texts, Number(0));
        rows(facts, &[row])
    },
};

pub const TCP_OPTIONS: Rule = Rule {
    number: 82,
    name: "tcp-options",
    rule: "net.ipv4.tcp_sack, tcp_window_scaling and tcp_timestamps are not 0",
    source: "kernel documentation, networking/ip-sysctl; RFC 2018 (SACK), RFC 7323 (scaling, timestamps)",
    why: "Without SACK one loss costs a round trip each, without scaling a connection has 64 KiB under way at most, without timestamps \
          TIME_WAIT cannot be used again.",
    profiles: &[],
    check: |facts| {
        let texts = ["on", "it is turned off"];
        let keys = ["net/ipv4/tcp_sack", "net/ipv4/tcp_window_scaling", "net/ipv4/tcp_timestamps"];
        rows(
            facts,
            &keys.map(|key| Row {
                subject: None,
                ..of_rule((key, AtLeast(1), Severity::Warn), texts, Number(1))
            }),
        )
    },
};

pub const FAR_BELOW_DEFAULT: Rule = Rule {
    number: 79,
    name: "far-below-default",
    rule: "no limit is far below the kernel's own default",
    source: "heuristic of Ringway: an eighth of the default or less",
    why: "Such a limit bites at the first burst, long before anything else is full.",
    profiles: &[],
    check: far_below_default,
};

/// Which of a setting's numbers, what Linux 6.1 starts with on a machine with some memory, and
/// below what it is told.
type Floor = (usize, i64, i64);

/// Of a send buffer's first size a page is too little: it holds no segment and its overhead.
const FLOORS: [(&str, &[Floor]); 13] = [
    ("net/core/somaxconn", &[(0, 4096, 128)]),
    ("net/core/netdev_max_backlog", &[(0, 1000, 126)]),
    ("net/core/netdev_budget", &[(0, 300, 38)]),
    ("net/core/dev_weight", &[(0, 64, 9)]),
    ("net/core/rmem_max", &[(0, 212_992, 32_768)]),
    ("net/core/wmem_max", &[(0, 212_992, 32_768)]),
    ("net/core/optmem_max", &[(0, 20_480, 4096)]),
    ("net/ipv4/tcp_max_syn_backlog", &[(0, 1024, 128)]),
    ("net/ipv4/tcp_max_tw_buckets", &[(0, 131_072, 4096)]),
    ("net/ipv4/tcp_max_orphans", &[(0, 65_536, 1024)]),
    ("net/ipv4/tcp_rmem", &[(1, 131_072, 16_385), (2, 6_291_456, 524_288)]),
    ("net/ipv4/tcp_wmem", &[(1, 16_384, 4097), (2, 4_194_304, 262_144)]),
    ("net/netfilter/nf_conntrack_max", &[(0, 262_144, 8192)]),
];
const PORTS: &str = "net/ipv4/ip_local_port_range";

fn far_below_default(facts: &Facts) -> Looked {
    let mut found = each([PORTS], |key| (*key).to_owned(), |_| ports(facts));
    found.extend(each(FLOORS, |(key, ..)| (*key).to_owned(), |row| limit(facts, *row)));
    Ok(found)
}

/// Many are of the first network namespace alone, or of a module that is not loaded.
fn limit(facts: &Facts, (key, places): (&str, &[Floor])) -> Result<Outcome, Unknown> {
    let path = format!("/proc/sys/{key}");
    let (text, mut wanted) = (facts.text(&path)?, facts.all_numbers(&path)?);
    let mut low = Vec::new();
    for &(place, default, floor) in places {
        let value = wanted.get_mut(place).ok_or_else(|| crate::facts::strange(&path, text))?;
        if *value < floor {
            low.push(format!("{value}, and the kernel starts with about {default}"));
            *value = default;
        }
    }
    if low.is_empty() {
        return Ok(Outcome::ok(key, format!("{text}, not far below the default")));
    }
    let outcome = Outcome::warn(key, format!("{key} is {}", low.join("; "))).saw(path, text);
    Ok(outcome.change(facts.set(key, SysctlValue::Numbers(wanted))?))
}

fn ports(facts: &Facts) -> Result<Outcome, Unknown> {
    let [first, last] = facts.sysctls(PORTS)?;
    let ports = last - first + 1;
    if ports >= 3500 {
        return Ok(Outcome::ok(PORTS, format!("{ports} local ports")));
    }
    let said =
        format!("connections of this host have {ports} ports, and the kernel starts with 28232");
    Ok(Outcome::warn(PORTS, said).sets(facts.set(PORTS, [32_768, 60_999])?))
}

/// The kernel's own default is within each bound.
pub const SYSCTL_BOUNDS: Rule = Rule {
    number: 84,
    name: "sysctl-bounds",
    rule: "no setting is where connections fail or stall, though all else is well",
    source: "kernel documentation, networking/ip-sysctl; each finding names the source of its bound",
    why: "Such a value is copied from somewhere, or was set for an experiment, and nothing else tells of it.",
    profiles: &[],
    check: |facts| rows(facts, &ROWS),
};

/// The values that a setting may hold.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    AtLeast(i64),
    AtMost(i64),
    OneOf(&'static [i64]),
    /// Any word but this.
    Not(&'static str),
}

#[derive(Clone, Copy)]
pub(super) enum Value {
    Number(i64),
    Word(&'static str),
}

use Bound::{AtLeast, AtMost, Not, OneOf};
use Value::{Number, Word};

impl From<Value> for SysctlValue {
    fn from(value: Value) -> Self {
        match value {
            Number(number) => number.into(),
            Word(word) => word.into(),
        }
    }
}

/// A file that holds one value, and its bound.
pub(super) struct Row {
    /// Below /proc/sys, unless it is a whole path. `*` stands for `all` and each interface that is
    /// up.
    pub key: &'static str,
    /// The key, unless this is there.
    pub subject: Option<&'static str>,
    pub bound: Bound,
    /// Where the bound comes from, if that is not the rule's own source.
    pub because: Option<&'static str>,
    pub severity: Severity,
    /// The severity under the profile balancer, if that is another.
    pub balancer: Option<Severity>,
    /// See [`Outcome::lasting`].
    pub lasting: bool,
    /// The finding for a value within bounds; absent: the value itself.
    pub well: Option<&'static str>,
    /// The effect of a value out of bounds.
    pub means: &'static str,
    /// The kernel's initial value, or the smallest one that is well.
    pub set: Value,
}

const ROWS: [Row; 18] = [
    row(
        ("net/ipv4/conf/*/arp_ignore", AtMost(7), Severity::Crit),
        "this host answers no ARP request, so that nobody on the link reaches it",
        ("8 is for no local address at all (net/ipv4/arp.c, arp_ignore)", Number(0)),
    ),
    row(
        ("net/ipv4/ip_default_ttl", AtLeast(32), Severity::Warn),
        "packets die before they have crossed as many routers as the Internet has",
        ("RFC 1122, 3.2.1.7; the kernel starts with 64 (IPDEFTTL)", Number(64)),
    ),
    row(
        ("net/ipv4/ip_no_pmtu_disc", OneOf(&[0, 3]), Severity::Warn),
        "packets are cut on the way, or are too large for it, since the path's MTU is not found out",
        ("the kernel starts with 0; 3 only hardens it", Number(0)),
    ),
    row(
        ("net/ipv4/icmp_echo_ignore_all", AtMost(0), Severity::Info),
        "this host answers no ping: who watches it takes it for dead",
        ("RFC 1122, 3.2.2.6; the kernel starts with 0", Number(0)),
    ),
    row(
        ("net/ipv4/tcp_retries2", AtLeast(8), Severity::Warn),
        "connections end with ETIMEDOUT after a short interruption",
        ("RFC 1122, 4.2.3.5: 100 s at least, which takes 8; the kernel starts with 15", Number(15)),
    ),
    row(
        ("net/ipv4/tcp_syn_retries", AtLeast(3), Severity::Warn),
        "connect(2) fails when few SYNs are lost",
        ("heuristic of Ringway: 15 s; the kernel starts with 6 (TCP_SYN_RETRIES)", Number(6)),
    ),
    row(
        ("net/ipv4/tcp_synack_retries", AtLeast(2), Severity::Warn),
        "a handshake is forgotten when one or two answers to it are lost",
        ("heuristic of Ringway: 7 s; the kernel starts with 5 (TCP_SYNACK_RETRIES)", Number(5)),
    ),
    row(
        ("net/ipv4/tcp_abort_on_overflow", AtMost(0), Severity::Warn),
        "a full accept queue resets clients, which would otherwise try again",
        ("kernel documentation: only where the program cannot be made faster", Number(0)),
    ),
    row(
        ("net/ipv4/tcp_moderate_rcvbuf", AtLeast(1), Severity::Warn),
        "the kernel tunes no receive buffer: each stays at the second number of tcp_rmem",
        ("the kernel starts with 1", Number(1)),
    ),
    row(
        ("net/ipv4/tcp_limit_output_bytes", AtLeast(65_536), Severity::Warn),
        "a connection hands a few segments at a time to the device, and waits",
        ("one TSO packet is 64 KiB; the kernel starts with 1048576 or more", Number(1_048_576)),
    ),
    row(
        ("net/ipv4/tcp_notsent_lowat", AtLeast(4096), Severity::Warn),
        "programs are woken for each segment, and connections run dry between two writes",
        ("heuristic of Ringway: a page; the kernel starts with 4294967295", Number(4_294_967_295)),
    ),
    row(
        ("net/ipv4/tcp_base_mss", AtLeast(512), Severity::Info),
        "where tcp_mtu_probing finds a black hole, connections go on with tiny segments",
        ("RFC 879: 536 fit everywhere; the kernel starts with 1024 (TCP_BASE_MSS)", Number(1024)),
    ),
    row(
        ("net/ipv4/tcp_fin_timeout", AtMost(120), Severity::Warn),
        "connections that the program has closed are kept for minutes when the peer is gone",
        ("heuristic of Ringway: twice the kernel's 60 (TCP_FIN_TIMEOUT)", Number(60)),
    ),
    row(
        ("net/ipv4/tcp_reordering", AtLeast(3), Severity::Warn),
        "segments that overtake each other are taken for lost, and the connection slows down",
        ("RFC 5681, 3.2: three; the kernel starts with 3 (TCP_FASTRETRANS_THRESH)", Number(3)),
    ),
    row(
        ("net/ipv4/tcp_early_retrans", AtLeast(3), Severity::Warn),
        "no tail loss probe is sent: when the last segment is lost, a timeout passes",
        ("RFC 8985; the kernel starts with 3, and takes 3 and 4 alone for on", Number(3)),
    ),
    row(
        ("net/ipv4/tcp_congestion_control", Not("reno"), Severity::Warn),
        "connections recover slowly from a loss on fast or long paths",
        ("RFC 9438; the kernel starts with cubic", Word("cubic")),
    ),
    row(
        ("net/unix/max_dgram_qlen", AtLeast(10), Severity::Warn),
        "programs that log or notify by a Unix datagram socket wait for the reader, or lose messages",
        ("the kernel starts with 10 (net/unix/af_unix.c, unix_net_init)", Number(10)),
    ),
    row(
        ("net/ipv6/conf/all/disable_ipv6", AtMost(0), Severity::Info),
        "IPv6 is turned off: addresses of names that have both families fail at first",
        ("RFC 6540; the kernel starts with 0", Number(0)),
    ),
];

/// One of several, each with its own source.
const fn row(
    (key, bound, severity): (&'static str, Bound, Severity),
    means: &'static str,
    (because, set): (&'static str, Value),
) -> Row {
    let (subject, balancer, lasting, well) = (None, None, false, None);
    let because = Some(because);
    Row { key, subject, bound, because, severity, balancer, lasting, well, means, set }
}

/// One of the machine, whose source is its rule's.
pub(super) const fn of_rule(
    bound: (&'static str, Bound, Severity),
    [well, means]: [&'static str; 2],
    set: Value,
) -> Row {
    Row { subject: Some(MACHINE), because: None, well: Some(well), ..row(bound, means, ("", set)) }
}

pub(super) fn rows(facts: &Facts, rows: &[Row]) -> Looked {
    let mut found = Vec::new();
    for row in rows {
        let unknown = |key: &str, why| {
            let subject = row.subject.unwrap_or(key);
            Outcome { lasting: row.lasting, ..Outcome::unknown(subject, why) }
        };
        match keys(facts, row) {
            Ok(keys) => found.extend(
                keys.iter()
                    .map(|key| bounded(facts, row, key).unwrap_or_else(|why| unknown(key, why))),
            ),
            Err(why) => found.push(unknown(row.key, why)),
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

fn bounded(facts: &Facts, row: &Row, key: &str) -> Result<Outcome, Unknown> {
    let is_sysctl = !key.starts_with('/');
    let path = if is_sysctl { format!("/proc/sys/{key}") } else { key.to_owned() };
    let (subject, value) = (row.subject.unwrap_or(key), facts.text(&path)?);
    let well = match row.bound {
        AtLeast(least) => facts.number(&path)? >= least,
        AtMost(most) => facts.number(&path)? <= most,
        OneOf(values) => values.contains(&facts.number(&path)?),
        Not(word) => value != word,
    };
    if well {
        return Ok(Outcome::ok(subject, row.well.unwrap_or(value)));
    }
    let said = match row.because {
        Some(because) => format!("it is {value}: {} ({because})", row.means),
        None => row.means.to_owned(),
    };
    let balancer = row.balancer.filter(|_| facts.profile == Some(Profile::Balancer));
    let seen = Outcome::new(balancer.unwrap_or(row.severity), subject, said);
    let set = SysctlValue::from(row.set);
    Ok(if is_sysctl { seen.sets(facts.set(key, set)?) } else { seen.write(&path, set, value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn each_row() {
        for (check, key, bad, severity) in [
            (NUMA_BALANCING, "kernel/numa_balancing", 1, Info),
            (SLOW_START_AFTER_IDLE, "net/ipv4/tcp_slow_start_after_idle", 1, Info),
            (TCP_OPTIONS, "net/ipv4/tcp_sack", 0, Warn),
            (TCP_OPTIONS, "net/ipv4/tcp_window_scaling", 0, Warn),
            (TCP_OPTIONS, "net/ipv4/tcp_timestamps", 0, Warn),
        ] {
            let machine = healthy().put(&format!("/proc/sys/{key}"), &bad.to_string());
            let fix = format!("sysctl -w {}={}", key.replace('/', "."), 1 - bad);
            assert_eq!(machine.fixes(&check), [fix]);
            table(&check, [(machine, severity)]);
        }
    }

    #[test]
    fn profiles_that_ask() {
        let asks = |profile| SLOW_START_AFTER_IDLE.applies(profile);
        assert!(asks(Some(Profile::Latency)) && !asks(None) && !asks(Some(Profile::Balancer)));
    }

    #[test]
    fn each_limit_by_itself() {
        assert_eq!(healthy().worst(&FAR_BELOW_DEFAULT), Severity::Ok);
        for (key, is, default) in [
            ("core/somaxconn", "16", "4096"),
            ("ipv4/tcp_max_tw_buckets", "10", "131072"),
            ("ipv4/ip_local_port_range", "40000\t40099", "\"32768 60999\""),
            ("ipv4/tcp_rmem", "4096\t8192\t16384", "\"4096 131072 6291456\""),
            ("ipv4/tcp_rmem", "4096\t16384\t6291456", "\"4096 131072 6291456\""),
            ("ipv4/tcp_wmem", "4096\t4096\t4194304", "\"4096 16384 4194304\""),
        ] {
            let machine = healthy().put(&format!("/proc/sys/net/{key}"), is);
            assert_eq!(machine.worst(&FAR_BELOW_DEFAULT), Warn, "{key}");
            let set = |value: &str| [format!("sysctl -w net.{}={value}", key.replace('/', "."))];
            assert_eq!(machine.fixes(&FAR_BELOW_DEFAULT), set(default));
            let back = crate::Fix::sysctl(format!("net/{key}"), is).to_string();
            assert_eq!(machine.undos(&FAR_BELOW_DEFAULT), [back]);
        }
        let strange = healthy().put("/proc/sys/net/core/somaxconn", "many");
        assert_eq!(strange.worst(&FAR_BELOW_DEFAULT), Unknown);
    }

    /// The last value that is well, and the first that is not.
    fn edge(bound: &Bound) -> (String, String) {
        match bound {
            AtLeast(least) => (least.to_string(), (least - 1).to_string()),
            AtMost(most) => (most.to_string(), (most + 1).to_string()),
            OneOf(values) => (values[0].to_string(), (values[0] + 1).to_string()),
            Not(word) => ("cubic".into(), (*word).into()),
        }
    }

    fn set(row: &Row) -> String {
        SysctlValue::from(row.set).to_string()
    }

    #[test]
    fn each_row_at_its_bound() {
        for row in &ROWS {
            let key = row.key.replace('*', "veth0");
            let with = |value: &str| healthy().put(&format!("/proc/sys/{key}"), value);
            let (well, ill) = edge(&row.bound);
            assert_eq!(with(&well).worst(&SYSCTL_BOUNDS), Severity::Ok, "{key}");
            let name = key.replace('/', ".");
            let wanted = [format!("sysctl -w {name}={}", set(row))];
            assert_eq!(with(&ill).fixes(&SYSCTL_BOUNDS), wanted);
            assert_eq!(with(&ill).undos(&SYSCTL_BOUNDS), [format!("sysctl -w {name}={ill}")]);
            table(&SYSCTL_BOUNDS, [(with(&set(row)), Severity::Ok), (with(&ill), row.severity)]);
        }
        let all = healthy().put("/proc/sys/net/ipv4/conf/all/arp_ignore", "8");
        table(&SYSCTL_BOUNDS, [(all, Crit)]);
    }
}
