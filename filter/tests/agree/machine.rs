//! An interpreter of the eBPF that the translator writes. It believes nothing: every access must be
//! within the packet's linear part, the stack or the context, and every value must have been set.
//! What it accepts the kernel's verifier need not (tests/bpf asks that one); what it refuses is
//! wrong.

use ringway_filter::Instruction;

const CONTEXT: u64 = 0x1_0000_0000;
const STACK_END: u64 = 0x2_0000_0000;
const STACK: u64 = 512;
const DATA: u64 = 0x3_0000_0000;

/// Helpers, by their numbers in linux/bpf.h.
pub const XDP_GET_BUFF_LEN: i32 = 188;
const XDP_LOAD_BYTES: i32 = 189;

/// What a program returned, and what it did for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub verdict: u64,
    pub instructions: usize,
    /// Where it read the packet in place.
    pub loads: Vec<u64>,
    pub calls: Vec<i32>,
}

struct Machine<'a> {
    frame: &'a [u8],
    linear: usize,
    registers: [Option<u64>; 11],
    stack: [Option<u8>; STACK as usize],
    loads: Vec<u64>,
    calls: Vec<i32>,
}

/// Runs a program on a frame whose first `linear` bytes are in its linear part.
pub fn run(program: &[Instruction], frame: &[u8], linear: usize) -> Ran {
    let mut machine = Machine {
        frame,
        linear,
        registers: [None; 11],
        stack: [None; STACK as usize],
        loads: Vec::new(),
        calls: Vec::new(),
    };
    machine.registers[1] = Some(CONTEXT);
    machine.registers[10] = Some(STACK_END);
    let (mut at, mut instructions) = (0, 0);
    loop {
        let instruction = program[at];
        instructions += 1;
        at += 1;
        match instruction.code & 7 {
            1..=3 => machine.access(instruction),
            4 | 7 => machine.compute(instruction),
            _ => match instruction.code {
                0x95 => {
                    let verdict = machine.get(0);
                    let Machine { loads, calls, .. } = machine;
                    return Ran { verdict, instructions, loads, calls };
                }
                0x85 => machine.call(instruction.immediate),
                code if code & 0xf0 == 0 || machine.holds(instruction) => {
                    assert!(instruction.offset >= 0, "a jump backward");
                    at += instruction.offset as usize;
                }
                _ => {}
            },
        }
    }
}

impl Machine<'_> {
    fn get(&self, register: u8) -> u64 {
        self.registers[register as usize].unwrap_or_else(|| panic!("r{register} was never set"))
    }

    fn set(&mut self, register: u8, value: u64) {
        assert_ne!(register, 10, "the stack's end is not to be written");
        self.registers[register as usize] = Some(value);
    }

    /// The second operand of arithmetic and jumps, extended by its sign.
    fn operand(&self, instruction: Instruction) -> u64 {
        if instruction.code & 8 == 0 {
            i64::from(instruction.immediate) as u64
        } else {
            self.get(instruction.src())
        }
    }

    fn compute(&mut self, instruction: Instruction) {
        let wide = instruction.code & 7 == 7;
        let dst = instruction.dst();
        if instruction.code & 0xf0 == 0xd0 {
            let value = self.get(dst);
            let swapped = match instruction.immediate {
                16 => u64::from((value as u16).to_be()),
                _ => u64::from((value as u32).to_be()),
            };
            return self.set(dst, swapped);
        }
        let right = self.operand(instruction);
        let left = if instruction.code & 0xf0 == 0xb0 { 0 } else { self.get(dst) };
        let (left, right) =
            if wide { (left, right) } else { (left & 0xffff_ffff, right & 0xffff_ffff) };
        let value = match instruction.code & 0xf0 {
            0x00 => left.wrapping_add(right),
            0x10 => left.wrapping_sub(right),
            0x20 => left.wrapping_mul(right),
            0x30 => left.checked_div(right).expect("division by zero"),
            0x40 => left | right,
            0x50 => left & right,
            0x60 => left << (right & if wide { 63 } else { 31 }),
            0x70 => left >> (right & if wide { 63 } else { 31 }),
            0x80 => left.wrapping_neg(),
            0x90 => left.checked_rem(right).expect("division by zero"),
            0xa0 => left ^ right,
            0xb0 => right,
            _ => panic!("unknown: {instruction:?}"),
        };
        self.set(dst, if wide { value } else { value & 0xffff_ffff });
    }

    fn holds(&self, instruction: Instruction) -> bool {
        let (mut left, mut right) = (self.get(instruction.dst()), self.operand(instruction));
        if instruction.code & 7 == 6 {
            (left, right) = (left & 0xffff_ffff, right & 0xffff_ffff);
        }
        match instruction.code & 0xf0 {
            0x10 => left == right,
            0x20 => left > right,
            0x30 => left >= right,
            0x40 => left & right != 0,
            0x50 => left != right,
            0xa0 => left < right,
            0xb0 => left <= right,
            _ => panic!("unknown: {instruction:?}"),
        }
    }

    fn access(&mut self, instruction: Instruction) {
        let bytes = [4, 2, 1, 8][(instruction.code >> 3 & 3) as usize];
        let place = |base: u64| base.wrapping_add_signed(instruction.offset.into());
        if instruction.code & 7 == 1 {
            let value = self.read(place(self.get(instruction.src())), bytes);
            return self.set(instruction.dst(), value);
        }
        let value = match instruction.code & 7 {
            2 => instruction.immediate as u64,
            _ => self.get(instruction.src()),
        };
        self.write(place(self.get(instruction.dst())), &value.to_le_bytes()[..bytes]);
    }

    fn read(&mut self, at: u64, bytes: usize) -> u64 {
        match (at, bytes) {
            (CONTEXT, 4) => return DATA,
            (_, 4) if at == CONTEXT + 4 => return DATA + self.linear as u64,
            _ => {}
        }
        self.loads.extend(at.checked_sub(DATA));
        let mut value = [0; 8];
        for (n, byte) in value[..bytes].iter_mut().enumerate() {
            let at = at + n as u64;
            *byte = match at.checked_sub(DATA) {
                Some(offset) => {
                    assert!((offset as usize) < self.linear, "beyond the packet: {offset}");
                    self.frame[offset as usize]
                }
                None => self.stack[stack(at)].expect("never written on the stack"),
            };
        }
        u64::from_le_bytes(value)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            self.stack[stack(at + n as u64)] = Some(*byte);
        }
    }

    fn call(&mut self, helper: i32) {
        assert_eq!(self.get(1), CONTEXT);
        self.calls.push(helper);
        let result = match helper {
            XDP_GET_BUFF_LEN => self.frame.len() as u64,
            XDP_LOAD_BYTES => {
                let (offset, length) = (self.get(2) as usize, self.get(4) as usize);
                match self.frame.get(offset..offset + length) {
                    Some(bytes) => {
                        let (into, bytes) = (self.get(3), bytes.to_vec());
                        self.write(into, &bytes);
                        0
                    }
                    None => -22i64 as u64,
                }
            }
            _ => panic!("unknown helper {helper}"),
        };
        self.registers[1..=5].fill(None);
        self.set(0, result);
    }
}

fn stack(at: u64) -> usize {
    let below = STACK_END.checked_sub(at).filter(|below| (1..=STACK).contains(below));
    (STACK - below.unwrap_or_else(|| panic!("no memory of the program's: {at:#x}"))) as usize
}
