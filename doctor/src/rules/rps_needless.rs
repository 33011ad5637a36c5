//! RPS where every processor has a queue.

use super::rps::{self, Queue};
use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// Then the card has spread packets already.
pub const RULE: Rule = Rule {
    number: 18,
    name: "rps-needless",
    rule: "rps_cpus is 0 where there is a queue for each processor",
    source: "kernel documentation, networking/scaling, RPS: suggested configuration",
    why: "Handing a packet to another processor costs an interrupt between the two, and gains nothing.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let cpus = facts.cpus()?.len();
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let queues = rps::queues(facts, name)?;
        let on: Vec<&Queue> = queues.iter().filter(|queue| queue.is_on()).collect();
        if on.is_empty() || queues.len() < cpus || cpus < 2 {
            return Ok(Outcome::ok(name, format!("{} of {} queues", on.len(), queues.len())));
        }
        let said =
            format!("{} queues for {cpus} processors, and RPS spreads them again", queues.len());
        let change = |outcome: Outcome, queue: &&Queue| {
            outcome.saw(&queue.path, &queue.mask).write(&queue.path, 0, &queue.mask)
        };
        Ok(on.iter().fold(Outcome::info(name, said), change))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn a_queue_each_and_rps() {
        let path = "/sys/class/net/eth0/queues/rx-2/rps_cpus";
        let on = Machine::healthy().put(path, "00000000,0000000f");
        assert_eq!(on.fixes(&RULE), [format!("echo 0 > {path}")]);
        assert_eq!(on.undos(&RULE), [format!("echo 00000000,0000000f > {path}")]);
        let elsewhere = Machine::healthy().miss("/sys/class/net", "of another namespace");
        table(&RULE, [(on, Severity::Info), (elsewhere, Severity::Unknown)]);
    }
}
