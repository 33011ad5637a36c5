//! Several filters as one program that tells which of them matches first.
//!
//! Filters ask the same things of a packet: its type, its protocol, whether it is a fragment. The
//! rules are therefore joined as a tree: an inner node is a question that several rules begin with,
//! and each of its answers has the rules' remainders, in order, without those that it decides. A
//! leaf is a list of remainders, each of which goes on to the next one where it does not match.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::classic::{Condition, NO_MATCH, Operand, Operation, Register, at_first, forward};
use crate::insn::MOST_JOINED;
use crate::loads::{Registers, Value};
use crate::program::Program;

/// A filter among others.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The last one is what happens when the filter matches; what leads behind it, to the next rule.
    operations: Vec<Operation>,
}

/// A question: a load at a fixed place, and a condition on what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Question {
    value: Value,
    condition: Condition,
    operand: u32,
}

/// What is known where a program has come to.
#[derive(Clone, Copy, Debug)]
enum Fact {
    Answer(Question, bool),
    /// The packet ends before.
    Missing(Value),
}

impl Rule {
    /// `matched`: [`Operation::Return`] or [`Operation::Note`].
    pub(crate) fn new(filter: &[Operation], matched: Operation) -> Self {
        // The registers are zero when it begins. Where that does not matter, they are not set.
        let registers = [Register::A, Register::X].map(|register| Operation::Constant(register, 0));
        let before = registers.len();
        let at_match = before + filter.len();
        let lowered = filter.iter().map(|operation| match operation.moved(before) {
            Operation::Return(NO_MATCH) => Operation::Jump(at_match + 1),
            Operation::Return(_) => Operation::Jump(at_match),
            Operation::ReturnA => Operation::Branch {
                condition: Condition::Equal,
                operand: Operand::Constant(0),
                then: at_match + 1,
                otherwise: at_match,
            },
            other => other,
        });
        Self { operations: registers.into_iter().chain(lowered).chain([matched]).collect() }
    }

    /// How many operations it has that are more than jumps.
    pub(crate) fn len(&self) -> usize {
        self.operations.iter().filter(|operation| !matches!(operation, Operation::Jump(_))).count()
    }

    /// What is left of it where these facts are known: the same number of operations, of which those
    /// that are decided have become jumps.
    fn remainder(&self, facts: &[Fact]) -> Self {
        let mut operations = self.operations.clone();
        let end = operations.len();
        let mut known = at_first(Registers::default(), end);
        known.push(None);
        let reached = forward(known, Registers::join, |number, before| {
            let Some(operation) = operations.get_mut(number) else { return Vec::new() };
            if before.loaded_by(*operation).is_some_and(|value| is_missing(facts, value)) {
                *operation = Operation::Jump(end);
            }
            if let Some((question, then, otherwise)) = question(before, *operation) {
                match answer(facts, question) {
                    Some(true) => *operation = Operation::Jump(then),
                    Some(false) => *operation = Operation::Jump(otherwise),
                    None => {}
                }
            }
            let after = before.after(*operation);
            operation.successors(number).map(|next| (next, after)).collect()
        });
        let unreached = Operation::Jump(end);
        let known = reached.iter().zip(&mut operations);
        known
            .filter(|(known, _)| known.is_none())
            .for_each(|(_, operation)| *operation = unreached);
        // What sets a register that nothing reads is left out, a load only where it cannot fail.
        let mut read = vec![Reads::default(); end + 1];
        for (number, before) in reached.iter().enumerate().take(end).rev() {
            let Some(before) = before else { continue };
            let operation = operations[number];
            let next = operation.successors(number).map(|next| read[next]);
            let after = next.fold(Reads::default(), Reads::join);
            let is_needed = match operation {
                Operation::Constant(into, _) | Operation::Load(into, _) => after.of(into),
                Operation::Packet { .. } => {
                    let found = before.loaded_by(operation).is_some_and(|it| is_found(facts, it));
                    after.a || !found
                }
                _ => true,
            };
            read[number] = if is_needed { after.before(operation) } else { after };
            if !is_needed {
                operations[number] = Operation::Jump(number + 1);
            }
        }
        Self { operations }
    }

    /// The number of its first operation; the number of all of them where it matches nothing.
    fn first(&self) -> usize {
        let mut first = 0;
        while let Some(Operation::Jump(to)) = self.operations.get(first) {
            first = *to;
        }
        first
    }

    fn can_match(&self) -> bool {
        self.first() < self.operations.len()
    }

    /// The questions about what the rule loads first, if that is at a fixed place.
    fn first_questions(&self) -> Vec<Question> {
        let first = self.first();
        let Some(Operation::Packet { behind_x: false, .. }) = self.operations.get(first) else {
            return Vec::new();
        };
        let value = Registers::default().loaded_by(self.operations[first]);
        let mut questions = Vec::new();
        let mut known = vec![None; self.operations.len() + 1];
        known[first] = Some(Registers::default());
        forward(known, Registers::join, |number, before| {
            let Some(operation) = self.operations.get(number) else { return Vec::new() };
            if let Some((question, ..)) = question(before, *operation)
                && Some(question.value) == value
                && !questions.contains(&question)
            {
                questions.push(question);
            }
            let after = before.after(*operation);
            operation.successors(number).map(|next| (next, after)).collect()
        });
        questions
    }
}

/// Which registers are read later.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    a: bool,
    x: bool,
}

impl Reads {
    fn of(self, register: Register) -> bool {
        match register {
            Register::A => self.a,
            Register::X => self.x,
        }
    }

    fn join(self, other: Self) -> Self {
        Self { a: self.a || other.a, x: self.x || other.x }
    }

    /// Before an instruction that is followed by these.
    fn before(self, operation: Operation) -> Self {
        match operation {
            Operation::Packet { behind_x, .. } => Self { a: false, x: self.x || behind_x },
            Operation::HeaderLength(_) => Self { x: false, ..self },
            Operation::Constant(into, _) | Operation::Length(into) | Operation::Load(into, _) => {
                match into {
                    Register::A => Self { a: false, ..self },
                    Register::X => Self { x: false, ..self },
                }
            }
            Operation::Store(Register::A, _) | Operation::Negate | Operation::ReturnA => {
                Self { a: true, ..self }
            }
            Operation::Store(Register::X, _) => Self { x: true, ..self },
            Operation::Compute(_, operand) | Operation::Branch { operand, .. } => {
                Self { a: true, x: self.x || operand == Operand::X }
            }
            Operation::CopyToX => Self { a: true, x: false },
            Operation::CopyToA => Self { a: false, x: true },
            Operation::Jump(_) | Operation::Return(_) | Operation::Note(_) => self,
        }
    }
}

/// What a branch asks, and where it goes on.
fn question(before: Registers, operation: Operation) -> Option<(Question, usize, usize)> {
    match (operation, before.a) {
        (
            Operation::Branch { condition, operand: Operand::Constant(operand), then, otherwise },
            Some(value @ Value::Packet { behind: None, .. }),
        ) => Some((Question { value, condition, operand }, then, otherwise)),
        _ => None,
    }
}

fn answer(facts: &[Fact], asked: Question) -> Option<bool> {
    facts.iter().find_map(|fact| match *fact {
        Fact::Answer(question, holds) if question == asked => Some(holds),
        Fact::Answer(Question { value, condition: Condition::Equal, operand }, true)
            if value == asked.value =>
        {
            Some(asked.condition.holds(operand, asked.operand))
        }
        _ => None,
    })
}

fn is_missing(facts: &[Fact], value: Value) -> bool {
    facts.iter().any(|fact| matches!(fact, Fact::Missing(missing) if *missing == value))
}

fn is_found(facts: &[Fact], value: Value) -> bool {
    facts.iter().any(|fact| matches!(fact, Fact::Answer(question, _) if question.value == value))
}

/// Joins rules; where none of them returns, the result is [`NO_MATCH`]. `depth`: questions that may
/// be asked one after the other before the leaf; each makes the program longer.
pub(crate) fn join(rules: &[Rule], depth: usize) -> Program {
    let mut program = Program::default();
    program.add(rules, &[], depth);
    program
}

impl Program {
    fn add(&mut self, rules: &[Rule], facts: &[Fact], depth: usize) {
        let left = rules.iter().map(|rule| rule.remainder(facts)).filter(Rule::can_match);
        let left: Vec<Rule> = left.collect();
        let may_ask = depth > 0 && self.operations.len() < MOST_JOINED;
        match if may_ask { common_question(&left) } else { None } {
            Some(question) => self.add_node(rules, facts, question, depth - 1),
            None => self.add_leaf(&left),
        }
    }

    fn add_node(&mut self, rules: &[Rule], facts: &[Fact], question: Question, depth: usize) {
        let Question { value, condition, operand } = question;
        let Value::Packet { bytes, at, behind: None } = value else { return };
        let with = |fact: Fact| [facts, &[fact]].concat();
        let number = self.operations.len();
        self.push(Operation::Packet { bytes, at, behind_x: false }, number);
        self.push(Operation::Return(NO_MATCH), number);
        self.add(rules, &with(Fact::Answer(question, true)), depth);
        let otherwise = self.operations.len();
        self.operations[number + 1] = Operation::Branch {
            condition,
            operand: Operand::Constant(operand),
            then: number + 2,
            otherwise,
        };
        self.add(rules, &with(Fact::Answer(question, false)), depth);
        self.failures[number] = otherwise;
        if !is_found(facts, value) {
            self.failures[number] = self.operations.len();
            self.add(rules, &with(Fact::Missing(value)), 0);
        }
    }

    fn add_leaf(&mut self, rules: &[Rule]) {
        for rule in rules {
            let base = self.operations.len();
            let next = base + rule.operations.len();
            for operation in &rule.operations {
                self.push(operation.moved(base), next);
            }
        }
        self.push(Operation::Return(NO_MATCH), self.operations.len());
    }

    fn push(&mut self, operation: Operation, failure: usize) {
        self.operations.push(operation);
        self.failures.push(failure);
    }
}

/// The question that most rules begin with, if there are two of them.
fn common_question(rules: &[Rule]) -> Option<Question> {
    let mut counted: HashMap<Question, (usize, Reverse<usize>)> = HashMap::new();
    for (place, question) in rules.iter().flat_map(Rule::first_questions).enumerate() {
        counted.entry(question).or_insert((0, Reverse(place))).0 += 1;
    }
    // The first one of those that are asked as often.
    let (question, (times, _)) = counted.into_iter().max_by_key(|(_, counted)| *counted)?;
    (times > 1).then_some(question)
}
