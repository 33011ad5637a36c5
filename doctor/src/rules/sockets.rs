//! Limits of sockets: local ports, buffers, files.

use ringway_host::netlink::sockets::{PeerTuple, Sockets};

use crate::facts::Counter;
use crate::gather::Process;
use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Rule, Severity, Unknown, each};

pub const LOCAL_PORTS: Rule = Rule {
    number: 39,
    name: "local-ports",
    rule: "fewer than 80 % of the local ports lead to one address and port",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, ip_local_port_range",
    why: "connect(2) searches longer the fewer ports are left, and fails with EADDRNOTAVAIL when none is. What helps \
          more than a wider range is one more address, at either end.",
    profiles: &[],
    check: local_ports,
};

const PORT_RANGE: &str = "net/ipv4/ip_local_port_range";

fn local_ports(facts: &Facts) -> Looked {
    let sockets: Sockets = facts.json("/netlink/sockets.json")?;
    let [first, last] = facts.sysctls(PORT_RANGE)?;
    let ports = last - first + 1;
    let crowded = |pair: &&PeerTuple| pair.connections as f64 > ports as f64 * 0.8;
    let crowded: Vec<&PeerTuple> = sockets.peers.iter().filter(crowded).collect();
    if crowded.is_empty() {
        let most = sockets.peers.first().map_or(0, |pair| pair.connections);
        return Outcome::ok(MACHINE, format!("at most {most} of {ports} ports lead to one place"))
            .into();
    }
    Ok(each(crowded, |pair| subject(pair), |pair| crowded_pair(facts, pair, ports)))
}

fn subject(pair: &PeerTuple) -> String {
    format!("{} to {} port {}", pair.source, pair.destination, pair.port)
}

fn crowded_pair(facts: &Facts, pair: &PeerTuple, ports: i64) -> Result<Outcome, Unknown> {
    let said = format!("{} of {ports} local ports are taken", pair.connections);
    let severity = if pair.connections as i64 >= ports { Outcome::crit } else { Outcome::warn };
    let outcome = severity(subject(pair), said)
        .saw("ss -tan, connections of this pair", pair.connections)
        .saw(format!("/proc/sys/{PORT_RANGE}"), facts.text(&format!("/proc/sys/{PORT_RANGE}"))?)
        .advice("add source or destination addresses, use IP_BIND_ADDRESS_NO_PORT where the program binds, keep \
                 connections open; with TCP timestamps tcp_tw_reuse = 1 takes ports back from TIME_WAIT. A wider range may have ports that \
                 services here listen on: name those in net.ipv4.ip_local_reserved_ports");
    if ports >= 64_000 {
        return Ok(outcome);
    }
    Ok(outcome.change(facts.set(PORT_RANGE, [1024, 65_535])?))
}

pub const UDP_BUFFERS: Rule = Rule {
    number: 45,
    name: "udp-buffers",
    rule: "fewer than 10 datagrams are lost for want of buffer",
    source: "netdata, alarms udp_receive_buffer_errors and udp_send_buffer_errors",
    why: "What finds a socket's buffer full is dropped, and nobody tells the sender.",
    profiles: &[],
    check: udp_buffers,
};

const ENOUGH: i64 = 4 << 20;

fn udp_buffers(facts: &Facts) -> Looked {
    let receive = facts.counter("Udp", "RcvbufErrors")?;
    let send = facts.counter("Udp", "SndbufErrors")?;
    Ok(vec![
        full_buffers(facts, "receiving", receive, "RcvbufErrors", "net/core/rmem_max", "SO_RCVBUF"),
        full_buffers(facts, SENDING, send, "SndbufErrors", "net/core/wmem_max", "SO_SNDBUF"),
    ])
}

fn full_buffers(
    facts: &Facts,
    subject: &str,
    lost: Counter,
    name: &str,
    key: &str,
    option: &str,
) -> Outcome {
    if lost.delta == 0 {
        return Outcome::ok(subject, "no datagram found a buffer full");
    }
    let severity = if lost.delta > 10 { Severity::Warn } else { Severity::Info };
    let said =
        format!("{} datagrams found a socket's buffer full in {:.0} s", lost.delta, facts.seconds);
    let outcome = Outcome::new(severity, subject, said)
        .counted(format!("/proc/net/snmp Udp {name}"), lost.delta)
        .advice(match subject {
            SENDING => format!("have the program ask for more ({option}): {key} is but the limit"),
            _ => format!(
                "have the program ask for more ({option}), and read faster: {key} is but the limit"
            ),
        });
    if let (SENDING, Some(dropped)) = (subject, of_a_qdisc(facts, lost.delta)) {
        return outcome
            .saw("tc -s qdisc show, dropped, all interfaces", dropped)
            .advice("a queueing discipline dropped about as many, and told the program (ENOBUFS): see check qdisc-drops")
            .part_of("qdisc-drops");
    }
    raise(facts, outcome, key).unwrap_or_else(|why| Outcome::unknown(subject, why))
}

const SENDING: &str = "sending";

/// net/ipv4/udp.c, udp_send_skb: SndbufErrors counts ENOBUFS of a discipline, too. Of several
/// queues the drops are counted twice, by `mq` and by each.
fn of_a_qdisc(facts: &Facts, lost: u64) -> Option<u64> {
    let dropped = super::drops::qdisc_dropped(facts).ok()?;
    (lost.div_ceil(2)..=lost.saturating_mul(2)).contains(&dropped).then_some(dropped)
}

fn raise(facts: &Facts, outcome: Outcome, key: &str) -> Result<Outcome, Unknown> {
    // Before Linux 6.13 it was to be seen in the first network namespace alone.
    let Ok(now) = facts.sysctl(key) else { return Ok(outcome) };
    let outcome = outcome.saw(format!("/proc/sys/{key}"), now);
    if now >= ENOUGH { Ok(outcome) } else { Ok(outcome.change(facts.set(key, ENOUGH)?)) }
}

pub const OPEN_FILES: Rule = Rule {
    number: 60,
    name: "open-files",
    rule: "the machine has fewer than 90 % of fs.file-max open, a process fewer than 95 % of its limit",
    source: "netdata, alarms system_file_descriptors_utilization and apps_group_file_descriptors_utilization",
    why: "At the limit accept(2) and socket(2) fail, and connections are refused.",
    profiles: &[],
    check: open_files,
};

fn open_files(facts: &Facts) -> Looked {
    let path = "/proc/sys/fs/file-nr";
    let [open, _, most] = facts.numbers(path)?;
    let mut found = vec![Outcome::ok(MACHINE, format!("{open} of {most} open files"))];
    if open as f64 > most as f64 * 0.9 {
        let seen =
            Outcome::crit(MACHINE, format!("{open} of {most} files are open")).saw(path, open);
        let set = |to: i64| Fix::sysctl("fs/file-max", to);
        found[0] = seen.fix(set(most * 2), set(most));
    }
    let processes: Vec<Process> = facts.json(crate::gather::PROCESSES)?;
    for process in processes {
        let Process { pid, name, files: Some(files), limit: Some(limit), .. } = process else {
            continue;
        };
        if files as f64 <= limit as f64 * 0.95 {
            continue;
        }
        let said = format!("{files} of {limit} files are open");
        let id = pid.to_string();
        let set = |to| Fix::command(["prlimit", "--pid", &id, &format!("--nofile={to}:")]);
        found.push(
            Outcome::new(Severity::Crit, format!("process {name} ({pid})"), said)
                .saw(format!("/proc/{pid}/fd, entries"), files)
                .saw(format!("/proc/{pid}/limits, Max open files"), limit)
                .fix(set(limit * 2), set(limit))
                .advice("for good: LimitNOFILE= in its unit, up to fs.nr_open"),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::qdiscs::Qdisc;

    use super::*;
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn roads_that_fill_up() {
        let range = format!("/proc/sys/{PORT_RANGE}");
        let hundred = healthy().put(&range, "40000\t40099");
        let taken = |connections| hundred.clone().connections(connections);
        let undo = ["sysctl -w net.ipv4.ip_local_port_range=\"40000 40099\""];
        assert_eq!(taken(81).undos(&LOCAL_PORTS), undo);
        table(&LOCAL_PORTS, [(taken(80), Severity::Ok), (taken(81), Warn), (taken(100), Crit)]);
    }

    #[test]
    fn both_ways() {
        let rows = [
            (healthy().counts("Udp", "RcvbufErrors", 10), Info),
            (healthy().counts("Udp", "RcvbufErrors", 11), Warn),
            (healthy().counts("Udp", "SndbufErrors", 11), Warn),
            (healthy().remove("/proc/net/snmp"), Unknown),
        ];
        table(&UDP_BUFFERS, rows);
        let machine = healthy().counts("Udp", "RcvbufErrors", 11);
        let machine = machine.put("/proc/sys/net/core/rmem_max", "212992");
        assert_eq!(machine.fixes(&UDP_BUFFERS), ["sysctl -w net.core.rmem_max=4194304"]);
    }

    #[test]
    fn what_a_qdisc_dropped_is_its_cause() {
        let machine = |drops| {
            let machine = healthy().counts("Udp", "SndbufErrors", 100);
            machine.edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| all[0].drops = drops)
        };
        for (drops, wanted) in [
            (49, vec!["qdisc-drops", "udp-buffers"]),
            (50, vec!["qdisc-drops"]),
            (200, vec!["qdisc-drops"]),
            (201, vec!["qdisc-drops", "udp-buffers"]),
        ] {
            let report = machine(drops).report(crate::rules::ALL);
            let mut names: Vec<_> = report.symptoms().map(|one| one.check).collect();
            names.sort_unstable();
            assert_eq!(names, wanted, "{drops}");
        }
        let alone = machine(0).outcomes(&UDP_BUFFERS).remove(1).remedy().to_string();
        assert!(alone.contains("SO_SNDBUF") && !alone.contains("read faster"), "{alone}");
    }

    #[test]
    fn machine_and_process() {
        let process = |files| {
            let set = |one: &mut Process| (one.files, one.limit) = (Some(files), Some(1000));
            healthy().process("web", set)
        };
        assert_eq!(process(951).undos(&OPEN_FILES), ["prlimit --pid 9 --nofile=1000:"]);
        let machine = healthy().put("/proc/sys/fs/file-nr", "901\t0\t1000");
        table(&OPEN_FILES, [(process(950), Severity::Ok), (process(951), Crit), (machine, Crit)]);
    }
}
