//! Backends that die, come back, or were never there.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Gateway, Line, SERVICE_V4, SOON, Site, WEB, get, needs_root, packets, service, udp_to,
};
use ringway_testnet::wait_for;
use serde_json::Value;

const QUICK: &str =
    "check = { type = \"http\", interval = \"100ms\", timeout = \"100ms\", fall = 30 }\n";
/// interval 1 s, timeout 500 ms, fall 2: what a user gets who says no more.
const DEFAULT: &str = "check = { type = \"http\" }\n";

/// `health` of backend `n` of the first service.
fn health(status: &Value, n: usize) -> &str {
    status["services"][0]["backends"][n]["health"].as_str().unwrap_or_default()
}

#[test]
fn a_dead_process_leaves_the_ring_and_comes_back() -> Result<()> {
    needs_root!();
    let mut site = Site::new(3)?;
    let gateway = site.start(&site.service("web", WEB, DEFAULT))?;
    site.nginx[0].kill()?;
    gateway.wait_status("b1 down, and why", |status| {
        let reason = &status["services"][0]["backends"][0]["reason"];
        health(status, 0) == "down"
            && reason.as_str().is_some_and(|why| why.contains("refused"))
            && status["healthy"] == true
            && status["degraded"] == true
    })?;
    gateway.ringway(&["status"])?.says(0, &["degraded: 1 of 3 backends"])?;
    for _ in 0..50 {
        ensure!(get(site.client(), WEB)? != "b1");
    }

    site.restart_nginx(0)?;
    gateway.wait_status("b1 up again", |status| health(status, 0) == "up")?;
    let answers = || match get(site.client(), WEB) {
        Ok(name) if name == "b1" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_for("an answer from b1", SOON, answers)?;
    Ok(())
}

#[test]
fn a_process_that_accepts_but_never_answers_is_down_by_http_alone() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let tcp = SocketAddr::new(SERVICE_V4, 81);
    let more = format!("announce = \"arp\"\n{}", QUICK.replace("http", "tcp"));
    let services = site.service("web", WEB, QUICK)
        + &service("tcp", tcp, &site.backends(SERVICE_V4, 80), &more);
    let gateway = site.start(&services)?;
    site.nginx[0].freeze()?;
    let status = gateway.wait_status("b1 down", |status| health(status, 0) == "down")?;
    ensure!(status["services"][1]["backends"][0]["health"] == "up", "{status}");
    for _ in 0..20 {
        ensure!(get(site.client(), WEB)? == "b2");
    }
    site.nginx[0].thaw()?;
    gateway.wait_status("b1 up", |status| health(status, 0) == "up")?;
    Ok(())
}

#[test]
fn a_backend_is_down_until_its_first_check() -> Result<()> {
    needs_root!();
    let mut site = Site::new(3)?;
    site.nginx[1].kill()?;
    site.nginx[2].freeze()?;
    // The start does not wait that long for b3's first result.
    let more = "check = { type = \"http\", interval = \"60s\", timeout = \"60s\" }\n";
    let text = site.configuration(&site.service("web", WEB, more));
    let mut gateway = Gateway::launch(&site.net.gateway, &text)?;
    gateway.wait_serving()?;
    for _ in 0..40 {
        ensure!(get(site.client(), WEB)? == "b1");
    }
    gateway.wait_status("up, down, unknown", |status| {
        ["up", "down", "unknown"] == [0, 1, 2].map(|n| health(status, n))
    })?;
    Ok(())
}

/// So many do not fail at once by themselves: then checks are not believed, and all backends get
/// traffic.
#[test]
fn more_backends_fail_than_may_be() -> Result<()> {
    needs_root!();
    let mut site = Site::new(3)?;
    // The echo servers live on when the web servers that the checks ask are killed.
    let _echo = site.echo(SERVICE_V4, 7)?;
    let more = format!("max_unhealthy = 50\n{}", QUICK.replace("\"http\"", "\"http\", port = 80"));
    let text = site.configuration(&site.service("echo", ECHO, &more));
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let client = site.client().clone();
    let answer = |wanted: &[&str]| {
        wait_for(format!("answers from {wanted:?} alone"), SOON, || {
            let ask = |_| Line::open(&client, ECHO)?.ask("who?");
            let names: std::io::Result<BTreeSet<String>> = (0..40).map(ask).collect();
            match names {
                Ok(names) if names.iter().eq(wanted) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    };
    let told = |words: &str| gateway.log().matches(words).count();
    let finds = |status: &Value, words: &str| {
        let findings = status["findings"].as_array().into_iter().flatten();
        let mut these = findings.filter(|finding| finding["kind"] == "max-unhealthy");
        these.any(|finding| finding["error"].as_str().is_some_and(|text| text.contains(words)))
    };

    site.nginx[0].kill()?;
    let status = gateway.wait_status("b1 down", |status| health(status, 0) == "down")?;
    ensure!(!finds(&status, ""), "one of three is not too many: {}", status["findings"]);
    answer(&["b2", "b3"])?;
    for (n, words) in [(1, "service echo: 2 of 3 backends fail"), (2, "service echo: 3 of 3 back")]
    {
        site.nginx[n].kill()?;
        let status = gateway.wait_status(words, |status| finds(status, words))?;
        ensure!(status["healthy"] == true, "{}", status["problems"]);
        answer(&["b1", "b2", "b3"])?;
    }
    ensure!(told("more than max_unhealthy = 50") == 1, "once: {}", gateway.log());

    site.restart_nginx(1)?;
    site.restart_nginx(2)?;
    gateway.wait_status("two of three up", |status| {
        health(status, 1) == "up" && health(status, 2) == "up" && !finds(status, "")
    })?;
    answer(&["b2", "b3"])?;
    ensure!(told("over: service echo: ") == 1, "its end is not told: {}", gateway.log());
    Ok(())
}

/// How a connection to this address is refused.
fn connecting(site: &Site, target: SocketAddr) -> Result<ErrorKind> {
    let connect = || TcpStream::connect_timeout(&target, SOON);
    let error = site.client().run(connect)?.err().context("it is accepted")?;
    Ok(error.kind())
}

#[test]
fn what_clients_get_while_no_backend_is_healthy() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let backends = site.backends(SERVICE_V4, 80);
    let mut services = String::new();
    for (port, choice) in [(81, "reset"), (82, "drop"), (83, "all")] {
        // Nobody listens on port 9.
        let more = format!(
            "announce = \"arp\"\nwhen_none_healthy = {choice:?}\n{}",
            QUICK.replace("\"http\"", "\"http\", port = 9")
        );
        services += &service(choice, SocketAddr::new(SERVICE_V4, port), &backends, &more);
    }
    let udp = "protocol = \"udp\"\ncheck = { type = \"tcp\", port = 9, interval = \"100ms\", fall = 30 }\n";
    services += &site.service("echo", ECHO, udp);
    let mut gateway = Gateway::launch(&site.net.gateway, &site.configuration(&services))?;
    gateway.wait_serving()?;
    let status = gateway.wait_status("three services unserved", |status| {
        let problems = status["problems"].to_string();
        ["reset", "drop", "echo"].iter().all(|name| problems.contains(&format!("service {name}:")))
    })?;
    ensure!(!status["problems"].to_string().contains("service all:"), "{}", status["problems"]);

    let at = |port| SocketAddr::new(SERVICE_V4, port);
    let reset = connecting(&site, at(81))?;
    ensure!(reset == ErrorKind::ConnectionRefused, "reset: {reset}");
    let status = gateway.status()?;
    ensure!(packets(&status, "reset-no-backend") > 0, "{}", status["counters"]);
    // What is dropped is counted, and not answered.
    let client = site.client();
    let dropped = |what: &str, send: &dyn Fn() -> Result<()>| -> Result<()> {
        let drops = |status: &Value| packets(status, "no-backend");
        let before = drops(&gateway.status()?);
        send()?;
        gateway.wait_status(what, |status| drops(status) > before).map(drop)
    };
    dropped("a SYN dropped", &|| {
        let error =
            client.run(|| TcpStream::connect_timeout(&at(82), Duration::from_millis(100)))?;
        ensure!(error.is_err(), "it is accepted");
        Ok(())
    })?;
    let names: BTreeSet<_> = (0..40).map(|_| get(site.client(), at(83))).collect::<Result<_>>()?;
    ensure!(names.len() == 2, "all: {names:?}");
    let socket = udp_to(site.client(), ECHO)?;
    dropped("a datagram dropped", &|| {
        socket.send(b"x")?;
        Ok(())
    })
}
