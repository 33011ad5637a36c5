//! Open files: of the machine, and of its processes.

use crate::gather::Process;
use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Rule, Severity};

/// A socket is an open file.
pub const RULE: Rule = Rule {
    number: 60,
    name: "open-files",
    rule: "the machine has fewer than 90 % of fs.file-max open, a process fewer than 95 % of its limit",
    source: "netdata, alarms system_file_descriptors_utilization and apps_group_file_descriptors_utilization",
    why: "At the limit accept(2) and socket(2) fail, and connections are refused.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let path = "/proc/sys/fs/file-nr";
    let [open, _, most] = facts.numbers(path)?;
    let mut found = vec![Outcome::ok(MACHINE, format!("{open} of {most} open files"))];
    if open as f64 > most as f64 * 0.9 {
        let seen =
            Outcome::crit(MACHINE, format!("{open} of {most} files are open")).saw(path, open);
        let set = |to: i64| Fix::sysctl("fs/file-max", to);
        found[0] = seen.fix(set(most * 2), set(most));
    }
    let processes: Vec<Process> = facts.json(crate::gather::PROCESSES)?;
    for process in processes {
        let Process { pid, name, files: Some(files), limit: Some(limit), .. } = process else {
            continue;
        };
        if files as f64 <= limit as f64 * 0.95 {
            continue;
        }
        let said = format!("{files} of {limit} files are open");
        let id = pid.to_string();
        let set = |to| Fix::command(["prlimit", "--pid", &id, &format!("--nofile={to}:")]);
        found.push(
            Outcome::new(Severity::Crit, format!("process {name} ({pid})"), said)
                .saw(format!("/proc/{pid}/fd, entries"), files)
                .saw(format!("/proc/{pid}/limits, Max open files"), limit)
                .fix(set(limit * 2), set(limit))
                .advice("for good: LimitNOFILE= in its unit, up to fs.nr_open"),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn machine_and_process() {
        let process = |files| {
            let one = Process {
                pid: 7,
                name: "web".into(),
                files: Some(files),
                limit: Some(1000),
                cpus: None,
                arguments: None,
            };
            Machine::healthy().json(crate::gather::PROCESSES, [one])
        };
        assert_eq!(process(951).undos(&RULE), ["prlimit --pid 7 --nofile=1000:"]);
        let machine = Machine::healthy().put("/proc/sys/fs/file-nr", "901\t0\t1000");
        table(
            &RULE,
            [
                (process(950), Severity::Ok),
                (process(951), Severity::Crit),
                (machine, Severity::Crit),
            ],
        );
    }
}
