//! A reload for which the tables or the kernel's memory have no room is refused, and traffic goes
//! on as before.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ringway_net_tests::{Cgroup, Gateway, SERVICE_V4, Site, WEB, get, needs_root, service};
use serde_json::Value;

use super::restart::under_load;

const NO_MEMORY: &str = "cannot create map rw_ring: Cannot allocate memory";

/// A service on this port with so many backends.
fn wide(port: u16, count: u16) -> String {
    let backend = |n| {
        let address = ["10.2.0.11", "10.2.0.12"][usize::from(n % 2)];
        format!("{address}:{}", 8000 + n / 2).parse().ok()
    };
    let backends: Vec<SocketAddr> = (0..count).filter_map(backend).collect();
    service(&format!("wide{port}"), (SERVICE_V4, port).into(), &backends, "announce = \"arp\"\n")
}

fn said(list: &Value, words: &str) -> bool {
    list.to_string().contains(words)
}

fn services(status: &Value) -> usize {
    status["services"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_reload_with_more_backends_than_tables_have_room_for() -> Result<()> {
    needs_root!();
    under_load(|gateway, _| {
        let small = fs::read_to_string(gateway.configuration())?;
        let with = |count| (0..count).map(|n| wide(9000 + n, 1000)).collect::<String>();
        // The smallest tables have room for 16 384.
        gateway.rewrite(&(small.clone() + &with(17)))?;
        for arguments in [&["reload", "--dry-run"][..], &["reload"]] {
            let ran = gateway.ringway(arguments)?;
            let cause = "17004 backends (each service and protocol counts), and the tables";
            let fits = ran.err.contains(cause) && ran.err.contains("have room for 16384");
            ensure!(ran.code == 2 && fits && ran.err.contains("`ringway detach`"), "{ran:?}");
        }
        let status = gateway.status()?;
        ensure!(said(&status["findings"], "have room for 16384"), "{}", status["findings"]);
        ensure!(status["healthy"] == true && services(&status) == 2, "{}", status["problems"]);
        // Nearly full, and back.
        for text in [small.clone() + &with(16), small] {
            gateway.reload(&text)?;
        }
        let status = gateway.status()?;
        ensure!(!said(&status["findings"], "was refused at"), "{}", status["findings"]);
        Ok(())
    })
}

#[test]
fn rings_for_which_there_is_no_memory_are_written_when_there_is() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let check = "check = { type = \"http\", interval = \"200ms\", fall = 15 }\n";
    let text = site.configuration(&site.service("web", WEB, check));
    let Some(group) = Cgroup::new("memory", site.net.gateway.name()) else { return Ok(()) };
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let threads = gateway.threads()?.into_iter();
    let mut writers =
        threads.filter(|(_, name)| name == "packet-path").map(|(id, _)| id).peekable();
    ensure!(writers.peek().is_some(), "no thread packet-path");
    if !group.starve(writers)? {
        return Ok(());
    }

    gateway.rewrite(&(text + &wide(9000, 10) + &wide(9001, 11)))?;
    let ran = gateway.ringway(&["reload"])?;
    let remedy = "give the control group more memory (MemoryMax= of the unit)";
    ensure!(ran.code == 1 && ran.err.contains(NO_MEMORY) && ran.err.contains(remedy), "{ran:?}");
    let status = gateway.status()?;
    ensure!(said(&status["findings"], NO_MEMORY), "{}", status["findings"]);
    ensure!(!said(&status["findings"], "correct the file"), "{}", status["findings"]);
    ensure!(services(&status) == 1, "{}", status["services"]);
    for _ in 0..20 {
        get(site.client(), WEB)?;
    }

    // The death of a backend needs a new ring, too.
    site.nginx[0].kill()?;
    gateway.wait_status("the cause", |status| {
        let dead = status["services"][0]["backends"][0]["health"] == "down";
        dead && said(&status["problems"], NO_MEMORY)
    })?;
    group.limit_memory(None)?;
    gateway.wait_status("the ring written", |status| status["healthy"] == true)?;
    for _ in 0..20 {
        ensure!(get(site.client(), WEB)? == "b2");
    }
    let ran = gateway.ringway(&["reload"])?;
    ensure!(ran.code == 0 && services(&gateway.status()?) == 3, "{ran:?}");
    Ok(())
}
