//! Frames that others made, byte by byte; and of frames that are wrong, what is wrong with them.

use ringway_wire::{
    Arp, BuildError, Builder, Ethernet, Extension, Extensions, Fault, Frame, Gre, Gue, Header,
    Icmp, Icmpv6, Ip, Ipv4, Ipv6, Layer, MIN_FRAME, Mac, Malformed, Pseudo, RawOption, Sum, Tcp,
    TcpOption, TcpOptions, U16, Udp, UdpChecksum, View, Vlan, Vxlan, checksum, ethertype, gue, nd,
    protocol,
};

/// Hexadecimal digits; spaces do not matter.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// RFC 1071, section 3.
#[test]
fn the_rfcs_sum() {
    assert_eq!(Sum::default().with(&hex("0001 f203 f4f5 f6f7")).finish().get(), !0xddf2);
}

/// RFC 1071, section 2 (B): wherever what is summed up is cut, even at an odd place.
#[test]
fn a_sum_in_pieces() {
    let bytes: Vec<u8> = (0..=255).chain([0xff; 9]).collect();
    for end in [256, 265] {
        let whole = Sum::default().with(&bytes[..end]).finish();
        for cut in 0..=end {
            let (first, second) = bytes[..end].split_at(cut);
            let sum = Sum::default().with(first);
            let sum = if cut % 2 == 0 { sum.with(second) } else { sum.with_odd(second) };
            assert_eq!(sum.finish(), whole, "{cut} of {end}");
        }
    }
}

/// RFC 1624, section 4: where the older formula gives 0xffff.
#[test]
fn the_rfcs_difference() {
    let mut checksum = U16::new(0xdd2f);
    checksum::replace(&mut checksum, &U16::new(0x5555), &U16::new(0x3285));
    assert_eq!(checksum.get(), 0);
}

/// A SYN as Linux sends it.
#[test]
fn a_segment_of_linux() {
    let bytes =
        hex("4500 003c 1c46 4000 4006 9d24 c0a8 0001 c0a8 00c7  aa5a 0050 0b6a 9d5d 0000 0000 \
         a002 faf0 0000 0000  0204 05b4 0402 080a 9d5d 0b6a 0000 0000 0103 0307");
    let ip = Ipv4::parse(&bytes[..]).unwrap();
    assert_eq!((ip.header.ttl, ip.header.protocol, ip.payload.len()), (64, protocol::TCP, 40));
    assert!(ip.header.dont_fragment() && ip.header.fragment().is_none());
    let tcp = Tcp::parse(ip.payload).unwrap();
    assert!(tcp.header.has(Tcp::SYN) && !tcp.header.has(Tcp::SYN | Tcp::ACK));
    assert_eq!(tcp.payload, []);
    let options: Vec<_> = tcp.each_option().collect();
    assert_eq!(
        options,
        [
            Ok(TcpOption::MaximumSegmentSize(1460)),
            Ok(TcpOption::SackPermitted),
            Ok(TcpOption::Timestamps { value: 0x9d5d_0b6a, echo: 0 }),
            Ok(TcpOption::WindowScale(7)),
        ]
    );
}

#[test]
fn arp_is_answered() {
    let here = Mac([2, 0, 0, 0, 0, 1]);
    let bytes = hex("0001 0800 06 04 0001 020000000002 c0000202 000000000000 c0000201");
    let request = Arp::parse(&bytes[..]).unwrap().header;
    assert_eq!(
        *request,
        Arp::request(Mac([2, 0, 0, 0, 0, 2]), [192, 0, 2, 2].into(), [192, 0, 2, 1].into())
    );
    let reply = request.reply(here);
    assert_eq!((reply.operation.get(), reply.sender_mac), (Arp::REPLY, here));
    assert_eq!((reply.sender, reply.target), ([192, 0, 2, 1], [192, 0, 2, 2]));
    assert_eq!(reply.target_mac, Mac([2, 0, 0, 0, 0, 2]));
}

#[test]
fn tags() {
    let macs = "020000000001 020000000002 ";
    let table: [(&str, &[u16], u16, usize); 4] = [
        ("0800 45", &[], 0x0800, 1),
        ("8100 6064 0800 45", &[100], 0x0800, 1),
        ("88a8 0065 8100 6064 86dd 60", &[101, 100], 0x86dd, 1),
        // The third is the payload's.
        ("88a8 0001 8100 0002 8100 0003 0800 45", &[1, 2], 0x8100, 5),
    ];
    for (text, ids, ethertype, payload) in table {
        let bytes = hex(&(macs.to_owned() + text));
        let frame = Frame::parse(&bytes[..]).unwrap();
        let found: Vec<_> = frame.tags.iter().flatten().map(|tag| tag.id()).collect();
        assert_eq!((&found[..], frame.ethertype, frame.payload.len()), (ids, ethertype, payload));
    }
    let tag = Vlan { tci: U16::new(0x7064), ..Vlan::new(0, ethertype::IPV4) };
    assert_eq!((tag.priority(), tag.drop_eligible(), tag.id()), (3, true, 100));
    assert_eq!(Vlan::new(0xffff, 0).tci.get(), 0xfff);
}

#[test]
fn ipv4_options() {
    // No-operation, record route with one place, end, and what is behind the end.
    let bytes =
        hex("48 00 0020 0000 0000 40 11 0000 01010101 02020202  01 07 07 04 00000000 00 ff ff ff");
    let ip = Ipv4::parse(&bytes[..]).unwrap();
    let options: Result<Vec<_>, _> = ip.each_option().collect();
    assert_eq!(options, Ok(vec![RawOption { kind: 7, data: &[4, 0, 0, 0, 0] }]));
    assert_eq!((ip.options.len(), ip.payload.len()), (12, 0));
}

#[test]
fn options_that_end_too_late() {
    let wrong = |layer| Malformed { layer, fault: Fault::OptionLength };
    let late = ["02", "02 00", "02 01", "02 05 0000", "08 0a 00000000 0000 00"];
    // Of a length that fits, but not the kind; none is read behind it.
    let of_others = ["02 03 00 0101", "03 04 0000 01", "04 03 00 01", "05 06 00000000", "08 03 00"];
    for text in [late, of_others].concat() {
        let bytes = hex(text);
        let all: Vec<_> = TcpOptions::new(&bytes).collect();
        assert_eq!(all, [Err(wrong(Layer::Tcp))], "{text}");
    }
    for text in ["01", "01 00 05", "01 02 000000000000", "01 01 000000000000 05"] {
        let bytes = hex(text);
        let last = nd::NdOptions::new(&bytes).last();
        assert_eq!(last, Some(Err(wrong(Layer::NeighbourDiscovery))), "{text}");
    }
}

#[test]
fn options_that_do_not_fit() {
    let too_many = [TcpOption::Timestamps { value: 1, echo: 2 }; 5];
    let wrong = BuildError::Options { layer: Layer::Tcp, len: 50 };
    assert_eq!(TcpOption::write(&too_many, &mut [0; 40]), Err(wrong));
    assert_eq!(TcpOption::write(&too_many[..4], &mut [0; 40]).unwrap().len(), 40);
}

#[test]
fn extensions() {
    // Hop-by-hop, routing, AH of 12 bytes, first fragment, UDP.
    let bytes = hex("2b 00 0104 0000 0000  33 00 0400 0000 0000  2c 01 0000 00000001 00000002 \
         11 00 0001 deadbeef  0000 0000 0008 0000");
    let mut all = Extensions::new(protocol::HOP_BY_HOP, &bytes);
    let kinds: Vec<_> = all.by_ref().map(|extension| extension.unwrap().kind).collect();
    assert_eq!(kinds, [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::AH, protocol::FRAGMENT]);
    assert_eq!((all.next_header(), all.rest().len()), (protocol::UDP, 8));

    // A later fragment's payload is not looked into, whatever it was.
    let bytes = hex("00 00 0009 deadbeef  3b 00 0000 0000 0000");
    let mut all = Extensions::new(protocol::FRAGMENT, &bytes);
    let only = all.next().unwrap().unwrap();
    assert_eq!((only.next_header, only.fragment().unwrap().offset), (0, 8));
    assert!(only.fragment().unwrap().more);
    assert_eq!((all.next(), all.rest().len()), (None, 8));

    // ESP and "no next header" end the chain; so does what is cut off.
    for number in [protocol::ESP, protocol::NO_NEXT_HEADER] {
        assert_eq!(Extensions::new(number, &bytes).next(), None);
    }
    let truncated = Malformed { layer: Layer::Ipv6Extension, fault: Fault::Truncated };
    for text in ["", "11", "11 00 0000 0000 00", "11 01 0000 00000000"] {
        let bytes = hex(text);
        let all: Vec<Result<Extension<'_>, _>> = Extensions::new(0, &bytes).collect();
        assert_eq!(all, [Err(truncated)], "{text}");
    }
}

#[test]
fn an_atomic_fragment_is_whole() {
    let bytes = hex(
        "60000000 0010 2c 40 20010db8000000000000000000000001 20010db8000000000000000000000002 \
         11 00 0000 deadbeef  0000 0000 0008 0000",
    );
    let ip = Ip::parse(&bytes[..]).unwrap();
    assert_eq!((ip.protocol, ip.fragment, ip.between.len()), (protocol::UDP, None, 8));
    assert_eq!(ip.ttl(), 64);
}

#[test]
fn gue_of_both_variants() {
    let table = [
        ("00 04 0000 45", Some((4, 0)), 1),
        ("02 29 0000 01020304 05060708 60", Some((41, 8)), 1),
        ("45 00", None, 2),
        ("60 00 00", None, 3),
    ];
    for (text, header, payload) in table {
        let bytes = hex(text);
        let found = match Gue::open(&bytes[..]).unwrap() {
            gue::Opened::Header(View { header, options, payload }) => {
                (Some((header.protocol, options.len())), payload.len())
            }
            gue::Opened::Ip(inner) => (None, inner.len()),
        };
        assert_eq!(found, (header, payload), "{text}");
    }
}

#[test]
fn gre_fields() {
    let bytes = hex("b000 0800 abcd 0000 00000007 00000009 45");
    let gre = Gre::parse(&bytes[..]).unwrap();
    assert_eq!((gre.key(), gre.sequence(), gre.payload.len()), (Some(7), Some(9), 1));
    let bytes = hex("1000 0800 00000009");
    let gre = Gre::parse(&bytes[..]).unwrap();
    assert_eq!((gre.key(), gre.sequence()), (None, Some(9)));
}

/// Of any header, what `parse` says of these bytes.
fn fault<H: Header>(text: &str) -> Option<(Layer, Fault)> {
    let bytes = hex(text);
    H::parse(&bytes[..]).err().map(|malformed| (malformed.layer, malformed.fault))
}

#[test]
fn what_is_wrong() {
    use Fault::{HeaderLength, Kind, TotalLength, Truncated};
    let v4 =
        |start: &str| fault::<Ipv4>(&(start.to_owned() + "00000000 40110000 01010101 02020202"));
    let v6 = |start: &str| fault::<Ipv6>(&(start.to_owned() + &"00".repeat(34)));
    let tcp = |offset: &str| {
        fault::<Tcp>(&format!("0001 0002 00000000 00000000 {offset} 0000 0000 0000"))
    };
    let table = [
        ("no Ethernet header", fault::<Ethernet>(&"00".repeat(13)), (Layer::Ethernet, Truncated)),
        ("ARP, cut", fault::<Arp>(&"00".repeat(27)), (Layer::Arp, Truncated)),
        ("ARP of no Ethernet", fault::<Arp>(&"00".repeat(28)), (Layer::Arp, Kind)),
        ("IPv4, cut", fault::<Ipv4>("45 00 0014"), (Layer::Ipv4, Truncated)),
        ("IPv4 of version 6", v4("65 00 0014"), (Layer::Ipv4, Kind)),
        ("IPv4, header of 16", v4("44 00 0014"), (Layer::Ipv4, HeaderLength)),
        ("IPv4, total of 19", v4("45 00 0013"), (Layer::Ipv4, TotalLength)),
        ("IPv4, total of 21", v4("45 00 0015"), (Layer::Ipv4, TotalLength)),
        ("IPv4, options beyond", v4("46 00 0018"), (Layer::Ipv4, TotalLength)),
        ("IPv4, options in payload", v4("46 00 0014"), (Layer::Ipv4, TotalLength)),
        ("IPv6 of version 4", v6("40000000 0000"), (Layer::Ipv6, Kind)),
        ("IPv6, payload of 1", v6("60000000 0001"), (Layer::Ipv6, TotalLength)),
        ("ICMP, cut", fault::<Icmp>(&"00".repeat(7)), (Layer::Icmp, Truncated)),
        ("ICMPv6, cut", fault::<Icmpv6>(&"00".repeat(7)), (Layer::Icmpv6, Truncated)),
        ("UDP of 7", fault::<Udp>("0001 0002 0007 0000"), (Layer::Udp, TotalLength)),
        ("UDP of 9", fault::<Udp>("0001 0002 0009 0000"), (Layer::Udp, TotalLength)),
        ("TCP, header of 16", tcp("4000"), (Layer::Tcp, HeaderLength)),
        ("TCP, options beyond", tcp("6000"), (Layer::Tcp, Truncated)),
        ("VXLAN of no network", fault::<Vxlan>(&"00".repeat(8)), (Layer::Vxlan, Kind)),
        ("GUE of variant 2", fault::<Gue>("80 04 0000"), (Layer::Gue, Kind)),
        ("GUE, fields beyond", fault::<Gue>("01 04 0000 00"), (Layer::Gue, Truncated)),
        ("GRE with routing", fault::<Gre>("4000 0800 00000000"), (Layer::Gre, Kind)),
        ("GRE of version 1", fault::<Gre>("0001 0800"), (Layer::Gre, Kind)),
        ("GRE, key beyond", fault::<Gre>("2000 0800 0000"), (Layer::Gre, Truncated)),
        ("a neighbour, cut", fault::<nd::Neighbour>("00"), (Layer::NeighbourDiscovery, Truncated)),
    ];
    for (name, found, expected) in table {
        assert_eq!(found, Some(expected), "{name}");
    }
    let tagged = hex("020000000001 020000000002 8100 0001 08");
    let wrong = Malformed { layer: Layer::Vlan, fault: Truncated };
    assert_eq!(Frame::parse(&tagged[..]).err(), Some(wrong));
    assert_eq!(wrong.to_string(), "malformed VLAN header: the packet ends within it",);
}

/// What an ICMP error quotes, or a capture kept, can be read as far as it goes.
#[test]
fn a_packet_without_its_end() {
    let bytes =
        hex("45 00 05dc 0000 0000 40 11 0000 01010101 02020202  0001 0002 05c8 0000 616263");
    assert!(Ip::parse(&bytes[..]).is_err());
    let ip = Ip::parse_partial(&bytes[..]).unwrap();
    assert_eq!(ip.payload.len(), 11);
    assert!(Udp::parse(ip.payload).is_err());
    let udp = Udp::parse_partial(ip.payload).unwrap();
    assert_eq!((udp.header.destination.get(), udp.payload), (2, &b"abc"[..]));
    // But not without a whole header.
    let cut =
        Ipv4::parse_partial(&hex("46 00 0020 0000 0000 40 11 0000 01010101 02020202")[..]).err();
    assert_eq!(cut, Some(Malformed { layer: Layer::Ipv4, fault: Fault::Truncated }));
}

#[test]
fn no_room() {
    let mut buffer = [0; 64];
    let too_far = BuildError::Tailroom { needed: 65, free: 64 };
    assert_eq!(Builder::new(&mut buffer, 65).err(), Some(too_far));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = Builder::around(&mut buffer, 3..2).err();
    assert!(matches!(reversed, Some(BuildError::Tailroom { .. })));

    let mut packet = Builder::new(&mut buffer, 10).unwrap();
    packet.append(&[1_u8; 50][..]).unwrap();
    let wrong = BuildError::Tailroom { needed: 5, free: 4 };
    assert_eq!(packet.append(&[0_u8; 5]).err(), Some(wrong));
    let wanted = Some(BuildError::Tailroom { needed: usize::MAX, free: 4 });
    assert_eq!(packet.space(usize::MAX).err(), wanted);
    packet.udp(Udp::new(1, 2), None).unwrap();
    let ip = Ipv4::new(protocol::UDP, [1; 4].into(), [2; 4].into());
    let wrong = BuildError::Headroom { needed: 20, free: 2 };
    assert_eq!(packet.ipv4(ip, &[]).err(), Some(wrong));
    assert_eq!(
        wrong.to_string(),
        "20 bytes do not fit in front of the packet: 2 are free; begin with more headroom"
    );
    // What was there still is.
    assert_eq!((packet.range(), packet.len()), (2..60, 58));
    packet.pad(MIN_FRAME).unwrap().pad(10).unwrap();
    assert_eq!((packet.len(), packet.packet()[59]), (60, 0));

    for (len, why) in [(44, "more than 40"), (3, "not of four")] {
        let wrong = BuildError::Options { layer: Layer::Ipv4, len };
        assert_eq!(packet.ipv4(ip, &[0; 44][..len]).err(), Some(wrong), "{why}");
    }
    for len in [0, 5, 8, 2054] {
        let wrong = BuildError::Options { layer: Layer::Ipv6Extension, len };
        assert_eq!(packet.extension(0, &[0; 2054][..len]).err(), Some(wrong));
    }
}

#[test]
fn too_long() {
    let mut buffer = vec![0; 70_000];
    let mut packet = Builder::new(&mut buffer, 100).unwrap();
    packet.space(65_527).unwrap();
    packet.udp(Udp::new(1, 2), None).unwrap();
    assert_eq!(packet.len(), 65_535);
    let ip = Ipv4::new(protocol::UDP, [1; 4].into(), [2; 4].into());
    let wrong = BuildError::TooLong { layer: Layer::Ipv4, len: 65_555 };
    assert_eq!(packet.ipv4(ip, &[]).err(), Some(wrong));
    let ip = Ipv6::new(protocol::UDP, [1; 16].into(), [2; 16].into());
    packet.ipv6(ip).unwrap();
}

/// RFC 768: a checksum that comes to zero is sent as all ones.
#[test]
fn no_udp_checksum_is_zero() {
    let pseudo = Pseudo::v4([0; 4].into(), [0; 4].into());
    let mut buffer = [0; 32];
    let mut packet = Builder::new(&mut buffer, 16).unwrap();
    // Protocol 17 and twice the length of 10: the rest makes it all ones.
    let rest = U16::new(0xffff - 17 - 20);
    packet.append(&rest).unwrap().udp(Udp::new(0, 0), Some(pseudo)).unwrap();
    let udp = Udp::parse(packet.packet()).unwrap();
    assert_eq!(udp.header.checksum.get(), 0xffff);
    assert_eq!(udp.verify(pseudo), UdpChecksum::Right);
}

#[test]
fn tunnels_open_around_what_is_there() {
    let mut buffer = [0x45; 128];
    let mut packet = Builder::around(&mut buffer, 64..128).unwrap();
    let ip = Ipv4::new(protocol::IPV4, [1; 4].into(), [2; 4].into());
    packet.ipv4(ip, &[]).unwrap();
    assert_eq!(packet.range(), 44..128);
    let outer = Ipv4::parse(&buffer[44..]).unwrap();
    assert_eq!((outer.len(), outer.payload.len(), outer.payload[0]), (84, 64, 0x45));
    assert!(outer.checksum_is_right());
}

#[test]
fn groups_of_neighbours() {
    let target = "2001:db8::12:3456".parse().unwrap();
    let group = nd::Neighbour::solicited_nodes(target);
    assert_eq!(group.to_string(), "ff02::1:ff12:3456");
    assert_eq!(Mac::of_multicast(group).to_string(), "33:33:ff:12:34:56");
}
