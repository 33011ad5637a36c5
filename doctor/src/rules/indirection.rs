//! Queues that no packet is led to.

use ringway_host::ethtool::Indirection;

use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

/// The indirection table names a queue for each hash.
pub const RULE: Rule = Rule {
    number: 16,
    name: "indirection",
    rule: "the indirection table names every receive queue",
    source: "kernel documentation, networking/scaling, RSS",
    why: "Queues that it leaves out get nothing, and their processors neither. AF_XDP may want that.",
    profiles: &[],
    check,
};

/// More than any card has.
const MOST: usize = 1 << 16;

/// How many entries of the table lead to each queue.
pub fn entries(table: &Indirection, queues: usize) -> Result<Vec<usize>, Unknown> {
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

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
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
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn queues_left_out() {
        let path = "/ethtool/eth0/indirection.json";
        let two = Machine::healthy().json(path, Indirection { queues: vec![0, 1, 0, 1] });
        assert_eq!(two.undos(&RULE), ["ethtool -X eth0 weight 2 2 0 0"]);
        table(&RULE, [(two, Severity::Info), (Machine::healthy().remove(path), Severity::Unknown)]);
    }
}
