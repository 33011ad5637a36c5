//! A gateway that is shielded in every way, and those whom it shall go on to serve.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ringway_abi::Verdict;
use ringway_abi::raw::rw_ledger;
use ringway_kernel::{Frame, Gateway, GatewayOptions};
use ringway_plan::tables::NextHop;
use ringway_plan::{Ids, Observed, Planner};

use super::frame::{self, Layer4, Shape, answered};
use super::mix::{Known, STREAM, WEB};
use crate::benches::packet::path::frame::{NEXT_MAC, backend, own, service};
use crate::benches::packet::path::{Clients, Ip};
use crate::benches::packet::site::{MTU, interface};
use crate::benches::shield::lists::{MATCHES_NOT, Shield, sources};
use crate::harness::named_enum::named;
use crate::{Error, Result};

/// The interface of backends, behind those of [`Way`].
const BACKENDS: u32 = 3;

const FLOWS: u32 = 1 << 18;
const COUNT: u8 = 100;
/// Of each family and protocol.
const ESTABLISHED: u16 = 32;
/// Of each family.
const LEARNT: usize = 512;
/// Of so many good packets one is a stranger's, so many are new connections of learnt sources, and
/// all others are of established flows: so new flows alone are no attack.
const KINDS: usize = 32;
const LEARNT_KINDS: usize = 3;
const FIRST_FRAGMENT: usize = 10;
const LATER_FRAGMENT: usize = 11;
/// A UDP flow's first seconds.
const FIRST: Duration = Duration::from_millis(3500);

named! {
    /// Interfaces, by their slots: each has counters of its own.
    pub enum Way {
        Attack = "attack",
        /// Packets of established flows, and new connections of learnt sources, whom the shield
        /// shall spare.
        Known = "known",
        /// New connections of anybody.
        Stranger = "stranger",
    }
}

pub(super) struct Victim {
    gateway: Gateway,
    pub(super) known: Known,
}

impl Victim {
    /// With lists of so many prefixes of each family.
    fn new(prefixes: u32) -> Result<Self> {
        let unpinned = GatewayOptions { pin: false, flows: FLOWS, ..GatewayOptions::default() };
        let (mut gateway, _) = Gateway::open(&unpinned)?;
        for slot in 0..=BACKENDS {
            gateway.set_iface(&interface(slot))?;
        }
        gateway.apply(&tables()?)?;
        let (mut list, listed) = sources(Ip::V4, Clients::OneNetwork, prefixes as usize)?;
        list.extend(sources(Ip::V6, Clients::Networks, prefixes as usize)?.0);
        let known = Known { established: Vec::new(), learnt: Vec::new(), listed };
        let mut victim = Self { gateway, known };
        victim.meet()?;
        let shield = Shield::of_both(&list, MATCHES_NOT)?;
        victim.gateway.set_shield(Some(&shield.generation()))?;
        Ok(victim)
    }

    /// And what packets meet that come by each way.
    pub(super) fn with_programs(prefixes: u32) -> Result<(Self, Vec<OwnedFd>)> {
        let mut victim = Self::new(prefixes)?;
        let programs = Way::ALL.iter().map(|way| victim.program(*way)).collect::<Result<_>>()?;
        Ok((victim, programs))
    }

    /// What packets meet that come by this way.
    fn program(&mut self, way: Way) -> Result<OwnedFd> {
        let program = self.gateway.root_program(way as u32)?.try_clone_to_owned();
        program.map_err(Error::Settle)
    }

    /// Opens flows of those who are known from then on.
    fn meet(&mut self) -> Result<()> {
        for ip in Ip::ALL {
            for n in 0..LEARNT {
                let source = learnt(ip, n);
                self.connect((source, 1024).into())?;
                self.known.learnt.push(source);
            }
            for n in 0..ESTABLISHED {
                let tcp = (established(ip, n), 2000 + n).into();
                self.connect(tcp)?;
                let udp = (established(ip, ESTABLISHED + n), 2000 + n).into();
                self.exchange(Layer4::Datagram, udp, Layer4::Datagram)?;
                self.known.established.extend([(Layer4::Ack, tcp), (Layer4::Datagram, udp)]);
            }
        }
        std::thread::sleep(FIRST);
        let established = self.known.established.clone();
        established.into_iter().try_for_each(|(layer4, from)| self.exchange(layer4, from, layer4))
    }

    /// A handshake, after which the backend goes on.
    fn connect(&mut self, from: SocketAddr) -> Result<()> {
        self.exchange(Layer4::Syn, from, Layer4::SynAck)?;
        self.exchange(Layer4::Ack, from, Layer4::Ack)
    }

    /// A packet, and what its backend answers.
    fn exchange(&mut self, sent: Layer4, from: SocketAddr, answer: Layer4) -> Result<()> {
        let packet = packet(sent, from).bytes;
        let forwarded = self.gateway.test_run(Way::Known as u32, Frame::new(&packet))?;
        let answer = answered(&forwarded.data, answer).unwrap_or_default();
        let returned = self.gateway.test_run(BACKENDS, Frame::new(&answer))?;
        match (forwarded.verdict, returned.verdict) {
            (Verdict::Redirect, Verdict::Redirect) => Ok(()),
            (there, back) => {
                let ledger = self.ledger(Way::Known)?;
                let ends: Vec<String> = ledger
                    .entries()
                    .map(|(verdict, reason, _)| format!("{verdict} {reason}"))
                    .collect();
                let ends = ends.join(", ");
                let what = format!("its {sent} ended as {there}, the answer as {back} ({ends})");
                Err(Error::NoFigure { who: format!("{from} in peace"), what })
            }
        }
    }

    /// Good packets in turn.
    pub(super) fn good(&self, turn: usize) -> (Way, frame::Frame) {
        let (kind, turn) = (turn % KINDS, turn / KINDS);
        let ip = Ip::ALL[turn % 2];
        let from = |address| (address, 1025 + turn as u16).into();
        match kind {
            0 => (Way::Stranger, packet(Layer4::Syn, from(stranger(ip, turn as u32)))),
            1..=LEARNT_KINDS => {
                let number = (turn / 2 * LEARNT_KINDS + kind) % LEARNT;
                (Way::Known, packet(Layer4::Syn, from(learnt(ip, number))))
            }
            _ => {
                let flows = &self.known.established;
                // Neighbours are of one flow: UDP's may be two fragments.
                let (layer4, from) = flows[(turn * KINDS + kind) / 2 % flows.len()];
                let shape = match (layer4, kind) {
                    (Layer4::Datagram, FIRST_FRAGMENT) => Shape::FirstFragment,
                    (Layer4::Datagram, LATER_FRAGMENT) => Shape::LaterFragment,
                    _ => Shape::Plain,
                };
                let made = shaped(layer4, shape, from);
                (Way::Known, frame::Frame { port_and_check: None, ..made })
            }
        }
    }

    pub(super) fn ledger(&self, way: Way) -> Result<rw_ledger> {
        Ok(self.gateway.view().ledger(way as u32)?)
    }
}

fn packet(layer4: Layer4, from: SocketAddr) -> frame::Frame {
    shaped(layer4, Shape::Plain, from)
}

fn shaped(layer4: Layer4, shape: Shape, from: SocketAddr) -> frame::Frame {
    let ip = if from.is_ipv4() { Ip::V4 } else { Ip::V6 };
    let port = if layer4 == Layer4::Datagram { STREAM } else { WEB };
    frame::Frame::new(layer4, shape, from, (service(ip), port).into(), 10)
}

fn learnt(ip: Ip, n: usize) -> IpAddr {
    client(ip, 1, n as u32)
}

fn established(ip: Ip, n: u16) -> IpAddr {
    client(ip, 2, n.into())
}

fn stranger(ip: Ip, n: u32) -> IpAddr {
    client(ip, 3, n & 0xffff)
}

/// A client in a network of its own: 100.64/10, or a /64.
fn client(ip: Ip, kind: u32, n: u32) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::from_bits(0x6440_0000 | kind << 16 | n).into(),
        Ip::V6 => {
            let network = 0x2001_0db8_0077_0000 | u64::from(kind) << 32 | u64::from(n);
            Ipv6Addr::from_bits(u128::from(network) << 64 | 1).into()
        }
    }
}

fn tables() -> Result<ringway_plan::tables::Tables> {
    let mut observed = Observed::default();
    let mut text = "[node]\nname = \"bench\"\ninterfaces = [\"lo\"]\n[shield]\n[shield.limits]\n\
                    packets = \"500kpps\"\nnew_flows = \"50kpps\"\nsource = \"2kpps\"\n"
        .to_owned();
    let own = Ip::ALL.map(|ip| (1..=16).map(move |n| format!("\"{}\"", own(ip, n))));
    let own: Vec<String> = own.into_iter().flatten().collect();
    text += &format!("[nat]\naddresses = [{}]\n", own.join(", "));
    for ip in Ip::ALL {
        let all: Vec<IpAddr> = (1..=COUNT).map(|n| backend(ip, n)).collect();
        for address in &all {
            let hop = NextHop { iface: BACKENDS, mac: NEXT_MAC, mtu: MTU };
            observed.next_hops.insert(*address, hop);
        }
        let backends: Vec<String> =
            all.iter().map(|address| format!("{{ address = \"{address}\" }}")).collect();
        for (protocol, port) in [("tcp", WEB), ("udp", STREAM)] {
            text += &format!(
                "[[service]]\nname = \"{protocol}{}\"\naddress = \"{}\"\nport = {port}\n\
                 protocol = \"{protocol}\"\nforward = \"nat\"\nbackends = [{}]\n",
                ip.number(),
                service(ip),
                backends.join(", ")
            );
        }
    }
    let refused = |error: &dyn std::fmt::Display| Error::Tables(error.to_string());
    let config = ringway_config::parse(&text, "bench shield").map_err(|e| refused(&e))?;
    Planner::new(Ids::default()).plan(&config, &observed).map_err(|e| refused(&e))
}
