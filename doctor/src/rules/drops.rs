//! Drop counters of interfaces, drivers and queueing disciplines.

use std::collections::BTreeMap;

use ringway_host::netlink::counters::Stats;
use ringway_host::netlink::qdiscs::Qdisc;

use crate::{Facts, Fix, Looked, Outcome, Rule, Unknown, each_interface};

/// Some are dropped on purpose: by XDP programs, for protocols that nobody speaks here.
pub const DROPPED: Rule = Rule {
    number: 3,
    name: "dropped",
    rule: "fewer than 2 % of more than 10 000 packets are dropped",
    source: "netdata, alarms inbound_packets_dropped_ratio and outbound_packets_dropped_ratio",
    why: "Somebody's packets do not arrive, though they came as far as this host.",
    profiles: &[],
    check: device_drops,
};

const MANY: u64 = 10_000;

fn device_drops(facts: &Facts) -> Looked {
    Ok(each_interface(facts.interfaces()?, |_, name| {
        let delta = |of: fn(&Stats) -> u64| Ok::<_, Unknown>(facts.device_counter(name, of)?.delta);
        let rx = (delta(|stats| stats.rx_packets)?, delta(|stats| stats.rx_dropped)?);
        let tx = (delta(|stats| stats.tx_packets)?, delta(|stats| stats.tx_dropped)?);
        let mut outcome = Outcome::warn(name, "more than 2 % of its packets are dropped");
        for (way, (packets, dropped)) in [("received", rx), ("sent", tx)] {
            let all = packets + dropped;
            if all > MANY && dropped * 50 >= all {
                outcome = outcome.saw(
                    format!("ip -s link show {name}, dropped, {way}"),
                    format!("{dropped} of {all}"),
                );
            }
        }
        let advice = "`perf trace -e skb:kfree_skb` or dropwatch names the reason; an XDP program that drops is one, too";
        let well = format!("{} of {} received, {} of {} sent", rx.1, rx.0, tx.1, tx.0);
        Ok(outcome.advice(advice).or_ok(well))
    }))
}

/// Names differ from driver to driver; these parts of names are common.
pub const DRIVER_COUNTERS: Rule = Rule {
    number: 5,
    name: "driver-counters",
    rule: "no counter of `ethtool -S` whose name speaks of loss grows",
    source: "heuristic of Ringway",
    why: "Cards and drivers lose packets in places that the common counters do not show.",
    profiles: &[],
    check: driver_counters,
};

const WORDS: [&str; 9] =
    ["drop", "miss", "nobuf", "no_buf", "out_of_buf", "no_dma", "discard", "err", "exceeded"];
/// The meaning of some names.
const MEANINGS: [(&str, &str); 7] = [
    (
        "rx_out_of_buffer",
        "the queue had no descriptor (mlx5): larger rings, or a processor that fetches faster",
    ),
    ("rx_no_dma_resources", "the queue had no descriptor (ixgbe): larger rings"),
    ("rx_discards_phy", "the card's own buffer was full (mlx5): pause frames, or less traffic"),
    ("bw_in_allowance_exceeded", "the cloud's limit for this machine (ena)"),
    ("pps_allowance_exceeded", "the cloud's limit for this machine (ena)"),
    ("xdp_tx_errors", "XDP_TX found no room; on veth its peer does not poll (see veth-peer)"),
    (
        "xdp_xmit_errors",
        "redirected frames found no room; on veth its peer does not poll (see veth-peer)",
    ),
];

type Counters = BTreeMap<String, u64>;

fn driver_counters(facts: &Facts) -> Looked {
    Ok(each_interface(facts.interfaces()?, |_, name| {
        let path = format!("/ethtool/{name}/statistics.json");
        let (before, after): (Counters, Counters) = facts.pair(&path)?;
        let mut outcome = Outcome::warn(name, "its driver counts losses");
        let lossy = |name: &str| WORDS.iter().any(|word| name.to_ascii_lowercase().contains(word));
        let grown = after.iter().filter_map(|(counter, now)| {
            let was = before.get(counter).filter(|was| now > *was)?;
            lossy(counter).then_some((counter, now - was))
        });
        for (counter, by) in grown {
            outcome = outcome.saw(format!("ethtool -S {name}, {counter}"), by);
            let meaning = MEANINGS.iter().find(|(part, _)| counter.contains(part));
            if let Some((_, meaning)) = meaning {
                outcome = outcome.advice(*meaning);
            }
        }
        Ok(outcome.or_ok(format!("{} counters, no loss", after.len())))
    }))
}

pub const QDISC_DROPS: Rule = Rule {
    number: 31,
    name: "qdisc-drops",
    rule: "drops and requeues of queueing disciplines do not grow by more than 10",
    source: "manual page tc(8); heuristic of Ringway for the number",
    why: "Packets wait behind one another, and what finds the queue full is lost.",
    profiles: &[],
    check: qdisc_drops,
};

fn qdisc_drops(facts: &Facts) -> Looked {
    let (before, after): (Vec<Qdisc>, Vec<Qdisc>) = facts.pair("/netlink/qdiscs.json")?;
    Ok(each_interface(facts.interfaces()?, |one, name| {
        let sum = |all: &[Qdisc], of: fn(&Qdisc) -> u32| {
            let own = all.iter().filter(|qdisc| qdisc.ifindex == one.link.ifindex);
            own.map(|qdisc| u64::from(of(qdisc))).sum::<u64>()
        };
        let delta = |of: fn(&Qdisc) -> u32| sum(&after, of).saturating_sub(sum(&before, of));
        let (drops, requeues) = (delta(|qdisc| qdisc.drops), delta(|qdisc| qdisc.requeues));
        let kind = after
            .iter()
            .find(|qdisc| qdisc.ifindex == one.link.ifindex)
            .map_or("", |qdisc| qdisc.kind.as_str());
        if drops + requeues <= 10 {
            return Ok(Outcome::ok(name, format!("{kind}: {drops} drops, {requeues} requeues")));
        }
        let outcome = Outcome::warn(name, qdisc_said(kind, drops, requeues))
            .saw(format!("tc -s qdisc show dev {name}, dropped"), drops)
            .saw(format!("tc -s qdisc show dev {name}, requeues"), requeues)
            .advice(qdisc_advice(kind));
        if kind == "pfifo_fast" {
            let set = |kind| Fix::command(["tc", "qdisc", "replace", "dev", name, "root", kind]);
            return Ok(outcome.fix(set("fq_codel"), set("pfifo_fast")));
        }
        Ok(outcome)
    }))
}

fn qdisc_said(kind: &str, drops: u64, requeues: u64) -> String {
    let mut said = Vec::new();
    if drops > 0 {
        said.push(format!("{kind} dropped {drops} packets"));
    }
    if requeues > 0 {
        said.push(format!("the driver refused {requeues} packets at first"));
    }
    said.join(", ")
}

/// Those that hold packets back on purpose.
const SHAPERS: [&str; 6] = ["tbf", "cake", "htb", "hfsc", "cbq", "netem"];

fn qdisc_advice(kind: &str) -> String {
    if SHAPERS.contains(&kind) {
        return format!(
            "{kind} holds back by its own settings: raise its rate or its limit, or send less"
        );
    }
    "shape to what the path takes (cake, or tbf), or send less".into()
}

/// Drops of the disciplines of all interfaces between the two looks.
pub(super) fn qdisc_dropped(facts: &Facts) -> Result<u64, Unknown> {
    let (before, after): (Vec<Qdisc>, Vec<Qdisc>) = facts.pair("/netlink/qdiscs.json")?;
    let sum = |all: &[Qdisc]| all.iter().map(|one| u64::from(one.drops)).sum::<u64>();
    Ok(sum(&after).saturating_sub(sum(&before)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn two_in_a_hundred_of_many() {
        let dropped = |packets, dropped| {
            healthy().stats("veth0", |stats| {
                (stats.tx_packets, stats.tx_dropped) = (packets, dropped);
            })
        };
        // A driver that was loaded anew counts from nought.
        let mut anew = dropped(19_600, 400);
        let large = anew.collection.after.files()["/netlink/stats.json"].clone();
        anew.collection.before.put("/netlink/stats.json", large);
        let anew = anew.stats("veth0", |stats| (stats.tx_packets, stats.tx_dropped) = (5, 0));
        let rows = [
            (anew, Severity::Ok),
            (dropped(19_600, 400), Warn),
            (dropped(19_700, 300), Severity::Ok),
            (dropped(5000, 4000), Severity::Ok),
        ];
        table(&DROPPED, rows);
    }

    #[test]
    fn names_that_speak_of_loss() {
        let grows = |counter: &str| {
            let path = "/ethtool/veth0/statistics.json";
            healthy()
                .put(path, &format!("{{\"{counter}\": 1}}"))
                .then(path, &format!("{{\"{counter}\": 3}}"))
        };
        let rows = [
            (grows("rx_queue_0_drops"), Warn),
            (grows("rx_out_of_buffer"), Warn),
            (grows("rx_queue_0_xdp_packets"), Severity::Ok),
        ];
        table(&DRIVER_COUNTERS, rows);
        let told = grows("rx_queue_0_xdp_tx_errors").outcomes(&DRIVER_COUNTERS);
        assert!(told.iter().any(|one| one.remedy().to_string().contains("veth-peer")));
    }

    #[test]
    fn more_than_ten() {
        let drops = |drops| {
            healthy().edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| {
                all[0].drops = drops;
                all[0].kind = "pfifo_fast".into();
            })
        };
        assert_eq!(drops(11).undos(&QDISC_DROPS), ["tc qdisc replace dev eth0 root pfifo_fast"]);
        let of = |kind: &str| {
            let kind = kind.to_owned();
            let machine = drops(11).edit("/netlink/qdiscs.json", |all: &mut Vec<Qdisc>| {
                all[0].kind = kind;
            });
            let outcomes = machine.outcomes(&QDISC_DROPS);
            let one = outcomes.into_iter().find(|one| one.severity == Warn).unwrap();
            assert!(!one.found.contains("refused"), "{}", one.found);
            one.remedy().to_string()
        };
        assert!(of("pfifo_fast").contains("shape to") && !of("tbf").contains("shape to"));
        assert!(of("tbf").contains("raise its rate"));
        table(&QDISC_DROPS, [(drops(10), Severity::Ok), (drops(11), Warn)]);
    }
}
