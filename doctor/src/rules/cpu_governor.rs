//! Processors that slow down when there is little to do.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// They take their time to be fast again.
pub const RULE: Rule = Rule {
    number: 32,
    name: "cpu-governor",
    rule: "the governor of every processor is performance",
    source: "TuneD, profiles network-latency and throughput-performance",
    why: "The first packets of a burst meet a slow processor.",
    profiles: &[Profile::Throughput, Profile::Latency, Profile::Balancer, Profile::Bypass],
    check,
};

fn check(facts: &Facts) -> Looked {
    let mut outcome = Outcome::warn(MACHINE, "processors slow down when there is little to do");
    for cpu in facts.cpus()? {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        // In a virtual machine the host decides.
        let governor = facts.text(&path)?;
        if governor != "performance" {
            outcome = outcome.saw(&path, governor).write(&path, "performance", governor);
        }
    }
    if outcome.changes.is_empty() {
        return Outcome::ok(MACHINE, "performance everywhere").into();
    }
    outcome.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_that_saves_power() {
        let path = "/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor";
        let saves = Machine::healthy().put(path, "powersave");
        assert_eq!(saves.undos(&RULE), [format!("echo powersave > {path}")]);
        table(
            &RULE,
            [(saves, Severity::Warn), (Machine::healthy().remove(path), Severity::Unknown)],
        );
    }
}
