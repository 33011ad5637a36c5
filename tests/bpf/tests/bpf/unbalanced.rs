//! Packets that are not balanced: passed on or dropped as documented, each with its own reason,
//! never changed.

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;

/// Frames to a service that would be forwarded as they are.
fn plain(world: &mut World, family: Family) -> [Frame; 2] {
    [TCP, UDP].map(|proto| world.first(family, proto, ports::ACROSS))
}

fn elsewhere(frame: &Frame) -> Frame {
    let to = (frame.family().elsewhere(), frame.dst.port()).into();
    Frame { dst: to, ..frame.clone() }
}

#[test]
fn other_links_and_hosts() {
    needs_root!("other_links_and_hosts");
    let mut world = World::new();
    let mut rows = Vec::new();
    for family in FAMILIES {
        for frame in plain(&mut world, family) {
            let with = |change: fn(&mut Frame)| frame.clone().with(change);
            rows.extend([
                row("one tag", with(|f| f.vlans = vec![(0x8100, 5)]), Pass, Vlan),
                row("service tag", with(|f| f.vlans = vec![(0x88a8, 5)]), Pass, Vlan),
                row("two tags", with(|f| f.vlans = vec![(0x88a8, 5), (0x8100, 6)]), Pass, Vlan),
                row("another host", with(|f| f.dst_mac = STRANGER_MAC), Pass, OtherHost),
                row("broadcast", with(|f| f.dst_mac = BROADCAST_MAC), Pass, OtherHost),
                row("the other interface's MAC", with(|f| f.dst_mac = BACK_MAC), Pass, OtherHost),
                row("no service there", elsewhere(&frame), Pass, NoService),
                row("no service on that port", with(|f| f.dst.set_port(79)), Pass, NoService),
            ]);
            let mut other_host = with(|f| f.dst_mac = STRANGER_MAC).bytes();
            other_host.truncate(14 + family.header_len() + 7);
            rows.push(row("another host's broken frame", other_host, Pass, OtherHost));
        }
    }
    let ethertype = |ethertype: u16, len: usize| {
        let mut bytes = FRONT_MAC.to_vec();
        bytes.extend(CLIENT_MAC);
        bytes.extend(ethertype.to_be_bytes());
        bytes.resize(len, 0x5a);
        bytes
    };
    rows.extend([
        row("LLDP", ethertype(0x88cc, 60), Pass, NotIp),
        row("an 802.3 length", ethertype(0x0040, 78), Pass, NotIp),
        row("PPPoE", ethertype(0x8864, 60), Pass, NotIp),
        row("nothing but a header", ethertype(0x88cc, 14), Pass, NotIp),
        row("a tag and no more", ethertype(0x8100, 14), Pass, Vlan),
    ]);
    check(&world, &rows);
}

#[test]
fn other_protocols_and_icmp() {
    needs_root!("other_protocols_and_icmp");
    let mut world = World::new();
    let mut rows = Vec::new();
    for family in FAMILIES {
        let [frame, _] = plain(&mut world, family);
        let with = |proto, payload: &[u8]| Frame { proto, ..frame.clone() }.payload(payload);
        let echo = if family == Family::V4 { [8, 0] } else { [128, 0] };
        let echo = [&echo[..], &[0, 0, 0, 1, 0, 1], b"abcdefgh"].concat();
        let too_big = if family == Family::V4 { [3, 4] } else { [2, 0] };
        let too_big = [&too_big[..], &[0, 0, 0, 0, 5, 0], &[0x45; 28]].concat();
        // To a service address: icmp.rs.
        for (what, payload) in [("echo", &echo[..]), ("packet too big", &too_big), ("empty", &[])] {
            rows.push(row(what, elsewhere(&with(family.icmp(), payload)), Pass, NoService));
            let stranger = with(family.icmp(), payload).with(|f| f.dst_mac = STRANGER_MAC);
            rows.push(row(what, stranger, Pass, OtherHost));
        }
        let other_family = if family == Family::V4 { Family::V6 } else { Family::V4 };
        for (what, proto) in [
            ("the other family's ICMP", other_family.icmp()),
            ("SCTP", 132),
            ("GRE", 47),
            ("IP in IP", 4),
            ("ESP", 50),
            ("OSPF", 89),
            ("none", 59),
        ] {
            rows.push(row(what, with(proto, &[1; 12]), Pass, OtherProtocol));
            rows.push(row(what, elsewhere(&with(proto, &[1; 12])), Pass, NoService));
        }
    }
    check(&world, &rows);
}

/// A nat address or a backend is a client like any other.
#[test]
fn sources() {
    needs_root!("sources");
    let mut world = World::new();
    for family in FAMILIES {
        for frame in plain(&mut world, family) {
            for client in [family.nat(), family.backend(1), family.backend(4)] {
                let frame = frame.clone().with(|f| f.src.set_ip(client));
                let flow = world.open_with(FRONT, frame);
                world.answer(&flow, SYN | ACK);
            }
        }
    }
}
