//! Whether a filter can match anything at all, as far as the range of each value tells: libpcap's
//! optimizer finds what excludes each other, but knows nothing of how long frames are (`less 0`,
//! `less 60 and udp[100] = 1`), nor how large a byte can be (`ip[0] > 255`).
//!
//! Jumps lead forward alone, so that one pass over the instructions has met all that leads to each.
//! Memory and most of arithmetic are not followed and may hold any value: then a filter counts as
//! one that can match.

use crate::classic::{
    Arithmetic, Condition, LONGEST_FRAME, NO_MATCH, Operand, Operation, Register,
};

/// An Ethernet header: the kernel gives XDP no shorter frame.
const SHORTEST_FRAME: u32 = 14;

/// The bounds of a value, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    least: u32,
    most: u32,
}

const ANY: Range = Range { least: 0, most: u32::MAX };

/// The state before an instruction.
#[derive(Clone, Copy, Debug)]
struct Known {
    a: Range,
    x: Range,
    length: Range,
    /// A is the frame's length.
    a_is_length: bool,
}

impl Range {
    fn exactly(value: u32) -> Range {
        Range { least: value, most: value }
    }

    fn up_to(most: u32) -> Range {
        Range { least: 0, most }
    }

    fn exact(self) -> Option<u32> {
        (self.least == self.most).then_some(self.least)
    }

    fn is_empty(self) -> bool {
        self.least > self.most
    }

    fn meet(self, other: Range) -> Range {
        Range { least: self.least.max(other.least), most: self.most.min(other.most) }
    }

    fn join(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

impl Known {
    fn join(self, other: Known) -> Known {
        Known {
            a: self.a.join(other.a),
            x: self.x.join(other.x),
            length: self.length.join(other.length),
            a_is_length: self.a_is_length && other.a_is_length,
        }
    }

    fn operand(&self, operand: Operand) -> Range {
        match operand {
            Operand::Constant(k) => Range::exactly(k),
            Operand::X => self.x,
        }
    }

    /// The same where A is in this range as well; `None`: it cannot be.
    fn with_a(self, range: Range) -> Option<Known> {
        let a = self.a.meet(range);
        let length = if self.a_is_length { self.length.meet(range) } else { self.length };
        (!a.is_empty() && !length.is_empty()).then_some(Known { a, length, ..self })
    }

    /// The same where the frame has so many bytes: else a load ends the program without a match.
    fn with_bytes(self, bytes: u64) -> Option<Known> {
        let least = self.length.least.max(u32::try_from(bytes).ok()?);
        let length = Range { least, ..self.length };
        (!length.is_empty()).then_some(Known { length, ..self })
    }

    fn loaded(self, a: Range) -> Known {
        Known { a, a_is_length: false, ..self }
    }
}

/// Where an Ethernet header has the ethertype, which is two bytes.
const ETHERTYPE: u32 = 12;

/// False: no frame matches, of this ethertype if there is one. True: one may.
pub(crate) fn can_match(operations: &[Operation], ethertype: Option<u16>) -> bool {
    let mut reached: Vec<Option<Known>> = vec![None; operations.len()];
    reached[0] = Some(Known {
        a: Range::exactly(0),
        x: Range::exactly(0),
        length: Range { least: SHORTEST_FRAME, most: LONGEST_FRAME },
        a_is_length: false,
    });
    for (number, operation) in operations.iter().enumerate() {
        let Some(known) = reached[number] else { continue };
        let next = match *operation {
            Operation::Packet { bytes: 2, at: ETHERTYPE, behind_x: false } => {
                let value = ethertype.map_or(Range::up_to(0xffff), |it| Range::exactly(it.into()));
                vec![(number + 1, Some(known.loaded(value)))]
            }
            Operation::Return(NO_MATCH) => continue,
            Operation::Return(_) => return true,
            Operation::ReturnA if known.a.most > 0 => return true,
            Operation::ReturnA => continue,
            Operation::Jump(to) => vec![(to, Some(known))],
            Operation::Branch { condition, operand, then, otherwise } => {
                let (yes, no) = branch(known, condition, operand);
                vec![(then, yes), (otherwise, no)]
            }
            other => vec![(number + 1, step(known, other))],
        };
        for (to, known) in next {
            let Some(known) = known else { continue };
            reached[to] = Some(reached[to].map_or(known, |other| other.join(known)));
        }
    }
    false
}

/// Behind an instruction that does not jump; `None`: it ends the program without a match.
fn step(known: Known, operation: Operation) -> Option<Known> {
    Some(match operation {
        Operation::Packet { bytes, at, behind_x } => {
            let base = if behind_x { u64::from(known.x.least) } else { 0 };
            let most = u32::MAX >> (32 - 8 * u32::from(bytes));
            known.with_bytes(base + u64::from(at) + u64::from(bytes))?.loaded(Range::up_to(most))
        }
        Operation::HeaderLength(at) => {
            Known { x: Range::up_to(60), ..known.with_bytes(u64::from(at) + 1)? }
        }
        Operation::Constant(Register::A, k) => known.loaded(Range::exactly(k)),
        Operation::Constant(Register::X, k) => Known { x: Range::exactly(k), ..known },
        Operation::Length(Register::A) => Known { a: known.length, a_is_length: true, ..known },
        Operation::Length(Register::X) => Known { x: known.length, ..known },
        Operation::Load(Register::A, _) => known.loaded(ANY),
        Operation::Load(Register::X, _) => Known { x: ANY, ..known },
        Operation::Compute(how, operand) => {
            known.loaded(computed(how, known.a, known.operand(operand)))
        }
        Operation::Negate => known.loaded(ANY),
        Operation::CopyToX => Known { x: known.a, ..known },
        Operation::CopyToA => known.loaded(known.x),
        _ => known,
    })
}

fn computed(how: Arithmetic, a: Range, b: Range) -> Range {
    let between = |least: Option<u32>, most: Option<u32>| match (least, most) {
        (Some(least), Some(most)) => Range { least, most },
        _ => ANY,
    };
    match how {
        Arithmetic::Add => between(a.least.checked_add(b.least), a.most.checked_add(b.most)),
        Arithmetic::Sub => between(a.least.checked_sub(b.most), a.most.checked_sub(b.least)),
        Arithmetic::Mul => between(a.least.checked_mul(b.least), a.most.checked_mul(b.most)),
        Arithmetic::Div => Range { least: a.least / b.most.max(1), most: a.most / b.least.max(1) },
        Arithmetic::Mod => Range::up_to(a.most.min(b.most.saturating_sub(1))),
        Arithmetic::And => Range::up_to(a.most.min(b.most)),
        Arithmetic::ShiftRight => Range::up_to(a.most >> b.least.min(31)),
        Arithmetic::ShiftLeft => match b.exact() {
            Some(by @ 0..32) if a.most.leading_zeros() >= by => {
                Range { least: a.least << by, most: a.most << by }
            }
            _ => ANY,
        },
        Arithmetic::Or | Arithmetic::Xor => ANY,
    }
}

/// Where a condition holds, and where it does not.
fn branch(known: Known, condition: Condition, operand: Operand) -> (Option<Known>, Option<Known>) {
    let b = known.operand(operand);
    let from = |least: u32| Range { least, most: u32::MAX };
    let (yes, no) = match condition {
        Condition::Equal => {
            let never = known.a.exact().is_some() && known.a.exact() == b.exact();
            (known.with_a(b), (!never).then_some(known))
        }
        Condition::Greater => (
            b.least.checked_add(1).and_then(|least| known.with_a(from(least))),
            known.with_a(Range::up_to(b.most)),
        ),
        Condition::GreaterOrEqual => (
            known.with_a(from(b.least)),
            b.most.checked_sub(1).and_then(|most| known.with_a(Range::up_to(most))),
        ),
        Condition::AnyBit => {
            // The lowest bit that is asked for is beyond all that A can be.
            let lowest = b.exact().map_or(u32::from(b.most > 0), |bits| bits & bits.wrapping_neg());
            ((lowest != 0 && known.a.most >= lowest).then_some(known), Some(known))
        }
    };
    (yes, no)
}
