//! Filters translated to eBPF: the kernel takes every one, and they say what libpcap's interpreter
//! says. filter has the same test for an interpreter of its own; PROPTEST_CASES makes either
//! longer.

use std::os::fd::AsFd;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use proptest::collection::vec;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use ringway_bpf_tests::prelude::*;
use ringway_bpf_tests::run::filter_program;
use ringway_filter::OnMatch::{self, End, Note};
use ringway_filter::{Classic, Error, Filter, Instruction, Matched, Surroundings, first_match};

#[path = "../../../../filter/tests/agree/samples.rs"]
mod samples;

const SNAPLEN: u32 = 65_535;

/// The kernel gives up at a million.
const VERIFIER_LIMIT: u32 = 500_000;

/// Of so many parts.
type Expression = fn(usize) -> String;

/// Also long lists, of which one is as long as it may be, are far from what the verifier has time
/// for.
#[test]
fn filters_load() {
    needs_root!("filters_load");
    let mut most = 0;
    for filter in filters() {
        let verified = load(&filter).verified_instructions();
        assert!(verified < VERIFIER_LIMIT, "{}: {verified}", filter.expression());
        most = most.max(verified);
    }
    println!("filters: at most {most} instructions verified");
}

/// 81 is never beyond X, of at most 60: an older verifier looks behind that all the same, and finds
/// an X whose least value is above its greatest.
#[test]
fn a_branch_that_is_never_taken() {
    needs_root!("a_branch_that_is_never_taken");
    let instruction = |code, jt, jf, k| Classic { code, jt, jf, k };
    let program = [
        instruction(0x80, 0, 0, 0),      // ld #len
        instruction(0xb1, 0, 0, 17),     // ldxb 4*([17]&0xf)
        instruction(0x15, 0, 3, 81),     // jeq #81, on, no
        instruction(0x2d, 2, 0, 0),      // ja x, no, on
        instruction(0x40, 0, 0, 44),     // ld [x + 44]
        instruction(0x06, 0, 0, 65_535), // ret #65535
        instruction(0x06, 0, 0, 0),      // no: ret #0
    ];
    let filter = Filter::from_classic(&program).unwrap();
    agree(&filter, &load(&filter), &[vec![0xff; 81], vec![0xff; 200]]);
}

#[test]
fn realistic_filters() {
    needs_root!("realistic_filters");
    for filter in filters() {
        let program = load(&filter);
        let frames = vec(samples::frame(), 20);
        runner(20)
            .run(&frames, |frames| {
                agree(&filter, &program, &frames);
                Ok(())
            })
            .unwrap();
    }
}

/// As people write them, and long lists.
fn filters() -> Vec<Filter> {
    let long: [(usize, Expression); 4] = [
        (50, |n| format!("port {}", 1000 + 3 * n)),
        (70, |n| format!("host 10.0.{}.{}", n / 8, n % 8)),
        (75, |n| format!("(tcp and src host 10.0.0.{n} and dst port {})", 5000 + n)),
        (90, |n| format!("tcp[((tcp[12] & 0xf0) >> 2) + {n}] = {n}")),
    ];
    let long = long.map(|(parts, part)| (1..=parts).map(part).collect::<Vec<_>>().join(" or "));
    let short = samples::REALISTIC.map(str::to_owned);
    let all = short.into_iter().chain(long);
    all.map(|expression| Filter::compile(&expression, SNAPLEN).unwrap()).collect()
}

#[test]
fn random_filters() {
    needs_root!("random_filters");
    let tested = (samples::expression(), vec(samples::frame(), 20));
    runner(100)
        .run(&tested, |(expression, frames)| {
            match Filter::compile(&expression, SNAPLEN) {
                Ok(filter) => agree(&filter, &load(&filter), &frames),
                Err(Error::NeverMatches { .. } | Error::Syntax { .. }) => {}
                Err(error) => panic!("{expression}: {error}"),
            }
            Ok(())
        })
        .unwrap();
}

/// Of up to as many instructions as there may be.
#[test]
fn random_programs() {
    needs_root!("random_programs");
    for (cases, most) in [(100, 60), (5, ringway_filter::MOST_INSTRUCTIONS - 20)] {
        let tested = (samples::program(most), vec(samples::frame(), 20));
        runner(cases)
            .run(&tested, |(program, frames)| {
                let filter = Filter::from_classic(&program).unwrap();
                agree(&filter, &load(&filter), &frames);
                Ok(())
            })
            .unwrap();
    }
}

/// Two in a chain: each notes its own matches and goes on, past an empty place, too.
#[test]
fn a_chain() {
    needs_root!("a_chain");
    let state = map(MapType::PercpuArray, 16);
    let programs = map(MapType::ProgArray, 4);
    let chained = |index, expression, onward: &[_]| {
        let filter = Filter::compile(expression, SNAPLEN).unwrap();
        let onward: Vec<_> = onward.iter().map(|place| (programs.as_fd(), *place)).collect();
        let last_resort = Verdict::Drop as u32;
        let surroundings = Surroundings {
            state: state.as_fd(),
            mask_offset: 8,
            index,
            onward: &onward,
            last_resort,
        };
        filter_program(&filter.translate(&surroundings)).unwrap()
    };
    let second = chained(31, "greater 20", &[3]);
    let first = chained(0, "ether proto 0x88cc", &[2, 1]);
    put(&programs, 1, &second);

    let mut out = Vec::new();
    let mut mask_of = |frame: &[u8]| {
        let cpus = libbpf_rs::num_possible_cpus().unwrap();
        state.update_percpu(&[0; 4], &vec![vec![0; 16]; cpus], MapFlags::ANY).unwrap();
        assert_eq!(first.run(frame, &mut out).unwrap(), Verdict::Drop);
        let states = state.lookup_percpu(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        let masks = states.iter().map(|state| u32::from_ne_bytes(state[8..12].try_into().unwrap()));
        masks.fold(0, |all, mask| all | mask)
    };
    let lldp = |length: usize| [&[2; 12][..], &[0x88, 0xcc], &vec![0; length - 14]].concat();
    assert_eq!(mask_of(&lldp(60)), 1 << 31 | 1);
    assert_eq!(mask_of(&lldp(15)), 1);
    assert_eq!(mask_of(&[2; 60]), 1 << 31);
    assert_eq!(mask_of(&[2; 15]), 0);
}

/// Many rules are as much more work for the verifier as they are more instructions: it must not
/// remember which of them a packet has half matched.
#[test]
fn rules_load() {
    needs_root!("rules_load");
    let kinds: [(&str, Expression); 5] = [
        ("mixed", mixed_rule),
        ("ports", |n| format!("udp src port {}", 1000 + n)),
        ("lengths", |n| format!("udp src port {} and greater {}", 1000 + n, 500 + n)),
        ("addresses", |n| format!("src host 10.0.{}.{} and not dst port 80", n / 8, n % 8)),
        ("networks", |n| format!("tcp dst port {} and src net 10.{n}.0.0/16", 1000 + n)),
    ];
    for (kind, expression) in kinds {
        for count in [10, 50, 200] {
            let filters = (0..count).map(|n| Filter::compile(&expression(n), SNAPLEN).unwrap());
            let rules = filters.zip((0..count).map(|n| if n % 5 == 0 { Note } else { End }));
            let (program, instructions) = load_rules(&rules.collect::<Vec<_>>());
            let verified = program.verified_instructions() as usize;
            println!("{count} {kind}: {instructions} instructions, {verified} verified");
            assert!(verified < 4 * instructions, "{count} {kind}: {verified}");
        }
    }
}

fn mixed_rule(n: usize) -> String {
    match n % 10 {
        0 => format!("udp src port {} and greater 512", 1000 + n),
        1 => format!("tcp dst port {} and src net 10.{n}.0.0/16", 2000 + n),
        2 => format!("host 192.0.2.{n}"),
        3 => format!("net 10.1.{n}.0/24"),
        4 => format!("udp portrange {}-{}", 3000 + n, 3010 + n),
        5 => format!("tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn and dst port {}", 4000 + n),
        6 => format!("src host 2001:db8::{n} and udp"),
        7 => format!("udp[8:4] = {} and udp[12:2] > {n}", 77_000 + n),
        8 => format!("tcp[((tcp[12:1] & 0xf0) >> 2):4] = {}", 0x4745_0000 + n),
        _ => format!("(port {} or port {}) and less {}", 5000 + n, 6000 + n, 100 + n),
    }
}

#[test]
fn rules_agree() {
    needs_root!("rules_agree");
    let expressions = [&samples::REALISTIC[1..], &samples::RULES].concat();
    let rules = vec((select(expressions), select(vec![End, Note])), 1..20);
    runner(100)
        .run(&(rules, vec(samples::frame(), 20)), |(rules, frames)| {
            let compile = |text| Filter::compile(text, SNAPLEN).unwrap();
            let rules: Vec<_> = rules.into_iter().map(|(text, on)| (compile(text), on)).collect();
            let (program, _) = load_rules(&rules);
            for frame in &frames {
                let matched = first_of(&rules, frame);
                let folded = (matched.0 ^ matched.0 >> 32) as u32;
                let said: Vec<_> = rules.iter().map(|(it, on)| (it.expression(), on)).collect();
                assert_eq!(program.result(frame).unwrap(), folded, "{said:?} on {frame:02x?}");
            }
            Ok(())
        })
        .unwrap();
}

/// What libpcap's interpreter says of the rules, one after the other.
fn first_of(rules: &[(Filter, OnMatch)], frame: &[u8]) -> Matched {
    let (mut result, mut notes) = (0, 16..);
    for ((filter, on_match), number) in rules.iter().zip(1..) {
        let note = if *on_match == Note { notes.next() } else { None };
        match note {
            _ if !filter.matches(frame, frame.len() as u32) => {}
            Some(bit) => result |= 1 << bit,
            None => return Matched(result | number),
        }
    }
    Matched(result)
}

/// The program, whose result is folded into the 32 bits that a test run gives; how many instructions
/// it had.
fn load_rules(rules: &[(Filter, OnMatch)]) -> (Program, usize) {
    let rules: Vec<_> = rules.iter().map(|(filter, on_match)| (filter, *on_match)).collect();
    let mut program = first_match(&rules).unwrap();
    let instructions = program.len();
    let exit = program.pop().unwrap();
    let copy = Instruction::new(0xbf, 1, 0, 0, 0); // r1 = r0
    let upper_half = Instruction::new(0x77, 1, 0, 0, 32); // r1 >>= 32
    let fold = Instruction::new(0xaf, 0, 1, 0, 0); // r0 ^= r1
    program.extend([copy, upper_half, fold, exit]);
    (filter_program(&program).unwrap(), instructions)
}

fn map(kind: MapType, value_size: u32) -> MapHandle {
    let opts =
        bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
    let entries = if kind == MapType::ProgArray { 4 } else { 1 };
    MapHandle::create(kind, Some("filter_test"), 4, value_size, entries, &opts).unwrap()
}

fn put(programs: &MapHandle, place: u32, program: &Program) {
    use std::os::fd::AsRawFd;
    let fd = program.as_fd().as_raw_fd() as u32;
    programs.update(&place.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY).unwrap();
}

/// So many cases, unless PROPTEST_CASES says how many.
fn runner(cases: u32) -> TestRunner {
    let default = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    TestRunner::new(Config { cases, failure_persistence: None, ..default })
}

fn load(filter: &Filter) -> Program {
    let program = filter.translate_to_verdict(Verdict::Drop as u32, Verdict::Pass as u32);
    let refused =
        |error| panic!("refused: {error}: {:?} {:?}", filter.expression(), filter.classic());
    filter_program(&program).unwrap_or_else(refused)
}

fn agree(filter: &Filter, program: &Program, frames: &[Vec<u8>]) {
    let mut out = Vec::new();
    for frame in frames {
        let matches = filter.matches(frame, frame.len() as u32);
        let verdict = program.run(frame, &mut out).unwrap();
        let said = (filter.expression(), filter.classic());
        assert_eq!(verdict == Verdict::Drop, matches, "{said:?} on {frame:02x?}");
    }
}
