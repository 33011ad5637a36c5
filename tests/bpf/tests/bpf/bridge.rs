//! Forwarding beside a Linux bridge: what goes past it, and what stays the kernel's.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

use ringway_abi::raw::{RW_IFACE_GENERIC, RW_IFACE_LOCAL, RW_IFACE_RAW};
use ringway_abi::{ForwardMode, Slot};
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;
use ringway_kernel::forward::{ForwardTables, Port, PortVlans, StationPlace};

const HERE: Mac = [2, 0, 0, 0, 0xaa, 1];
const THERE: Mac = [2, 0, 0, 0, 0xbb, 1];
const VLAN: u16 = 100;
const Q: u16 = 0x8100;
const AD: u16 = 0x88a8;

/// A world that forwards between its two interfaces.
struct Bridge {
    world: World,
    tables: ForwardTables,
    places: RefCell<HashMap<u64, StationPlace>>,
}

fn key(mac: Mac, vlan: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, vlan as u8, (vlan >> 8) as u8])
}

impl Bridge {
    /// One station on each side, and ports that forward.
    fn new() -> Self {
        Self::on(World::unwatched())
    }

    fn on(mut world: World) -> Self {
        let tables = world.forward(ForwardMode::Bridge);
        let bridge = Self { world, tables, places: RefCell::default() };
        bridge.learn(HERE, 0, FRONT);
        bridge.learn(THERE, 0, BACK);
        bridge.set_ports(&Port { forwards: true, ..Port::default() });
        bridge.tables.keep();
        bridge
    }

    fn set_ports(&self, port: &Port) {
        [FRONT, BACK].iter().for_each(|slot| self.tables.set_port(*slot, port).unwrap());
    }

    fn buckets(&self, key: u64) -> [u32; 2] {
        let [k0, k1] = self.tables.keys();
        let hash = (key ^ k0).wrapping_mul(k1);
        let hash = (hash ^ hash >> 29).wrapping_mul(k1);
        [hash >> 40, hash >> 16].map(|bucket| bucket as u32 & (ForwardTables::BUCKETS - 1))
    }

    /// Writes a station, at its first free place.
    fn learn(&self, mac: Mac, vlan: u16, port: u32) {
        let key = key(mac, vlan);
        let mut places = self.places.borrow_mut();
        let taken: Vec<StationPlace> =
            places.iter().filter(|(of, _)| **of != key).map(|(_, at)| *at).collect();
        let mut all = self.buckets(key).into_iter().flat_map(|bucket| {
            (0..ForwardTables::BUCKET).map(move |place| StationPlace { bucket, place })
        });
        let free = places.get(&key).copied().or_else(|| all.find(|at| !taken.contains(at)));
        let place = free.expect("a free place");
        self.tables.put_station(place, key, port);
        places.insert(key, place);
    }

    fn forget(&self, mac: Mac, vlan: u16) {
        let place = self.places.borrow_mut().remove(&key(mac, vlan)).expect("known");
        self.tables.put_station(place, 0, 0);
    }
}

fn ends(family: Family) -> (SocketAddr, SocketAddr) {
    ((family.client(), 5000).into(), (family.elsewhere(), 6000).into())
}

/// From one station to the other.
fn across(family: Family, proto: u8) -> Frame {
    let (src, dst) = ends(family);
    Frame::new(proto, src, dst).payload(b"by bridge").with(|frame| {
        frame.src_mac = HERE;
        frame.dst_mac = THERE;
        frame.flags = ACK;
    })
}

fn back(family: Family, proto: u8) -> Frame {
    across(family, proto).with(|frame| std::mem::swap(&mut frame.src_mac, &mut frame.dst_mac))
}

#[test]
fn a_known_stations_frames_go_past_the_bridge() {
    needs_root!("a_known_stations_frames_go_past_the_bridge");
    let bridge = Bridge::new();
    let tagged = across(Family::V4, UDP).with(|f| f.vlans = vec![(Q, VLAN)]);
    let arp = Arp {
        dst_mac: THERE,
        src_mac: HERE,
        op: 2,
        sender: (HERE, Family::V4.client()),
        target: (THERE, Family::V4.elsewhere()),
    };
    let mut frames = vec![("tagged", tagged.bytes()), ("arp", arp.bytes())];
    for family in FAMILIES {
        frames.push(("tcp", across(family, TCP).bytes()));
        frames.push(("udp", across(family, UDP).bytes()));
        frames.push(("another protocol", across(family, 253).bytes()));
        frames.push(("fragment", across(family, UDP).with(|f| f.fragment = 0x2000).bytes()));
    }
    for (name, frame) in frames {
        let seen = bridge.world.feed(FRONT, &frame);
        assert_eq!(seen.pair(), (Redirect, Bridged), "{name}");
        assert_eq!(seen.frame, frame, "{name}: not a byte changes");
    }
    let seen = bridge.world.feed(BACK, &back(Family::V4, TCP).bytes());
    assert_eq!(seen.pair(), (Redirect, Bridged));
}

#[test]
fn whatever_is_unusual_stays_the_bridges() {
    needs_root!("whatever_is_unusual_stays_the_bridges");
    let bridge = Bridge::new();
    let from = |change: fn(&mut Frame)| across(Family::V4, UDP).with(change);
    let passes = |name: &'static str, frame: Frame, reason| {
        let seen = bridge.world.feed(FRONT, &frame.bytes());
        assert_eq!(seen.pair(), (Pass, reason), "{name}");
        assert_eq!(seen.frame, frame.bytes(), "{name}");
    };
    passes("broadcast", from(|f| f.dst_mac = BROADCAST_MAC), BridgeGroup);
    passes("a BPDU", from(|f| f.dst_mac = [1, 0x80, 0xc2, 0, 0, 0]), BridgeGroup);
    passes("a new source", from(|f| f.src_mac = STRANGER_MAC), BridgeSource);
    passes("one that moved here", from(|f| (f.src_mac, f.dst_mac) = (THERE, HERE)), BridgeSource);
    passes("a destination that is flooded", from(|f| f.dst_mac = STRANGER_MAC), BridgeDestination);
    bridge.learn(STRANGER_MAC, 0, FRONT);
    passes("back by its port", from(|f| f.dst_mac = STRANGER_MAC), ForwardPort);
    // As the kernel forgets, or finds it elsewhere.
    bridge.forget(THERE, 0);
    passes("forgotten", from(|_| ()), BridgeDestination);
    bridge.learn(THERE, 0, BACK);
    let seen = bridge.world.send(&from(|_| ()));
    assert_eq!(seen.pair(), (Redirect, Bridged));
    bridge.learn(HERE, 0, BACK);
    passes("moved away", from(|_| ()), BridgeSource);
}

#[test]
fn tables_that_nobody_keeps_do_not_count() {
    needs_root!("tables_that_nobody_keeps_do_not_count");
    let bridge = Bridge::new();
    let frame = across(Family::V4, TCP);
    bridge.tables.suspend();
    assert_eq!(bridge.world.send(&frame).pair(), (Pass, ForwardStale));
    bridge.tables.keep();
    assert_eq!(bridge.world.send(&frame).pair(), (Redirect, Bridged));
    bridge.tables.clear_stations();
    assert_eq!(bridge.world.send(&frame).pair(), (Pass, BridgeSource));
}

#[test]
fn ports_that_do_not_forward() {
    needs_root!("ports_that_do_not_forward");
    let bridge = Bridge::new();
    let frame = across(Family::V4, TCP);
    let up = Port { forwards: true, ..Port::default() };
    let alone = Port { isolated: true, ..up.clone() };
    for (front, back, forwarded) in [
        (&Port::default(), &up, false),
        (&up, &Port::default(), false),
        (&alone, &alone, false),
        (&alone, &up, true),
        (&up, &alone, true),
    ] {
        bridge.tables.set_port(FRONT, front).unwrap();
        bridge.tables.set_port(BACK, back).unwrap();
        let expected = if forwarded { (Redirect, Bridged) } else { (Pass, ForwardPort) };
        assert_eq!(bridge.world.send(&frame).pair(), expected, "{front:?} to {back:?}");
    }
}

/// Frames whose tags the bridge would change are its own.
#[test]
fn vlans_are_obeyed() {
    needs_root!("vlans_are_obeyed");
    let bridge = Bridge::new();
    let vlans = |pvid, members: &[(u16, u16, bool)]| Port {
        forwards: true,
        vlans: Some(PortVlans { protocol: Q, pvid, members: members.to_vec() }),
        ..Port::default()
    };
    for vlan in [1, VLAN, 200] {
        bridge.learn(HERE, vlan, FRONT);
        bridge.learn(THERE, vlan, BACK);
    }
    let plain = across(Family::V4, UDP);
    let tag = |tags: &[(u16, u16)]| plain.clone().with(|f| f.vlans = tags.to_vec());
    let trunk = vlans(1, &[(1, 1, true), (90, 110, false)]);
    let access = vlans(VLAN, &[(VLAN, VLAN, true)]);
    let tagged_only = vlans(0, &[(VLAN, VLAN, false)]);
    let cases = [
        ("both in VLAN 1", &trunk, &trunk, plain.clone(), Bridged),
        ("the tag stays", &trunk, &trunk, tag(&[(Q, VLAN)]), Bridged),
        ("its priority, too", &trunk, &trunk, tag(&[(Q, 0xe000 | VLAN)]), Bridged),
        ("a second tag does not count", &trunk, &trunk, tag(&[(Q, VLAN), (Q, 7)]), Bridged),
        ("another protocol's tag does not", &trunk, &trunk, tag(&[(AD, 7)]), Bridged),
        ("not a member", &trunk, &trunk, tag(&[(Q, 200)]), BridgeVlan),
        ("a priority alone", &trunk, &trunk, tag(&[(Q, 0xe000)]), BridgeVlan),
        ("the tag goes", &trunk, &access, tag(&[(Q, VLAN)]), BridgeVlan),
        ("a tag comes", &access, &trunk, plain.clone(), BridgeVlan),
        ("access to access", &access, &access, plain.clone(), Bridged),
        ("untagged, not accepted", &tagged_only, &trunk, plain.clone(), BridgeVlan),
        ("not a member there", &trunk, &access, plain.clone(), BridgeVlan),
    ];
    for (name, front, back, frame, reason) in cases {
        bridge.tables.set_port(FRONT, front).unwrap();
        bridge.tables.set_port(BACK, back).unwrap();
        let seen = bridge.world.send(&frame);
        assert_eq!(seen.reason, reason, "{name}");
        assert_eq!(seen.frame, frame.bytes(), "{name}");
    }
    // In a VLAN where it is not known.
    bridge.set_ports(&trunk);
    bridge.forget(THERE, VLAN);
    assert_eq!(bridge.world.send(&tag(&[(Q, VLAN)])).reason, BridgeDestination);
}

/// Native XDP would lose the mark of an unfinished checksum.
#[test]
fn unfinished_checksums_stay_the_kernels() {
    needs_root!("unfinished_checksums_stay_the_kernels");
    let mut bridge = Bridge::new();
    let world = &mut bridge.world;
    let flags =
        |flags: u32| move |iface: &mut ringway_abi::raw::rw_iface| iface.flags |= flags as u16;
    world.change_iface(FRONT, flags(RW_IFACE_LOCAL));
    let unfinished = |frame: &Frame, at: usize| {
        let mut bytes = frame.bytes();
        bytes[at..at + 2].copy_from_slice(&frame.pseudo_sum().to_be_bytes());
        bytes
    };
    for (family, l4) in [(Family::V4, 34), (Family::V6, 54)] {
        for (proto, at) in [(TCP, 16), (UDP, 6)] {
            let frame = across(family, proto);
            assert_eq!(world.send(&frame).pair(), (Redirect, Bridged));
            let raw = unfinished(&frame, l4 + at);
            let mut out = Vec::new();
            assert_eq!(world.root(FRONT).run(&raw, &mut out).unwrap(), Pass, "{family:?} {proto}");
        }
        // What may hold an unfinished packet.
        let tunnel = across(family, UDP).with(|f| f.dst.set_port(4789));
        assert_eq!(world.send(&tunnel).pair(), (Pass, ForwardUnfinished));
        assert_eq!(world.send(&across(family, 253)).pair(), (Pass, ForwardUnfinished));
    }
    let none = across(Family::V4, UDP).with(|f| f.no_checksum = true);
    assert_eq!(world.send(&none).pair(), (Pass, ForwardUnfinished));
    // Generic XDP keeps the mark, and the way out finishes it, unless it cannot.
    let generic = flags(RW_IFACE_GENERIC);
    [FRONT, BACK].iter().for_each(|slot| world.change_iface(*slot, generic));
    assert_eq!(world.send(&none).pair(), (Redirect, Bridged));
    world.change_iface(BACK, flags(RW_IFACE_RAW));
    assert_eq!(world.send(&none).pair(), (Pass, ForwardUnfinished));
}

#[test]
fn the_way_out_has_to_take_it() {
    needs_root!("the_way_out_has_to_take_it");
    let mut bridge = Bridge::new();
    let world = &mut bridge.world;
    world.change_iface(BACK, |iface| iface.mtu = 1500);
    let sized = |len: usize| across(Family::V4, UDP).payload(&vec![0; len]);
    // The header and a tag more; then one byte too many.
    assert_eq!(world.send(&sized(1500 + 4 - 28)).pair(), (Redirect, Bridged));
    assert_eq!(world.send(&sized(1500 + 4 - 28 + 1)).pair(), (Pass, ForwardTooLong));
    assert_eq!(world.send(&sized(3000)).pair(), (Pass, ForwardTooLong));
    world.change_iface(BACK, |iface| iface.flags |= RW_IFACE_GENERIC as u16);
    assert_eq!(world.send(&sized(9)).pair(), (Pass, ForwardPort), "from native to generic");
}

/// Services come first; and what they do not want is forwarded.
#[test]
fn it_stands_behind_the_balancer() {
    needs_root!("it_stands_behind_the_balancer");
    let mut bridge = Bridge::new();
    let flow = bridge.world.connect(Family::V4, ringway_bpf_tests::ports::ACROSS);
    bridge.world.answer(&flow, ACK);
    assert_eq!(bridge.world.send(&across(Family::V4, TCP)).pair(), (Redirect, Bridged));
    // Where nothing is forwarded, reasons are those of the balancer.
    bridge.world.gateway.end_forwarding().unwrap();
    assert_eq!(bridge.world.send(&across(Family::V4, TCP)).pair(), (Pass, OtherHost));
    // Without the balancer, too.
    let Bridge { world, .. } = bridge;
    let bridge = Bridge::on(world);
    bridge.world.set_stage(Slot::Balance, Option::None, false);
    assert_eq!(bridge.world.send(&across(Family::V4, TCP)).pair(), (Redirect, Bridged));
}

/// A station that sends is known to be alive, and one that only looked is not.
#[test]
fn stations_that_send_are_seen() {
    needs_root!("stations_that_send_are_seen");
    let bridge = Bridge::new();
    let place = |mac| bridge.places.borrow()[&key(mac, 0)];
    let seen = |mac| bridge.tables.seen(place(mac));
    assert_eq!((seen(HERE), seen(THERE)), (0, 0));
    bridge.world.send(&across(Family::V4, TCP));
    assert_eq!(seen(HERE), bridge.world.now());
    bridge.world.advance(1);
    bridge.world.send(&across(Family::V4, TCP));
    assert_eq!(seen(HERE), bridge.world.now());
    assert_eq!(seen(THERE), 0);
    // `ringway explain` leaves no trace.
    bridge.learn(HERE, 0, BACK);
    bridge.learn(HERE, 0, FRONT);
    bridge.world.send(&across(Family::V4, TCP).with(|f| f.dst_mac = STRANGER_MAC));
    assert_eq!(seen(HERE), 0);
}

/// A capture has a program of its own for it.
#[test]
fn captures_see_what_is_forwarded() {
    needs_root!("captures_see_what_is_forwarded");
    let bridge = Bridge::on(World::watched());
    for frame in [across(Family::V4, TCP), across(Family::V6, UDP)] {
        assert_eq!(bridge.world.send(&frame).pair(), (Redirect, Bridged));
    }
    let stranger = across(Family::V4, TCP).with(|f| f.dst_mac = STRANGER_MAC);
    assert_eq!(bridge.world.send(&stranger).pair(), (Pass, BridgeDestination));
}
