//! Which side an interface faces (`faces` in `[node] interfaces`), from the configuration to the
//! packet path.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, Site, WEB, get, is_silent, needs_root};
use serde_json::Value;

/// The site's configuration, with this element of `interfaces` for the backends' `eth1`.
fn configuration(site: &Site, eth1: &str) -> String {
    let text = site.configuration(&site.service("web", WEB, ""));
    let both = "[\"eth0\", \"eth1\"]";
    text.replace(both, &format!("[{{ name = \"eth0\", faces = \"clients\" }}, {eth1}]"))
}

fn dropped(status: &Value) -> u64 {
    let counters = status["counters"].as_array().into_iter().flatten();
    let wrong = counters.filter(|c| c["verdict"] == "drop" && c["reason"] == "wrong-interface");
    wrong.filter_map(|c| c["packets"].as_u64()).sum()
}

#[test]
fn a_backends_link_takes_no_requests() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let text = configuration(&site, "{ name = \"eth1\", faces = \"backends\" }");
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let status = gateway.status()?;
    let faces = [0, 1].map(|n| &status["interfaces"][n]["faces"]);
    ensure!(faces == ["clients", "backends"], "{faces:?}");
    get(site.client(), WEB)?;
    ensure!(dropped(&gateway.status()?) == 0, "answers of backends are dropped");

    let connect = || TcpStream::connect_timeout(&WEB, Duration::from_millis(500));
    ensure!(site.net.backends[0].ns.run(connect)?.is_err(), "a backend's request is served");
    gateway.wait_status("the drop to be counted", |status| dropped(status) > 0)?;
    get(site.client(), WEB)?;
    Ok(())
}

/// Neither where it is so at the start, nor where its route changes later.
#[test]
fn a_backend_behind_clients_has_no_way() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let refused =
        Gateway::start(ns, &configuration(&site, "{ name = \"eth1\", faces = \"clients\" }"));
    let why = format!("{:#}", refused.err().context("it starts")?);
    ensure!(why.contains("10.2.0.11 is reached by way of eth1, which faces clients only"), "{why}");

    let text = configuration(&site, "{ name = \"eth1\", faces = \"backends\" }");
    let gateway = Gateway::start(ns, &text)?;
    get(site.client(), WEB)?;
    let is_lost = |status: &Value| {
        let backend = &status["services"][0]["backends"][0];
        let why = "is reached by way of eth0, which faces clients only";
        backend["next_hop"].is_null() && backend["reason"].as_str().is_some_and(|r| r.contains(why))
    };
    ns.ip("route add 10.2.0.11 via 10.1.0.2\n")?;
    gateway.wait_status("why the backend has no way", is_lost)?;
    ensure!(is_silent(site.client(), WEB)?, "it is served all the same");
    ns.ip("route del 10.2.0.11 via 10.1.0.2\n")?;
    gateway.wait_status("a way again", |status| status["healthy"] == true)?;
    get(site.client(), WEB)?;
    Ok(())
}
