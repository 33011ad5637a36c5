//! Several filters as one program.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use ringway_filter::OnMatch::{End, Note};
use ringway_filter::{
    Classic, Error, Filter, MOST_NOTES, MOST_RULES, Matched, OnMatch, first_match,
};

use crate::machine::{self, Ran};
use crate::samples;

type Rule = (Filter, OnMatch);

fn translate(rules: &[Rule]) -> ringway_filter::Result<Vec<ringway_filter::Instruction>> {
    let rules: Vec<_> = rules.iter().map(|(filter, on_match)| (filter, *on_match)).collect();
    first_match(&rules)
}

/// What libpcap's interpreter says of the rules, one after the other.
fn expected(rules: &[Rule], frame: &[u8]) -> Matched {
    let (mut result, mut notes) = (0, 16..);
    for ((filter, on_match), number) in rules.iter().zip(1..) {
        let matches = filter.matches(frame, frame.len() as u32);
        let bit = if *on_match == Note { notes.next() } else { None };
        match bit {
            _ if !matches => {}
            Some(bit) => result |= 1 << bit,
            None => return Matched(result | number),
        }
    }
    Matched(result)
}

fn check(rules: &[Rule], frames: &[(Vec<u8>, Index)]) {
    let program = translate(rules).unwrap();
    for (frame, linear) in frames {
        let expected = expected(rules, frame);
        for linear in [frame.len(), linear.index(frame.len() + 1)] {
            let ran = machine::run(&program, frame, linear);
            let said: Vec<_> = rules.iter().map(|(filter, on)| (filter.classic(), on)).collect();
            assert_eq!(
                Matched(ran.verdict),
                expected,
                "{said:?}: {linear} linear bytes of {frame:02x?}"
            );
            let lengths = ran.calls.iter().filter(|call| **call == machine::XDP_GET_BUFF_LEN);
            assert!(lengths.count() <= 1, "{said:?}");
        }
    }
}

fn compiled(expression: &str) -> Option<Filter> {
    match Filter::compile(expression, 65_535) {
        Ok(filter) => Some(filter),
        // What libpcap finds impossible, or that divides by a constant that is zero.
        Err(Error::NeverMatches { .. } | Error::Syntax { .. }) => None,
        Err(error) => panic!("{expression}: {error}"),
    }
}

/// Mostly of what people write, so that they ask the same.
fn expression() -> impl Strategy<Value = String> {
    let realistic = [&samples::REALISTIC[1..], &samples::RULES].concat();
    let realistic = select(realistic).prop_map(str::to_owned);
    prop_oneof![3 => realistic, 1 => samples::expression()]
}

fn on_match() -> impl Strategy<Value = OnMatch> {
    select(vec![End, Note, Note])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_rules(
        rules in vec((expression(), on_match()), 1..20),
        frames in vec((samples::frame(), any::<Index>()), 20)
    ) {
        let rules = rules.into_iter();
        let rules: Vec<_> = rules.filter_map(|(text, on)| Some((compiled(&text)?, on))).collect();
        check(&rules, &frames);
    }

    #[test]
    fn random_programs(
        rules in vec((samples::program(30), on_match()), 1..20),
        frames in vec((samples::frame(), any::<Index>()), 20)
    ) {
        let rules = rules.into_iter();
        let rules = rules.map(|(program, on)| (Filter::from_classic(&program).unwrap(), on));
        check(&rules.collect::<Vec<_>>(), &frames);
    }
}

fn udp(from: u16, to: u16, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    frame[34..36].copy_from_slice(&from.to_be_bytes());
    frame[36..38].copy_from_slice(&to.to_be_bytes());
    frame
}

fn run(rules: &[&str], frame: &[u8]) -> Ran {
    let rules: Vec<_> = rules.iter().map(|text| (compiled(text).unwrap(), End)).collect();
    machine::run(&translate(&rules).unwrap(), frame, frame.len())
}

#[test]
fn ten_rules_load_each_byte_once() {
    let frame = udp(4000, 443, 200);
    let ran = run(&samples::RULES, &frame);
    assert_eq!(Matched(ran.verdict).end(), None);
    let mut loads = ran.loads.clone();
    loads.sort_unstable();
    // Type, header length, fragment, protocol, source, ports.
    assert_eq!(loads, [12, 14, 20, 23, 26, 34, 36], "{ran:?}");
    assert_eq!(ran.calls, [machine::XDP_GET_BUFF_LEN], "{ran:?}");
    assert!(ran.instructions <= 80, "{ran:?}");

    let ran = run(&samples::RULES, &udp(4000, 5000, 200));
    assert!(ran.calls.is_empty() && ran.instructions <= 70, "{ran:?}");
    let first = run(&samples::RULES[..1], &udp(4000, 5000, 200)).instructions;
    assert!(ran.instructions < 4 * first, "{ran:?}, where one rule takes {first}");
}

/// A packet without what a rule reads of its payload is short, which its length tells, and costs the
/// rules behind that one nothing.
#[test]
fn a_short_packet_is_not_fetched() {
    let mut ack = udp(4000, 443, 66);
    (ack[23], ack[46]) = (6, 0x80);
    let payload =
        ["tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420", "tcp dst port 80 and tcp[40] = 1"];
    let rules = [&payload[..1], &samples::RULES, &payload].concat();
    let ran = run(&rules, &ack);
    assert_eq!(Matched(ran.verdict).end(), None);
    assert_eq!(ran.calls, [machine::XDP_GET_BUFF_LEN], "{ran:?}");
}

#[test]
fn the_length_is_asked_for_once() {
    let rules = ["greater 1000", "udp src port 53 and greater 512", "udp port 53 and less 60"];
    let ran = run(&rules, &udp(53, 53, 60));
    assert_eq!(Matched(ran.verdict).end(), Some(2));
    assert_eq!(ran.calls, [machine::XDP_GET_BUFF_LEN]);
}

#[test]
fn the_first_match_ends_the_search_and_notes_go_before_it() {
    let rule = |text, on_match| (compiled(text).unwrap(), on_match);
    let rules = [
        rule("udp", Note),
        rule("tcp", Note),
        rule("udp dst port 53", End),
        rule("ip", Note),
        rule("udp", End),
        rule("", Note),
    ];
    let matched = |frame: &[u8]| {
        let ran = machine::run(&translate(&rules).unwrap(), frame, frame.len());
        let matched = Matched(ran.verdict);
        (matched.end(), [0, 1, 2, 3].map(|number| matched.noted(number)))
    };
    assert_eq!(matched(&udp(1, 53, 60)), (Some(2), [true, false, false, false]));
    assert_eq!(matched(&udp(1, 54, 60)), (Some(4), [true, false, true, false]));
    assert_eq!(matched(&[0; 60]), (None, [false, false, false, true]));
    assert_eq!(machine::run(&first_match(&[]).unwrap(), &[0; 60], 60).verdict, 0);
}

/// Notes that nothing can set are in no word, which nobody may read then.
#[test]
fn a_note_that_never_matches() {
    let ends = |k| Classic { code: 6, jt: 0, jf: 0, k };
    let [never, always] = [0, 1].map(|k| Filter::from_classic(&[ends(k)]).unwrap());
    let run = |rules: &[(&Filter, OnMatch)]| {
        Matched(machine::run(&first_match(rules).unwrap(), &[0; 60], 60).verdict)
    };
    assert_eq!(run(&[(&never, Note)]), Matched(0));
    let beside = run(&[(&never, Note), (&always, End)]);
    assert_eq!((beside.end(), beside.noted(0)), (Some(1), false));
    // One of the second word, with none of the first.
    let mut many = vec![(&never, Note); 20];
    many.extend([(&always, Note), (&always, End)]);
    let noted = run(&many);
    assert_eq!((noted.end(), noted.noted(19), noted.noted(20)), (Some(21), false, true));
}

#[test]
fn bounds() {
    let filter = compiled("udp").unwrap();
    let rules = |number, on_match| vec![(&filter, on_match); number];
    let frame = udp(1, 2, 60);
    let most = first_match(&[rules(MOST_NOTES, Note), rules(208, End)].concat()).unwrap();
    let result = machine::run(&most, &frame, frame.len()).verdict;
    assert_eq!(result, 0xffff_ffff_ffff_0000 | (MOST_NOTES as u64 + 1));
    let too_many = Error::TooManyRules { rules: MOST_RULES + 1, limit: MOST_RULES };
    assert_eq!(first_match(&rules(MOST_RULES + 1, End)).unwrap_err(), too_many);
    let too_many = Error::TooManyNotes { rules: MOST_NOTES + 1, limit: MOST_NOTES };
    assert_eq!(first_match(&rules(MOST_NOTES + 1, Note)).unwrap_err(), too_many);

    let long = (0..200).map(|n| format!("port {}", 5000 + 3 * n)).collect::<Vec<_>>().join(" or ");
    let long = compiled(&long).unwrap();
    let too_long = first_match(&[(&long, End); MOST_RULES]).unwrap_err();
    assert!(matches!(too_long, Error::RulesTooLong { .. }), "{too_long}");
}
