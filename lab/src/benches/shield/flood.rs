//! An attack: packets from within the kernel, by bpf/shield.bpf.c.

use std::fs;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use ringway_testnet::Link;
use ringway_wire::{BuildError, Builder, Ethernet, Ipv4, Mac, Tcp, Udp, ethertype, protocol};
use serde::Serialize;

use super::peers::skeleton;
use crate::harness::cpu::{Cpus, pin};
use crate::harness::named_enum::named;
use crate::{Error, Result};

/// BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h).
const LIVE_FRAMES: u32 = 1 << 1;
/// Packets of a call, sent or before their time: some tenths of a second. A call begins and ends with
/// a grace period of RCU, in which nothing is sent: of so many packets that is little, and as much
/// of each attack.
const CALL: u32 = 1 << 21;

/// Of the sender: the kernel's thread for softirqs goes before.
const LEAST: i32 = 19;

/// Where attacks come from: carriers' own networks (RFC 6598).
pub(super) const FROM: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
pub(super) const FROM_BITS: u8 = 10;
const MANY: u32 = 1_000_000;

named! {
    pub enum Attack {
        /// None: how it is in peace.
        Quiet = "quiet",
        /// UDP from one address.
        OneSource = "one-source",
        /// Long answers of DNS servers that nobody has asked.
        DnsAmplification = "dns-amplification",
        /// TCP segments with ACK of no connection, from a million addresses.
        AckFlood = "ack-flood",
        /// UDP from a million addresses.
        SpoofedSources = "million-spoofed-sources",
    }
}

impl Attack {
    pub(super) fn sources(self) -> u32 {
        if self == Self::OneSource { 1 } else { MANY }
    }

    /// The first address, behind which there is room for a million: what DNS servers and ACKs come
    /// from is in no list of the others.
    fn from(self) -> Ipv4Addr {
        let second = match self {
            Self::DnsAmplification => 80,
            Self::AckFlood => 96,
            _ => 64,
        };
        Ipv4Addr::new(100, second, 0, 0)
    }

    /// The source addresses, as the program makes them.
    pub(super) fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        let from = self.from().to_bits();
        let address = move |turn: u32| from | turn.wrapping_mul(0x9e3b1) & 0xfffff;
        (0..self.sources()).map(move |turn| Ipv4Addr::from_bits(address(turn)))
    }

    /// Bits of source ports that change.
    fn ports(self) -> u32 {
        if self == Self::DnsAmplification { 0 } else { 0xfff }
    }

    fn frame(self, from: Mac, to: Mac, target: &Target) -> Result<Vec<u8>, BuildError> {
        let mut buffer = [0; 1024];
        let mut built = Builder::new(&mut buffer, 64)?;
        let number = match self {
            Self::AckFlood => {
                let ip = Ipv4::new(protocol::TCP, self.from(), target.address);
                built.append(&[0_u8; 10])?;
                built.tcp(Tcp::new(0x8000, target.tcp, Tcp::ACK), &[], ip.pseudo())?;
                protocol::TCP
            }
            _ => {
                let (port, payload) = match self {
                    Self::DnsAmplification => (53, 700),
                    _ => (0x8000, 22),
                };
                built.append(&[7_u8; 700][..payload])?.udp(Udp::new(port, target.udp), None)?;
                protocol::UDP
            }
        };
        built.ipv4(Ipv4::new(number, self.from(), target.address), &[])?;
        built.ethernet(Ethernet::new(to, from, ethertype::IPV4))?;
        Ok(built.packet().to_vec())
    }
}

/// What is attacked.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Target {
    pub(super) address: Ipv4Addr,
    pub(super) tcp: u16,
    pub(super) udp: u16,
}

/// Attacks by an interface: `rate` packets a second, or as many as can be, until `over`. All that
/// the other end does with them, up to a socket, is done on the same processor, the first, and has
/// the right of way there. How many packets a second came in at the other end: when its ring is
/// full, a packet is lost.
pub(super) fn send(
    attack: Attack,
    target: &Target,
    (by, to): (&Link, &Link),
    rate: Option<u64>,
    over: impl Fn(Duration) -> bool + Send,
) -> Result<f64> {
    let frame = attack
        .frame(by.mac, to.mac, target)
        .map_err(|error| Error::NoFigure { who: attack.name().into(), what: error.to_string() })?;
    let cpu = Cpus::here()?.load;
    let before = received(to)?;
    let time = by.namespace.run(|| {
        pin(cpu)?;
        rustix::process::nice(LEAST).map_err(|e| Error::Settle(e.into()))?;
        run(attack, &frame, by.ifindex, rate, over)
    })??;
    Ok((received(to)? - before) as f64 / time.as_secs_f64())
}

fn received(link: &Link) -> Result<u64> {
    let path = PathBuf::from(format!("/sys/class/net/{}/statistics/rx_packets", link.name));
    let text = link.namespace.run_with_sysfs(|| fs::read_to_string(&path))?;
    let number = text.and_then(|text| text.trim().parse().map_err(std::io::Error::other));
    number.map_err(|source| Error::Read { path, source })
}

fn run(
    attack: Attack,
    frame: &[u8],
    towards: u32,
    rate: Option<u64>,
    over: impl Fn(Duration) -> bool,
) -> Result<Duration> {
    let mut storage = MaybeUninit::uninit();
    let open = skeleton::ShieldSkelBuilder::default().open(&mut storage).map_err(Error::Live)?;
    let mut skel = open.load().map_err(Error::Live)?;
    let data = skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
    for (to, from) in data.head.iter_mut().zip(frame.chunks_exact(8)) {
        *to = u64::from_ne_bytes(from.try_into().unwrap_or_default());
    }
    (data.towards, data.sources, data.ports) = (towards, attack.sources(), attack.ports());
    data.interval_ns = rate.map_or(0, |rate| 1_000_000_000 / rate.max(1));
    let began = Instant::now();
    while !over(began.elapsed()) {
        let input = ProgramInput {
            data_in: Some(frame),
            repeat: CALL,
            flags: LIVE_FRAMES,
            ..ProgramInput::default()
        };
        skel.progs.flood.test_run(input).map_err(Error::Live)?;
    }
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ringway_wire::{Frame, Header as _, Ip, UdpChecksum};

    use super::*;

    #[test]
    fn frames_are_right() {
        let target = Target { address: Ipv4Addr::new(10, 1, 0, 80), tcp: 80, udp: 7 };
        for attack in Attack::ALL {
            let bytes = attack.frame(Mac([2; 6]), Mac([4; 6]), &target).unwrap();
            assert!(bytes.len() >= 64, "the program writes so much anew");
            let frame = Frame::parse(&bytes[..]).unwrap();
            assert_eq!(bytes[..12], [[4; 6], [2; 6]].concat(), "to the other end");
            let ip = Ip::parse(frame.payload).unwrap();
            if attack == Attack::AckFlood {
                assert!(Tcp::parse(ip.payload).unwrap().checksum_is_right(ip.pseudo()));
            } else {
                let udp = Udp::parse(ip.payload).unwrap();
                assert_eq!(udp.verify(ip.pseudo()), UdpChecksum::None);
            }
        }
    }

    #[test]
    fn every_source_once() {
        let all: BTreeSet<Ipv4Addr> = Attack::AckFlood.addresses().collect();
        assert_eq!(all.len(), MANY as usize);
        let within = |address: &Ipv4Addr| {
            (address.to_bits() ^ FROM.to_bits()) >> (32 - u32::from(FROM_BITS)) == 0
        };
        assert!(all.iter().all(within));
        assert_eq!(Attack::OneSource.addresses().collect::<Vec<_>>(), [FROM]);
    }
}
