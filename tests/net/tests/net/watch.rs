//! What those see who watch the gateway: metrics, readiness, the service manager, the API.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{CHECK, Gateway, METRICS, SOON, STARTED, Site, WEB, get, http, needs_root};
use ringway_testnet::{Namespace, wait_for};
use serde_json::Value;

/// The log is for machines: one object per line.
#[test]
fn metrics_and_the_log_show_what_happened() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let ns = site.net.gateway.clone();
    let body = site.service("web", WEB, CHECK) + "[log]\nformat = \"json\"\nlevel = \"debug\"\n";
    let mut gateway = site.start(&body)?;
    for _ in 0..30 {
        get(site.client(), WEB)?;
    }
    site.nginx[1].kill()?;
    gateway.wait_status("b2 down", |s| s["services"][0]["backends"][1]["health"] == "down")?;
    // A daemon that stood still is not healthy for a moment.
    let text = wait_for("healthy by metrics", SOON, || {
        let text = http(&ns, METRICS, "/metrics").map_err(|error| format!("{error:#}"))?;
        let is = |line: &str| line.starts_with("ringway_healthy") && line.ends_with(" 1");
        if text.lines().any(is) { Ok(text) } else { Err(text) }
    })?;
    let value = |name: &str, labels: &[&str]| -> Result<f64> {
        let fits = |line: &&str| {
            line.split(['{', ' ']).next() == Some(name)
                && labels.iter().all(|label| line.contains(label))
        };
        let line = text.lines().find(fits);
        let line = line.with_context(|| format!("{name} {labels:?} not in\n{text}"))?;
        Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
    };
    let (b1, b2) = ("backend=\"10.2.0.11:80\"", "backend=\"10.2.0.12:80\"");
    let web = "service=\"web\"";
    ensure!(value("ringway_healthy", &[])? == 1.0);
    ensure!(value("ringway_backend_up", &[web, b1])? == 1.0);
    ensure!(value("ringway_backend_up", &[web, b2])? == 0.0);
    let flows = |backend| value("ringway_backend_flows_total", &[web, backend]);
    ensure!(flows(b1)? + flows(b2)? >= 30.0, "{text}");
    ensure!(value("ringway_backend_packets_total", &[b1, "direction=\"reply\""])? > 0.0);
    ensure!(value("ringway_backend_checks_total", &[b2, "result=\"fail\""])? >= 2.0);
    ensure!(value("ringway_interface_attached", &["interface=\"eth0\""])? == 1.0);
    ensure!(value("ringway_verdict_packets_total", &["eth0", "reason=\"nat-forward\""])? > 60.0);
    for name in ["eth0", "eth1"] {
        let difference = value("ringway_ledger_difference_packets", &[name])?;
        ensure!(difference.abs() < 3.0, "{difference}");
    }

    let log = gateway.terminate()?;
    let mut messages = Vec::new();
    for line in log.lines() {
        let object: Value =
            serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        ensure!(object["level"].is_string() && object["timestamp"].is_string(), "{line}");
        messages.push(object["message"].as_str().unwrap_or_default().to_owned());
    }
    for words in ["serving: ", "web: backend 10.2.0.12:80 is down: ", "traffic still flows"] {
        ensure!(messages.iter().any(|message| message.contains(words)), "{words} not in {log}");
    }
    Ok(())
}

/// A service manager's socket, and where it is.
fn manager_of(ns: &Namespace) -> Result<(PathBuf, UnixDatagram)> {
    let path = ns.directory().join("notify.sock");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(STARTED))?;
    Ok((path, manager))
}

fn heard(manager: &UnixDatagram) -> Result<String> {
    let mut message = [0; 512];
    let length = manager.recv(&mut message).context("the manager hears nothing")?;
    Ok(String::from_utf8_lossy(&message[..length]).into_owned())
}

/// As the machine boots: by hand it would be refused at once.
#[test]
fn an_interface_that_comes_late_is_waited_for() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let (path, manager) = manager_of(ns)?;
    ns.ip("link set dev eth1 down\nlink set dev eth1 name late0\n")?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let gateway = Gateway::launch_with(ns, &text, |command| {
        command.env("NOTIFY_SOCKET", &path);
    })?;
    while heard(&manager)? != "STATUS=waiting for eth1" {}
    ns.ip("link set dev late0 name eth1\n")?;
    ensure!(gateway.status().is_err(), "it is down still");
    ns.ip("link set dev eth1 up\n")?;
    while !heard(&manager)?.starts_with("READY=1") {}
    Ok(())
}

#[test]
fn the_service_manager_is_told() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let (path, manager) = manager_of(ns)?;
    let hear = || heard(&manager);
    // Without a check, so that nothing but the start itself has asked for the backend's MAC
    // address.
    let text = site.configuration(&site.service("web", WEB, ""));
    let mut gateway = Gateway::launch_with(ns, &text, |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    })?;
    let mut messages = Vec::new();
    while !messages.iter().any(|message: &String| message.starts_with("READY=1")) {
        messages.push(hear()?);
    }
    // Ready means that a request is answered at once, by its first packet.
    get(site.client(), WEB)?;
    let counted = |status: &Value, key: &str, what: &str| {
        let mut counters = status["counters"].as_array().into_iter().flatten();
        counters.any(|counter| counter[key] == what)
    };
    let status = gateway
        .wait_status("its packets counted", |status| counted(status, "reason", "nat-forward"))?;
    ensure!(!counted(&status, "verdict", "drop"), "{}", status["counters"]);
    let serving = "1 of 1 backends get traffic";
    ensure!(messages.iter().any(|message| message.contains(serving)), "{messages:?}");
    let pid = format!("MAINPID={}", gateway.child().pid());
    ensure!(messages.iter().any(|message| message.contains(&pid)), "{messages:?}");
    while hear()? != "WATCHDOG=1" {}
    // Read all the time: where many wait to be read, there may be no room for the last one.
    thread::scope(|scope| {
        let stopping = scope.spawn(|| -> Result<()> {
            while hear()? != "STOPPING=1" {}
            Ok(())
        });
        gateway.terminate()?;
        stopping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn the_api_is_for_root_and_its_group_alone_and_answers_clearly() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let gateway = site.start(&site.service("web", WEB, CHECK))?;
    let ask = |head: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        gateway.api(request.as_bytes())
    };
    let long = "x".repeat(70 * 1024);
    for (head, body, status, words) in [
        ("GET /v1/status", "", "200", "\"schema\":\"ringway.status/1\""),
        ("GET /v1/ledger", "", "200", "\"schema\":\"ringway.ledger/1\""),
        ("GET /v1/health", "", "200", "\"healthy\":true"),
        ("GET /v2/status", "", "404", "\"remedy\""),
        ("DELETE /v1/status", "", "405", "use GET"),
        ("POST /v1/status", "{\"half\":", "405", "use GET"),
        ("POST /v1/status", &long, "413", "longer than 65536 bytes"),
    ] {
        wait_for(head, SOON, || {
            let answer = ask(head, body).map_err(|error| format!("{error:#}"))?;
            let fits = answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(words);
            if fits { Ok(()) } else { Err(answer) }
        })?;
    }
    for garbage in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
    {
        let answer = gateway.api(garbage)?;
        ensure!(answer.starts_with("HTTP/1.1 4") || answer.is_empty(), "{answer}");
    }
    let head = format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(1 << 20));
    // It may hang up before all is sent.
    if let Ok(answer) = gateway.api(head.as_bytes()) {
        ensure!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let request = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers = thread::scope(|scope| {
        let askers: Vec<_> = (0..200).map(|_| scope.spawn(|| gateway.api(request))).collect();
        let join = |asker: thread::ScopedJoinHandle<'_, Result<String>>| {
            asker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        askers.into_iter().map(join).collect::<Result<Vec<String>>>()
    })?;
    for answer in &answers {
        let good = answer.starts_with("HTTP/1.1 200") && answer.contains("\"ringway.status/1\"");
        ensure!(good, "{answer}");
    }
    let status = gateway.status()?;
    ensure!(status["healthy"] == true && status["services"][0]["address"] == "10.1.0.80");
    // For root and its group alone.
    let mode = std::fs::metadata(ns.directory().join("api.sock"))?.permissions().mode();
    ensure!(mode & 0o777 == 0o660, "mode {mode:o}");
    get(site.client(), WEB)?;
    Ok(())
}
