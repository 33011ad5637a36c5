//! Classic BPF to eBPF, for XDP.
//!
//! A program has two copies. The first reads the packet's linear part in place, after a comparison
//! with its end that also serves the reads after it. Where a comparison fails, the second copy goes
//! on with the same instruction: it has every byte fetched by the kernel, which also finds those in
//! fragments (`xdp.frags`), and of a packet that is merely too short says so. It never leads back.

use crate::classic::{Arithmetic, Condition, LONGEST_FRAME, MEMORY, Operand, Operation, Register};
use crate::insn::{Alu, Assembler, Helper, Jump, Reg, Source, Width};

/// Where things are, all through a program.
pub(crate) const CTX: Reg = Reg::R6;
const A: Reg = Reg::R7;
const X: Reg = Reg::R8;
const DATA: Reg = Reg::R9;

/// On the stack: eight bytes for calls, then the memory of the program.
pub(crate) const SCRATCH: i16 = -8;
const MEMORY_BASE: i16 = SCRATCH - 4 * MEMORY as i16;

/// `struct xdp_md`.
const CTX_DATA: i16 = 0;
const CTX_DATA_END: i16 = 4;

/// Bytes that are worth reading in place: a packet's linear part is within one page.
const LINEAR: u32 = 4096;

/// No whole packet is shorter than Ethernet with an IPv4, then with an IPv6 header: to ask for all
/// of it costs nothing and spares further comparisons.
const HEADERS: [u32; 2] = [34, 54];

/// Places that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// An instruction in the first copy.
    InPlace(usize),
    /// The same in the second one.
    Fetched(usize),
    /// Behind an instruction of the translation itself.
    Behind(usize),
    Match,
    NoMatch,
}

type Copy = fn(usize) -> Label;

struct Translator<'a> {
    operations: &'a [Operation],
    code: Assembler<Label>,
}

/// Everything but what happens at [`Label::Match`] and [`Label::NoMatch`], which is for the caller
/// to place, where they are used.
pub(crate) fn translate(operations: &[Operation]) -> Assembler<Label> {
    let mut translator = Translator { operations, code: Assembler::new() };
    translator.begin();
    let checked = translator.lengths_checked();
    translator.copy_in_place(&checked);
    translator.copy_fetched();
    translator.code
}

impl Translator<'_> {
    fn begin(&mut self) {
        self.code.alu64(Alu::Mov, CTX, Source::Reg(Reg::R1));
        self.code.load(Width::Word, DATA, CTX, CTX_DATA);
        self.code.alu32(Alu::Mov, A, Source::Imm(0));
        self.code.alu32(Alu::Mov, X, Source::Imm(0));
        if self.is_passed_over(0) {
            let first = self.label(Label::InPlace, 0);
            self.code.jump(first);
        }
    }

    /// For each instruction that can be reached in the first copy: how many bytes are known to be
    /// there when it is reached.
    fn lengths_checked(&self) -> Vec<Option<u32>> {
        let mut checked: Vec<Option<u32>> = vec![None; self.operations.len()];
        checked[0] = Some(0);
        for number in 0..self.operations.len() {
            let Some(before) = checked[number] else { continue };
            let after = match self.read_at_fixed_place(number) {
                Some(end) => before.max(with_headers(end)),
                None => before,
            };
            if self.reads_beyond_linear(number) {
                continue;
            }
            for next in self.operations[number].successors(number) {
                checked[next] = Some(checked[next].map_or(after, |other| other.min(after)));
            }
        }
        checked
    }

    /// Where the bytes end that an instruction reads, unless X decides.
    fn read_at_fixed_place(&self, number: usize) -> Option<u32> {
        match self.operations[number] {
            Operation::Packet { bytes, at, behind_x: false } => Some(at + u32::from(bytes)),
            Operation::HeaderLength(at) => Some(at + 1),
            _ => None,
        }
    }

    fn reads_beyond_linear(&self, number: usize) -> bool {
        match self.operations[number] {
            Operation::Packet { bytes, at, .. } => at + u32::from(bytes) > LINEAR,
            Operation::HeaderLength(at) => at >= LINEAR,
            _ => false,
        }
    }

    fn copy_in_place(&mut self, checked: &[Option<u32>]) {
        for (number, next) in self.written(|number| checked[number].is_some()) {
            self.code.place(Label::InPlace(number));
            if self.reads_beyond_linear(number) {
                self.code.jump(Label::Fetched(number));
                continue;
            }
            match self.operations[number] {
                Operation::Packet { bytes, at, behind_x: true } => {
                    self.read_behind_x(number, bytes, at);
                }
                Operation::Packet { bytes, at, behind_x: false } => {
                    self.check(number, checked[number], at + u32::from(bytes));
                    self.read(Width::of(bytes), A, DATA, at);
                }
                Operation::HeaderLength(at) => {
                    self.check(number, checked[number], at + 1);
                    self.read(Width::Byte, X, DATA, at);
                    self.header_length();
                }
                other => self.common(other),
            }
            self.go_on(Label::InPlace, number, next);
        }
    }

    fn copy_fetched(&mut self) {
        let entries = (0..self.operations.len()).map(Label::Fetched);
        let mut reached: Vec<bool> = entries.map(|entry| self.code.is_used(entry)).collect();
        for number in 0..reached.len() {
            if reached[number] {
                self.operations[number].successors(number).for_each(|next| reached[next] = true);
            }
        }
        for (number, next) in self.written(|number| reached[number]) {
            self.code.place(Label::Fetched(number));
            match self.operations[number] {
                Operation::Packet { bytes, at, behind_x } => self.fetch(bytes, A, at, behind_x),
                Operation::HeaderLength(at) => {
                    self.fetch(1, X, at, false);
                    self.header_length();
                }
                other => self.common(other),
            }
            self.go_on(Label::Fetched, number, next);
        }
    }

    /// The instructions that a copy has, each with the one that follows it there.
    fn written(&self, reached: impl Fn(usize) -> bool) -> Vec<(usize, Option<usize>)> {
        let all = 0..self.operations.len();
        let written: Vec<usize> =
            all.filter(|number| reached(*number) && !self.is_passed_over(*number)).collect();
        let following = written.iter().copied().skip(1).map(Some).chain([None]);
        written.iter().copied().zip(following).collect()
    }

    /// Jumps to it lead where it leads.
    fn is_passed_over(&self, number: usize) -> bool {
        matches!(self.operations[number], Operation::Return(_) | Operation::Jump(_))
    }

    /// Where to go for an instruction.
    fn label(&self, copy: Copy, mut number: usize) -> Label {
        loop {
            match self.operations[number] {
                Operation::Jump(to) => number = to,
                Operation::Return(true) => return Label::Match,
                Operation::Return(false) => return Label::NoMatch,
                _ => return copy(number),
            }
        }
    }

    /// To the second copy unless the packet's linear part has so many bytes.
    fn check(&mut self, number: usize, checked: Option<u32>, end: u32) {
        if checked >= Some(end) {
            return;
        }
        self.code.load(Width::Word, Reg::R2, CTX, CTX_DATA_END);
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(DATA));
        self.code.alu64(Alu::Add, Reg::R1, Source::Imm(with_headers(end)));
        let beyond = Source::Reg(Reg::R2);
        self.code.jump_if(Jump::Greater, Reg::R1, beyond, Label::Fetched(number));
    }

    fn read(&mut self, width: Width, into: Reg, base: Reg, at: u32) {
        self.code.load(width, into, base, at as i16);
        self.code.swap_to_host(width, into);
    }

    fn read_behind_x(&mut self, number: usize, bytes: u8, at: u32) {
        let end = at + u32::from(bytes);
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(X));
        let most = Source::Imm(LONGEST_FRAME - end);
        self.code.jump_if(Jump::Greater, Reg::R1, most, Label::NoMatch);
        // It changes nothing, but where a comparison with X never goes this way, the verifier of
        // 6.1 goes all the same, with a least value above the greatest: of that no pointer can be
        // made, and this ends it.
        self.code.alu64(Alu::And, Reg::R1, Source::Imm(0xffff));
        self.code.load(Width::Word, Reg::R2, CTX, CTX_DATA_END);
        self.code.alu64(Alu::Add, Reg::R1, Source::Reg(DATA));
        self.code.alu64(Alu::Mov, Reg::R3, Source::Reg(Reg::R1));
        self.code.alu64(Alu::Add, Reg::R3, Source::Imm(end));
        let beyond = Source::Reg(Reg::R2);
        self.code.jump_if(Jump::Greater, Reg::R3, beyond, Label::Fetched(number));
        self.read(Width::of(bytes), A, Reg::R1, at);
    }

    /// Reads with bpf_xdp_load_bytes, which also reaches a packet's later buffers.
    fn fetch(&mut self, bytes: u8, into: Reg, at: u32, behind_x: bool) {
        let from = if behind_x { Source::Reg(X) } else { Source::Imm(at) };
        self.code.alu64(Alu::Mov, Reg::R2, from);
        if behind_x {
            let most = Source::Imm(LONGEST_FRAME - at - u32::from(bytes));
            self.code.jump_if(Jump::Greater, Reg::R2, most, Label::NoMatch);
            self.code.alu64(Alu::Add, Reg::R2, Source::Imm(at));
        }
        self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(CTX));
        self.code.alu64(Alu::Mov, Reg::R3, Source::Reg(Reg::R10));
        self.code.alu64(Alu::Add, Reg::R3, Source::Imm(SCRATCH as u32));
        self.code.alu64(Alu::Mov, Reg::R4, Source::Imm(bytes.into()));
        self.code.call(Helper::XdpLoadBytes);
        self.code.jump_if(Jump::NotEqual, Reg::R0, Source::Imm(0), Label::NoMatch);
        self.code.load(Width::of(bytes), into, Reg::R10, SCRATCH);
        self.code.swap_to_host(Width::of(bytes), into);
    }

    fn header_length(&mut self) {
        self.code.alu32(Alu::And, X, Source::Imm(15));
        self.code.alu32(Alu::ShiftLeft, X, Source::Imm(2));
    }

    /// The part that both copies share.
    fn common(&mut self, operation: Operation) {
        match operation {
            Operation::Constant(into, value) => {
                self.code.alu32(Alu::Mov, reg(into), Source::Imm(value));
            }
            Operation::Length(into) => {
                self.code.alu64(Alu::Mov, Reg::R1, Source::Reg(CTX));
                self.code.call(Helper::XdpLength);
                self.code.alu32(Alu::Mov, reg(into), Source::Reg(Reg::R0));
            }
            Operation::Load(into, from) => {
                self.code.load(Width::Word, reg(into), Reg::R10, memory(from));
            }
            Operation::Store(from, into) => {
                self.code.store(Reg::R10, memory(into), Source::Reg(reg(from)));
            }
            Operation::Compute(arithmetic, operand) => self.compute(arithmetic, operand),
            Operation::Negate => self.code.alu32(Alu::Neg, A, Source::Imm(0)),
            Operation::CopyToX => self.code.alu32(Alu::Mov, X, Source::Reg(A)),
            Operation::CopyToA => self.code.alu32(Alu::Mov, A, Source::Reg(X)),
            // Written by those who call, by go_on(), or not at all.
            Operation::Packet { .. }
            | Operation::HeaderLength(_)
            | Operation::Branch { .. }
            | Operation::ReturnA
            | Operation::Jump(_)
            | Operation::Return(_) => {}
        }
    }

    fn compute(&mut self, arithmetic: Arithmetic, operand: Operand) {
        let by_x = operand == Operand::X;
        match arithmetic {
            Arithmetic::Div | Arithmetic::Mod if by_x => {
                self.code.jump32_if(Jump::Equal, X, Source::Imm(0), Label::NoMatch);
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

    /// From an instruction of a copy to its successors, of which the copy may have `next` right
    /// behind it.
    fn go_on(&mut self, copy: Copy, number: usize, next: Option<usize>) {
        let next = next.map(copy);
        let last = match self.operations[number] {
            Operation::Branch { condition, operand, then, otherwise } => {
                let (then, otherwise) = (self.label(copy, then), self.label(copy, otherwise));
                let operand = source(operand);
                match opposite(condition) {
                    Some(opposite) if Some(then) == next => {
                        self.code.jump32_if(opposite, A, operand, otherwise);
                        then
                    }
                    _ => {
                        self.code.jump32_if(jump(condition), A, operand, then);
                        otherwise
                    }
                }
            }
            Operation::ReturnA => {
                self.code.jump32_if(Jump::Equal, A, Source::Imm(0), Label::NoMatch);
                Label::Match
            }
            _ => self.label(copy, number + 1),
        };
        if Some(last) != next {
            self.code.jump(last);
        }
    }
}

/// So many bytes, or all of the header that they are in.
fn with_headers(end: u32) -> u32 {
    HEADERS.into_iter().find(|header| end <= *header).unwrap_or(end)
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
