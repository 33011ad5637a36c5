//! Which processes have nearly as many open files as they may, and which of those run that rules
//! ask for.

use std::fs;
use std::path::Path;

use ringway_host::Host;
use serde::{Deserialize, Serialize};

use crate::Sample;

/// Where the list is in a sample.
pub const PROCESSES: &str = "/tools/processes.json";
/// Programs that rules ask for, by the start of their names.
const ASKED_FOR: [&str; 2] = ["irqbalance", "napi/"];
/// Threads that poll, by the start of their names: DPDK's, VPP's, those of `ringway engine`.
pub const POLLERS: [&str; 4] = ["lcore-worker", "dpdk-worker", "vpp_wk_", "ringway-"];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Its name, 15 bytes of it.
    pub name: String,
    /// Open files; absent where this process may not look.
    pub files: Option<u64>,
    /// The most that it may have open.
    pub limit: Option<u64>,
    /// Processors that it may run on.
    pub cpus: Option<String>,
    /// The arguments of irqbalance. Those of others may hold secrets.
    #[serde(default)]
    pub arguments: Option<String>,
}

/// Adds those worth knowing.
pub fn list(sample: &mut Sample) {
    let entries = match fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(error) => return sample.miss(PROCESSES, error),
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = pids.filter_map(process).collect();
    // Of its own processes everybody may know; of the first one root alone.
    if fs::read_dir("/proc/1/fd").is_err() {
        return sample.miss(PROCESSES, "what others have open root alone may see: run it as root");
    }
    let wanted = |process: &&Process| {
        let full = process.files.zip(process.limit).is_some_and(|(files, limit)| files * 2 > limit);
        full && is_ours(process.pid) || ASKED_FOR.iter().any(|name| process.name.starts_with(name))
    };
    let pollers = all.iter().flat_map(|process| pollers(process.pid)).collect::<Vec<_>>();
    let all: Vec<&Process> = all.iter().filter(wanted).chain(&pollers).collect();
    sample.put_json::<_, String>(PROCESSES, Ok(all));
}

/// Of the whole machine where it is asked about the first network namespace, in which a host runs;
/// else of this namespace alone.
fn is_ours(pid: u32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    let own = fs::read_link("/proc/thread-self/ns/net").ok();
    Host::live().first_network_namespace() || own.is_some() && namespace(&pid.to_string()) == own
}

/// Threads of a process that poll, each as a process of its own.
fn pollers(pid: u32) -> Vec<Process> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let polls = |path: &Path| {
        let name = name(path).unwrap_or_default();
        POLLERS.iter().any(|start| name.starts_with(start))
    };
    let paths = tasks.map(|task| task.path()).filter(|path| polls(path));
    paths.filter_map(|path| about(&path, path.file_name()?.to_str()?.parse().ok()?)).collect()
}

fn name(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path.join("comm")).ok()?.trim().to_owned())
}

fn process(pid: u32) -> Option<Process> {
    about(Path::new(&format!("/proc/{pid}")), pid)
}

fn about(path: &Path, pid: u32) -> Option<Process> {
    let name = name(path)?;
    let status = fs::read_to_string(path.join("status")).unwrap_or_default();
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let limits = fs::read_to_string(path.join("limits")).unwrap_or_default();
    // "Max open files            1024                 524288               files"
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let arguments = || fs::read_to_string(path.join("cmdline")).ok();
    Some(Process {
        pid,
        arguments: arguments().filter(|_| name == "irqbalance").map(|all| all.replace('\0', " ")),
        name,
        files: fs::read_dir(path.join("fd")).ok().map(|files| files.count() as u64),
        limit: limit.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()),
        cpus: cpus.map(|list| list.trim().to_owned()),
    })
}
