//! Whether TCP may use what it has long had.

use crate::{Facts, Looked, Outcome, Rule, Unknown, each};

/// Turned off once for a reason that has been forgotten.
pub const RULE: Rule = Rule {
    number: 82,
    name: "tcp-options",
    rule: "net.ipv4.tcp_sack, tcp_window_scaling and tcp_timestamps are not 0",
    source: "kernel documentation, networking/ip-sysctl; RFC 2018 (SACK), RFC 7323 (scaling, timestamps)",
    why: "Without SACK one loss costs a round trip each, without scaling a connection has 64 KiB under way at most, without timestamps \
          TIME_WAIT cannot be used again.",
    profiles: &[],
    check,
};

const KEYS: [&str; 3] =
    ["net/ipv4/tcp_sack", "net/ipv4/tcp_window_scaling", "net/ipv4/tcp_timestamps"];

fn check(facts: &Facts) -> Looked {
    Ok(each(KEYS, |key| (*key).into(), |key| one(facts, key)))
}

fn one(facts: &Facts, key: &str) -> Result<Outcome, Unknown> {
    if facts.sysctl(key)? != 0 {
        return Ok(Outcome::ok(key, "on"));
    }
    let seen = Outcome::warn(key, "it is turned off").saw(format!("/proc/sys/{key}"), 0);
    Ok(seen.change(facts.set(key, 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn turned_off() {
        for key in KEYS {
            let off = Machine::healthy().put(&format!("/proc/sys/{key}"), "0");
            let name = key.replace('/', ".");
            assert_eq!(off.fixes(&RULE), [format!("sysctl -w {name}=1")]);
            table(&RULE, [(off, State::Warn)]);
        }
    }
}
