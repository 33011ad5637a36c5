//! Requirements of BPF programs on the kernel.

use super::sysctls::{Bound, Row, Value, of_rule, rows};
use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Severity, Unknown};

pub const BPF_JIT: Rule = Rule {
    number: 72,
    name: "bpf-jit",
    rule: "net.core.bpf_jit_enable is 1, bpf_jit_harden is 0 or 1",
    source: "kernel documentation, admin-guide/sysctl/net, bpf_jit_enable and bpf_jit_harden",
    why: "Interpreted programs take several times as long; harden = 2 blinds constants for root's programs, too, and \
          costs some percent.",
    profiles: &[],
    check: |facts| rows(facts, &JIT),
};

const ENABLE: &str = "net/core/bpf_jit_enable";
const HARDEN: &str = "net/core/bpf_jit_harden";

/// The first network namespace alone has both.
const JIT: [Row; 2] = [
    Row {
        subject: Some("net.core.bpf_jit_enable"),
        ..of_rule(
            (ENABLE, Bound::AtLeast(1), Severity::Warn),
            [
                "programs are compiled",
                "programs are interpreted: each packet costs several times as much",
            ],
            Value::Number(1),
        )
    },
    Row {
        subject: Some("net.core.bpf_jit_harden"),
        // It costs time for each packet that a balancer passes on.
        balancer: Some(Severity::Warn),
        // There, and readable for root alone.
        lasting: true,
        ..of_rule(
            (HARDEN, Bound::AtMost(1), Severity::Info),
            [
                "constants of root's programs are not blinded",
                "constants of root's programs are blinded, too: slower",
            ],
            Value::Number(1),
        )
    },
];

pub const BTF: Rule = Rule {
    number: 73,
    name: "btf",
    rule: "there is /sys/kernel/btf/vmlinux",
    source: "kernel documentation, bpf/btf (CONFIG_DEBUG_INFO_BTF)",
    why: "Without it programs that trace the kernel are not loaded: drop reasons, capture at drops, and Ringway's count of \
          what was lost after its verdict.",
    profiles: &[],
    check: btf,
};

fn btf(facts: &Facts) -> Looked {
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

pub const KERNEL: Rule = Rule {
    number: 80,
    name: "kernel",
    rule: "Linux is 6.1 or newer, of x86_64 or aarch64",
    source: "Ringway: what its programs need, and its tests load them on",
    why: "An older kernel refuses the programs: nothing starts. On other processors no kernel has loaded them.",
    profiles: &[Profile::Balancer],
    check: kernel,
};

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const FLOOR: (u32, u32) = (6, 1);
/// Since Linux 6.1.
const PROCESSOR: &str = "/proc/sys/kernel/arch";
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

fn kernel(facts: &Facts) -> Looked {
    let text = facts.text(RELEASE)?;
    let release = facts.host().kernel_release().map_err(|error| Unknown(error.to_string()))?;
    if (release.major, release.minor) < FLOOR {
        let old = format!("{text} is too old: Ringway needs Linux 6.1 or newer");
        let old = Outcome::crit(MACHINE, old).saw(RELEASE, text);
        return old.advice("boot a newer kernel").into();
    }
    let processor = facts.text(PROCESSOR)?;
    if PROCESSORS.contains(&processor) {
        return Outcome::ok(MACHINE, format!("{text}: 6.1 or newer, {processor}")).into();
    }
    let other = format!("{processor}: the packet path runs on {} only", PROCESSORS.join(" and "));
    Outcome::crit(MACHINE, other)
        .saw(PROCESSOR, processor)
        .advice(
            "run the gateway on one of these; packet programs of `ringway-engine` run here, too",
        )
        .into()
}

pub const BPFFS: Rule = Rule {
    number: 81,
    name: "bpffs",
    rule: "a BPF file system is mounted at /sys/fs/bpf",
    source: "kernel documentation, bpf/index; libbpf's default place for pins",
    why: "Pins keep traffic going while the daemon is away; in a mount namespace without it nobody finds them.",
    profiles: &[Profile::Balancer],
    check: bpffs,
};

const AT: &str = "/sys/fs/bpf";

fn bpffs(facts: &Facts) -> Looked {
    let path = "/proc/self/mountinfo";
    facts.text(path)?;
    let mounts = facts.host().bpffs_mounts().map_err(|error| Unknown(error.to_string()))?;
    if mounts.iter().any(|mount| mount == AT) {
        return Outcome::ok(MACHINE, "mounted").into();
    }
    let other = if mounts.is_empty() { "nowhere".into() } else { mounts.join(", ") };
    let seen = Outcome::info(MACHINE, "not mounted there; `ringway run` mounts it")
        .saw(format!("{path}, type bpf"), other);
    // ip-netns(8): each `ip netns exec` has a mount namespace of its own, which ends with the
    // command.
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
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn off_and_hardened() {
        let put = |key: &str, value: &str| healthy().put(&format!("/proc/sys/{key}"), value);
        table(&BPF_JIT, [(put(ENABLE, "0"), Warn), (put(HARDEN, "2"), Info)]);
        let balancer = put(HARDEN, "2").profile(Profile::Balancer);
        assert_eq!(balancer.worst(&BPF_JIT), Warn);
    }

    #[test]
    fn absent() {
        table(&BTF, [(healthy().remove("/sys/kernel/btf/vmlinux"), Warn)]);
    }

    #[test]
    fn releases() {
        let of = |release: &str| healthy().put(RELEASE, release);
        let rows = [
            (of("5.10.0-39-amd64"), Crit),
            (of("6.0.19"), Crit),
            (of("6.1.0-18-amd64"), Severity::Ok),
            (of("7.0.0-rc1"), Severity::Ok),
            (of("strange"), Unknown),
            (healthy().remove(RELEASE), Unknown),
        ];
        table(&KERNEL, rows);
        let of = |processor: &str| healthy().put(PROCESSOR, processor);
        let rows = [
            (of("mips64"), Crit),
            (of("aarch64"), Severity::Ok),
            (healthy().remove(PROCESSOR), Unknown),
        ];
        table(&KERNEL, rows);
    }

    #[test]
    fn mounts() {
        let of = |text: &str| healthy().put("/proc/self/mountinfo", text);
        let elsewhere = of("42 27 0:39 / /run/bpf rw,relatime - bpf bpf rw");
        assert_eq!(elsewhere.undos(&BPFFS), ["umount /sys/fs/bpf"]);
        let named = serde_json::json!({
            "collected": "2026-01-31T12:00:00Z",
            "namespace": { "id": "net:[1]", "name": "blue" }
        });
        let named = elsewhere.clone().json("/tools/origin.json", named);
        assert!(named.fixes(&BPFFS).is_empty());
        let advice = named.outcomes(&BPFFS)[0].remedy().to_string();
        assert!(advice.contains("nsenter --net=/run/netns/blue"), "{advice}");
        let none = of("42 27 0:39 / /sys rw,relatime - sysfs sysfs rw");
        table(&BPFFS, [(elsewhere, Info), (named, Info), (none, Info)]);
    }
}
