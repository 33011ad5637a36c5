//! Rules: several filters as one program that tells which of them matches first.

use std::collections::BTreeSet;

use crate::classic::Operation;
use crate::decision_tree::{Rule, join};
use crate::insn::{Alu, Assembler, Instruction, MOST_JOINED, Reg, Source, Width};
use crate::program::Program;
use crate::translate::{Label, NO_NOTES, note_word, translate};
use crate::{Error, Filter, Result};

/// Most rules of a program.
pub const MOST_RULES: usize = 256;

/// Most of them that are [`OnMatch::Note`].
pub const MOST_NOTES: usize = 48;

/// Questions that are asked one after the other before the rules themselves. A number that makes
/// the program too long gives way to the next one.
const DEPTHS: [usize; 7] = [12, 8, 6, 4, 2, 1, 0];

/// The first note's bit of the result.
const NOTES: u32 = 16;

/// What a rule does when it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMatch {
    /// The search ends with it.
    End,
    /// It is noted, and the search goes on.
    Note,
}

/// What a program of [`first_match`] returns in R0, with all of its 64 bits. Bits 0 to 15: 1 + the
/// index of the [`OnMatch::End`] rule that matched, among all rules; 0 for none. Bit 16 + i: the
/// i-th of the [`OnMatch::Note`] rules, counted among themselves, matched before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched(pub u64);

impl Matched {
    /// Index of the rule that ended the search.
    pub fn end(self) -> Option<usize> {
        usize::from(self.0 as u16).checked_sub(1)
    }

    /// Whether the note rule with this number among the note rules matched before.
    pub fn noted(self, number: usize) -> bool {
        number < MOST_NOTES && self.0 >> (NOTES as usize + number) & 1 != 0
    }
}

/// A program of type XDP (to be loaded with the frags flag) that returns [`Matched`]: it is to be
/// called by a tail call from a subprogram, because what an XDP program returns has 32 bits.
///
/// What several rules load from the packet is loaded once; questions that several rules ask of it,
/// such as its protocol, are asked once. It calls the kernel for the packet's length, at most once,
/// and for bytes in fragments or beyond its end.
///
/// # Errors
/// [`Error::TooManyRules`], [`Error::TooManyNotes`]; [`Error::RulesTooLong`]: more than
/// [`MOST_JOINED`] instructions.
pub fn first_match(rules: &[(&Filter, OnMatch)]) -> Result<Vec<Instruction>> {
    if rules.len() > MOST_RULES {
        return Err(Error::TooManyRules { rules: rules.len(), limit: MOST_RULES });
    }
    let notes = rules.iter().filter(|(_, on_match)| *on_match == OnMatch::Note).count();
    if notes > MOST_NOTES {
        return Err(Error::TooManyNotes { rules: notes, limit: MOST_NOTES });
    }
    let mut bits = NOTES..;
    let rules = rules.iter().zip(1..).map(|((filter, on_match), number)| {
        let matched = match on_match {
            OnMatch::End => Operation::Return(number),
            OnMatch::Note => Operation::Note(bits.next().unwrap_or(NOTES)),
        };
        Rule::new(&filter.operations, matched)
    });
    let rules: Vec<Rule> = rules.collect();
    let mut instructions = rules.iter().map(Rule::len).sum();
    // That would take long to translate, too.
    let depths = if instructions > MOST_JOINED { &[][..] } else { &DEPTHS };
    for &depth in depths {
        let program = join(&rules, depth);
        let mut code = translate(&program);
        return_matched(&mut code, rules.len(), &noted_words(&program));
        instructions = code.len();
        if instructions <= MOST_JOINED {
            return Ok(code.finish());
        }
    }
    Err(Error::RulesTooLong { instructions, limit: MOST_JOINED })
}

/// The first bits of the words in which a match may be noted: only these have a value.
fn noted_words(program: &Program) -> BTreeSet<u32> {
    let first_bit = |operation: &Operation| match operation {
        Operation::Note(bit) => Some(bit / u32::BITS * u32::BITS),
        _ => None,
    };
    program.operations.iter().filter_map(first_bit).collect()
}

/// The ends: the rule's number, and the notes above it.
fn return_matched(code: &mut Assembler<Label>, rules: usize, notes: &BTreeSet<u32>) {
    let all = Label::Behind(code.len());
    for result in 0..=rules as u16 {
        // The verifier takes no instruction that nothing leads to.
        if code.is_used(Label::Return(result)) {
            code.place(Label::Return(result));
            code.alu32(Alu::Mov, Reg::R0, Source::Imm(result.into()));
            code.jump(all);
        }
    }
    code.place(all);
    for &first_bit in notes {
        code.load(Width::Word, Reg::R1, Reg::R10, note_word(first_bit));
        code.alu32(Alu::Xor, Reg::R1, Source::Imm(NO_NOTES));
        code.alu64(Alu::ShiftLeft, Reg::R1, Source::Imm(first_bit));
        code.alu64(Alu::Or, Reg::R0, Source::Reg(Reg::R1));
    }
    code.exit();
}
