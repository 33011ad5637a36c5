//! Whether BPF programs are compiled.

use crate::{Facts, Looked, Outcome, Profile, Rule, Severity, Unknown, each};

/// Without, they are interpreted.
pub const RULE: Rule = Rule {
    number: 72,
    name: "bpf-jit",
    rule: "net.core.bpf_jit_enable is 1, bpf_jit_harden is 0 or 1",
    source: "kernel documentation, admin-guide/sysctl/net, bpf_jit_enable and bpf_jit_harden",
    why: "Interpreted programs take several times as long; harden = 2 blinds constants for root's programs, too, and \
          costs some percent.",
    profiles: &[],
    check,
};

const ENABLE: &str = "net/core/bpf_jit_enable";
const HARDEN: &str = "net/core/bpf_jit_harden";

fn check(facts: &Facts) -> Looked {
    Ok(each(
        [ENABLE, HARDEN],
        |key| key.replace('/', "."),
        |key| {
            if *key == ENABLE { compiled(facts) } else { blinded(facts) }
        },
    ))
}

/// Seen in the first network namespace alone.
fn compiled(facts: &Facts) -> Result<Outcome, Unknown> {
    let subject = ENABLE.replace('/', ".");
    if facts.sysctl(ENABLE)? != 0 {
        return Ok(Outcome::ok(subject, "programs are compiled"));
    }
    let seen =
        Outcome::warn(subject, "programs are interpreted: each packet costs several times as much");
    Ok(seen.saw(format!("/proc/sys/{ENABLE}"), 0).change(facts.set(ENABLE, 1)?))
}

/// There, and readable for root alone.
fn blinded(facts: &Facts) -> Result<Outcome, Unknown> {
    let subject = HARDEN.replace('/', ".");
    if facts.sysctl(HARDEN)? != 2 {
        return Ok(Outcome::ok(subject, "constants of root's programs are not blinded"));
    }
    // It costs each packet of who is there to pass packets on.
    let severity =
        if facts.profile == Some(Profile::Balancer) { Severity::Warn } else { Severity::Info };
    let seen =
        Outcome::new(severity, subject, "constants of root's programs are blinded, too: slower");
    Ok(seen.saw(format!("/proc/sys/{HARDEN}"), 2).change(facts.set(HARDEN, 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn off_and_hardened() {
        let put =
            |key: &str, value: &str| Machine::healthy().put(&format!("/proc/sys/{key}"), value);
        table(&RULE, [(put(ENABLE, "0"), Severity::Warn), (put(HARDEN, "2"), Severity::Info)]);
        let balancer = put(HARDEN, "2").profile(Profile::Balancer);
        assert_eq!(balancer.worst(&RULE), Severity::Warn);
    }
}
