//! Whether the kernel is new enough for Ringway's programs.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Unknown};

/// Older ones lack what the programs call.
pub const RULE: Rule = Rule {
    number: 80,
    name: "kernel",
    rule: "Linux is 6.1 or newer",
    source: "Ringway: what its programs need, and its tests load them on",
    why: "An older kernel refuses the programs: nothing starts.",
    profiles: &[Profile::Balancer],
    check,
};

const PATH: &str = "/proc/sys/kernel/osrelease";
const FLOOR: (u32, u32) = (6, 1);

fn check(facts: &Facts) -> Looked {
    let text = facts.text(PATH)?;
    let release = facts.host().kernel_release().map_err(|error| Unknown(error.to_string()))?;
    if (release.major, release.minor) >= FLOOR {
        return Outcome::ok(MACHINE, format!("{text}: 6.1 or newer")).into();
    }
    Outcome::crit(MACHINE, format!("{text} is too old: Ringway needs Linux 6.1 or newer"))
        .saw(PATH, text)
        .advice("boot a newer kernel")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn releases() {
        let of = |release: &str| Machine::healthy().put(PATH, release);
        table(
            &RULE,
            [
                (of("5.10.0-39-amd64"), Severity::Crit),
                (of("6.0.19"), Severity::Crit),
                (of("6.1.0-18-amd64"), Severity::Ok),
                (of("7.0.0-rc1"), Severity::Ok),
                (of("strange"), Severity::Unknown),
                (Machine::healthy().remove(PATH), Severity::Unknown),
            ],
        );
    }
}
