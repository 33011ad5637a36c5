//! The daemon's control group refuses it memory or threads, or kills it: no backend counts as down,
//! and no request fails.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;

use anyhow::{Result, ensure};
use ringway_net_tests::{
    Cgroup, ECHO, Line, SERVICE_V4, SOON, Site, WEB, get, needs_root, service,
};
use ringway_testnet::{Signal, wait_for};
use serde_json::Value;

use super::restart::under_load;

const PROGRAM: SocketAddr = SocketAddr::new(SERVICE_V4, 81);
const TCP: &str =
    "protocol = [\"tcp\", \"udp\"]\ncheck = { type = \"tcp\", interval = \"100ms\", fall = 30 }\n";
const EXEC: &str =
    "check = { type = \"exec\", command = [\"/bin/true\"], interval = \"100ms\", fall = 30 }\n";

fn told(status: &Value, words: &str) -> bool {
    status["problems"].to_string().contains(words)
}

/// What a low MemoryMax= of the unit does: the kernel kills, and gives no error before.
#[test]
fn a_daemon_killed_for_its_memory_has_a_successor_and_no_request_fails() -> Result<()> {
    needs_root!();
    under_load(|gateway, _| {
        let Some(group) = Cgroup::new("memory", gateway.node()) else { return Ok(()) };
        group.add(gateway.child().pid())?;
        group.limit_memory(Some(1 << 20))?;
        let small = fs::read_to_string(gateway.configuration())?;
        let mut large = small.clone();
        for port in 1000..4000 {
            let target = SocketAddr::new(SERVICE_V4, port);
            large += &service(&format!("s{port}"), target, &["10.2.0.11:80".parse()?], "");
        }
        gateway.rewrite(&large)?;
        ensure!(gateway.ringway(&["reload"])?.code != 0, "1 MiB was enough for 3000 services");
        let end = gateway.child().wait(SOON)?;
        ensure!(end.status.signal() == Some(Signal::KILL.as_raw()), "{}: {}", end.status, end.log);
        ensure!(group.kills()? > 0);
        let status = gateway.ringway(&["status"])?;
        ensure!(status.out.starts_with("daemon not running since "), "{status:?}");
        gateway.rewrite(&small)?;
        gateway.start_healthy()?;
        ensure!(gateway.log().contains("took over the running packet path"));
        Ok(())
    })
}

/// The kernel refuses sockets with ENFILE then, and programs with ENOMEM.
#[test]
fn checks_for_which_there_is_no_kernel_memory_are_not_made() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let echo = site.echo(SERVICE_V4, 7)?;
    let udp =
        "check = { type = \"udp\", send = \"x\", port = 7, interval = \"100ms\", fall = 30 }\n";
    let services = site.service("echo", ECHO, TCP)
        + &site.service("web", WEB, udp)
        + &site.service("program", PROGRAM, EXEC);
    let Some(group) = Cgroup::new("memory", site.net.gateway.name()) else { return Ok(()) };
    let mut gateway = site.start(&services)?;
    let begun = gateway.log().len();
    let mut line = Line::open(site.client(), ECHO)?;
    if !group.starve(gateway.threads()?.into_iter().map(|(thread, _)| thread))? {
        return Ok(());
    }
    for cause in ["too many open files in system", "/bin/true cannot be run"] {
        gateway.child().wait_for_log(cause, SOON)?;
    }
    // Long enough for many more failures than a backend may have. The API cannot be asked: it
    // accepts no connection either.
    let so_far = group.refusals()?;
    wait_for("more checks that are not made", SOON, || match group.refusals() {
        Ok(refusals) if refusals > so_far + 10_000 => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    line.ask("still there?")?;
    get(site.client(), WEB)?;

    group.limit_memory(None)?;
    gateway.wait_healthy()?;
    ensure!(!gateway.log()[begun..].contains(" is down"), "{}", gateway.log());
    let causes = &gateway.status()?["checks_not_made"];
    let counts = causes.as_object().into_iter().flatten();
    ensure!(counts.filter_map(|(_, count)| count.as_u64()).sum::<u64>() > 50, "{causes}");
    drop(echo);
    gateway.wait_status("what is down, is", |status| told(status, "service echo"))?;
    Ok(())
}

/// What a low TasksMax= of the unit does.
#[test]
fn a_daemon_that_gets_no_thread_does_its_work() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let http = "check = { type = \"http\", interval = \"200ms\", fall = 15 }\n";
    let mut services = site.service("web", WEB, http) + &site.service("program", PROGRAM, EXEC);
    let Some(group) = Cgroup::new("pids", site.net.gateway.name()) else { return Ok(()) };
    let mut gateway = site.start(&services)?;
    let begun = gateway.log().len();
    group.add(gateway.child().pid())?;
    group.limit_threads(Some(1))?;
    gateway.wait_status("no program", |status| {
        told(status, "health checks cannot be made") && told(status, "/bin/true cannot be run")
    })?;

    // Rings, and questions to a neighbour that does not answer, are work for threads.
    let (real, nobody) = (site.backends(SERVICE_V4, 80), "10.2.0.99:80".parse()?);
    for port in 8000..8003 {
        let backends = [nobody, real[usize::from(port % 2)]];
        let target = (SERVICE_V4, port).into();
        services += &service(&format!("s{port}"), target, &backends, "announce = \"arp\"\n");
    }
    gateway.reload(&site.configuration(&services))?;
    for port in 8000..8003 {
        get(site.client(), (SERVICE_V4, port).into())?;
    }
    site.nginx[0].kill()?;
    let health = |status: &Value, service: usize| {
        status["services"][service]["backends"][0]["health"].as_str().map(str::to_owned)
    };
    gateway.wait_status("b1 down", |status| health(status, 0).as_deref() == Some("down"))?;
    for _ in 0..20 {
        ensure!(get(site.client(), WEB)? == "b2");
    }

    group.limit_threads(None)?;
    let status = gateway.wait_status("programs", |status| !told(status, "cannot be made"))?;
    ensure!(health(&status, 1).as_deref() == Some("up"), "{status}");
    ensure!(!gateway.log()[begun..].contains("program: backend"), "{}", gateway.log());
    Ok(())
}
