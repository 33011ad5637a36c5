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
    let sent = facts.counter("Tcp", "OutSegs")?;
    // Of a handful nothing follows.
    if again.delta < 10 || again.delta * 100 <= sent.delta {
        return Outcome::ok(MACHINE, format!("{} of {} segments", again.delta, sent.delta)).into();
    }
    let said = format!("{} of {} segments were sent again", again.delta, sent.delta);
    Outcome::warn(MACHINE, said)
        .counted("/proc/net/snmp Tcp RetransSegs", again.delta)
        .counted("/proc/net/snmp Tcp OutSegs", sent.delta)
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
        table(&CHECK, [(again(1000), State::Ok), (again(1001), State::Warn)]);
    }
}
