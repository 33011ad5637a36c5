//! docs/first-service.md: its part for a laptop, command by command as it is written there.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, binary, needs_root};
use ringway_testnet::tools;

const GUIDE: &str = include_str!("../../../../docs/first-service.md");

/// Runs the script on its standard input with its own processes, mounts and network: whatever becomes of it, nothing
/// stays, and names that are taken outside are free inside.
const SANDBOX: &str = "mount -t tmpfs none /run; mkdir /run/netns; mount -t bpf none /sys/fs/bpf; exec sh -eu";

/// The shell blocks, in their order.
fn script() -> String {
    let blocks = GUIDE.split("\n```sh\n").skip(1);
    blocks.filter_map(|rest| rest.split_once("\n```\n")).map(|(block, _)| block.to_owned() + "\n").collect()
}

/// PATH with the binary under test before all else.
fn path() -> Result<std::ffi::OsString> {
    let directory = binary()?.parent().context("the binary is in no directory")?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    Ok(env::join_paths([directory].into_iter().chain(env::split_paths(&path)).chain(sbin))?)
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
    let script = env::temp_dir().join(format!("ringway-guide-{}.sh", std::process::id()));
    std::fs::write(&script, script_with_marks())?;
    let output = Command::new("timeout")
        .args(["-k", "2", "60", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "sh", "-ec"])
        .arg(format!("{SANDBOX} {}", script.display()))
        .env("PATH", path()?)
        .output();
    std::fs::remove_file(&script)?;
    let ran = Ran::from(output?);
    ensure!(ran.code == 0, "{}", ran.said());
    judge(&ran.out).with_context(|| ran.said())
}
