//! Sequence numbers as they arrive: lost, twice, late (RFC 4737, section 3.3).

/// How far back a packet is remembered: one later than that by more is neither known to be late nor
/// to have come twice.
pub const WINDOW: u64 = 1 << 16;

const WORDS: usize = (WINDOW / 64) as usize;

/// A packet's place among those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its number is higher than all before: those between, if any, are lost so far.
    InOrder,
    /// A higher number came before: reordered, as RFC 4737 has it.
    Late {
        /// How much higher than this one the next in order would be.
        by: u64,
    },
    Duplicate,
    /// Further back than [`WINDOW`].
    TooLate,
}

#[derive(Clone, Debug)]
pub struct Sequence {
    /// The first that was to come, if any has or was.
    first: Option<u64>,
    /// One more than the highest that came.
    next: u64,
    /// Whether a number came, for [`WINDOW`] of them below `next`.
    came: Box<[u64; WORDS]>,
    unique: u64,
}

impl Sequence {
    /// Nothing has come. `first` is to come first; none: whichever does.
    pub fn new(first: Option<u64>) -> Self {
        Self { first, next: first.unwrap_or(0), came: Box::new([0; WORDS]), unique: 0 }
    }

    #[inline]
    pub fn arrive(&mut self, number: u64) -> Arrival {
        let first = *self.first.get_or_insert(number);
        if number >= self.next {
            self.forget(number);
            self.mark(number);
            self.next = number + 1;
            return Arrival::InOrder;
        }
        let by = self.next - number;
        if by > WINDOW {
            return Arrival::TooLate;
        }
        if !self.mark(number) {
            return Arrival::Duplicate;
        }
        // A receiver that began in the middle has not missed it.
        self.first = Some(first.min(number));
        Arrival::Late { by }
    }

    /// Numbers that came, each once.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Numbers that did not come though a higher one has.
    pub fn missing(&self) -> u64 {
        (self.next - self.first.unwrap_or(self.next)).saturating_sub(self.unique)
    }

    /// One more than the highest that came.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether it had not come.
    #[inline]
    fn mark(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let new = self.came[word] & bit == 0;
        self.came[word] |= bit;
        // Not `u64::from(new)`: rustc 1.95 miscompiles that (docs/rustc-bool-miscompilation.md).
        if new {
            self.unique += 1;
        }
        new
    }

    /// Makes room for those from `next` to this one.
    #[inline]
    fn forget(&mut self, until: u64) {
        if until - self.next >= WINDOW {
            return self.came.fill(0);
        }
        for number in self.next..=until {
            let (word, bit) = place(number);
            self.came[word] &= !bit;
        }
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn in_order_lost_late_and_twice() {
        let mut sequence = Sequence::new(Some(0));
        for (number, arrival) in [
            (1, Arrival::InOrder),
            (2, Arrival::InOrder),
            (5, Arrival::InOrder),
            (3, Arrival::Late { by: 3 }),
            (3, Arrival::Duplicate),
            (5, Arrival::Duplicate),
            (0, Arrival::Late { by: 6 }),
        ] {
            assert_eq!(sequence.arrive(number), arrival, "{number}");
        }
        assert_eq!((sequence.unique(), sequence.missing(), sequence.next()), (5, 1, 6));
        assert_eq!(sequence.arrive(WINDOW + 4), Arrival::InOrder);
        assert_eq!(sequence.arrive(4), Arrival::TooLate);
        assert_eq!(sequence.arrive(5), Arrival::Duplicate);
        assert_eq!(sequence.arrive(6), Arrival::Late { by: WINDOW - 1 });
    }

    #[test]
    fn in_the_middle() {
        let mut sequence = Sequence::new(None);
        assert_eq!(sequence.missing(), 0);
        assert_eq!(sequence.arrive(1000), Arrival::InOrder);
        assert_eq!(sequence.arrive(998), Arrival::Late { by: 3 });
        assert_eq!((sequence.unique(), sequence.missing()), (2, 1));
    }

    /// Fails in a release build of rustc 1.95 where a bool is counted as a number.
    #[test]
    fn reordered_packets_are_not_lost() {
        let mut sequence = Sequence::new(Some(0));
        for first in (0..5000).step_by(50) {
            (first..first + 48).chain([first + 49, first + 48]).for_each(|number| {
                sequence.arrive(number);
            });
        }
        assert_eq!((sequence.unique(), sequence.missing()), (5000, 0));
    }

    proptest! {
        /// Against a set of all that came.
        #[test]
        fn as_a_set_would_have_it(
            steps in proptest::collection::vec(
                prop_oneof![4 => 0..4_u64, 1 => 0..WINDOW * 3], 1..400,
            ),
            back in proptest::collection::vec(
                prop_oneof![4 => 0..1_u64, 1 => 0..200_u64, 1 => 0..WINDOW * 2], 400,
            ),
        ) {
            let (mut sequence, mut came) = (Sequence::new(Some(0)), BTreeSet::new());
            let mut at = 0_u64;
            for (step, back) in steps.iter().zip(back) {
                at += step;
                let number = at.saturating_sub(back);
                let next = came.last().map_or(0, |last| last + 1);
                let expected = match () {
                    () if number >= next => Arrival::InOrder,
                    () if next - number > WINDOW => Arrival::TooLate,
                    () if came.contains(&number) => Arrival::Duplicate,
                    () => Arrival::Late { by: next - number },
                };
                prop_assert_eq!(sequence.arrive(number), expected);
                if expected != Arrival::TooLate {
                    came.insert(number);
                }
                let highest = came.last().map_or(0, |last| last + 1);
                prop_assert_eq!(sequence.unique(), came.len() as u64);
                prop_assert_eq!(sequence.missing(), highest - came.len() as u64);
            }
        }
    }
}
