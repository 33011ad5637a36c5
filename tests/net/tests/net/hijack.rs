//! A client of a nat service never meets another one's connection: its port may pass on while the
//! backend still has the socket, and nothing of that socket reaches the port's next client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::raw_tcp::{ACK, Client, FIN, RST, SYN, Segment, mac};
use ringway_net_tests::{Echo, Gateway, Line, SERVICE_V4, SOON, Site, needs_root};
use ringway_testnet::{Namespace, wait_for};

const SERVICE: SocketAddr = SocketAddr::new(SERVICE_V4, 4000);
/// In the clients' network, and nobody's.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 66);
const PORTS: u16 = 1024;

/// Segments to and from the attacker, past the kernel of its machine.
struct Attacker(Client);

#[derive(Debug, Default)]
struct Loot {
    handshakes: usize,
    resets: usize,
    /// What is neither: of somebody else's connection.
    others: Vec<Segment>,
}

impl Attacker {
    fn new(client: &Namespace, gateway: &Namespace) -> Result<Self> {
        let macs = [mac(gateway, "eth0")?, mac(client, "eth0")?].concat();
        Ok(Self(Client::new(client, macs.try_into().ok().context("two addresses")?)?))
    }

    fn sends(&self, from: SocketAddr, flags: u8, seq: u32) -> io::Result<()> {
        self.0.send(&Segment::bare(from, SERVICE, flags, seq))
    }

    /// So many SYNs from ports of its own, a few thousand a second, and what came back.
    fn floods(&self, syns: u16) -> io::Result<Loot> {
        let mut loot = Loot::default();
        for n in 0..syns {
            let from = SocketAddr::new(ATTACKER.into(), 20_000 + n);
            self.sends(from, SYN, u32::from(n) << 12)?;
            std::thread::sleep(Duration::from_micros(300));
            self.collects(&mut loot)?;
        }
        // What is still on its way.
        let last = Instant::now() + Duration::from_secs(1);
        while Instant::now() < last {
            self.collects(&mut loot)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(loot)
    }

    fn collects(&self, loot: &mut Loot) -> io::Result<()> {
        while let Some(segment) = self.0.next()? {
            match segment.flags & (SYN | RST | FIN | ACK) {
                _ if segment.to.ip() != ATTACKER => {}
                flags if flags == SYN | ACK => loot.handshakes += 1,
                flags if flags & RST != 0 => loot.resets += 1,
                _ => loot.others.push(segment),
            }
        }
        Ok(())
    }
}

struct Scene {
    _site: Site,
    gateway: Gateway,
    /// Somebody's connection, which has been used.
    victim: Line,
    attacker: Attacker,
    _echo: Vec<Echo>,
}

impl Scene {
    /// One backend and a small pool, so that a port comes round again soon.
    fn new(timeouts: &str) -> Result<Self> {
        let site = Site::new(1)?;
        let echo = site.echo(SERVICE_V4, SERVICE.port())?;
        let last = 20_000 + PORTS - 1;
        let nat = format!("[nat]\nports = \"20000-{last}\"\ntimeouts = {{ {timeouts} }}\n\n");
        let gateway = site.start(&(nat + &site.service("app", SERVICE, "")))?;
        let mut victim = Line::open(site.client(), SERVICE)?;
        victim.ask("before")?;
        let attacker = Attacker::new(site.client(), &site.net.gateway)?;
        Ok(Self { _site: site, gateway, victim, attacker, _echo: echo })
    }

    /// SYNs enough for so many times the pool: nothing of the victim's comes.
    fn attack(&mut self, pools: u16) -> Result<()> {
        let loot = self.attacker.floods(pools * PORTS)?;
        ensure!(loot.handshakes > 0, "the attack reached no backend: {loot:?}");
        ensure!(loot.others.is_empty(), "of another's connection: {loot:?}");
        Ok(())
    }
}

/// A forged RST, whatever its sequence number, and then the whole pool.
#[test]
fn after_a_forged_reset_the_port_is_not_passed_on() -> Result<()> {
    needs_root!();
    let mut scene = Scene::new("")?;
    scene.attacker.sends(scene.victim.local()?, RST, 12345)?;
    scene.attack(3)?;
    scene.victim.ask("after")?;
    Ok(())
}

/// Who has a connection and idles is no flood: its handshake is finished.
#[test]
fn who_logs_in_and_idles_keeps_its_connection() -> Result<()> {
    needs_root!();
    let mut scene = Scene::new("")?;
    scene.attack(6)?;
    scene.victim.ask("after")?;
    Ok(())
}

/// The flow has expired, the backend's socket has not.
#[test]
fn after_its_timeout_the_backends_socket_is_reset_before_the_port_is_used() -> Result<()> {
    needs_root!();
    let mut scene = Scene::new("established = \"4s\"")?;
    wait_for("the flow's end", SOON, || -> Result<()> {
        let flows = scene.gateway.document(&["flows"])?;
        ensure!(flows["flows"].as_array().is_some_and(Vec::is_empty), "it lives: {flows}");
        Ok(())
    })?;
    scene.attack(3)?;
    scene.victim.ask("after").err().context("it goes on without a flow")?;
    let status = scene.gateway.status()?;
    ensure!(status.to_string().contains("reset-stray"), "{status}");
    Ok(())
}
