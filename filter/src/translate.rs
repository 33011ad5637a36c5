//! Classic BPF to eBPF, for XDP.
//!
//! A program has two versions. The first reads the packet's linear part in place, after a comparison
//! with its end that also serves the reads after it. Where a comparison fails, the second one goes
//! on with the same instruction: it has every byte fetched by the kernel, which also finds those in
//! fragments (`xdp.frags`), and of a packet that is merely too short says so. It never leads back.
//!
//! What is loaded more than once is kept on the stack (loads.rs).

use std::collections::BTreeSet;

use crate::classic::{
    Arithmetic, Condition, LONGEST_FRAME, MEMORY, Operand, Operation, Register, at_first, forward,
};
use crate::insn::{Alu, Assembler, Helper, Jump, Reg, Source, Width};
use crate::loads::Loads;
use crate::program::{Program, Version};

/// Where things are, all through a program.
pub(crate) const CTX: Reg = Reg::R6;
const A: Reg = Reg::R7;
const X: Reg = Reg::R8;
const DATA: Reg = Reg::R9;

/// On the stack: eight bytes for calls, then the memory of the program, then the words that the
/// translation keeps.
pub(crate) const SCRATCH: i16 = -8;
const MEMORY_BASE: i16 = SCRATCH - 4 * MEMORY as i16;
const STACK: i16 = 512;

/// Words for what is loaded, and behind them for notes.
pub(crate) const KEPT_WORDS: usize = 53;
const NOTE_WORDS: usize = 2;
const _: () = assert!(-kept(KEPT_WORDS + NOTE_WORDS - 1) <= STACK);

/// `struct xdp_md`.
const CTX_DATA: i16 = 0;
const CTX_DATA_END: i16 = 4;

/// No whole packet is shorter than Ethernet with an IPv4, then with an IPv6 header, then with ports
/// behind that: to ask for all of it costs nothing and spares further comparisons.
const HEADERS: [u32; 3] = [34, 54, 58];

/// What a kept length is before it is known.
const UNKNOWN: u32 = u32::MAX;

/// Places that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// An instruction in one of the versions.
    At(Version, usize),
    /// Behind an instruction of the translation itself.
    Behind(usize),
    /// The end with this result.
    Return(u16),
}

struct Translator<'a> {
    program: &'a Program,
    loads: Loads,
    code: Assembler<Label>,
}

/// Everything but what happens at [`Label::Return`], which is for the caller to place, where it is
/// used.
pub(crate) fn translate(program: &Program) -> Assembler<Label> {
    let loads = Loads::new(program, KEPT_WORDS);
    let mut translator = Translator { program, loads, code: Assembler::new() };
    let checked = translator.lengths_checked();
    let first = translator.begin();
    translator.write(Version::InPlace, Some(first), &checked);
    translator.write(Version::Fetched, None, &checked);
    translator.code
}

impl Translator<'_> {
    fn begin(&mut self) -> Label {
        self.code.alu64(Alu::Mov, CTX, Source::Reg(Reg::R1));
        self.code.load(Width::Word, DATA, CTX, CTX_DATA);
        if let Some(word) = self.loads.length_word() {
            self.code.store(Reg::R10, kept(word), Source::Imm(UNKNOWN));
        }
        let notes = self.program.operations.iter().filter_map(|operation| match operation {
            Operation::Note(bit) => Some(note_word(*bit)),
            _ => None,
        });
        for word in notes.collect::<BTreeSet<_>>() {
            self.code.store(Reg::R10, word, Source::Imm(NO_NOTES));
        }
        let first = self.label(Version::InPlace, 0);
        if matches!(first, Label::Return(_)) {
            self.code.jump(first);
        }
        first
    }

    /// Jumps to it lead where it leads.
    fn is_passed_over(&self, number: usize) -> bool {
        matches!(self.program.operations[number], Operation::Return(_) | Operation::Jump(_))
    }

    /// Where to go for an instruction.
    fn label(&self, version: Version, number: usize) -> Label {
        let number = self.program.behind_jumps(number);
        match self.program.operations[number] {
            Operation::Return(result) => Label::Return(result),
            _ => Label::At(version, number),
        }
    }

    /// For each instruction that can be reached in place: how many bytes are known to be there when
    /// it is reached.
    fn lengths_checked(&self) -> Vec<Option<u32>> {
        let count = self.program.operations.len();
        forward(at_first(0, count), u32::min, |number, before| {
            let after = match self.program.read_at_fixed_place(number) {
                Some(end) if !self.loads.is_kept(Version::InPlace, number) => {
                    before.max(with_headers(end))
                }
                _ => before,
            };
            let next = self.program.successors(Version::InPlace, number);
            let failed =
                self.program.failure(Version::InPlace, number, self.loads.word(number).is_some());
            next.map(|next| (next, after)).chain(failed.map(|next| (next, before))).collect()
        })
    }

    /// Writes the instructions of a version that something leads to. `open`: the one that what has
    /// been written goes on to without a jump.
    fn write(&mut self, version: Version, mut open: Option<Label>, checked: &[Option<u32>]) {
        for (number, checked) in checked.iter().enumerate() {
            let label = Label::At(version, number);
            let is_reached = open == Some(label) || self.code.is_used(label);
            if self.is_passed_over(number) || !is_reached {
                continue;
            }
            self.code.place(label);
            open = if version == Version::InPlace && self.program.reads_beyond_linear(number) {
                self.code.jump(Label::At(Version::Fetched, number));
                None
            } else {
                self.operation(version, number, *checked);
                self.go_on(version, number)
            };
        }
    }

    fn operation(&mut self, version: Version, number: usize, checked: Option<u32>) {
        let operation = self.program.operations[number];
        let word = self.loads.word(number).map(kept);
        let into = reg(match operation {
            Operation::HeaderLength(_) => Register::X,
            Operation::Length(into) => into,
            _ => Register::A,
        });
        match (word, operation) {
            (Some(word), _) if self.loads.is_kept(version, number) => {
                return self.code.load(Width::Word, into, Reg::R10, word);
            }
            (_, Operation::Packet { bytes, at, behind_x }) => match (version, behind_x) {
                (Version::InPlace, true) => self.read_behind_x(number, bytes, at),
                (Version::InPlace, false) => {
                    self.check(number, checked, at + u32::from(bytes));
                    self.read(Width::of(bytes), A, DATA, at);
                }
                (Version::Fetched, _) => self.fetch(number, bytes, A, at, behind_x),
            },
            (_, Operation::HeaderLength(at)) => {
                match version {
                    Version::InPlace => {
                        self.check(number, checked, at + 1);
                        self.read(Width::Byte, X, DATA, at);
                    }
                    Version::Fetched => self.fetch(number, 1, X, at, false),
                }
                self.header_length();
            }
            _ => return self.common(version, number),
        }
        if let Some(word) = word {
            self.code.store(Reg::R10, word, Source::Reg(into));
        }
    }

    /// To where an instruction leads that cannot be done.
    fn failure(&self, version: Version, number: usize) -> Label {
        self.label(version, self.program.failures[number])
    }

    /// On only if the packet's linear part has so many bytes.
    fn check(&mut self, number: usize, checked: Option<u32>, end: u32) {
        if checked >= Some(end) {
            return;
        }
        self.code.load(Width::Word, Reg::R2, CTX, CTX_DATA_END);
        self.code.alu64(Alu::Mov, Reg::R3, Source::Reg(DATA));
        self.code.alu64(Alu::Add, Reg::R3, Source::Imm(with_headers(end)));
        self.go_on_within(number, end == with_headers(end));
    }

    /// On only if R3 is not behind the packet's linear part, whose end is R2. Else to the second
    /// version; but where the packet has no fragments, a load that is its rule's own has failed, and
    /// the next rule goes on in place. `is_all`: up to R3 is no more than the load needs.
    fn go_on_within(&mut self, number: usize, is_all: bool) {
        let (end, fetched) = (Source::Reg(Reg::R2), Label::At(Version::Fetched, number));
        let is_kept = self.loads.word(number).is_some();
        if !is_all || is_kept || !self.program.goes_on_without(number) {
            return self.code.jump_if(Jump::Greater, Reg::R3, end, fetched);
        }
        let there = Label::Behind(self.code.len());
        self.code.jump_if(Jump::LessOrEqual, Reg::R3, end, there);
        self.length(Reg::R0);
        let longest = Source::Imm(LONGEST_FRAME);
        self.code.jump_if(Jump::Greater, Reg::R0, longest, fetched);
        self.code.load(Width::Word, Reg::R2, CTX, CTX_DATA_END);
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(DATA));
        self.code.alu64(Alu::Add, Reg::R1, Source::Reg(Reg::R0));
        self.code.jump_if(Jump::Greater, Reg::R1, end, fetched);
        let failure = self.failure(Version::InPlace, number);
        self.code.jump(failure);
        self.code.place(there);
    }

    fn read(&mut self, width: Width, into: Reg, base: Reg, at: u32) {
        self.code.load(width, into, base, at as i16);
        self.code.swap_to_host(width, into);
    }

    fn read_behind_x(&mut self, number: usize, bytes: u8, at: u32) {
        let end = at + u32::from(bytes);
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(X));
        if self.loads.is_named(number) {
            // It changes nothing, but the verifier does not know a header's length that was kept.
            self.code.alu64(Alu::And, Reg::R1, Source::Imm(0xff));
        } else {
            let most = Source::Imm(LONGEST_FRAME - end);
            let failure = self.failure(Version::InPlace, number);
            self.code.jump_if(Jump::Greater, Reg::R1, most, failure);
            // It changes nothing, but where a comparison with X never goes this way, the verifier
            // of 6.1 goes all the same, with a least value above the greatest: of that no pointer
            // can be made, and this ends it.
            self.code.alu64(Alu::And, Reg::R1, Source::Imm(0xffff));
        }
        self.code.load(Width::Word, Reg::R2, CTX, CTX_DATA_END);
        self.code.alu64(Alu::Add, Reg::R1, Source::Reg(DATA));
        self.code.alu64(Alu::Mov, Reg::R3, Source::Reg(Reg::R1));
        self.code.alu64(Alu::Add, Reg::R3, Source::Imm(end));
        self.go_on_within(number, true);
        self.read(Width::of(bytes), A, Reg::R1, at);
    }

    /// Reads with bpf_xdp_load_bytes, which also reaches a packet's later buffers.
    fn fetch(&mut self, number: usize, bytes: u8, into: Reg, at: u32, behind_x: bool) {
        let failure = self.failure(Version::Fetched, number);
        let from = if behind_x { Source::Reg(X) } else { Source::Imm(at) };
        self.code.alu64(Alu::Mov, Reg::R2, from);
        if behind_x {
            let most = Source::Imm(LONGEST_FRAME - at - u32::from(bytes));
            self.code.jump_if(Jump::Greater, Reg::R2, most, failure);
            self.code.alu64(Alu::Add, Reg::R2, Source::Imm(at));
        }
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(CTX));
        self.code.alu64(Alu::Mov, Reg::R3, Source::Reg(Reg::R10));
        self.code.alu64(Alu::Add, Reg::R3, Source::Imm(SCRATCH as u32));
        self.code.alu64(Alu::Mov, Reg::R4, Source::Imm(bytes.into()));
        self.code.call(Helper::XdpLoadBytes);
        self.code.jump_if(Jump::NotEqual, Reg::R0, Source::Imm(0), failure);
        self.code.load(Width::of(bytes), into, Reg::R10, SCRATCH);
        self.code.swap_to_host(Width::of(bytes), into);
    }

    /// The packet's length. It is asked for once.
    fn length(&mut self, into: Reg) {
        let word = self.loads.length_word().map(kept);
        let known = Label::Behind(self.code.len());
        if let Some(word) = word {
            self.code.load(Width::Word, into, Reg::R10, word);
            self.code.jump32_if(Jump::NotEqual, into, Source::Imm(UNKNOWN), known);
        }
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(CTX));
        self.code.call(Helper::XdpLength);
        self.code.alu32(Alu::Mov, into, Source::Reg(Reg::R0));
        if let Some(word) = word {
            self.code.store(Reg::R10, word, Source::Reg(into));
            self.code.place(known);
        }
    }

    fn header_length(&mut self) {
        self.code.alu32(Alu::And, X, Source::Imm(15));
        self.code.alu32(Alu::ShiftLeft, X, Source::Imm(2));
    }

    /// What is the same in both versions.
    fn common(&mut self, version: Version, number: usize) {
        match self.program.operations[number] {
            Operation::Constant(into, value) => {
                self.code.alu32(Alu::Mov, reg(into), Source::Imm(value));
            }
            Operation::Length(into) => self.length(reg(into)),
            Operation::Load(into, from) => {
                self.code.load(Width::Word, reg(into), Reg::R10, memory(from));
            }
            Operation::Store(from, into) => {
                self.code.store(Reg::R10, memory(into), Source::Reg(reg(from)));
            }
            Operation::Compute(arithmetic, operand) => {
                self.compute(arithmetic, operand, self.failure(version, number));
            }
            Operation::Negate => self.code.alu32(Alu::Neg, A, Source::Imm(0)),
            Operation::CopyToX => self.code.alu32(Alu::Mov, X, Source::Reg(A)),
            Operation::CopyToA => self.code.alu32(Alu::Mov, A, Source::Reg(X)),
            Operation::Note(bit) => {
                self.code.load(Width::Word, Reg::R1, Reg::R10, note_word(bit));
                self.code.alu32(Alu::And, Reg::R1, Source::Imm(!(1 << (bit % 32))));
                self.code.store(Reg::R10, note_word(bit), Source::Reg(Reg::R1));
            }
            // Written by those who call, by go_on(), or not at all. A rule has no ReturnA.
            Operation::Packet { .. }
            | Operation::HeaderLength(_)
            | Operation::Branch { .. }
            | Operation::ReturnA
            | Operation::Jump(_)
            | Operation::Return(_) => {}
        }
    }

    fn compute(&mut self, arithmetic: Arithmetic, operand: Operand, failure: Label) {
        let by_x = operand == Operand::X;
        match arithmetic {
            Arithmetic::Div | Arithmetic::Mod if by_x => {
                self.code.jump32_if(Jump::Equal, X, Source::Imm(0), failure);
            }
            // All bits are shifted out. eBPF would take X modulo 32: nothing is left to shift then.
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight if by_x => {
                let behind = Label::Behind(self.code.len());
                self.code.jump32_if(Jump::Less, X, Source::Imm(32), behind);
                self.code.alu32(Alu::Mov, A, Source::Imm(0));
                self.code.place(behind);
            }
            _ => {}
        }
        self.code.alu32(alu(arithmetic), A, source(operand));
    }

    /// From an instruction to those that follow it: by a jump, or, if that one is returned, without.
    fn go_on(&mut self, version: Version, number: usize) -> Option<Label> {
        let last = match self.program.operations[number] {
            Operation::Branch { condition, operand, then, otherwise } => {
                let then = self.label(version, then);
                let otherwise = self.label(version, otherwise);
                match opposite(condition) {
                    _ if then == otherwise => then,
                    Some(opposite) if self.follows(version, number, then) => {
                        self.code.jump32_if(opposite, A, source(operand), otherwise);
                        then
                    }
                    _ => {
                        self.code.jump32_if(jump(condition), A, source(operand), then);
                        otherwise
                    }
                }
            }
            _ => self.label(version, number + 1),
        };
        if self.follows(version, number, last) {
            return Some(last);
        }
        self.code.jump(last);
        None
    }

    /// Whether nothing will be written between an instruction and this place.
    fn follows(&self, version: Version, number: usize, place: Label) -> bool {
        let later = (number + 1..self.program.operations.len())
            .filter(|number| !self.is_passed_over(*number))
            .map(|number| Label::At(version, number));
        later.into_iter().find(|label| *label == place || self.code.is_used(*label)) == Some(place)
    }
}

/// So many bytes, or all of the header that they are in.
fn with_headers(end: u32) -> u32 {
    HEADERS.into_iter().find(|header| end <= *header).unwrap_or(end)
}

/// What the words of notes are at first: they are inverted, because the verifier tells a word that is
/// zero from one that is not, and would look at what follows for each.
pub(crate) const NO_NOTES: u32 = u32::MAX;

/// Where the word is that has this bit of the result, inverted.
pub(crate) fn note_word(bit: u32) -> i16 {
    kept(KEPT_WORDS + bit as usize / 32)
}

/// Where a kept word is on the stack: never at a multiple of 8, where the verifier would remember
/// what is stored, and look at what follows for each value that was compared with it.
const fn kept(word: usize) -> i16 {
    MEMORY_BASE - 4 - 8 * word as i16
}

/// Where a word of memory is on the stack.
fn memory(word: usize) -> i16 {
    MEMORY_BASE + 4 * word as i16
}

fn reg(register: Register) -> Reg {
    match register {
        Register::A => A,
        Register::X => X,
    }
}

fn source(operand: Operand) -> Source {
    match operand {
        Operand::Constant(value) => Source::Imm(value),
        Operand::X => Source::Reg(X),
    }
}

fn alu(arithmetic: Arithmetic) -> Alu {
    match arithmetic {
        Arithmetic::Add => Alu::Add,
        Arithmetic::Sub => Alu::Sub,
        Arithmetic::Mul => Alu::Mul,
        Arithmetic::Div => Alu::Div,
        Arithmetic::Mod => Alu::Mod,
        Arithmetic::And => Alu::And,
        Arithmetic::Or => Alu::Or,
        Arithmetic::Xor => Alu::Xor,
        Arithmetic::ShiftLeft => Alu::ShiftLeft,
        Arithmetic::ShiftRight => Alu::ShiftRight,
    }
}

fn jump(condition: Condition) -> Jump {
    match condition {
        Condition::Equal => Jump::Equal,
        Condition::Greater => Jump::Greater,
        Condition::GreaterOrEqual => Jump::GreaterOrEqual,
        Condition::AnyBit => Jump::AnyBit,
    }
}

fn opposite(condition: Condition) -> Option<Jump> {
    match condition {
        Condition::Equal => Some(Jump::NotEqual),
        Condition::Greater => Some(Jump::LessOrEqual),
        Condition::GreaterOrEqual => Some(Jump::Less),
        Condition::AnyBit => None,
    }
}
