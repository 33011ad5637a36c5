//! A card's receive queues: their number, and how packets are spread over them.

use std::collections::BTreeMap;

use ringway_host::ethtool::Indirection;

use crate::facts::Irq;
use crate::{Facts, Fix, Looked, Outcome, Rule, Unknown, each_interface};

pub const QUEUE_COUNT: Rule = Rule {
    number: 11,
    name: "queue-count",
    rule: "no queue's processor spends 90 % in softirqs while the card has queues to spare",
    source: "kernel documentation, networking/scaling, RSS",
    why: "One processor cannot do more; another queue brings another processor.",
    profiles: &[],
    check: queue_count,
};

fn queue_count(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let busy = facts.busy()?;
    let cpus = facts.cpus()?.len() as u32;
    let worn: Vec<u32> = busy.iter().filter(|one| one.softirq > 90.0).map(|one| one.cpu).collect();
    Ok(each_interface(cards, |card, name| {
        let Some(channels) = card.channels else {
            return Ok(Outcome::ok(name, "it has one queue, as far as its driver tells"));
        };
        let irqs = facts.irqs(name)?;
        let on_worn = |irq: &&Irq| irq.delta > 0 && irq.cpus.iter().any(|cpu| worn.contains(cpu));
        let queues: Vec<&Irq> = irqs.iter().filter(on_worn).collect();
        let most = channels.max_rx.min(cpus);
        if queues.is_empty() || channels.rx >= most {
            return Ok(Outcome::ok(name, format!("{} of {} queues", channels.rx, channels.max_rx)));
        }
        let wanted = channels.rx.saturating_mul(2).min(most);
        let said = format!(
            "{} of its {} queues have worn out their processors",
            queues.len(),
            channels.rx
        );
        Ok(Outcome::warn(name, said)
            .saw("/proc/stat, softirq above 90 % on processors", format!("{worn:?}"))
            .saw(
                format!("ethtool -l {name}, in use of"),
                format!("{} of {}", channels.rx, channels.max_rx),
            )
            .ethtool("-L", name, format!("combined {wanted}"), format!("combined {}", channels.rx)))
    }))
}

pub const QUEUE_BALANCE: Rule = Rule {
    number: 15,
    name: "queue-balance",
    rule: "no queue gets more than twice the mean",
    source: "heuristic of Ringway; kernel documentation, networking/scaling, RSS",
    why: "One processor is worn out while others wait. Few flows, or UDP that is hashed by addresses alone, cause it.",
    profiles: &[],
    check: queue_balance,
};

type Counters = BTreeMap<String, u64>;

fn queue_balance(facts: &Facts) -> Looked {
    Ok(each_interface(facts.cards()?, |one, name| {
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

/// `rx_queue_0_packets` (ixgbe, virtio, ena), `rx0_packets` (mlx5), `rx-0.packets` (i40e),
/// `[0]: rx_ucast_packets` (bnxt).
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
        "if the traffic is UDP with many ports: {}; one flow alone stays on one queue whatever is set",
        Fix::ethtool("-N", name, "rx-flow-hash udp4 sdfn")
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

pub const INDIRECTION: Rule = Rule {
    number: 16,
    name: "indirection",
    rule: "the indirection table names every receive queue",
    source: "kernel documentation, networking/scaling, RSS",
    why: "Queues that it leaves out get nothing, and their processors neither. AF_XDP may want that.",
    profiles: &[],
    check: indirection,
};

/// More than any card has.
const MOST: usize = 1 << 16;

/// The number of the table's entries that lead to each queue.
fn entries(table: &Indirection, queues: usize) -> Result<Vec<usize>, Unknown> {
    if queues > MOST {
        return Err(Unknown(format!("{queues} queues are not to be believed")));
    }
    let mut counts = vec![0; queues];
    for queue in &table.queues {
        if let Some(count) = counts.get_mut(*queue as usize) {
            *count += 1;
        }
    }
    Ok(counts)
}

fn indirection(facts: &Facts) -> Looked {
    Ok(each_interface(facts.cards()?, |card, name| {
        let Some(channels) = card.channels.filter(|channels| channels.rx > 1) else {
            return Ok(Outcome::ok(name, "it has one queue, as far as its driver tells"));
        };
        let table: Indirection = facts.ethtool(name, "indirection")?;
        let counts = entries(&table, channels.rx as usize)?;
        let left_out = counts.iter().filter(|count| **count == 0).count();
        if left_out == 0 {
            return Ok(Outcome::ok(name, format!("all of {} queues", channels.rx)));
        }
        let weights: Vec<String> = counts.iter().map(usize::to_string).collect();
        let said = format!("{left_out} of {} queues get no packet", channels.rx);
        Ok(Outcome::info(name, said)
            .saw(format!("ethtool -x {name}, entries by queue"), weights.join(" "))
            .ethtool(
                "-X",
                name,
                format!("equal {}", channels.rx),
                format!("weight {}", weights.join(" ")),
            ))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn with_queues_to_spare() {
        let stat = "cpu0 0 0 0 100 0 0 1000 0\ncpu1 0 0 0 900 0 0 0 0\ncpu2 0 0 0 9 0 0 0 0\ncpu3 0 0 0 9 0 0 0 0";
        let zero = "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\ncpu3 0 0 0 0 0 0 0 0";
        let worn = healthy().put("/proc/stat", zero).then("/proc/stat", stat);
        let few = worn.clone().network(|network| {
            let channels = network.interfaces[1].channels.as_mut().unwrap();
            (channels.rx, channels.tx) = (1, 1);
        });
        assert_eq!(few.fixes(&QUEUE_COUNT), ["ethtool -L eth0 combined 2"]);
        // Four processors have four queues already.
        table(&QUEUE_COUNT, [(worn, Severity::Ok), (few, Warn)]);
    }

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
            healthy().put(path, &counters(0, 0)).then(path, &counters(first, rest))
        };
        let uneven = machine(10_000, 1000)
            .json("/ethtool/eth0/indirection.json", Indirection { queues: vec![0, 0, 0, 1, 2, 3] });
        assert_eq!(uneven.fixes(&QUEUE_BALANCE), ["ethtool -X eth0 equal 4"]);
        assert_eq!(uneven.undos(&QUEUE_BALANCE), ["ethtool -X eth0 weight 3 1 1 1"]);
        let rows = [
            (uneven, Warn),
            (machine(1900, 1000), Severity::Ok),
            (machine(100, 0), Severity::Ok),
            (machine(10_000, 0), Warn),
        ];
        table(&QUEUE_BALANCE, rows);
    }

    #[test]
    fn queues_left_out() {
        let path = "/ethtool/eth0/indirection.json";
        let two = healthy().json(path, Indirection { queues: vec![0, 1, 0, 1] });
        assert_eq!(two.undos(&INDIRECTION), ["ethtool -X eth0 weight 2 2 0 0"]);
        table(&INDIRECTION, [(two, Info), (healthy().remove(path), Unknown)]);
    }
}
