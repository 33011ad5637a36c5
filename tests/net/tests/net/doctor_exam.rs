//! `ringway doctor --exam`: the faults that it plants are found, and nothing is left of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use ringway_net_tests::{Ran, SOON, binary, needs_root};
use ringway_testnet::wait_until;
use serde_json::Value;

use crate::lab_killed::{changed, settings};

/// Faults that no other test makes, and the checks that find them (docs/doctor.md).
const MUST_BE_FOUND: [(&str, &str); 8] = [
    ("no-arp", "sysctl-bounds"),
    ("dead-next-hop", "next-hop"),
    ("no-route", "no-route"),
    ("accept-queue", "listen-overflows"),
    ("unread-datagrams", "udp-buffers"),
    ("link-flaps", "link-flaps"),
    ("filter-drops", "filter-drops"),
    ("lost-segments", "retransmissions"),
];

#[test]
fn faults_are_found() -> Result<()> {
    needs_root!();
    let before = settings();
    let ran = Ran::from(Command::new(binary()?).args(["doctor", "--exam", "-o", "json"]).output()?);
    let document = ran.json()?;
    ensure!(document["false_findings"] == serde_json::json!([]), "{document:#}");
    let rows = document["faults"].as_array().cloned().unwrap_or_default();
    let missed: Vec<&Value> = rows.iter().filter(|row| row["found"] != true).collect();
    ensure!(rows.len() == 44 && document["found"] == 44 - missed.len(), "{document:#}");
    ensure!(ran.code == 0 && missed.len() <= 4, "code {}, missed {missed:#?}", ran.code);
    for (fault, check) in MUST_BE_FOUND {
        let found =
            |row: &Value| row["fault"] == fault && row["check"] == check && row["found"] == true;
        ensure!(rows.iter().any(found), "{fault}: {missed:#?}");
    }
    let changed = changed(&before);
    ensure!(changed.is_empty(), "{changed:?}");
    Ok(())
}

/// Its namespaces have names in a /run of its own.
#[test]
fn nothing_is_left_of_one_that_was_killed() -> Result<()> {
    needs_root!();
    let mut command = Command::new(binary()?);
    command.args(["doctor", "--exam"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut exam = command.spawn()?;
    let own = |place: String| {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        let number = format!("-{}-", exam.id());
        entries.filter(move |entry| entry.file_name().to_string_lossy().contains(&number))
    };
    // They stay open: another namespace may get the number of one that is gone.
    let inside = || -> Vec<File> {
        let entries = own(format!("/proc/{}/root/run/netns", exam.id()));
        entries.filter_map(|entry| File::open(entry.path()).ok()).collect()
    };
    let planted = wait_until("a patient and its peer", SOON, || inside().len() >= 2);
    let (open, named) = (inside(), own("/run/netns".into()).count());
    let numbers = open.iter().map(|file| Ok(file.metadata()?.ino()));
    let namespaces = numbers.collect::<Result<BTreeSet<u64>>>();
    exam.kill()?;
    exam.wait()?;
    planted?;
    let namespaces = namespaces?;
    ensure!(named == 0, "the machine's own /run/netns has {named} of its namespaces");
    let gone = || used_namespaces().is_disjoint(&namespaces);
    wait_until("its namespaces to be empty", SOON, gone)?;
    Ok(())
}

/// Network namespaces of all threads.
fn used_namespaces() -> BTreeSet<u64> {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let threads = below("/proc".into()).flat_map(|process| below(process.path().join("task")));
    threads
        .filter_map(|thread| Some(fs::metadata(thread.path().join("ns/net")).ok()?.ino()))
        .collect()
}
