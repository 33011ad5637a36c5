//! Rings against a queue that cannot be wrong, through the overflow of their indices; and between
//! two threads.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_ring::{in_memory, in_memory_from};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reserve so many, push so many, and submit or drop.
    Produce { reserve: u32, push: u32, submit: bool },
    /// Peek at so many, release so many of them, or drop.
    Consume { peek: u32, release: Option<u32> },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..12_u32, 0..12_u32, prop::bool::weighted(0.8))
            .prop_map(|(reserve, push, submit)| Step::Produce { reserve, push, submit }),
        (0..12_u32, prop::option::weighted(0.8, 0..12_u32))
            .prop_map(|(peek, release)| Step::Consume { peek, release }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn as_a_queue(exponent in 0..4_u32, before in 0..40_u32, steps in vec(step(), 1..100)) {
        let size = 1 << exponent;
        let (mut producer, mut consumer) = in_memory_from(size, 0_u32.wrapping_sub(before));
        let mut queue = VecDeque::new();
        let mut number = 0_u64;
        for step in steps {
            match step {
                Step::Produce { reserve, push, submit } => {
                    let mut reserved = producer.reserve(reserve).unwrap();
                    let free = size - queue.len() as u32;
                    prop_assert_eq!(reserved.remaining(), reserve.min(free));
                    let fit = push.min(reserved.remaining());
                    let numbers: Vec<_> = (number..).take(fit as usize).collect();
                    for number in &numbers {
                        prop_assert_eq!(reserved.push(*number), Ok(()));
                    }
                    if reserved.remaining() == 0 {
                        prop_assert_eq!(reserved.push(u64::MAX), Err(u64::MAX));
                    }
                    if submit {
                        prop_assert_eq!(reserved.submit(), fit);
                        queue.extend(numbers);
                        number += u64::from(fit);
                    }
                }
                Step::Consume { peek, release } => {
                    let peeked = consumer.peek(peek).unwrap();
                    let there = peek.min(queue.len() as u32);
                    prop_assert_eq!(peeked.len(), there);
                    prop_assert!(peeked.iter().eq(queue.iter().copied().take(there as usize)));
                    if let Some(count) = release {
                        let released = peeked.release_first(count);
                        prop_assert_eq!(released, count.min(there));
                        queue.drain(..released as usize);
                    }
                }
            }
        }
    }
}

/// Once through all indices would take long; past the overflow is enough.
#[test]
fn two_threads() {
    const ALL: u64 = 20_000;
    let (mut producer, mut consumer) = in_memory_from(1024, u32::MAX - 5_000);
    let sender = thread::spawn(move || {
        let mut number = 0;
        while number < ALL {
            let mut reserved = producer.reserve(256).unwrap();
            while number < ALL && reserved.push(number).is_ok() {
                number += 1;
            }
            if reserved.submit() == 0 {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < ALL {
        let peeked = consumer.peek(256).unwrap();
        for number in peeked.iter() {
            assert_eq!(number, expected);
            expected += 1;
        }
        if peeked.is_empty() {
            thread::yield_now();
        }
        peeked.release();
    }
    sender.join().unwrap();
}

#[test]
fn one_side_may_go_first() {
    let (mut producer, consumer) = in_memory::<u64>(2);
    drop(consumer);
    let mut reserved = producer.reserve(3).unwrap();
    assert_eq!((reserved.push(1), reserved.push(2), reserved.push(3)), (Ok(()), Ok(()), Err(3)));
    assert_eq!(reserved.submit(), 2);
    assert_eq!(producer.reserve(1).unwrap().remaining(), 0);
}
