//! `syn = "challenge"`: a flood of SYNs meets the gateway alone, and clients get in.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use ringway_net_tests::{
    ECHO, Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, get, needs_root, ringway_lab,
    tool,
};
use ringway_testnet::{Namespace, wait_for, wait_until};

use super::capture::counted;

pub(crate) const ALWAYS: &str = "[shield]\nsyn = { always = true }\n";
pub(crate) const FLOOD: u64 = 20_000;

/// SYNs to the service from 65 536 addresses that nobody has.
pub(crate) fn flood(client: &Namespace, target: SocketAddr) -> Result<()> {
    let (to, port) = (target.ip().to_string(), target.port().to_string());
    let source = if target.is_ipv4() { "198.18.0.0/16" } else { "2001:2::/112" };
    ringway_lab(
        client,
        &[
            &["gen", "--port", "af_packet:eth0", "--protocol", "tcp-syn", "--rate", "20k"][..],
            &["--source", source, "--destination", &to, "--destination-ports", &port],
            &["--count", &FLOOD.to_string()],
        ]
        .concat(),
    )?
    .done()?;
    Ok(())
}

/// Waits until no more SYNs of a flood are answered. A ring that is full loses some of them.
pub(crate) fn wait_answered(gateway: &Gateway, reason: &str, before: u64) -> Result<()> {
    let mut last = 0;
    wait_for("answers to the SYNs", SOON, || {
        let now = counted(gateway, &[reason]).map_err(|error| format!("{error:#}"))? - before;
        let all = now == std::mem::replace(&mut last, now) && now > FLOOD / 10 * 9;
        if all { Ok(()) } else { Err(format!("{now} of {FLOOD} answered")) }
    })?;
    Ok(())
}

/// The first connection of a client is challenged, the next is not.
fn lets_clients_in(gateway: &Gateway, client: &Namespace, target: SocketAddr) -> Result<()> {
    let both = || -> Result<[u64; 2]> {
        Ok([counted(gateway, &["syn-challenged"])?, counted(gateway, &["challenge-met"])?])
    };
    let before = both()?;
    get(client, target)?;
    let first = both()?;
    ensure!(first == before.map(|count| count + 1), "{target}: {before:?}, then {first:?}");
    get(client, target)?;
    let second = both()?;
    ensure!(second == first, "{target}: challenged again: {first:?}, then {second:?}");
    Ok(())
}

#[test]
fn a_flood_of_syns_reaches_no_backend() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let challenge = "syn = \"challenge\"\n";
    let body = ALWAYS.to_owned()
        + &site.service("web", WEB, challenge)
        + &site.service("six", SocketAddr::new(SERVICE_V6, 80), challenge)
        + &site.service("echo", ECHO, challenge);
    let gateway = site.start(&body)?;
    for target in [WEB, SocketAddr::new(SERVICE_V6, 80)] {
        lets_clients_in(&gateway, site.client(), target)?;
    }
    let mut line = Line::open(site.client(), ECHO)?;
    line.ask("before")?;
    let before = (counted(&gateway, &["nat-forward"])?, counted(&gateway, &["syn-challenged"])?);
    flood(site.client(), WEB)?;
    wait_answered(&gateway, "syn-challenged", before.1)?;
    let forwarded = counted(&gateway, &["nat-forward"])? - before.0;
    ensure!(forwarded == 0, "{forwarded} packets went to a backend");
    line.ask("after")?;
    get(site.client(), WEB)?;
    Ok(())
}

/// As of a client whose RSTs meet a node with another secret.
#[test]
fn replies_that_fit_no_answer_are_told() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let body = ALWAYS.to_owned() + &site.service("web", WEB, "syn = \"challenge\"\n");
    let gateway = site.start(&body)?;
    get(site.client(), WEB)?;
    let shield = || gateway.document(&["shield", "status"]);
    let counts = || -> Result<[u64; 3]> {
        let counted =
            |name: &str| shield()?["limits"][0][name]["packets"].as_u64().context("no count");
        Ok([counted("syns_answered")?, counted("answers_met")?, counted("answers_failed")?])
    };
    ensure!(counts()? == [1, 1, 0], "{:?}", counts()?);
    let secret = shield()?["syn_secret"].take();
    ensure!(secret["fingerprint"].as_str().is_some_and(|it| it.len() == 8), "{secret}");
    ensure!(secret["file"].is_null(), "{secret}");

    let rules = "add table ip t; add chain ip t c { type filter hook output priority 0; }; \
                 add rule ip t c tcp flags rst tcp sequence set 7";
    tool(site.client(), "nft", &[rules])?.done()?;
    // A source that is proven is not challenged.
    site.client()
        .ip("addr add 10.1.0.77/24 dev eth0\nroute change default via 10.1.0.1 src 10.1.0.77\n")?;
    site.client().ip(&format!("route add {}/32 via 10.1.0.1 src 10.1.0.77\n", WEB.ip()))?;
    site.client().run(|| {
        std::thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    let _ = site.client().enter();
                    std::net::TcpStream::connect_timeout(&WEB, SOON / 20)
                });
            }
        });
    })?;
    let told = || match gateway.status() {
        Ok(status) => status["findings"].to_string().contains("syn-answers-fail"),
        Err(_) => false,
    };
    wait_until("the finding", SOON, told)?;
    let [answered, met, failed] = counts()?;
    ensure!(answered > failed && failed >= 20 && met == 1, "{:?}", counts()?);
    Ok(())
}

/// One that others may read is refused by a reload; a daemon that starts says so, and serves.
#[test]
fn a_secret_is_secret() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let file = site.net.gateway.directory().join("secret");
    std::fs::write(&file, "5".repeat(32))?;
    let shield = format!("[shield]\nsyn = {{ always = true, secret = {file:?} }}\n");
    let body = shield + &site.service("web", WEB, "syn = \"challenge\"\n");
    let gateway = site.start(&body)?;
    ensure!(gateway.log().contains("others than its owner may read"), "{}", gateway.log());
    let is_found = || -> Result<bool> {
        Ok(gateway.status()?["findings"].to_string().contains("syn-secret-unusable"))
    };
    ensure!(is_found()?, "no finding: {}", gateway.status()?["findings"]);
    let said = gateway.ringway(&["reload"])?;
    ensure!(said.code != 0 && said.err.contains("chmod 600"), "{said:?}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
    gateway.ringway(&["reload"])?.says(0, &["~ secret of answers to SYNs: "])?;
    ensure!(!is_found()?, "still found");
    std::fs::write(&file, "6".repeat(32))?;
    let said = gateway.ringway(&["reload", "--dry-run"])?;
    ensure!(said.out.contains(" becomes ") && said.out.contains("for 128 s more"), "{said:?}");
    std::fs::write(&file, "5".repeat(32))?;
    let said = gateway.ringway(&["reload"])?;
    ensure!(said.out.contains("changes nothing"), "{said:?}");
    let secrets = MapHandle::from_pinned_path(gateway.pins().join("maps/syn_secrets"))?;
    let secrets = secrets.lookup(&[0; 4], MapFlags::ANY)?.context("no keys")?;
    ensure!(secrets.starts_with(&[0x55; 16]), "another key than the file's");
    lets_clients_in(&gateway, site.client(), WEB)
}
