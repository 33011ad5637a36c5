//! Weighted Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4).
//!
//! A ring depends on what its members are and weigh, not on their order, on the node or on any
//! number given to them: every node with the same configuration has the same ring.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
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
    let mut ring = Ring::new();
    // Those that weigh the same take turns at the same times.
    let mut groups: BTreeMap<u16, Group> = BTreeMap::new();
    for (rank, &i) in order.iter().enumerate() {
        let weight = members[i].weight;
        let new = || Group { weight: weight.into(), turns: 0, ranks: Vec::new() };
        groups.entry(weight).or_insert_with(new).ranks.push(rank);
    }
    in_turn(&mut groups.into_values().collect::<Vec<_>>(), &mut walks, &mut ring);
    ring.slots
}

/// Members of one weight.
struct Group {
    weight: u64,
    /// How often each had its turn.
    turns: u64,
    ranks: Vec<usize>,
}

/// Turn k of a member comes at time k / weight, of several at one time in the order of identity.
/// That is nobody else's business: when a member goes, the others keep their order, and few of
/// their slots change.
fn in_turn(groups: &mut [Group], walks: &mut [Walk], ring: &mut Ring) {
    // Time and group in one word: the least is next.
    const GROUP_BITS: u32 = u32::BITS - RW_MAX_MEMBERS.leading_zeros();
    let mut next: BinaryHeap<_> = (0..groups.len() as u64).map(Reverse).collect();
    let mut ranks = Vec::new();
    while let Some(time) = next.peek().map(|turn| turn.0 >> GROUP_BITS).filter(|_| ring.left > 0) {
        ranks.clear();
        let mut now = 0;
        while let Some(mut turn) = next.peek_mut().filter(|turn| turn.0 >> GROUP_BITS == time) {
            let number = turn.0 & ((1 << GROUP_BITS) - 1);
            let group = &mut groups[number as usize];
            ranks.extend_from_slice(&group.ranks);
            group.turns += 1;
            now += 1;
            // Dropping the guard puts it where its next turn belongs.
            let time = (group.turns << 32) / group.weight;
            turn.0 = time << GROUP_BITS | number;
        }
        if now > 1 {
            ranks.sort_unstable();
        }
        ranks.iter().take(ring.left).for_each(|&rank| walks[rank].take_turn(ring));
    }
}

/// Slots, and a bit for each that is taken: far fewer lines to walk over.
struct Ring {
    slots: Vec<u16>,
    taken: Vec<u64>,
    /// How many are free.
    left: usize,
}

impl Ring {
    fn new() -> Ring {
        let taken = vec![0; SLOTS.div_ceil(64)];
        Ring { slots: vec![NO_MEMBER; SLOTS], taken, left: SLOTS }
    }

    fn is_free(&self, slot: usize) -> bool {
        self.taken[slot / 64] & 1 << (slot % 64) == 0
    }

    fn take(&mut self, slot: usize, member: u16) {
        self.taken[slot / 64] |= 1 << (slot % 64);
        self.slots[slot] = member;
        self.left -= 1;
    }
}

/// A member on its way through its own permutation of the slots.
struct Walk {
    position: usize,
    step: usize,
    member: u16,
}

impl Walk {
    fn new(number: usize, member: &Member) -> Walk {
        let slots = SLOTS as u64;
        Walk {
            position: (hash(member, 0x52_69_6e_67) % slots) as usize,
            step: (hash(member, 0x77_61_79_21) % (slots - 1)) as usize + 1,
            member: number as u16,
        }
    }

    /// Takes the next slot of the permutation that nobody has; there is one.
    fn take_turn(&mut self, ring: &mut Ring) {
        loop {
            let slot = self.position;
            self.position += self.step;
            if self.position >= SLOTS {
                self.position -= SLOTS;
            }
            if ring.is_free(slot) {
                return ring.take(slot, self.member);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the paper, with the order of turns as [`ring`] says, and nothing to make it faster.
    fn plain(members: &[Member]) -> Vec<u16> {
        let mut slots = vec![NO_MEMBER; SLOTS];
        let mut turns: Vec<_> = (0..members.len())
            .filter(|n| members[*n].weight > 0)
            .map(|n| (0u64, members[n], n, 0u64, Walk::new(n, &members[n]).position))
            .collect();
        for _ in 0..SLOTS {
            let Some((time, member, number, turn, position)) = turns.iter_mut().min() else {
                break;
            };
            let step = Walk::new(*number, member).step;
            while slots[*position] != NO_MEMBER {
                *position = (*position + step) % SLOTS;
            }
            slots[*position] = *number as u16;
            *turn += 1;
            *time = (*turn << 32) / u64::from(member.weight);
        }
        slots
    }

    #[test]
    fn fast_is_the_same() {
        let member = |n: u8, weight| Member {
            address: IpAddr::from([10, n.wrapping_mul(37), 0, n]),
            port: 80,
            protocol: Protocol::Tcp,
            weight,
        };
        for weight in [|_| 1, |n| n % 3, |n| 1 + n * n, |n| if n == 3 { 1000 } else { n % 2 }] {
            for count in [1, 2, 7, 30] {
                let members: Vec<Member> =
                    (0..count).map(|n: u8| member(n, weight(u16::from(n)))).collect();
                assert!(ring(&members) == plain(&members), "{members:?}");
            }
        }
    }
}
