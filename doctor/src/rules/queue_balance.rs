//! Queues of which one gets most of the packets.

use std::collections::BTreeMap;

use ringway_host::ethtool::Indirection;

use super::indirection::entries;
use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

/// The card chooses by a hash of addresses and ports.
pub const RULE: Rule = Rule {
    number: 15,
    name: "queue-balance",
    rule: "no queue gets more than twice the mean",
    source: "heuristic of Ringway; kernel documentation, networking/scaling, RSS",
    why: "One processor is worn out while others wait. Few flows, or UDP that is hashed by addresses alone, cause it.",
    profiles: &[],
    check,
};

type Counters = BTreeMap<String, u64>;

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.cards()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let (before, after): (Counters, Counters) =
            facts.pair(&format!("/ethtool/{name}/statistics.json"))?;
        let delta = |counter: &String| Some(after[counter].saturating_sub(*before.get(counter)?));
        let queues: Vec<u64> =
            after.keys().filter(|name| of_queue(name)).filter_map(delta).collect();
        if queues.is_empty() && one.channels.is_some_and(|channels| channels.rx > 1) {
            let why = format!("ethtool -S {name}: the driver does not count packets by queue");
            return Err(Unknown(why));
        }
        let (sum, most) = (
            queues.iter().copied().fold(0, u64::saturating_add),
            queues.iter().copied().max().unwrap_or(0),
        );
        let mean = sum as f64 / queues.len().max(1) as f64;
        if sum < 1000 || most as f64 <= mean * 2.0 {
            return Ok(Outcome::ok(name, format!("{} queues, {sum} packets", queues.len())));
        }
        let seen = Outcome::warn(
            name,
            format!("one of {} queues got {most} of {sum} packets", queues.len()),
        )
        .saw(format!("ethtool -S {name}, packets by queue"), format!("{queues:?}"));
        with_fix(facts, name, queues.len(), seen)
    }))
}

/// `rx_queue_0_packets` (ixgbe, virtio, ena), `rx0_packets` (mlx5), `rx-0.packets` (i40e), `[0]: rx_ucast_packets` (bnxt).
pub fn of_queue(counter: &str) -> bool {
    let digit = counter.chars().any(|c| c.is_ascii_digit());
    let receives = counter.contains("rx") && !counter.contains("xdp") && !counter.contains("xsk");
    digit && receives && counter.ends_with("packets")
}

fn with_fix(
    facts: &Facts,
    name: &str,
    queues: usize,
    outcome: Outcome,
) -> Result<Outcome, Unknown> {
    let advice = format!(
        "if the traffic is UDP with many ports: ethtool -N {name} rx-flow-hash udp4 sdfn; one flow alone stays \
                          on one queue whatever is set"
    );
    let outcome = outcome.advice(advice);
    let Ok(table) = facts.ethtool::<Indirection>(name, "indirection") else {
        return Ok(outcome);
    };
    let counts = entries(&table, queues)?;
    let even =
        counts.iter().max().zip(counts.iter().min()).is_some_and(|(most, least)| most - least <= 1);
    if even {
        return Ok(outcome);
    }
    let weights: Vec<String> = counts.iter().map(usize::to_string).collect();
    let weights = format!("weight {}", weights.join(" "));
    Ok(outcome.ethtool("-X", name, format!("equal {queues}"), weights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn twice_the_mean() {
        let machine = |first: u64, rest: u64| {
            let path = "/ethtool/eth0/statistics.json";
            let counters = |first: u64, rest: u64| {
                let names = ["rx0_packets", "rx1_packets", "rx2_packets", "rx3_packets"];
                let value =
                    |(n, name): (usize, &str)| (name.to_owned(), if n == 0 { first } else { rest });
                let all: Counters = names.into_iter().enumerate().map(value).collect();
                serde_json::to_string(&all).unwrap()
            };
            Machine::healthy().put(path, &counters(0, 0)).then(path, &counters(first, rest))
        };
        let uneven = machine(10_000, 1000)
            .json("/ethtool/eth0/indirection.json", Indirection { queues: vec![0, 0, 0, 1, 2, 3] });
        assert_eq!(uneven.fixes(&RULE), ["ethtool -X eth0 equal 4"]);
        assert_eq!(uneven.undos(&RULE), ["ethtool -X eth0 weight 3 1 1 1"]);
        table(
            &RULE,
            [
                (uneven, Severity::Warn),
                (machine(1900, 1000), Severity::Ok),
                (machine(100, 0), Severity::Ok),
                (machine(10_000, 0), Severity::Warn),
            ],
        );
    }
}
