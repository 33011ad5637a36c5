//! An attack: packets from within the kernel, by bpf/shield.bpf.c.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use ringway_testnet::Link;
use ringway_wire::{BuildError, Builder, Ethernet, Ipv4, Mac, Tcp, Udp, ethertype, protocol};
use serde::Serialize;

use super::peers::{Storage, skeleton};
use crate::harness::cpu::{Cpus, pin};
use crate::harness::named_enum::named;
use crate::{Error, Result};

/// BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h).
const LIVE_FRAMES: u32 = 1 << 1;
/// Packets of a call, sent or before their time: some tenths of a second. A call begins and ends with
/// a grace period of RCU, in which nothing is sent: of so many packets that is little, and as much
/// of each attack.
const CALL: u32 = 1 << 21;

/// The program writes so much of each frame anew.
const LEAST_FRAME: usize = 64;

/// Bytes that the program cuts off (bpf/shield.bpf.c).
const BEHIND: u32 = 4;

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
        /// SYNs from a million addresses.
        Syns = "syns",
    }
}

impl Attack {
    /// Those that every defence meets. SYNs are for those that answer them.
    pub(super) const SCENARIOS: [Self; 5] = [
        Self::Quiet,
        Self::OneSource,
        Self::DnsAmplification,
        Self::AckFlood,
        Self::SpoofedSources,
    ];

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
            Self::Syns => {
                let ip = Ipv4::new(protocol::TCP, self.from(), target.address);
                // Options as systems have them: MSS and window scale.
                let options = [2, 4, 5, 180, 1, 3, 3, 7];
                let tcp = Tcp::new(0x8000, target.tcp, Tcp::SYN);
                built.tcp(tcp, &options, ip.pseudo())?;
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
        let mut frame = built.packet().to_vec();
        frame.resize(frame.len().max(LEAST_FRAME), 0);
        Ok(frame)
    }
}

/// What is attacked.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Target {
    pub(super) address: Ipv4Addr,
    pub(super) tcp: u16,
    pub(super) udp: u16,
}

/// What came in of an attack.
pub(super) struct Flooded {
    packets: u64,
    pub(super) time: Duration,
}

impl Flooded {
    pub(super) fn pps(&self) -> f64 {
        self.packets as f64 / self.time.as_secs_f64()
    }
}

/// Attacks by an interface: `rate` packets a second, or as many as can be, until `over`. All that
/// the other end does with them, up to a socket, is done on the same processor, the first, and has
/// the right of way there. How many packets a second came in at the other end: when its ring is
/// full, a packet is lost.
pub(super) fn send(
    attack: Attack,
    target: &Target,
    way: (&Link, &Link),
    rate: Option<u64>,
    over: impl Fn(Duration) -> bool + Send,
) -> Result<f64> {
    Ok(flood(attack, target, way, rate, over)?.pps())
}

/// The same: how many, and for how long.
pub(super) fn flood(
    attack: Attack,
    target: &Target,
    (by, to): (&Link, &Link),
    rate: Option<u64>,
    over: impl Fn(Duration) -> bool + Send,
) -> Result<Flooded> {
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
    Ok(Flooded { packets: received(to)? - before, time })
}

fn received(link: &Link) -> Result<u64> {
    let path = PathBuf::from(format!("/sys/class/net/{}/statistics/rx_packets", link.name));
    let text = link.namespace.run_with_sysfs(|| fs::read_to_string(&path))?;
    let number = text.and_then(|text| text.trim().parse().map_err(std::io::Error::other));
    number.map_err(|source| Error::Read { path, source })
}

fn load<'s>(
    storage: &'s mut Storage,
    attack: Attack,
    frame: &[u8],
    towards: u32,
    rate: Option<u64>,
) -> Result<skeleton::ShieldSkel<'s>> {
    let open = skeleton::ShieldSkelBuilder::default().open(storage).map_err(Error::Live)?;
    let mut skel = open.load().map_err(Error::Live)?;
    let data = skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
    for (to, from) in data.head.iter_mut().zip(frame.chunks_exact(8)) {
        *to = u64::from_ne_bytes(from.try_into().unwrap_or_default());
    }
    (data.towards, data.sources, data.ports) = (towards, attack.sources(), attack.ports());
    data.interval_ns = rate.map_or(0, |rate| 1_000_000_000 / rate.max(1));
    data.behind = BEHIND;
    Ok(skel)
}

fn run(
    attack: Attack,
    frame: &[u8],
    towards: u32,
    rate: Option<u64>,
    over: impl Fn(Duration) -> bool,
) -> Result<Duration> {
    let mut storage = Storage::uninit();
    let skel = load(&mut storage, attack, frame, towards, rate)?;
    let longer = [frame, &[0; BEHIND as usize]].concat();
    let began = Instant::now();
    while !over(began.elapsed()) {
        let input = ProgramInput {
            data_in: Some(&longer),
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
        for attack in Attack::ALL {
            let bytes = attack.frame(Mac([2; 6]), Mac([4; 6]), &TARGET).unwrap();
            assert!(bytes.len() >= LEAST_FRAME);
            assert_eq!(bytes[..12], [[4; 6], [2; 6]].concat(), "to the other end");
            judge(attack, &bytes);
        }
    }

    const TARGET: Target = Target { address: Ipv4Addr::new(10, 1, 0, 80), tcp: 80, udp: 7 };

    fn judge(attack: Attack, bytes: &[u8]) {
        let ip = Ip::parse(Frame::parse(bytes).unwrap().payload).unwrap();
        if matches!(attack, Attack::AckFlood | Attack::Syns) {
            assert!(Tcp::parse(ip.payload).unwrap().checksum_is_right(ip.pseudo()));
        } else {
            assert_eq!(Udp::parse(ip.payload).unwrap().verify(ip.pseudo()), UdpChecksum::None);
        }
    }

    #[test]
    fn frames_stay_right_when_sources_take_turns() {
        if !ringway_testnet::root_or_skip("flood::frames_stay_right_when_sources_take_turns") {
            return;
        }
        for attack in Attack::ALL {
            let bytes = attack.frame(Mac([2; 6]), Mac([4; 6]), &TARGET).unwrap();
            let mut storage = Storage::uninit();
            let skel = load(&mut storage, attack, &bytes, 1, None).unwrap();
            for _ in 0..10 {
                let mut sent = [&bytes[..], &[0; BEHIND as usize]].concat();
                let longer = sent.clone();
                let input = ProgramInput {
                    data_in: Some(&longer),
                    data_out: Some(&mut sent),
                    ..ProgramInput::default()
                };
                let output = skel.progs.flood.test_run(input).unwrap();
                assert_eq!(output.data.map(|data| data.len()), Some(bytes.len()));
                judge(attack, &sent[..bytes.len()]);
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
