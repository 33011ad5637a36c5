//! Where programs are pinned.

use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Unknown};

/// What is pinned there outlives who pinned it.
pub const RULE: Rule = Rule {
    number: 81,
    name: "bpffs",
    rule: "a BPF file system is mounted at /sys/fs/bpf",
    source: "kernel documentation, bpf/index; libbpf's default place for pins",
    why: "Pins keep traffic going while the daemon is away; in a mount namespace without it nobody finds them.",
    profiles: &[Profile::Balancer],
    check,
};

const AT: &str = "/sys/fs/bpf";

fn check(facts: &Facts) -> Looked {
    let path = "/proc/self/mountinfo";
    facts.text(path)?;
    let mounts = facts.host().bpffs_mounts().map_err(|error| Unknown(error.to_string()))?;
    if mounts.iter().any(|mount| mount == AT) {
        return Outcome::ok(MACHINE, "mounted").into();
    }
    let other = if mounts.is_empty() { "nowhere".into() } else { mounts.join(", ") };
    let seen = Outcome::info(MACHINE, "not mounted there; `ringway run` mounts it")
        .saw(format!("{path}, type bpf"), other);
    // ip-netns(8): each `ip netns exec` has a mount namespace of its own, which ends with the command.
    if let Some(name) = facts.origin().namespace.and_then(|namespace| namespace.name) {
        return seen
            .advice(format!(
                "`ip netns exec` hides it, and what is mounted by it is gone when its command ends: run programs by \
                 `nsenter --net=/run/netns/{name}` instead"
            ))
            .into();
    }
    seen.fix(Fix::command(["mount", "-t", "bpf", "bpf", AT]), Fix::command(["umount", AT])).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn mounts() {
        let of = |text: &str| Machine::healthy().put("/proc/self/mountinfo", text);
        let elsewhere = of("42 27 0:39 / /run/bpf rw,relatime - bpf bpf rw");
        assert_eq!(elsewhere.undos(&RULE), ["umount /sys/fs/bpf"]);
        let named = serde_json::json!({
            "collected": "2026-01-31T12:00:00Z",
            "namespace": { "id": "net:[1]", "name": "blue" }
        });
        let named = elsewhere.clone().json("/tools/origin.json", named);
        assert!(named.fixes(&RULE).is_empty());
        let advice = named.outcomes(&RULE)[0].advice.clone().unwrap();
        assert!(advice.contains("nsenter --net=/run/netns/blue"), "{advice}");
        let none = of("42 27 0:39 / /sys rw,relatime - sysfs sysfs rw");
        table(
            &RULE,
            [(elsewhere, Severity::Info), (named, Severity::Info), (none, Severity::Info)],
        );
    }
}
