//! Two settings of NAPI of which one alone does nothing.

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// With both, the kernel polls by a timer and leaves interrupts off meanwhile.
pub const RULE: Rule = Rule {
    number: 28,
    name: "napi-defer",
    rule: "gro_flush_timeout and napi_defer_hard_irqs are set both, or none",
    source: "kernel documentation, networking/napi, software IRQ coalescing",
    why: "With one alone interrupts come as before, or packets wait for nothing.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let flush = format!("/sys/class/net/{name}/gro_flush_timeout");
        let defer = format!("/sys/class/net/{name}/napi_defer_hard_irqs");
        let (timeout, count) = (facts.number(&flush)?, facts.number(&defer)?);
        let outcome = Outcome::warn(name, "one of two settings that only work together is set")
            .saw(&flush, timeout)
            .saw(&defer, count);
        match (timeout, count) {
            (0, 1..) => Ok(outcome.write(&flush, 20_000, 0)),
            (1.., 0) => Ok(outcome.write(&defer, 2, 0)),
            _ => Ok(Outcome::ok(name, format!("{timeout} ns, {count} times"))),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_of_two() {
        let flush = "/sys/class/net/veth0/gro_flush_timeout";
        let defer = "/sys/class/net/veth0/napi_defer_hard_irqs";
        let one = Machine::healthy().put(flush, "20000").put(defer, "0");
        assert_eq!(one.fixes(&RULE), [format!("echo 2 > {defer}")]);
        let both = one.clone().put(defer, "2");
        table(&RULE, [(one, Severity::Warn), (both, Severity::Ok)]);
    }
}
