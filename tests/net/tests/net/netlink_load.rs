//! Others change the machine's network configuration, fast or slowly: the daemon stays informed,
//! and answers.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, RtnlHeld, SOON, Site, WEB, get, needs_root};
use ringway_testnet::{Namespace, Signal, wait_for};
use serde_json::Value;

/// Times that changes are lost, one after the other was noticed. By its look every 30 s alone the
/// daemon would notice them in no less than `NOTICED`.
const STORMS: u8 = 3;
const NOTICED: Duration = Duration::from_secs(55);
/// The group RTNLGRP_NEIGH in a mask.
const NEIGHBOURS: u32 = 1 << 2;
/// The daemon asks the kernel how its programs stand several times meanwhile.
const HELD: Duration = Duration::from_secs(3);
const CHECK: &str = "check = { type = \"http\", interval = \"100ms\", fall = 30 }\n";

/// How many messages the kernel could not deliver to the daemon's subscription to changes.
fn lost(gateway: &mut Gateway) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/net/netlink", gateway.child().pid()))?;
    // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
    let found = text.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let groups = u32::from_str_radix(fields.get(3)?, 16).ok()?;
        let subscribed = fields.get(1) == Some(&"0") && groups & NEIGHBOURS != 0;
        subscribed.then(|| fields.get(8)?.parse().ok())?
    });
    found.with_context(|| format!("no subscription in {text}"))
}

/// A storm of changes that do not matter fills the daemon's queue, and changes that do are lost.
#[test]
fn changes_that_are_lost_are_noticed_all_the_same() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let ns = &site.net.gateway;
    let mut gateway = site.start(&site.service("web", WEB, ""))?;
    let set = |address: &str, mac: &str, state: &str| {
        format!("neigh replace {address} lladdr {mac} nud {state} dev eth1\n")
    };
    let noise = |state| set("10.2.0.200", "02:00:00:00:00:c8", state);
    let way = |status: &Value, n: usize| status["services"][0]["backends"][n]["next_hop"].clone();
    // After this the noise is known, and no look at the ways is pending.
    let mac = |storm: u8| format!("02:00:00:00:01:{storm:02}");
    ns.ip(&(noise("stale") + &set("10.2.0.11", &mac(STORMS), "permanent")))?;
    gateway.wait_status("a change that is heard", |status| way(status, 0)["mac"] == mac(STORMS))?;

    let mut waited = Duration::ZERO;
    for storm in 0..STORMS {
        let before = lost(&mut gateway)?;
        gateway.child().signal(Signal::STOP)?;
        let noises = (noise("reachable") + &noise("stale")).repeat(1000);
        wait_for("an overflow", SOON, || -> Result<()> {
            ns.ip(&noises)?;
            ensure!(lost(&mut gateway)? > before, "nothing is lost");
            Ok(())
        })?;
        let so_far = lost(&mut gateway)?;
        ns.ip(&set("10.2.0.11", &mac(storm), "permanent"))?;
        ns.ip("route add unreachable 10.2.0.12/32\n")?;
        ensure!(lost(&mut gateway)? >= so_far + 2, "the changes are not lost");
        gateway.child().signal(Signal::CONT)?;
        let began = Instant::now();
        wait_for("the lost changes", NOTICED, || {
            let status = gateway.status().map_err(|error| format!("{error:#}"))?;
            let noticed = way(&status, 0)["mac"] == mac(storm) && way(&status, 1).is_null();
            if noticed { Ok(()) } else { Err(status["services"].to_string()) }
        })?;
        waited += began.elapsed();
        ns.ip("route del unreachable 10.2.0.12/32\n")?;
        gateway.wait_status("a later change", |status| !way(status, 1).is_null())?;
    }
    ensure!(waited < NOTICED, "the lost changes were noticed in {waited:?}");
    ensure!(!gateway.log().contains("are not heard"), "{}", gateway.log());
    Ok(())
}

/// RTNL is one for the whole machine: a slow driver in any namespace holds it for all. The daemon
/// answers, and a dead backend leaves.
#[test]
fn the_daemon_works_while_rtnl_is_held() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let gateway = site.start(&site.service("web", WEB, CHECK))?;
    let elsewhere = Namespace::new("rtnl")?;
    let Some(held) = RtnlHeld::by(&elsewhere)? else { return Ok(()) };
    let blocked = thread::spawn(move || elsewhere.ip("link set lo mtu 60000\n"));
    let status = gateway.wait_turn(Instant::now() + HELD)?;
    ensure!(status["from_pins"] == false && status["healthy"] == true, "{}", status["problems"]);
    get(site.client(), WEB)?;
    site.nginx[0].kill()?;
    gateway.wait_status("b1 down", |s| s["services"][0]["backends"][0]["health"] == "down")?;
    for _ in 0..20 {
        ensure!(get(site.client(), WEB)? == "b2");
    }
    let ended = blocked.is_finished();
    drop(held);
    blocked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    ensure!(!ended, "RTNL was not held");
    Ok(())
}
