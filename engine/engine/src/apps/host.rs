//! The answers that every host must give: ARP, neighbour discovery and pings (RFC 826, 4861, 792,
//! 4443). `icmp` is a host that does this and no more.

use std::mem::swap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_wire::{
    Arp, BuildError, Builder, Ethernet, Frame, Header as _, Icmpv6, Ip, IpHeader, Ipv6, Mac, Sum,
    U16, Vlan, checksum, ethertype, nd, protocol,
};
use ringway_xsk::Buffer;

use crate::app::App;
use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// Our addresses on a link.
#[derive(Clone, Debug)]
pub struct Host {
    mac: Mac,
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
}

impl Host {
    /// A host with these addresses at this MAC address.
    pub fn new(mac: Mac, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpAddr::V4(address) => v4.push(address),
                IpAddr::V6(address) => v6.push(address),
            }
        }
        Self { mac, v4, v6 }
    }

    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Whether it is one of our addresses.
    #[inline]
    pub fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(&address),
            IpAddr::V6(address) => self.v6.contains(&address),
        }
    }

    /// The first of our addresses of the other's family; else any; else the unspecified one.
    pub(crate) fn address_towards(&self, other: IpAddr) -> IpAddr {
        let v4 = self.v4.first().map(|address| IpAddr::V4(*address));
        let v6 = self.v6.first().map(|address| IpAddr::V6(*address));
        let any = if other.is_ipv4() { v4.or(v6) } else { v6.or(v4) };
        any.unwrap_or(Ipv6Addr::UNSPECIFIED.into())
    }

    /// Turns a question about us into its answer, in place.
    ///
    /// # Errors
    /// Why it is not answered.
    pub fn answer(&self, packet: &mut impl Buffer) -> Result<(), Reason> {
        if packet.frames() > 1 {
            return self.answer_long(packet);
        }
        let mut frame = Frame::parse(packet.data_mut())?;
        let to = frame.ethernet.destination;
        if to != self.mac && !to.is_multicast() {
            return Err(Reason::OtherMac);
        }
        let advertisement = match frame.ethertype {
            ethertype::ARP => self.answer_arp(frame.payload)?,
            ethertype::IPV4 | ethertype::IPV6 => self.answer_ip(to, frame.payload)?,
            _ => return Err(Reason::OtherProtocol),
        };
        frame.ethernet.swap();
        frame.ethernet.source = self.mac;
        match advertisement {
            Some(advertisement) => self.advertise(packet, advertisement),
            None => Ok(()),
        }
    }

    /// As [`Host::answer`], as a verdict: the answer goes back by `port`; a packet without one is
    /// dropped with its reason.
    pub fn answered(&self, packet: &mut impl Buffer, port: usize) -> Verdict {
        self.answer(packet).map(|()| Verdict::Forward(port)).into()
    }

    /// An echo request of several frames: nothing else is as long.
    #[cold]
    fn answer_long(&self, packet: &mut impl Buffer) -> Result<(), Reason> {
        let (to, ip) = parse_long(packet)?;
        if to != self.mac {
            return Err(Reason::OtherMac);
        }
        self.check(&ip)?;
        self.check_ends(&ip)?;
        check_echo(&ip, || long_checksum_is_right(packet, &ip))?;
        let mut frame = Frame::parse(packet.data_mut())?;
        turn(frame.payload)?;
        frame.ethernet.swap();
        Ok(())
    }

    fn answer_arp(&self, payload: &mut [u8]) -> Result<Option<Advertisement>, Reason> {
        let mut arp = Arp::parse(payload)?.header;
        if arp.operation.get() != Arp::REQUEST || !self.v4.contains(&arp.target.into()) {
            return Err(Reason::OtherAddress);
        }
        if arp.sender_mac.is_multicast() {
            return Err(Reason::BadSource);
        }
        *arp = arp.reply(self.mac);
        Ok(None)
    }

    fn answer_ip(&self, to: Mac, payload: &mut [u8]) -> Result<Option<Advertisement>, Reason> {
        let ip = Ip::parse(&*payload)?;
        self.check(&ip)?;
        if ip.protocol == protocol::ICMPV6
            && Icmpv6::parse(ip.payload)?.header.kind == Icmpv6::NEIGHBOUR_SOLICITATION
        {
            return self.solicited(&ip).map(Some);
        }
        if to.is_multicast() {
            return Err(Reason::OtherAddress);
        }
        self.check_ends(&ip)?;
        check_echo(&ip, || echo_is_right(&ip))?;
        turn(payload)?;
        Ok(None)
    }

    /// To one of us, from one host.
    fn check_ends(&self, ip: &Ip<&[u8]>) -> Result<(), Reason> {
        match self.has(ip.destination()) {
            false => Err(Reason::OtherAddress),
            true if !is_host(ip.source()) => Err(Reason::BadSource),
            true => Ok(()),
        }
    }

    /// Checks an IP packet for us: it must be whole, without options or extensions, its header
    /// undamaged.
    ///
    /// # Errors
    /// Why the packet must be dropped.
    pub fn check(&self, ip: &Ip<&[u8]>) -> Result<(), Reason> {
        if ip.fragment.is_some() {
            return Err(Reason::Fragment);
        }
        if !ip.between.is_empty() {
            return Err(Reason::Options);
        }
        match &ip.header {
            IpHeader::V4(header) if !header_is_right(header) => Err(Reason::BadChecksum),
            _ => Ok(()),
        }
    }

    /// A solicitation as RFC 4861, section 7.1.1, has it.
    fn solicited(&self, ip: &Ip<&[u8]>) -> Result<Advertisement, Reason> {
        let icmp = Icmpv6::parse(ip.payload)?;
        if !icmp.checksum_is_right(ip.pseudo()) {
            return Err(Reason::BadChecksum);
        }
        let neighbour = nd::Neighbour::parse(icmp.payload)?;
        let target = Ipv6Addr::from(neighbour.header.target);
        if ip.ttl() != 255 || icmp.header.code != 0 || target.is_multicast() {
            return Err(Reason::MalformedIcmpv6);
        }
        let mut mac = None;
        for option in nd::NdOptions::new(neighbour.payload) {
            if let nd::NdOption::SourceLinkLayer(source) = option? {
                mac = Some(source);
            }
        }
        let IpAddr::V6(source) = ip.source() else { return Err(Reason::MalformedIpv6) };
        match self.v6.contains(&target) {
            false => Err(Reason::OtherAddress),
            true if source.is_multicast() => Err(Reason::BadSource),
            true => Ok(Advertisement { target, source, mac }),
        }
    }

    /// Puts an advertisement in the solicitation's place, from the inside out.
    fn advertise(&self, packet: &mut impl Buffer, about: Advertisement) -> Result<(), Reason> {
        let frame = Frame::parse(packet.data())?;
        let tags = frame.tags.map(|tag| tag.map(|tag| *tag));
        let outer = frame.ethernet.ethertype.get();
        // A host that asks whether an address is free has none yet, so the answer goes to all
        // (section 7.2.4).
        let (whom, mac, flags) = match about.source.is_unspecified() {
            true => (ALL_NODES, Mac::of_multicast(ALL_NODES), nd::flags::OVERRIDE),
            false => {
                let asked = frame.ethernet.destination;
                let flags = nd::flags::SOLICITED | nd::flags::OVERRIDE;
                (about.source, about.mac.unwrap_or(asked), flags)
            }
        };
        let start = packet.headroom() + packet.data().len().min(HEADERS);
        let range = self.build(packet.buffer_mut(), start, about.target, whom, flags, |built| {
            for tag in tags.iter().rev().flatten() {
                built.put::<Vlan>(tag)?;
            }
            built.ethernet(Ethernet::new(mac, self.mac, outer)).map(drop)
        });
        packet.set_range(range?)?;
        Ok(())
    }

    fn build(
        &self,
        buffer: &mut [u8],
        start: usize,
        target: Ipv6Addr,
        whom: Ipv6Addr,
        flags: u32,
        link: impl FnOnce(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Result<std::ops::Range<usize>, BuildError> {
        let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(protocol::ICMPV6, target, whom) };
        let mut built = Builder::new(buffer, start)?;
        built
            .append(&nd::Neighbour { target: target.octets() })?
            .append(&nd::LinkLayer::target(self.mac))?
            .icmpv6(Icmpv6::new(Icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, flags), ip.pseudo())?
            .ipv6(ip)?;
        link(&mut built)?;
        Ok(built.range())
    }
}

/// Most bytes of headers before an advertisement: Ethernet, two tags, IPv6 and ICMPv6.
const HEADERS: usize = 14 + 8 + 40 + 8;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// An advertisement and its receiver.
struct Advertisement {
    target: Ipv6Addr,
    source: Ipv6Addr,
    mac: Option<Mac>,
}

/// Whether one host on a link can have this address: it is no group, not unspecified and no
/// loopback.
pub fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            // 240/4 has the broadcast address in it.
            !(v4.octets()[0] >= 224 || v4.octets()[0] == 0 || v4.is_loopback())
        }
        IpAddr::V6(v6) => !(v6.is_multicast() || v6.is_unspecified() || v6.is_loopback()),
    }
}

/// Whether the checksum of ICMP or ICMPv6 is right.
fn echo_is_right(ip: &Ip<&[u8]>) -> bool {
    let sum = match ip.protocol {
        protocol::ICMP => Sum::default(),
        other => ip.pseudo().sum(other, ip.payload.len()),
    };
    sum.with(ip.payload).is_right()
}

/// A header without options, as was checked.
fn header_is_right(header: &ringway_wire::Ipv4) -> bool {
    use ringway_wire::IntoBytes as _;
    Sum::default().with(header.as_bytes()).is_right()
}

/// An echo request whose checksum is right.
fn check_echo(ip: &Ip<&[u8]>, is_right: impl FnOnce() -> bool) -> Result<(), Reason> {
    let asks = match (&ip.header, ip.protocol) {
        (IpHeader::V4(_), protocol::ICMP) => {
            ringway_wire::Icmp::parse(ip.payload)?.header.kind == ringway_wire::Icmp::ECHO_REQUEST
        }
        (IpHeader::V6(_), protocol::ICMPV6) => {
            Icmpv6::parse(ip.payload)?.header.kind == Icmpv6::ECHO_REQUEST
        }
        _ => return Err(Reason::OtherProtocol),
    };
    match (asks, is_right()) {
        (_, false) => Err(Reason::BadChecksum),
        (false, true) => Err(Reason::OtherProtocol),
        (true, true) => Ok(()),
    }
}

/// Turns an echo request into its answer; its end may lie in other frames. The checksums stay
/// right: the words that they cover only change places.
fn turn(payload: &mut [u8]) -> Result<(), Reason> {
    let ip = Ip::parse_partial(payload)?;
    match ip.header {
        IpHeader::V4(mut header) => {
            ringway_wire::Icmp::parse(ip.payload)?
                .header
                .set_kind(ringway_wire::Icmp::ECHO_REPLY, 0);
            turn_v4(&mut header);
        }
        IpHeader::V6(mut header) => {
            Icmpv6::parse(ip.payload)?.header.set_kind(Icmpv6::ECHO_REPLY, 0);
            turn_v6(&mut header);
        }
    }
    Ok(())
}

/// Returns it to its sender, with a new TTL.
pub(crate) fn turn_v4(header: &mut ringway_wire::Ipv4) {
    let old = [header.ttl, header.protocol];
    swap(&mut header.source, &mut header.destination);
    header.ttl = 64;
    let mut sum: U16 = header.checksum;
    checksum::replace(&mut sum, &old, &[header.ttl, header.protocol]);
    header.checksum = sum;
}

/// Returns it to its sender, with a new hop limit.
pub(crate) fn turn_v6(header: &mut Ipv6) {
    swap(&mut header.source, &mut header.destination);
    header.hop_limit = 64;
}

// Packets of several frames: all headers are in the first, and a checksum goes over all.

/// Where it was sent to, and its IP packet, of whose payload the part is there that lies in the
/// first frame. A packet whose length is not what IP says has no place here: a frame's padding fits
/// into the first.
#[cold]
pub(crate) fn parse_long(packet: &impl Buffer) -> Result<(Mac, Ip<&[u8]>), Reason> {
    let frame = Frame::parse(packet.data())?;
    if !matches!(frame.ethertype, ethertype::IPV4 | ethertype::IPV6) {
        return Err(Reason::SeveralFrames);
    }
    let before = packet.data().len() - frame.payload.len();
    let ip = Ip::parse_partial(frame.payload)?;
    let len = match &ip.header {
        IpHeader::V4(header) => header.total_length.get().into(),
        IpHeader::V6(header) => size_of_val(&**header) + usize::from(header.payload_length.get()),
    };
    match before + len == packet.len() {
        true => Ok((frame.ethernet.destination, ip)),
        false => Err(Reason::SeveralFrames),
    }
}

/// Payload bytes of its IP packet, in all frames.
pub(crate) fn long_payload_len(packet: &impl Buffer, ip: &Ip<&[u8]>) -> usize {
    ip.payload.len() + packet.segments().skip(1).map(<[u8]>::len).sum::<usize>()
}

/// Whether the checksum over the payload of its IP packet is right.
pub(crate) fn long_checksum_is_right(packet: &impl Buffer, ip: &Ip<&[u8]>) -> bool {
    let own = match ip.protocol {
        protocol::ICMP => Sum::default(),
        other => ip.pseudo().sum(other, long_payload_len(packet, ip)),
    };
    let mut at = 0;
    let segments = std::iter::once(ip.payload).chain(packet.segments().skip(1));
    let sum = segments.fold(own, |sum, bytes| {
        let odd = at % 2 != 0;
        at += bytes.len();
        if odd { sum.with_odd(bytes) } else { sum.with(bytes) }
    });
    sum.is_right()
}

/// Answers ARP, neighbour solicitations and echo requests, each by the port that it came in by.
pub struct Icmp {
    host: Host,
}

impl Icmp {
    pub fn new(host: Host) -> Self {
        Self { host }
    }
}

impl<P: BufferPool> App<P> for Icmp {
    fn name(&self) -> &'static str {
        "icmp"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        let port = burst.from();
        burst.decide(|packet| self.host.answered(packet, port));
    }
}
