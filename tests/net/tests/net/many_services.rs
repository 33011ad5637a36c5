//! Fifty services: what a start, a reload and `ringway status` say of them fits a screen.

use std::fmt::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{SERVICE_V4, Site, needs_root};

const CHECK: &str = "check = { type = \"tcp\", interval = \"200ms\", fall = 5, port = 80 }\n";

/// 36 of nat, and so many of dsr-gue, whose tunnels leave less room than clients use.
fn services(site: &Site, tunnels: u16) -> Result<String> {
    let mut text = String::new();
    for n in 0..36 {
        text += &site.service(&format!("web{n}"), SocketAddr::new(SERVICE_V4, 8000 + n), CHECK);
    }
    for n in 0..tunnels {
        let endpoint = SocketAddr::new(SERVICE_V4, 9000 + n);
        let more = "forward = \"dsr-gue\"\nprotocol = \"udp\"\n";
        writeln!(text, "{}", site.service(&format!("dns{n}"), endpoint, more))?;
    }
    Ok(text)
}

#[test]
fn each_cause_is_told_once() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let gateway = site.start(&services(&site, 18)?)?;

    let log = gateway.log();
    let start: Vec<&str> =
        log.lines().take_while(|line| !line.contains("serving: 54 services")).collect();
    ensure!(start.len() < 12, "a start of {} lines: {log}", start.len());
    let telling = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    ensure!(telling("who answers for the address: arp") == 1, "{log}");
    ensure!(telling("\"too big\" (ICMP)") == 1 && log.contains("and 33 more"), "{log}");
    ensure!(telling("is up") == 0, "{log}");

    let mtu = |status: &serde_json::Value| status["findings"].to_string().contains("too big");
    let status = gateway.wait_status("the machine looked at", mtu)?;
    let subjects = status["findings"][0]["subjects"].as_array().context("no subjects")?;
    ensure!(subjects.len() == 36, "{}", status["findings"]);
    let short = gateway.ringway(&["status"])?.out;
    ensure!(short.lines().count() <= 30, "{} lines: {short}", short.lines().count());
    ensure!(short.contains("finding: dns0 10.2.0.11:9000, dns0 10.2.0.12:9000, "), "{short}");
    ensure!(short.contains("… and 54 services, 108 backends, all healthy"), "{short}");
    ensure!(short.lines().all(|line| line.len() < 400), "{short}");
    let all = gateway.ringway(&["status", "--all"])?.out;
    ensure!(all.lines().count() > 300 && all.contains("  web35  "), "{all}");
    let one = gateway.ringway(&["status", "--service", "web7"])?.out;
    ensure!(one.contains("10.2.0.12:8007") && !one.contains("web8"), "{one}");

    Ok(())
}

#[test]
fn a_strict_reload_changes_nothing_where_there_are_warnings() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = site.start(&services(&site, 0)?)?;
    gateway.rewrite(&site.configuration(&services(&site, 5)?))?;
    let strict = gateway.ringway(&["reload", "--strict"])?;
    ensure!(strict.code == 1 && strict.err.contains("with 1 warning"), "{strict:?}");
    ensure!(
        strict.out.contains("warning: dns0 ") && strict.out.contains(" and 2 more: "),
        "{strict:?}"
    );
    let status = gateway.status()?;
    ensure!(status["services"].as_array().map(Vec::len) == Some(36), "{}", status["services"]);
    ensure!(status["reloads"]["failed"] == 0, "{}", status["reloads"]);
    let reload = gateway.ringway(&["reload"])?;
    ensure!(reload.code == 0 && reload.out.contains("warning: dns0 "), "{reload:?}");
    let log = gateway.log();
    ensure!(log.contains("in force: 5 services with 5 backends added"), "{log}");
    // Nothing to warn of that was not there before.
    gateway.ringway(&["reload", "--strict"])?.done()?;
    Ok(())
}
