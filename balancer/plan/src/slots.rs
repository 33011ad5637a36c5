//! The slots of a ring, kept as what they follow from: written out they are 131 kB, and a thousand
//! services with machines of their own have a thousand rings.

use std::sync::Arc;

use ringway_abi::raw::{RW_MAX_MEMBERS, RW_NO_MEMBER};

use crate::maglev::{self, Member, SLOTS};

/// Slots from here on name a pair.
pub(crate) const FIRST_PAIR: u16 = RW_MAX_MEMBERS as u16;

/// Whether a slot's number is that of a pair.
pub(crate) fn names_pair(number: u16) -> bool {
    number >= FIRST_PAIR && number != RW_NO_MEMBER as u16
}

/// What `RW_RING_SLOTS` slots hold: a member's number, `RW_NO_MEMBER`, or from `RW_MAX_MEMBERS` on
/// the number of a pair. Cheap to clone and to keep; [`Slots::written`] takes a millisecond.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Form>);

#[derive(Debug)]
enum Form {
    /// As Maglev gives them to these members.
    Stable(Arc<[Member]>),
    /// The same, but for some slots.
    Changing(Arc<[Member]>, Sparse),
    /// As they were found.
    Found(Box<[u16]>),
}

/// Numbers of some slots.
#[derive(Debug, PartialEq)]
struct Sparse {
    /// A bit for each slot, whether it is one of them.
    words: Box<[u64]>,
    /// How many are before each eight words.
    before: Box<[u32]>,
    /// In the order of the slots.
    numbers: Box<[u16]>,
}

impl Slots {
    /// As [`maglev::ring`] gives them to these members.
    pub(crate) fn stable(members: Arc<[Member]>) -> Slots {
        Slots(Arc::new(Form::Stable(members)))
    }

    /// These, whose stable ones are as in `wanted`.
    pub(crate) fn changing(wanted: &Slots, slots: &[u16]) -> Slots {
        Slots(Arc::new(match &*wanted.0 {
            Form::Stable(members) => Form::Changing(members.clone(), Sparse::of(slots)),
            _ => Form::Found(slots.into()),
        }))
    }

    /// The member whose stable slots they are; `None`: not known.
    pub(crate) fn members(&self) -> Option<&[Member]> {
        match &*self.0 {
            Form::Stable(members) | Form::Changing(members, _) => Some(members),
            Form::Found(_) => None,
        }
    }

    /// The number of the pair that a slot names, if any.
    pub(crate) fn pair(&self, slot: usize) -> Option<u16> {
        match &*self.0 {
            Form::Stable(_) => None,
            Form::Changing(_, sparse) => sparse.get(slot),
            Form::Found(slots) => slots.get(slot).copied().filter(|slot| names_pair(*slot)),
        }
    }

    /// The slots as a table.
    pub fn written(&self) -> Vec<u16> {
        match &*self.0 {
            Form::Stable(members) => maglev::ring(members),
            Form::Changing(members, sparse) => {
                let mut slots = maglev::ring(members);
                sparse.write(&mut slots);
                slots
            }
            Form::Found(slots) => slots.to_vec(),
        }
    }

    /// How many they are: [`SLOTS`], unless they come from somewhere else.
    pub fn count(&self) -> usize {
        match &*self.0 {
            Form::Stable(_) | Form::Changing(..) => SLOTS,
            Form::Found(slots) => slots.len(),
        }
    }

    /// Tells slots that are shared.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Whether somebody else has the same.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl From<Vec<u16>> for Slots {
    fn from(slots: Vec<u16>) -> Slots {
        Slots(Arc::new(Form::Found(slots.into())))
    }
}

impl FromIterator<u16> for Slots {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Slots {
        slots.into_iter().collect::<Vec<u16>>().into()
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Slots) -> bool {
        match (&*self.0, &*other.0) {
            _ if Arc::ptr_eq(&self.0, &other.0) => true,
            (Form::Stable(a), Form::Stable(b)) if a == b => true,
            (Form::Changing(a, some), Form::Changing(b, others)) if a == b => some == others,
            _ => self.written() == other.written(),
        }
    }
}

impl Eq for Slots {}

impl Sparse {
    fn of(slots: &[u16]) -> Sparse {
        let bit = |(at, slot): (usize, &u16)| u64::from(names_pair(*slot)) << at;
        let word = |slots: &[u16]| slots.iter().enumerate().map(bit).fold(0, |all, bit| all | bit);
        let words: Box<[u64]> = slots.chunks(64).map(word).collect();
        let mut sum = 0;
        let before = words.chunks(8).map(|words| {
            let before = sum;
            sum += ones(words);
            before
        });
        let before = before.collect();
        let numbers = slots.iter().copied().filter(|slot| names_pair(*slot)).collect();
        Sparse { words, before, numbers }
    }

    fn get(&self, slot: usize) -> Option<u16> {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        let bits = *self.words.get(word)?;
        let near = ones(&self.words[word / 8 * 8..word]) + (bits & (bit - 1)).count_ones();
        (bits & bit != 0).then(|| self.numbers[(self.before[word / 8] + near) as usize])
    }

    fn write(&self, slots: &mut [u16]) {
        let mut numbers = self.numbers.iter();
        for (mut bits, slots) in self.words.iter().copied().zip(slots.chunks_mut(64)) {
            while bits != 0 {
                let at = bits.trailing_zeros() as usize;
                // As many as there are bits.
                slots[at] = numbers.next().copied().unwrap_or(RW_NO_MEMBER as u16);
                bits &= bits - 1;
            }
        }
    }
}

fn ones(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::tables::Protocol;

    fn members(count: u8) -> Arc<[Member]> {
        let member = |n| Member {
            address: IpAddr::from([10, 0, 0, n]),
            port: 0,
            protocol: Protocol::Tcp,
            weight: 1,
        };
        (0..count).map(member).collect()
    }

    /// Some slots of a ring name pairs: the first, the last, neighbours, both ends of a word.
    #[test]
    fn slots_that_name_pairs_are_all_that_is_kept() {
        let stable = Slots::stable(members(5));
        let mut slots = stable.written();
        let changed = [0, 63, 64, 65, 1000, 65535, 65536];
        for (number, slot) in changed.into_iter().enumerate() {
            slots[slot] = FIRST_PAIR + number as u16;
        }
        let changing = Slots::changing(&stable, &slots);
        assert_eq!((changing.written(), changing.count()), (slots.clone(), SLOTS));
        let named: Vec<usize> = (0..SLOTS).filter(|n| changing.pair(*n).is_some()).collect();
        assert_eq!(named, changed);
        assert_eq!(changing.pair(65), Some(FIRST_PAIR + 3));
        assert_eq!((changing.pair(SLOTS), changing.pair(SLOTS + 100)), (None, None));
        let found = Slots::from(slots);
        assert_eq!(found.pair(65), changing.pair(65));
        // However they are kept.
        assert!(found == changing && changing != stable && stable != Slots::stable(members(4)));
        assert_eq!(stable, stable.written().into());
    }
}
