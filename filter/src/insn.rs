//! Instructions of eBPF, and an assembler that knows as much of them as is needed here.
//! (Documentation/bpf/standardization/instruction-set.rst, RFC 9669.)

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Most instructions of a program of rules: all its jumps stay within the 15 bits that eBPF has for
/// them.
pub const MOST_JOINED: usize = 1 << 15;

/// An instruction of eBPF: the kernel's `struct bpf_insn`, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation code (`BPF_CLASS | BPF_OP | BPF_SRC`).
    pub code: u8,
    /// Destination and source register, four bits each: where the machine is little-endian, the
    /// destination in the low ones.
    pub registers: u8,
    /// Displacement of a jump, in instructions, or of a memory access, in bytes.
    pub offset: i16,
    /// Immediate value.
    pub immediate: i32,
}

impl Instruction {
    /// An instruction in the byte order of this machine.
    pub const fn new(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Self {
        let registers =
            if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        Self { code, registers, offset, immediate }
    }

    /// Number of the destination register.
    pub const fn dst(&self) -> u8 {
        if cfg!(target_endian = "little") { self.registers & 15 } else { self.registers >> 4 }
    }

    /// Number of the source register, or what the field says instead.
    pub const fn src(&self) -> u8 {
        if cfg!(target_endian = "little") { self.registers >> 4 } else { self.registers & 15 }
    }
}

/// A register. R0 holds results, R1 to R5 arguments, which calls destroy; R10 is the end of the
/// stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R6 = 6,
    R7,
    R8,
    R9,
    R10,
}

/// The second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Imm(u32),
    Reg(Reg),
}

/// How much memory an access is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Byte,
    Half,
    Word,
}

impl Width {
    /// 1, 2 or 4 bytes.
    pub(crate) fn of(bytes: u8) -> Self {
        match bytes {
            1 => Self::Byte,
            2 => Self::Half,
            _ => Self::Word,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Byte => 0x10,
        }
    }
}

/// Arithmetic, for either width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Neg = 0x80,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// Conditions; all unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Jump {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// Helpers of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Helper {
    MapLookup = 1,
    TailCall = 12,
    XdpLength = 188,
    XdpLoadBytes = 189,
}

const LDX_MEM: u8 = 0x61;
const ST_MEM: u8 = 0x62;
const STX_MEM: u8 = 0x63;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const TO_BIG_ENDIAN: u8 = 0xdc;
const LD_IMM64: u8 = 0x18;
const PSEUDO_MAP_FD: u8 = 1;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Writes instructions down, jumps by label: each label is placed once, and only forward jumps lead
/// to it.
#[derive(Debug)]
pub(crate) struct Assembler<Label> {
    code: Vec<Instruction>,
    places: HashMap<Label, usize>,
    jumps: Vec<(usize, Label)>,
    used: HashSet<Label>,
}

impl<Label: Copy + Eq + Hash> Assembler<Label> {
    pub(crate) fn new() -> Self {
        Self { code: Vec::new(), places: HashMap::new(), jumps: Vec::new(), used: HashSet::new() }
    }

    /// Instructions up to now.
    pub(crate) fn len(&self) -> usize {
        self.code.len()
    }

    /// The next instruction is where jumps to this label lead.
    pub(crate) fn place(&mut self, label: Label) {
        self.places.insert(label, self.code.len());
    }

    /// Whether a jump leads to this label.
    pub(crate) fn is_used(&self, label: Label) -> bool {
        self.used.contains(&label)
    }

    /// dst = dst op source, in 32 bits; the upper half becomes zero.
    pub(crate) fn alu32(&mut self, op: Alu, dst: Reg, source: Source) {
        self.operate(ALU32 | op as u8, dst, source, 0);
    }

    /// dst = dst op source, in 64 bits; an immediate is extended by its sign.
    pub(crate) fn alu64(&mut self, op: Alu, dst: Reg, source: Source) {
        self.operate(ALU64 | op as u8, dst, source, 0);
    }

    /// dst = memory at base + offset.
    pub(crate) fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) {
        self.push(LDX_MEM | width.code(), dst as u8, base as u8, offset, 0);
    }

    /// Word of memory at base + offset = source.
    pub(crate) fn store(&mut self, base: Reg, offset: i16, source: Source) {
        match source {
            Source::Imm(value) => self.push(ST_MEM, base as u8, 0, offset, value as i32),
            Source::Reg(reg) => self.push(STX_MEM, base as u8, reg as u8, offset, 0),
        }
    }

    /// Converts a loaded value from network byte order to the machine's.
    pub(crate) fn swap_to_host(&mut self, width: Width, reg: Reg) {
        match width {
            Width::Byte => {}
            Width::Half => self.push(TO_BIG_ENDIAN, reg as u8, 0, 0, 16),
            Width::Word => self.push(TO_BIG_ENDIAN, reg as u8, 0, 0, 32),
        }
    }

    /// To the label where the condition holds between the low 32 bits of `left` and `right`.
    pub(crate) fn jump32_if(&mut self, jump: Jump, left: Reg, right: Source, to: Label) {
        self.jump_from_here(to);
        self.operate(JMP32 | jump as u8, left, right, 0);
    }

    /// The same with all 64 bits.
    pub(crate) fn jump_if(&mut self, jump: Jump, left: Reg, right: Source, to: Label) {
        self.jump_from_here(to);
        self.operate(JMP | jump as u8, left, right, 0);
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.jump_from_here(to);
        self.push(JMP, 0, 0, 0, 0);
    }

    /// dst = the map behind a file descriptor; the kernel puts it in when it loads the program.
    pub(crate) fn map(&mut self, dst: Reg, fd: i32) {
        self.push(LD_IMM64, dst as u8, PSEUDO_MAP_FD, 0, fd);
        self.push(0, 0, 0, 0, 0);
    }

    /// R0 = what the helper returns for R1 to R5, whose values are lost.
    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(CALL, 0, 0, 0, helper as i32);
    }

    /// The end; R0 is the verdict.
    pub(crate) fn exit(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// The end with this verdict.
    pub(crate) fn exit_with(&mut self, verdict: u32) {
        self.alu64(Alu::Mov, Reg::R0, Source::Imm(verdict));
        self.exit();
    }

    /// The program. Every label that is used must have been placed.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (from, to) in self.jumps {
            let skipped = self.places[&to] - from - 1;
            self.code[from].offset = i16::try_from(skipped)
                .expect("MOST_INSTRUCTIONS and MOST_JOINED keep programs that short");
        }
        self.code
    }

    fn jump_from_here(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.used.insert(to);
    }

    fn operate(&mut self, code: u8, dst: Reg, source: Source, offset: i16) {
        match source {
            Source::Imm(value) => self.push(code, dst as u8, 0, offset, value as i32),
            Source::Reg(src) => self.push(code | 8, dst as u8, src as u8, offset, 0),
        }
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction::new(code, dst, src, offset, immediate));
    }
}
