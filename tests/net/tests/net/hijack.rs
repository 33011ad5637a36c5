//! A client of a nat service never meets another one's connection: its port may pass on while the
//! backend still has the socket, and nothing of that socket reaches the port's next client.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::raw_tcp::{ACK, Client, FIN, RST, SYN, Segment, mac};
use ringway_net_tests::{Gateway, SERVICE_V4, SOON, Site, configuration, needs_root};
use ringway_testnet::{Namespace, wait_for};
use serde_json::Value;

const SERVICE: SocketAddr = SocketAddr::new(SERVICE_V4, 4000);
/// In the clients' network, and nobody's.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 66);
const PORTS: u16 = 1024;

/// A server that knows who has logged in on a connection.
fn serve(backend: &Namespace, at: SocketAddr) -> Result<()> {
    let listener = backend.run(|| TcpListener::bind(at))??;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || session(stream));
        }
    });
    Ok(())
}

fn session(mut stream: TcpStream) -> io::Result<()> {
    let (mut who, mut line) = (String::from("nobody"), Vec::new());
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 {
        if byte[0] != b'\n' {
            line.push(byte[0]);
            continue;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        if let Some(name) = text.strip_prefix("LOGIN ") {
            who = name.to_owned();
        }
        stream.write_all(format!("you are {who}\n").as_bytes())?;
    }
    Ok(())
}

/// A connection of somebody who has logged in.
struct Victim(TcpStream);

impl Victim {
    fn logs_in(client: &Namespace) -> Result<Self> {
        let stream = client.run(|| TcpStream::connect_timeout(&SERVICE, SOON))??;
        stream.set_read_timeout(Some(SOON))?;
        let mut victim = Self(stream);
        ensure!(victim.says("LOGIN alice")? == "you are alice");
        Ok(victim)
    }

    fn says(&mut self, line: &str) -> io::Result<String> {
        self.0.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\n") {
            if self.0.read(&mut byte)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }
}

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
    site: Site,
    gateway: Gateway,
}

impl Scene {
    /// One backend and a small pool, so that a port comes round again soon.
    fn new(timeouts: &str) -> Result<Self> {
        let site = Site::new(1)?;
        let backend = site.backends(SERVICE_V4, SERVICE.port())[0];
        serve(&site.net.backends[0].ns, backend)?;
        let last = 20_000 + PORTS - 1;
        let nat = format!("[nat]\nports = \"20000-{last}\"\ntimeouts = {{ {timeouts} }}\n\n");
        let gateway = Gateway::start(
            &site.net.gateway,
            &configuration(
                &site.net.gateway,
                &["eth0", "eth1"],
                &(nat + &site.service("app", SERVICE, "")),
            ),
        )?;
        Ok(Self { site, gateway })
    }

    fn asked(&self, arguments: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.gateway.ringway(arguments)?.out)?)
    }

    fn attacker(&self) -> Result<Attacker> {
        Attacker::new(self.site.client(), &self.site.net.gateway)
    }
}

fn nothing_leaks(loot: &Loot) -> Result<()> {
    ensure!(loot.handshakes > 0, "the attack reached no backend: {loot:?}");
    ensure!(loot.others.is_empty(), "of another's connection: {loot:?}");
    Ok(())
}

/// A forged RST, whatever its sequence number, and then the whole pool.
#[test]
fn after_a_forged_reset_the_port_is_not_passed_on() -> Result<()> {
    needs_root!();
    let scene = Scene::new("")?;
    let mut victim = Victim::logs_in(scene.site.client())?;
    let attacker = scene.attacker()?;
    attacker.sends(victim.0.local_addr()?, RST, 12345)?;
    nothing_leaks(&attacker.floods(3 * PORTS)?)?;
    ensure!(victim.says("WHOAMI")? == "you are alice");
    Ok(())
}

/// Whoever has logged in and idles is no flood: its handshake is finished.
#[test]
fn who_logs_in_and_idles_keeps_its_connection() -> Result<()> {
    needs_root!();
    let scene = Scene::new("")?;
    let mut victim = Victim::logs_in(scene.site.client())?;
    nothing_leaks(&scene.attacker()?.floods(6 * PORTS)?)?;
    ensure!(victim.says("WHOAMI")? == "you are alice");
    Ok(())
}

/// The flow has expired, the backend's socket has not.
#[test]
fn after_its_timeout_the_backends_socket_is_reset_before_the_port_is_used() -> Result<()> {
    needs_root!();
    let scene = Scene::new("established = \"4s\"")?;
    let mut victim = Victim::logs_in(scene.site.client())?;
    let gone = || {
        let flows = scene.asked(&["flows", "-o", "json"]).map_err(|e| format!("{e:#}"))?;
        match flows["flows"].as_array().is_some_and(Vec::is_empty) {
            true => Ok(()),
            false => Err(format!("it lives: {flows}")),
        }
    };
    wait_for("the flow's end", SOON, gone)?;
    nothing_leaks(&scene.attacker()?.floods(3 * PORTS)?)?;
    victim.says("WHOAMI").err().context("it goes on without a flow")?;
    let ledger = scene.asked(&["status", "--ledger", "-o", "json"])?;
    ensure!(ledger.to_string().contains("reset-stray"), "{ledger}");
    Ok(())
}
