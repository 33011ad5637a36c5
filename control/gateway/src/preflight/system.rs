//! Rules about the kernel and this process.

use ringway_kernel::{Bpffs, DEFAULT_BPFFS};

use super::facts::Facts;
use super::{Report, State};
use crate::elsewhere;

/// Kernel, BTF, bpffs, privileges.
pub fn look(facts: &Facts, report: &mut Report) {
    match &facts.probe {
        Err(error) => report.push("kernel", "this machine", State::Unknown, error, ""),
        Ok(probe) => {
            kernel(probe, report);
            bpffs(probe, report);
            privileges(probe, report);
        }
    }
    jit(facts, report);
}

/// Whether programs are compiled, and how warily.
fn jit(facts: &Facts, report: &mut Report) {
    let name = "net.core.bpf_jit_enable";
    let seen = "sysctl net.core.bpf_jit_enable (in the first network namespace)";
    match (facts.jit, facts.jit_harden) {
        (None, _) => {
            let reason = "whether programs are compiled is told to those alone who may load them";
            report.push("jit", name, State::Unknown, reason, seen);
        }
        (Some(false), _) => {
            let reason = "programs are interpreted: each packet costs several times as much";
            report.push("jit", name, State::Warn, reason, "sysctl -w net.core.bpf_jit_enable=1");
        }
        (Some(true), Some(2)) => {
            let reason = "programs are compiled, but net.core.bpf_jit_harden = 2 blinds constants of \
                          root's programs, too: slower";
            report.push("jit", name, State::Warn, reason, "sysctl -w net.core.bpf_jit_harden=1");
        }
        (Some(true), _) => report.ok("jit", name, "programs are compiled"),
    }
}

fn kernel(probe: &ringway_kernel::Probe, report: &mut Report) {
    if probe.kernel_ok {
        report.ok("kernel", &probe.kernel, "6.1 or newer");
    } else {
        let reason = "too old: Ringway needs Linux 6.1 or newer";
        report.push("kernel", &probe.kernel, State::Fail, reason, "boot a newer kernel");
    }
    let btf = "/sys/kernel/btf/vmlinux";
    if probe.btf {
        report.ok("btf", btf, "the kernel describes its types");
    } else {
        let reason = "missing: what the kernel drops after our verdict cannot be counted";
        let fix = "boot a kernel with CONFIG_DEBUG_INFO_BTF=y";
        report.push("btf", btf, State::Warn, reason, fix);
    }
}

fn bpffs(probe: &ringway_kernel::Probe, report: &mut Report) {
    match probe.bpffs {
        Bpffs::Mounted => report.ok("bpffs", DEFAULT_BPFFS, "mounted"),
        Bpffs::JustMounted { private: false } => report.ok("bpffs", DEFAULT_BPFFS, "just mounted"),
        Bpffs::JustMounted { private: true } => report.push(
            "bpffs",
            DEFAULT_BPFFS,
            State::Warn,
            "mounted in a private mount namespace: pins vanish with it",
            format!("use {} instead of ip netns exec", elsewhere::here()),
        ),
        Bpffs::Missing => {
            let reason = "not mounted; `ringway run` mounts it";
            report.push("bpffs", DEFAULT_BPFFS, State::Ok, reason, "");
        }
    }
}

fn privileges(probe: &ringway_kernel::Probe, report: &mut Report) {
    if probe.missing_capabilities.is_empty() {
        report.ok("privileges", "this process", "sufficient");
        return;
    }
    let missing = probe.missing_capabilities.join(", ");
    let fix = "run as root, or grant these capabilities";
    report.push("privileges", "this process", State::Fail, format!("missing {missing}"), fix);
}
