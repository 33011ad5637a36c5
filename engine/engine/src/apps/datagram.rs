//! Datagrams to one of our ports, and their way back. `udp-echo` returns them unchanged.

use std::net::SocketAddr;

use ringway_wire::protocol;
use ringway_wire::{
    Builder, Ethernet, Frame, Header as _, Ip, IpHeader, MIN_FRAME, Ref, U16, Udp, UdpChecksum,
    checksum, ethertype,
};
use ringway_xsk::Buffer;

use super::Host;
use super::host::{
    is_host, long_checksum_is_right, long_payload_len, parse_long, turn_v4, turn_v6,
};
use crate::app::App;
use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// A datagram that was sent to us, whole and undamaged.
pub struct Datagram<'a> {
    ethernet: Ref<&'a mut [u8], Ethernet>,
    ip: IpHeader<&'a mut [u8]>,
    udp: Ref<&'a mut [u8], Udp>,
    /// The payload; if the packet has several frames, the part in the first.
    pub payload: &'a mut [u8],
}

fn find<'a>(
    packet: &'a mut impl Buffer,
    host: &Host,
    port: u16,
) -> Result<Option<Datagram<'a>>, Reason> {
    if packet.frames() > 1 {
        return find_long(packet, host, port);
    }
    let Frame { ethernet, ethertype, payload, .. } = Frame::parse(packet.data_mut())?;
    if ethernet.destination != host.mac() || !matches!(ethertype, ethertype::IPV4 | ethertype::IPV6)
    {
        return Ok(None);
    }
    if !is_ours(&Ip::parse(&*payload)?, host, port)? {
        return Ok(None);
    }
    let Ip { header: ip, payload, .. } = Ip::parse(payload)?;
    let view = Udp::parse(payload)?;
    Ok(Some(Datagram { ethernet, ip, udp: view.header, payload: view.payload }))
}

/// The same of a packet of several frames. It has only the part of the payload in the first frame.
#[cold]
fn find_long<'a>(
    packet: &'a mut impl Buffer,
    host: &Host,
    port: u16,
) -> Result<Option<Datagram<'a>>, Reason> {
    let (to, ip) = parse_long(packet)?;
    if to != host.mac() || ip.protocol != protocol::UDP {
        return Ok(None);
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
    Ok(Some(Datagram { ethernet, ip, udp: view.header, payload: view.payload }))
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

impl<'a> Datagram<'a> {
    /// The datagram to `port` of `host` in this packet; none if the packet is something else, which
    /// [`Host::answer`] may answer.
    ///
    /// # Errors
    /// Why the packet must be dropped: it is for another host, a fragment, damaged, or from an
    /// address that no host has.
    pub fn find(
        packet: &'a mut impl Buffer,
        host: &Host,
        port: u16,
    ) -> Result<Option<Self>, Reason> {
        find(packet, host, port)
    }

    pub fn source(&self) -> SocketAddr {
        let address = match &self.ip {
            IpHeader::V4(header) => header.source.into(),
            IpHeader::V6(header) => header.source.into(),
        };
        SocketAddr::new(address, self.udp.source.get())
    }

    /// Returns it to its sender. The checksums stay right: the words that they cover only change
    /// places.
    pub fn turn(&mut self) {
        self.ethernet.swap();
        match &mut self.ip {
            IpHeader::V4(header) => turn_v4(header),
            IpHeader::V6(header) => turn_v6(header),
        }
        let udp = &mut *self.udp;
        std::mem::swap(&mut udp.source, &mut udp.destination);
    }

    /// Returns it to its sender with this payload, which is not longer than the one that came; both
    /// have an even number of bytes. Returns the number of bytes by which the packet is shorter.
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

impl Host {
    /// Answers a datagram to `port` in its own frame, with any payload that fits. `write` gets all
    /// the room, which begins with the payload that came, and that payload's length; it returns the
    /// length of the answer. False if the packet is something else ([`Host::answer`]).
    ///
    /// ```
    /// use ringway_engine::apps::Host;
    /// use ringway_engine::{App, Burst, Cycles, Reason, Verdict};
    /// use ringway_xsk::Packet;
    ///
    /// /// Sends back what comes on port 4242, and a greeting behind it.
    /// struct Greeter(Host);
    ///
    /// impl Greeter {
    ///     fn greet(&self, packet: &mut Packet, from: usize) -> Result<Verdict, Reason> {
    ///         let greeted = self.0.answer_datagram(packet, 4242, |room, len| {
    ///             let end = len + 5;
    ///             room.get_mut(len..end).ok_or(Reason::NoRoom)?.copy_from_slice(b"hello");
    ///             Ok(end)
    ///         })?;
    ///         Ok(if greeted { Verdict::Forward(from) } else { self.0.answered(packet, from) })
    ///     }
    /// }
    ///
    /// impl App for Greeter {
    ///     fn name(&self) -> &'static str {
    ///         "greeter"
    ///     }
    ///
    ///     fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
    ///         let from = burst.from();
    ///         burst.decide(|packet| self.greet(packet, from).into());
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// Why the packet must be dropped; it may have changed.
    pub fn answer_datagram(
        &self,
        packet: &mut impl Buffer,
        port: u16,
        write: impl FnOnce(&mut [u8], usize) -> Result<usize, Reason>,
    ) -> Result<bool, Reason> {
        let several = packet.frames() > 1;
        let begin = packet.range().start;
        let Some(mut datagram) = find(packet, self, port)? else { return Ok(false) };
        if several {
            return Err(Reason::SeveralFrames);
        }
        datagram.turn();
        let Datagram { ip, udp, payload, .. } = datagram;
        let (udp, len) = (*udp, payload.len());
        let (v4, v6) = match ip {
            IpHeader::V4(header) => (Some(*header), None),
            IpHeader::V6(header) => (None, Some(*header)),
        };
        let frame = Frame::parse(packet.data())?;
        let headers =
            frame.header_len() + Ip::parse(frame.payload)?.header_len() + size_of::<Udp>();
        let (start, buffer) = (begin + headers, packet.buffer_mut());
        let room = buffer.get_mut(start..).ok_or(Reason::NoRoom)?;
        let len = write(room, len)?;
        // Ethernet's padding, where the answer is shorter than that.
        room.iter_mut()
            .skip(len)
            .take(MIN_FRAME.saturating_sub(headers + len))
            .for_each(|b| *b = 0);
        let mut built = Builder::around(buffer, start..start + len)?;
        match (v4, v6) {
            (Some(ip), _) => drop(built.udp(udp, Some(ip.pseudo()))?.ipv4(ip, &[])?),
            (_, Some(ip)) => drop(built.udp(udp, Some(ip.pseudo()))?.ipv6(ip)?),
            _ => {}
        }
        packet.set_range(begin..begin + MIN_FRAME.max(headers + len))?;
        Ok(true)
    }
}

/// Returns datagrams to their senders, within their frames. It is also a host that can be reached
/// and pinged.
pub struct UdpEcho {
    host: Host,
    port: u16,
}

impl UdpEcho {
    pub fn new(host: Host, port: u16) -> Self {
        Self { host, port }
    }

    fn echo(&self, packet: &mut impl Buffer, from: usize) -> Result<Verdict, Reason> {
        match find(packet, &self.host, self.port)? {
            Some(mut datagram) => datagram.turn(),
            None => return Ok(self.host.answered(packet, from)),
        }
        Ok(Verdict::Forward(from))
    }
}

impl<P: BufferPool> App<P> for UdpEcho {
    fn name(&self) -> &'static str {
        "udp-echo"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        let from = burst.from();
        burst.decide(|packet| self.echo(packet, from).into());
    }
}
