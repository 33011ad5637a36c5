//! What is translated: operations, and the ways between them.

use crate::classic::{Arithmetic, Operand, Operation};

/// Bytes that are worth reading in place: a packet's linear part is within one page.
const LINEAR: u32 = 4096;

/// The two versions that a program is translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Version {
    InPlace,
    Fetched,
}

/// What is translated.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) operations: Vec<Operation>,
    /// For each operation, where the program goes on when it cannot be done: a load beyond the
    /// packet's end, a division by zero.
    pub(crate) failures: Vec<usize>,
}

impl Program {
    /// Where an instruction leads in a version when it can be done.
    pub(crate) fn successors(
        &self,
        version: Version,
        number: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let leaves = version == Version::InPlace && self.reads_beyond_linear(number);
        self.operations[number].successors(number).filter(move |_| !leaves)
    }

    /// Where it leads when it cannot be done. In place, a load that is kept for others (`is_kept`)
    /// never fails: the second version goes on with it.
    pub(crate) fn failure(&self, version: Version, number: usize, is_kept: bool) -> Option<usize> {
        let fails = match self.operations[number] {
            Operation::Packet { .. } | Operation::HeaderLength(_) => {
                version == Version::Fetched || !is_kept
            }
            Operation::Compute(Arithmetic::Div | Arithmetic::Mod, Operand::X) => true,
            _ => false,
        };
        fails.then_some(self.failures[number])
    }

    /// Where jumps to an instruction lead in the end.
    pub(crate) fn behind_jumps(&self, mut number: usize) -> usize {
        while let Operation::Jump(to) = self.operations[number] {
            number = to;
        }
        number
    }

    /// Whether it is worth knowing that a packet is too short for a load: the program goes on.
    pub(crate) fn goes_on_without(&self, number: usize) -> bool {
        let failure = self.behind_jumps(self.failures[number]);
        let is_load = matches!(
            self.operations[number],
            Operation::Packet { .. } | Operation::HeaderLength(_)
        );
        is_load && !matches!(self.operations[failure], Operation::Return(_))
    }

    pub(crate) fn reads_beyond_linear(&self, number: usize) -> bool {
        match self.operations[number] {
            Operation::Packet { bytes, at, .. } => at + u32::from(bytes) > LINEAR,
            Operation::HeaderLength(at) => at >= LINEAR,
            _ => false,
        }
    }

    /// Where the bytes end that an instruction reads, unless X decides.
    pub(crate) fn read_at_fixed_place(&self, number: usize) -> Option<u32> {
        match self.operations[number] {
            Operation::Packet { bytes, at, behind_x: false } => Some(at + u32::from(bytes)),
            Operation::HeaderLength(at) => Some(at + 1),
            _ => None,
        }
    }
}
