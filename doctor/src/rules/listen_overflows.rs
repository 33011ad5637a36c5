//! Connections that wait for accept(2).

use ringway_host::sockets::{Listener, Sockets};

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome, State, Unknown};

/// The accept queue is the place where a slow server loses its clients.
pub const CHECK: Check = Check {
    number: 34,
    name: "listen-overflows",
    rule: "no accept queue overflows, none is nearly full",
    source: "TuneD, profile throughput-performance (somaxconn); netdata, alarm tcp_listen_overflows (more than 5: critical)",
    why: "A client whose last handshake packet finds the queue full waits a second or more for the retransmission.",
    profiles: &[],
    look,
};

const KEY: &str = "net/core/somaxconn";

fn look(facts: &Facts) -> Looked {
    let overflows = facts.counter("TcpExt", "ListenOverflows")?;
    let sockets: Sockets = facts.json("/netlink/sockets.json")?;
    let mut found = Vec::new();
    if overflows.delta > 0 {
        let state = if overflows.delta > 5 { State::Crit } else { State::Warn };
        let said = format!(
            "{} connections found an accept queue full in {:.0} s",
            overflows.delta, facts.seconds
        );
        let seen = Outcome::new(state, MACHINE, said)
            .counted("/proc/net/netstat TcpExt ListenOverflows", overflows.delta);
        found.push(with_fix(facts, seen)?);
    }
    for listener in sockets.listeners.iter().filter(|one| nearly_full(one)) {
        let Listener { address, port, waiting, limit } = listener;
        let said = format!("{waiting} of {limit} connections wait for accept(2)");
        let seen = Outcome::warn(format!("{address} port {port}"), said)
            .saw("ss -ltn, Recv-Q of Send-Q", format!("{waiting} of {limit}"));
        found.push(with_fix(facts, seen)?);
    }
    if found.is_empty() {
        let said = format!("{} sockets listen, none is nearly full", sockets.listeners.len());
        found.push(Outcome::ok(MACHINE, said));
    }
    Ok(found)
}

fn nearly_full(listener: &Listener) -> bool {
    // One of a backlog of 1 is no sign of anything.
    listener.waiting > 1 && u64::from(listener.waiting) * 10 >= u64::from(listener.limit) * 9
}

/// The kernel takes the lesser of what the program asked for and this, at listen(2).
fn with_fix(facts: &Facts, outcome: Outcome) -> Result<Outcome, Unknown> {
    let advice = "accept faster, or have the program ask for a larger listen(2) backlog and start it again: the \
                  lesser of that and net.core.somaxconn counts, when it begins to listen";
    let outcome = outcome.advice(advice);
    let now = facts.sysctl(KEY)?;
    if now >= 4096 {
        return Ok(outcome);
    }
    Ok(outcome.saw(format!("/proc/sys/{KEY}"), now).change(facts.set(KEY, 4096)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    fn queue(waiting: u32, limit: u32) -> Machine {
        Machine::healthy().edit("/netlink/sockets.json", |sockets: &mut Sockets| {
            sockets.listeners =
                vec![Listener { address: [10, 0, 0, 1].into(), port: 80, waiting, limit }];
        })
    }

    #[test]
    fn overflows_and_nearly_full_queues() {
        for (machine, wanted) in [
            (Machine::healthy(), State::Ok),
            (Machine::healthy().counts("TcpExt", "ListenOverflows", 3), State::Warn),
            (Machine::healthy().counts("TcpExt", "ListenOverflows", 6), State::Crit),
            (queue(115, 128), State::Ok),
            (queue(116, 128), State::Warn),
            (queue(1, 1), State::Ok),
            (Machine::healthy().remove("/netlink/sockets.json"), State::Unknown),
        ] {
            assert_eq!(machine.worst(&CHECK), wanted, "{:?}", machine.outcomes(&CHECK));
        }
        let small = queue(16, 16).put("/proc/sys/net/core/somaxconn", "16");
        assert_eq!(small.fixes(&CHECK), ["sysctl -w net.core.somaxconn=4096"]);
        assert!(queue(128, 128).fixes(&CHECK).is_empty());
    }
}
