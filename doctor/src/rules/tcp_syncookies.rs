//! SYN cookies: that they can be sent, and are not sent all the time.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// They are the last resort of a full SYN queue.
pub const RULE: Rule = Rule {
    number: 37,
    name: "tcp-syncookies",
    rule: "net.ipv4.tcp_syncookies is 1 or 2, and cookies are rarely sent",
    source: "kernel documentation, networking/ip-sysctl, tcp_syncookies",
    why: "Without cookies a flood of SYNs fills the queue and keeps clients out; with them all the time, \
          connections lose options that make them fast.",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/tcp_syncookies";

fn check(facts: &Facts) -> Looked {
    let cookies = facts.sysctl(KEY)?;
    if cookies == 0 {
        let said = "a full SYN queue would refuse clients: SYN cookies are off";
        let seen = Outcome::warn(MACHINE, said).saw(format!("/proc/sys/{KEY}"), cookies);
        return seen.change(facts.set(KEY, 1)?).into();
    }
    let sent = facts.counter("TcpExt", "SyncookiesSent")?;
    // 2 sends them always, which is for tests.
    if cookies == 2 {
        let said = "every connection begins with a SYN cookie: that is for tests";
        let seen = Outcome::warn(MACHINE, said).saw(format!("/proc/sys/{KEY}"), cookies);
        return seen.change(facts.set(KEY, 1)?).into();
    }
    if sent.delta > 1 {
        let said =
            format!("{} SYN cookies in {:.0} s: the SYN queue is full", sent.delta, facts.seconds);
        return Outcome::warn(MACHINE, said)
            .counted("/proc/net/netstat TcpExt SyncookiesSent", sent.delta)
            .advice("under attack this is right; otherwise check syn-queue says which limit it is")
            .into();
    }
    Outcome::ok(MACHINE, "on, and not needed").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{Ok, Unknown, Warn};
    use crate::testing::Machine;

    #[test]
    fn off_always_and_flooded() {
        let path = "/proc/sys/net/ipv4/tcp_syncookies";
        let machine = Machine::healthy;
        for (machine, wanted) in [
            (machine(), Ok),
            (machine().put(path, "0"), Warn),
            (machine().put(path, "2"), Warn),
            (machine().counts("TcpExt", "SyncookiesSent", 50), Warn),
            (machine().put(path, "yes"), Unknown),
            (machine().remove("/proc/net/netstat"), Unknown),
        ] {
            assert_eq!(machine.worst(&RULE), wanted, "{:?}", machine.outcomes(&RULE));
        }
        assert_eq!(machine().put(path, "0").undos(&RULE), ["sysctl -w net.ipv4.tcp_syncookies=0"]);
    }
}
