//! The packet path outlives the daemon.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    CHECK, Device, Gateway, Load, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, binary, get, is_silent,
    needs_root, tool,
};
use ringway_testnet::{Namespace, wait_until};
use serde_json::Value;

fn start(site: &Site) -> Result<Gateway> {
    start_binary(binary()?, site)
}

fn start_binary(binary: PathBuf, site: &Site) -> Result<Gateway> {
    let web6 = SocketAddr::new(SERVICE_V6, 80);
    let services = site.service("web", WEB, CHECK) + &site.service("web6", web6, CHECK);
    let text = site.configuration(&services);
    let mut gateway = Gateway::launch_binary(binary, &site.net.gateway, &text, |_| ())?;
    gateway.wait_healthy()?;
    Ok(gateway)
}

/// Asks on a connection of its own, again and again, at a pace at which no port of the nat pool
/// comes round again while the backend, which closes first, holds it in TIME_WAIT.
fn open_at_pace(client: &Namespace, opener: &Opener) -> Result<()> {
    while !opener.stop.load(Ordering::Relaxed) {
        let asked = opener.answers.load(Ordering::Relaxed);
        get(client, WEB).with_context(|| format!("after {asked} answers"))?;
        opener.answers.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[derive(Default)]
struct Opener {
    answers: AtomicU64,
    stop: AtomicBool,
}

impl Opener {
    /// Waits for fifty more answers, or the first failure.
    fn goes_on(&self, thread: &JoinHandle<Result<()>>) -> Result<()> {
        let answers = || self.answers.load(Ordering::Relaxed);
        let before = answers();
        let more = || answers() > before + 50 || thread.is_finished();
        Ok(wait_until("more answers on new connections", SOON, more)?)
    }
}

/// wrk on lasting connections over IPv4 and IPv6, and new connections, while `disturb` does what it
/// does, which may wait for more of them; no request may fail.
pub(super) fn under_load(
    disturb: impl FnOnce(&mut Gateway, &dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    under_load_of(binary()?, disturb)
}

/// The same with a gateway that another binary has started.
pub(super) fn under_load_of(
    binary: PathBuf,
    disturb: impl FnOnce(&mut Gateway, &dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let site = Site::new(2)?;
    let mut gateway = start_binary(binary, &site)?;
    let (client, opener) = (site.client().clone(), Arc::new(Opener::default()));
    let opens = opener.clone();
    let opening = thread::spawn(move || open_at_pace(&client, &opens));
    let mut loads = Vec::new();
    for (address, connections) in [(format!("{SERVICE_V4}"), 20), (format!("[{SERVICE_V6}]"), 10)] {
        loads.push(Load::start(site.client(), &format!("http://{address}/"), connections, 300)?);
    }
    opener.goes_on(&opening)?;
    disturb(&mut gateway, &|| opener.goes_on(&opening))?;
    let running = loads.iter_mut().all(Load::running);
    ensure!(running, "the load ended before the disturbance did");
    opener.goes_on(&opening)?;
    for (n, load) in loads.into_iter().enumerate() {
        let outcome = load.stop()?;
        ensure!(outcome.errors == 0 && outcome.requests > 100, "load {n}: {outcome:?}");
    }
    opener.stop.store(true, Ordering::Relaxed);
    opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let status =
        gateway.wait_status("a healthy gateway afterwards", |status| status["healthy"] == true)?;
    let mut counters = status["counters"].as_array().into_iter().flatten();
    let refused = |verdict: &Value, reason: &Value| {
        verdict == "drop" || verdict == "aborted" || reason.to_string().contains("reset")
    };
    let lost = counters.find(|c| refused(&c["verdict"], &c["reason"]));
    ensure!(lost.is_none(), "a packet was lost: {lost:?}");
    Ok(())
}

#[test]
fn takeovers_under_load_fail_no_request() -> Result<()> {
    needs_root!();
    under_load(|gateway, go_on| {
        for _ in 0..2 {
            gateway.kill()?;
            let status = gateway.ringway(&["status"])?;
            ensure!(status.code == 3, "{status:?}");
            ensure!(status.out.starts_with("daemon not running since "), "{}", status.out);
            go_on()?;
            gateway.start_healthy()?;
            ensure!(gateway.log().contains("took over the running packet path"));
        }
        let said = gateway.terminate()?;
        ensure!(said.contains("traffic still flows; `ringway detach` stops it"), "SIGTERM: {said}");
        go_on()?;
        // Into other slots.
        let text = std::fs::read_to_string(gateway.configuration())?;
        gateway.rewrite(&text.replace("[\"eth0\", \"eth1\"]", "[\"eth1\", \"eth0\"]"))?;
        gateway.start_healthy()
    })
}

/// Killed at many moments of a start, so also between two writes of a table.
#[test]
fn daemons_killed_while_they_take_over_fail_no_request() -> Result<()> {
    needs_root!();
    under_load(|gateway, _| {
        gateway.kill()?;
        for n in 0..12 {
            gateway.start_again()?;
            gateway.wait_progress(n)?;
            gateway.kill()?;
        }
        gateway.start_healthy()
    })
}

#[test]
fn a_first_start_that_is_killed_leaves_nothing_that_hinders() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let text = site.configuration(&site.service("web", WEB, CHECK));
    for n in 0..12 {
        let mut gateway = Gateway::launch(&site.net.gateway, &text)?;
        gateway.wait_progress(n)?;
        gateway.kill()?;
        if n % 3 == 0 {
            gateway.start_healthy()?;
            get(site.client(), WEB)?;
            gateway.kill()?;
        }
        let done = gateway.ringway(&["detach", "--verify"])?;
        ensure!(done.code == 0 && !gateway.pins().exists(), "after {n}: {done:?}");
    }
    Ok(())
}

#[test]
fn detach_waits_for_the_daemons_end_and_leaves_nothing() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let mut gateway = start(&site)?;
    let managed = || -> Result<usize> {
        let shown = tool(&site.net.gateway, "ip", &["neigh", "show"])?.done()?.out;
        Ok(shown.lines().filter(|line| line.contains(" managed")).count())
    };
    ensure!(managed()? == 4, "two backends of two families are not kept resolved");
    ensure!(Device::read(&site.net.gateway, "eth0")?.program != 0);

    // Beside a daemon neither another one nor this.
    let pid = gateway.child().pid().to_string();
    let same = gateway.ringway(&["run"])?;
    ensure!(same.code == 1 && same.err.starts_with("ringway: "), "same configuration: {same:?}");
    ensure!(same.err.contains(&pid) && same.err.lines().count() <= 2, "{same:?}");
    let text = site.configuration(&site.service("web", WEB, CHECK));
    let text = text.replace("api.sock", "other.sock") + "[metrics]\nlisten = \"off\"\n";
    let other = site.net.gateway.directory().join("other.toml");
    std::fs::write(&other, text)?;
    let other = ["run", "-c", &other.to_string_lossy()];
    gateway.plain(&other)?.complains(1, &[&pid]).context("another socket")?;
    let busy = gateway.ringway(&["detach"])?;
    ensure!(busy.code == 1 && busy.err.contains(&pid), "detach beside a daemon: {busy:?}");
    get(site.client(), WEB).context("after a refused detach")?;

    gateway.terminate()?;
    let done = gateway.ringway(&["detach", "--verify"])?;
    ensure!(done.code == 0 && done.out.contains("verified"), "{done:?}");
    for interface in ["eth0", "eth1"] {
        ensure!(Device::read(&site.net.gateway, interface)?.program == 0, "{interface}");
        ensure!(done.out.contains(&format!("program on {interface}")), "{}", done.out);
    }
    ensure!(!gateway.pins().exists(), "{} is left", gateway.pins().display());
    ensure!(managed()? == 0, "managed neighbours are left");
    ensure!(!Path::new(&site.net.gateway.directory().join("api.sock")).exists());
    ensure!(is_silent(site.client(), WEB)?, "who answers now?");

    gateway.ringway(&["detach", "--verify"])?.says(0, &["nothing to remove"])?;
    ringway_net_tests::ringway(&site.net.gateway, &["detach", "--node", "nosuch"])?
        .complains(1, &["node nosuch is not loaded"])?;
    let status = gateway.ringway(&["status"])?;
    ensure!(
        status.code == 3
            && (status.err.contains("nothing is loaded")
                || status.err.contains("there is no node")),
        "{status:?}"
    );
    Ok(())
}

/// Where pins cannot be seen, as under `ip netns exec`, nothing is said to be gone, and nobody is
/// told to take ours away.
#[test]
fn what_cannot_be_seen_is_not_said_to_be_gone() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let mut gateway = start(&site)?;
    gateway.terminate()?;
    let blindly = |words: &str| -> Result<(Option<i32>, String)> {
        let (binary, file) = (binary()?, gateway.configuration().to_owned());
        let script = format!(
            "while umount -l /sys/fs/bpf 2>/dev/null; do :; done; exec {} {words} -c {}",
            binary.display(),
            file.display()
        );
        let mut command = site.net.gateway.command("unshare");
        let ran = command.args(["--mount", "sh", "-c", &script]).output()?;
        let said = [ran.stdout, ran.stderr].concat();
        Ok((ran.status.code(), String::from_utf8_lossy(&said).into_owned()))
    };
    for (words, code) in [("detach --verify", 1), ("check --upgrade", 3), ("status", 3), ("run", 1)]
    {
        let (ended, said) = blindly(words)?;
        ensure!(ended == Some(code), "{words}: {ended:?} {said}");
        ensure!(said.contains("cannot be seen here") && said.contains("nsenter --net="), "{said}");
        ensure!(!said.contains("is not this node's"), "{words}: {said}");
        get(site.client(), WEB).with_context(|| words.to_owned())?;
    }
    gateway.start_healthy()
}
