//! A flow keeps its backend for life.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, Line, SERVICE_V4, Site, ask_udp, needs_root, service, udp_to};

const ECHO: SocketAddr = SocketAddr::new(SERVICE_V4, 7);
const BOTH: &str = "protocol = [\"tcp\", \"udp\"]\n";

/// Connections and UDP sockets, each with the backend that it was given.
struct Flows {
    lines: Vec<(Line, String)>,
    sockets: Vec<(UdpSocket, String)>,
}

impl Flows {
    fn open(site: &Site, number: usize) -> Result<Flows> {
        let mut flows = Flows { lines: Vec::new(), sockets: Vec::new() };
        for _ in 0..number {
            let mut line = Line::open(site.client(), ECHO)?;
            let name = line.ask("first")?;
            flows.lines.push((line, name));
            let socket = udp_to(site.client(), ECHO)?;
            let name = ask_udp(&socket, "first")?;
            flows.sockets.push((socket, name));
        }
        Ok(flows)
    }

    /// Every flow of a backend named here is answered by the same one as at first.
    fn check(&mut self, names: &[&str]) -> Result<()> {
        for (line, name) in self.lines.iter_mut().filter(|(_, n)| names.contains(&n.as_str())) {
            let now = line.ask("again").with_context(|| format!("a connection to {name}"))?;
            ensure!(now == *name, "a connection moved from {name} to {now}");
        }
        for (socket, name) in self.sockets.iter().filter(|(_, n)| names.contains(&n.as_str())) {
            let now = ask_udp(socket, "again").with_context(|| format!("a UDP flow to {name}"))?;
            ensure!(now == *name, "a UDP flow moved from {name} to {now}");
        }
        Ok(())
    }

    fn of(&self, name: &str) -> usize {
        let lines = self.lines.iter().filter(|(_, n)| n == name).count();
        lines + self.sockets.iter().filter(|(_, n)| n == name).count()
    }
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
    let mut flows = Flows::open(&site, 30)?;
    for name in ["b1", "b2", "b3"] {
        ensure!(flows.of(name) > 0, "no flow to {name}");
    }

    // Other weights: most of the ring changes hands.
    let heavy = over(&all[..3]).replacen("port = 7 }", "port = 7, weight = 100 }", 1);
    gateway.rewrite(&heavy)?;
    gateway.kill()?;
    gateway.start_healthy()?;
    flows.check(&["b1", "b2", "b3"])?;
    let new = Flows::open(&site, 20)?;
    ensure!(new.of("b1") >= 35, "weight 100 of 102 got {} of 40 new flows", new.of("b1"));

    // One more, one drained, in another order.
    let order = [all[3], all[2], all[0], all[1]];
    let drained = format!("address = \"{}\", port = 7", all[1].ip());
    gateway.rewrite(&over(&order).replace(&drained, &format!("{drained}, weight = 0")))?;
    gateway.terminate()?;
    gateway.start_healthy()?;
    flows.check(&["b1", "b2", "b3"])?;
    let new = Flows::open(&site, 30)?;
    ensure!(new.of("b2") == 0 && new.of("b4") > 0, "b2 {}, b4 {}", new.of("b2"), new.of("b4"));

    // One less: its connections are reset, its UDP flows go to others.
    gateway.rewrite(&over(&[all[0], all[1], all[3]]))?;
    gateway.terminate()?;
    gateway.start_healthy()?;
    flows.check(&["b1", "b2"])?;
    for (line, _) in flows.lines.iter_mut().filter(|(_, name)| name == "b3") {
        let error = line.ask("still there?").err().context("an answer from a removed backend")?;
        ensure!(error.kind() == std::io::ErrorKind::ConnectionReset, "{error}");
    }
    for (socket, _) in flows.sockets.iter().filter(|(_, name)| name == "b3") {
        let name = ask_udp(socket, "who?")?;
        ensure!(name != "b3", "a removed backend answers");
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
    let mut flows = vec![Flows::open(&site, 10)?];
    for nat in [
        "ports = \"10000-19999\"\naddresses = [\"10.2.0.1\"]",
        "ports = \"20000-29999\"\naddresses = [\"10.2.0.5\", \"10.2.0.1\"]",
        "ports = \"5000-6999\"",
    ] {
        gateway.rewrite(&text(nat, "node"))?;
        gateway.terminate()?;
        gateway.start_healthy()?;
        for flows in &mut flows {
            flows.check(&["b1", "b2"]).with_context(|| nat.to_owned())?;
        }
        flows.push(Flows::open(&site, 10)?);
    }
    Ok(())
}
