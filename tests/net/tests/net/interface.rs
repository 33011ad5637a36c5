//! What users and their scripts rely on: whatever the previous release has, this one still has. Commands and options, reasons,
//! checks, keys of JSON documents, metrics, and pins.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Gateway, SERVICE_V4, Site, WEB, binary, get, http, needs_root, not_tested, previous,
};
use serde_json::Value;

const METRICS: &str = "127.0.0.1:9810";
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

/// By the script that completes them.
fn commands(gateway: &Gateway, found: &mut Lines) -> Result<()> {
    let script = gateway.plain(&["completions", "bash"])?.out;
    let mut command = "";
    for line in script.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(')').filter(|name| name.starts_with("ringway__")) {
            command = name;
        } else if let Some(options) = line.strip_prefix("opts=\"") {
            let each = options.trim_end_matches('"').split(' ');
            found.extend(each.map(|option| format!("command {command} {option}")));
        }
    }
    Ok(())
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
    let answer = http(gateway.namespace(), METRICS.parse()?, "/metrics")?;
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
        + &site.service("web", WEB, "check = { type = \"tcp\", interval = \"200ms\" }\n")
        + &site.service("direct", (SERVICE_V4, 81).into(), "forward = \"dsr-l2\"\n");
    let text = site.configuration(&body);
    let mut gateway = Gateway::launch_binary(version.into(), &site.net.gateway, &text, |_| ())?;
    gateway.wait_serving()?;
    gateway.wait_status("checks", |s| s["services"][0]["backends"][0]["health"] == "up")?;
    get(site.client(), WEB)?;

    let mut found = Lines::new();
    commands(&gateway, &mut found)?;
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
    let gone: Vec<&String> = before.difference(&now).collect();
    ensure!(gone.is_empty(), "gone since {}: {gone:#?}", old.display());
    Ok(())
}

#[test]
fn a_script_into_a_closed_pipe() -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        let line = format!("{} completions {shell} | true", binary()?.display());
        let ran = std::process::Command::new("sh").args(["-c", &line]).output()?;
        ensure!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    Ok(())
}
