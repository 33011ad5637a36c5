//! Whether the kernel moves memory about between sockets.

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome, Profile};

/// It takes pages away to see who misses them.
pub const CHECK: Check = Check {
    number: 33,
    name: "numa-balancing",
    rule: "kernel.numa_balancing is 0",
    source: "TuneD, profile network-latency",
    why: "Pages that it takes away for a look cost their program a fault, and a delay, each.",
    profiles: &[Profile::Latency, Profile::Bypass],
    look,
};

const KEY: &str = "kernel/numa_balancing";

fn look(facts: &Facts) -> Looked {
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
        table(&CHECK, [(Machine::healthy().put(&format!("/proc/sys/{KEY}"), "1"), State::Info)]);
    }
}
