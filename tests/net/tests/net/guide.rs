//! docs/first-service.md: its part for a laptop, command by command as it is written there.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, binary, needs_root};
use ringway_testnet::tools;

const GUIDE: &str = include_str!("../../../../docs/first-service.md");

/// Runs a script with processes, mounts and a network of its own: whatever becomes of it, nothing
/// stays, and names that are taken outside are free inside.
const SANDBOX: &str = "mount -t tmpfs none /run; mkdir /run/netns; mount -t bpf none /sys/fs/bpf; \
                       exec sh -euc \"$0\"";

/// The shell blocks, in their order.
fn script() -> String {
    let blocks = GUIDE.split("\n```sh\n").skip(1);
    blocks
        .filter_map(|rest| rest.split_once("\n```\n"))
        .map(|(block, _)| block.to_owned() + "\n")
        .collect()
}

/// PATH with the binary under test before all else.
fn path() -> Result<std::ffi::OsString> {
    let directory = binary()?.parent().context("the binary is in no directory")?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    Ok(env::join_paths([directory].into_iter().chain(env::split_paths(&path)).chain(sbin))?)
}

/// Runs it there, for three minutes at most.
pub fn in_sandbox(script: &str) -> Result<Ran> {
    let output = Command::new("timeout")
        .args(["-k", "2", "180", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "sh", "-ec", SANDBOX, script])
        .env("PATH", path()?)
        .output()?;
    Ok(output.into())
}

#[test]
fn the_laptop_part_works_as_written() -> Result<()> {
    needs_root!();
    for tool in ["ethtool", "python3", "curl", "ip"] {
        if let Err(e) = tools::find(tool) {
            eprintln!("SKIPPED: guide::the_laptop_part_works_as_written: {e}");
            return Ok(());
        }
    }
    let ran = in_sandbox(&script())?;
    ensure!(ran.code == 0, "exit code {}\n{}", ran.code, ran.said());
    judge(&ran.out).with_context(|| ran.said())
}

/// Whether it showed what the guide says it shows.
fn judge(out: &str) -> Result<()> {
    let answers: Vec<&str> = out.lines().filter(|line| line.starts_with("backend ")).collect();
    let (before, after) = answers.split_at_checked(20).context("too few answers")?;
    for backend in ["backend 1", "backend 2"] {
        ensure!(before.contains(&backend), "{backend} was not used: {before:?}");
    }
    ensure!(after.len() == 60, "{} answers after the kill", after.len());
    ensure!(after.iter().all(|answer| *answer == "backend 2"), "a dead backend: {after:?}");
    for said in [
        "node first: healthy",
        "connection refused",
        "daemon not running since",
        "sum of verdicts",
        "no-neighbour (drop)",
        "verified: ",
    ] {
        ensure!(out.contains(said), "nothing says {said:?}");
    }
    Ok(())
}
