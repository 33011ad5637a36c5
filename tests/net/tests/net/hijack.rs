//! A client of a nat service never meets another one's connection: its port may pass on while the
//! backend still has the socket, and nothing of that socket reaches the port's next client.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, SERVICE_V4, SOON, Site, configuration, needs_root};
use ringway_testnet::{Namespace, wait_for};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use serde_json::Value;

const SERVICE: SocketAddr = SocketAddr::new(SERVICE_V4, 4000);
/// In the clients' network, and nobody's.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 66);
const PORTS: u16 = 1024;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

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

    fn port(&self) -> io::Result<(Ipv4Addr, u16)> {
        match self.0.local_addr()? {
            SocketAddr::V4(here) => Ok((*here.ip(), here.port())),
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Segments to and from the attacker, past the kernel of its machine.
struct Attacker {
    socket: OwnedFd,
    macs: [u8; 12],
}

#[derive(Debug, Default)]
struct Loot {
    handshakes: usize,
    resets: usize,
    /// Flags and payload of what is neither: of somebody else's connection.
    others: Vec<(u8, Vec<u8>)>,
}

impl Attacker {
    fn new(client: &Namespace, gateway: &Namespace) -> Result<Self> {
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&mac(gateway)?);
        macs[6..].copy_from_slice(&mac(client)?);
        let socket = client.run(packet_socket)??;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 8 << 20)?;
        Ok(Self { socket, macs })
    }

    fn sends(&self, from: (Ipv4Addr, u16), flags: u8, seq: u32) -> io::Result<()> {
        let frame = segment(&self.macs, from, flags, seq);
        loop {
            match rustix::net::send(&self.socket, &frame, SendFlags::empty()) {
                Err(Errno::NOBUFS | Errno::AGAIN) => std::thread::yield_now(),
                sent => return sent.map(drop).map_err(Into::into),
            }
        }
    }

    /// So many SYNs from ports of its own, a few thousand a second, and what came back.
    fn floods(&self, syns: u16) -> io::Result<Loot> {
        let mut loot = Loot::default();
        for n in 0..syns {
            self.sends((ATTACKER, 20_000 + n), SYN, u32::from(n) << 12)?;
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
        let mut frame = [0; 2048];
        loop {
            let length = match rustix::net::recv(&self.socket, &mut frame, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            };
            let frame = &frame[..length];
            if length < 54 || frame[12..14] != [8, 0] || frame[30..34] != ATTACKER.octets() {
                continue;
            }
            let (flags, total) =
                (frame[47], usize::from(u16::from_be_bytes([frame[16], frame[17]])));
            let header = usize::from(frame[46] >> 4) * 4;
            match flags & (SYN | RST | FIN | ACK) {
                flags if flags == SYN | ACK => loot.handshakes += 1,
                flags if flags & RST != 0 => loot.resets += 1,
                _ => loot.others.push((flags, frame[34 + header..14 + total].to_vec())),
            }
        }
    }
}

fn mac(namespace: &Namespace) -> Result<[u8; 6]> {
    let output = namespace.command("ip").args(["-j", "link", "show", "eth0"]).output()?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    let text = links[0]["address"].as_str().context("eth0 has no MAC address")?;
    let mut mac = [0; 6];
    for (byte, digits) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(mac)
}

/// Bound to eth0 of the thread's namespace.
fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let index = rustix::net::netdevice::name_to_index(&socket, "eth0")?;
    // SAFETY: zeroes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = 0x0800u16.to_be();
    address.sll_ifindex = index as i32;
    let length = size_of_val(&address) as u32;
    // SAFETY: an open socket, and an address that outlives the call with its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn sum(words: impl Iterator<Item = u32>) -> u16 {
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
}

/// From an address and port to the service, in a frame.
fn segment(macs: &[u8; 12], from: (Ipv4Addr, u16), flags: u8, seq: u32) -> Vec<u8> {
    let to = match SERVICE_V4 {
        std::net::IpAddr::V4(to) => to.octets(),
        std::net::IpAddr::V6(_) => [0; 4],
    };
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(from.0.octets());
    ip.extend(to);
    let check = sum(words(&ip));
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let mut tcp = Vec::new();
    tcp.extend(from.1.to_be_bytes());
    tcp.extend(SERVICE.port().to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend([0x50, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
    let check = sum(words(&tcp).chain(words(&ip[12..20])).chain([6 + 20]));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    [&macs[..], &[8, 0], &ip, &tcp].concat()
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
    attacker.sends(victim.port()?, RST, 12345)?;
    nothing_leaks(&attacker.floods(3 * PORTS)?)?;
    ensure!(victim.says("WHOAMI")? == "you are alice");
    Ok(())
}

/// A forged FIN, whatever its sequence number, is refuted by the client's next data: then the
/// connection may idle for longer than one that ends.
#[test]
fn a_forged_fin_ends_no_connection_that_goes_on() -> Result<()> {
    needs_root!();
    let scene = Scene::new("closing = \"10s\"")?;
    let mut victim = Victim::logs_in(scene.site.client())?;
    let flow = |what: &str, fits: fn(&Value) -> bool| {
        wait_for(what, SOON, || {
            let flows = scene.asked(&["flows", "-o", "json"]).map_err(|e| format!("{e:#}"))?;
            if fits(&flows["flows"][0]) { Ok(()) } else { Err(flows.to_string()) }
        })
    };
    scene.attacker()?.sends(victim.port()?, FIN | ACK, 12345)?;
    flow("the FIN", |flow| flow["state"] == "fin-client")?;
    ensure!(victim.says("WHOAMI")? == "you are alice");
    flow("its end", |flow| flow["state"] == "established")?;
    flow("silence", |flow| flow["idle_s"].as_u64() > Some(11))?;
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
