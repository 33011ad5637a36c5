//! Rules that are settings, each on or off where all is well: a row each.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Severity, each};

pub const NUMA_BALANCING: Rule = Rule {
    number: 33,
    name: "numa-balancing",
    rule: "kernel.numa_balancing is 0",
    source: "TuneD, profile network-latency",
    why: "Pages that it takes away for a look cost their program a fault, and a delay, each.",
    profiles: &[Profile::Latency, Profile::Bypass],
    check: |facts| {
        let texts = ["off", "the kernel takes pages away for a look"];
        held(facts, &["kernel/numa_balancing"], 0, Severity::Info, texts)
    },
};

pub const SLOW_START_AFTER_IDLE: Rule = Rule {
    number: 47,
    name: "slow-start-after-idle",
    rule: "net.ipv4.tcp_slow_start_after_idle is 0 where connections stay open between bursts",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, tcp_slow_start_after_idle",
    why: "After a pause of one retransmission time the first burst is sent in small bits again.",
    profiles: &[Profile::Throughput, Profile::Latency],
    check: |facts| {
        let texts = ["windows stay as they are", "connections forget their window when they pause"];
        held(facts, &["net/ipv4/tcp_slow_start_after_idle"], 0, Severity::Info, texts)
    },
};

pub const TCP_OPTIONS: Rule = Rule {
    number: 82,
    name: "tcp-options",
    rule: "net.ipv4.tcp_sack, tcp_window_scaling and tcp_timestamps are not 0",
    source: "kernel documentation, networking/ip-sysctl; RFC 2018 (SACK), RFC 7323 (scaling, timestamps)",
    why: "Without SACK one loss costs a round trip each, without scaling a connection has 64 KiB under way at most, without timestamps \
          TIME_WAIT cannot be used again.",
    profiles: &[],
    check: |facts| {
        let keys = ["net/ipv4/tcp_sack", "net/ipv4/tcp_window_scaling", "net/ipv4/tcp_timestamps"];
        held(facts, &keys, 1, Severity::Warn, ["on", "it is turned off"])
    },
};

/// Of several settings each is told by its key.
fn held(
    facts: &Facts,
    keys: &[&str],
    wanted: i64,
    severity: Severity,
    [well, found]: [&str; 2],
) -> Looked {
    let subject = |key: &&&str| if keys.len() == 1 { MACHINE } else { **key }.to_owned();
    Ok(each(
        keys,
        |key| subject(key),
        |key| {
            let now = facts.sysctl(key)?;
            if (now == 0) == (wanted == 0) {
                return Ok(Outcome::ok(subject(key), well));
            }
            let seen = Outcome::new(severity, subject(key), found);
            Ok(seen.saw(format!("/proc/sys/{key}"), now).change(facts.set(key, wanted)?))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn each_row() {
        for (check, key, bad, severity) in [
            (NUMA_BALANCING, "kernel/numa_balancing", 1, Severity::Info),
            (SLOW_START_AFTER_IDLE, "net/ipv4/tcp_slow_start_after_idle", 1, Severity::Info),
            (TCP_OPTIONS, "net/ipv4/tcp_sack", 0, Severity::Warn),
            (TCP_OPTIONS, "net/ipv4/tcp_window_scaling", 0, Severity::Warn),
            (TCP_OPTIONS, "net/ipv4/tcp_timestamps", 0, Severity::Warn),
        ] {
            let machine = Machine::healthy().put(&format!("/proc/sys/{key}"), &bad.to_string());
            let fix = format!("sysctl -w {}={}", key.replace('/', "."), 1 - bad);
            assert_eq!(machine.fixes(&check), [fix]);
            table(&check, [(machine, severity)]);
        }
    }

    #[test]
    fn profiles_that_ask() {
        let asks = |profile| SLOW_START_AFTER_IDLE.applies(profile);
        assert!(asks(Some(Profile::Latency)) && !asks(None) && !asks(Some(Profile::Balancer)));
    }
}
