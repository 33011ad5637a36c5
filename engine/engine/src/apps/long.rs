//! Packets of several frames: all headers are in the first, and a checksum goes over all.

use ringway_wire::protocol;
use ringway_wire::{Frame, Ip, IpHeader, Mac, Sum, ethertype};
use ringway_xsk::Packet;

use crate::status::reason::Reason;

/// Where it was sent to, and its IP packet, of whose payload the part is there that lies in the first frame. A packet whose length is
/// not what IP says has no place here: a frame's padding fits into the first.
#[cold]
pub(crate) fn parse(packet: &Packet) -> Result<(Mac, Ip<&[u8]>), Reason> {
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

/// Bytes that its IP packet carries, in all frames.
pub(crate) fn payload_len(packet: &Packet, ip: &Ip<&[u8]>) -> usize {
    ip.payload.len() + packet.segments().skip(1).map(<[u8]>::len).sum::<usize>()
}

/// Whether the checksum over what its IP packet carries is right.
pub(crate) fn checksum_is_right(packet: &Packet, ip: &Ip<&[u8]>) -> bool {
    let own = match ip.protocol {
        protocol::ICMP => Sum::default(),
        other => ip.pseudo().sum(other, payload_len(packet, ip)),
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
