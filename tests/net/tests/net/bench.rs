//! `ringway-lab bench packet`, `engine`, `capture` and `shield`, as short as they can be: what they say, not
//! how fast anything is.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, lab_binary, needs_root};

fn bench_packet(arguments: &[&str]) -> Result<Ran> {
    Ok(Command::new(lab_binary()?).args(["bench", "packet"]).args(arguments).output()?.into())
}

#[test]
fn packets_cost_something() -> Result<()> {
    needs_root!();
    let arguments = ["--only", "pass,nat", "--flows", "1", "--rounds", "1", "-o", "json"];
    let ran = bench_packet(&arguments)?;
    let report = ran.json()?;
    ensure!(ran.code == 0, "{ran:?}");
    ensure!(report["schema"] == "ringway.bench.packet/1", "{report}");
    ensure!(report["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0), "{report}");
    // Beside others, the least that can be done may seem to cost nothing.
    let plausible = |ns: &serde_json::Value| ns.as_u64().is_some_and(|ns| ns < 100_000);
    ensure!(plausible(&report["wrapper_ns"]) && report["wrapper_ns"] != 0, "{report}");
    let paths = report["paths"].as_array().context("no paths")?;
    let rows: Vec<_> = paths.iter().map(|p| (p["name"].as_str(), p["ip"].as_u64())).collect();
    let expected = [("pass", 4), ("pass", 6), ("nat", 4), ("nat", 6)];
    ensure!(rows == expected.map(|(name, ip)| (Some(name), Some(ip))), "{report}");
    for row in paths {
        ensure!(row["flows"] == 1 && plausible(&row["net_ns"]), "{row}");
    }
    ensure!(ran.err.contains("round 1/1"), "no progress: {ran:?}");
    Ok(())
}

#[test]
fn what_is_not_measured_is_said() -> Result<()> {
    needs_root!();
    let ran = bench_packet(&["--only", "nat", "--ip", "4", "--rounds", "1"])?;
    ensure!(ran.code == 0, "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("skipped: ")).collect();
    ensure!(lines.len() == 1 && lines[0].contains("--flows 10000000"), "{ran:?}");
    ensure!(ran.err.contains("SKIPPED"), "{ran:?}");
    bench_packet(&["--only", "natt"])?.complains(2, &["new-flow"])?;
    Ok(())
}

#[test]
fn the_engine_is_measured() -> Result<()> {
    needs_root!();
    let engine = |arguments: &[&str]| -> Result<Ran> {
        let measure = ["bench", "engine", "--rounds", "1", "--seconds", "1"];
        Ok(Command::new(lab_binary()?).args(measure).args(arguments).output()?.into())
    };
    let report = engine(&["--only", "udp-echo,wire-parse", "-o", "json"])?;
    let report = report.complains(0, &["round 1/1  udp-echo"])?.json()?;
    ensure!(report["schema"] == "ringway.bench.engine/1", "{report}");
    let cases = report["cases"].as_array().context("no cases")?;
    let names: Vec<_> = cases.iter().map(|case| case["name"].as_str()).collect();
    ensure!(names == [Some("udp-echo"), Some("wire-parse")], "{report}");
    let (echo, parse) = (&cases[0], &cases[1]);
    for figure in ["ringway_pps", "peer_pps"] {
        ensure!(echo[figure].as_u64().is_some_and(|n| n > 100), "{figure}: {report}");
    }
    for figure in ["ratio", "ringway_user_ns_per_packet", "peer_user_ns_per_packet", "loss_ppm"] {
        ensure!(echo[figure].is_f64(), "{figure}: {report}");
    }
    ensure!(echo["p99_us"].is_u64() && echo["peer_p99_us"].is_u64(), "{report}");
    ensure!(parse["ringway_pps"].as_u64().is_some_and(|n| n > 100), "{report}");
    ensure!(parse["peer"].is_null() && parse["peer_pps"].is_null(), "{report}");
    engine(&["--only", "udpecho"])?.complains(2, &["udp-echo"])?;
    Ok(())
}

#[test]
fn captures_are_measured() -> Result<()> {
    needs_root!();
    let arguments = ["bench", "capture", "--rounds", "1", "--seconds", "1", "-o", "json"];
    let ran: Ran = Command::new(lab_binary()?).args(arguments).output()?.into();
    ensure!(ran.code == 0, "{ran:?}");
    let report = ran.json()?;
    ensure!(report["schema"] == "ringway.bench.capture/1", "{report}");
    for figure in ["pps_off", "pps_on", "captured"] {
        ensure!(report[figure].as_u64().is_some_and(|n| n > 100), "{figure}: {report}");
    }
    for figure in ["lost", "ns_off", "ns_on"] {
        ensure!(report[figure].is_u64(), "{figure}: {report}");
    }
    ensure!(ran.err.contains("round 1/1  off "), "no progress: {ran:?}");
    Ok(())
}

fn bench_shield(arguments: &[&str]) -> Result<Ran> {
    let measure = ["bench", "shield", "-o", "json"];
    Ok(Command::new(lab_binary()?).args(measure).args(arguments).output()?.into())
}

#[test]
fn the_shield_is_measured() -> Result<()> {
    needs_root!();
    let few = ["--rounds", "1", "--prefixes", "1000", "--packets", "20000"];
    let report = bench_shield(&[&["--only", "swap"][..], &few].concat())?.done()?.json()?;
    ensure!(report["schema"] == "ringway.bench.shield/1", "{report}");
    let swap = &report["swap"];
    ensure!(swap["packets"].as_u64().is_some_and(|n| n > 100), "{report}");
    ensure!(swap["lost"] == 0 && swap["longest_gap_ns"] != 0, "{report}");
    bench_shield(&["--prefixes", "1000001"])?.complains(2, &["1..=1000000"])?;
    Ok(())
}

mod long {
    use super::*;

    #[test]
    fn costs_and_mixes_are_measured() -> Result<()> {
        needs_root!();
        let few = ["--rounds", "1", "--prefixes", "1000", "--packets", "20000", "--budget", "6"];
        let ran = bench_shield(&[&["--only", "costs,adversary"][..], &few].concat())?;
        ensure!(ran.code == 0, "{ran:?}");
        let report = ran.json()?;
        let costs = report["costs"].as_array().context("no costs")?;
        let of = |fate: &str, defence: &str| {
            costs.iter().filter(|cost| cost["fate"] == fate && cost["defence"] == defence).count()
        };
        ensure!((of("drop", "ringway"), of("drop", "kernel-trie")) == (5, 3), "{report}");
        ensure!(of("calm", "ringway") == 8, "{report}");
        let few_ns = |cost: &serde_json::Value| cost["ns"].as_f64().is_some_and(|ns| ns < 1e5);
        ensure!(costs.iter().all(few_ns), "{report}");
        ensure!(report["goals"].as_array().is_some_and(|goals| goals.len() > 10), "{report}");
        ensure!(report["mixes_evaluated"] == 6, "{report}");
        let worst = report["adversary"].as_array().context("no adversary")?;
        ensure!(!worst.is_empty() && worst.len() <= 3, "{report}");
        for mix in worst {
            ensure!(mix["known_sent"].as_u64().is_some_and(|n| n > 10_000), "{mix}");
            ensure!(mix["known_lost"] == 0, "{mix}");
            ensure!(mix["cost_ns_over_bare_drop"].as_f64().is_some_and(|ns| ns < 1e5), "{mix}");
        }
        ensure!(ran.err.contains("round 1/1  drop IPv4"), "no progress: {ran:?}");
        Ok(())
    }

    #[test]
    fn attacks_are_measured() -> Result<()> {
        needs_root!();
        let short = ["--only", "scenarios", "--defence", "bare-drop,ringway", "--seconds", "1"];
        let report = bench_shield(&short)?.done()?.json()?;
        let rows = report["scenarios"].as_array().context("no scenarios")?;
        let ours: Vec<_> = rows.iter().filter(|row| row["defence"] == "ringway").collect();
        ensure!(ours.len() == 5, "{report}");
        for row in ours {
            ensure!(row["good_sent"].as_u64().is_some_and(|n| n > 100), "{row}");
            let attacked = row["attack"] != "quiet";
            ensure!((row["attack_pps"] != 0) == attacked, "{row}");
            ensure!(row["cost_ns_over_bare_drop"].is_i64() == attacked, "{row}");
            // What lists and rules drop never comes to limits. A slow machine may send too little.
            let armed = row["armed_after_ms"].is_u64();
            let comes = row["attack"] == "ack-flood";
            let is_much = row["attack_pps"].as_u64() > Some(200_000);
            ensure!(if comes { armed || !is_much } else { !armed }, "{row}");
        }
        let bare: Vec<_> = rows.iter().filter(|row| row["defence"] == "bare-drop").collect();
        ensure!(
            bare.len() == 5 && bare.iter().all(|row| row["armed_after_ms"].is_null()),
            "{report}"
        );
        Ok(())
    }
}
