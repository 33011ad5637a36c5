//! Whether a connection that was idle begins slowly again.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// For traffic that comes in bursts over connections that stay open.
pub const RULE: Rule = Rule {
    number: 47,
    name: "slow-start-after-idle",
    rule: "net.ipv4.tcp_slow_start_after_idle is 0 where connections stay open between bursts",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, tcp_slow_start_after_idle",
    why: "After a pause of one retransmission time the first burst is sent in small bits again.",
    profiles: &[Profile::Throughput, Profile::Latency],
    check,
};

const KEY: &str = "net/ipv4/tcp_slow_start_after_idle";

fn check(facts: &Facts) -> Looked {
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
        assert_eq!(on.fixes(&RULE), ["sysctl -w net.ipv4.tcp_slow_start_after_idle=0"]);
        assert!(
            RULE.applies(Some(Profile::Latency))
                && !RULE.applies(None)
                && !RULE.applies(Some(Profile::Balancer))
        );
        table(&RULE, [(on, State::Info)]);
    }
}
