//! Sockets that listen: their accept and SYN queues, and SYN cookies.

use std::net::SocketAddr;

use ringway_host::netlink::sockets::{Listener, Sockets};

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Severity, Unknown};

const SOMAXCONN: &str = "net/core/somaxconn";
/// The kernel's initial value.
const DEFAULT: i64 = 4096;
/// Sockets that a finding names.
const NAMED: usize = 8;

/// Nine tenths of its accept queue are in use. One of a backlog of 1 is no sign of anything.
fn nearly_full(listener: &&Listener) -> bool {
    listener.waiting > 1 && u64::from(listener.waiting) * 10 >= u64::from(listener.limit) * 9
}

/// Those whose queue it was, as far as one can see: nearly full ones, else those where somebody
/// waits, else the smallest.
fn suspects(all: &[Listener]) -> Vec<&Listener> {
    let those = |wanted: &dyn Fn(&&Listener) -> bool| all.iter().filter(wanted).collect::<Vec<_>>();
    let least = all.iter().map(|one| one.limit).min();
    let groups = [
        those(&nearly_full),
        those(&|one| one.waiting > 0),
        those(&|one| Some(one.limit) == least),
    ];
    groups.into_iter().find(|group| !group.is_empty()).unwrap_or_default()
}

/// Names them, and says what bounds their queues: the lesser of what the program asked for and
/// net.core.somaxconn, at listen(2). `ss -ltn` shows it as Send-Q.
fn with_remedy(
    facts: &Facts,
    mut outcome: Outcome,
    suspects: &[&Listener],
) -> Result<Outcome, Unknown> {
    let most = facts.sysctl(SOMAXCONN)?;
    for Listener { address, port, waiting, limit } in suspects.iter().take(NAMED) {
        let socket = SocketAddr::new(*address, *port);
        let whose = if i64::from(*limit) < most {
            "below net.core.somaxconn"
        } else {
            "no less than net.core.somaxconn"
        };
        outcome = outcome.saw(
            format!("ss -ltn, Recv-Q of Send-Q of {socket}"),
            format!("{waiting} of {limit} ({whose})"),
        );
    }
    if suspects.len() > NAMED {
        outcome = outcome.saw("ss -ltn, more of them", suspects.len() - NAMED);
    }
    let outcome = outcome.saw(format!("/proc/sys/{SOMAXCONN}"), most);
    let own = suspects.iter().filter(|one| i64::from(one.limit) < most).count();
    if suspects.is_empty() {
        return Ok(outcome
            .advice("nobody listens any more: `ss -ltn` shows who it was while it goes wrong"));
    }
    if own == suspects.len() {
        return Ok(outcome.advice(format!(
            "accept faster, or have the program ask for a larger backlog in listen(2) and start it again: its own is \
             the limit here, net.core.somaxconn ({most}) allows more (now, if not when it began to listen)"
        )));
    }
    if most >= DEFAULT {
        return Ok(outcome.advice("accept faster: more threads or processes that call accept(2); the queue is long enough"));
    }
    let mut advice = "then start the programs again: what counts is the limit when one begins to listen, and that it asks \
                      for as much in listen(2)"
        .to_owned();
    if own > 0 {
        advice += "; those with a backlog of their own have to ask for more";
    }
    advice += "; a longer queue helps with bursts alone: else accept faster";
    Ok(outcome.change(facts.set(SOMAXCONN, DEFAULT)?).advice(advice))
}

pub const LISTEN_OVERFLOWS: Rule = Rule {
    number: 34,
    name: "listen-overflows",
    rule: "no accept queue overflows, none is nearly full",
    source: "TuneD, profile throughput-performance (somaxconn); netdata, alarm tcp_listen_overflows (more than 5: critical)",
    why: "A client whose last handshake packet finds the queue full waits a second or more for the retransmission.",
    profiles: &[],
    check: listen_overflows,
};

fn listen_overflows(facts: &Facts) -> Looked {
    let overflows = facts.counter("TcpExt", "ListenOverflows")?;
    let Sockets { listeners: all, .. } = facts.json("/netlink/sockets.json")?;
    let full = all.iter().filter(nearly_full).count();
    if overflows.delta == 0 && full == 0 {
        let said = format!("{} sockets listen, none is nearly full", all.len());
        return Outcome::ok(MACHINE, said).into();
    }
    let severity = if overflows.delta > 5 { Severity::Crit } else { Severity::Warn };
    let said = format!(
        "{} times in {:.0} s a connection found an accept queue full; {full} of {} queues are nearly full now",
        overflows.delta,
        facts.seconds,
        all.len()
    );
    let seen = Outcome::new(severity, MACHINE, said)
        .counted("/proc/net/netstat TcpExt ListenOverflows", overflows.delta);
    with_remedy(facts, seen, &suspects(&all))?.into()
}

/// Every overflow is a drop, too; what is more has another cause.
pub const LISTEN_DROPS: Rule = Rule {
    number: 35,
    name: "listen-drops",
    rule: "ListenDrops grows no faster than ListenOverflows",
    source: "Linux, net/ipv4/tcp_ipv4.c and tcp_input.c: who counts LINUX_MIB_LISTENDROPS",
    why: "Connections are refused though the accept queue has room: for want of memory, ports or a route.",
    profiles: &[],
    check: listen_drops,
};

fn listen_drops(facts: &Facts) -> Looked {
    let drops = facts.counter("TcpExt", "ListenDrops")?;
    let overflows = facts.counter("TcpExt", "ListenOverflows")?;
    let others = drops.delta.saturating_sub(overflows.delta);
    if others == 0 {
        return Outcome::ok(MACHINE, "no drop but those of full accept queues").into();
    }
    let said = format!("{others} connections were dropped by listening sockets that had room");
    Outcome::warn(MACHINE, said)
        .counted("/proc/net/netstat TcpExt ListenDrops", drops.delta)
        .counted("/proc/net/netstat TcpExt ListenOverflows", overflows.delta)
        .advice(
            "look at memory (checks tcp-memory and abort-on-memory), and at SYN queues (syn-queue)",
        )
        .into()
}

pub const SYN_QUEUE: Rule = Rule {
    number: 36,
    name: "syn-queue",
    rule: "TCPReqQFullDrop and TCPReqQFullDoCookies do not grow",
    source: "netdata, alarms tcp_syn_queue_drops and tcp_syn_queue_cookies; Linux, net/ipv4/tcp_input.c, tcp_conn_request",
    why: "More clients are in the middle of their handshake than the queue holds (about 304 bytes each).",
    profiles: &[],
    check: syn_queue,
};

const SYN_BACKLOG: &str = "net/ipv4/tcp_max_syn_backlog";

fn syn_queue(facts: &Facts) -> Looked {
    let drops = facts.counter("TcpExt", "TCPReqQFullDrop")?.delta;
    let with = facts.counter("TcpExt", "TCPReqQFullDoCookies")?;
    let setting = facts.sysctl("net/ipv4/tcp_syncookies")?;
    // With 2 every SYN is counted here, however much room there is.
    let cookies = if setting == 2 { 0 } else { with.delta };
    if drops + cookies <= 1 {
        return Outcome::ok(MACHINE, "SYN queues have room").into();
    }
    let said = format!(
        "{} SYNs found the SYN queue full: {drops} dropped, {cookies} answered with a cookie",
        drops + cookies
    );
    let outcome =
        if drops > 0 { Outcome::crit(MACHINE, said) } else { Outcome::warn(MACHINE, said) };
    let mut outcome = outcome
        .counted("/proc/net/netstat TcpExt TCPReqQFullDrop", drops)
        .counted("/proc/net/netstat TcpExt TCPReqQFullDoCookies", cookies);
    // net/ipv4/tcp_input.c, tcp_conn_request: the accept queue's limit is that of the SYN queue;
    // this one, or rather three quarters of it, counts without cookies alone.
    let now = facts.sysctl(SYN_BACKLOG)?;
    if setting == 0 && now < 4096 {
        outcome = outcome.sets(facts.set(SYN_BACKLOG, 4096)?);
    }
    let Sockets { listeners, .. } = facts.json("/netlink/sockets.json")?;
    let least = listeners.iter().map(|one| one.limit).min();
    let smallest: Vec<_> = listeners.iter().filter(|one| Some(one.limit) == least).collect();
    let outcome = with_remedy(facts, outcome, &smallest)?;
    let advice = outcome.advice.as_ref().map(ToString::to_string).unwrap_or_default();
    outcome.advice(format!("if it is no flood: {advice}")).into()
}

pub const TCP_SYNCOOKIES: Rule = Rule {
    number: 37,
    name: "tcp-syncookies",
    rule: "net.ipv4.tcp_syncookies is 1 or 2, and cookies are rarely sent",
    source: "kernel documentation, networking/ip-sysctl, tcp_syncookies",
    why: "Without cookies a flood of SYNs fills the queue and keeps clients out; with them all the time, \
          connections lose options that make them fast.",
    profiles: &[],
    check: tcp_syncookies,
};

const SYNCOOKIES: &str = "net/ipv4/tcp_syncookies";

fn tcp_syncookies(facts: &Facts) -> Looked {
    let cookies = facts.sysctl(SYNCOOKIES)?;
    let off = "a full SYN queue would refuse clients: SYN cookies are off";
    let always = "every connection begins with a SYN cookie: that is for tests";
    for (value, said) in [(0, off), (2, always)] {
        if cookies == value {
            return Outcome::warn(MACHINE, said).sets(facts.set(SYNCOOKIES, 1)?).into();
        }
    }
    let sent = facts.counter("TcpExt", "SyncookiesSent")?;
    if sent.delta > 1 {
        let said =
            format!("{} SYN cookies in {:.0} s: the SYN queue is full", sent.delta, facts.seconds);
        return Outcome::warn(MACHINE, said)
            .counted("/proc/net/netstat TcpExt SyncookiesSent", sent.delta)
            .advice("under attack this is right; otherwise check syn-queue says which limit it is")
            .into();
    }
    Outcome::ok(MACHINE, "on, and not needed").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Crit, Unknown, Warn};
    use crate::testing::{Machine, healthy, table};

    fn listener(port: u16, waiting: u32, limit: u32) -> Listener {
        Listener { address: [10, 0, 0, 1].into(), port, waiting, limit }
    }

    #[test]
    fn the_lesser_of_two_limits() {
        let machine = healthy().put("/proc/sys/net/core/somaxconn", "128");
        let outcome = |limits: &[u32]| {
            let all: Vec<Listener> = limits.iter().map(|limit| listener(80, 9, *limit)).collect();
            let all: Vec<&Listener> = all.iter().collect();
            with_remedy(&machine.facts(), Outcome::warn("", ""), &all).unwrap()
        };
        // The program asked for no more than that.
        assert!(outcome(&[5, 127]).changes.is_empty() && outcome(&[]).changes.is_empty());
        assert!(outcome(&[5]).remedy().to_string().contains("its own is the limit"));
        let wanted = "sysctl -w net.core.somaxconn=4096";
        assert_eq!(outcome(&[5, 128]).changes[0].fix.to_string(), wanted);
        assert!(outcome(&[5; 20]).evidence.iter().any(|one| one.value == "12"));
    }

    #[test]
    fn whose_queue_it_was() {
        let all =
            [listener(1, 0, 4096), listener(2, 0, 5), listener(3, 1, 100), listener(4, 90, 100)];
        let ports = |all: &[Listener]| suspects(all).iter().map(|l| l.port).collect::<Vec<_>>();
        assert_eq!((ports(&all), ports(&all[..3]), ports(&all[..2])), (vec![4], vec![3], vec![2]));
        assert!(ports(&[]).is_empty());
    }

    fn queue(waiting: u32, limit: u32) -> Machine {
        healthy().edit("/netlink/sockets.json", |sockets: &mut Sockets| {
            sockets.listeners = vec![listener(80, waiting, limit)];
        })
    }

    #[test]
    fn overflows_and_nearly_full_queues() {
        let rows = [
            (healthy().counts("TcpExt", "ListenOverflows", 3), Warn),
            (healthy().counts("TcpExt", "ListenOverflows", 6), Crit),
            (queue(115, 128), Severity::Ok),
            (queue(116, 128), Warn),
            (queue(1, 1), Severity::Ok),
            (healthy().remove("/netlink/sockets.json"), Unknown),
        ];
        table(&LISTEN_OVERFLOWS, rows);
        let small = queue(16, 16).put("/proc/sys/net/core/somaxconn", "16");
        assert_eq!(small.fixes(&LISTEN_OVERFLOWS), ["sysctl -w net.core.somaxconn=4096"]);
        assert!(queue(128, 128).fixes(&LISTEN_OVERFLOWS).is_empty());
        // One cause is one finding, whatever shows it.
        let both = small.counts("TcpExt", "ListenOverflows", 9);
        assert_eq!(both.outcomes(&LISTEN_OVERFLOWS).len(), 1);
    }

    #[test]
    fn what_is_more_than_overflows() {
        let machine = |drops, overflows| {
            let machine = healthy().counts("TcpExt", "ListenDrops", drops);
            machine.counts("TcpExt", "ListenOverflows", overflows)
        };
        table(&LISTEN_DROPS, [(machine(5, 5), Severity::Ok), (machine(6, 5), Warn)]);
    }

    #[test]
    fn dropped_or_answered_with_a_cookie() {
        let machine = |name, by| healthy().counts("TcpExt", name, by).listener(16);
        let cookies = |value: &str| {
            machine("TCPReqQFullDrop", 2).put("/proc/sys/net/ipv4/tcp_syncookies", value)
        };
        let small = |machine: Machine| machine.put("/proc/sys/net/core/somaxconn", "16");
        let somaxconn = "sysctl -w net.core.somaxconn=4096";
        // The program asked for no more.
        assert!(cookies("1").fixes(&SYN_QUEUE).is_empty());
        assert_eq!(small(cookies("1")).fixes(&SYN_QUEUE), [somaxconn]);
        let backlog = "sysctl -w net.ipv4.tcp_max_syn_backlog=4096";
        assert_eq!(small(cookies("0")).fixes(&SYN_QUEUE), [backlog, somaxconn]);
        let always = machine("TCPReqQFullDoCookies", 20);
        let rows = [
            (cookies("1"), Crit),
            (machine("TCPReqQFullDoCookies", 2), Warn),
            (machine("TCPReqQFullDoCookies", 1), Severity::Ok),
            (always.put("/proc/sys/net/ipv4/tcp_syncookies", "2"), Severity::Ok),
        ];
        table(&SYN_QUEUE, rows);
    }

    #[test]
    fn off_always_and_flooded() {
        let set = |value| healthy().put("/proc/sys/net/ipv4/tcp_syncookies", value);
        assert_eq!(set("0").undos(&TCP_SYNCOOKIES), ["sysctl -w net.ipv4.tcp_syncookies=0"]);
        let rows = [
            (set("0"), Warn),
            (set("2"), Warn),
            (healthy().counts("TcpExt", "SyncookiesSent", 50), Warn),
            (set("yes"), Unknown),
            (healthy().remove("/proc/net/netstat"), Unknown),
        ];
        table(&TCP_SYNCOOKIES, rows);
    }
}
