//! Processors that poll and nothing else.

use crate::facts::cpu_list;
use crate::gather::{POLLERS, PROCESSES, Process};
use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Unknown, each};

/// A polling core never waits, so whatever else runs there takes from it.
pub const RULE: Rule = Rule {
    number: 68,
    name: "isolated-cores",
    rule: "polling cores are isolated, and no interrupt comes to them",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "A program or an interrupt that takes a polling core for a millisecond makes a queue overflow.",
    profiles: &[Profile::Bypass],
    check,
};

const PATH: &str = "/sys/devices/system/cpu/isolated";

fn check(facts: &Facts) -> Looked {
    let text = facts.text(PATH)?;
    let isolated = cpu_list(text).ok_or_else(|| Unknown(format!("{PATH} holds {text:?}")))?;
    let interrupts = match isolated.is_empty() {
        true => Outcome::info(MACHINE, "no processor is isolated")
            .saw(PATH, "empty")
            .advice("isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST on the kernel's command line"),
        false => interrupted(facts, text, &isolated)?,
    };
    let mut found = vec![interrupts];
    match facts.json::<Vec<Process>>(PROCESSES) {
        Err(why) => found.push(Outcome::unknown("threads that poll", why)),
        Ok(all) => {
            let polls = |one: &&Process| POLLERS.iter().any(|start| one.name.starts_with(start));
            let pollers = all.iter().filter(polls);
            found.extend(each(pollers, subject, |one| poller(one, text, &isolated)));
        }
    }
    Ok(found)
}

fn subject(one: &&Process) -> String {
    format!("thread {} ({})", one.name, one.pid)
}

fn interrupted(facts: &Facts, text: &str, isolated: &[u32]) -> Result<Outcome, Unknown> {
    let mut outcome =
        Outcome::warn(MACHINE, "interrupts of cards come to isolated processors").saw(PATH, text);
    let others: Vec<String> =
        facts.cpus()?.iter().filter(|cpu| !isolated.contains(cpu)).map(u32::to_string).collect();
    for card in facts.cards()? {
        for irq in facts.irqs(&card.link.name)? {
            if irq.cpus.iter().any(|cpu| isolated.contains(cpu)) {
                outcome = facts.moved(outcome, irq.number, &others.join(","))?;
            }
        }
    }
    if outcome.changes.is_empty() {
        let said = format!("{text}, and no interrupt of a card comes there");
        return Ok(Outcome::ok(MACHINE, said));
    }
    Ok(outcome)
}

/// Known by the names that DPDK, VPP and `ringway engine` give their threads.
fn poller(one: &Process, text: &str, isolated: &[u32]) -> Result<Outcome, Unknown> {
    let Some(list) = &one.cpus else {
        return Err(Unknown(format!("/proc/{}/status: where it may run is not told", one.pid)));
    };
    let cpus =
        cpu_list(list).ok_or_else(|| Unknown(format!("processors {list:?} of {}", one.pid)))?;
    if !cpus.is_empty() && cpus.iter().all(|cpu| isolated.contains(cpu)) {
        return Ok(Outcome::ok(subject(&one), format!("it polls on {list}, isolated")));
    }
    Ok(Outcome::info(
        subject(&one),
        format!("it polls, and may run on {list}: not all of them are isolated"),
    )
    .saw(format!("/proc/{}/status, Cpus_allowed_list", one.pid), list)
    .saw(PATH, text)
    .advice("isolate its processors, and pin it to them (of Ringway: --cpus; of DPDK: --lcores)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::Machine;

    #[test]
    fn none_and_disturbed() {
        let path = "/sys/devices/system/cpu/isolated";
        let disturbed = Machine::healthy().put(path, "2-3");
        assert_eq!(disturbed.fixes(&RULE)[0], "echo 0,1 > /proc/irq/42/smp_affinity_list");
        assert_eq!(disturbed.worst(&RULE), Severity::Warn);
        assert_eq!(Machine::healthy().put(path, "").worst(&RULE), Severity::Info);
        assert_eq!(Machine::healthy().put(path, "7").worst(&RULE), Severity::Ok);
        assert_eq!(Machine::unknown().worst(&RULE), Severity::Unknown);
        let poller = |cpus: Option<&str>| {
            let (files, limit, arguments) = (None, None, None);
            let (name, cpus) = ("lcore-worker-7".into(), cpus.map(str::to_owned));
            let thread = Process { pid: 9, name, files, limit, cpus, arguments };
            Machine::healthy().put(path, "7").json(PROCESSES, [thread])
        };
        for (cpus, severity) in
            [(Some("7"), Severity::Ok), (Some("0-7"), Severity::Info), (None, Severity::Unknown)]
        {
            assert_eq!(poller(cpus).worst(&RULE), severity, "{cpus:?}");
        }
        let blind = Machine::healthy().put(path, "7").remove(PROCESSES);
        assert_eq!(blind.worst(&RULE), Severity::Unknown);
    }
}
