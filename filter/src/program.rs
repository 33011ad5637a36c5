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

    /// Where it leads when it cannot be done. The first version goes on in the second one when bytes
    /// are missing, unless the offset is beyond all packets; where it counts from behind an IPv4
    /// header (`is_named`), it never is.
    pub(crate) fn failure(&self, version: Version, number: usize, is_named: bool) -> Option<usize> {
        let fails = match self.operations[number] {
            Operation::Packet { behind_x, .. } => {
                version == Version::Fetched || behind_x && !is_named
            }
            Operation::HeaderLength(_) => version == Version::Fetched,
            Operation::Compute(Arithmetic::Div | Arithmetic::Mod, Operand::X) => true,
            _ => false,
        };
        fails.then_some(self.failures[number])
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
