//! What this machine lacks is no failure of a backend's, and neighbours on it cannot starve the
//! daemon.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Gateway, Line, METRICS, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, get, needs_root, tool,
};
use ringway_testnet::wait_for;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::Value;

const TCP: &str =
    "protocol = [\"tcp\", \"udp\"]\ncheck = { type = \"tcp\", interval = \"100ms\", fall = 100 }\n";
const UDP: &str = "check = { type = \"udp\", send = \"x\", port = 7, interval = \"100ms\", timeout = \"100ms\", fall = 50 }\n";

/// Lets the daemon have descriptors below this number alone; returns what it had.
fn limit_descriptors(gateway: &mut Gateway, below: Option<u64>) -> Result<Rlimit> {
    let pid = Pid::from_raw(gateway.child().pid() as i32).context("no process")?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: below, maximum };
    prlimit(Some(pid), Resource::Nofile, limit).context("prlimit")
}

/// The lowest number that no descriptor of the daemon's has for long.
fn lowest_free(gateway: &mut Gateway) -> Result<u64> {
    let place = format!("/proc/{}/fd", gateway.child().pid());
    let now = || -> Result<BTreeSet<u64>> {
        let entries = fs::read_dir(&place)?;
        Ok(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
    };
    let mut steady = now()?;
    for _ in 0..50 {
        let seen = now()?;
        steady.retain(|number| seen.contains(number));
    }
    (0..).find(|number| !steady.contains(number)).context("none")
}

/// Of the first service: checks that passed, all backends together.
fn passed(status: &Value) -> u64 {
    let backends = status["services"][0]["backends"].as_array().into_iter().flatten();
    backends.filter_map(|backend| backend["checks_passed"].as_u64()).sum()
}

/// Counts backends taken for dead so far: on a busy machine the first checks may fail.
fn deaths(gateway: &Gateway) -> usize {
    gateway.log().matches(" is down").count()
}

fn lacks(status: &Value, what: &str) -> bool {
    let problems = status["problems"].as_array().into_iter().flatten();
    problems.filter(|problem| problem["kind"] == "checks-not-made").any(|problem| {
        problem["error"].as_str().unwrap_or_default().contains(&format!("(lack of {what})"))
    })
}

#[test]
fn what_this_machine_lacks_is_no_failure_of_a_backends() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let services = site.service("echo", ECHO, TCP) + &site.service("web", WEB, UDP);
    let mut gateway = site.start(&services)?;
    let down = deaths(&gateway);
    let mut lines: Vec<Line> =
        (0..8).map(|_| Line::open(site.client(), ECHO)).collect::<std::io::Result<_>>()?;

    // No descriptor at all, not even of the reserve.
    let before = limit_descriptors(&mut gateway, Some(3))?;
    gateway.child().wait_for_log("(lack of descriptors)", SOON)?;
    let all = before.current.or(before.maximum);
    limit_descriptors(&mut gateway, all)?;
    gateway.child().wait_for_log("over: health checks cannot be made (lack of desc", SOON)?;
    gateway.wait_healthy()?;

    // No local port.
    let ns = &site.net.gateway;
    let range = "net/ipv4/ip_local_port_range";
    // Two that no connection has: the range was far above.
    let bind = |port| TcpListener::bind(("0.0.0.0", port));
    let taken = ns.run(|| Ok::<_, std::io::Error>([bind(20000)?, bind(20001)?]))??;
    ns.sysctl(range, "20000 20001")?;
    gateway.wait_status("no port", |status| lacks(status, "address"))?;
    ns.sysctl(range, "32768 60999")?;
    drop(taken);
    gateway.wait_healthy()?;

    // No permission.
    let nft = |script: &str| tool(ns, "nft", &[script])?.done();
    nft(
        "table inet t { chain output { type filter hook output priority 0; udp dport 7 drop; }; }",
    )?;
    gateway.wait_status("no permission", |status| lacks(status, "permission"))?;
    nft("delete table inet t")?;
    let status = gateway.wait_status("healthy again", |status| status["healthy"] == true)?;

    for cause in ["descriptors", "address", "permission"] {
        ensure!(status["checks_not_made"][cause].as_u64() > Some(0), "{cause}: {status}");
    }
    ensure!(deaths(&gateway) == down, "a backend was taken for dead:\n{}", gateway.log());
    for line in &mut lines {
        line.ask("still there?").context("a connection from before")?;
    }
    Ok(())
}

/// A queue that is full drops what send(2) took, unless the socket wants to hear of that.
#[test]
fn datagrams_that_this_machine_drops_are_no_failure_of_a_backends() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let mut services = String::new();
    let mut echos = Vec::new();
    for (name, address) in [("v4", SERVICE_V4), ("v6", SERVICE_V6)] {
        echos.extend(site.echo(address, 7)?);
        services += &site.service(name, (address, 80).into(), UDP);
    }
    let mut gateway = site.start(&services)?;
    let down = deaths(&gateway);
    let tc = |arguments: &str| {
        tool(&site.net.gateway, "tc", &arguments.split(' ').collect::<Vec<_>>())?.done()
    };
    tc("qdisc add dev eth1 root pfifo limit 0")?;
    gateway.wait_status("no buffers", |status| {
        let problems = status["problems"].to_string();
        lacks(status, "memory") && problems.contains("this affects 2 backends")
    })?;
    tc("qdisc del dev eth1 root")?;
    gateway.wait_healthy()?;
    ensure!(deaths(&gateway) == down, "{}", gateway.log());
    drop(echos);
    gateway.wait_status("what is down, is", |status| status["healthy"] == false)?;
    Ok(())
}

#[test]
fn checks_and_status_have_descriptors_in_reserve() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let more =
        "check = { type = \"http\", interval = \"100ms\", timeout = \"100ms\", fall = 10 }\n";
    let mut gateway = site.start(&site.service("web", WEB, more))?;
    let free = lowest_free(&mut gateway)?;
    ensure!(free > 64, "descriptor {free} is free: the limit would be below the reserve");
    let before = limit_descriptors(&mut gateway, Some(free))?;
    // Answered by the daemon: this counter is not in the pins.
    let so_far = passed(&gateway.status()?);
    gateway.wait_status("checks go on", |status| passed(status) > so_far + 10)?;
    // What is true is still found out.
    site.nginx[0].kill()?;
    let down = |status: &Value| status["services"][0]["backends"][0]["health"] == "down";
    let status = gateway.wait_status("b1 down", down)?;
    let reason = &status["services"][0]["backends"][0]["reason"];
    ensure!(reason.as_str().is_some_and(|why| why.contains("refused")), "{reason}");
    // And done: rings are written with descriptors, too.
    for _ in 0..20 {
        get(site.client(), WEB)?;
    }
    limit_descriptors(&mut gateway, before.current.or(before.maximum))?;
    Ok(())
}

/// Resident memory of the daemon, KiB.
fn resident(gateway: &mut Gateway) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", gateway.child().pid()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn open_descriptors(gateway: &mut Gateway) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", gateway.child().pid()))?.count())
}

/// A connection that says half a sentence, or nothing, or cannot be made yet.
fn hostile(address: SocketAddr, number: usize) -> Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    // In progress, as a rule.
    let _ = rustix::net::connect(&socket, &address);
    if number.is_multiple_of(2) {
        let mut stream = TcpStream::from(socket);
        let _ = stream.write(b"GET /metrics HTTP/1.1\r\nX: ");
        return Ok(stream.into());
    }
    Ok(socket)
}

#[test]
fn ten_thousand_hostile_connections_cost_nothing() -> Result<()> {
    needs_root!();
    const CROWD: usize = 10_000;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised)?;
    let room = limit.maximum.map_or(CROWD, |most| (most as usize).saturating_sub(1000));
    let site = Site::new(1)?;
    let more = "check = { type = \"http\", interval = \"500ms\", fall = 3 }\n";
    let mut gateway = site.start(&site.service("web", WEB, more))?;
    let _ = gateway.status()?;
    let (memory, descriptors) = (resident(&mut gateway)?, open_descriptors(&mut gateway)?);
    let crowd = CROWD.min(room);
    let hold = || (0..crowd).map(|n| hostile(METRICS, n)).collect::<Result<Vec<_>>>();
    let held = site.net.gateway.run(hold)??;
    ensure!(held.len() == crowd);
    for _ in 0..10 {
        ensure!(gateway.status()?["from_pins"] == false, "the daemon does not answer");
    }
    let grown = resident(&mut gateway)?.saturating_sub(memory);
    ensure!(grown < 8 * 1024, "{grown} KiB more with {crowd} connections");
    let opened = open_descriptors(&mut gateway)?.saturating_sub(descriptors);
    ensure!(opened < 64, "{opened} descriptors more");
    drop(held);
    let healthy = || {
        let asked = ringway_net_tests::http(gateway.namespace(), METRICS, "/healthz");
        asked.map(drop).map_err(|error| format!("{error:#}"))
    };
    wait_for("metrics again", SOON, healthy)?;
    Ok(())
}

/// Of those who may use it: who asks besides is told what the pins hold, and waits no longer for
/// that than for the daemon.
#[test]
fn a_crowd_at_the_api_costs_nothing() -> Result<()> {
    needs_root!();
    const CROWD: usize = 500;
    let site = Site::new(1)?;
    let mut gateway = site.start(&site.service("web", WEB, ""))?;
    let _ = gateway.status()?;
    let (memory, descriptors) = (resident(&mut gateway)?, open_descriptors(&mut gateway)?);
    let socket = gateway.namespace().directory().join("api.sock");
    let half = |n: usize| -> Result<UnixStream> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.write_all(&b"GET /v1/status HTTP/1.1\r\nX: "[..n % 29])?;
        Ok(stream)
    };
    let held = (0..CROWD).map(half).collect::<Result<Vec<_>>>()?;
    let status = gateway.ringway(&["status", "-o", "json"])?.json()?;
    ensure!(status["services"][0]["name"] == "web", "{status}");
    let grown = resident(&mut gateway)?.saturating_sub(memory);
    ensure!(grown < 8 * 1024, "{grown} KiB more with {CROWD} connections");
    let opened = open_descriptors(&mut gateway)?.saturating_sub(descriptors);
    ensure!(opened < 64, "{opened} descriptors more");
    get(site.client(), WEB)?;
    drop(held);
    gateway.wait_status("the daemon itself", |status| status["from_pins"] == false)?;
    Ok(())
}

#[test]
fn a_file_system_that_hangs_does_not_block_other_changes() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let file = gateway.configuration().to_owned();
    fs::remove_file(&file)?;
    // Whoever opens it hangs until somebody writes.
    let mode = rustix::fs::Mode::RUSR;
    let fifo = file.with_extension("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)?;
    std::os::unix::fs::symlink(&fifo, &file)?;
    let answer =
        gateway.api(b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")?;
    ensure!(answer.contains("was not read and judged within"), "{answer}");
    let backend = site.backends(SERVICE_V4, 80)[0].ip();
    let body = format!("{{\"action\":\"drain\",\"service\":\"web\",\"backend\":\"{backend}\"}}");
    let head =
        format!("POST /v1/backend HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = gateway.api((head + &body).as_bytes())?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Lets go of it.
    drop(fs::OpenOptions::new().write(true).open(&fifo)?);
    fs::remove_file(&file)?;
    fs::write(&file, text)?;
    gateway.ringway(&["reload"])?.done()?;
    Ok(())
}
