//! Records of the packet path's maps, which CPUs share without locks, transcribed from C: flows
//! (bpf/gateway/flow.bpf.h, claim.bpf.h, confirm.bpf.h) and tracks (track.bpf.h). A model with one
//! barrier less fails, so that each is needed. loom is here, and so are they.
//!
//! A barrier of C is a fence here: an atomic operation of eBPF that returns a value orders
//! everything before it and behind it; READ_ONCE and WRITE_ONCE order nothing.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

/// Which atomic operation is without its barriers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// read_ordered() of a reader: a plain load, as it is on x86.
    Reading,
    /// __sync_lock_test_and_set() of the word that publishes: a plain store.
    Publishing,
    /// __sync_val_compare_and_swap() of a claim.
    Claiming,
}

/// `work`, with a barrier at each side.
fn ordered<T>(with_barriers: bool, work: impl FnOnce() -> T) -> T {
    if with_barriers {
        fence(SeqCst);
    }
    let result = work();
    if with_barriers {
        fence(SeqCst);
    }
    result
}

impl Without {
    fn read_ordered(self, word: &AtomicU64) -> u64 {
        ordered(self != Self::Reading, || word.load(Relaxed))
    }

    fn publish(self, word: &AtomicU64, value: u64) {
        ordered(self != Self::Publishing, || word.store(value, Relaxed));
    }

    fn claim(self, word: &AtomicU64, old: u64, new: u64) -> bool {
        let swap = || word.compare_exchange(old, new, Relaxed, Relaxed).is_ok();
        ordered(self != Self::Claiming, swap)
    }
}

const FREE: u64 = 0;
/// Being written: RW_FLOW_CLAIMED, TRACK_BEING_WRITTEN.
const CLAIMED: u64 = 1;

/// A flow: its fields are those of the flow that its key names.
#[derive(Default)]
struct Flow {
    key: AtomicU64,
    client: AtomicU64,
    port: AtomicU64,
}

impl Flow {
    /// flow_claim() and flow_open().
    fn open(&self, from: u64, key: u64, without: Without) {
        if !without.claim(&self.key, from, CLAIMED) {
            return;
        }
        self.client.store(key, Relaxed);
        self.port.store(key, Relaxed);
        without.publish(&self.key, key);
    }

    /// flow_requests(): the client and port of the flow, if it is one and stays the same meanwhile.
    fn read(&self, without: Without) -> Option<(u64, [u64; 2])> {
        let key = without.read_ordered(&self.key);
        let fields = [self.client.load(Relaxed), self.port.load(Relaxed)];
        (key > CLAIMED && without.read_ordered(&self.key) == key).then_some((key, fields))
    }
}

/// A flow that another one follows in its record, while a third CPU reads it.
fn flow_is_read_whole(without: Without) {
    loom::model(move || {
        let flow = Arc::new(Flow::default());
        flow.open(FREE, 2, Without::Nothing);
        let shared = flow.clone();
        let writer = thread::spawn(move || shared.open(2, 3, without));
        if let Some((key, fields)) = flow.read(without) {
            assert_eq!(fields, [key; 2]);
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_flow_is_read_whole() {
    flow_is_read_whole(Without::Nothing);
}

#[test]
#[should_panic]
fn a_flow_needs_ordered_reads() {
    flow_is_read_whole(Without::Reading);
}

#[test]
#[should_panic]
fn a_flow_needs_a_barrier_before_it_is_published() {
    flow_is_read_whole(Without::Publishing);
}

#[test]
#[should_panic]
fn a_flow_needs_a_barrier_behind_its_claim() {
    flow_is_read_whole(Without::Claiming);
}

/// claim_take(): two CPUs claim one port in two records of a bucket. Each then looks for the other.
fn one_port_is_claimed_once(without: Without) {
    loom::model(move || {
        let bucket = Arc::new([AtomicU64::new(FREE), AtomicU64::new(FREE)]);
        let claims = move |bucket: &[AtomicU64; 2], mine: usize| {
            let claimed = without.claim(&bucket[mine], FREE, CLAIMED);
            claimed && bucket[1 - mine].load(Relaxed) == FREE
        };
        let shared = bucket.clone();
        let other = thread::spawn(move || claims(&shared, 1));
        let first = claims(&bucket, 0);
        assert!(!(first && other.join().unwrap()), "both have the port");
    });
}

#[test]
fn a_port_is_claimed_once() {
    one_port_is_claimed_once(Without::Nothing);
}

#[test]
#[should_panic(expected = "both have the port")]
fn a_claim_needs_a_barrier() {
    one_port_is_claimed_once(Without::Claiming);
}

/// A track: `what` is that of the flow that `who` names: here its number in tens, and how often it
/// was touched.
#[derive(Default)]
struct Track {
    who: AtomicU64,
    what: AtomicU64,
}

impl Track {
    /// track_open(), of a record that had `old_who` and `old_what`.
    fn open(&self, old_who: u64, old_what: u64, who: u64, without: Without) -> bool {
        if !without.claim(&self.who, old_who, CLAIMED) {
            return false;
        }
        // It may have become live since it was read.
        if self.what.load(Relaxed) != old_what {
            self.who.store(old_who, Relaxed);
            return false;
        }
        // Its barriers would stand in for those of the claim, and of the publishing.
        if [Without::Claiming, Without::Publishing].contains(&without) {
            self.what.store(who * 10, Relaxed);
            // Again: loom lets others in before an operation, and not before a fence.
            self.what.store(who * 10, Relaxed);
        } else {
            ordered(true, || self.what.swap(who * 10, Relaxed));
        }
        without.publish(&self.who, who);
        true
    }

    /// track_find().
    fn find(&self, who: u64, without: Without) -> Option<u64> {
        if without.read_ordered(&self.who) != who {
            return None;
        }
        let what = self.what.load(Relaxed);
        (without.read_ordered(&self.who) == who).then_some(what)
    }

    /// track_find() and track_touch().
    fn touch(&self, who: u64, without: Without) -> Option<u64> {
        let what = self.find(who, without)?;
        without.claim(&self.what, what, what + 1);
        Some(what)
    }
}

/// A record whose flow is touched while another flow takes it and is touched, too.
fn track_belongs_to_its_flow(without: Without) {
    loom::model(move || {
        let track = Arc::new(Track::default());
        assert!(track.open(FREE, 0, 2, Without::Nothing));
        let shared = track.clone();
        let taker = thread::spawn(move || shared.open(2, 20, 3, without));
        for who in [2, 3] {
            if let Some(what) = track.touch(who, without) {
                assert_eq!(what / 10, who, "another flow's backend");
            }
        }
        let taken = taker.join().unwrap();
        let who = track.who.load(Relaxed);
        assert_eq!(who, if taken { 3 } else { 2 });
        assert_eq!(track.what.load(Relaxed) / 10, who);
    });
}

#[test]
fn a_track_belongs_to_its_flow() {
    track_belongs_to_its_flow(Without::Nothing);
}

#[test]
#[should_panic(expected = "another flow's backend")]
fn a_track_needs_ordered_reads() {
    track_belongs_to_its_flow(Without::Reading);
}

/// A record that another flow takes, while a third CPU reads it.
fn track_is_read_whole(without: Without) {
    loom::model(move || {
        let track = Arc::new(Track::default());
        assert!(track.open(FREE, 0, 2, Without::Nothing));
        let shared = track.clone();
        let taker = thread::spawn(move || shared.open(2, 20, 3, without));
        for who in [2, 3] {
            if let Some(what) = track.find(who, without) {
                assert_eq!(what / 10, who, "another flow's backend");
            }
        }
        taker.join().unwrap();
    });
}

#[test]
fn a_track_is_read_whole() {
    track_is_read_whole(Without::Nothing);
}

#[test]
#[should_panic(expected = "another flow's backend")]
fn a_track_needs_a_barrier_behind_its_claim() {
    track_is_read_whole(Without::Claiming);
}

#[test]
#[should_panic(expected = "another flow's backend")]
fn a_track_needs_a_barrier_before_it_is_published() {
    track_is_read_whole(Without::Publishing);
}
