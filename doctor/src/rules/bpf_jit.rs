//! Whether BPF programs are compiled.

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome, Profile, State};

/// Without, they are interpreted.
pub const CHECK: Check = Check {
    number: 72,
    name: "bpf-jit",
    rule: "net.core.bpf_jit_enable is 1, bpf_jit_harden is 0 or 1",
    source: "kernel documentation, admin-guide/sysctl/net, bpf_jit_enable and bpf_jit_harden",
    why: "Interpreted programs take several times as long; harden = 2 blinds constants for root's programs, too, and \
          costs some percent.",
    profiles: &[],
    look,
};

const ENABLE: &str = "net/core/bpf_jit_enable";
const HARDEN: &str = "net/core/bpf_jit_harden";

fn look(facts: &Facts) -> Looked {
    // Seen in the first network namespace alone.
    let enable = facts.sysctl(ENABLE)?;
    if enable == 0 {
        let seen = Outcome::warn(MACHINE, "BPF programs are interpreted")
            .saw(format!("/proc/sys/{ENABLE}"), 0);
        return seen.change(facts.set(ENABLE, 1)?).into();
    }
    // Readable for root alone.
    let harden = facts.sysctl(HARDEN)?;
    if harden == 2 {
        // It costs each packet of who is there to pass packets on.
        let state =
            if facts.profile == Some(Profile::Balancer) { State::Warn } else { State::Info };
        let seen =
            Outcome::new(state, MACHINE, "constants of root's programs are blinded, too: slower")
                .saw(format!("/proc/sys/{HARDEN}"), 2);
        return seen.change(facts.set(HARDEN, 1)?).into();
    }
    Outcome::ok(MACHINE, "compiled").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn off_and_hardened() {
        let put =
            |key: &str, value: &str| Machine::healthy().put(&format!("/proc/sys/{key}"), value);
        table(&CHECK, [(put(ENABLE, "0"), State::Warn), (put(HARDEN, "2"), State::Info)]);
        let balancer = put(HARDEN, "2").profile(Profile::Balancer);
        assert_eq!(balancer.worst(&CHECK), State::Warn);
    }
}
