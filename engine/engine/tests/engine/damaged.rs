//! Any frame is counted and dropped, or answered; there is never a panic, nor a frame or packet
//! that is unaccounted for.

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_engine::App;
use ringway_engine::apps::{Bid, Icmp, L2fwd, Macs, Sink, Source, UdpEcho};

use crate::bench_of::Bench;
use crate::frames;

fn apps() -> Vec<Box<dyn App>> {
    vec![
        Box::new(L2fwd::new(Macs::Swap)),
        Box::new(Icmp::new(frames::host())),
        Box::new(UdpEcho::new(frames::host(), frames::PORT)),
        Box::new(Bid::new(frames::host(), frames::PORT, frames::offers(), 4)),
        Box::new(Sink::default()),
        Box::new(Source::new(frames::ping(), 10, 4)),
    ]
}

fn through_every_app(frames: &[Vec<u8>]) {
    for app in apps() {
        let mut bench = Bench::new(app);
        for some in frames.chunks(64) {
            let some: Vec<_> = some.iter().filter(|frame| !frame.is_empty()).cloned().collect();
            bench.send(&some);
            bench.round();
            bench.balanced();
        }
        let packets = bench.worker.status().packets;
        let wanted = frames.iter().filter(|f| !f.is_empty()).count() as u64;
        assert_eq!(packets.received_packets, wanted);
        bench.end();
    }
}

/// Each frame cut at each byte.
#[test]
fn cut() {
    let frames = frames::all();
    let cut = frames.iter().flat_map(|frame| (1..=frame.len()).map(|len| frame[..len].to_vec()));
    through_every_app(&cut.collect::<Vec<_>>());
}

/// Each byte of each frame, as other values that mean something to somebody.
#[test]
fn changed() {
    let mut changed = Vec::new();
    for frame in frames::all() {
        for at in 0..frame.len() {
            for to in
                [0, 1, 0x7f, 0x80, 0xff, frame[at] ^ 1, frame[at] ^ 0x10, frame[at].wrapping_add(1)]
            {
                let mut frame = frame.clone();
                frame[at] = to;
                changed.push(frame);
            }
        }
    }
    through_every_app(&changed);
}

proptest! {
    #[test]
    fn any_bytes(frames in vec(vec(any::<u8>(), 0..200), 0..64)) {
        through_every_app(&frames);
    }

    /// `PROPTEST_CASES=1000000` makes it a long run.
    #[test]
    fn damaged(
        which in vec(any::<prop::sample::Index>(), 1..64),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        longer in 0_usize..3000, cut in any::<prop::sample::Index>(),
    ) {
        let all = frames::all();
        let mut some: Vec<_> = which.iter().map(|index| index.get(&all).clone()).collect();
        for (n, frame) in some.iter_mut().enumerate() {
            for (at, byte) in &changes {
                let at = at.index(frame.len());
                frame[at] = byte.wrapping_add(n as u8);
            }
            match n % 3 {
                0 => frame.truncate(cut.index(frame.len() + 1)),
                1 => frame.resize(frame.len() + longer, 0xa5),
                _ => (),
            }
        }
        through_every_app(&some);
    }
}
