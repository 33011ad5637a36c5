//! The guard of the default route: a gateway on such an interface is gone again unless an
//! administrator who can still reach the machine confirms it. In a namespace, where it is off
//! unless a test asks for it.

use std::process::Command;

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, SOON, Site, WEB, get, needs_root, tool};
use ringway_testnet::{Namespace, wait_for};

/// A gateway whose default route leads out by `eth0`, where its clients are.
fn site() -> Result<Site> {
    let site = Site::new(1)?;
    site.net.gateway.ip("route add default via 10.1.0.2\n")?;
    Ok(site)
}

/// On that gateway, with leave to be there, and so many seconds to be confirmed in.
fn guarded(site: &Site, time: &'static str) -> Result<Gateway> {
    let text = site.configuration(&site.service("web", WEB, ""));
    let text = text.replace("[node]\n", "[node]\nallow_default_route = true\n");
    Gateway::launch_with(&site.net.gateway, &text, seconds(time))
}

/// The guard holds, for so many seconds.
fn seconds(seconds: &'static str) -> impl FnOnce(&mut Command) {
    move |command| {
        command.env("RINGWAY_GUARD", seconds);
    }
}

fn has_program(namespace: &Namespace, interface: &str) -> Result<bool> {
    Ok(tool(namespace, "ip", &["link", "show", "dev", interface])?.out.contains("xdp"))
}

fn no_program(namespace: &Namespace, interface: &str) -> Result<()> {
    wait_for(format!("{interface} without a program"), SOON, || {
        match has_program(namespace, interface) {
            Ok(false) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    Ok(())
}

#[test]
fn refused_unless_allowed() -> Result<()> {
    needs_root!();
    let site = site()?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let mut gateway = Gateway::launch_with(&site.net.gateway, &text, seconds("on"))?;
    let (code, said) = gateway.refusal()?;
    ensure!(code == 2 && said.contains("eth0 is guarded: it carries the default route"), "{said}");
    ensure!(said.contains("allow_default_route = true under [node]"), "{said}");
    // In a namespace the guard is off.
    Gateway::start(&site.net.gateway, &text)?;
    Ok(())
}

#[test]
fn what_nobody_confirms_is_detached() -> Result<()> {
    needs_root!();
    let site = site()?;
    let ns = &site.net.gateway;
    let mut gateway = guarded(&site, "1")?;
    gateway.wait_serving()?;
    gateway.wait_status("time up", |status| status["healthy"] == false)?;
    no_program(ns, "eth0")?;
    let table = gateway.ringway(&["status"])?;
    let words = "eth0: nobody confirmed in time, so the program was taken off again";
    ensure!(table.code == 3 && table.out.contains(words), "{table:?}");
    ensure!(!table.out.contains("detached or replaced"), "said twice: {table:?}");
    ensure!(gateway.log().contains("no `ringway confirm` in time: detaching"), "{}", gateway.log());
    gateway.ringway(&["confirm"])?.complains(1, &[words])?;
    ensure!(gateway.ringway(&["status", "--ready"])?.code == 3);
    Ok(())
}

#[test]
fn what_is_killed_or_ended_in_time_is_detached_and_what_is_confirmed_stays() -> Result<()> {
    needs_root!();
    let site = site()?;
    let ns = &site.net.gateway;
    let mut gateway = guarded(&site, "on")?;
    gateway.wait_serving()?;
    let words = "eth0 carries the default route: confirm within ";
    gateway.wait_status("a finding", |status| {
        status["healthy"] == true && status["findings"].to_string().contains(words)
    })?;
    get(site.client(), WEB)?;
    ensure!(has_program(ns, "eth0")? && !gateway.pins().join("ifaces/eth0/link").exists());
    ensure!(gateway.pins().join("ifaces/eth1/link").exists(), "only eth0 is guarded");
    gateway.kill()?;
    no_program(ns, "eth0")?;
    gateway.ringway(&["confirm"])?.complains(3, &["does not run"])?;

    gateway.start_again_with(seconds("on"))?;
    gateway.wait_healthy()?;
    let said = gateway.terminate()?;
    ensure!(said.contains("stopped before `ringway confirm`: detached from eth0"), "{said}");
    no_program(ns, "eth0")?;

    // What is confirmed stays.
    gateway.start_again_with(seconds("on"))?;
    gateway.wait_healthy()?;
    gateway.ringway(&["confirm"])?.says(0, &["stays attached to eth0"])?;
    let status = gateway.wait_status("no finding", |status| {
        !status["findings"].to_string().contains("confirm within")
    })?;
    ensure!(status["healthy"] == true, "{status}");
    gateway.kill()?;
    ensure!(has_program(ns, "eth0")?);
    get(site.client(), WEB)?;

    // A program that is there already is swapped: nothing to confirm.
    gateway.start_again_with(seconds("on"))?;
    gateway.wait_healthy()?;
    let again = gateway.ringway(&["confirm", "-o", "json"])?;
    let said = again.json()?;
    ensure!(again.code == 0 && said["schema"] == "ringway.confirm/1", "{again:?}");
    ensure!(said["interfaces"].as_array().is_some_and(Vec::is_empty), "{said}");
    Ok(())
}
