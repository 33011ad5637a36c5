//! NAPI threads that may run anywhere.

use crate::gather::Process;
use crate::{Facts, Fix, Looked, Outcome, Rule, each_interface};

/// In threads of their own, queues are polled wherever the scheduler puts them.
pub const RULE: Rule = Rule {
    number: 22,
    name: "threaded-napi",
    rule: "threads of threaded NAPI are pinned",
    source: "kernel documentation, networking/napi, threaded NAPI",
    why: "A thread that wanders takes its cache with it each time, and meets programs on their processors.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let path = format!("/sys/class/net/{name}/threaded");
        if facts.number(&path)? == 0 {
            return Ok(Outcome::ok(name, "polled in softirqs"));
        }
        let processes: Vec<Process> = facts.json(crate::gather::PROCESSES)?;
        let cpus = facts.cpus()?;
        // Names of threads are cut off after 15 bytes.
        let start: String = format!("napi/{name}-").chars().take(15).collect();
        let free = processes.iter().filter(|one| one.name.starts_with(&start)).filter(|one| {
            one.cpus.as_deref().and_then(crate::facts::cpu_list).is_some_and(|list| list.len() > 1)
        });
        let free: Vec<&Process> = free.collect();
        if free.is_empty() {
            return Ok(Outcome::ok(name, "its threads are pinned"));
        }
        let mut outcome =
            Outcome::info(name, format!("{} of its NAPI threads may run anywhere", free.len()))
                .saw(path, 1);
        for (process, cpu) in free.iter().zip(cpus.iter().cycle()) {
            let now = process.cpus.as_deref().unwrap_or_default();
            let pid = process.pid.to_string();
            let pin = |list: &str| Fix::command(["taskset", "-pc", list, &pid]);
            outcome = outcome
                .saw(
                    format!("/proc/{}/status, Cpus_allowed_list of {}", process.pid, process.name),
                    now,
                )
                .fix(pin(&cpu.to_string()), pin(now));
        }
        Ok(outcome)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn threads_that_wander() {
        let thread = |cpus: &str| {
            let process = Process {
                pid: 9,
                name: "napi/eth0-8193".into(),
                files: None,
                limit: None,
                cpus: Some(cpus.into()),
                arguments: None,
            };
            let machine = Machine::healthy().put("/sys/class/net/eth0/threaded", "1");
            machine.json(crate::gather::PROCESSES, [process])
        };
        assert_eq!(thread("0-3").undos(&RULE), ["taskset -pc 0-3 9"]);
        table(&RULE, [(thread("0-3"), Severity::Info), (thread("2"), Severity::Ok)]);
    }
}
