//! RFS that is set at one of its two places.

use super::rps;
use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// RFS leads packets to the processor where their program runs.
pub const RULE: Rule = Rule {
    number: 19,
    name: "rfs",
    rule: "rps_sock_flow_entries and every rps_flow_cnt are set, or none",
    source: "kernel documentation, networking/scaling, RFS: 32768, and 32768 / queues",
    why: "With one of the two alone it does nothing.",
    profiles: &[],
    check,
};

const ENTRIES: &str = "net/core/rps_sock_flow_entries";

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    // Seen in the first network namespace alone, where it is set for all.
    let entries = facts.sysctl(ENTRIES)?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let queues = rps::queues(facts, name)?;
        let set = queues.iter().filter(|queue| queue.flows > 0).count();
        if set == 0 || set == queues.len() && entries > 0 {
            return Ok(Outcome::ok(
                name,
                format!("{set} of {} queues, {entries} entries", queues.len()),
            ));
        }
        let said = format!(
            "rps_flow_cnt is set for {set} of {} queues, and rps_sock_flow_entries is {entries}",
            queues.len()
        );
        let mut outcome = Outcome::warn(name, said).saw(format!("/proc/sys/{ENTRIES}"), entries);
        if entries == 0 {
            outcome = outcome.change(facts.set(ENTRIES, 32_768)?);
        }
        for queue in queues.iter().filter(|queue| queue.flows == 0) {
            let wanted = 32_768 / queues.len();
            outcome = outcome.saw(&queue.flows_path, 0).write(&queue.flows_path, wanted, 0);
        }
        Ok(outcome)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_half_of_it() {
        let path = "/sys/class/net/eth0/queues/rx-0/rps_flow_cnt";
        let queue = Machine::healthy().put(path, "8192");
        assert_eq!(queue.fixes(&RULE).len(), 4);
        assert_eq!(queue.fixes(&RULE)[0], "sysctl -w net.core.rps_sock_flow_entries=32768");
        let both = (0..4).fold(queue.clone(), |machine, n| {
            machine.put(&format!("/sys/class/net/eth0/queues/rx-{n}/rps_flow_cnt"), "8192")
        });
        let both = both.put(&format!("/proc/sys/{ENTRIES}"), "32768");
        table(&RULE, [(queue, Severity::Warn), (both, Severity::Ok)]);
    }
}
