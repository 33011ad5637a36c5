//! The checksum that a sender's kernel left to its NIC (CHECKSUM_PARTIAL, include/linux/skbuff.h):
//! on a veth there is none, and the receiver's kernel knows that it need not look. Whoever reads
//! the bytes has to have it finished.

use std::net::IpAddr;

use ringway_wire::protocol;
use ringway_wire::{Frame, Ip, Sum};

/// Where in a frame the checksum is that was left undone, and what it has to be. None where the
/// frame has another one than that of the pseudo header alone: one within a tunnel, say.
pub(super) fn of(frame: &[u8]) -> Option<(usize, [u8; 2])> {
    let ip = Ip::parse(Frame::parse(frame).ok()?.payload).ok()?;
    let field = match ip.protocol {
        _ if ip.fragment.is_some() => return None,
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let now = ip.payload.get(field..field + 2)?;
    // As it is sent it is the complement, and as it was left it is not.
    let left = pseudo(&ip).finish().to_bytes().map(|byte| !byte);
    if now != left {
        return None;
    }
    // The checksum field already holds the sum of the pseudo header.
    let sum = Sum::default().with(ip.payload).finish().to_bytes();
    let none = ip.protocol == protocol::UDP && sum == [0; 2];
    let at = ip.payload.as_ptr().addr() - frame.as_ptr().addr() + field;
    Some((at, if none { [0xff; 2] } else { sum }))
}

fn pseudo(ip: &Ip<&[u8]>) -> Sum {
    let with = |sum: Sum, address| match address {
        IpAddr::V4(v4) => sum.with(&v4.octets()),
        IpAddr::V6(v6) => sum.with(&v6.octets()),
    };
    // No frame is that long.
    let len = ip.payload.len() as u32;
    let addresses = with(with(Sum::default(), ip.source()), ip.destination());
    addresses.with(&[0, ip.protocol]).with(&len.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use ringway_wire::{Builder, Ethernet, Ipv4, Ipv6, Mac, Tcp, Udp, checksum::Pseudo, ethertype};

    use super::*;

    /// A frame as it has to be, where its checksum is, and what the kernel leaves there.
    fn frame(v6: bool, tcp: bool, len: usize) -> (Vec<u8>, usize, [u8; 2]) {
        let mut buffer = vec![0; 2000];
        let mut built = Builder::new(&mut buffer, 100).unwrap();
        built.append(&vec![0xa5_u8; len][..]).unwrap();
        let v4 = Ipv4::new(protocol::UDP, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let (one, two) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let pseudo = if v6 { Pseudo::v6(one, two) } else { v4.pseudo() };
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        match tcp {
            true => built.tcp(Tcp::new(7, 8, Tcp::ACK), &[], pseudo).unwrap(),
            false => built.udp(Udp::new(7, 8), Some(pseudo)).unwrap(),
        };
        match v6 {
            true => built.ipv6(Ipv6::new(protocol, one, two)).unwrap(),
            false => built.ipv4(Ipv4 { protocol, ..v4 }, &[]).unwrap(),
        };
        let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        built.ethernet(Ethernet::new(Mac([2; 6]), Mac([4; 6]), kind)).unwrap();
        let range = built.range();
        let bytes = buffer[range].to_vec();
        let at = 14 + if v6 { 40 } else { 20 } + if tcp { 16 } else { 6 };
        let ip = Ip::parse(&bytes[14..]).unwrap();
        let left = super::pseudo(&ip).finish().to_bytes().map(|byte| !byte);
        (bytes, at, left)
    }

    #[test]
    fn what_was_left_undone_is_done() {
        for (v6, tcp, len) in [
            (false, false, 5),
            (false, false, 0),
            (true, false, 18),
            (false, true, 1001),
            (true, true, 0),
        ] {
            let (right, at, left) = frame(v6, tcp, len);
            let mut undone = right.clone();
            undone[at..at + 2].copy_from_slice(&left);
            let checksum = [right[at], right[at + 1]];
            assert_eq!(of(&undone), Some((at, checksum)), "{v6} {tcp} {len}");
            assert_eq!(of(&right), None, "{v6} {tcp} {len}");
            assert_eq!(of(&undone[..at]), None);
        }
    }
}
