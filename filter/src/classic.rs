//! Classic BPF, the language that libpcap compiles to: a machine with an accumulator A, an index
//! register X and 16 words of memory, all of 32 bits and unsigned. What it loads from the packet is
//! in network byte order. A load beyond the packet's end, or a division by zero, ends the program
//! without a match.
//!
//! McCanne and Jacobson, "The BSD Packet Filter" (USENIX 1993); libpcap's bpf_filter.c.

use crate::Error;

/// Words of memory.
pub(crate) const MEMORY: usize = 16;

/// Most instructions of a program. Twice as many as the longest filters that people write have; all
/// jumps of the translation stay within the 15 bits that eBPF has for them.
pub const MOST_INSTRUCTIONS: usize = 1024;

/// Longest frame, in bytes: the kernel reaches no further (net/core/filter.c, bpf_xdp_pointer).
pub(crate) const LONGEST_FRAME: u32 = 0xffff;

/// An instruction of classic BPF: libpcap's `struct bpf_insn`, the kernel's `struct sock_filter`.
/// In host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Classic {
    /// Operation.
    pub code: u16,
    /// Instructions to skip where a condition holds.
    pub jt: u8,
    /// Instructions to skip where it does not.
    pub jf: u8,
    /// Constant, offset in bytes, or instructions to skip.
    pub k: u32,
}

impl Classic {
    /// Whether it loads what a capturing kernel knows of a packet and is not in it (SKF_AD_OFF,
    /// linux/filter.h). The interpreter takes that for an offset beyond the packet's end.
    pub(crate) fn is_ancillary(&self) -> bool {
        matches!(self.code, 0x20 | 0x28 | 0x30) && self.k >= -0x1000i32 as u32
    }
}

/// An instruction. Targets of jumps are numbers of instructions, always later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A = bytes of the packet: 1, 2 or 4, at an offset that X may be added to.
    Packet { bytes: u8, at: u32, behind_x: bool },
    /// X = 4 * the low half of the byte at an offset: the length of an IPv4 header.
    HeaderLength(u32),
    /// Register = constant.
    Constant(Register, u32),
    /// Register = length of the packet.
    Length(Register),
    /// Register = word of memory.
    Load(Register, usize),
    /// Word of memory = register.
    Store(Register, usize),
    /// A = A op operand.
    Compute(Arithmetic, Operand),
    /// A = -A.
    Negate,
    /// X = A.
    CopyToX,
    /// A = X.
    CopyToA,
    /// On, unconditionally.
    Jump(usize),
    /// On by a condition on A.
    Branch { condition: Condition, operand: Operand, then: usize, otherwise: usize },
    /// The end, with a result: [`NO_MATCH`], [`MATCH`] or, of several rules, which one matched.
    Return(u16),
    /// The end: a match unless A is zero.
    ReturnA,
    /// A bit of the result becomes one. No filter has it: rules are joined by it.
    Note(u32),
}

pub(crate) const NO_MATCH: u16 = 0;
pub(crate) const MATCH: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    A,
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Constant(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    /// A and the operand have a bit in common.
    AnyBit,
}

impl Condition {
    pub(crate) fn holds(self, a: u32, operand: u32) -> bool {
        match self {
            Condition::Equal => a == operand,
            Condition::Greater => a > operand,
            Condition::GreaterOrEqual => a >= operand,
            Condition::AnyBit => a & operand != 0,
        }
    }
}

impl Operation {
    /// The instructions that may follow, for that of this number.
    pub(crate) fn successors(&self, number: usize) -> impl Iterator<Item = usize> + use<> {
        let (one, other) = match *self {
            Operation::Return(_) | Operation::ReturnA => (None, None),
            Operation::Jump(to) => (Some(to), None),
            Operation::Branch { then, otherwise, .. } => (Some(then), Some(otherwise)),
            _ => (Some(number + 1), None),
        };
        one.into_iter().chain(other)
    }

    /// The same where all instructions have moved on by so many.
    pub(crate) fn moved(self, by: usize) -> Self {
        match self {
            Operation::Jump(to) => Operation::Jump(to + by),
            Operation::Branch { condition, operand, then, otherwise } => {
                let (then, otherwise) = (then + by, otherwise + by);
                Operation::Branch { condition, operand, then, otherwise }
            }
            other => other,
        }
    }
}

/// What is known before each instruction, where several ways meet what they have in common; `None`
/// where nothing leads to it. `known`: what is known without a way. Jumps lead forward alone, so one
/// pass suffices.
pub(crate) fn forward<Known: Copy>(
    mut known: Vec<Option<Known>>,
    join: impl Fn(Known, Known) -> Known,
    mut step: impl FnMut(usize, Known) -> Vec<(usize, Known)>,
) -> Vec<Option<Known>> {
    for number in 0..known.len() {
        let Some(before) = known[number] else { continue };
        for (next, after) in step(number, before) {
            known[next] = Some(known[next].map_or(after, |other| join(other, after)));
        }
    }
    known
}

/// For [`forward`]: what is known when the program begins.
pub(crate) fn at_first<Known: Copy>(known: Known, instructions: usize) -> Vec<Option<Known>> {
    let mut all = vec![None; instructions];
    all[0] = Some(known);
    all
}

/// The program with all memory zero that it may read before it has written it. libpcap compiles
/// such programs (`not geneve`), its interpreter then takes what happens to lie on the stack, and
/// the verifier refuses them.
pub(crate) fn with_clear_memory(program: &[Classic]) -> Result<Vec<Classic>, Error> {
    let unwritten = read_unwritten(&decode(program)?);
    let words = (0..MEMORY as u32).filter(|word| unwritten & 1 << word != 0);
    // A is zero at the beginning.
    let clear = words.map(|word| Classic { code: 0x02, jt: 0, jf: 0, k: word });
    Ok(clear.chain(program.iter().copied()).collect())
}

/// Words of memory, as bits, that may be read before they are written.
fn read_unwritten(operations: &[Operation]) -> u16 {
    let mut unwritten = 0;
    forward(
        at_first(0u16, operations.len()),
        |one, other| one & other,
        |number, mut written| {
            match operations[number] {
                Operation::Store(_, word) => written |= 1 << word,
                Operation::Load(_, word) => unwritten |= 1 << word & !written,
                _ => {}
            }
            operations[number].successors(number).map(|next| (next, written)).collect()
        },
    );
    unwritten
}

/// Decodes the instructions of a program. Refuses those that libpcap's interpreter or the kernel's
/// would not run.
pub(crate) fn decode(program: &[Classic]) -> Result<Vec<Operation>, Error> {
    if program.len() > MOST_INSTRUCTIONS {
        return Err(Error::TooLong { instructions: program.len(), limit: MOST_INSTRUCTIONS });
    }
    let operations: Vec<Operation> = program
        .iter()
        .enumerate()
        .map(|(number, instruction)| {
            operation(number, *instruction, program.len())
                .map_err(|reason| Error::Invalid { number, reason })
        })
        .collect::<Result<_, _>>()?;
    match operations.last() {
        Some(Operation::Return(_) | Operation::ReturnA) => Ok(operations),
        _ => Err(Error::Invalid { number: program.len(), reason: "the program has no end" }),
    }
}

fn operation(
    number: usize,
    instruction: Classic,
    length: usize,
) -> Result<Operation, &'static str> {
    let Classic { code, k, .. } = instruction;
    let target = |skipped: u32| {
        let target = number + 1 + skipped as usize;
        if target < length { Ok(target) } else { Err("a jump leads out of the program") }
    };
    let memory =
        || if (k as usize) < MEMORY { Ok(k as usize) } else { Err("there is no such memory") };
    Ok(match code {
        0x20 => packet(4, k, false),
        0x28 => packet(2, k, false),
        0x30 => packet(1, k, false),
        0x40 => packet(4, k, true),
        0x48 => packet(2, k, true),
        0x50 => packet(1, k, true),
        0xb1 if k >= LONGEST_FRAME => Operation::Return(NO_MATCH),
        0xb1 => Operation::HeaderLength(k),
        0x00 => Operation::Constant(Register::A, k),
        0x01 => Operation::Constant(Register::X, k),
        0x80 => Operation::Length(Register::A),
        0x81 => Operation::Length(Register::X),
        0x60 => Operation::Load(Register::A, memory()?),
        0x61 => Operation::Load(Register::X, memory()?),
        0x02 => Operation::Store(Register::A, memory()?),
        0x03 => Operation::Store(Register::X, memory()?),
        0x05 if (k as i32) < 0 => {
            return Err("it loops, as `protochain` does, which cannot be translated");
        }
        0x05 => Operation::Jump(target(k)?),
        0x06 => Operation::Return(if k == 0 { NO_MATCH } else { MATCH }),
        0x16 => Operation::ReturnA,
        0x07 => Operation::CopyToX,
        0x87 => Operation::CopyToA,
        0x84 => Operation::Negate,
        _ if code & 7 == 4 => compute(code, k)?,
        _ if code & 7 == 5 => Operation::Branch {
            condition: condition(code)?,
            operand: operand(code, k),
            then: target(instruction.jt.into())?,
            otherwise: target(instruction.jf.into())?,
        },
        _ => return Err("it is unknown"),
    })
}

/// No packet has bytes behind the longest frame.
fn packet(bytes: u8, at: u32, behind_x: bool) -> Operation {
    match at.checked_add(bytes.into()) {
        Some(end) if end <= LONGEST_FRAME => Operation::Packet { bytes, at, behind_x },
        _ => Operation::Return(NO_MATCH),
    }
}

fn operand(code: u16, k: u32) -> Operand {
    if code & 8 == 0 { Operand::Constant(k) } else { Operand::X }
}

fn compute(code: u16, k: u32) -> Result<Operation, &'static str> {
    let operand = operand(code, k);
    let arithmetic = match code & !8 {
        0x04 => Arithmetic::Add,
        0x14 => Arithmetic::Sub,
        0x24 => Arithmetic::Mul,
        0x34 => Arithmetic::Div,
        0x44 => Arithmetic::Or,
        0x54 => Arithmetic::And,
        0x64 => Arithmetic::ShiftLeft,
        0x74 => Arithmetic::ShiftRight,
        0x94 => Arithmetic::Mod,
        0xa4 => Arithmetic::Xor,
        _ => return Err("it is unknown"),
    };
    match (arithmetic, operand) {
        (Arithmetic::Div | Arithmetic::Mod, Operand::Constant(0)) => Err("it divides by zero"),
        // As by X. libpcap's optimizer says so, too.
        (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(32..)) => {
            Ok(Operation::Constant(Register::A, 0))
        }
        _ => Ok(Operation::Compute(arithmetic, operand)),
    }
}

fn condition(code: u16) -> Result<Condition, &'static str> {
    match code & !8 {
        0x15 => Ok(Condition::Equal),
        0x25 => Ok(Condition::Greater),
        0x35 => Ok(Condition::GreaterOrEqual),
        0x45 => Ok(Condition::AnyBit),
        _ => Err("it is unknown"),
    }
}
