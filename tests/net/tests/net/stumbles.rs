//! What a newcomer stumbles over is said, with its remedy.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, Ran, SOON, Site, WEB, binary, get, needs_root, ringway};
use ringway_testnet::{Namespace, wait_for};

const CHECK: &str = "check = { type = \"tcp\", interval = \"200ms\", fall = 5 }\n";

fn said(list: &serde_json::Value, words: &str) -> bool {
    list.to_string().contains(words)
}

/// A copy of the binary that any user may run, removed when dropped.
struct ForAll(PathBuf);

impl ForAll {
    fn new() -> Result<ForAll> {
        let copy = std::env::temp_dir().join(format!("ringway-for-all-{}", std::process::id()));
        fs::copy(binary()?, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        Ok(ForAll(copy))
    }

    /// Runs it as nobody.
    fn run(&self, namespace: &Namespace, arguments: &[&str]) -> Result<Ran> {
        let mut command = namespace.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        Ok(command.arg(&self.0).args(arguments).output().context("setpriv")?.into())
    }
}

impl Drop for ForAll {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn not_being_allowed_to_look_is_not_nothing_being_there() -> Result<()> {
    needs_root!();
    if fs::metadata("/sys/fs/bpf")?.permissions().mode() & 0o005 != 0 {
        eprintln!("skipped: everybody may look into /sys/fs/bpf here");
        return Ok(());
    }
    let namespace = Namespace::new("gw")?;
    let nobody = ForAll::new()?;
    for arguments in [
        &["detach"][..],
        &["detach", "--verify"],
        &["detach", "--node", "gw", "--verify"],
        &["status"],
        &["status", "--node", "gw"],
    ] {
        let ran = nobody.run(&namespace, arguments)?;
        ensure!(ran.code == 1 && ran.err.contains("root"), "{arguments:?}: {ran:?}");
        ensure!(!ran.out.contains("verified"), "{arguments:?}: {ran:?}");
    }
    Ok(())
}

#[test]
fn a_nat_address_that_nobody_has() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let nat = "[nat]\nflows = 65536\naddresses = [\"10.2.0.77\"]\n\n";
    let text = site.configuration(&(nat.to_owned() + &site.service("web", WEB, "")));
    let (code, words) = Gateway::launch(ns, &text)?.refusal()?;
    ensure!(code == 2 && words.contains("nobody answers for 10.2.0.77"), "{words}");
    ensure!(words.contains("ip address add 10.2.0.77/32 dev eth1"), "{words}");
    // As told.
    ns.ip("addr add 10.2.0.77/32 dev eth1\n")?;
    let _gateway = Gateway::start(ns, &text)?;
    get(site.client(), WEB)?;
    Ok(())
}

/// The backend sends its replies to a MAC address that nobody has.
#[test]
fn requests_go_out_and_nothing_comes_back() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = site.start(&site.service("web", WEB, ""))?;
    let backend = &site.net.backends[0].ns;
    backend.ip("neigh replace 10.2.0.1 lladdr 02:00:00:00:00:99 nud permanent dev eth0\n")?;
    let mut answered = false;
    let status = wait_for("silence noticed", SOON, || {
        // Some at once: those of the last ten seconds count.
        for _ in 0..5 {
            let connect = || TcpStream::connect_timeout(&WEB, Duration::from_millis(200)).is_ok();
            answered |= site.client().run(connect).map_err(|error| error.to_string())?;
        }
        let status = gateway.status().map_err(|error| format!("{error:#}"))?;
        let noticed = status["healthy"] == false && said(&status["problems"], "no backend replies");
        if noticed { Ok(status) } else { Err(status["problems"].to_string()) }
    })?;
    ensure!(!answered, "the test's trap does not hold");
    ensure!(said(&status["problems"], "ringway check --host"), "{status}");
    backend.ip("neigh del 10.2.0.1 dev eth0\n")?;
    get(site.client(), WEB)?;
    gateway.wait_status("replies noticed", |status| status["healthy"] == true)?;
    Ok(())
}

/// The far ends of these veth pairs are in other namespaces: `check --host` counts what that hides,
/// and nobody else tells.
#[test]
fn what_can_never_be_seen_is_no_finding() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    // A tunnel's header does not fit the links, as looking at the machine finds out.
    let tunnelled = site.service("dns", WEB, "forward = \"dsr-gue\"\nprotocol = \"udp\"\n");
    let gateway = site.start(&tunnelled)?;
    let looked = |status: &serde_json::Value| said(&status["findings"], "too big");
    let status = gateway.wait_status("the machine looked at", looked)?;
    ensure!(!said(&status["findings"], "far end"), "{status}");
    ensure!(!gateway.log().contains("far end"), "{}", gateway.log());
    let ran = check_host(&site.net.gateway, gateway.configuration())?;
    ensure!(ran.out.contains(" unknown"), "{ran:?}");
    Ok(())
}

/// Whose machine loses power fails its checks first and has no MAC address then: the log has both,
/// and its return.
#[test]
fn why_a_backend_is_down_is_logged_as_it_becomes_known() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = site.start(&site.service("web", WEB, CHECK))?;
    let logged = |words: &str| {
        wait_for(words, SOON, || match gateway.log() {
            log if log.contains(words) => Ok(()),
            log => Err(log),
        })
    };
    site.set_link(0, false)?;
    logged("web: backend 10.2.0.11:80 is down: no answer on port 80")?;
    logged(
        "web: backend 10.2.0.11:80: no way to it: next hop 10.2.0.11 on eth1 has not answered ARP",
    )?;
    // Status follows when the tables are written.
    gateway.wait_status("what to do next", |s| {
        said(&s["problems"], "ip neighbour show dev eth1; ping -c 3 10.2.0.11")
    })?;
    site.set_link(0, true)?;
    logged("web: backend 10.2.0.11:80: there is a way to it again, by eth1")?;
    logged("web: backend 10.2.0.11:80 is up")?;
    Ok(())
}

fn check_host(namespace: &Namespace, file: &Path) -> Result<Ran> {
    ringway(namespace, &["check", "--host", "-c", &file.to_string_lossy()])
}
