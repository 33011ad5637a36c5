//! Whether TCP's buffers can hold what is on the road.

use crate::{Check, Facts, Looked, Outcome, Profile, each};

/// Bytes under way are speed times round trip; a window smaller than that waits for acknowledgements.
pub const CHECK: Check = Check {
    number: 44,
    name: "tcp-window",
    rule: "tcp_rmem and tcp_wmem allow what an interface sends in 10 ms",
    source: "kernel documentation, networking/ip-sysctl, tcp_rmem; 10 ms of round trip are a guess of Ringway",
    why: "One connection gets no more than a buffer for each round trip, however fast the link is. A program that sets \
          SO_RCVBUF turns the kernel's own tuning off.",
    profiles: &[Profile::Throughput],
    look,
};

fn look(facts: &Facts) -> Looked {
    let mut fastest = None;
    for card in facts.cards()? {
        let mode: Result<ringway_host::ethtool::LinkMode, _> =
            facts.ethtool(&card.link.name, "link_mode");
        fastest = fastest.max(mode.ok().and_then(|mode| mode.speed_mbit));
    }
    let Some(mbit) = fastest else { return Ok(Vec::new()) };
    let wanted = i64::from(mbit) * 1_000_000 / 8 / 100;
    let keys = ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"];
    let found = each(
        keys,
        |key| (*key).to_owned(),
        |key| {
            let [least, first, most] = facts.sysctls(key)?;
            if most >= wanted {
                return Ok(Outcome::ok(
                    *key,
                    format!("{most} bytes, enough for {mbit} Mbit/s over 10 ms"),
                ));
            }
            let said = format!("{most} bytes at most, and {mbit} Mbit/s over 10 ms are {wanted}");
            let outcome = Outcome::info(*key, said)
                .saw(format!("/proc/sys/{key}"), format!("{least} {first} {most}"));
            Ok(outcome.change(facts.set(key, format!("{least} {first} {}", wanted * 2))?))
        },
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn ten_gigabits_over_ten_milliseconds() {
        let most = |bytes: u32| {
            Machine::healthy().put("/proc/sys/net/ipv4/tcp_wmem", &format!("4096 16384 {bytes}"))
        };
        let enough = most(12_500_000);
        assert_eq!(enough.worst(&CHECK), State::Ok);
        let little = most(12_499_999);
        let fix = ["sysctl -w net.ipv4.tcp_wmem=\"4096 16384 25000000\""];
        assert_eq!(little.fixes(&CHECK), fix);
        table(&CHECK, [(little, State::Info)]);
    }
}
