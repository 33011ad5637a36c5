//! Packet filters in the language of tcpdump (`tcp and host 192.0.2.7`), compiled by libpcap and
//! translated to eBPF, so that an XDP program can tell in a few nanoseconds whether a packet
//! matches.
//!
//! libpcap compiles an expression to classic BPF; [`Filter`] holds that, runs it by libpcap's own
//! interpreter ([`Filter::matches`]), and translates it: to a program that gives a verdict
//! ([`Filter::translate_to_verdict`]), or to one of a chain, which notes a match and goes on
//! ([`Filter::translate`]). [`first_match`] joins many filters, as rules, to one program. All always
//! say the same as the interpreter, for whole and truncated packets, whatever their fragments
//! (`xdp.frags`), up to 65 535 bytes. The verifier of Linux 6.1 and later takes them.
//!
//! ```
//! use ringway_filter::Filter;
//!
//! let filter = Filter::compile("udp and dst port 53", 65_535)?;
//! let mut frame = [0u8; 42];
//! frame[12..14].copy_from_slice(&[0x08, 0x00]); // IPv4
//! frame[14] = 0x45;
//! frame[23] = 17; // UDP
//! frame[36..38].copy_from_slice(&53u16.to_be_bytes());
//! assert!(filter.matches(&frame, 42));
//! frame[23] = 6; // TCP
//! assert!(!filter.matches(&frame, 42));
//!
//! // A program of type XDP that drops what matches (1) and passes on the rest (2), for BPF_PROG_LOAD.
//! let program = filter.translate_to_verdict(1, 2);
//! assert!(!program.is_empty());
//!
//! let wrong = Filter::compile("udp and dst prot 53", 65_535).unwrap_err();
//! assert!(wrong.to_string().ends_with("\n  udp and dst prot 53\n              ^^^^"), "{wrong}");
//! # Ok::<(), ringway_filter::Error>(())
//! ```
//!
//! **Frames** begin with an Ethernet header.
//!
//! **Names**: hosts and networks are addresses; nothing is ever looked up in DNS, or anywhere on
//! the network. Names of ports are those of /etc/services, names of protocols those of
//! /etc/protocols.
//!
//! **Not translated**: `protochain`, which loops; what is over [`MOST_INSTRUCTIONS`] when compiled,
//! about three hundred addresses; what only a capturing kernel knows of a packet (`inbound`,
//! `ifindex`).

#![warn(missing_docs)]

mod classic;
mod decision_tree;
mod error;
mod insn;
mod libpcap;
mod loads;
mod names;
mod position;
mod program;
mod range;
mod rules;
mod translate;

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};

use classic::{MATCH, NO_MATCH, Operation};
use decision_tree::Rule;

pub use classic::{Classic, MOST_INSTRUCTIONS};
pub use error::{Error, Result};
use insn::{Alu, Assembler, Helper, Jump, Reg, Source, Width};
pub use insn::{Instruction, MOST_JOINED};
pub use rules::{MOST_NOTES, MOST_RULES, Matched, OnMatch, first_match};
use translate::{CTX, Label, SCRATCH};

/// Longest expression, in bytes: about 250 addresses. The time that libpcap's optimizer takes grows
/// with the third power: long lists of ports take seconds, where ranges and networks take none.
pub const MOST_TEXT: usize = 4096;

/// A filter that has been compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    expression: String,
    classic: Vec<Classic>,
    operations: Vec<Operation>,
}

/// The surroundings of a filter program in a chain: where it notes a match, and where it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Per-CPU array of one element, which holds the mask of the captures that want the packet.
    pub state: BorrowedFd<'a>,
    /// Where in the element the mask is: bytes, a multiple of 4. The mask has 32 bits, in host byte
    /// order.
    pub mask_offset: u16,
    /// Number of the capture: its bit in the mask (0 is the lowest); below 32.
    pub index: u32,
    /// Where to go on: program arrays and places in them, tried in this order by tail calls. The
    /// places are constants to the program: the kernel turns such calls into direct jumps.
    pub onward: &'a [(BorrowedFd<'a>, u32)],
    /// XDP action when all of these have failed, too.
    pub last_resort: u32,
}

impl Filter {
    /// Compiles an expression. An empty one matches every packet. `snaplen` is what the filter
    /// returns for a match when other interpreters run it: how many bytes to keep; it does not
    /// limit what is looked at.
    ///
    /// # Errors
    /// [`Error::Syntax`], with the place; [`Error::NeverMatches`], as far as that can be told; too
    /// long.
    pub fn compile(expression: &str, snaplen: u32) -> Result<Self> {
        if expression.len() > MOST_TEXT {
            return Err(Error::TooMuchText { bytes: expression.len(), limit: MOST_TEXT });
        }
        let compiled = match CString::new(expression) {
            Ok(text) => libpcap::compile(&text, snaplen, true),
            Err(zero) => {
                let at = zero.nul_position()..zero.nul_position() + 1;
                return Err(syntax(expression, "a zero byte", at));
            }
        };
        let classic = match compiled {
            Ok(classic) => classic,
            Err(message) if message.ends_with("rejects all packets") => {
                return Err(Error::NeverMatches { expression: expression.to_owned() });
            }
            Err(message) => {
                let compiles = |text: &str| {
                    let text = CString::new(text);
                    text.is_ok_and(|text| libpcap::compile(&text, snaplen, false).is_ok())
                };
                let at = position::of_error(expression, compiles);
                return Err(syntax(expression, &message, at));
            }
        };
        let filter = Self::from_classic(&classic)?;
        let expression = expression.to_owned();
        if filter.classic.iter().any(Classic::is_ancillary) {
            return Err(Error::NotInPackets { expression });
        }
        match filter.can_match() {
            true => Ok(Self { expression, ..filter }),
            false => Err(Error::NeverMatches { expression }),
        }
    }

    /// A filter that is compiled already, as `tcpdump -ddd` prints it. Its registers and its memory
    /// are zero when it begins.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what no interpreter would run, and for loops; [`Error::TooLong`].
    pub fn from_classic(program: &[Classic]) -> Result<Self> {
        let classic = classic::with_clear_memory(program)?;
        let operations = classic::decode(&classic)?;
        Ok(Self { expression: String::new(), classic, operations })
    }

    /// The expression as it was given; empty for one that had none.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// As libpcap has compiled it.
    pub fn classic(&self) -> &[Classic] {
        &self.classic
    }

    /// Whether a packet matches, by libpcap's own interpreter. `frame`: what there is of it, from
    /// the Ethernet header on; `wire_len`: how long it was, in bytes.
    pub fn matches(&self, frame: &[u8], wire_len: u32) -> bool {
        libpcap::run(&self.classic, frame, wire_len) != 0
    }

    /// Whether a frame may match, as far as can be told: false is certain, for frames with a whole
    /// Ethernet header.
    pub fn can_match(&self) -> bool {
        range::can_match(&self.operations, None)
    }

    /// The same for frames of this ethertype, in host byte order.
    pub fn can_match_ethertype(&self, ethertype: u16) -> bool {
        range::can_match(&self.operations, Some(ethertype))
    }

    /// A program of type XDP (to be loaded with the frags flag) that sets the capture's bit in the
    /// mask if the packet matches, and goes on to the next program in either case.
    pub fn translate(&self, surroundings: &Surroundings<'_>) -> Vec<Instruction> {
        let mut code = self.code();
        if code.is_used(Label::Return(MATCH)) {
            code.place(Label::Return(MATCH));
            note_match(&mut code, surroundings);
        }
        code.place(Label::Return(NO_MATCH));
        for (programs, place) in surroundings.onward {
            code.alu64(Alu::Mov, Reg::R1, Source::Reg(CTX));
            code.map(Reg::R2, programs.as_raw_fd());
            code.alu64(Alu::Mov, Reg::R3, Source::Imm(*place));
            code.call(Helper::TailCall);
        }
        code.exit_with(surroundings.last_resort);
        code.finish()
    }

    /// A program of type XDP (to be loaded with the frags flag) that returns `matching` for a
    /// packet that matches and `other` for any other: XDP actions, or whatever a test run is to
    /// return.
    pub fn translate_to_verdict(&self, matching: u32, other: u32) -> Vec<Instruction> {
        let mut code = self.code();
        for (label, verdict) in [(Label::Return(MATCH), matching), (Label::Return(NO_MATCH), other)]
        {
            // The verifier takes no instruction that nothing leads to.
            if code.is_used(label) {
                code.place(label);
                code.exit_with(verdict);
            }
        }
        code.finish()
    }

    /// Without what happens at the ends.
    fn code(&self) -> Assembler<Label> {
        let rule = Rule::new(&self.operations, Operation::Return(MATCH));
        translate::translate(&decision_tree::join(&[rule], 0))
    }
}

/// Sets the capture's bit; then what follows.
fn note_match(code: &mut Assembler<Label>, surroundings: &Surroundings<'_>) {
    let mask = surroundings.mask_offset as i16;
    code.store(Reg::R10, SCRATCH, Source::Imm(0));
    code.map(Reg::R1, surroundings.state.as_raw_fd());
    code.alu64(Alu::Mov, Reg::R2, Source::Reg(Reg::R10));
    code.alu64(Alu::Add, Reg::R2, Source::Imm(SCRATCH as u32));
    code.call(Helper::MapLookup);
    code.jump_if(Jump::Equal, Reg::R0, Source::Imm(0), Label::Return(NO_MATCH));
    code.load(Width::Word, Reg::R1, Reg::R0, mask);
    code.alu32(Alu::Or, Reg::R1, Source::Imm(1 << (surroundings.index & 31)));
    code.store(Reg::R0, mask, Source::Reg(Reg::R1));
}

fn syntax(expression: &str, message: &str, at: std::ops::Range<usize>) -> Error {
    let message = message.trim_start_matches("can't parse filter expression: ");
    let message = message.trim_end_matches(" in filter expression");
    Error::Syntax { expression: expression.to_owned(), message: message.to_owned(), at }
}
