//! `ringway doctor` where things are missing: what goes while it looks, what may not be read, what
//! is not mounted.

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, binary, needs_root};
use serde_json::Value;

use crate::doctor::{Patient, symptoms};
use crate::doctor_load::meanwhile;

/// How many findings came out so.
fn count(document: &Value, severity: &str) -> u64 {
    document[severity].as_u64().unwrap_or_default()
}

#[test]
fn interfaces_that_come_and_go() -> Result<()> {
    needs_root!();
    let patient = Patient::new("comes")?;
    let come_and_go = || {
        let _ =
            patient.ns.ip("link add va type veth peer name vb\nlink set va up\nlink set vb up\n");
        let _ = patient.ns.ip("link del va\n");
    };
    // In whichever of the two looks they are.
    for _ in 0..5 {
        let said = meanwhile(come_and_go, || patient.doctor(&["--interval", "0.1", "--all"]))?;
        ensure!(count(&said, "ok") > 30, "{said:#}");
    }
    Ok(())
}

/// Counters that the first look lacks have not stood still: nobody knows. Each kind is read at a
/// moment of its own.
#[test]
fn an_interface_that_came_meanwhile() -> Result<()> {
    needs_root!();
    let patient = Patient::new("came")?;
    let file = patient.ns.directory().join("host.tar").to_string_lossy().into_owned();
    let command = ["doctor", "--collect", &file, "--interval", "1", "--overwrite"];
    meanwhile(
        || {
            // Once it is there this fails, and nothing changes any more.
            let _ = patient
                .ns
                .ip("link add va type veth peer name vb\nlink set va up\nlink set vb up\n");
        },
        || patient.inside(binary()?, &command),
    )?
    .done()?;
    let said = patient.doctor(&["--from", &file, "--only", "dropped,link-flaps"])?;
    let read = |path: &str| -> Result<Ran> {
        patient.inside("tar", &["--extract", "--to-stdout", "--file", &file, path])
    };
    let stats = read("before/netlink/stats.json")?;
    ensure!(stats.code == 0, "{stats:?}");
    let counted = [
        ("dropped", stats.out.contains("\"va\"")),
        ("link-flaps", read("before/sys/class/net/va/queues/tx-0/tx_timeout")?.code == 0),
    ];
    let findings = said["findings"].as_array().context("no findings")?;
    for (check, in_first_look) in counted {
        let mut about = findings.iter().filter(|one| one["subject"] == "va");
        let found = about.find(|one| one["check"] == check).context("nothing of va")?;
        ensure!((found["severity"] != "unknown") == in_first_look, "{check}: {said:#}");
    }
    Ok(())
}

#[test]
fn without_settings() -> Result<()> {
    needs_root!();
    let patient = Patient::new("blind")?;
    let binary = binary()?.display().to_string();
    let diagnose = |hide: &str, only: &str| -> Result<Value> {
        let script = format!("{hide}; exec {binary} doctor --interval 0.1 --only {only} -o json");
        let ran = patient.inside("sh", &["-ec", &script])?;
        ensure!(ran.code == 0, "{ran:?}");
        ran.json()
    };
    let only = "tcp-syncookies,slow-start-after-idle,far-below-default,tcp-window,local-ports";
    ensure!(count(&diagnose("true", only)?, "ok") > 4);
    let said = diagnose("mount -t tmpfs none /proc/sys", only)?;
    ensure!(count(&said, "ok") == 0 && symptoms(&said).is_empty(), "{said:#}");
    let only = "listen-overflows,syn-queue,retransmissions,softnet-backlog,softirq-load";
    ensure!(count(&diagnose("true", only)?, "ok") > 4);
    // Nothing of /proc at all: no counters either. The program needs none to run.
    let said = diagnose("mount -t tmpfs none /proc", only)?;
    ensure!(count(&said, "ok") == 0 && symptoms(&said).is_empty(), "{said:#}");
    Ok(())
}

#[test]
fn without_permission() -> Result<()> {
    needs_root!();
    let patient = Patient::new("nobody")?;
    let binary = patient.ns.directory().join("ringway");
    std::fs::copy(ringway_net_tests::binary()?, &binary)?;
    let file = binary.to_string_lossy();
    let all = patient.doctor(&["--interval", "0.1"])?;
    let open = format!("chmod 755 $(dirname {file}) {file}");
    patient.sh(&open)?;
    let words = ["--reuid", "65534", "--regid", "65534", "--clear-groups", &file, "doctor"];
    let ran =
        patient.inside("setpriv", &[&words[..], &["--interval", "0.1", "-o", "json"]].concat())?;
    if ran.err.contains("ermission denied") {
        ringway_net_tests::not_tested(
            "doctor without permission: nobody may not run the program there",
        );
        return Ok(());
    }
    ensure!(matches!(ran.code, 0 | 3), "{ran:?}");
    let said = ran.json()?;
    ensure!(count(&said, "unknown") > count(&all, "unknown"), "{said:#}");
    let of = |name: &str| -> Result<Value> {
        let found = said["findings"].as_array().context("no findings")?.iter();
        found.clone().find(|one| one["check"] == name).cloned().context("no such check")
    };
    // What root alone may see.
    for check in ["open-files", "long-chains"] {
        ensure!(of(check)?["severity"] == "unknown", "{:#}", of(check)?);
    }
    Ok(())
}
