//! UDP datagrams that found a socket's buffer full.

use ringway_host::qdiscs::Qdisc;

use crate::facts::Counter;
use crate::{Check, Facts, Looked, Outcome, State, Unknown};

/// Programs get no more buffer than rmem_max and wmem_max allow.
pub const CHECK: Check = Check {
    number: 45,
    name: "udp-buffers",
    rule: "fewer than 10 datagrams are lost for want of buffer",
    source: "netdata, alarms udp_receive_buffer_errors and udp_send_buffer_errors",
    why: "What finds a socket's buffer full is dropped, and nobody tells the sender.",
    profiles: &[],
    look,
};

const ENOUGH: i64 = 4 << 20;

fn look(facts: &Facts) -> Looked {
    let receive = facts.counter("Udp", "RcvbufErrors")?;
    let send = facts.counter("Udp", "SndbufErrors")?;
    // udp_send_skb (net/ipv4/udp.c) counts ENOBUFS, whoever says it.
    let drops = if send.delta > 0 { by_qdiscs(facts) } else { 0 };
    let sending = if drops > 0 && drops.saturating_mul(10) >= send.delta.saturating_mul(9) {
        let said = format!(
            "{} were not sent: a queueing discipline dropped {drops}, see qdisc-drops",
            send.delta
        );
        Outcome::ok("sending", said)
    } else {
        one(facts, "sending", send, "SndbufErrors", "net/core/wmem_max", "SO_SNDBUF")
    };
    Ok(vec![
        one(facts, "receiving", receive, "RcvbufErrors", "net/core/rmem_max", "SO_RCVBUF"),
        sending,
    ])
}

/// Packets that queueing disciplines dropped; 0 where that is not known.
fn by_qdiscs(facts: &Facts) -> u64 {
    let Ok((before, after)) = facts.pair::<Vec<Qdisc>>("/netlink/qdiscs.json") else { return 0 };
    let sum = |all: &[Qdisc]| all.iter().map(|qdisc| u64::from(qdisc.drops)).sum::<u64>();
    sum(&after).saturating_sub(sum(&before))
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
    let state = if lost.delta > 10 { State::Warn } else { State::Info };
    let said =
        format!("{} datagrams found a socket's buffer full in {:.0} s", lost.delta, facts.seconds);
    let outcome = Outcome::new(state, subject, said)
        .counted(format!("/proc/net/snmp Udp {name}"), lost.delta)
        .advice(match option {
            "SO_SNDBUF" => {
                format!("have the program ask for more ({option}): {key} is but the limit")
            }
            _ => format!(
                "have the program ask for more ({option}), and read faster: {key} is but the limit"
            ),
        });
    raise(facts, outcome, key).unwrap_or_else(|why| Outcome::unknown(subject, why))
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
        let by_qdisc = |lost, drops| {
            let machine = Machine::healthy().counts("Udp", "SndbufErrors", lost);
            machine.edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| all[0].drops = drops)
        };
        for (machine, wanted) in [
            (Machine::healthy(), State::Ok),
            (Machine::healthy().counts("Udp", "RcvbufErrors", 10), State::Info),
            (Machine::healthy().counts("Udp", "RcvbufErrors", 11), State::Warn),
            (Machine::healthy().counts("Udp", "SndbufErrors", 11), State::Warn),
            (by_qdisc(11, 10), State::Ok),
            (by_qdisc(11, 5), State::Warn),
            (Machine::healthy().remove("/proc/net/snmp"), State::Unknown),
        ] {
            assert_eq!(machine.worst(&CHECK), wanted, "{:?}", machine.outcomes(&CHECK));
        }
        let machine = Machine::healthy().counts("Udp", "RcvbufErrors", 11);
        let machine = machine.put("/proc/sys/net/core/rmem_max", "212992");
        assert_eq!(machine.fixes(&CHECK), ["sysctl -w net.core.rmem_max=4194304"]);
    }
}
