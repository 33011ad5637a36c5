//! Properties of the ring.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use ringway_plan::maglev::{Member, NO_MEMBER, SLOTS, ring};
use ringway_plan::tables::Protocol;

fn member(number: u32, weight: u16) -> Member {
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0001 + number));
    Member { address, port: 80, protocol: Protocol::Tcp, weight }
}

/// Distinct members of either family with weights.
fn members(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Member>> {
    let address = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
    ];
    prop::collection::hash_set((address, 1..=3u16), count)
        .prop_flat_map(|keys| {
            let weight = prop_oneof![4 => Just(1), 4 => 1..=1000u16, 1 => Just(0)];
            let weights = prop::collection::vec(weight, keys.len());
            (Just(keys), weights)
        })
        .prop_map(|(keys, weights)| {
            let member = |((address, port), weight)| Member {
                address,
                port,
                protocol: Protocol::Tcp,
                weight,
            };
            keys.into_iter().zip(weights).map(member).collect()
        })
}

/// The ring by what its slots lead to instead of positions.
fn owners(members: &[Member]) -> Vec<Option<(IpAddr, u16)>> {
    let owner = |slot: &u16| members.get(usize::from(*slot)).map(|m| (m.address, m.port));
    ring(members).iter().map(owner).collect()
}

/// Slots that another member has once this one is gone, though they were not its own.
fn moved_without_need(members: &[Member], gone: &Member) -> usize {
    let rest: Vec<Member> = members.iter().copied().filter(|member| member != gone).collect();
    let identity = Some((gone.address, gone.port));
    let (before, after) = (owners(members), owners(&rest));
    before.iter().zip(&after).filter(|(b, a)| **b != identity && b != a).count()
}

fn counts(members: &[Member]) -> Vec<usize> {
    let mut counts = vec![0; members.len()];
    for slot in ring(members) {
        counts[usize::from(slot)] += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Slow start counts in tenths.
    #[test]
    fn only_proportions_matter(members in members(1..40)) {
        let tenfold = |m: &Member| Member { weight: m.weight * 10, ..*m };
        let scaled: Vec<Member> = members.iter().map(tenfold).collect();
        prop_assert_eq!(ring(&members), ring(&scaled));
    }

    #[test]
    fn order_does_not_matter(members in members(1..40), seed: u64) {
        let mut shuffled = members.clone();
        shuffled.sort_by_key(|m| (m.address.to_string().len() as u64 ^ seed, m.address));
        shuffled.reverse();
        prop_assert!(owners(&members) == owners(&shuffled));
    }

    #[test]
    fn every_slot_has_a_member_with_weight(members in members(1..60)) {
        let ring = ring(&members);
        prop_assert_eq!(ring.len(), SLOTS);
        let weighty = members.iter().any(|member| member.weight > 0);
        for slot in ring {
            prop_assert_eq!(slot != NO_MEMBER, weighty);
            prop_assert!(slot == NO_MEMBER || members[usize::from(slot)].weight > 0);
        }
    }

    /// The bound that the documentation of `ring` states.
    #[test]
    fn shares_follow_weights(members in members(1..200)) {
        let total: usize = members.iter().map(|member| usize::from(member.weight)).sum();
        prop_assume!(total > 0);
        let n = members.iter().filter(|member| member.weight > 0).count() as f64;
        for (member, count) in members.iter().zip(counts(&members)) {
            let share = f64::from(member.weight) / total as f64;
            let bound = if member.weight == 0 { 0.0 } else { 1.0 + n * share };
            let off = (count as f64 - SLOTS as f64 * share).abs();
            prop_assert!(off <= bound + 1e-6, "{member:?}: {count} slots, off by {off}");
            prop_assert!(member.weight == 0 || count > 0);
        }
    }

    /// When one goes, its slots must move, and few others do.
    #[test]
    fn removal_disturbs_little(members in members(2..100), victim: prop::sample::Index) {
        let gone = members[victim.index(members.len())];
        prop_assume!(members.iter().any(|member| *member != gone && member.weight > 0));
        let moved = moved_without_need(&members, &gone);
        prop_assert!(moved <= SLOTS / 20, "{moved} of {SLOTS} moved without need");
    }
}

/// Fixed for ever: a ring that changes between versions moves the flows of a node that is
/// upgraded, and makes two nodes of one cluster disagree.
#[test]
fn golden() {
    let mut members: Vec<Member> = (0..10).map(|i| member(i, 1 + i as u16)).collect();
    members.push(Member { address: "2001:db8::1".parse().unwrap(), ..member(0, 5) });
    members.push(Member { protocol: Protocol::Udp, ..member(3, 2) });
    // FNV-1a, 64 bits, of the slots in little-endian order.
    let bytes = ring(&members).into_iter().flat_map(u16::to_le_bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(hash, 0xb5b4_257d_653b_fbd4, "{hash:#x}");
}

/// A hundred alike, each of them taken away in turn: its own per cent moves, and less than
/// another besides (0.57 on average).
#[test]
fn removal_of_one_in_a_hundred() {
    let members: Vec<Member> = (0..100).map(|i| member(i, 1)).collect();
    let moved: Vec<usize> = members.iter().map(|gone| moved_without_need(&members, gone)).collect();
    assert!(moved.iter().all(|moved| *moved < SLOTS / 100), "{moved:?}");
}

#[test]
fn nobody() {
    assert!(ring(&[]).iter().all(|slot| *slot == NO_MEMBER));
    assert!(ring(&[member(1, 0)]).iter().all(|slot| *slot == NO_MEMBER));
}

#[test]
fn identity_counts() {
    let a = member(1, 1);
    let b = member(2, 1);
    let udp = |m: Member| Member { protocol: Protocol::Udp, ..m };
    let moved = |p: Vec<u16>, q: Vec<u16>| p.iter().zip(&q).filter(|(a, b)| a != b).count();
    assert!(moved(ring(&[a, b]), ring(&[udp(a), udp(b)])) > SLOTS / 4);
    assert!(moved(ring(&[a, b]), ring(&[Member { port: 81, ..a }, b])) > SLOTS / 4);
}
