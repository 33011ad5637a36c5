//! Datagrams to a port of ours, and their way back. `udp-echo`: they come back as they are.

use ringway_wire::protocol;
use ringway_wire::{
    Ethernet, Frame, Header as _, Ip, IpHeader, Ref, U16, Udp, UdpChecksum, checksum, ethertype,
};
use ringway_xsk::Packet;

use super::Host;
use super::host::{
    is_host, long_checksum_is_right, long_payload_len, parse_long, turn_v4, turn_v6,
};
use crate::app::App;
use crate::arch::Cycles;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// A datagram that was sent to us, whole and undamaged.
pub(crate) struct Datagram<'a> {
    ethernet: Ref<&'a mut [u8], Ethernet>,
    ip: IpHeader<&'a mut [u8]>,
    udp: Ref<&'a mut [u8], Udp>,
    pub payload: &'a mut [u8],
}

/// What a packet is to somebody who listens on a port.
pub(crate) enum Found<'a> {
    Datagram(Datagram<'a>),
    /// Something else, that the host may know how to answer.
    Other,
}

/// The datagram to `port` of `host` in this packet.
pub(crate) fn find<'a>(
    packet: &'a mut Packet,
    host: &Host,
    port: u16,
) -> Result<Found<'a>, Reason> {
    if packet.frames() > 1 {
        return find_long(packet, host, port);
    }
    let Frame { ethernet, ethertype, payload, .. } = Frame::parse(packet.data_mut())?;
    if ethernet.destination != host.mac() || !matches!(ethertype, ethertype::IPV4 | ethertype::IPV6)
    {
        return Ok(Found::Other);
    }
    if !is_ours(&Ip::parse(&*payload)?, host, port)? {
        return Ok(Found::Other);
    }
    let Ip { header: ip, payload, .. } = Ip::parse(payload)?;
    let view = Udp::parse(payload)?;
    Ok(Found::Datagram(Datagram { ethernet, ip, udp: view.header, payload: view.payload }))
}

/// The same of a packet of several frames. Of the datagram's payload only what is in the first is there.
#[cold]
fn find_long<'a>(packet: &'a mut Packet, host: &Host, port: u16) -> Result<Found<'a>, Reason> {
    let (to, ip) = parse_long(packet)?;
    if to != host.mac() || ip.protocol != protocol::UDP {
        return Ok(Found::Other);
    }
    check_ends(&ip, host)?;
    let udp = Udp::parse_partial(ip.payload)?.header;
    if usize::from(udp.length.get()) != long_payload_len(packet, &ip) {
        return Err(Reason::MalformedUdp);
    }
    let checksum = match udp.checksum.get() {
        0 => UdpChecksum::None,
        _ if long_checksum_is_right(packet, &ip) => UdpChecksum::Right,
        _ => UdpChecksum::Wrong,
    };
    check_udp(&ip, checksum, udp.destination.get(), port)?;
    let Frame { ethernet, payload, .. } = Frame::parse(packet.data_mut())?;
    let Ip { header: ip, payload, .. } = Ip::parse_partial(payload)?;
    let view = Udp::parse_partial(payload)?;
    Ok(Found::Datagram(Datagram { ethernet, ip, udp: view.header, payload: view.payload }))
}

fn is_ours(ip: &Ip<&[u8]>, host: &Host, port: u16) -> Result<bool, Reason> {
    if ip.protocol != protocol::UDP {
        return Ok(false);
    }
    check_ends(ip, host)?;
    let udp = Udp::parse(ip.payload)?;
    check_udp(ip, udp.verify(ip.pseudo()), udp.header.destination.get(), port)?;
    Ok(true)
}

fn check_ends(ip: &Ip<&[u8]>, host: &Host) -> Result<(), Reason> {
    if !host.has(ip.destination()) {
        return Err(Reason::OtherAddress);
    }
    host.check(ip)?;
    if is_host(ip.source()) { Ok(()) } else { Err(Reason::BadSource) }
}

fn check_udp(ip: &Ip<&[u8]>, checksum: UdpChecksum, to: u16, port: u16) -> Result<(), Reason> {
    match checksum {
        UdpChecksum::Wrong => Err(Reason::BadChecksum),
        // RFC 8200, section 8.1.
        UdpChecksum::None if matches!(ip.header, IpHeader::V6(_)) => Err(Reason::BadChecksum),
        _ if to != port => Err(Reason::OtherPort),
        _ => Ok(()),
    }
}

impl Datagram<'_> {
    /// Back to its sender. The checksums stay right: what they cover changes places.
    pub(crate) fn turn(&mut self) {
        self.ethernet.swap();
        match &mut self.ip {
            IpHeader::V4(header) => turn_v4(header),
            IpHeader::V6(header) => turn_v6(header),
        }
        let udp = &mut *self.udp;
        std::mem::swap(&mut udp.source, &mut udp.destination);
    }

    /// Back to its sender with this payload, which is not longer than the one that came; both are an even number of bytes. How
    /// many bytes the packet is shorter now.
    pub(crate) fn answer(&mut self, payload: &[u8]) -> Result<usize, Reason> {
        let len = U16::new((size_of::<Udp>() + payload.len()) as u16);
        let shorter = self.payload.len().checked_sub(payload.len()).ok_or(Reason::NoRoom)?;
        self.turn();
        self.udp.replace(&*self.payload, payload);
        // It stands in the pseudo header, too.
        let old = self.udp.length;
        self.udp.replace(&[old; 2], &[len; 2]);
        self.udp.length = len;
        self.payload[..payload.len()].copy_from_slice(payload);
        match &mut self.ip {
            IpHeader::V4(header) => {
                let (old, new) = (header.total_length, U16::new(len.get() + 20));
                let mut sum = header.checksum;
                checksum::replace(&mut sum, &old, &new);
                (header.checksum, header.total_length) = (sum, new);
            }
            IpHeader::V6(header) => header.payload_length = len,
        }
        Ok(shorter)
    }
}

/// Sends datagrams back where they came from, within their frames; the host it is can be reached and pinged.
pub struct UdpEcho {
    host: Host,
    port: u16,
}

impl UdpEcho {
    /// On this UDP port.
    pub fn new(host: Host, port: u16) -> Self {
        Self { host, port }
    }

    fn echo(&self, packet: &mut Packet, from: usize) -> Result<Verdict, Reason> {
        match find(packet, &self.host, self.port)? {
            Found::Datagram(mut datagram) => datagram.turn(),
            Found::Other => return Ok(self.host.answered(packet, from)),
        }
        Ok(Verdict::Forward(from))
    }
}

impl App for UdpEcho {
    fn name(&self) -> &'static str {
        "udp-echo"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let from = burst.from();
        burst.decide(|packet| self.echo(packet, from).into());
    }
}
