//! The flow table, read while it is written: every flow whole or not at all.

#![allow(clippy::unwrap_used)] // tests

mod common;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use libbpf_rs::MapCore as _;
use ringway_abi::raw::{RW_FLOW_SHIFTED, rw_flow, rw_flow_bucket};
use ringway_abi::{FlowKey, FlowState, FromBytes, IntoBytes, addr_to_words};
use ringway_kernel::{Gateway, NatFlow, Place};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use common::node::Node;

const WORDS: usize = size_of::<rw_flow_bucket>() / 8;

/// The table of a node, to be written as the packet path does.
fn table(node: &Node) -> &'static [AtomicU64] {
    let map = node.map("flows");
    let words = map.max_entries() as usize * WORDS;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    use std::os::fd::AsFd;
    // SAFETY: a new mapping of the map's whole length, never taken away, of words that are written
    // whole by everybody.
    unsafe {
        let at = mmap(null_mut(), words * 8, both, MapFlags::SHARED, map.as_fd(), 0).unwrap();
        std::slice::from_raw_parts(at.cast(), words)
    }
}

fn number(n: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from(0x0a00_0000 + n)
}

/// The nth flow: everything in it follows from n.
fn record(n: u32, now: u32) -> [u64; 5] {
    let key =
        FlowKey { backend: n, nat_port: n as u16, nat_addr: 0, state: FlowState::Established };
    let flow = rw_flow {
        key: key.pack(),
        client: addr_to_words(number(n).into()),
        client_port_be: (n as u16).to_be(),
        service: n as u16,
        iface: n as u8,
        seen: now,
        ..Default::default()
    };
    FromBytes::read_from_bytes(flow.as_bytes()).unwrap()
}

/// As flow.bpf.h publishes a flow: claimed, filled, live.
fn publish(table: &[AtomicU64], place: usize, words: &[u64; 5]) {
    let at = place / 3 * WORDS + 1 + place % 3 * 5;
    let claimed = FlowKey { state: FlowState::Claimed, ..FlowKey::unpack(words[0]).unwrap() };
    table[at].swap(claimed.pack(), Ordering::SeqCst);
    for n in 1..5 {
        table[at + n].store(words[n], Ordering::Relaxed);
    }
    table[at].swap(words[0], Ordering::SeqCst);
}

fn is_whole(flow: &NatFlow) -> bool {
    let n = flow.key.backend;
    flow.key.nat_port == n as u16
        && flow.client == (std::net::IpAddr::from(number(n)), n as u16).into()
        && flow.service == n as u16
        && flow.iface == n as u8 & !(RW_FLOW_SHIFTED as u8)
}

#[test]
fn flows_that_change_while_they_are_read_are_whole() {
    let Some(node) = Node::of("flows_that_change_while_they_are_read_are_whole") else { return };
    let (_gateway, _) = Gateway::open(&node.options()).unwrap();
    // Seen later than now: nobody has set timeouts, and none is to pass.
    let (table, now) = (table(&node), ringway_kernel::now_seconds() + 600);
    (0..6).for_each(|place| publish(table, place, &record(1, now)));
    let done = AtomicBool::new(false);
    let view = node.view().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1;
            while !done.load(Ordering::Relaxed) {
                for place in 0..6 {
                    publish(table, place, &record(n, now));
                    n = n % 100_000 + 1;
                }
            }
        });
        let flows = view.nat_flows().unwrap();
        let (mut seen, mut changing, mut torn, mut visits) = (0, 0, 0, 0);
        let begun = Instant::now();
        while seen < 200_000 && begun.elapsed().as_secs() < 60 {
            visits += 1;
            flows.visit(0..2, |place| match place {
                Place::Live(flow) => {
                    seen += 1;
                    torn += u32::from(!is_whole(&flow));
                }
                Place::Claimed | Place::Changing => changing += 1,
                Place::Free | Place::Expired => {}
            });
        }
        done.store(true, Ordering::Relaxed);
        assert!(seen > 1000, "{seen} flows seen");
        assert_eq!((torn, seen + changing), (0, 6 * visits), "torn flows of {seen}, all");
    });
}
