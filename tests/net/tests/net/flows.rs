//! A flow keeps its backend for life.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use ringway_net_tests::{ECHO, Flow, Gateway, SERVICE_V4, Site, needs_root, service};

const BOTH: &str = "protocol = [\"tcp\", \"udp\"]\n";

/// So many connections, and as many UDP sockets.
fn open(site: &Site, number: usize) -> Result<Vec<Flow>> {
    let both = |_| [Flow::tcp(site.client(), ECHO), Flow::udp(site.client(), ECHO)];
    (0..number).flat_map(both).collect()
}

/// Every flow of a backend named here is answered by the same one as at first.
fn check(flows: &mut [Flow], names: &[&str]) -> Result<()> {
    let mut own = flows.iter_mut().filter(|flow| names.contains(&&*flow.owner));
    own.try_for_each(|flow| flow.stays("again"))
}

fn of(flows: &[Flow], name: &str) -> usize {
    flows.iter().filter(|flow| flow.owner == name).count()
}

#[test]
fn another_configuration_moves_no_flow_of_a_backend_that_stays() -> Result<()> {
    needs_root!();
    let site = Site::new(4)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let all = site.backends(SERVICE_V4, 7);
    let more = format!("announce = \"arp\"\n{BOTH}");
    let over =
        |backends: &[SocketAddr]| site.configuration(&service("echo", ECHO, backends, &more));
    let mut gateway = Gateway::start(&site.net.gateway, &over(&all[..3]))?;
    let mut flows = open(&site, 30)?;
    for name in ["b1", "b2", "b3"] {
        ensure!(of(&flows, name) > 0, "no flow to {name}");
    }

    // Other weights: most of the ring changes hands.
    let heavy = over(&all[..3]).replacen("port = 7 }", "port = 7, weight = 100 }", 1);
    gateway.rewrite(&heavy)?;
    gateway.kill()?;
    gateway.start_healthy()?;
    check(&mut flows, &["b1", "b2", "b3"])?;
    let new = open(&site, 20)?;
    ensure!(of(&new, "b1") >= 30, "weight 100 of 102 got {} of 40 new flows", of(&new, "b1"));

    // One more, one drained, in another order.
    let order = [all[3], all[2], all[0], all[1]];
    let drained = format!("address = \"{}\", port = 7", all[1].ip());
    gateway.rewrite(&over(&order).replace(&drained, &format!("{drained}, weight = 0")))?;
    gateway.terminate()?;
    gateway.start_healthy()?;
    check(&mut flows, &["b1", "b2", "b3"])?;
    let new = open(&site, 30)?;
    ensure!(
        of(&new, "b2") == 0 && of(&new, "b4") > 0,
        "b2 {}, b4 {}",
        of(&new, "b2"),
        of(&new, "b4")
    );

    // One less: its connections are reset, its UDP flows go to others.
    gateway.rewrite(&over(&[all[0], all[1], all[3]]))?;
    gateway.terminate()?;
    gateway.start_healthy()?;
    check(&mut flows, &["b1", "b2"])?;
    for flow in flows.iter_mut().filter(|flow| flow.owner == "b3") {
        match flow.ask("still there?") {
            Err(error) if flow.is_tcp() && error.kind() == ErrorKind::ConnectionReset => {}
            Ok(name) if !flow.is_tcp() && name != "b3" => {}
            other => bail!("of a removed backend: {other:?}"),
        }
    }
    Ok(())
}

/// Flows outlive the configuration that they began under.
#[test]
fn another_nat_pool_other_addresses_and_another_source_break_no_flow() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    site.net.gateway.ip("addr add 10.2.0.5/24 dev eth1\n")?;
    let text = |nat: &str, source: &str| {
        let more = format!("{BOTH}source = {source:?}\n");
        let nat = format!("[nat]\nflows = 65536\n{nat}\n\n");
        site.configuration(&(nat + &site.service("echo", ECHO, &more)))
    };
    let first = text("ports = \"10000-19999\"\naddresses = [\"10.2.0.1\"]", "client");
    let mut gateway = Gateway::start(&site.net.gateway, &first)?;
    let mut flows = vec![open(&site, 10)?];
    for nat in [
        "ports = \"10000-19999\"\naddresses = [\"10.2.0.1\"]",
        "ports = \"20000-29999\"\naddresses = [\"10.2.0.5\", \"10.2.0.1\"]",
        "ports = \"5000-6999\"",
    ] {
        gateway.rewrite(&text(nat, "node"))?;
        gateway.terminate()?;
        gateway.start_healthy()?;
        for flows in &mut flows {
            check(flows, &["b1", "b2"]).with_context(|| nat.to_owned())?;
        }
        flows.push(open(&site, 10)?);
    }
    Ok(())
}
