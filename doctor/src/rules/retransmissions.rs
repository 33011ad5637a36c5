//! TCP segments that had to be sent again.

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome};

/// Somewhere on the road something is lost.
pub const CHECK: Check = Check {
    number: 42,
    name: "retransmissions",
    rule: "fewer than 1 % of TCP segments are sent again",
    source: "heuristic of Ringway",
    why: "Each loss costs a round trip at least, and the connection slows down.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let again = facts.counter("Tcp", "RetransSegs")?;
    // RFC 4022: without those that are sent again.
    let sent = facts.counter("Tcp", "OutSegs")?;
    let all = sent.delta.saturating_add(again.delta);
    let is_much = |some: u64| some >= 10 && some.saturating_mul(100) > all;
    // Of a handful nothing follows.
    if !is_much(again.delta) {
        return Outcome::ok(MACHINE, format!("{} of {all} segments", again.delta)).into();
    }
    let syns = facts.counter("TcpExt", "TCPSynRetrans").map_or(0, |counter| counter.delta);
    let said = format!("{} of {all} segments were sent for the second time or later", again.delta);
    let found = |state: fn(&'static str, String) -> Outcome, said| {
        state(MACHINE, said)
            .counted("/proc/net/snmp Tcp RetransSegs", again.delta)
            .counted("/proc/net/snmp Tcp OutSegs, those not with it", sent.delta)
            .counted("/proc/net/netstat TcpExt TCPSynRetrans", syns)
    };
    if !is_much(again.delta.saturating_sub(syns)) {
        let full =
            facts.counter("TcpExt", "ListenOverflows").is_ok_and(|counter| counter.delta > 0);
        if full {
            let said =
                format!("{said}, by SYNs that a full queue here did not take: listen-overflows");
            return found(Outcome::ok, said).into();
        }
        return found(Outcome::warn, format!("{said}, {syns} of them SYNs that nobody answered"))
            .advice(
                "nobody listens there, a filter drops them, or the queue there is full: \
                     `ss -tn state syn-sent` names the addresses",
            )
            .into();
    }
    found(Outcome::warn, said)
        .advice("`ss -ti` names the connections (retrans); if all of one interface, look at its counters, else at the \
                 road: `mtr -T ADDRESS`")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn one_in_a_hundred() {
        let again = |by| Machine::healthy().counts("Tcp", "RetransSegs", by);
        // 100 000 are sent on a healthy machine.
        let syns = |by| again(2000).counts("TcpExt", "TCPSynRetrans", by);
        assert!(syns(1999).outcomes(&CHECK)[0].found.contains("1999 of them SYNs"));
        assert!(!syns(500).outcomes(&CHECK)[0].found.contains("SYNs"));
        // Another rule tells of these.
        let here = syns(1999).counts("TcpExt", "ListenOverflows", 9);
        table(
            &CHECK,
            [
                (again(1010), State::Ok),
                (again(1011), State::Warn),
                (syns(1999), State::Warn),
                (here, State::Ok),
            ],
        );
    }
}
