//! Local ports that are used up towards one destination.

use ringway_host::netlink::sockets::{PeerTuple, Sockets};

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Unknown, each};

/// To one address and port there is one connection for each local port and address.
pub const RULE: Rule = Rule {
    number: 39,
    name: "local-ports",
    rule: "fewer than 80 % of the local ports lead to one address and port",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, ip_local_port_range",
    why: "connect(2) searches longer the fewer ports are left, and fails with EADDRNOTAVAIL when none is. What helps \
          more than a wider range is one more address, at either end.",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/ip_local_port_range";

fn check(facts: &Facts) -> Looked {
    let sockets: Sockets = facts.json("/netlink/sockets.json")?;
    let [first, last] = facts.sysctls(KEY)?;
    let ports = last - first + 1;
    let crowded = |road: &&PeerTuple| road.connections as f64 > ports as f64 * 0.8;
    let crowded: Vec<&PeerTuple> = sockets.roads.iter().filter(crowded).collect();
    if crowded.is_empty() {
        let most = sockets.roads.first().map_or(0, |road| road.connections);
        return Outcome::ok(MACHINE, format!("at most {most} of {ports} ports lead to one place"))
            .into();
    }
    Ok(each(crowded, |road| subject(road), |road| outcome(facts, road, ports)))
}

fn subject(road: &PeerTuple) -> String {
    format!("{} to {} port {}", road.source, road.destination, road.port)
}

fn outcome(facts: &Facts, road: &PeerTuple, ports: i64) -> Result<Outcome, Unknown> {
    let said = format!("{} of {ports} local ports are taken", road.connections);
    let severity = if road.connections as i64 >= ports { Outcome::crit } else { Outcome::warn };
    let outcome = severity(subject(road), said)
        .saw("ss -tan, connections of this pair", road.connections)
        .saw(format!("/proc/sys/{KEY}"), facts.text(&format!("/proc/sys/{KEY}"))?)
        .advice("add source or destination addresses, use IP_BIND_ADDRESS_NO_PORT where the program binds, keep \
                 connections open; with TCP timestamps tcp_tw_reuse = 1 takes ports back from TIME_WAIT. A wider range may have ports that \
                 services here listen on: name those in net.ipv4.ip_local_reserved_ports");
    if ports >= 64_000 {
        return Ok(outcome);
    }
    Ok(outcome.change(facts.set(KEY, "1024 65535")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn roads_that_fill_up() {
        let taken = |connections| {
            let road = PeerTuple {
                source: [10, 0, 0, 1].into(),
                destination: [10, 0, 0, 2].into(),
                port: 80,
                connections,
            };
            let machine = Machine::healthy().put(&format!("/proc/sys/{KEY}"), "40000\t40099");
            machine.edit("/netlink/sockets.json", |all: &mut Sockets| all.roads = vec![road])
        };
        let undo = ["sysctl -w net.ipv4.ip_local_port_range=\"40000 40099\""];
        assert_eq!(taken(81).undos(&RULE), undo);
        table(
            &RULE,
            [(taken(80), Severity::Ok), (taken(81), Severity::Warn), (taken(100), Severity::Crit)],
        );
    }
}
