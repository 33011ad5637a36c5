//! Whether TCP's buffers can hold what is on the road.

use ringway_host::ethtool::LinkMode;
use ringway_host::netlink::sockets::Sockets;

use crate::{Facts, Looked, Outcome, Profile, Rule, Unknown, each};

/// Bytes under way are speed times round trip; a window smaller than that waits for acknowledgements.
pub const RULE: Rule = Rule {
    number: 44,
    name: "tcp-window",
    rule: "tcp_rmem and tcp_wmem allow what an interface sends in a round trip",
    source: "kernel documentation, networking/ip-sysctl, tcp_rmem; 10 ms where no connection tells are a \
             guess of Ringway",
    why: "One connection gets no more than a buffer for each round trip, however fast the link is. A program that sets \
          SO_RCVBUF turns the kernel's own tuning off.",
    profiles: &[Profile::Throughput],
    check,
};

const GUESS_US: u32 = 10_000;

fn check(facts: &Facts) -> Looked {
    let untold = Unknown("the kernel does not tell which sockets have set it".into());
    let mut found = vec![Outcome::unknown("SO_RCVBUF", untold)];
    let mut fastest = None;
    for card in facts.cards()? {
        let mode: Result<LinkMode, _> = facts.ethtool(&card.link.name, "link_mode");
        fastest = fastest.max(mode.ok().and_then(|mode| mode.speed_mbit));
    }
    let Some(mbit) = fastest else { return Ok(found) };
    let sockets: Sockets = facts.json("/netlink/sockets.json")?;
    let rtt_us = sockets.rtt_us.unwrap_or(GUESS_US);
    // Mbit/s times microseconds are bits.
    let wanted = i64::from(mbit).saturating_mul(i64::from(rtt_us)) / 8;
    let road = match sockets.rtt_us {
        Some(rtt) => format!("{mbit} Mbit/s over {rtt} us, the median of connections"),
        None => format!("{mbit} Mbit/s over 10 ms, a guess"),
    };
    let keys = ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"];
    found.extend(each(keys, |key| (*key).to_owned(), |key| window(facts, key, wanted, &road)));
    Ok(found)
}

fn window(facts: &Facts, key: &str, wanted: i64, road: &str) -> Result<Outcome, Unknown> {
    let [least, first, most] = facts.sysctls(key)?;
    if most >= wanted {
        return Ok(Outcome::ok(key, format!("{most} bytes, enough for {road}")));
    }
    let outcome = Outcome::info(key, format!("{most} bytes at most, and {road}, are {wanted}"))
        .saw(format!("/proc/sys/{key}"), format!("{least} {first} {most}"));
    Ok(outcome.change(facts.set(key, format!("{least} {first} {}", wanted * 2))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::Machine;

    #[test]
    fn ten_gigabits_over_a_round_trip() {
        let most = |bytes: u32| {
            Machine::healthy().put("/proc/sys/net/ipv4/tcp_wmem", &format!("4096 16384 {bytes}"))
        };
        // What the kernel does not tell is unknown whatever else is well.
        let worst = |machine: &Machine| {
            let outcomes = machine.outcomes(&RULE).into_iter();
            outcomes.filter(|one| one.subject != "SO_RCVBUF").map(|one| one.severity).max().unwrap()
        };
        assert_eq!(worst(&most(12_500_000)), Severity::Ok);
        let little = most(12_499_999);
        let fix = ["sysctl -w net.ipv4.tcp_wmem=\"4096 16384 25000000\""];
        assert_eq!(
            (worst(&little), little.fixes(&RULE)),
            (Severity::Info, fix.map(Into::into).into())
        );
        let near = little.edit("/netlink/sockets.json", |all: &mut Sockets| all.rtt_us = Some(900));
        assert_eq!(worst(&near), Severity::Ok);
        assert_eq!(Machine::healthy().worst(&RULE), Severity::Unknown);
        assert_eq!(Machine::unknown().worst(&RULE), Severity::Unknown);
    }
}
