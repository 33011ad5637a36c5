//! A small ring whose indices overflow.

use loom::thread;
use ringway_ring::in_memory_from;

/// Entries are consumed in the order in which they were produced, and none is lost. loom itself
/// checks that no slot is read while it is written. Each side tries a fixed number of times: if
/// they waited for each other, the number of orders would have no bound.
fn passes_through(size: u32, burst: u32, tries: usize) {
    loom::model(move || {
        let (mut producer, mut consumer) = in_memory_from(size, u32::MAX);
        let sender = thread::spawn(move || {
            let mut number = 0;
            for _ in 0..tries {
                let mut reserved = producer.reserve(burst).unwrap();
                while reserved.push(number + 1).is_ok() {
                    number += 1;
                }
                reserved.submit();
            }
            number
        });
        let mut last = 0;
        let mut consume = || {
            let peeked = consumer.peek(burst).unwrap();
            for number in peeked.iter() {
                assert_eq!(number, last + 1);
                last = number;
            }
            let none = peeked.is_empty();
            peeked.release();
            none
        };
        for _ in 0..tries {
            consume();
        }
        let sent: u64 = sender.join().unwrap();
        while !consume() {}
        assert_eq!(last, sent);
    });
}

#[test]
fn one_slot() {
    passes_through(1, 1, 3);
}

#[test]
fn two_slots() {
    passes_through(2, 2, 2);
}
