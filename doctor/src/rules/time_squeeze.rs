//! Packets left over when the budget of a softirq was spent.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Severity};

/// It is polled on later: no packet is lost by that alone.
pub const RULE: Rule = Rule {
    number: 24,
    name: "time-squeeze",
    rule: "column 3 of softnet_stat grows by 10 at most; more is no harm while nothing is dropped",
    source: "netdata, alarm 1min_netdev_budget_ran_outs; kernel documentation, admin-guide/sysctl/net, netdev_budget",
    why: "A processor has more to do in softirqs than one round allows; the two limits only work together.",
    profiles: &[],
    check,
};

const BUDGET: &str = "net/core/netdev_budget";
const MICROSECONDS: &str = "net/core/netdev_budget_usecs";

fn check(facts: &Facts) -> Looked {
    let softnet = facts.softnet()?;
    let squeezed: u64 = softnet.iter().map(|cpu| cpu.squeezed.delta).fold(0, u64::saturating_add);
    let dropped: u64 = softnet.iter().map(|cpu| cpu.dropped.delta).fold(0, u64::saturating_add);
    if squeezed <= 10 {
        return Outcome::ok(MACHINE, format!("{squeezed} rounds ended early")).into();
    }
    let severity = if dropped > 0 { Severity::Warn } else { Severity::Info };
    let said =
        format!("{squeezed} rounds ended with packets left over, {dropped} packets were dropped");
    let mut outcome =
        Outcome::new(severity, MACHINE, said).saw("/proc/net/softnet_stat, column 3", squeezed);
    // Seen in the first network namespace alone.
    for key in [BUDGET, MICROSECONDS] {
        if let Ok(now) = facts.sysctl(key) {
            outcome = outcome.saw(format!("/proc/sys/{key}"), now).change(facts.set(key, now * 2)?);
        }
    }
    outcome.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn noise_unless_something_is_lost() {
        let line = |dropped: u32, squeezed: u32| {
            format!("0000000a {dropped:08x} {squeezed:08x} 0 0 0 0 0 0 0 0 0 00000000")
        };
        let machine = |dropped, squeezed| {
            let path = "/proc/net/softnet_stat";
            Machine::healthy().put(path, &line(0, 0)).then(path, &line(dropped, squeezed))
        };
        let both =
            ["sysctl -w net.core.netdev_budget=600", "sysctl -w net.core.netdev_budget_usecs=4000"];
        assert_eq!(machine(1, 11).fixes(&RULE), both);
        table(
            &RULE,
            [
                (machine(0, 10), Severity::Ok),
                (machine(0, 11), Severity::Info),
                (machine(1, 11), Severity::Warn),
            ],
        );
    }
}
