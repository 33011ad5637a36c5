//! `ringway-lab demo`, as a user meets it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, SOON, lab_binary, needs_root};
use ringway_testnet::wait_for;

fn demo(arguments: &[&str]) -> Result<Ran> {
    Ok(Command::new(lab_binary()?).arg("demo").args(arguments).output()?.into())
}

/// Namespaces, directories and pins whose names carry this process's id.
fn left_by(pid: u32) -> Vec<String> {
    let ours = format!("-{pid}-");
    ["/run/netns", "/run/ringway-testnet", "/sys/fs/bpf/ringway"]
        .iter()
        .filter_map(|place| Some((place, fs::read_dir(place).ok()?)))
        .flat_map(|(place, entries)| entries.flatten().map(move |e| (place, e.file_name())))
        .map(|(place, name)| format!("{place}/{}", name.to_string_lossy()))
        .filter(|path| path.contains(&ours))
        .collect()
}

/// A demo that has just said something with `word`.
fn demo_at(word: &str, arguments: &[&str]) -> Result<Child> {
    let mut command = Command::new(lab_binary()?);
    command.arg("demo").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let said = BufReader::new(child.stderr.take().context("no standard error")?);
    for line in said.lines() {
        if line?.contains(word) {
            return Ok(child);
        }
    }
    let status = child.wait()?;
    anyhow::bail!("the demo ended with {status} and never said {word:?}")
}

fn signal(child: &Child, name: &str) -> Result<()> {
    // The shell's own: there is no kill(1) on a small system.
    let status =
        Command::new("sh").args(["-c", &format!("kill {name} {}", child.id())]).status()?;
    ensure!(status.success(), "kill {name}: {status}");
    Ok(())
}

/// Held by tests whose demo `--clean` of another test would take down.
fn alone() -> Result<fs::File> {
    let lock = fs::File::open("/run")?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(lock)
}

#[test]
fn interrupted_it_leaves_nothing() -> Result<()> {
    needs_root!();
    let mut child = demo_at("wrk", &[])?;
    let pid = child.id();
    ensure!(!left_by(pid).is_empty(), "nothing was built");
    signal(&child, "-INT")?;
    let status = child.wait()?;
    ensure!(status.code() == Some(130), "{status}");
    ensure!(left_by(pid).is_empty(), "{:?}", left_by(pid));
    Ok(())
}

#[test]
fn killed_it_leaves_nothing() -> Result<()> {
    needs_root!();
    let mut child = demo_at("kill-backend", &[])?;
    let pid = child.id();
    signal(&child, "-KILL")?;
    child.wait()?;
    wait_for(format!("the end of what demo {pid} built"), SOON, || match left_by(pid) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join(", ")),
    })?;
    Ok(())
}

#[test]
fn kept_it_stands_until_it_is_cleaned() -> Result<()> {
    needs_root!();
    let _alone = alone()?;
    let ran = demo(&["--keep", "--only", "curl"])?;
    ensure!(ran.code == 0, "{ran:?}");
    let commands: Vec<&str> = ran
        .err
        .lines()
        .skip_while(|l| !l.starts_with("# "))
        .filter(|l| !l.starts_with("# "))
        .collect();
    ensure!(commands.len() == 5, "{ran:?}");
    let (last, others) = commands.split_last().context("no commands")?;
    for line in others {
        let output = Command::new("sh").args(["-c", line]).output()?;
        ensure!(output.status.success(), "{line}: {output:?}");
    }
    let output = Command::new("sh").args(["-c", last]).output()?;
    ensure!(output.status.success(), "{last}: {output:?}");
    let removed = String::from_utf8(output.stdout)?;
    ensure!(removed.contains("rwkeep-client-"), "{removed}");
    for path in removed.lines().filter_map(|line| line.strip_prefix("removed ")) {
        ensure!(!Path::new("/run/netns").join(path).exists(), "{path} is still there");
    }
    Ok(())
}

#[test]
fn cleaning_leaves_alone_what_still_runs() -> Result<()> {
    needs_root!();
    let _alone = alone()?;
    let mut child = demo_at("wrk, one thread", &["--keep", "--only", "wrk"])?;
    let pid = child.id();
    demo(&["--clean"])?.says(0, &[&format!("left alone: process {pid} ")])?;
    // Its standard error has no reader any more, which does not stop it.
    let status = child.wait()?;
    ensure!(status.success() && !left_by(pid).is_empty(), "{status}: it was taken down");
    let ran = demo(&["--clean"])?;
    ensure!(ran.code == 0 && left_by(pid).is_empty(), "{ran:?}; left: {:?}", left_by(pid));
    Ok(())
}

mod long {
    use super::*;

    #[test]
    fn the_whole_demo_holds() -> Result<()> {
        needs_root!();
        let ran = demo(&["-o", "json"])?;
        let report = ran.json()?;
        ensure!(ran.code == 0 && report["ok"] == true, "{ran:?}");
        ensure!(report["schema"] == "ringway.demo/1", "{report}");
        ensure!(report["failover_ms"].is_u64(), "{report}");
        let phases = report["phases"].as_array().context("no phases")?;
        for name in
            ["curl", "ipv6", "udp", "wrk", "kill-backend", "lose-backend", "kill-9", "restart"]
        {
            let phase = phases.iter().find(|p| p["name"] == name).context(name)?;
            let count = |key: &str| phase[key].as_u64().unwrap_or(u64::MAX);
            ensure!(phase["forward"] == "nat" && count("errors") == 0, "{phase}");
            ensure!(count("requests") >= 3 && count("latency_p99_ns") > 1000, "{phase}");
            ensure!(phase["requests_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{phase}");
            let killed = name.ends_with("-backend");
            ensure!((count("lost_to_killed") > 0) == killed, "{phase}");
        }
        Ok(())
    }
}
