//! UDP datagrams that found a socket's buffer full.

use crate::facts::Counter;
use crate::{Facts, Looked, Outcome, Rule, Severity, Unknown};

/// Programs get no more buffer than rmem_max and wmem_max allow.
pub const RULE: Rule = Rule {
    number: 45,
    name: "udp-buffers",
    rule: "fewer than 10 datagrams are lost for want of buffer",
    source: "netdata, alarms udp_receive_buffer_errors and udp_send_buffer_errors",
    why: "What finds a socket's buffer full is dropped, and nobody tells the sender.",
    profiles: &[],
    check,
};

const ENOUGH: i64 = 4 << 20;

fn check(facts: &Facts) -> Looked {
    let receive = facts.counter("Udp", "RcvbufErrors")?;
    let send = facts.counter("Udp", "SndbufErrors")?;
    Ok(vec![
        one(facts, "receiving", receive, "RcvbufErrors", "net/core/rmem_max", "SO_RCVBUF"),
        one(facts, SENDING, send, "SndbufErrors", "net/core/wmem_max", "SO_SNDBUF"),
    ])
}

fn one(
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

/// net/ipv4/udp.c, udp_send_skb: SndbufErrors counts ENOBUFS of a discipline, too. Of several queues the drops are
/// counted twice, by `mq` and by each.
fn of_a_qdisc(facts: &Facts, lost: u64) -> Option<u64> {
    let dropped = super::qdisc_drops::dropped(facts).ok()?;
    (lost.div_ceil(2)..=lost.saturating_mul(2)).contains(&dropped).then_some(dropped)
}

fn raise(facts: &Facts, outcome: Outcome, key: &str) -> Result<Outcome, Unknown> {
    // Before Linux 6.13 it was to be seen in the first network namespace alone.
    let Ok(now) = facts.sysctl(key) else { return Ok(outcome) };
    let outcome = outcome.saw(format!("/proc/sys/{key}"), now);
    if now >= ENOUGH { Ok(outcome) } else { Ok(outcome.change(facts.set(key, ENOUGH)?)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn both_ways() {
        for (machine, wanted) in [
            (Machine::healthy(), Severity::Ok),
            (Machine::healthy().counts("Udp", "RcvbufErrors", 10), Severity::Info),
            (Machine::healthy().counts("Udp", "RcvbufErrors", 11), Severity::Warn),
            (Machine::healthy().counts("Udp", "SndbufErrors", 11), Severity::Warn),
            (Machine::healthy().remove("/proc/net/snmp"), Severity::Unknown),
        ] {
            assert_eq!(machine.worst(&RULE), wanted, "{:?}", machine.outcomes(&RULE));
        }
        let machine = Machine::healthy().counts("Udp", "RcvbufErrors", 11);
        let machine = machine.put("/proc/sys/net/core/rmem_max", "212992");
        assert_eq!(machine.fixes(&RULE), ["sysctl -w net.core.rmem_max=4194304"]);
    }

    #[test]
    fn what_a_qdisc_dropped_is_its_cause() {
        let machine = |drops| {
            let machine = Machine::healthy().counts("Udp", "SndbufErrors", 100);
            machine.edit(
                "/netlink/qdiscs.json",
                |all: &mut Vec<ringway_host::netlink::qdiscs::Qdisc>| {
                    all[0].drops = drops;
                },
            )
        };
        for (drops, wanted) in [
            (49, vec!["qdisc-drops", "udp-buffers"]),
            (50, vec!["qdisc-drops"]),
            (200, vec!["qdisc-drops"]),
            (201, vec!["qdisc-drops", "udp-buffers"]),
        ] {
            let report = machine(drops).report(crate::rules::ALL);
            let mut names: Vec<_> = report.symptoms().map(|one| one.check.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, wanted, "{drops}");
        }
        let alone = machine(0).outcomes(&RULE).remove(1).advice.unwrap();
        assert!(alone.contains("SO_SNDBUF") && !alone.contains("read faster"), "{alone}");
    }
}
