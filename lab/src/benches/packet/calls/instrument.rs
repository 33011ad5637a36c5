//! A program with counters in it: one behind each call, one before each tail call. No system call
//! is made here.

use std::mem::take;
use std::os::fd::RawFd;

use crate::CountError;

/// An instruction (struct bpf_insn). A load of 64 bits takes two.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    off: i16,
    imm: i32,
}

/// Classes, operations and codes of instructions (linux/bpf.h).
const CLASS: u8 = 0x07;
const JUMP: u8 = 0x05;
const JUMP_32: u8 = 0x06;
const OPERATION: u8 = 0xf0;
const ALWAYS: u8 = 0x00;
const OF_CALL: u8 = 0x80;
const OF_EXIT: u8 = 0x90;
const CALL: u8 = JUMP | OF_CALL;
const LOAD_64: u8 = 0x18;
const MOVE: u8 = 0xb7;
/// `lock *(u64 *)(destination) += source`.
const ADD_TO_MEMORY: u8 = 0xdb;

/// What the source register of a call or of a load says where it names none.
const A_HELPER: u8 = 0;
const A_SUBPROGRAM: u8 = 1;
const A_MAP_VALUE: u8 = 2;
const A_FUNCTION: u8 = 4;

/// Helpers.
const MAP_LOOKUP_ELEM: i32 = 1;
const TAIL_CALL: i32 = 12;
const MAP_LOOKUP_PERCPU_ELEM: i32 = 195;

/// Registers without content after any call.
const AFTER_CALL: [u8; 2] = [1, 2];
/// Those that a tail call, which has three parameters, leaves without content, too.
const BEFORE_TAIL_CALL: [u8; 2] = [4, 5];

/// Length of a counter in the map's only element.
pub(super) const COUNTER_BYTES: usize = 8;

/// Where in an instruction the distance to another one is.
enum Distance<'i> {
    Short(&'i mut i16),
    Long(&'i mut i32),
}

impl Instruction {
    pub(super) const BYTES: usize = size_of::<Self>();

    fn new(code: u8, [destination, source]: [u8; 2], imm: i32) -> Self {
        // Bit fields begin at the other end where bytes do.
        let registers = if cfg!(target_endian = "big") {
            destination << 4 | source
        } else {
            source << 4 | destination
        };
        Self { code, registers, off: 0, imm }
    }

    pub(super) fn from_bytes([code, registers, a, b, c, d, e, f]: [u8; Self::BYTES]) -> Self {
        let (off, imm) = (i16::from_ne_bytes([a, b]), i32::from_ne_bytes([c, d, e, f]));
        Self { code, registers, off, imm }
    }

    fn source(&self) -> u8 {
        if cfg!(target_endian = "big") { self.registers & 0xf } else { self.registers >> 4 }
    }

    /// The distance from the next instruction to the one that this one leads to.
    fn distance(&mut self) -> Option<Distance<'_>> {
        let long = match (self.code & CLASS, self.code & OPERATION) {
            (JUMP, OF_CALL) if self.source() == A_SUBPROGRAM => true,
            (JUMP, OF_CALL | OF_EXIT) => return None,
            (JUMP_32, ALWAYS) => true,
            (JUMP | JUMP_32, _) => false,
            _ if self.code == LOAD_64 && self.source() == A_FUNCTION => true,
            _ => return None,
        };
        Some(if long { Distance::Long(&mut self.imm) } else { Distance::Short(&mut self.off) })
    }
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call returned: a subprogram's, or a helper's that looks up nothing.
    Call,
    /// A look-up in a map returned.
    LookUp,
    /// A tail call is tried. One that succeeds does not return.
    TailCall,
    /// A tail call returned, because its slot is empty.
    NotTaken,
}

/// A program with its counters.
#[derive(Debug)]
pub(super) struct Instrumented {
    pub(super) code: Vec<Instruction>,
    /// What is counted, by the counters' number.
    pub(super) events: Vec<Event>,
    /// Where each of the original instructions is reached from others.
    entries: Vec<usize>,
}

impl Instrumented {
    /// Puts counters into a program, those from number `first` on of this map.
    pub(super) fn new(
        original: &[Instruction],
        map: RawFd,
        first: usize,
    ) -> Result<Self, CountError> {
        let (mut code, mut events) = (Vec::new(), Vec::new());
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        for instruction in original {
            let event = match (instruction.code, instruction.source(), instruction.imm) {
                (CALL, A_HELPER, TAIL_CALL) => Some(Event::NotTaken),
                (CALL, A_HELPER, MAP_LOOKUP_ELEM | MAP_LOOKUP_PERCPU_ELEM) => Some(Event::LookUp),
                (CALL, _, _) => Some(Event::Call),
                _ => None,
            };
            let mut count = |code: &mut Vec<Instruction>, event, registers| {
                code.extend(counter(map, first + events.len(), registers));
                events.push(event);
            };
            // A jump to a tail call passes its counter; one to the instruction after a call does
            // not.
            entries.push(code.len());
            if event == Some(Event::NotTaken) {
                count(&mut code, Event::TailCall, BEFORE_TAIL_CALL);
            }
            places.push(code.len());
            code.push(*instruction);
            if let Some(event) = event {
                count(&mut code, event, AFTER_CALL);
            }
        }
        let mut moved = Self { code, events, entries };
        places.iter().enumerate().try_for_each(|(at, place)| moved.redirect(at, *place))?;
        Ok(moved)
    }

    /// Has the instruction that was at `at` and is at `place` lead to where it led.
    fn redirect(&mut self, at: usize, place: usize) -> Result<(), CountError> {
        let entries = &self.entries;
        let moved = |distance: i64| {
            let to = usize::try_from(at as i64 + 1 + distance);
            let to = to.ok().and_then(|to| entries.get(to)).ok_or(CountError::Outside(at))?;
            Ok(*to as i64 - (place as i64 + 1))
        };
        let too_far = |_| CountError::TooFar(at);
        match self.code[place].distance() {
            Some(Distance::Short(off)) => {
                *off = i16::try_from(moved(i64::from(*off))?).map_err(too_far)?;
            }
            Some(Distance::Long(imm)) => {
                *imm = i32::try_from(moved(i64::from(*imm))?).map_err(too_far)?;
            }
            None => (),
        }
        Ok(())
    }

    /// Where an instruction of the original is now.
    pub(super) fn entry(&self, original: u32) -> Result<u32, CountError> {
        let entry = self.entries.get(original as usize).map(|entry| *entry as u32);
        entry.ok_or(CountError::Outside(original as usize))
    }
}

/// Adds 1 to a counter.
fn counter(map: RawFd, number: usize, [address, one]: [u8; 2]) -> [Instruction; 4] {
    let offset = (number * COUNTER_BYTES) as i32;
    [
        Instruction::new(LOAD_64, [address, A_MAP_VALUE], map),
        Instruction::new(0, [0, 0], offset),
        Instruction::new(MOVE, [one, 0], 1),
        Instruction::new(ADD_TO_MEMORY, [address, one], 0),
    ]
}

/// The counters that a translated program has, by number, each with the calls that the kernel left
/// before it: 0 where it has put instructions in the call's place.
pub(super) fn calls_left(translated: &[Instruction], map_id: u32) -> Vec<(usize, u64)> {
    let (mut found, mut calls) = (Vec::new(), 0);
    for (here, next) in translated.iter().zip(translated.iter().skip(1)) {
        if here.code == CALL {
            calls += 1;
        } else if here.code == LOAD_64 && here.source() == A_MAP_VALUE && here.imm as u32 == map_id
        {
            found.push((next.imm as usize / COUNTER_BYTES, take(&mut calls)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MAP: RawFd = 77;
    const FIRST: usize = 3;
    const EXIT: u8 = JUMP | OF_EXIT;
    const IF_EQUAL: u8 = JUMP | 0x10;
    const GO_FAR: u8 = JUMP_32 | ALWAYS;

    fn helper(number: i32) -> Instruction {
        Instruction::new(CALL, [0, A_HELPER], number)
    }

    fn jump(code: u8, off: i16) -> Instruction {
        Instruction { off, ..Instruction::new(code, [0, 0], 0) }
    }

    /// One step of a program: a number that tells it from the others, and one of these.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Load,
        Function(usize),
        Helper(i32),
        Subprogram(usize),
        If(usize),
        Far(usize),
        Exit,
    }

    fn step() -> impl Strategy<Value = Step> {
        let to = any::<usize>();
        prop_oneof![
            1 => Just(Step::Load),
            1 => to.prop_map(Step::Function),
            4 => prop_oneof![Just(MAP_LOOKUP_ELEM), Just(5), Just(TAIL_CALL)].prop_map(Step::Helper),
            2 => to.prop_map(Step::Subprogram),
            4 => to.prop_map(Step::If),
            1 => to.prop_map(Step::Far),
            1 => Just(Step::Exit),
        ]
    }

    /// A program of these steps, each behind its number; what leads somewhere leads to any number
    /// or to what is behind it.
    fn program(steps: &[Step]) -> Vec<Instruction> {
        let load = |source| [Instruction::new(LOAD_64, [1, source], 0), Instruction::default()];
        let mut code = Vec::new();
        let mut targets = Vec::new();
        let mut leads = Vec::new();
        for (number, step) in steps.iter().chain([&Step::Exit]).enumerate() {
            targets.extend([code.len(), code.len() + 1]);
            code.push(Instruction::new(MOVE, [0, 0], number as i32));
            let at = code.len();
            match *step {
                Step::Load => code.extend(load(0)),
                Step::Function(_) => code.extend(load(A_FUNCTION)),
                Step::Helper(number) => code.push(helper(number)),
                Step::Subprogram(_) => code.push(Instruction::new(CALL, [0, A_SUBPROGRAM], 0)),
                Step::If(_) => code.push(jump(IF_EQUAL, 0)),
                Step::Far(_) => code.push(jump(GO_FAR, 0)),
                Step::Exit => code.push(jump(EXIT, 0)),
            }
            if let Step::Function(to) | Step::Subprogram(to) | Step::If(to) | Step::Far(to) = *step
            {
                leads.push((at, to));
            }
        }
        for (at, to) in leads {
            let distance = targets[to % targets.len()] as i64 - (at as i64 + 1);
            match code[at].distance().unwrap() {
                Distance::Short(off) => *off = distance as i16,
                Distance::Long(imm) => *imm = distance as i32,
            }
        }
        code
    }

    #[derive(Default)]
    struct Trace {
        /// The instructions that it ran, then those that pointers to functions lead to: less their
        /// distances.
        passed: Vec<Instruction>,
        pointed: Vec<Instruction>,
        counters: Vec<usize>,
    }

    /// An instruction and its distance, which it has no more.
    fn parted(mut instruction: Instruction) -> (Instruction, Option<i64>) {
        let distance = instruction.distance().map(|distance| match distance {
            Distance::Short(off) => i64::from(take(off)),
            Distance::Long(imm) => i64::from(take(imm)),
        });
        (instruction, distance)
    }

    /// Runs a program. `taken` decides its jumps and tail calls, one after the other.
    fn run(code: &[Instruction], taken: &[bool]) -> Trace {
        let mut trace = Trace::default();
        let (mut at, mut callers) = (0, Vec::new());
        let mut taken = taken.iter().copied();
        loop {
            let (here, distance) = parted(code[at]);
            if here.code == LOAD_64 && (here.source(), here.imm) == (A_MAP_VALUE, MAP) {
                let number = code[at + 1].imm as usize / COUNTER_BYTES;
                let whole = |registers| code[at..at + 4] == counter(MAP, number, registers);
                assert!(whole(AFTER_CALL) || whole(BEFORE_TAIL_CALL), "{code:?} at {at}");
                trace.counters.push(number);
                at += 4;
                continue;
            }
            trace.passed.push(here);
            let target = distance.map(|distance| (at as i64 + 1 + distance) as usize);
            let next = at + 1 + usize::from(here.code == LOAD_64);
            at = match (here.code, here.source(), here.imm) {
                (CALL, A_SUBPROGRAM, _) => {
                    callers.push(next);
                    target.unwrap()
                }
                (CALL, _, TAIL_CALL) => match taken.next() {
                    Some(false) => next,
                    _ => return trace,
                },
                (EXIT, _, _) => match callers.pop() {
                    Some(caller) => caller,
                    None => return trace,
                },
                (IF_EQUAL | GO_FAR, _, _) => match taken.next() {
                    Some(true) => target.unwrap(),
                    Some(false) if here.code == IF_EQUAL => next,
                    Some(false) => target.unwrap(),
                    None => return trace,
                },
                (LOAD_64, A_FUNCTION, _) => {
                    let to = target.unwrap();
                    let counter = code[to].code == LOAD_64 && code[to].source() == A_MAP_VALUE;
                    trace.pointed.push(parted(code[if counter { to + 4 } else { to }]).0);
                    next
                }
                _ => next,
            };
            if callers.len() > 3 {
                return trace;
            }
        }
    }

    proptest! {
        /// With counters a program goes the way that it went, and counts what it comes across.
        #[test]
        fn a_program_goes_the_same_way(
            steps in vec(step(), 1..40),
            taken in vec(any::<bool>(), 0..60),
        ) {
            let original = program(&steps);
            let counted = Instrumented::new(&original, MAP, FIRST).unwrap();
            let (before, after) = (run(&original, &taken), run(&counted.code, &taken));
            prop_assert_eq!(&before.passed, &after.passed);
            prop_assert_eq!(&before.pointed, &after.pointed);
            let count = |event| {
                let same = |number: &&usize| counted.events[**number - FIRST] == event;
                after.counters.iter().filter(same).count()
            };
            let passed = |is: fn(&Instruction) -> bool| {
                before.passed.iter().filter(|one| is(one)).count()
            };
            let tail_calls = passed(|one| *one == helper(TAIL_CALL));
            prop_assert_eq!(count(Event::TailCall), tail_calls);
            prop_assert_eq!(count(Event::LookUp), passed(|one| *one == helper(MAP_LOOKUP_ELEM)));
            prop_assert!(tail_calls - count(Event::NotTaken) <= 1, "the last one ends the run");
        }
    }

    #[test]
    fn functions_begin_where_their_counters_do() {
        let original = [helper(MAP_LOOKUP_ELEM), jump(EXIT, 0), helper(TAIL_CALL), jump(EXIT, 0)];
        let counted = Instrumented::new(&original, MAP, 0).unwrap();
        assert_eq!((counted.entry(2).unwrap(), counted.entry(3).unwrap()), (6, 15));
        assert!(counted.entry(4).is_err());
        assert_eq!(counted.code[6..10], counter(MAP, 1, BEFORE_TAIL_CALL));
        assert_eq!(counted.events, [Event::LookUp, Event::TailCall, Event::NotTaken]);
    }

    #[test]
    fn jumps_have_bounds() {
        let long = |calls: usize| {
            let mut code = vec![jump(IF_EQUAL, calls as i16)];
            code.extend(vec![helper(5); calls]);
            code.push(jump(EXIT, 0));
            Instrumented::new(&code, MAP, 0)
        };
        let most = i16::MAX as usize / 5;
        assert_eq!(long(most).unwrap().code[0].off, (most * 5) as i16);
        assert!(matches!(long(most + 1), Err(CountError::TooFar(0))));
        let outside = [jump(EXIT, 0), jump(IF_EQUAL, -3)];
        let error = Instrumented::new(&outside, MAP, 0).unwrap_err();
        assert!(matches!(error, CountError::Outside(1)), "{error}");
    }

    #[test]
    fn what_the_kernel_put_in_a_calls_place_is_no_call() {
        let original = [
            helper(MAP_LOOKUP_ELEM),
            helper(TAIL_CALL),
            Instruction::new(CALL, [0, A_SUBPROGRAM], 1),
            jump(EXIT, 0),
            jump(EXIT, 0),
        ];
        let mut translated = Instrumented::new(&original, 7, 0).unwrap().code;
        assert_eq!(calls_left(&translated, 7), [(0, 1), (1, 0), (2, 1), (3, 1)]);
        translated[0] = Instruction::new(MOVE, [0, 0], 0);
        assert_eq!(calls_left(&translated, 7)[0], (0, 0));
        assert_eq!(calls_left(&translated, 8), [], "of another map");
    }
}
