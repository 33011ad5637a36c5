//! Whether the kernel moves memory about between sockets.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// It takes pages away to see who misses them.
pub const RULE: Rule = Rule {
    number: 33,
    name: "numa-balancing",
    rule: "kernel.numa_balancing is 0",
    source: "TuneD, profile network-latency",
    why: "Pages that it takes away for a look cost their program a fault, and a delay, each.",
    profiles: &[Profile::Latency, Profile::Bypass],
    check,
};

const KEY: &str = "kernel/numa_balancing";

fn check(facts: &Facts) -> Looked {
    let now = facts.sysctl(KEY)?;
    if now == 0 {
        return Outcome::ok(MACHINE, "off").into();
    }
    let seen = Outcome::info(MACHINE, "the kernel takes pages away for a look");
    seen.saw(format!("/proc/sys/{KEY}"), now).change(facts.set(KEY, 0)?).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn on() {
        table(&RULE, [(Machine::healthy().put(&format!("/proc/sys/{KEY}"), "1"), State::Info)]);
    }
}
