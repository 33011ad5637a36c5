//! The translation says what libpcap's own interpreter says, always. Here by an interpreter of our
//! own, which needs no root; tests/bpf asks the kernel the same.

#![allow(clippy::unwrap_used)]

mod machine;
mod rules;
mod samples;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use ringway_filter::{Error, Filter};

const DROP: u32 = 1;
const PASS: u32 = 2;

/// Any end of the linear part; the rest is in fragments.
fn check(filter: &Filter, frame: &[u8], linear: Index) {
    let program = filter.translate_to_verdict(DROP, PASS);
    let expected = if filter.matches(frame, frame.len() as u32) { DROP } else { PASS };
    for linear in [frame.len(), linear.index(frame.len() + 1)] {
        let ran = machine::run(&program, frame, linear);
        assert_eq!(
            ran.verdict,
            expected.into(),
            "{:?}: {linear} linear bytes of {frame:02x?}",
            filter.classic()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn realistic_filters(
        number in 0..samples::REALISTIC.len(),
        frames in vec((samples::frame(), any::<Index>()), 20)
    ) {
        let filter = Filter::compile(samples::REALISTIC[number], 65_535).unwrap();
        for (frame, linear) in &frames {
            check(&filter, frame, *linear);
        }
    }

    #[test]
    fn random_filters(
        expression in samples::expression(),
        frames in vec((samples::frame(), any::<Index>()), 20)
    ) {
        match Filter::compile(&expression, 65_535) {
            Ok(filter) => frames.iter().for_each(|(frame, linear)| check(&filter, frame, *linear)),
            // What libpcap finds impossible, or that divides by a constant that is zero.
            Err(Error::NeverMatches { .. } | Error::Syntax { .. }) => {}
            Err(error) => panic!("{expression}: {error}"),
        }
    }

    #[test]
    fn random_programs(
        program in samples::program(60),
        frames in vec((samples::frame(), any::<Index>()), 20)
    ) {
        let filter = Filter::from_classic(&program).unwrap();
        for (frame, linear) in &frames {
            check(&filter, frame, *linear);
            let matches = filter.matches(frame, frame.len() as u32);
            prop_assert!(!matches || frame.len() < 14 || filter.can_match(), "{program:?}");
        }
    }
}

/// What a packet costs: a few comparisons, in place.
#[test]
fn common_filters_are_short() {
    let frame = |port: u16| {
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[23] = 6;
        frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame
    };
    let filter = Filter::compile("tcp and host 192.0.2.1 and port 80", 65_535).unwrap();
    let program = filter.translate_to_verdict(DROP, PASS);
    for (port, verdict, most) in [(80, DROP, 55), (81, PASS, 55)] {
        let frame = frame(port);
        let ran = machine::run(&program, &frame, frame.len());
        assert_eq!(ran.verdict, verdict.into());
        assert!(ran.instructions <= most, "{ran:?}");
    }
    let other = machine::run(&program, &[0; 60], 60);
    assert!(other.verdict == PASS.into() && other.instructions <= 15, "{other:?}");
}
