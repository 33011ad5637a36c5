//! Weighted Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4).
//!
//! A ring depends on what its members are and weigh, not on their order, on the node or on any
//! number given to them: every node with the same configuration has the same ring.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

use ringway_abi::raw::{RW_MAX_MEMBERS, RW_NO_MEMBER, RW_RING_SLOTS};

use crate::tables::Protocol;

/// Slots of a ring; prime, so that every step visits all of them.
pub const SLOTS: usize = RW_RING_SLOTS as usize;
/// A slot without a member.
pub const NO_MEMBER: u16 = RW_NO_MEMBER as u16;

/// A backend as the ring sees it. Ordered by identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The backend's own address.
    pub address: IpAddr,
    /// The backend's own port.
    pub port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Share relative to the others; 0: none.
    pub weight: u16,
}

/// The ring: for each of [`SLOTS`] slots a position in `members`, or [`NO_MEMBER`] when no
/// member has weight. Of n members that share a weight of W, one of weight w gets
/// 65 537 * w / W slots, give or take 1 + n * w / W, and never none.
pub fn ring(members: &[Member]) -> Vec<u16> {
    let mut order: Vec<usize> = (0..members.len()).filter(|&i| members[i].weight > 0).collect();
    order.sort_by_key(|&i| members[i]);
    let mut walks: Vec<Walk> = order.iter().map(|&i| Walk::new(i, &members[i])).collect();
    let mut ring = Ring { slots: vec![NO_MEMBER; SLOTS], taken: vec![0; SLOTS.div_ceil(64)] };
    let alike = walks.windows(2).all(|two| two[0].weight == two[1].weight);
    match alike {
        true => in_turn(&mut walks, &mut ring),
        false => by_weight(&mut walks, &mut ring),
    }
    ring.slots
}

/// All weigh the same: one after the other.
fn in_turn(walks: &mut [Walk], ring: &mut Ring) {
    let mut left = if walks.is_empty() { 0 } else { SLOTS };
    while left > 0 {
        for walk in walks.iter_mut().take(left) {
            walk.take_turn(ring);
        }
        left = left.saturating_sub(walks.len());
    }
}

/// Turn k of a member comes at time k / weight, of several at one time in the order of identity.
/// That is nobody else's business: when a member goes, the others keep their order, and few of
/// their slots change.
fn by_weight(walks: &mut [Walk], ring: &mut Ring) {
    // Time and rank in one word: the least is next.
    const RANK_BITS: u32 = u32::BITS - RW_MAX_MEMBERS.leading_zeros();
    let mut next: BinaryHeap<Reverse<u64>> = (0..walks.len() as u64).map(Reverse).collect();
    for _ in 0..SLOTS {
        // Dropping the guard puts it where its next turn belongs.
        let Some(mut turn) = next.peek_mut() else { break };
        let rank = turn.0 & ((1 << RANK_BITS) - 1);
        let walk = &mut walks[rank as usize];
        walk.take_turn(ring);
        let time = (walk.turns << 32) / walk.weight;
        turn.0 = time << RANK_BITS | rank;
    }
}

/// Slots, and a bit for each that is taken: far fewer lines to walk over.
struct Ring {
    slots: Vec<u16>,
    taken: Vec<u64>,
}

/// A member on its way through its own permutation of the slots.
struct Walk {
    turns: u64,
    weight: u64,
    position: usize,
    step: usize,
    member: u16,
}

impl Walk {
    fn new(number: usize, member: &Member) -> Walk {
        let slots = SLOTS as u64;
        Walk {
            turns: 0,
            weight: u64::from(member.weight),
            position: (hash(member, 0x52_69_6e_67) % slots) as usize,
            step: (hash(member, 0x77_61_79_21) % (slots - 1)) as usize + 1,
            member: number as u16,
        }
    }

    /// Takes the next slot of the permutation that nobody has; there is one.
    fn take_turn(&mut self, ring: &mut Ring) {
        self.turns += 1;
        loop {
            let slot = self.position;
            self.position += self.step;
            if self.position >= SLOTS {
                self.position -= SLOTS;
            }
            let (word, bit) = (&mut ring.taken[slot / 64], 1 << (slot % 64));
            if *word & bit == 0 {
                *word |= bit;
                ring.slots[slot] = self.member;
                return;
            }
        }
    }
}

/// A fixed hash of a member's identity: never to change, or every flow without a record moves.
fn hash(member: &Member, seed: u64) -> u64 {
    let address = match member.address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let bits = address.to_bits();
    let protocol: u64 = match member.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    };
    let words = [(bits >> 64) as u64, bits as u64, u64::from(member.port) << 8 | protocol];
    words.iter().fold(seed, |state, word| mix(state ^ word))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
