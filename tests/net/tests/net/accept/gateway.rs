//! What a gateway with `syn = "backend"` does, in a few lines: answers SYNs with cookies and sends
//! everything else to its one backend.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use ringway_testnet::TwoArmed;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::client::{ACK, SYN, Segment, cookie, frame, mac, packet_socket, read};

/// Behind `net`'s gateway, whose kernel sends on what backends answer.
pub(super) struct Gateway {
    /// So many connections' first ACKs get lost.
    pub(super) loses: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// How packets come to the backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Forward {
    Frame,
    /// IP in IPv4.
    Tunnel,
}

struct Work {
    outer: OwnedFd,
    inner: OwnedFd,
    key: [u64; 2],
    forward: Forward,
    services: Vec<IpAddr>,
    /// To the client, and to the backend.
    macs: [[u8; 12]; 2],
    backend: [u8; 4],
}

impl Gateway {
    pub(super) fn start(
        net: &TwoArmed,
        services: &[SocketAddr],
        key: [u64; 2],
        forward: Forward,
    ) -> Result<Self> {
        let (gateway, backend) = (&net.gateway, &net.backends[0]);
        for service in services {
            let family = if service.is_ipv4() { "-4" } else { "-6" };
            let mut ip = gateway.command("ip");
            let address = service.ip().to_string();
            ip.args([family, "route", "replace", "blackhole", &address]).status()?;
        }
        let pair = |to: [u8; 6], from: [u8; 6]| {
            let mut macs = [0; 12];
            macs[..6].copy_from_slice(&to);
            macs[6..].copy_from_slice(&from);
            macs
        };
        let work = Work {
            outer: gateway.run(|| packet_socket("eth0"))??,
            inner: gateway.run(|| packet_socket("eth1"))??,
            key,
            forward,
            services: services.iter().map(SocketAddr::ip).collect(),
            macs: [
                pair(mac(&net.client.ns, "eth0")?, mac(gateway, "eth0")?),
                pair(mac(&backend.ns, "eth0")?, mac(gateway, "eth1")?),
            ],
            backend: backend.v4.context("IPv4")?.octets(),
        };
        let (loses, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (lost, stopped) = (loses.clone(), stop.clone());
        let thread = std::thread::spawn(move || work.run(&lost, &stopped));
        Ok(Self { loses, stop, thread: Some(thread) })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Ok(Err(error))) = ended {
            eprintln!("the gateway of the test: {error:#}");
        }
    }
}

impl Work {
    fn run(&self, loses: &AtomicU32, stop: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; 1 << 16];
        let mut opening: Option<Segment> = None;
        while !stop.load(Ordering::Relaxed) {
            let length = match rustix::net::recv(&self.outer, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            let came = &buffer[..length];
            let Some(segment) = read(came).filter(|one| self.services.contains(&one.to.ip()))
            else {
                continue;
            };
            if segment.flags & SYN != 0 {
                self.answer(&segment)?;
                opening = Some(segment);
                continue;
            }
            let of = |syn: &Segment| syn.from == segment.from && syn.to == segment.to;
            let is_first = segment.payload.is_empty() && opening.take_if(|syn| of(syn)).is_some();
            let less = |left: u32| left.checked_sub(1);
            let kept = !is_first
                || loses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err();
            if kept {
                send(&self.inner, &self.forwarded(came))?;
            }
        }
        Ok(())
    }

    fn forwarded(&self, came: &[u8]) -> Vec<u8> {
        let macs = &self.macs[1];
        if self.forward == Forward::Frame {
            return [&macs[..], &came[12..]].concat();
        }
        let inner = &came[14..];
        let protocol = if came[12..14] == [8, 0] { 4 } else { 41 };
        let length = (20 + inner.len() as u16).to_be_bytes();
        let mut outer = vec![0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
        outer.extend([10, 2, 0, 1]);
        outer.extend(self.backend);
        let check = super::client::sum(&[&outer]);
        outer[10..12].copy_from_slice(&check.to_be_bytes());
        [&macs[..], &[8, 0], &outer, inner].concat()
    }

    fn answer(&self, syn: &Segment) -> Result<()> {
        let asked = Asked::of(&syn.options);
        let place = [536, 1220, 1360, 1400, 1440, 1460, 8940].iter().filter(|m| asked.mss >= **m);
        let agreed = (place.count() as u32) << 6
            | u32::from(asked.scale.unwrap_or(15)) << 2
            | u32::from(asked.sack) << 1;
        let stamped = asked.stamp.is_some();
        let made = cookie(self.key, (syn.from, syn.to), syn.seq, (agreed, stamped), 0)?;
        // What fits beside an outer header of IPv4, too.
        let mss: u16 = if syn.to.is_ipv4() { 1440 } else { 1420 };
        let mut options = [&[2, 4][..], &mss.to_be_bytes()].concat();
        if asked.sack {
            options.extend([1, 1, 4, 2]);
        }
        if asked.scale.is_some() {
            options.extend([1, 3, 3, 7]);
        }
        let answer = Segment {
            from: syn.to,
            to: syn.from,
            flags: SYN | ACK,
            seq: made.number,
            ack: syn.seq.wrapping_add(1),
            stamps: asked.stamp.map(|stamp| (made.stamp, stamp)),
            options,
            payload: Vec::new(),
        };
        send(&self.outer, &frame(&self.macs[0], &answer))
    }
}

/// Options of a SYN.
struct Asked {
    mss: u16,
    scale: Option<u8>,
    sack: bool,
    stamp: Option<u32>,
}

impl Asked {
    fn of(mut options: &[u8]) -> Self {
        let mut asked = Self { mss: 536, scale: None, sack: false, stamp: None };
        while let [kind, rest @ ..] = options {
            options = match (kind, rest) {
                (1, _) => rest,
                (0, _) | (_, []) => break,
                (_, [length, body @ ..]) => {
                    match (kind, body) {
                        (2, [a, b, ..]) => asked.mss = u16::from_be_bytes([*a, *b]),
                        (3, [scale, ..]) => asked.scale = Some(*scale),
                        (4, _) => asked.sack = true,
                        (8, [a, b, c, d, ..]) => {
                            asked.stamp = Some(u32::from_be_bytes([*a, *b, *c, *d]));
                        }
                        _ => {}
                    }
                    body.get(usize::from(*length).saturating_sub(2)..).unwrap_or_default()
                }
            };
        }
        asked
    }
}

fn send(socket: &OwnedFd, frame: &[u8]) -> Result<()> {
    loop {
        match rustix::net::send(socket, frame, SendFlags::empty()) {
            Err(Errno::NOBUFS | Errno::AGAIN) => std::thread::yield_now(),
            sent => return Ok(sent.map(drop)?),
        }
    }
}
