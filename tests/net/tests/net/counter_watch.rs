//! Every fault that bypassing the kernel's stack would hide is named, by its kind in
//! docs/runbook.md, and mended where it can be.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Frozen, Gateway, METRICS, SERVICE_V4, SOON, Site, WEB, detach_link, get, http,
    needs_root, swap_link, udp_to,
};
use ringway_testnet::{
    End, Signal, VethOptions, XdpReceive, attach_pass, detach_pass, veth, wait_for,
};
use serde_json::Value;

const CHECK: &str = "check = { type = \"http\", interval = \"500ms\", fall = 3 }\n";
fn start(site: &Site) -> Result<Gateway> {
    site.start(&site.service("web", WEB, CHECK))
}

fn has(list: &Value, kind: &str) -> bool {
    list.as_array().into_iter().flatten().any(|one| one["kind"] == kind)
}

/// The node is unhealthy for this, and says so at once to whoever asks.
fn problem(gateway: &Gateway, kind: &str, words: &str) -> Result<()> {
    let status = gateway.wait_status(kind, |status| has(&status["problems"], kind))?;
    ensure!(status["healthy"] == false, "{}", status["problems"]);
    ensure!(status["problems"].to_string().contains(words), "{}", status["problems"]);
    gateway.ringway(&["status", "--ready"])?.complains(3, &[])?;
    metric(gateway, &format!("ringway_problem{{kind={kind:?}}} 1"))
}

/// The node is healthy, and says this all the same.
fn finding(gateway: &Gateway, kind: &str, words: &str) -> Result<()> {
    // What happens on the way, such as a link that is down while it is renamed, is a problem for a
    // moment.
    let told = |status: &Value| has(&status["findings"], kind) && status["healthy"] == true;
    let status = gateway.wait_status(kind, told)?;
    ensure!(status["findings"].to_string().contains(words), "{}", status["findings"]);
    metric(gateway, &format!("ringway_finding{{kind={kind:?}}} 1"))
}

fn metric(gateway: &Gateway, line: &str) -> Result<()> {
    wait_for(line, SOON, || {
        let text = scrape(gateway).map_err(|error| error.to_string())?;
        if text.lines().any(|found| found == line) { Ok(()) } else { Err(text) }
    })?;
    Ok(())
}

fn scrape(gateway: &Gateway) -> Result<String> {
    http(gateway.namespace(), METRICS, "/metrics")
}

fn mended(gateway: &Gateway) -> Result<Value> {
    gateway.wait_status("mended", |status| status["healthy"] == true)
}

#[test]
fn interfaces_that_change_and_go() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let (client, ns) = (site.client(), &site.net.gateway);
    let mut gateway = start(&site)?;
    ns.ip("link set dev eth0 down\n")?;
    problem(&gateway, "interface-down", "ip link set dev eth0 up")?;
    ns.ip("link set dev eth0 up\n")?;
    mended(&gateway)?;
    // And one whose far end is.
    site.net.switch.ip("link set dev gw down\n")?;
    problem(&gateway, "no-carrier", "interface eth1 has no carrier")?;
    site.net.switch.ip("link set dev gw up\n")?;
    mended(&gateway)?;
    // A daemon that starts meanwhile: the other interfaces' traffic wants one.
    ns.ip("link set dev eth1 down\n")?;
    gateway.kill()?;
    gateway.start_again()?;
    gateway.wait_serving()?;
    problem(&gateway, "interface-down", "ip link set dev eth1 up")?;
    ns.ip("link set dev eth1 up\n")?;
    mended(&gateway)?;
    get(client, WEB)?;

    ns.ip("link set dev eth1 down\nlink set dev eth1 name wan0\nlink set dev wan0 up\n")?;
    finding(&gateway, "interface-renamed", "eth1 is called wan0 now")?;
    // By either name.
    for name in ["eth1", "wan0"] {
        let asked = gateway.ringway(&["explain", "-i", name, "udp 10.2.0.9:1 > 10.2.0.8:2"])?;
        asked.says(0, &["interface"]).context(name)?;
    }
    get(client, WEB)?;
    ns.ip("link set dev wan0 down\nlink set dev wan0 name eth1\nlink set dev eth1 up\n")?;
    let back = |status: &Value| {
        status["healthy"] == true && !has(&status["findings"], "interface-renamed")
    };
    gateway.wait_status("its name", back)?;
    get(client, WEB)?;
    for words in ["WARN", "over: interface eth1 is called wan0 now"] {
        let said =
            gateway.log().lines().any(|line| line.contains(words) && line.contains("wan0 now"));
        ensure!(said, "no {words:?} in {}", gateway.log());
    }

    ns.ip("link del eth0\n")?;
    problem(&gateway, "interface-gone", "interface eth0 is gone")?;
    let outer = End::new(ns, "eth0").address("10.1.0.1/24");
    let far = End::new(client, "eth0").address("10.1.0.2/24").xdp_receive(XdpReceive::Pass);
    veth(&far, &outer, &VethOptions::default())?;
    client.ip("route add default via 10.1.0.1\n")?;
    let status = mended(&gateway)?;
    ensure!(status["interfaces"][0]["attached_again"] == 1, "{}", status["interfaces"]);
    get(client, WEB)?;
    // It is pinned: the next daemon takes it over.
    ensure!(gateway.pins().join("ifaces/eth0/link").exists());
    Ok(())
}

#[test]
fn programs_that_somebody_takes_away() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let (client, ns) = (site.client(), &site.net.gateway);
    let mut gateway = start(&site)?;
    let pin = gateway.pins().join("ifaces/eth0/link");
    ensure!(ns.ip("link set dev eth0 xdp off\n").is_err(), "ip may detach our program");
    detach_link(&pin)?;
    let again = |status: &Value| {
        status["healthy"] == true && status["interfaces"][0]["attached_again"] == 1
    };
    let status = gateway.wait_status("attached again", again)?;
    ensure!(has(&status["findings"], "program-detached"), "{}", status["findings"]);
    ensure!(gateway.log().contains("our program is not on it any more"), "not said");
    get(client, WEB)?;

    std::fs::remove_file(&pin)?;
    wait_for("pinned again", SOON, || if pin.exists() { Ok(()) } else { Err("no pin") })?;
    gateway.kill()?;
    get(client, WEB).context("it outlives the daemon")?;
    gateway.start_healthy()?;

    // Another one in its place; else ours would be attached again before the other one can be.
    gateway.child().signal(Signal::STOP)?;
    detach_link(&pin)?;
    attach_pass(ns, "eth0")?;
    gateway.child().signal(Signal::CONT)?;
    problem(&gateway, "program-replaced", "ip link set dev eth0 xdp off")?;
    // As told.
    ns.ip("link set dev eth0 xdp off\n")?;
    mended(&gateway)?;
    get(client, WEB)?;

    // Another one in our attachment.
    swap_link(&gateway.pins().join("ifaces/eth1/link"))?;
    problem(&gateway, "program-replaced", "restart the daemon")?;
    gateway.terminate()?;
    gateway.start_healthy()?;
    get(client, WEB)?;

    // Nobody mends it while no daemon runs; commands still know which interface that is, and the
    // next daemon what happened.
    gateway.terminate()?;
    detach_link(&pin)?;
    gateway.ringway(&["status"])?.says(3, &["problem: eth0: our program is not attached"])?;
    let capture = ["capture", "--node", gateway.node(), "-i", "eth0", "--seconds", "1"];
    gateway.plain(&capture)?.complains(0, &["eth0: our program is not attached"])?;
    gateway.start_healthy()?;
    ensure!(gateway.log().contains("the program had been taken off the interface"), "not said");
    get(client, WEB)?;
    Ok(())
}

#[test]
fn packets_that_the_kernel_drops_after_us() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let gateway = site.start(&site.service("echo", ECHO, "protocol = \"udp\"\n"))?;
    detach_pass(&site.net.switch, "gw")?;
    let socket = udp_to(site.client(), ECHO)?;
    // Some may be lost before the daemon looks for the first time.
    let lost = |status: &Value| {
        for _ in 0..50 {
            // What is not answered is not the question.
            let _ = socket.send(b"x");
        }
        has(&status["findings"], "packets-lost")
    };
    gateway.wait_status("lost", lost)?;
    finding(&gateway, "packets-lost", "lost-no-receiver")
}

/// Flows that have come off probation give way to nobody.
#[test]
fn a_flow_table_that_is_full() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let body =
        "[nat]\nflows = 1024\n\n".to_owned() + &site.service("echo", ECHO, "protocol = \"udp\"\n");
    let gateway = site.start(&body)?;
    let sockets: Vec<UdpSocket> = site.client().run(|| -> std::io::Result<Vec<UdpSocket>> {
        (0..4000).map(|_| UdpSocket::bind("0.0.0.0:0")).collect()
    })??;
    for socket in &sockets {
        socket.connect(ECHO)?;
    }
    let full = |status: &Value| {
        for socket in &sockets {
            // What is not answered is not the question.
            let _ = socket.send(b"x");
        }
        has(&status["findings"], "table-full")
    };
    gateway.wait_status("full", full)?;
    finding(&gateway, "table-full", "`flows` under [nat]")?;
    Ok(())
}

#[test]
fn a_daemon_that_hangs() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let mut gateway = start(&site)?;
    let pid = gateway.child().pid();
    // The thread of its loop alone is stopped: the others answer, and say so.
    let frozen = Frozen::thread(pid)?;
    problem(&gateway, "loop-stalled", "the daemon's loop has not turned")?;
    let health = http(&site.net.gateway, METRICS, "/healthz")?;
    ensure!(health.starts_with("HTTP/1.1 503"), "{health}");
    get(site.client(), WEB).context("traffic does not need the loop")?;
    drop(frozen);
    mended(&gateway)?;

    // All of it is stopped: nobody answers, and its heartbeat grows old.
    gateway.child().signal(Signal::STOP)?;
    wait_for("not ready", SOON, || {
        gateway.ringway(&["status", "--ready"])?.says(3, &["no answer within"])
    })?;
    // The tables say the rest, and who it is that hangs.
    let hangs = format!("(process {pid}) does not answer");
    let words = [&*hangs, &format!("kill -KILL {pid}"), "last known: 1/1 up"];
    gateway.ringway(&["status"])?.says(3, &words)?;
    gateway.child().signal(Signal::CONT)?;
    mended(&gateway)?;
    Ok(())
}

mod long {
    use super::*;

    /// A thousand datagrams a second for half a minute, then none: a load test that ends is no finding.
    /// (What stops after ten minutes is one: unit tests of the gateway, by a clock of their own.)
    #[test]
    fn a_burst_that_ends() -> Result<()> {
        needs_root!();
        let site = Site::new(1)?;
        let _echo = site.echo(SERVICE_V4, 7)?;
        let text = site.configuration(&site.service("echo", ECHO, "protocol = \"udp\"\n"));
        let gateway = Gateway::start(&site.net.gateway, &text)?;
        let socket = udp_to(site.client(), ECHO)?;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(33) {
            for _ in 0..10 {
                socket.send(b"x")?;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The rate is of a second or more: longer than a stop takes to be told.
        let quiet = |status: &Value| status["interfaces"][0]["rate_pps"].as_f64() == Some(0.0);
        let status = gateway.wait_status("quiet", quiet)?;
        ensure!(!has(&status["findings"], "traffic-stopped"), "{}", status["findings"]);
        Ok(())
    }
}
