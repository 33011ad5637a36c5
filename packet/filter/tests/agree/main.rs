//! The translation says what libpcap's own interpreter says, always. Here by an interpreter of our own, which needs no root;
//! tests/bpf asks the kernel the same.

#![allow(clippy::unwrap_used)]

mod machine;
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
        }
    }
}
