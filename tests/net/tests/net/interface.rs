//! What users and their scripts rely on: whatever the previous release has, this one still has.
//! Commands and options, reasons, checks, keys of JSON documents, metrics, and pins.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Gateway, METRICS, Ran, SERVICE_V4, Site, WEB, binary, get, http, lab_binary, needs_root,
    not_tested, previous,
};
use serde_json::Value;

/// Documents that a node with a nat and a dsr service answers.
const DOCUMENTS: [&[&str]; 8] = [
    &["status", "--ledger"],
    &["status", "--memory"],
    &["flows"],
    &["explain", "-i", "eth0", "tcp 192.0.2.7:4000 > 10.1.0.80:80"],
    &["overrides"],
    &["reload", "--dry-run"],
    &["check", "--upgrade"],
    &["top", "--once"],
];
/// Keys that are data: the states of flows that are there.
const DATA: &str = "current_flows_by_state";

/// One line for each thing.
type Lines = BTreeSet<String>;

/// Commands that are another program's since the previous release: `ringway-lab`.
const MOVED: [&str; 4] = ["demo", "bench", "gen", "size"];

/// By the script that completes them. What `ringway-lab` has goes by the names that it had.
fn commands(script: &str, found: &mut Lines) {
    let mut command = String::new();
    for line in script.lines().map(str::trim) {
        let arm = line.strip_suffix(')').filter(|name| !name.contains(','));
        if let Some(name) = arm.filter(|name| name.starts_with("ringway")) {
            command = ["ringway__subcmd__lab", "ringway__lab"]
                .iter()
                .fold(name.to_owned(), |name, lab| name.replacen(lab, "ringway", 1));
        } else if let Some(options) = line.strip_prefix("opts=\"") {
            let each = options.trim_end_matches('"').split(' ').filter(|each| !each.is_empty());
            found.extend(each.map(|option| format!("command {command} {option}")));
        }
    }
}

/// Whether this is one of the commands that moved, or something of it.
fn moved(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let ["command", command, option] = words[..] else { return false };
    MOVED.contains(&option) || command.split("__subcmd__").any(|name| MOVED.contains(&name))
}

fn names(gateway: &Gateway, found: &mut Lines) -> Result<()> {
    let reasons = gateway.plain(&["reasons", "-o", "json"])?.json()?;
    for reason in reasons["reasons"].as_array().context("no reasons")? {
        found.insert(format!("reason {} {}", reason["name"], reason["verdicts"]));
    }
    let checks = gateway.plain(&["doctor", "--explain", "all", "-o", "json"])?.json()?;
    for check in checks["checks"].as_array().context("no checks")? {
        found.insert(format!("check {} {}", check["number"], check["check"]));
    }
    Ok(())
}

/// The keys of a document, each with the way to it.
fn keys(way: &str, value: &Value, found: &mut Lines) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|_| !way.ends_with(DATA)) {
                let way = format!("{way}.{key}");
                keys(&way, value, found);
                found.insert(way);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|each| keys(way, each, found)),
        _ => {}
    }
}

fn documents(gateway: &Gateway, found: &mut Lines) -> Result<()> {
    for command in DOCUMENTS {
        let ran = gateway.ringway(&[command, &["-o", "json"]].concat())?;
        // Of `top` there is a line for each look.
        let first = serde_json::Deserializer::from_str(&ran.out).into_iter::<Value>().next();
        let document = first.with_context(|| format!("{command:?}: {}", ran.said()))??;
        let schema = document["schema"].as_str().with_context(|| format!("{document}"))?;
        keys(schema, &document, found);
    }
    Ok(())
}

fn metrics(gateway: &Gateway, found: &mut Lines) -> Result<()> {
    let answer = http(gateway.namespace(), METRICS, "/metrics")?;
    for line in answer.lines() {
        if line.starts_with("# TYPE ") {
            found.insert(line.to_owned());
        } else if let Some((name, labels)) = line.split_once('{') {
            let labels = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0));
            found.extend(labels.map(|label| format!("label {label} of {name}")));
        }
    }
    Ok(())
}

/// Those of interfaces have their indexes in their names.
fn pins(below: &Path, place: &str, found: &mut Lines) -> Result<()> {
    for entry in fs::read_dir(below)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().replace(|c: char| c.is_ascii_digit(), "N");
        let place = format!("{place}/{name}");
        if entry.file_type()?.is_dir() {
            pins(&entry.path(), &place, found)?;
        }
        found.insert(place);
    }
    Ok(())
}

/// All of it, of one version.
fn interface(version: &Path) -> Result<Lines> {
    let site = Site::new(2)?;
    let body = format!("[metrics]\nlisten = \"{METRICS}\"\n\n")
        + &site.service("web", WEB, "check = { type = \"tcp\", interval = \"200ms\", fall = 5 }\n")
        + &site.service("direct", (SERVICE_V4, 81).into(), "forward = \"dsr-l2\"\n");
    let text = site.configuration(&body);
    let mut gateway = Gateway::launch_binary(version.into(), &site.net.gateway, &text, |_| ())?;
    gateway.wait_serving()?;
    gateway.wait_status("checks and rates", |status| {
        let service = &status["services"][0];
        let rates =
            [&service["rates"], &service["backends"][0]["rates"], &service["backends"][1]["rates"]];
        service["backends"][0]["health"] == "up" && rates.iter().all(|rates| rates.is_object())
    })?;
    get(site.client(), WEB)?;

    let mut found = Lines::new();
    commands(&gateway.plain(&["completions", "bash"])?.out, &mut found);
    names(&gateway, &mut found)?;
    documents(&gateway, &mut found)?;
    metrics(&gateway, &mut found)?;
    pins(&gateway.pins(), "pin NODE", &mut found)?;
    Ok(found)
}

#[test]
fn what_the_previous_release_has_is_still_there() -> Result<()> {
    needs_root!();
    let Some(old) = previous()? else {
        not_tested("what the previous release has: there is no release yet");
        return Ok(());
    };
    let (before, now) = (interface(&old)?, interface(&binary()?)?);
    ensure!(before.len() > 800, "only {} things: {before:?}", before.len());
    let mut of_the_lab = Lines::new();
    let script = Command::new(lab_binary()?).args(["completions", "bash"]).output()?.stdout;
    commands(&String::from_utf8(script)?, &mut of_the_lab);
    let is_in_the_lab = |line: &str| moved(line) && of_the_lab.contains(line);
    let gone: Vec<&String> = before.difference(&now).filter(|line| !is_in_the_lab(line)).collect();
    ensure!(gone.is_empty(), "gone since {}: {gone:#?}", old.display());
    Ok(())
}

/// Who types a command that moved is told the new one, with what else was typed.
#[test]
fn commands_that_moved_say_where_they_are() -> Result<()> {
    for command in MOVED {
        for words in [vec![], vec!["--help"], vec!["lb", "--only", "a b"]] {
            let ran: Ran = Command::new(binary()?).arg(command).args(&words).output()?.into();
            let typed = words.join(" ").replace("a b", "'a b'");
            let told = format!("to do: ringway-lab {command} {typed}");
            ensure!(ran.code == 2 && ran.out.is_empty(), "{ran:?}");
            ensure!(ran.err.contains(told.trim_end()), "{ran:?}");
        }
    }
    let help: Ran = Command::new(binary()?).arg("--help").output()?.into();
    let listed = |name: &str| help.out.lines().any(|line| line.trim().starts_with(name));
    ensure!(listed("status ") && !MOVED.iter().any(|name| listed(&format!("{name} "))), "{help:?}");
    Ok(())
}

/// The lab runs the `ringway` that it is told to, beside it or in PATH, and none of another
/// version.
#[test]
fn the_lab_finds_ringway_and_refuses_another_version() -> Result<()> {
    needs_root!();
    let place = tempfile::tempdir()?;
    let lab = place.path().join("ringway-lab");
    fs::copy(lab_binary()?, &lab)?;
    let bin = place.path().join("bin");
    fs::create_dir(&bin)?;
    let demo = |more: &[&str]| -> Result<Ran> {
        let mut command = Command::new(&lab);
        command.args(["demo", "--only", "curl"]).args(more).env("PATH", &bin);
        Ok(command.output()?.into())
    };
    demo(&[])?.complains(2, &["no program `ringway` beside"])?;
    let other = bin.join("ringway");
    fs::write(&other, "#!/bin/sh\necho ringway 0.0.1\n")?;
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755))?;
    let refused = demo(&[])?;
    ensure!(refused.code == 2 && refused.err.contains("is version 0.0.1, and this"), "{refused:?}");
    ensure!(refused.err.contains("--ringway PATH"), "{refused:?}");
    // The right one it takes, and goes on: to the first tool that this PATH lacks.
    let right = demo(&["--ringway", binary()?.to_str().context("no UTF-8")?])?;
    ensure!(right.code != 2 && !right.err.contains("version"), "{right:?}");
    Ok(())
}

#[test]
fn a_script_into_a_closed_pipe() -> Result<()> {
    for program in [binary()?, lab_binary()?] {
        for shell in ["bash", "zsh", "fish"] {
            let line = format!("{} completions {shell} | true", program.display());
            let ran = Command::new("sh").args(["-c", &line]).output()?;
            ensure!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
        }
    }
    Ok(())
}
