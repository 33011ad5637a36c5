//! Steering in software: RPS and RFS for what is received, XPS for what is sent.

use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Queue {
    path: String,
    /// As it was read.
    mask: String,
    flows: i64,
    flows_path: String,
}

impl Queue {
    /// Whether packets are spread.
    fn is_on(&self) -> bool {
        self.mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
    }
}

fn receive_queues(facts: &Facts, name: &str) -> Result<Vec<Queue>, Unknown> {
    let directory = format!("/sys/class/net/{name}/queues");
    let names = facts.list(&directory)?.into_iter().filter(|queue| queue.starts_with("rx-"));
    let queue = |queue: String| {
        let path = format!("{directory}/{queue}/rps_cpus");
        let flows_path = format!("{directory}/{queue}/rps_flow_cnt");
        Ok(Queue {
            mask: facts.text(&path)?.into(),
            flows: facts.number(&flows_path)?,
            path,
            flows_path,
        })
    };
    let found: Result<Vec<Queue>, Unknown> = names.map(queue).collect();
    match found {
        Ok(none) if none.is_empty() => Err(Unknown(format!("{directory}: not collected"))),
        found => found,
    }
}

/// `f`, or `1,00000000` above 32: groups of eight digits, the highest first.
pub(super) fn cpu_mask(cpus: &[u32]) -> String {
    let most = cpus.iter().copied().max().unwrap_or(0) / 32;
    let group = |group: u32| {
        let own = cpus.iter().filter(|cpu| **cpu / 32 == group);
        own.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32))
    };
    let rest = (0..most).rev().map(|n| format!(",{:08x}", group(n))).collect::<String>();
    format!("{:x}{rest}", group(most))
}

pub const RPS_MISSING: Rule = Rule {
    number: 17,
    name: "rps-missing",
    rule: "a card with fewer queues than processors has rps_cpus set, if its processors are worn out",
    source: "kernel documentation, networking/scaling, RPS: suggested configuration",
    why: "Processors without a queue get no packet, while those with one do all the work.",
    profiles: &[],
    check: rps_missing,
};

fn rps_missing(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?;
    let worn = facts.busy()?.iter().any(|one| one.softirq > 90.0);
    Ok(each_interface(cards, |_, name| {
        let queues = receive_queues(facts, name)?;
        let spread = queues.iter().any(Queue::is_on);
        if spread || !worn || queues.len() >= cpus.len() {
            return Ok(Outcome::ok(
                name,
                format!("{} queues, {} processors", queues.len(), cpus.len()),
            ));
        }
        let seen =
            Outcome::warn(name, format!("{} queues feed {} processors", queues.len(), cpus.len()));
        // Not those that the interrupts come to: they have enough to do.
        let taken: Vec<u32> = facts.irqs(name)?.iter().flat_map(|irq| irq.cpus.clone()).collect();
        let free: Vec<u32> = cpus.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
        let mask = cpu_mask(if free.is_empty() { &cpus } else { &free });
        let change =
            |outcome: Outcome, queue: &Queue| outcome.write(&queue.path, &mask, &queue.mask);
        Ok(queues.iter().fold(seen, change))
    }))
}

pub const RPS_NEEDLESS: Rule = Rule {
    number: 18,
    name: "rps-needless",
    rule: "rps_cpus is 0 where there is a queue for each processor",
    source: "kernel documentation, networking/scaling, RPS: suggested configuration",
    why: "Handing a packet to another processor costs an interrupt between the two, and gains nothing.",
    profiles: &[],
    check: rps_needless,
};

fn rps_needless(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let cpus = facts.cpus()?.len();
    Ok(each_interface(interfaces, |_, name| {
        let queues = receive_queues(facts, name)?;
        let on: Vec<&Queue> = queues.iter().filter(|queue| queue.is_on()).collect();
        if on.is_empty() || queues.len() < cpus || cpus < 2 {
            return Ok(Outcome::ok(name, format!("{} of {} queues", on.len(), queues.len())));
        }
        let said =
            format!("{} queues for {cpus} processors, and RPS spreads them again", queues.len());
        let change = |outcome: Outcome, queue: &&Queue| outcome.write(&queue.path, 0, &queue.mask);
        Ok(on.iter().fold(Outcome::info(name, said), change))
    }))
}

pub const RFS: Rule = Rule {
    number: 19,
    name: "rfs",
    rule: "rps_sock_flow_entries and every rps_flow_cnt are set, or none",
    source: "kernel documentation, networking/scaling, RFS: 32768, and 32768 / queues",
    why: "With one of the two alone it does nothing.",
    profiles: &[],
    check: rfs,
};

const ENTRIES: &str = "net/core/rps_sock_flow_entries";

fn rfs(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    // Seen in the first network namespace alone, where it is set for all.
    let entries = facts.sysctl(ENTRIES)?;
    Ok(each_interface(interfaces, |_, name| {
        let queues = receive_queues(facts, name)?;
        let set = queues.iter().filter(|queue| queue.flows > 0).count();
        if set == 0 || set == queues.len() && entries > 0 {
            return Ok(Outcome::ok(
                name,
                format!("{set} of {} queues, {entries} entries", queues.len()),
            ));
        }
        let said = format!(
            "rps_flow_cnt is set for {set} of {} queues, and rps_sock_flow_entries is {entries}",
            queues.len()
        );
        let mut outcome = Outcome::warn(name, said).saw(format!("/proc/sys/{ENTRIES}"), entries);
        if entries == 0 {
            outcome = outcome.change(facts.set(ENTRIES, 32_768)?);
        }
        for queue in queues.iter().filter(|queue| queue.flows == 0) {
            let wanted = 32_768 / queues.len();
            outcome = outcome.write(&queue.flows_path, wanted, 0);
        }
        Ok(outcome)
    }))
}

pub const XPS: Rule = Rule {
    number: 21,
    name: "xps",
    rule: "where there are several transmit queues, each has processors in xps_cpus",
    source: "kernel documentation, networking/scaling, XPS: suggested configuration",
    why: "Otherwise processors share queues by a hash, and wait for one another's locks.",
    profiles: &[],
    check: xps,
};

fn xps(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let cpus = facts.cpus()?;
    Ok(each_interface(interfaces, |one, name| {
        let directory = format!("/sys/class/net/{name}/queues");
        // There may be more than are in use.
        let mut queues = facts.tx_queues(name)?;
        queues.truncate(one.channels.map_or(queues.len(), |channels| channels.tx as usize));
        // Other devices made of software choose a queue by themselves, or hand on to what is below.
        let chosen = matches!(one.link.kind.as_deref(), None | Some("veth"));
        if queues.len() < 2 || !chosen {
            return Ok(Outcome::ok(name, "one transmit queue, or made of software"));
        }
        let mut outcome = Outcome::info(name, "transmit queues have no processors of their own");
        for (number, queue) in queues.iter().enumerate() {
            let path = format!("{directory}/{queue}/xps_cpus");
            let mask = facts.text(&path)?;
            if mask.chars().any(|c| !matches!(c, '0' | ',')) {
                continue;
            }
            let own: Vec<u32> = cpus.iter().copied().skip(number).step_by(queues.len()).collect();
            if !own.is_empty() {
                let wanted = cpu_mask(&own);
                outcome = outcome.write(&path, wanted, mask);
            }
        }
        Ok(outcome.or_ok("each has its processors"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn masks_as_the_kernel_takes_them() {
        for (cpus, wanted) in [
            (&[0, 1, 2, 3][..], "f"),
            (&[1], "2"),
            (&[32], "1,00000000"),
            (&[0, 63], "80000000,00000001"),
            (&[64, 1], "1,00000000,00000002"),
        ] {
            assert_eq!(cpu_mask(cpus), wanted);
        }
    }

    #[test]
    fn one_queue_for_four() {
        let stat = "cpu0 0 0 0 10 0 0 1000 0\ncpu1 0 0 0 1000 0 0 0 0";
        let one = (1..4).fold(healthy(), |machine, queue| {
            machine.remove(&format!("/sys/class/net/eth0/queues/rx-{queue}"))
        });
        let worn = one.clone().put("/proc/stat", "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0");
        let worn = worn.then("/proc/stat", stat);
        // All four have interrupts, so all four share.
        assert_eq!(worn.fixes(&RPS_MISSING), ["echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus"]);
        table(&RPS_MISSING, [(one, Severity::Ok), (worn, Warn)]);
    }

    #[test]
    fn a_queue_each_and_rps() {
        let path = "/sys/class/net/eth0/queues/rx-2/rps_cpus";
        let on = healthy().put(path, "00000000,0000000f");
        assert_eq!(on.fixes(&RPS_NEEDLESS), [format!("echo 0 > {path}")]);
        assert_eq!(on.undos(&RPS_NEEDLESS), [format!("echo 00000000,0000000f > {path}")]);
        let elsewhere = healthy().miss("/sys/class/net", "of another namespace");
        table(&RPS_NEEDLESS, [(on, Info), (elsewhere, Unknown)]);
    }

    #[test]
    fn one_half_of_it() {
        let path = "/sys/class/net/eth0/queues/rx-0/rps_flow_cnt";
        let queue = healthy().put(path, "8192");
        assert_eq!(queue.fixes(&RFS).len(), 4);
        assert_eq!(queue.fixes(&RFS)[0], "sysctl -w net.core.rps_sock_flow_entries=32768");
        let both = (0..4).fold(queue.clone(), |machine, n| {
            machine.put(&format!("/sys/class/net/eth0/queues/rx-{n}/rps_flow_cnt"), "8192")
        });
        let both = both.put(&format!("/proc/sys/{ENTRIES}"), "32768");
        table(&RFS, [(queue, Warn), (both, Severity::Ok)]);
    }

    #[test]
    fn an_empty_mask() {
        let path = "/sys/class/net/eth0/queues/tx-2/xps_cpus";
        let empty = healthy().put(path, "0");
        assert_eq!(empty.fixes(&XPS), [format!("echo 4 > {path}")]);
        table(&XPS, [(empty, Info), (healthy().remove(path), Unknown)]);
    }
}
