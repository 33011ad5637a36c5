//! Instructions of eBPF.

/// An instruction of eBPF, laid out as the kernel's `struct bpf_insn` on a little-endian machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Destination register in the low half, source register in the high one.
    pub registers: u8,
    /// Displacement of a jump, in instructions, or of a memory access, in bytes.
    pub offset: i16,
    /// Immediate value.
    pub immediate: i32,
}

impl Instruction {
    /// From its parts.
    pub const fn new(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Self {
        Self { code, registers: src << 4 | dst & 15, offset, immediate }
    }
}
