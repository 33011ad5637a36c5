//! Processors that do nothing but softirqs.

use crate::{Facts, Looked, Outcome, Rule, each};

/// The load average does not show it: nobody waits in a queue.
pub const RULE: Rule = Rule {
    number: 26,
    name: "softirq-load",
    rule: "no processor spends more than 90 % of its time in softirqs",
    source: "heuristic of Ringway",
    why: "It can take no more packets, and programs on it starve, while the load average stays low: softirqs are no \
          processes.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let busy = facts.busy()?;
    let load = facts.text("/proc/loadavg")?.split(' ').next().unwrap_or_default();
    Ok(each(
        busy,
        |one| format!("processor {}", one.cpu),
        |one| {
            let subject = format!("processor {}", one.cpu);
            if one.softirq <= 90.0 {
                return Ok(Outcome::ok(subject, format!("{:.0} % in softirqs", one.softirq)));
            }
            Ok(Outcome::warn(subject, format!("{:.0} % in softirqs, while the load average is {load}", one.softirq))
            .saw("/proc/stat, softirq", format!("{:.0} %", one.softirq))
            .saw("/proc/loadavg", load)
            .advice("see the checks queue-count, irq-on-first and rps-missing; or do less for each packet"))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn nine_tenths() {
        let spent = |idle: u32, softirq: u32| {
            let line = |idle, softirq| format!("cpu0 0 0 0 {idle} 0 0 {softirq} 0 0 0");
            Machine::healthy()
                .put("/proc/stat", &line(0, 0))
                .then("/proc/stat", &line(idle, softirq))
        };
        table(
            &RULE,
            [
                (spent(10, 90), Severity::Ok),
                (spent(9, 91), Severity::Warn),
                (spent(0, 0), Severity::Unknown),
            ],
        );
    }
}
