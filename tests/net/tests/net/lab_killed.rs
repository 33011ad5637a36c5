//! The lab changes no setting of the machine and leaves nothing behind: not when it ends, and not
//! when it is killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{lab_binary, needs_root};
use ringway_testnet::wait_until;
use rustix::process::{Pid, Signal, kill_process};

/// Handed down to everything that a bench starts.
const MARK: &str = "RINGWAY_TEST_OF_THE_LAB";
/// Settings that are one for all namespaces are here, too.
const SETTINGS: [&str; 3] = ["/proc/sys/net", "/proc/sys/fs", "/proc/sys/vm"];
/// What is no setting but a count, or is another at each look.
const COUNTS: [&str; 8] = [
    "dentry-state",
    "file-nr",
    "inode-nr",
    "inode-state",
    "aio-nr",
    "nf_conntrack_count",
    "flush",
    "stat_refresh",
];
/// Where what a bench makes has a name, and its process's number in it.
const PLACES: [&str; 5] = [
    "/run/netns",
    "/run/ringway-testnet",
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/bpf/ringway",
];
const SOON: Duration = Duration::from_secs(30);

/// All settings under a directory, by file.
fn settings_in(directory: &Path, all: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let counts = COUNTS.iter().any(|name| path.ends_with(name));
        if path.is_dir() {
            settings_in(&path, all);
        } else if let Some(text) = fs::read_to_string(&path).ok().filter(|_| !counts) {
            all.insert(path, text);
        }
    }
}

pub fn settings() -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    SETTINGS.iter().for_each(|directory| settings_in(Path::new(directory), &mut all));
    all
}

/// Those that are others now. An interface that came or went is somebody else's.
pub fn changed(before: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let now = settings();
    let differs = |(path, was): (&PathBuf, &String)| {
        let is = now.get(path).filter(|is| *is != was)?;
        Some(format!("{}: {} -> {}", path.display(), was.trim(), is.trim()))
    };
    before.iter().filter_map(differs).collect()
}

struct Bench(Child);

impl Bench {
    /// Starts one and waits until it says that it is in the middle of it.
    fn midway(arguments: &[&str], says: &str) -> Result<Self> {
        let mut command = Command::new(lab_binary()?);
        command.arg("bench").args(arguments).env(MARK, mark());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut bench = Self(child);
        let mut lines = BufReader::new(bench.0.stderr.take().context("no stderr")?).lines();
        let found = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(says)));
        found.with_context(|| format!("{arguments:?} ended and never said {says:?}"))??;
        // Read on, or it would be told that nobody listens.
        std::thread::spawn(move || lines.for_each(drop));
        // From one measurement to the next there is nothing for a moment.
        wait_until("something to leave", SOON, || !bench.left().is_empty())?;
        Ok(bench)
    }

    /// What there is of it, by name.
    fn left(&self) -> Vec<String> {
        let number = format!("-{}-", self.0.id());
        let names = PLACES.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten());
        let names = names.flatten().map(|entry| entry.path().display().to_string());
        names.filter(|name| name.contains(&number)).collect()
    }

    fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    fn wait_until_gone(&self) -> Result<()> {
        let gone = || self.left().is_empty() && marked().is_empty();
        wait_until("all to be gone", SOON, gone)
            .with_context(|| format!("left: {:?}, processes {:?}", self.left(), marked()))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Ended already: fine.
        let _ = self.kill();
    }
}

/// Of this test's thread, which has a name of its own.
fn mark() -> String {
    format!("{}-{}", std::process::id(), std::thread::current().name().unwrap_or_default())
}

/// Processes that were started by a bench of this test, and it.
fn marked() -> Vec<Pid> {
    let mark = format!("{MARK}={}", mark());
    let is_marked = |process: &PathBuf| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let marked = processes.filter(is_marked);
    marked.filter_map(|path| Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)).collect()
}

const MILLION: [&str; 5] = ["million", "--connections", "20000", "--rate", "2000"];
const MEMORY: [&str; 5] = ["tcp-memory", "--connections", "500", "--rounds", "50"];

fn killed(arguments: &[&str], says: &str) -> Result<()> {
    let before = settings();
    ensure!(before.len() > 100, "hardly any settings: {before:?}");
    let mut bench = Bench::midway(arguments, says)?;
    bench.kill()?;
    bench.wait_until_gone()?;
    let changed = changed(&before);
    ensure!(changed.is_empty(), "{changed:?}");
    Ok(())
}

#[test]
fn a_million_killed() -> Result<()> {
    needs_root!();
    killed(&MILLION, " connections, slabs ")
}

#[test]
fn memory_killed() -> Result<()> {
    needs_root!();
    killed(&MEMORY, "round 1/50  established ")
}

/// With the process that would have tidied up: the next start does.
#[test]
fn killed_with_its_guard() -> Result<()> {
    needs_root!();
    let before = settings();
    let mut bench = Bench::midway(&MEMORY, "round 1/50  established ")?;
    for process in marked() {
        // Ended already: fine. The guard first or last: both are gone before anybody else looks.
        let _ = kill_process(process, Signal::KILL);
    }
    bench.kill()?;
    let few =
        ["bench", "tcp-memory", "--connections", "100", "--rounds", "1", "--only", "time-wait"];
    let ran = Command::new(lab_binary()?).args(few).output()?;
    ensure!(ran.status.success(), "{ran:?}");
    bench.wait_until_gone()?;
    let changed = changed(&before);
    ensure!(changed.is_empty(), "{changed:?}");
    Ok(())
}
