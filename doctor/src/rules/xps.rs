//! Transmit queues that no processor has for its own.

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// XPS gives each processor a queue to send by.
pub const RULE: Rule = Rule {
    number: 21,
    name: "xps",
    rule: "where there are several transmit queues, each has processors in xps_cpus",
    source: "kernel documentation, networking/scaling, XPS: suggested configuration",
    why: "Otherwise processors share queues by a hash, and wait for one another's locks.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let cpus = facts.cpus()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let directory = format!("/sys/class/net/{name}/queues");
        // There may be more than are in use.
        let mut queues = facts.tx_queues(name)?;
        queues.truncate(one.channels.map_or(queues.len(), |channels| channels.tx as usize));
        // Other devices made of software choose a queue by themselves, or hand on to what is below.
        let chosen = matches!(one.link.kind.as_deref(), None | Some("veth"));
        if queues.len() < 2 || !chosen {
            return Ok(Outcome::ok(name, "one transmit queue, or made of software"));
        }
        let mut outcome = Outcome::info(name, "transmit queues have no processors of their own");
        for (number, queue) in queues.iter().enumerate() {
            let path = format!("{directory}/{queue}/xps_cpus");
            let mask = facts.text(&path)?;
            if mask.chars().any(|c| !matches!(c, '0' | ',')) {
                continue;
            }
            let own: Vec<u32> = cpus.iter().copied().skip(number).step_by(queues.len()).collect();
            if !own.is_empty() {
                let wanted = super::rps::mask(&own);
                outcome = outcome.saw(&path, mask).write(&path, wanted, mask);
            }
        }
        Ok(if outcome.changes.is_empty() {
            Outcome::ok(name, "each has its processors")
        } else {
            outcome
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn an_empty_mask() {
        let path = "/sys/class/net/eth0/queues/tx-2/xps_cpus";
        let empty = Machine::healthy().put(path, "0");
        assert_eq!(empty.fixes(&RULE), [format!("echo 4 > {path}")]);
        table(
            &RULE,
            [(empty, Severity::Info), (Machine::healthy().remove(path), Severity::Unknown)],
        );
    }
}
