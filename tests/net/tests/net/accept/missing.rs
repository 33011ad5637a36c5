//! Backends that do not open connections of the gateway's cookies: the gateway notices, says which,
//! and does without cookies meanwhile.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Gateway, SERVICE_V4, SERVICE_V6, SOON, configuration, get, needs_root, ringway, service,
    write_secret,
};
use ringway_testnet::{Child, Nginx, Node, TwoArmed, wait_for};
use serde_json::Value;

use super::real::accept;
use super::{ACCEPT_STATUS, has_kfunc};
use crate::dsr::{Opener, some_backends_with_the_addresses};

const BACKENDS: usize = 3;
const RESETS: &str = "resets connections";

/// Backends that serve, none of them with `ringway accept`.
struct Place {
    gateway: Gateway,
    secret: PathBuf,
    web: SocketAddr,
    net: TwoArmed,
    _nginx: Vec<Nginx>,
    _decaps: Vec<Child>,
}

impl Place {
    fn new(forward: &str, opener: Opener, vip: IpAddr, v6: bool) -> Result<Place> {
        let (net, decaps) = some_backends_with_the_addresses(BACKENDS, opener)?;
        let secret = net.gateway.directory().join("secret");
        write_secret(&secret, &"5".repeat(32))?;
        let web = SocketAddr::new(vip, 80);
        // `accept` wants a listener for everything that it is told of.
        let at = [SERVICE_V4, SERVICE_V6].map(|vip| [80, crate::dsr::ECHO].map(|port| (vip, port)));
        let at = at.concat().into_iter().map(SocketAddr::from).collect::<Vec<_>>();
        let serve = |(n, node): (usize, &Node)| Nginx::start(&node.ns, &at, &format!("b{}", n + 1));
        let nginx = net.backends.iter().enumerate().map(serve).collect::<Result<_, _>>()?;
        let own =
            |node: &Node| node.addresses().into_iter().find(|address| address.is_ipv6() == v6);
        let backends: Vec<SocketAddr> =
            net.backends.iter().filter_map(own).map(|ip| SocketAddr::new(ip, 80)).collect();
        let more = format!(
            "forward = {forward:?}\nannounce = \"arp\"\nsyn = \"backend\"\n\
             check = {{ type = \"http\", interval = \"200ms\", timeout = \"200ms\", fall = 5 }}\n"
        );
        let body =
            configuration(&net.gateway, &["eth0", "eth1"], &service("web", web, &backends, &more));
        let shield = format!("[shield]\nsyn = {{ always = true, secret = {secret:?} }}\n");
        let gateway = Gateway::start(&net.gateway, &(body + &shield))?;
        Ok(Place { gateway, secret, web, net, _nginx: nginx, _decaps: decaps })
    }

    /// Who does not take cookies, and why, once that is `wanted`; and what answers SYNs then.
    fn waits(&self, what: &str, wanted: [&str; BACKENDS]) -> Result<()> {
        let status = self.gateway.wait_status(what, |status| {
            let backends = status["services"][0]["backends"].as_array();
            let mut why = backends.into_iter().flatten().map(|it| &it["cookies_refused"]);
            wanted.iter().all(|want| {
                why.next().is_some_and(|it| match it.as_str() {
                    Some(why) => !want.is_empty() && why.contains(want),
                    None => want.is_empty(),
                })
            })
        })?;
        let findings = status["findings"].as_array().into_iter().flatten();
        let mut found = findings.filter(|finding| finding["kind"] == "cookies-refused");
        let all = wanted.iter().all(|want| want.is_empty());
        ensure!(found.next().is_none() == all, "{}", status["findings"]);
        let in_force = if all { "backend" } else { "challenge" };
        wait_for(format!("{what}: {in_force}"), SOON, || {
            let shield = self.gateway.document(&["shield", "status"])?;
            let limits = &shield["limits"][0];
            anyhow::ensure!(limits["syn"] == "backend" && limits["syn_in_force"] == in_force);
            anyhow::Ok(())
        })?;
        self.serves().with_context(|| what.to_owned())
    }

    /// Clients get in, every one of them, and each backend has some.
    fn serves(&self) -> Result<()> {
        let mut names = [false; BACKENDS];
        for asked in 0.. {
            if asked >= 24 && names == [true; BACKENDS] {
                break;
            }
            ensure!(asked < 100, "{names:?}");
            let name = get(&self.net.client.ns, self.web)?;
            let n: usize = name.trim_start_matches('b').parse()?;
            names[n - 1] = true;
        }
        Ok(())
    }

    fn accept(&self, n: usize) -> Result<Child> {
        accept(&self.net.backends[n], &self.secret)
    }

    /// Each way that packets take.
    fn notices(&self) -> Result<()> {
        self.waits("none has it", [RESETS; BACKENDS])?;
        let all = (0..BACKENDS).map(|n| self.accept(n)).collect::<Result<Vec<_>>>()?;
        self.waits("all have it", ["", "", ""])?;
        self.changes_its_secret()?;
        drop(all);
        Ok(())
    }

    /// Backends first, which still take cookies of the secret before, then the gateway.
    fn changes_its_secret(&self) -> Result<()> {
        let told = || self.gateway.log().matches("takes none of").count();
        let (before, was) = (told(), self.fingerprint()?);
        std::fs::write(&self.secret, "7".repeat(32))?;
        for node in &self.net.backends {
            wait_for("the new key", SOON, || {
                let status: Value = ringway(&node.ns, &ACCEPT_STATUS)?.json()?;
                ensure!(status["former_fingerprint"] == *was, "{status}");
                Ok(())
            })?;
        }
        self.checked_again()?;
        ensure!(self.gateway.ringway(&["reload"])?.code == 0 && self.fingerprint()? != was);
        self.checked_again()?;
        ensure!(told() == before, "{}\n{}", self.ends(), self.gateway.log());
        self.waits("another secret", ["", "", ""])
    }

    /// Of each backend's segments, and what its kernel dropped.
    fn ends(&self) -> String {
        let of = |node: &Node| {
            let said = ringway(&node.ns, &ACCEPT_STATUS[..4]).map_or(String::new(), |ran| ran.out);
            let script = ["-c", "nstat -as | grep -E 'Drop|Overflow|Challenge|Limited|Reset'"];
            let kernel = node.ns.command("sh").args(script).output().map(|ran| ran.stdout);
            format!("{said}{}", String::from_utf8_lossy(&kernel.unwrap_or_default()))
        };
        self.net.backends.iter().map(of).collect()
    }

    fn fingerprint(&self) -> Result<String> {
        let shield = self.gateway.document(&["shield", "status"])?;
        let fingerprint = shield["syn_secret"]["fingerprint"].as_str();
        Ok(fingerprint.context("no fingerprint")?.to_owned())
    }

    /// Cookies were brought more often than a failure is forgiven.
    fn checked_again(&self) -> Result<()> {
        let opened = || -> Result<u64> {
            let ends = |node: &Node| -> Result<u64> {
                let status: Value = ringway(&node.ns, &ACCEPT_STATUS)?.json()?;
                let listeners = status["listeners"].as_array().into_iter().flatten();
                let ends = listeners.filter_map(|one| one["counters"].as_array()).flatten();
                Ok(ends.filter_map(|end| end["packets"].as_u64()).sum())
            };
            let all = self.net.backends.iter().map(ends).collect::<Result<Vec<_>>>()?;
            Ok(all.into_iter().min().unwrap_or_default())
        };
        let before = opened()?;
        // Each is an ACK and a byte at least.
        Ok(wait_for("more checks", SOON, || {
            ensure!(opened()? >= before + 10);
            Ok(())
        })?)
    }

    fn goes_through(&self) -> Result<()> {
        let (mut first, _second) = (self.accept(0)?, self.accept(1)?);
        self.waits("one lacks it", ["", "", RESETS])?;
        let third = self.accept(2)?;
        self.waits("all have it", ["", "", ""])?;
        first.kill()?;
        self.waits("it is gone", [RESETS, "", ""])?;
        drop(third);
        let other = self.net.gateway.directory().join("other");
        write_secret(&other, &"6".repeat(32))?;
        let _stranger = accept(&self.net.backends[2], &other)?;
        self.waits("another secret", [RESETS, "", "does not reply to"])
    }
}

#[test]
fn a_backend_without_it_is_named_and_the_service_works() -> Result<()> {
    needs_root!();
    if !has_kfunc()? {
        return Ok(());
    }
    Place::new("dsr-l2", Opener::Nobody, SERVICE_V4, false)?.goes_through()?;
    Place::new("dsr-gue", Opener::Ringway, SERVICE_V6, true)?.notices()
}
