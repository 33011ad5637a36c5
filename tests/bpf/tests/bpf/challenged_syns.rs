//! SYNs as they come from other systems and other networks: each is challenged, and gets in when its
//! sender answers.

use std::net::SocketAddr;

use ringway_abi::{
    Reason::{ChallengeMet, SynChallenged},
    Verdict::{Drop, Redirect, Tx},
};
use ringway_bpf_tests::prelude::*;

use crate::challenge::{challenge, challenging, pair, rst, syn, world};
use crate::limits::client;
/// Its answer has its tags, and lets its SYN in.
#[track_caller]
fn gets_in(world: &World, syn: &Frame) {
    let number = challenge(world, syn);
    let answer = rst(syn.src, number).with(|frame| frame.vlans.clone_from(&syn.vlans));
    assert_eq!(pair(world, &answer), (Drop, ChallengeMet), "{syn:?}");
    assert_eq!(pair(world, syn).0, Redirect, "{syn:?}");
}

const TIMESTAMP: [u8; 10] = [8, 10, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0];

/// TCP options in the order of each system, and flags beside SYN.
fn systems() -> Vec<(&'static str, u8, Vec<u8>)> {
    let mss = [2, 4, 0x05, 0xb4];
    let with = |parts: &[&[u8]]| [&mss[..], &parts.concat()].concat();
    let linux = with(&[&[4, 2], &TIMESTAMP, &[1, 3, 3, 7]]);
    let apple = with(&[&[1, 3, 3, 6, 1, 1], &TIMESTAMP, &[4, 2, 0, 0]]);
    let ecn = ECE | CWR;
    vec![
        ("Linux", 0, linux.clone()),
        ("Android", 0, with(&[&[4, 2], &TIMESTAMP, &[1, 3, 3, 9]])),
        ("Windows 10 and 11", 0, with(&[&[1, 3, 3, 8, 1, 1, 4, 2]])),
        ("Windows with ECN", ecn, with(&[&[1, 3, 3, 8, 1, 1, 4, 2]])),
        ("macOS", ecn, apple.clone()),
        ("iOS", 0, apple),
        ("FreeBSD", 0, with(&[&[1, 3, 3, 6, 4, 2], &TIMESTAMP])),
        ("no options", 0, Vec::new()),
        ("all that fits", 0, vec![1; 40]),
        ("asks for a TFO cookie", 0, [&linux[..], &[34, 2, 1, 1]].concat()),
        ("multipath", 0, [&linux[..], &[30, 4, 1, 0x81]].concat()),
        ("MD5", 0, with(&[&[19, 18], &[7; 16], &[1, 1]])),
        ("AO", 0, with(&[&[29, 16, 1, 1], &[7; 12]])),
    ]
}

#[test]
fn syns_of_other_systems() {
    needs_root!("syns_of_other_systems");
    let world = world(challenging());
    for family in FAMILIES {
        for (n, (_, beside, options)) in systems().into_iter().enumerate() {
            let syn = syn(client(family, n)).with(|frame| {
                frame.flags |= beside;
                frame.tcp_options = options;
            });
            gets_in(&world, &syn);
        }
        // With data and a cookie (RFC 7413).
        let cookie = [&[34, 10][..], &[7; 8], &[1, 1]].concat();
        let fast = syn(client(family, 99)).payload(b"GET / HTTP/1.1\r\n");
        gets_in(&world, &fast.with(|frame| frame.tcp_options = cookie));
    }
}

#[test]
fn syns_behind_vlan_tags() {
    needs_root!("syns_behind_vlan_tags");
    let mut world = world(challenging());
    let tagged = [vec![(0x8100, 5)], vec![(0x88a8, 5), (0x8100, 6)]];
    for (n, tags) in tagged.iter().enumerate() {
        world.add_vlan(10 + n as u32, FRONT, tags);
    }
    for family in FAMILIES {
        for (n, tags) in tagged.iter().enumerate() {
            let syn = syn(client(family, n)).with(|frame| frame.vlans.clone_from(tags));
            let answered = world.send(&syn).frame;
            let tags = 12..12 + 4 * tags.len();
            assert_eq!(answered[tags.clone()], syn.bytes()[tags], "with its tags");
            gets_in(&world, &syn);
        }
    }
}

#[test]
fn syns_behind_options_and_extension_headers() {
    needs_root!("syns_behind_options_and_extension_headers");
    let world = world(challenging());
    let options = [vec![0x94, 4, 0, 0], vec![1; 40], [vec![7, 39, 4], vec![0; 37]].concat()];
    for (n, options) in options.into_iter().enumerate() {
        gets_in(&world, &syn(client(Family::V4, n)).with(|frame| frame.options = options));
    }
    // Hop-by-hop options (0), destination options (60), and an atomic fragment (44).
    let chains = [&[0][..], &[60], &[0, 60], &[44], &[0, 44]];
    for (n, chain) in chains.into_iter().enumerate() {
        gets_in(&world, &syn(client(Family::V6, n)).extended(chain));
    }
}

/// A first fragment with the whole header is answered as any SYN is; no part reaches a backend.
#[test]
fn a_syn_in_fragments_ends_here() {
    needs_root!("a_syn_in_fragments_ends_here");
    let world = world(challenging());
    for family in FAMILIES {
        let from: SocketAddr = client(family, 1);
        let whole = syn(from).payload(&[7; 64]).with(|frame| frame.fragment = 0);
        for size in [8, 24, 40] {
            for part in fragments(&whole.bytes(), size, size as u32) {
                let seen = world.feed(FRONT, &part);
                let ends = seen.verdict == Drop || seen.pair() == (Tx, SynChallenged);
                assert!(ends, "{family:?} {size} {:?}", seen.pair());
            }
        }
        let unharmed = world.send(&syn(from));
        assert_eq!(unharmed.pair(), (Tx, SynChallenged));
    }
}
