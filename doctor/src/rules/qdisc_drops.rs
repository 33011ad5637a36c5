//! Packets that a queueing discipline dropped.

use ringway_host::netlink::qdiscs::Qdisc;

use crate::{Facts, Fix, Looked, Outcome, Rule, Unknown, each_interface};

/// More was to be sent than the interface takes.
pub const RULE: Rule = Rule {
    number: 31,
    name: "qdisc-drops",
    rule: "drops and requeues of queueing disciplines do not grow by more than 10",
    source: "manual page tc(8); heuristic of Ringway for the number",
    why: "Packets wait behind one another, and what finds the queue full is lost.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let (before, after): (Vec<Qdisc>, Vec<Qdisc>) = facts.pair("/netlink/qdiscs.json")?;
    let interfaces = facts.interfaces()?;
    Ok(each_interface(interfaces, |one| {
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
            return Ok(Outcome::ok(name, format!("{kind}: {drops} drops, {requeues} requeues")));
        }
        let outcome = Outcome::warn(name, said(kind, drops, requeues))
            .saw(format!("tc -s qdisc show dev {name}, dropped"), drops)
            .saw(format!("tc -s qdisc show dev {name}, requeues"), requeues)
            .advice(advice(kind));
        if kind == "pfifo_fast" {
            let set = |kind| Fix::command(["tc", "qdisc", "replace", "dev", name, "root", kind]);
            return Ok(outcome.fix(set("fq_codel"), set("pfifo_fast")));
        }
        Ok(outcome)
    }))
}

fn said(kind: &str, drops: u64, requeues: u64) -> String {
    let mut said = Vec::new();
    if drops > 0 {
        said.push(format!("{kind} dropped {drops} packets"));
    }
    if requeues > 0 {
        said.push(format!("the driver refused {requeues} packets at first"));
    }
    said.join(", ")
}

/// Those that hold packets back on purpose.
const SHAPERS: [&str; 6] = ["tbf", "cake", "htb", "hfsc", "cbq", "netem"];

fn advice(kind: &str) -> String {
    if SHAPERS.contains(&kind) {
        return format!(
            "{kind} holds back by its own settings: raise its rate or its limit, or send less"
        );
    }
    "shape to what the road takes (cake, or tbf), or send less".into()
}

/// What the disciplines of all interfaces dropped between the two looks.
pub(super) fn dropped(facts: &Facts) -> Result<u64, Unknown> {
    let (before, after): (Vec<Qdisc>, Vec<Qdisc>) = facts.pair("/netlink/qdiscs.json")?;
    let sum = |all: &[Qdisc]| all.iter().map(|one| u64::from(one.drops)).sum::<u64>();
    Ok(sum(&after).saturating_sub(sum(&before)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn more_than_ten() {
        let drops = |drops| {
            Machine::healthy().edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| {
                all[0].drops = drops;
                all[0].kind = "pfifo_fast".into();
            })
        };
        assert_eq!(drops(11).undos(&RULE), ["tc qdisc replace dev eth0 root pfifo_fast"]);
        let of = |kind: &str| {
            let kind = kind.to_owned();
            let machine = drops(11).edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| {
                all[0].kind = kind;
            });
            let outcomes = machine.outcomes(&RULE);
            let one = outcomes.into_iter().find(|one| one.severity == Severity::Warn).unwrap();
            assert!(!one.found.contains("refused"), "{}", one.found);
            one.advice.unwrap()
        };
        assert!(of("pfifo_fast").contains("shape to") && !of("tbf").contains("shape to"));
        assert!(of("tbf").contains("raise its rate"));
        table(&RULE, [(drops(10), Severity::Ok), (drops(11), Severity::Warn)]);
    }
}
