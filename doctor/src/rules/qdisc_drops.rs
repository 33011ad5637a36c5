//! Packets that a queueing discipline dropped.

use ringway_host::qdiscs::Qdisc;

use crate::{Check, Facts, Looked, Outcome, each};

/// More was to be sent than the interface takes.
pub const CHECK: Check = Check {
    number: 31,
    name: "qdisc-drops",
    rule: "drops and requeues of queueing disciplines do not grow by more than 10",
    source: "manual page tc(8); heuristic of Ringway for the number",
    why: "Packets wait behind one another, and what finds the queue full is lost.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let (before, after): (Vec<Qdisc>, Vec<Qdisc>) = facts.pair("/netlink/qdiscs.json")?;
    let interfaces = facts.interfaces()?;
    let found = each(
        interfaces,
        |one| one.link.name.clone(),
        |one| {
            let name = &one.link.name;
            let sum = |all: &[Qdisc], of: fn(&Qdisc) -> u32| {
                let own = all.iter().filter(|qdisc| qdisc.ifindex == one.link.ifindex);
                own.map(|qdisc| u64::from(of(qdisc))).sum::<u64>()
            };
            let delta = |of: fn(&Qdisc) -> u32| sum(&after, of).saturating_sub(sum(&before, of));
            let (drops, requeues) = (delta(|qdisc| qdisc.drops), delta(|qdisc| qdisc.requeues));
            let kind = after
                .iter()
                .find(|qdisc| qdisc.ifindex == one.link.ifindex)
                .map_or("", |qdisc| qdisc.kind.as_str());
            if drops + requeues <= 10 {
                return Ok(Outcome::ok(
                    name,
                    format!("{kind}: {drops} drops, {requeues} requeues"),
                ));
            }
            let mut said = format!("{kind} dropped {drops} packets");
            if requeues > 0 {
                said += &format!(", and {requeues} waited since the driver had no room");
            }
            let outcome = Outcome::warn(name, said)
            .saw(format!("tc -s qdisc show dev {name}, dropped"), drops)
            .saw(format!("tc -s qdisc show dev {name}, requeues"), requeues)
            .advice(match kind {
                "tbf" | "cake" | "htb" | "netem" => "more was sent than it is set to let through: raise its rate or its limit, or send less",
                _ => "shape to what the road takes (cake, or tbf), or send less",
            });
            if kind == "pfifo_fast" {
                let set = |kind: &str| format!("tc qdisc replace dev {name} root {kind}");
                return Ok(outcome.fix(set("fq_codel"), set("pfifo_fast")));
            }
            Ok(outcome)
        },
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn more_than_ten() {
        let drops = |drops| {
            Machine::healthy().edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| {
                all[0].drops = drops;
                all[0].kind = "pfifo_fast".into();
            })
        };
        assert_eq!(drops(11).undos(&CHECK), ["tc qdisc replace dev eth0 root pfifo_fast"]);
        table(&CHECK, [(drops(10), State::Ok), (drops(11), State::Warn)]);
    }
}
