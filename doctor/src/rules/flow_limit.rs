//! One flow that fills the backlog of a processor.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// Flow limits drop packets of the largest flow first.
pub const RULE: Rule = Rule {
    number: 20,
    name: "flow-limit",
    rule: "where a backlog overflows, flow_limit_cpu_bitmap is set",
    source: "kernel documentation, networking/scaling, RPS flow limit",
    why: "When one flow fills more than half of a backlog, all others lose packets with it.",
    profiles: &[],
    check,
};

const KEY: &str = "net/core/flow_limit_cpu_bitmap";

fn check(facts: &Facts) -> Looked {
    let softnet = facts.softnet()?;
    let dropped: u64 = softnet.iter().map(|cpu| cpu.dropped.delta).fold(0, u64::saturating_add);
    let bitmap = facts.text(&format!("/proc/sys/{KEY}"))?;
    let off = bitmap.chars().all(|c| matches!(c, '0' | ','));
    if dropped == 0 || !off {
        return Outcome::ok(MACHINE, format!("{dropped} packets found a backlog full")).into();
    }
    let mask = super::rps::mask(&facts.cpus()?);
    Outcome::info(MACHINE, format!("{dropped} packets found a backlog full, of whichever flow"))
        .saw("/proc/net/softnet_stat, column 2", dropped)
        .saw(format!("/proc/sys/{KEY}"), bitmap)
        .change(facts.set(KEY, mask)?)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn an_overflow_without_a_limit() {
        let line = |dropped: u32| format!("0000000a {dropped:08x} 0 0 0 0 0 0 0 0 0 0 00000000");
        let lossy = Machine::healthy().put("/proc/net/softnet_stat", &line(0));
        let lossy = lossy.then("/proc/net/softnet_stat", &line(4));
        assert_eq!(lossy.fixes(&RULE), ["sysctl -w net.core.flow_limit_cpu_bitmap=f"]);
        let limited = lossy.clone().put(&format!("/proc/sys/{KEY}"), "f");
        table(&RULE, [(lossy, Severity::Info), (limited, Severity::Ok)]);
    }
}
