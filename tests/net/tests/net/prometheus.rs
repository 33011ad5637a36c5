//! Metrics, alert rules and dashboard as Prometheus itself reads them (promtool).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    CHECK, Gateway, Load, METRICS, Ran, SERVICE_V4, SOON, Site, WEB, http, needs_root, not_tested,
    tree,
};
use ringway_testnet::tools::{self, Tool};
use ringway_testnet::wait_for;
use serde_json::Value;

const RULES: &str = include_str!("../../../../packaging/prometheus/ringway.rules.yml");
const DASHBOARD: &str = include_str!("../../../../packaging/grafana/ringway.json");
const RUNBOOK: &str = include_str!("../../../../docs/runbook.md");
const AT_HOME: &str = "file:///usr/share/doc/ringway/docs/runbook.md#";

fn packaged(file: &str) -> PathBuf {
    tree().join("packaging").join(file)
}

/// `None`, aloud, where promtool is not to be had.
fn promtool() -> Result<Option<Tool>> {
    match tools::find("promtool") {
        Ok(tool) => Ok(Some(tool)),
        Err(error) => {
            ensure!(std::env::var("CI").as_deref() != Ok("true"), "{error}");
            not_tested(format!("what promtool says: {error}"));
            Ok(None)
        }
    }
}

fn run(tool: &Tool, arguments: &[&str], input: &str) -> Result<Ran> {
    let mut command = Command::new(&tool.path);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("no input")?.write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?.into())
}

/// The body of a scrape.
fn scrape(gateway: &Gateway) -> Result<String> {
    let answer = http(gateway.namespace(), METRICS, "/metrics")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
    ensure!(head.contains("text/plain; version=0.0.4"), "{head}");
    Ok(body.to_owned())
}

/// Every PromQL expression of rules and dashboard, with Grafana's variables filled in.
fn expressions() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let filled = |text: &str| {
        text.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$service", ".*")
    };
    let shown: Vec<String> =
        targets.filter_map(|target| target["expr"].as_str()).map(filled).collect();
    ensure!(shown.len() > 25, "only {} in the dashboard", shown.len());
    Ok(shown)
}

/// Names of metrics in a text; `up` and `job` are Prometheus' own.
fn names(text: &str) -> BTreeSet<&str> {
    let word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !word(letter));
    words.filter(|word| word.starts_with("ringway_") || word.starts_with("process_")).collect()
}

/// Scrapes without end cost little, as fast as they are answered, beside traffic.
#[test]
fn rules_and_dashboard_ask_for_what_there_is() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let body = site.service("web", WEB, CHECK)
        + &site.service("direct", (SERVICE_V4, 81).into(), "forward = \"dsr-l2\"\n");
    let mut gateway = Gateway::launch(&site.net.gateway, &site.configuration(&body))?;
    gateway.wait_serving()?;
    gateway.wait_status("checks", |s| s["services"][0]["backends"][0]["health"] == "up")?;
    let load = Load::start(site.client(), &format!("http://{WEB}/"), 4, 60)?;
    let (began, mut different) = (Instant::now(), BTreeSet::new());
    for _ in 0..100 {
        different.insert(scrape(&gateway)?);
    }
    // Made anew four times a second at most, whoever asks how often.
    let most = began.elapsed().as_millis() as usize / 250 + 2;
    ensure!(different.len() <= most, "{} texts in {:?}", different.len(), began.elapsed());
    let outcome = load.stop()?;
    ensure!(outcome.errors == 0 && outcome.requests > 0, "{outcome:?}");
    gateway.wait_status("a healthy gateway", |status| status["healthy"] == true)?;

    let text = scrape(&gateway)?;
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let there: BTreeSet<&str> = series.filter_map(|line| line.split(['{', ' ']).next()).collect();
    let lines = RULES.lines().filter(|line| !line.trim_start().starts_with("runbook_url"));
    let asked = expressions()?.join("\n") + "\n" + &lines.collect::<Vec<_>>().join("\n");
    let asked = names(&asked);
    ensure!(asked.len() > 20, "{asked:?}");
    for name in asked {
        ensure!(there.contains(name), "{name} is not in a scrape:\n{text}");
    }
    let Some(promtool) = promtool()? else { return Ok(()) };
    let ran = run(&promtool, &["check", "metrics"], &text)?;
    ensure!(ran.code == 0 && ran.said().is_empty(), "{}\n{text}", ran.said());
    let damaged = run(&promtool, &["check", "metrics"], &text.replacen(" 1\n", " one\n", 1))?;
    ensure!(damaged.code != 0, "promtool would find nothing: {damaged:?}");
    Ok(())
}

#[test]
fn the_rules_fire_when_they_should() -> Result<()> {
    let Some(promtool) = promtool()? else { return Ok(()) };
    let rules = packaged("prometheus/ringway.rules.yml");
    run(&promtool, &["check", "rules", "--lint-fatal", &rules.to_string_lossy()], "")?.done()?;
    let tests = packaged("prometheus/ringway.rules.test.yml");
    run(&promtool, &["test", "rules", &tests.to_string_lossy()], "")?.done()?;
    let tested = fs::read_to_string(tests)?;
    for alert in alerts() {
        ensure!(tested.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
    Ok(())
}

fn alerts() -> impl Iterator<Item = &'static str> {
    RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: "))
}

#[test]
fn the_dashboard_is_whole() -> Result<()> {
    let Some(promtool) = promtool()? else { return Ok(()) };
    let directory = tempfile::tempdir()?;
    let rules = directory.path().join("dashboard.yml");
    let each = expressions()?.into_iter().enumerate().map(|(n, expression)| {
        format!("  - record: dashboard:{n}\n    expr: {}\n", Value::String(expression))
    });
    let text = format!("groups:\n- name: dashboard\n  rules:\n{}", each.collect::<String>());
    fs::write(&rules, &text)?;
    let ran = run(&promtool, &["check", "rules", "--lint=none", &rules.to_string_lossy()], "")?;
    ensure!(ran.code == 0, "{}\n{text}", ran.said());

    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    ensure!(dashboard["uid"] == "ringway" && dashboard["schemaVersion"].as_u64() >= Some(36));
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        let title = panel["title"].as_str().context("a panel without a title")?;
        ensure!(ids.insert(panel["id"].as_u64()), "{title}: its number is another's, too");
        let place = |key: &str| panel["gridPos"][key].as_u64().context("no place");
        let (x, y, w, h) = (place("x")?, place("y")?, place("w")?, place("h")?);
        ensure!(w > 0 && h > 0 && x + w <= 24, "{title}: wider than the page");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            ensure!(taken.insert(cell), "{title}: lies over another");
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            ensure!(target["datasource"]["uid"] == "${datasource}", "{title}: another source");
        }
    }
    Ok(())
}

/// As GitHub and most others make them of headings.
fn anchors() -> BTreeSet<String> {
    let headings = RUNBOOK.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        text.chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_runbook_url_leads_somewhere() -> Result<()> {
    let anchors = anchors();
    let urls = RULES.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
    let urls: Vec<&str> = urls.map(|url| url.trim_matches('"')).collect();
    ensure!(urls.len() == alerts().count(), "an alert without a runbook_url");
    for url in urls {
        let anchor = url.strip_prefix(AT_HOME).with_context(|| url.to_owned())?;
        // Of every kind of problem and finding there is a section: crate ringway-api,
        // problem_kind.rs.
        let fits = anchor == "{{ $labels.kind }}" || anchors.contains(anchor);
        ensure!(fits, "{url}: docs/runbook.md has no such section: {anchors:?}");
    }
    Ok(())
}

/// Series of a service's counters, with their values.
fn counters(text: &str) -> Vec<(String, f64)> {
    let sorts = ["_total{", "_bucket{", "_sum{", "_count{"];
    let of_services = |line: &&str| {
        line.starts_with("ringway_service_") || line.starts_with("ringway_check_duration_")
    };
    let lines = text.lines().filter(of_services).filter(|l| sorts.iter().any(|s| l.contains(s)));
    let read = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        Some((series.to_owned(), value.parse().ok()?))
    };
    lines.filter_map(read).collect()
}

#[test]
fn counters_never_go_backwards_at_a_reload() -> Result<()> {
    needs_root!();
    let site = Site::new(3)?;
    let body = site.service("web", WEB, CHECK);
    let gateway = site.start(&body)?;
    for _ in 0..30 {
        ringway_net_tests::get(site.client(), WEB)?;
    }
    gateway.wait_status("some checks", |s| {
        let backends = s["services"][0]["backends"].as_array().into_iter().flatten();
        backends.filter_map(|b| b["checks_passed"].as_u64()).all(|passed| passed > 3)
    })?;
    let before = counters(&scrape(&gateway)?);
    let flows = |all: &[(String, f64)]| {
        let found = all.iter().find(|(series, _)| series.contains("service_flows_total"));
        found.map_or(0.0, |(_, value)| *value)
    };
    ensure!(flows(&before) >= 30.0 && before.len() > 20, "{before:?}");
    // One backend leaves, and the others are checked in another way.
    let one = site.backends(SERVICE_V4, 80)[0].ip();
    let other = body.replace("\"http\"", "\"tcp\"");
    let other: Vec<&str> =
        other.lines().filter(|line| !line.contains(&format!("\"{one}\""))).collect();
    fs::write(gateway.configuration(), site.configuration(&other.join("\n")))?;
    gateway.ringway(&["reload"])?.done()?;
    gateway.wait_status("two backends", |status| {
        status["services"][0]["backends"].as_array().map(Vec::len) == Some(2)
    })?;
    // A text is shown again for a while.
    let newer = || {
        let text = scrape(&gateway).map_err(|error| format!("{error:#}"))?;
        let shown = text.lines().filter(|line| line.starts_with("ringway_backend_up")).count();
        if shown == 2 { Ok(counters(&text)) } else { Err(format!("{shown} backends")) }
    };
    let after = wait_for("a scrape of the new configuration", SOON, newer)?;
    for (series, was) in &before {
        let is = after.iter().find(|(other, _)| other == series).map(|(_, value)| *value);
        ensure!(is.is_some_and(|is| is >= *was), "{series} was {was} and is {is:?}");
    }
    ensure!(flows(&after) < flows(&before) + 30.0, "flows are counted twice: {after:?}");
    Ok(())
}
