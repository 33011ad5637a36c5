//! Gateways with `syn = "backend"`, and backends with `ringway accept`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, binary, get, needs_root, tool, write_secret,
};
use ringway_testnet::{Child, Node, wait_until};

use super::has_kfunc;
use crate::capture::counted;
use crate::dsr::{Dsr, ECHO, Opener};

struct Place {
    accepts: Vec<Child>,
    dsr: Dsr,
    secret: PathBuf,
}

impl Place {
    fn new(opener: Opener) -> Result<Option<Place>> {
        if !has_kfunc()? {
            return Ok(None);
        }
        let dsr = Dsr::new(opener)?;
        let secret = dsr.net.gateway.directory().join("secret");
        write_secret(&secret, &"5".repeat(32))?;
        let accepts = dsr.net.backends.iter().map(|node| accept(node, &secret));
        Ok(Some(Place { accepts: accepts.collect::<Result<_>>()?, dsr, secret }))
    }

    fn gateway(&self, forward: &str, v6: bool) -> Result<Gateway> {
        Gateway::start(&self.dsr.net.gateway, &self.text(forward, v6))
    }

    fn text(&self, forward: &str, v6: bool) -> String {
        let plain = self.dsr.configuration(forward, vip(v6), v6);
        let body = plain.replace("[[service]]", "[[service]]\nsyn = \"backend\"");
        body + &format!("[shield]\nsyn = {{ always = true, secret = {:?} }}\n", self.secret)
    }

    fn ended(&self, end: &str) -> Result<u64> {
        self.dsr.net.backends.iter().map(|node| super::counted(&node.ns, end)).sum()
    }

    /// Every connection is answered for by the gateway, and opened at a backend.
    fn serves(&self, gateway: &mut Gateway, forward: &str, v6: bool) -> Result<()> {
        gateway.reload(&self.text(forward, v6))?;
        gateway.wait_healthy()?;
        let counts = || anyhow::Ok((self.ended("opened")?, counted(gateway, &["syn-answered"])?));
        let before = counts()?;
        for _ in 0..20 {
            get(self.dsr.client(), (vip(v6), 80).into())?;
        }
        let after = counts()?;
        let (opened, answered) = (after.0 - before.0, after.1 - before.1);
        ensure!(opened == 20 && answered == 20, "{opened} opened, {answered} answered");
        ensure!(self.ended("no-cookie")? == 0 && self.ended("refused")? == 0);
        Ok(())
    }
}

fn vip(v6: bool) -> IpAddr {
    if v6 { SERVICE_V6 } else { SERVICE_V4 }
}

pub(super) fn accept(node: &Node, secret: &Path) -> Result<Child> {
    let mut command = node.ns.command(binary()?);
    command.args(["accept", "-i", "eth0", "--secret"]).arg(secret);
    for vip in [SERVICE_V4, SERVICE_V6] {
        for port in [80, ECHO] {
            command.args(["--listen", &SocketAddr::new(vip, port).to_string()]);
        }
    }
    let mut child = node.ns.spawn(command)?;
    child.wait_for_log("attached to eth0", SOON)?;
    Ok(child)
}

#[test]
fn a_gateway_answers_and_backends_open() -> Result<()> {
    needs_root!();
    for (opener, all) in
        [(Opener::Nobody, &["dsr-l2"][..]), (Opener::Ringway, &["dsr-ipip", "dsr-gue"])]
    {
        let Some(place) = Place::new(opener)? else { return Ok(()) };
        let mut gateway = place.gateway(all[0], false)?;
        for forward in all {
            place.serves(&mut gateway, forward, false)?;
            place.serves(&mut gateway, forward, true)?;
        }
    }
    Ok(())
}

/// The gateway, `ringway accept`, and both.
#[test]
fn a_connection_survives_restarts() -> Result<()> {
    needs_root!();
    let Some(mut place) = Place::new(Opener::Nobody)? else { return Ok(()) };
    let gateway = place.gateway("dsr-l2", false)?;
    let mut line = Line::open(place.dsr.client(), SocketAddr::new(SERVICE_V4, ECHO))?;
    // Much more than a segment, either way.
    line.ask(&"before".repeat(10_000)).context("before")?;
    place.accepts.clear();
    line.ask("accept is gone").context("accept is gone")?;
    drop(gateway);
    let _gateway = place.gateway("dsr-l2", false)?;
    line.ask("both began anew").context("gateway")?;
    let accepts = place.dsr.net.backends.iter().map(|node| accept(node, &place.secret));
    place.accepts = accepts.collect::<Result<_>>()?;
    line.ask("after").context("after")?;
    get(place.dsr.client(), (SERVICE_V4, 80).into())?;
    Ok(())
}

/// A client's data open the connection in its place; until then nobody speaks.
#[test]
fn a_lost_acknowledgement() -> Result<()> {
    needs_root!();
    let Some(place) = Place::new(Opener::Nobody)? else { return Ok(()) };
    let nft = |words: &str| tool(place.dsr.client(), "nft", &[words])?.done();
    let accepted = || place.dsr.echo.iter().map(|echo| echo.seen.peers().len()).sum::<usize>();
    let mut gateway = place.gateway("dsr-l2", false)?;
    for v6 in [false, true] {
        gateway.reload(&place.text("dsr-l2", v6))?;
        gateway.wait_healthy()?;
        nft(
            "add table inet loss; add chain inet loss o { type filter hook output priority 0; }; \
             add rule inet loss o tcp flags == ack counter drop",
        )?;
        let before = accepted();
        let mut line = Line::open(place.dsr.client(), SocketAddr::new(vip(v6), ECHO))?;
        wait_until("a loss", SOON, || {
            nft("list ruleset").is_ok_and(|rules| !rules.out.contains("packets 0 "))
        })?;
        nft("delete table inet loss")?;
        ensure!(accepted() == before, "a server knows of it");
        line.ask("anybody?").with_context(|| vip(v6).to_string())?;
        ensure!(accepted() == before + 1);
    }
    Ok(())
}
