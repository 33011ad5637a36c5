//! `ringway flows` on a running gateway: what is there is listed, whole, while it comes and goes.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{ECHO, Gateway, Line, SERVICE_V4, Site, WEB, needs_root};
use serde_json::Value;

fn flows(gateway: &Gateway, arguments: &[&str]) -> Result<Value> {
    let said = gateway.document(&[&["flows"], arguments].concat())?;
    ensure!(said["schema"] == "ringway.flows/1", "{said}");
    Ok(said)
}

fn rows(said: &Value) -> Result<&Vec<Value>> {
    said["flows"].as_array().context("no flows")
}

/// Connections that stand still are listed as they are, and found by each term.
#[test]
fn lists_what_is_there_and_what_is_asked_for() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let text = site.service("echo", ECHO, "") + &site.service("web", WEB, "");
    let mut gateway = site.start(&text)?;
    let mut lines = Vec::new();
    for _ in 0..20 {
        let mut line = Line::open(site.client(), ECHO)?;
        let backend = line.ask("who")?;
        lines.push((line, backend));
    }
    for (line, backend) in &lines {
        let client = line.local()?;
        let said = flows(&gateway, &[&format!("client {client}")])?;
        let rows = rows(&said)?;
        ensure!(rows.len() == 1 && said["matched_flows"] == 1, "{client}: {said}");
        let row = &rows[0];
        ensure!(row["client"] == client.to_string() && row["service"] == "echo", "{row}");
        ensure!(row["destination"] == ECHO.to_string() && row["protocol"] == "tcp", "{row}");
        ensure!(row["state"] == "established" && row["interface"] == "eth0", "{row}");
        let n = site.backends(SERVICE_V4, 7).iter().position(|at| row["backend"] == at.to_string());
        ensure!(n.is_some_and(|n| *backend == format!("b{}", n + 1)), "{backend}: {row}");
    }
    let all = flows(&gateway, &["service", "echo", "and", "state", "established"])?;
    ensure!(all["matched_flows"] == 20 && rows(&all)?.len() == 20, "{all}");
    ensure!(flows(&gateway, &["service web"])?["matched_flows"] == 0, "nobody asked web");
    let some = flows(&gateway, &["tcp", "--sort", "client", "--reverse", "-n", "3"])?;
    let clients: Vec<SocketAddr> = rows(&some)?
        .iter()
        .map(|row| Ok(row["client"].as_str().context("no client")?.parse()?))
        .collect::<Result<_>>()?;
    let mut wanted = lines.iter().map(|(line, _)| line.local()).collect::<Result<Vec<_>, _>>()?;
    wanted.sort();
    wanted.reverse();
    ensure!(clients == wanted[..3], "{clients:?} instead of {:?}", &wanted[..3]);

    // For people, and without a daemon.
    gateway.kill()?;
    let ran = gateway.ringway(&["flows", "-n", "2"])?;
    ensure!(ran.code == 0 && ran.out.lines().count() >= 4, "{ran:?}");
    ensure!(ran.out.contains("20 flows, 20 of them match, 2 shown; read in "), "{ran:?}");

    for (arguments, words) in [
        (&["servic echo"][..], &["column 1", "did you mean service?", "docs/observing.md"][..]),
        (&["service ech"], &["column 9", "did you mean echo?"]),
        (&["--sort", "idle", "-n", "0"], &["too many flows"]),
        (&["--sort", "size"], &["client", "idle"]),
    ] {
        let ran = gateway.ringway(&[&["flows"], arguments].concat())?.complains(2, words)?;
        ensure!(ran.out.is_empty(), "{arguments:?}: {ran:?}");
    }
    Ok(())
}
