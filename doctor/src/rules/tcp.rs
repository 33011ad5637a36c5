//! TCP: its memory, its windows, and connections that end or lose segments.

use ringway_host::ethtool::LinkMode;
use ringway_host::netlink::sockets::Sockets;

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Severity, Unknown, each};

pub const TIME_WAIT: Rule = Rule {
    number: 38,
    name: "time-wait",
    rule: "fewer than 90 % of tcp_max_tw_buckets wait",
    source: "kernel documentation, networking/ip-sysctl, tcp_max_tw_buckets: do not lower it",
    why: "What finds no room is closed at once, and a late packet can then reach the next connection.",
    profiles: &[],
    check: time_wait,
};

const TW_BUCKETS: &str = "net/ipv4/tcp_max_tw_buckets";

fn time_wait(facts: &Facts) -> Looked {
    let waiting = facts.sockstat("TCP", "tw")?;
    let most = facts.sysctl(TW_BUCKETS)?;
    let overflow = facts.counter("TcpExt", "TCPTimeWaitOverflow")?;
    let full = waiting as f64 >= most as f64 * 0.9;
    if !full && overflow.delta == 0 {
        let said = format!("{waiting} of {most} connections in TIME_WAIT, {} KiB", waiting / 2);
        return Outcome::ok(MACHINE, said).into();
    }
    let said = format!(
        "{waiting} connections in TIME_WAIT, {most} may be; {} found no room",
        overflow.delta
    );
    Outcome::warn(MACHINE, said)
        .saw("/proc/net/sockstat TCP tw", waiting)
        .counted("/proc/net/netstat TcpExt TCPTimeWaitOverflow", overflow.delta)
        .sets(facts.set(TW_BUCKETS, (most * 2).max(131_072))?)
        .into()
}

pub const TCP_MEMORY: Rule = Rule {
    number: 40,
    name: "tcp-memory",
    rule: "TCP uses less than tcp_mem's pressure mark, and 90 % of its limit",
    source: "netdata, alarm tcp_memory; kernel documentation, networking/ip-sysctl, tcp_mem",
    why: "Above the mark windows shrink and connections slow down; at the limit they are broken off.",
    profiles: &[],
    check: tcp_memory,
};

const MEMORY: &str = "net/ipv4/tcp_mem";

fn tcp_memory(facts: &Facts) -> Looked {
    let used = facts.sockstat("TCP", "mem")? as i64;
    let [low, pressure, limit] = facts.sysctls(MEMORY)?;
    let severity = match used {
        _ if used as f64 > limit as f64 * 0.9 => Severity::Crit,
        _ if used > pressure => Severity::Warn,
        _ => return Outcome::ok(MACHINE, format!("{used} of {limit} pages")).into(),
    };
    let said =
        format!("TCP uses {used} pages: pressure begins at {pressure}, the limit is {limit}");
    Outcome::new(severity, MACHINE, said)
        .saw("/proc/net/sockstat TCP mem", used)
        .sets(facts.set(MEMORY, [low * 2, pressure * 2, limit * 2])?)
        .advice("if memory is short, smaller buffers instead: tcp_rmem and tcp_wmem")
        .into()
}

pub const ORPHANS: Rule = Rule {
    number: 41,
    name: "orphans",
    rule: "orphaned connections are fewer than 25 % of tcp_max_orphans",
    source: "netdata, alarm tcp_orphans (25 % and 50 %)",
    why: "When there are too many the kernel resets them, and what they had still to send is lost.",
    profiles: &[],
    check: orphans,
};

const MAX_ORPHANS: &str = "net/ipv4/tcp_max_orphans";

fn orphans(facts: &Facts) -> Looked {
    let orphans = facts.sockstat("TCP", "orphan")?;
    let most = facts.sysctl(MAX_ORPHANS)?;
    let severity = match orphans as f64 / most as f64 {
        share if share > 0.5 => Severity::Crit,
        share if share > 0.25 => Severity::Warn,
        _ => return Outcome::ok(MACHINE, format!("{orphans} of {most}")).into(),
    };
    Outcome::new(severity, MACHINE, format!("{orphans} orphaned connections, {most} may be"))
        .saw("/proc/net/sockstat TCP orphan", orphans)
        .sets(facts.set(MAX_ORPHANS, most * 2)?)
        .advice("each costs up to 64 KiB; a lower net.ipv4.tcp_fin_timeout ends them sooner")
        .into()
}

pub const ABORT_ON_MEMORY: Rule = Rule {
    number: 46,
    name: "abort-on-memory",
    rule: "TCPAbortOnMemory does not grow",
    source: "Linux, net/ipv4/tcp_timer.c: tcp_out_of_resources; netdata, alarm tcp_connections",
    why: "Connections in use are reset because there are too many orphans, or TCP is out of memory.",
    profiles: &[],
    check: abort_on_memory,
};

fn abort_on_memory(facts: &Facts) -> Looked {
    let aborted = facts.counter("TcpExt", "TCPAbortOnMemory")?;
    if aborted.delta == 0 {
        return Outcome::ok(MACHINE, "none was broken off").into();
    }
    Outcome::crit(
        MACHINE,
        format!("{} connections were broken off for want of memory", aborted.delta),
    )
    .counted("/proc/net/netstat TcpExt TCPAbortOnMemory", aborted.delta)
    .advice("see the checks tcp-memory and orphans, which have the commands")
    .into()
}

pub const RETRANSMISSIONS: Rule = Rule {
    number: 42,
    name: "retransmissions",
    rule: "fewer than 1 % of TCP segments are sent again",
    source: "heuristic of Ringway",
    why: "Each loss costs a round trip at least, and the connection slows down.",
    profiles: &[],
    check: retransmissions,
};

fn retransmissions(facts: &Facts) -> Looked {
    let again = facts.counter("Tcp", "RetransSegs")?;
    let sent = facts.counter("Tcp", "OutSegs")?;
    let syns = facts.counter("TcpExt", "TCPSynRetrans")?;
    // net/ipv4/tcp_output.c: OutSegs leaves out what is sent again.
    let all = sent.delta + again.delta;
    // Of a handful nothing follows.
    if again.delta < 10 || again.delta * 100 <= all {
        return Outcome::ok(MACHINE, format!("{} of {all} segments", again.delta)).into();
    }
    let said = format!("{} of {all} segments were sent again", again.delta);
    let seen = |said: String| {
        Outcome::warn(MACHINE, said)
            .counted("/proc/net/snmp Tcp RetransSegs", again.delta)
            .counted("/proc/net/snmp Tcp OutSegs", sent.delta)
    };
    if syns.delta * 2 > again.delta {
        let said = format!("{said}, {} of them SYNs that nobody answered", syns.delta);
        let seen = seen(said).counted("/proc/net/netstat TcpExt TCPSynRetrans", syns.delta);
        return unanswered(facts, seen, syns.delta)?.into();
    }
    seen(said)
        .advice("`ss -ti` names the connections (retrans); if all of one interface, look at its counters, else at the \
                 rtt: `mtr -T ADDRESS`")
        .into()
}

/// A listener drops a SYN when its accept queue is full; a client on this host repeats it.
fn unanswered(facts: &Facts, seen: Outcome, syns: u64) -> Result<Outcome, Unknown> {
    let overflows = facts.counter("TcpExt", "ListenOverflows")?;
    if overflows.delta * 2 >= syns {
        let seen = seen.counted("/proc/net/netstat TcpExt ListenOverflows", overflows.delta);
        let advice = "accept queues of this host overflow as often: mend those first (check listen-overflows)";
        return Ok(seen.advice(advice).part_of("listen-overflows"));
    }
    Ok(seen.advice(
        "`ss -tno state syn-sent` names whom they are sent to: nobody is there, a firewall drops them, or the listener's \
         queue is full (there: `ringway doctor --only listen-overflows`)",
    ))
}

pub const RECEIVE_PRUNED: Rule = Rule {
    number: 43,
    name: "receive-pruned",
    rule: "RcvPruned, OfoPruned and TCPOFODrop do not grow",
    source: "kernel documentation, networking/ip-sysctl, tcp_rmem",
    why: "The sender must send again what had come already.",
    profiles: &[],
    check: receive_pruned,
};

const RMEM: &str = "net/ipv4/tcp_rmem";

fn receive_pruned(facts: &Facts) -> Looked {
    let mut outcome = Outcome::warn(MACHINE, "TCP throws data out of full receive buffers");
    for name in ["RcvPruned", "OfoPruned", "TCPOFODrop"] {
        let counter = facts.counter("TcpExt", name)?;
        if counter.delta > 0 {
            outcome = outcome.counted(format!("/proc/net/netstat TcpExt {name}"), counter.delta);
        }
    }
    if outcome.evidence.is_empty() {
        return Outcome::ok(MACHINE, "nothing was thrown away").into();
    }
    let [least, first, most] = facts.sysctls(RMEM)?;
    let wanted = (most * 2).max(6_291_456);
    outcome.sets(facts.set(RMEM, [least, first, wanted])?).into()
}

pub const TCP_WINDOW: Rule = Rule {
    number: 44,
    name: "tcp-window",
    rule: "tcp_rmem and tcp_wmem allow what an interface sends in a round trip",
    source: "kernel documentation, networking/ip-sysctl, tcp_rmem; 10 ms where no connection tells are a \
             guess of Ringway",
    why: "One connection gets no more than a buffer for each round trip, however fast the link is. A program that sets \
          SO_RCVBUF turns the kernel's own tuning off.",
    profiles: &[Profile::Throughput],
    check: tcp_window,
};

const GUESS_US: u32 = 10_000;

fn tcp_window(facts: &Facts) -> Looked {
    let untold = Unknown("the kernel does not tell which sockets have set it".into());
    let mut found = vec![Outcome::unknown("SO_RCVBUF", untold)];
    let mut fastest = None;
    for card in facts.cards()? {
        let mode: Result<LinkMode, _> = facts.ethtool(&card.link.name, "link_mode");
        fastest = fastest.max(mode.ok().and_then(|mode| mode.speed_mbit));
    }
    let Some(mbit) = fastest else { return Ok(found) };
    let sockets: Sockets = facts.json("/netlink/sockets.json")?;
    let rtt_us = sockets.rtt_us.unwrap_or(GUESS_US);
    // Mbit/s times microseconds are bits.
    let wanted = i64::from(mbit).saturating_mul(i64::from(rtt_us)) / 8;
    let rtt = match sockets.rtt_us {
        Some(rtt) => format!("{mbit} Mbit/s over {rtt} us, the median of connections"),
        None => format!("{mbit} Mbit/s over 10 ms, a guess"),
    };
    let keys = ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"];
    found.extend(each(keys, |key| (*key).to_owned(), |key| window(facts, key, wanted, &rtt)));
    Ok(found)
}

fn window(facts: &Facts, key: &str, wanted: i64, rtt: &str) -> Result<Outcome, Unknown> {
    let [least, first, most] = facts.sysctls(key)?;
    if most >= wanted {
        return Ok(Outcome::ok(key, format!("{most} bytes, enough for {rtt}")));
    }
    let outcome = Outcome::info(key, format!("{most} bytes at most, and {rtt}, are {wanted}"))
        .saw(format!("/proc/sys/{key}"), format!("{least} {first} {most}"));
    Ok(outcome.change(facts.set(key, [least, first, wanted * 2])?))
}

pub const TCP_HASH: Rule = Rule {
    number: 48,
    name: "tcp-hash",
    rule: "tcp_ehash_entries is not negative",
    source: "kernel documentation, networking/ip-sysctl, tcp_ehash_entries",
    why: "The table is shared with the machine's first network namespace: what is measured here depends on what runs there.",
    // Elsewhere it is as it should be.
    profiles: &[Profile::Throughput, Profile::Latency],
    check: tcp_hash,
};

const EHASH_ENTRIES: &str = "net/ipv4/tcp_ehash_entries";

fn tcp_hash(facts: &Facts) -> Looked {
    let entries = facts.sysctl(EHASH_ENTRIES)?;
    if entries >= 0 {
        return Outcome::ok(MACHINE, format!("a table of {entries} entries of its own")).into();
    }
    let said = format!(
        "its connections are in the first network namespace's table of {} entries",
        entries.unsigned_abs()
    );
    Outcome::info(MACHINE, said)
        .saw(format!("/proc/sys/{EHASH_ENTRIES}"), entries)
        .advice(
            "all is well unless you measure. This namespace keeps what it was made with. For one with a table of its own, \
             on the host: `sysctl -w net.ipv4.tcp_child_ehash_entries=262144`, then `ip netns add NAME`; its \
             tcp_max_tw_buckets begins at half of that, its tcp_max_syn_backlog at 1/128",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{Machine, healthy, table};

    #[test]
    fn near_the_limit_or_over_it() {
        let waiting = |tw: u32| {
            let text = format!("sockets: used 3\nTCP: inuse 1 orphan 0 tw {tw} alloc 4 mem 97");
            healthy()
                .put("/proc/net/sockstat", &text)
                .put(&format!("/proc/sys/{TW_BUCKETS}"), "100")
        };
        assert_eq!(waiting(90).fixes(&TIME_WAIT), ["sysctl -w net.ipv4.tcp_max_tw_buckets=131072"]);
        let rows = [
            (waiting(89), Severity::Ok),
            (waiting(90), Warn),
            (healthy().counts("TcpExt", "TCPTimeWaitOverflow", 1), Warn),
        ];
        table(&TIME_WAIT, rows);
    }

    #[test]
    fn pressure_and_limit() {
        let uses = |pages: u32| {
            let text = format!("TCP: inuse 1 orphan 0 tw 0 alloc 4 mem {pages}");
            healthy().put("/proc/net/sockstat", &text)
        };
        let rows = [(uses(150_000), Severity::Ok), (uses(150_001), Warn), (uses(180_001), Crit)];
        table(&TCP_MEMORY, rows);
    }

    #[test]
    fn a_quarter_and_a_half() {
        let orphans = |count: u32| {
            let text = format!("TCP: inuse 1 orphan {count} tw 0 alloc 4 mem 1");
            healthy()
                .put("/proc/net/sockstat", &text)
                .put(&format!("/proc/sys/{MAX_ORPHANS}"), "1000")
        };
        table(&ORPHANS, [(orphans(250), Severity::Ok), (orphans(251), Warn), (orphans(501), Crit)]);
    }

    #[test]
    fn one_is_too_many() {
        let rows = [(healthy().counts("TcpExt", "TCPAbortOnMemory", 1), Crit)];
        table(&ABORT_ON_MEMORY, rows);
    }

    #[test]
    fn one_in_a_hundred() {
        let again = |by| healthy().counts("Tcp", "RetransSegs", by);
        // 100 000 are sent on a healthy machine.
        table(&RETRANSMISSIONS, [(again(1010), Severity::Ok), (again(1011), Warn)]);
    }

    #[test]
    fn connections_that_nobody_answers() {
        let machine = |syns| {
            let machine = healthy().counts("Tcp", "RetransSegs", 2000);
            machine.counts("TcpExt", "TCPSynRetrans", syns)
        };
        let said = |machine: &Machine| {
            let one = machine.outcomes(&RETRANSMISSIONS).remove(0);
            format!("{} {}", one.found, one.remedy())
        };
        let (few, many) = (said(&machine(1000)), said(&machine(1001)));
        assert!(few.contains("2000 of 102000") && few.contains("mtr"), "{few}");
        assert!(many.contains("1001 of them SYNs") && !many.contains("mtr"), "{many}");
        // One cause: a queue of this host.
        let own = machine(2000).counts("TcpExt", "ListenOverflows", 1000);
        let report = own.report(crate::rules::ALL);
        let one: Vec<_> = report.symptoms().collect();
        assert!(one.len() == 1 && one[0].check == "listen-overflows", "{one:#?}");
        let also = crate::Other::from("retransmissions this machine".to_owned());
        assert_eq!(one[0].also, [also]);
        let two = machine(2000).counts("TcpExt", "ListenOverflows", 999);
        assert_eq!(two.report(crate::rules::ALL).symptoms().count(), 2);
    }

    #[test]
    fn each_counter() {
        let rows = ["RcvPruned", "OfoPruned", "TCPOFODrop"];
        let rows = rows.map(|name| (healthy().counts("TcpExt", name, 1), Warn));
        table(&RECEIVE_PRUNED, rows);
    }

    #[test]
    fn ten_gigabits_over_a_round_trip() {
        let most = |bytes: u32| {
            healthy().put("/proc/sys/net/ipv4/tcp_wmem", &format!("4096 16384 {bytes}"))
        };
        // A missing answer of the kernel is unknown whatever else is well.
        let worst = |machine: &Machine| {
            let outcomes = machine.outcomes(&TCP_WINDOW).into_iter();
            outcomes.filter(|one| one.subject != "SO_RCVBUF").map(|one| one.severity).max().unwrap()
        };
        assert_eq!(worst(&most(12_500_000)), Severity::Ok);
        let little = most(12_499_999);
        let fix = ["sysctl -w net.ipv4.tcp_wmem=\"4096 16384 25000000\""];
        assert_eq!((worst(&little), little.fixes(&TCP_WINDOW)), (Info, fix.map(Into::into).into()));
        let near = little.edit("/netlink/sockets.json", |all: &mut Sockets| all.rtt_us = Some(900));
        assert_eq!(worst(&near), Severity::Ok);
        assert_eq!(healthy().worst(&TCP_WINDOW), Unknown);
        assert_eq!(Machine::unknown().worst(&TCP_WINDOW), Unknown);
    }

    #[test]
    fn shared_is_negative() {
        let shared = healthy().put(&format!("/proc/sys/{EHASH_ENTRIES}"), "-262144");
        table(&TCP_HASH, [(shared, Info)]);
    }
}
