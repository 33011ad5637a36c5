//! What was built reads as what it was built from; what was set is got; a checksum mended is the
//! checksum made anew.

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_wire::{
    Builder, Header as _, Icmp, IntoBytes as _, Ipv4, Ipv6, Pseudo, RawOption, Sum, Tcp, TcpOption,
    TcpOptions, U16, U32, Udp, UdpChecksum, Vlan, Vxlan, checksum,
};

use crate::{read, strategies};

/// As RFC 1071 writes it, in C: 16 bits at a time.
fn plain_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn built_and_read_again(link in strategies::link()) {
        prop_assert_eq!(read::link(&link.build()), Ok(link));
    }

    /// And what an Ethernet frame has behind its packet does not matter.
    #[test]
    fn padding_is_not_payload(link in strategies::link(), padding in vec(any::<u8>(), 0..50)) {
        let mut frame = link.build();
        frame.extend(padding);
        prop_assert_eq!(read::link(&frame), Ok(link));
    }

    #[test]
    fn sums_as_the_rfc_does(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Sum::default().with(&bytes).finish().get(), plain_checksum(&bytes));
    }

    #[test]
    fn mended_as_made_anew(
        mut header in vec(any::<u8>(), 20..=20), new in any::<[u8; 4]>(), at in 0_usize..8,
    ) {
        header[0] = 0x45;
        let mut checksum = Sum::default().with(&header).finish();
        let place = 2 * at..2 * at + 4;
        checksum::replace(&mut checksum, &header[place.clone()], &new[..]);
        header[place].copy_from_slice(&new);
        // With the version in it the header is never all zeroes, so there is one answer; unless
        // that was replaced.
        prop_assume!(header.iter().any(|byte| *byte != 0));
        prop_assert_eq!(checksum, Sum::default().with(&header).finish());
    }

    /// None stays none, and zero is never sent for a checksum.
    #[test]
    fn udp_is_mended(
        addresses in any::<[[u8; 4]; 3]>(), port in any::<u16>(), payload in vec(any::<u8>(), 0..9), none in any::<bool>(),
    ) {
        let [source, destination, new] = addresses;
        let pseudo = |source: [u8; 4]| Pseudo::v4(source.into(), destination.into());
        let mut buffer = [0; 64];
        let mut packet = Builder::new(&mut buffer, 32).unwrap();
        let built = (!none).then(|| pseudo(source));
        packet.append(&*payload).unwrap().udp(Udp::new(port, 53), built).unwrap();
        let range = packet.range();
        let mut udp = Udp::parse(&mut buffer[range]).unwrap();
        let expected = if none { UdpChecksum::None } else { UdpChecksum::Right };
        prop_assert_eq!(udp.verify(pseudo(source)), expected);
        udp.header.replace(&source, &new);
        prop_assert_eq!(udp.verify(pseudo(new)), expected);
    }

    #[test]
    fn routed(ttl in any::<u8>(), identification in any::<u16>()) {
        let mut ip = Ipv4 { ttl, identification: U16::new(identification), ..Ipv4::new(6, [1; 4].into(), [2; 4].into()) };
        ip.checksum = Sum::default().with(ip.as_bytes()).finish();
        let before = ip;
        let passed = ip.decrement_ttl();
        prop_assert_eq!(passed, ttl > 1);
        prop_assert_eq!(ip.ttl, if passed { ttl - 1 } else { ttl });
        prop_assert!(Sum::default().with(ip.as_bytes()).is_right());
        prop_assert!(passed || ip == before);
    }

    #[test]
    fn set_and_got(word in any::<u32>(), value in any::<u32>()) {
        let (half, small) = (word as u16, value as u16);
        let mut tag = Vlan { tci: U16::new(half), ..Vlan::default() };
        tag.set_id(small);
        tag.set_priority(value as u8);
        tag.set_drop_eligible(value & 1 != 0);
        prop_assert_eq!((tag.id(), tag.priority()), (small & 0xfff, value as u8 & 7));
        prop_assert_eq!(tag.drop_eligible(), value & 1 != 0);

        let mut ip = Ipv6 { version_class_label: U32::new(word), ..Ipv6::default() };
        ip.set_flow_label(value);
        prop_assert_eq!((ip.traffic_class(), ip.flow_label()), ((word >> 20) as u8, value & 0xf_ffff));
        ip.set_traffic_class(value as u8);
        prop_assert_eq!((ip.traffic_class(), ip.flow_label()), (value as u8, value & 0xf_ffff));
        prop_assert_eq!(ip.version_class_label.get() >> 28, word >> 28);

        let mut tcp = Tcp { offset_flags: U16::new(half), ..Tcp::default() };
        tcp.set_flags(small);
        prop_assert_eq!((tcp.flags(), tcp.offset_flags.get() >> 12), (small & 0xfff, half >> 12));
        prop_assert!(tcp.has(small & 0xfff));

        prop_assert_eq!(Vxlan::new(value).vni(), value & 0xff_ffff);

        let mut icmp = Icmp::echo_request(half, small);
        icmp.checksum = Sum::default().with(icmp.as_bytes()).finish();
        icmp.set_kind(word as u8, value as u8);
        prop_assert_eq!((icmp.kind, icmp.code), (word as u8, value as u8));
        prop_assert!(Sum::default().with(icmp.as_bytes()).is_right());
    }

    #[test]
    fn tcp_options(size in any::<u16>(), shift in any::<u8>(), word in any::<[u32; 2]>(), data in vec(any::<u8>(), 0..6)) {
        let blocks = [word.map(U32::new)];
        let all = [
            TcpOption::SackPermitted,
            TcpOption::Other(RawOption { kind: 30, data: &data }),
            TcpOption::WindowScale(shift),
            TcpOption::MaximumSegmentSize(size),
            TcpOption::Sack(&blocks),
            TcpOption::Timestamps { value: word[1], echo: word[0] },
        ];
        let mut buffer = [0xa5; 40];
        let written = TcpOption::write(&all, &mut buffer).unwrap();
        prop_assert!(written.len().is_multiple_of(4));
        let read: Result<Vec<_>, _> = TcpOptions::new(written).collect();
        prop_assert_eq!(read, Ok(all.to_vec()));
    }
}
