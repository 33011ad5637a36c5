//! Packets that found the backlog of a processor full.

use crate::facts::Softnet;
use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Unknown, each};

/// The backlog holds what RPS, loopback and veth hand to a processor.
pub const RULE: Rule = Rule {
    number: 23,
    name: "softnet-backlog",
    rule: "no packet is dropped at the backlog (column 2 of softnet_stat)",
    source: "kernel documentation, admin-guide/sysctl/net, netdev_max_backlog",
    why: "The processor that a queue, RPS or a veth hands packets to does not keep up, and what comes then is lost.",
    profiles: &[],
    check,
};

const KEY: &str = "net/core/netdev_max_backlog";

fn check(facts: &Facts) -> Looked {
    let cpus = facts.softnet()?;
    let lossy: Vec<&Softnet> = cpus.iter().filter(|cpu| cpu.dropped.delta > 0).collect();
    if lossy.is_empty() {
        return Outcome::ok(MACHINE, format!("no drop on {} processors", cpus.len())).into();
    }
    Ok(each(lossy, |cpu| format!("processor {}", cpu.cpu), |cpu| outcome(facts, cpu)))
}

fn outcome(facts: &Facts, cpu: &Softnet) -> Result<Outcome, Unknown> {
    let (dropped, of) = (cpu.dropped.delta, cpu.processed.delta + cpu.dropped.delta);
    let said =
        format!("{dropped} of {of} packets found its backlog full in {:.0} s", facts.seconds);
    let outcome = Outcome::warn(format!("processor {}", cpu.cpu), said)
        .saw("/proc/net/softnet_stat, column 2", dropped);
    // Seen in the first network namespace alone.
    match facts.sysctl(KEY) {
        Ok(now) => {
            Ok(outcome.saw(format!("/proc/sys/{KEY}"), now).change(facts.set(KEY, now * 2)?))
        }
        Err(_) => Ok(outcome
            .advice("in the machine's first network namespace: raise net.core.netdev_max_backlog")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::Machine;

    const LINE: &str =
        "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000";

    #[test]
    fn the_processor_is_named_by_its_own_column() {
        let machine = |was: &str, is: &str| {
            let line = |columns: &str| {
                let (packets, dropped) = columns.split_once(' ').unwrap();
                format!(
                    "{packets} {dropped} {} 00000000 00000000 00000000 00000003 00000000 00000000",
                    &LINE[18..]
                )
            };
            let path = "/proc/net/softnet_stat";
            Machine::healthy()
                .put("/proc/sys/net/core/netdev_max_backlog", "1000")
                .put(path, &line(was))
                .then(path, &line(is))
        };
        assert_eq!(machine("0000000a 00000001", "0000000b 00000001").worst(&RULE), Severity::Ok);
        let lossy = machine("0000000a 00000001", "0000000c 00000005");
        let [outcome] = lossy.outcomes(&RULE).try_into().unwrap();
        assert!(outcome.found.starts_with("4 of 6 packets"), "{outcome:?}");
        assert_eq!((outcome.severity, outcome.subject.as_str()), (Severity::Warn, "processor 3"));
        assert_eq!(lossy.fixes(&RULE), ["sysctl -w net.core.netdev_max_backlog=2000"]);
        assert_eq!(
            Machine::healthy().remove("/proc/net/softnet_stat").worst(&RULE),
            Severity::Unknown
        );
    }
}
