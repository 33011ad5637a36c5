//! Captures: each packet's record is what came and what became of it, and changes nothing.

use ringway_abi::{Reason, Verdict};
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{TCP, UDP, flags};
use ringway_bpf_tests::{World, ports, watch};

use crate::needs_root;

/// [`World::feed`] holds every record against what was fed and what came of it.
#[test]
fn requests_and_replies_of_nat() {
    needs_root!("requests_and_replies_of_nat");
    let mut world = World::pinned().watched();
    for family in FAMILIES {
        for port in [ports::ACROSS, ports::SAME] {
            for proto in [TCP, UDP] {
                let flow = world.connect_or_open(family, proto, port);
                world.request(&flow, flags::ACK);
                world.answer(&flow, flags::ACK);
            }
        }
    }
}

#[test]
fn nothing_is_left_after_the_last() {
    needs_root!("nothing_is_left_after_the_last");
    let mut world = World::pinned();
    let place =
        ringway_kernel::Pins::new("/sys/fs/bpf", world.node()).unwrap().dir().join("capture");
    assert!(!place.exists());
    let mut session = watch::start(&world.gateway.view(), "", |_| ()).unwrap();
    let flow = world.open(Family::V4, TCP, ports::ACROSS);
    let seen = watch::seen(&mut session);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].pair, (Verdict::Redirect, Reason::NatForward));
    session.leave().unwrap();
    assert!(!place.exists());
    world.request(&flow, flags::ACK);
    assert_eq!(watch::seen(&mut session), []);
}
