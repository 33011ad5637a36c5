//! TCP segments that had to be sent again.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Unknown};

/// Somewhere on the road something is lost.
pub const RULE: Rule = Rule {
    number: 42,
    name: "retransmissions",
    rule: "fewer than 1 % of TCP segments are sent again",
    source: "heuristic of Ringway",
    why: "Each loss costs a round trip at least, and the connection slows down.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
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
                 road: `mtr -T ADDRESS`")
        .into()
}

/// Who listens drops a SYN when its accept queue is full; a client on this host repeats it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_in_a_hundred() {
        let again = |by| Machine::healthy().counts("Tcp", "RetransSegs", by);
        // 100 000 are sent on a healthy machine.
        table(&RULE, [(again(1010), Severity::Ok), (again(1011), Severity::Warn)]);
    }

    #[test]
    fn connections_that_nobody_answers() {
        let machine = |syns| {
            let machine = Machine::healthy().counts("Tcp", "RetransSegs", 2000);
            machine.counts("TcpExt", "TCPSynRetrans", syns)
        };
        let said = |machine: &Machine| {
            let one = machine.outcomes(&RULE).remove(0);
            format!("{} {}", one.found, one.advice.unwrap())
        };
        let (few, many) = (said(&machine(1000)), said(&machine(1001)));
        assert!(few.contains("2000 of 102000") && few.contains("mtr"), "{few}");
        assert!(many.contains("1001 of them SYNs") && !many.contains("mtr"), "{many}");
        // One cause: a queue of this host.
        let own = machine(2000).counts("TcpExt", "ListenOverflows", 1000);
        let report = own.report(crate::rules::ALL);
        let one: Vec<_> = report.symptoms().collect();
        assert!(one.len() == 1 && one[0].check == "listen-overflows", "{one:#?}");
        assert_eq!(one[0].also, ["retransmissions this machine"]);
        let two = machine(2000).counts("TcpExt", "ListenOverflows", 999);
        assert_eq!(two.report(crate::rules::ALL).symptoms().count(), 2);
    }
}
