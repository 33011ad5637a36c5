//! Whether a connection that was idle begins slowly again.

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome, Profile};

/// For traffic that comes in bursts over connections that stay open.
pub const CHECK: Check = Check {
    number: 47,
    name: "slow-start-after-idle",
    rule: "net.ipv4.tcp_slow_start_after_idle is 0 where connections stay open between bursts",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, tcp_slow_start_after_idle",
    why: "After a pause of one retransmission time the first burst is sent in small bits again.",
    profiles: &[Profile::Throughput, Profile::Latency],
    look,
};

const KEY: &str = "net/ipv4/tcp_slow_start_after_idle";

fn look(facts: &Facts) -> Looked {
    if facts.sysctl(KEY)? == 0 {
        return Outcome::ok(MACHINE, "windows stay as they are").into();
    }
    let seen = Outcome::info(MACHINE, "connections forget their window when they pause");
    seen.saw(format!("/proc/sys/{KEY}"), 1).change(facts.set(KEY, 0)?).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn on_and_off() {
        let on = Machine::healthy().put(&format!("/proc/sys/{KEY}"), "1");
        assert_eq!(on.fixes(&CHECK), ["sysctl -w net.ipv4.tcp_slow_start_after_idle=0"]);
        assert!(
            CHECK.applies(Some(Profile::Latency))
                && !CHECK.applies(None)
                && !CHECK.applies(Some(Profile::Balancer))
        );
        table(&CHECK, [(on, State::Info)]);
    }
}
