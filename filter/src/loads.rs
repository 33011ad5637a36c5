//! Loads that need not be repeated. What is loaded more than once, by several rules or on several
//! ways through one filter, is kept in a word on the stack. Where each way to a load leads past
//! another one of the same, the word is read instead of the packet.
//!
//! The two versions of a program differ: in place, a load that is kept never fails (the second one
//! goes on where bytes are missing); in the second one, the way from a load that fails has not
//! loaded anything.

use std::collections::HashMap;

use crate::classic::{Operation, Register, at_first, forward};
use crate::program::{Program, Version};

/// What is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// Bytes of the packet at an offset, which may count from behind the IPv4 header that begins at
    /// another one.
    Packet { bytes: u8, at: u32, behind: Option<u32> },
    /// Length of the IPv4 header that begins at an offset.
    HeaderLength(u32),
    /// Length of the packet.
    Length,
}

/// What the registers hold, as far as it has been loaded and is still the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) a: Option<Value>,
    pub(crate) x: Option<Value>,
}

impl Registers {
    /// What an instruction loads.
    pub(crate) fn loaded_by(&self, operation: Operation) -> Option<Value> {
        match (operation, self.x) {
            (Operation::Packet { bytes, at, behind_x: false }, _) => {
                Some(Value::Packet { bytes, at, behind: None })
            }
            (
                Operation::Packet { bytes, at, behind_x: true },
                Some(Value::HeaderLength(header)),
            ) => Some(Value::Packet { bytes, at, behind: Some(header) }),
            (Operation::HeaderLength(at), _) => Some(Value::HeaderLength(at)),
            (Operation::Length(_), _) => Some(Value::Length),
            _ => None,
        }
    }

    /// Behind an instruction.
    pub(crate) fn after(self, operation: Operation) -> Self {
        let loaded = self.loaded_by(operation);
        match operation {
            Operation::Packet { .. }
            | Operation::Constant(Register::A, _)
            | Operation::Length(Register::A)
            | Operation::Load(Register::A, _)
            | Operation::Compute(..)
            | Operation::Negate => Self { a: loaded, ..self },
            Operation::HeaderLength(_)
            | Operation::Constant(Register::X, _)
            | Operation::Length(Register::X)
            | Operation::Load(Register::X, _) => Self { x: loaded, ..self },
            Operation::CopyToX => Self { x: self.a, ..self },
            Operation::CopyToA => Self { a: self.x, ..self },
            _ => self,
        }
    }

    /// Where two ways meet.
    pub(crate) fn join(self, other: Self) -> Self {
        let same = |one, other| if one == other { one } else { None };
        Self { a: same(self.a, other.a), x: same(self.x, other.x) }
    }
}

/// The words that are kept.
#[derive(Debug)]
pub(crate) struct Loads {
    /// What each instruction loads.
    values: Vec<Option<Value>>,
    words: HashMap<Value, usize>,
    /// The words that have been written, as bits, before each instruction of the first version.
    in_place: Vec<Option<u64>>,
    /// The same in the second one.
    fetched: Vec<Option<u64>>,
}

impl Loads {
    /// `most`: words that there are, at most 64.
    pub(crate) fn new(program: &Program, most: usize) -> Self {
        let operations = &program.operations;
        let mut values = vec![None; operations.len()];
        forward(
            at_first(Registers::default(), operations.len()),
            Registers::join,
            |number, before| {
                values[number] = before.loaded_by(operations[number]);
                let after = before.after(operations[number]);
                let failed = [(program.failures[number], before)];
                let next = operations[number].successors(number).map(|next| (next, after));
                next.chain(failed).collect()
            },
        );
        let words = words(program, &values, most);
        let mut loads = Self { values, words, in_place: Vec::new(), fetched: Vec::new() };
        let none = at_first(0, operations.len());
        loads.in_place = loads.written(program, none, Version::InPlace);
        loads.fetched = loads.written(program, loads.in_place.clone(), Version::Fetched);
        loads
    }

    fn written(
        &self,
        program: &Program,
        known: Vec<Option<u64>>,
        version: Version,
    ) -> Vec<Option<u64>> {
        forward(
            known,
            |one, other| one & other,
            |number, before| {
                let after = before | self.word(number).map_or(0, |word| 1 << word);
                let next = program.successors(version, number);
                let is_kept = self.word(number).is_some();
                let failed = program.failure(version, number, is_kept);
                let next = next.map(|next| (next, after));
                next.chain(failed.map(|next| (next, before))).collect()
            },
        )
    }

    /// Whether an instruction loads what has a name: bytes behind X have none unless every way to it
    /// has loaded X with the same header's length.
    pub(crate) fn is_named(&self, number: usize) -> bool {
        self.values[number].is_some()
    }

    /// Where what an instruction loads is kept.
    pub(crate) fn word(&self, number: usize) -> Option<usize> {
        self.words.get(&self.values[number]?).copied()
    }

    /// Whether that word has been written when the instruction is reached.
    pub(crate) fn is_kept(&self, version: Version, number: usize) -> bool {
        let written = match version {
            Version::InPlace => self.in_place[number],
            Version::Fetched => self.fetched[number],
        };
        self.word(number).is_some_and(|word| written.unwrap_or(0) & 1 << word != 0)
    }

    /// Where the packet's length is kept.
    pub(crate) fn length_word(&self) -> Option<usize> {
        self.words.get(&Value::Length).copied()
    }
}

/// A word for each of the values that several instructions load, while there are words.
fn words(program: &Program, values: &[Option<Value>], most: usize) -> HashMap<Value, usize> {
    let mut loaded: HashMap<Value, usize> = HashMap::new();
    let mut words = HashMap::new();
    for value in values.iter().flatten() {
        let times = loaded.entry(*value).or_default();
        *times += 1;
        if *times == 2 && words.len() + 1 < most {
            words.insert(*value, words.len());
        }
    }
    // The length also says whether a load has failed because the packet is short.
    let is_kept = |value: &Option<Value>| value.is_some_and(|value| words.contains_key(&value));
    let asks = |(number, value)| program.goes_on_without(number) && !is_kept(value);
    let lengths = loaded.get(&Value::Length).copied().unwrap_or(0);
    if lengths + values.iter().enumerate().filter(|it| asks(*it)).count() > 1 {
        let next = words.len();
        words.entry(Value::Length).or_insert(next);
    }
    words
}
