//! A packet but for what changes from one to the next; those bytes are written, and checksums
//! mended by them alone (RFC 1624).

use ringway_engine::stamp::Stamp;
use ringway_wire::{IntoBytes as _, Ipv4, Ipv6, Sum, Tcp, U16, Udp};

use crate::generate::addresses::{Addresses, Numbers};
use crate::generate::recipe::{Recipe, Transport};

/// A frame, and where in it things change.
#[derive(Clone, Debug)]
pub struct Template {
    frame: Vec<u8>,
    places: Option<Places>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Of IPv4 the last four bytes.
    source: [u8; 16],
    destination: [u8; 16],
    ports: [u8; 4],
}

/// Offsets within the frame, all below its length and at even places from where a checksum begins;
/// and sums over all that does not change.
#[derive(Clone, Copy, Debug)]
struct Places {
    transport: Transport,
    /// Length of an address, and where the source's begins; the destination's follows.
    address_len: usize,
    addresses: usize,
    /// Ports, or identifier and sequence number of an echo request.
    words: usize,
    stamp: usize,
    /// IPv6 has none.
    ip_checksum: Option<(usize, Sum)>,
    checksum: usize,
    rest: Sum,
}

impl Template {
    /// A frame that is sent as it is.
    pub fn fixed(frame: Vec<u8>) -> Self {
        Self { frame, places: None }
    }

    /// As [`Recipe`] builds it: a header of IP without options at `ip`, one of this transport
    /// behind it at `at`, then a stamp of zeroes.
    pub(super) fn new(frame: Vec<u8>, transport: Transport, ip: usize, at: usize) -> Self {
        let (header, words, checksum) = match transport {
            Transport::Udp => (size_of::<Udp>(), 0, 6),
            Transport::TcpSyn => (size_of::<Tcp>(), 0, 16),
            Transport::Icmp => (8, 4, 2),
        };
        let v4 = at - ip == size_of::<Ipv4>();
        let (address_len, addresses) = if v4 { (4, ip + 12) } else { (16, ip + 8) };
        debug_assert!(v4 || at - ip == size_of::<Ipv6>());
        let mut places = Places {
            transport,
            address_len,
            addresses,
            words: at + words,
            stamp: at + header,
            ip_checksum: None,
            checksum: at + checksum,
            rest: Sum::default(),
        };
        let both = &frame[addresses..addresses + 2 * address_len];
        let sum = |at: usize| Sum::of_checksum(U16::from_bytes([frame[at], frame[at + 1]]));
        if v4 {
            places.ip_checksum = Some((ip + 10, sum(ip + 10).without(both)));
        }
        // The stamp is of zeroes, which a sum does not know of.
        places.rest = sum(places.checksum).without(&frame[places.words..places.words + 4]);
        if places.covers_addresses() {
            places.rest = places.rest.without(both);
        }
        Self { frame, places: Some(places) }
    }

    /// The frame, with the first of all addresses and ports, and a stamp of zeroes.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Where the stamp begins, and the checksum over it; none where a frame is sent as it is.
    pub fn stamped(&self) -> Option<(usize, usize)> {
        self.places.as_ref().map(|places| (places.stamp, places.checksum))
    }

    /// Makes a copy of [`Template::frame`], or the beginning of one that has its headers and stamp,
    /// a packet of this flow.
    #[inline]
    pub fn write(&self, copy: &mut [u8], flow: &Flow, stamp: &Stamp) {
        let Some(places) = &self.places else { return };
        let stamp = stamp.as_bytes();
        let words = match places.transport {
            // The stream, and the lower half of the sequence number's lower half.
            Transport::Icmp => [stamp[4], stamp[5], stamp[10], stamp[11]],
            _ => flow.ports,
        };
        let len = places.address_len;
        let (source, destination) = (&flow.source[16 - len..], &flow.destination[16 - len..]);
        let mut put = |at: usize, bytes: &[u8]| copy[at..at + bytes.len()].copy_from_slice(bytes);
        put(places.addresses, source);
        put(places.addresses + len, destination);
        if let Some((at, sum)) = places.ip_checksum {
            put(at, &sum.with(source).with(destination).finish().to_bytes());
        }
        put(places.words, &words);
        put(places.stamp, stamp);
        let mut sum = places.rest.with(&words).with(stamp);
        if places.covers_addresses() {
            sum = sum.with(source).with(destination);
        }
        put(places.checksum, &places.finish(sum).to_bytes());
    }
}

impl Places {
    /// ICMP for IPv4 has no pseudo header.
    fn covers_addresses(&self) -> bool {
        self.transport != Transport::Icmp || self.ip_checksum.is_none()
    }

    /// Of UDP none is sent as zero (RFC 768).
    fn finish(&self, sum: Sum) -> U16 {
        match sum.finish() {
            U16::ZERO if self.transport == Transport::Udp => U16::MAX_VALUE,
            checksum => checksum,
        }
    }
}

/// Flows in turn: sources first, so that a prefix of many is soon used; then source ports,
/// destination ports and destinations; then from the beginning.
#[derive(Clone, Debug)]
pub struct Flows {
    sources: Addresses,
    destinations: Addresses,
    source_ports: Numbers,
    destination_ports: Numbers,
    at: [u64; 4],
}

impl Flows {
    pub fn of(recipe: &Recipe) -> Self {
        let Recipe { sources, destinations, source_ports, destination_ports, .. } = *recipe;
        Self { sources, destinations, source_ports, destination_ports, at: [0; 4] }
    }

    /// How many there are, as far as 64 bits count. Echo requests have no ports: all of a pair of
    /// addresses are one flow.
    pub fn count(&self) -> u64 {
        self.counts().into_iter().fold(1, u64::saturating_mul)
    }

    fn counts(&self) -> [u64; 4] {
        [
            self.sources.count(),
            self.source_ports.count(),
            self.destination_ports.count(),
            self.destinations.count(),
        ]
    }

    #[inline]
    #[allow(clippy::should_implement_trait, reason = "there is always one")]
    pub fn next(&mut self) -> Flow {
        let [source, source_port, destination_port, destination] = self.at;
        let ([a, b], [c, d]) =
            (self.source_ports.nth(source_port), self.destination_ports.nth(destination_port));
        let flow = Flow {
            source: self.sources.nth(source),
            destination: self.destinations.nth(destination),
            ports: [a, b, c, d],
        };
        let counts = self.counts();
        for (at, count) in self.at.iter_mut().zip(counts) {
            *at += 1;
            if *at < count {
                break;
            }
            *at = 0;
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::recipe::{IMIX, RecipeError};
    use proptest::prelude::*;
    use ringway_wire::protocol;
    use ringway_wire::{Frame, Header as _, Icmp, Icmpv6, Ip, IpHeader, Mac, Sum, UdpChecksum};

    fn recipe(transport: Transport, v6: bool, vlan: Option<u16>, size: u16) -> Recipe {
        let (from, to) = match v6 {
            false => ("10.0.0.250-10.0.1.5", "192.0.2.0/24"),
            true => ("fd00::fffe-fd00::1:3", "2001:db8::/120"),
        };
        Recipe {
            source_mac: Mac([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlan,
            sources: from.parse().unwrap(),
            destinations: to.parse().unwrap(),
            transport,
            source_ports: "1024-1030".parse().unwrap(),
            destination_ports: "65530-65535".parse().unwrap(),
            sizes: vec![size],
        }
    }

    /// Parses a packet as anybody would; its stamp.
    fn checked(frame: &[u8], vlan: Option<u16>) -> (Ip<&[u8]>, Stamp) {
        let frame = Frame::parse(frame).unwrap();
        assert_eq!(frame.tags[0].as_ref().map(|tag| tag.id()), vlan);
        let ip = Ip::parse(frame.payload).unwrap();
        if let IpHeader::V4(header) = &ip.header {
            assert!(Sum::default().with(header.as_bytes()).is_right());
        }
        let payload = match ip.protocol {
            protocol::UDP => {
                let udp = Udp::parse(ip.payload).unwrap();
                assert_eq!(udp.verify(ip.pseudo()), UdpChecksum::Right);
                udp.payload
            }
            protocol::TCP => {
                let tcp = Tcp::parse(ip.payload).unwrap();
                assert!(tcp.checksum_is_right(ip.pseudo()) && tcp.header.flags() == Tcp::SYN);
                tcp.payload
            }
            protocol::ICMP => {
                let icmp = Icmp::parse(ip.payload).unwrap();
                assert!(icmp.checksum_is_right() && icmp.header.kind == Icmp::ECHO_REQUEST);
                icmp.payload
            }
            _ => {
                let icmp = Icmpv6::parse(ip.payload).unwrap();
                assert!(icmp.checksum_is_right(ip.pseudo()));
                icmp.payload
            }
        };
        let stamp = Stamp::of(payload).unwrap();
        (ip, stamp)
    }

    proptest! {
        #[test]
        fn every_packet_is_right(
            which in 0..3_usize,
            v6: bool,
            vlan in proptest::option::of(1..4095_u16),
            more in 0..300_u16,
            stream: u16,
            sequence in 0..1_u64 << 48,
            time: u64,
        ) {
            let transport = [Transport::Udp, Transport::TcpSyn, Transport::Icmp][which];
            let mut recipe = recipe(transport, v6, vlan, 0);
            recipe.sizes = vec![recipe.least() + more];
            let template = recipe.templates().unwrap().remove(0);
            prop_assert_eq!(template.frame().len(), usize::from(recipe.sizes[0]));
            let mut flows = Flows::of(&recipe);
            for _ in 0..sequence % 500 {
                flows.next();
            }
            let (flow, stamp) = (flows.next(), Stamp::new(stream, sequence, time));
            let mut frame = template.frame().to_vec();
            // The former contents do not matter.
            let (stamped, checksum) = template.stamped().unwrap();
            frame[stamped] ^= 0x55;
            frame[checksum] ^= 0x55;
            template.write(&mut frame, &flow, &stamp);
            let (ip, found) = checked(&frame, vlan);
            prop_assert_eq!(found, stamp);
            let len = if v6 { 16 } else { 4 };
            let octets = |address: std::net::IpAddr| match address {
                std::net::IpAddr::V4(address) => address.octets().to_vec(),
                std::net::IpAddr::V6(address) => address.octets().to_vec(),
            };
            prop_assert_eq!(octets(ip.source()), flow.source[16 - len..].to_vec());
            prop_assert_eq!(octets(ip.destination()), flow.destination[16 - len..].to_vec());
            if transport != Transport::Icmp {
                prop_assert_eq!(&ip.payload[..4], &flow.ports[..]);
            }
        }
    }

    /// A checksum of UDP that comes to zero is sent as all ones.
    #[test]
    fn no_checksum_is_zero() {
        let recipe = recipe(Transport::Udp, false, None, 60);
        let template = recipe.templates().unwrap().remove(0);
        let flow = Flows::of(&recipe).next();
        let ones = (0..1 << 16).filter(|sequence| {
            let mut frame = template.frame().to_vec();
            template.write(&mut frame, &flow, &Stamp::new(0, *sequence, 0));
            let (_, checksum) = template.stamped().unwrap();
            assert_ne!(frame[checksum..checksum + 2], [0, 0]);
            frame[checksum..checksum + 2] == [0xff, 0xff]
        });
        assert_eq!(ones.count(), 1);
    }

    #[test]
    fn flows_take_turns() {
        let mut flows = Flows::of(&recipe(Transport::Udp, false, None, 60));
        assert_eq!(flows.count(), 7 * 6 * 12 * 256);
        let (first, all) = (flows.next(), flows.count());
        // A few packets come from as many addresses.
        assert_ne!(flows.clone().next().source, first.source);
        let mut seen =
            std::collections::HashSet::from([(first.source, first.destination, first.ports)]);
        for _ in 1..all {
            let flow = flows.next();
            assert!(seen.insert((flow.source, flow.destination, flow.ports)), "{flow:?}");
        }
        assert_eq!(flows.next(), first);
    }

    #[test]
    fn sizes_that_cannot_be() {
        let templates = |v6, vlan, sizes: &[u16]| {
            let recipe = Recipe { sizes: sizes.to_vec(), ..recipe(Transport::Udp, v6, vlan, 0) };
            recipe.templates().map(|templates| templates.len())
        };
        let too_short = |size, least| Err(RecipeError::TooShort { size, least });
        let too_long = Err(RecipeError::TooLong { size: 3841, most: 3840 });
        assert_eq!(templates(false, None, &IMIX), Ok(12));
        assert_eq!(templates(false, None, &[]), Err(RecipeError::NoSize));
        assert_eq!(templates(false, None, &[59]), too_short(59, 60));
        assert_eq!(templates(true, None, &[60]), too_short(60, 80));
        assert_eq!(templates(false, Some(7), &[60]), too_short(60, 64));
        assert_eq!(templates(false, None, &[3841]), too_long);
        let two = Recipe {
            destinations: "fd00::1".parse().unwrap(),
            ..recipe(Transport::Udp, false, None, 60)
        };
        assert!(matches!(two.templates(), Err(RecipeError::Families { .. })));
    }
}
