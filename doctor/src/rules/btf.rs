//! Whether the kernel describes its own types.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// CO-RE programs ask it where fields are.
pub const RULE: Rule = Rule {
    number: 73,
    name: "btf",
    rule: "there is /sys/kernel/btf/vmlinux",
    source: "kernel documentation, bpf/btf (CONFIG_DEBUG_INFO_BTF)",
    why: "Without it programs that trace the kernel are not loaded: drop reasons, capture at drops, and Ringway's count of \
          what was lost after its verdict.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let release = facts.text("/proc/sys/kernel/osrelease")?;
    if facts.host().has_btf() {
        return Outcome::ok(MACHINE, "there").into();
    }
    Outcome::warn(MACHINE, "the kernel does not describe its types")
        .saw("/sys/kernel/btf/vmlinux", "not there")
        .saw("/proc/sys/kernel/osrelease", release)
        .advice(
            "take a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of the distributions are",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn absent() {
        table(&RULE, [(Machine::healthy().remove("/sys/kernel/btf/vmlinux"), Severity::Warn)]);
    }
}
