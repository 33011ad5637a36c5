//! The ledger balances whatever the program and the kernel do, against a simulated kernel: no frame
//! is lost, none is in two places, and packets arrive and leave as they are, through the overflow
//! of the rings' indices.
#![allow(clippy::unwrap_used)]

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_xsk::fake_kernel::{self, Arrival, FakeKernel};
use ringway_xsk::{Batch, Descriptor, Packet, Pool, SHORTEST, Transfer, Umem, UmemConfig, Use};

const FRAMES: u32 = 24;
const SLOTS: u32 = 8;
const USE: Use = Use { fill: 6, need_wakeup: false, busy_poll: false, several_frames: true };

fn pool() -> Pool {
    Umem::new(&UmemConfig { frames: FRAMES, ..UmemConfig::default() }).unwrap().pool().unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Append(usize),
    Drop(usize),
    Receive(usize),
    Send(usize),
    Flush,
    TakeFill(u32),
    Deliver(usize),
    Transmit,
    Complete(u32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..5_usize).prop_map(Step::Allocate),
        (0..5000_usize).prop_map(Step::Append),
        (0..5_usize).prop_map(Step::Drop),
        (0..7_usize).prop_map(Step::Receive),
        (0..7_usize).prop_map(Step::Send),
        Just(Step::Flush),
        (0..9_u32).prop_map(Step::TakeFill),
        prop_oneof![14..1792_usize, 1792..6000_usize].prop_map(Step::Deliver),
        Just(Step::Transmit),
        (0..9_u32, 0..9_usize).prop_map(|(count, skip)| Step::Complete(count, skip)),
    ]
}

/// A program's packets, and what is known of them.
struct World {
    pool: Pool,
    queue: fake_kernel::Queue,
    kernel: FakeKernel,
    held: Vec<Packet>,
    contents: Vec<Vec<u8>>,
    arriving: VecDeque<Vec<u8>>,
    leaving: VecDeque<Vec<u8>>,
    number: u8,
}

impl World {
    fn new(before: u32) -> Self {
        let pool = pool();
        let (queue, kernel) = fake_kernel::queue(&pool, SLOTS, 0_u32.wrapping_sub(before), USE);
        let (held, contents) = (Vec::new(), Vec::new());
        let (arriving, leaving) = (VecDeque::new(), VecDeque::new());
        Self { pool, queue, kernel, held, contents, arriving, leaving, number: 0 }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        vec![self.number; len]
    }

    fn keep(&mut self, packet: Packet) {
        self.contents.push(packet.segments().flatten().copied().collect());
        self.held.push(packet);
    }

    fn take(&mut self, count: usize) -> (Batch, Vec<Vec<u8>>) {
        let count = count.min(self.held.len());
        let mut batch = Batch::new(count);
        self.held.drain(..count).for_each(|packet| batch.push(packet).unwrap());
        (batch, self.contents.drain(..count).collect())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Allocate(count) => {
                let mut batch = Batch::new(count);
                let allocated = self.pool.allocate_burst(&mut batch, count);
                assert_eq!(allocated, batch.len());
                for mut packet in batch.drain() {
                    packet.append(&self.bytes(20)).unwrap();
                    self.keep(packet);
                }
            }
            Step::Append(len) => {
                let bytes = self.bytes(len);
                if let (Some(packet), Some(content)) =
                    (self.held.last_mut(), self.contents.last_mut())
                    && packet.append(&bytes).is_ok()
                {
                    content.extend(bytes);
                }
            }
            Step::Drop(count) => drop(self.take(count)),
            Step::Receive(room) => {
                let mut batch = Batch::new(room);
                let received = self.queue.receive(&mut batch).unwrap();
                assert_eq!(received, batch.len());
                for packet in batch.drain() {
                    self.keep(packet);
                    assert_eq!(self.contents.last(), self.arriving.pop_front().as_ref());
                }
            }
            Step::Send(count) => {
                let (mut batch, mut contents) = self.take(count);
                // Some of a kernel that lies are too short to be sent.
                let mut long = batch.iter().map(|p| p.data().len() >= SHORTEST).collect::<Vec<_>>();
                contents.retain(|_| long.remove(0));
                batch.retain(|packet| packet.data().len() >= SHORTEST);
                let sent = self.queue.send(&mut batch).unwrap();
                assert_eq!(sent + batch.len(), contents.len());
                self.leaving.extend(contents.drain(..sent));
                self.held.extend(batch.drain());
                self.contents.extend(contents);
            }
            Step::Flush => self.queue.flush().unwrap(),
            Step::TakeFill(count) => drop(self.kernel.take_fill(count)),
            Step::Deliver(len) => {
                let bytes = self.bytes(len);
                if self.kernel.deliver(&bytes) == Arrival::Delivered {
                    self.arriving.push_back(bytes);
                }
            }
            // In the middle of a packet of several frames the kernel would not stop.
            Step::Transmit => {
                for packet in self.kernel.transmit(u32::MAX) {
                    assert_eq!(Some(packet), self.leaving.pop_front());
                }
            }
            Step::Complete(count, skip) => drop(self.kernel.complete(count, skip)),
        }
    }

    fn check(&self) {
        let audit = self.pool.audit(&[self.queue.rings()]);
        assert!(audit.balanced(), "{audit}");
        let found = audit.found;
        let held: usize = self.held.iter().map(Packet::frames).sum();
        // A packet that has arrived in part is not the program's yet.
        assert!(found.held >= held as u64, "{audit}");
        let all = found.free
            + found.fill
            + found.kernel_rx
            + found.rx
            + found.held
            + found.tx
            + found.kernel_tx
            + found.completion
            + found.away;
        assert_eq!(all, FRAMES.into(), "{audit}");
        assert_eq!((found.kernel_rx, found.kernel_tx), {
            let (to_fill, sent) = self.kernel.has();
            (to_fill as u64, sent as u64)
        });
        self.check_owners();
    }

    /// No frame has two owners: each packet has its own, and holds what was written there.
    fn check_owners(&self) {
        let mut frames = HashSet::new();
        for (packet, content) in self.held.iter().zip(&self.contents) {
            assert!(packet.segments().all(|bytes| frames.insert(bytes.as_ptr() as usize / 2048)));
            assert!(packet.segments().flatten().eq(content), "{packet:?}");
        }
    }

    fn lie(&mut self, lie: Lie) {
        match lie {
            Lie::Complete(address) => drop(self.kernel.complete_address(address)),
            Lie::Deliver(descriptor) => drop(self.kernel.deliver_descriptor(descriptor)),
            Lie::Write(at, word) => {
                let (_, frames, ledger) = self.pool.umem().place();
                // SAFETY: only the ledger is written, no frame.
                let file = unsafe { self.pool.umem().file() }.try_clone_to_owned().unwrap();
                let at = frames + at % (ledger - 8);
                File::from(file).write_all_at(&word.to_ne_bytes(), at as u64).unwrap();
            }
        }
    }

    fn among_liars(before: u32, steps: Vec<Result<Step, Lie>>) -> Self {
        let mut world = Self::new(before);
        for step in steps {
            match step {
                Ok(step) => world.step_among_liars(step),
                Err(lie) => world.lie(lie),
            }
            world.check_owners();
        }
        world
    }

    /// A step of somebody who expects nothing, whoever lies.
    fn step_among_liars(&mut self, step: Step) {
        match step {
            Step::Receive(room) => {
                let mut batch = Batch::new(room);
                self.queue.receive(&mut batch).unwrap();
                batch.drain().for_each(|packet| self.keep(packet));
            }
            // Arriving packets differ from those that were sent; held ones do not.
            Step::Transmit => drop(self.kernel.transmit(u32::MAX)),
            step => self.step(step),
        }
    }

    /// All that there was is free when all is over, also what the kernel had.
    fn end(self) -> Pool {
        let World { pool, queue, held, .. } = self;
        drop((queue, held));
        assert_eq!(pool.free(), FRAMES);
        pool
    }
}

/// Values that a kernel would never give and that only this process should write.
#[derive(Clone, Debug)]
enum Lie {
    Complete(u64),
    Deliver(Descriptor),
    Write(usize, u64),
}

fn lie() -> impl Strategy<Value = Lie> {
    let address = || prop_oneof![0..u64::from(FRAMES + 2) * 2048, any::<u64>()];
    let len = prop_oneof![0..2049_u32, any::<u32>()];
    prop_oneof![
        address().prop_map(Lie::Complete),
        (address(), len, 0..2_u32).prop_map(|(address, len, options)| Lie::Deliver(Descriptor {
            address,
            len,
            options
        })),
    ]
}

fn forgery() -> impl Strategy<Value = Lie> {
    let word = prop_oneof![
        // Numbers of frames, and records.
        (0..u64::from(FRAMES + 2), 0..u64::from(FRAMES + 2)).prop_map(|(a, b)| a << 32 | b),
        (1..6_u64, 0..2_u64).prop_map(|(place, stage)| stage << 8 | place),
        any::<u64>(),
    ];
    (0..1_usize << 20, word).prop_map(|(at, word)| Lie::Write(at / 8 * 8, word))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn balanced_at_every_step(before in 0..40_u32, steps in vec(step(), 1..150)) {
        let mut world = World::new(before);
        for step in steps {
            world.step(step);
            world.check();
        }
        let audit = world.end().audit(&[]);
        prop_assert!(audit.balanced(), "{}", audit);
    }

    /// Wrong values cost packets, never memory safety: no frame has two owners.
    #[test]
    fn a_kernel_that_lies(before in 0..40_u32, steps in vec(prop_oneof![
        step().prop_map(Ok), lie().prop_map(Err),
    ], 1..150)) {
        let audit = World::among_liars(before, steps).end().audit(&[]);
        prop_assert!(audit.balanced(), "{}", audit);
    }

    /// Somebody who has the file overwrites the ledger at any time, and the kernel lies, too.
    #[test]
    fn a_ledger_that_others_write(before in 0..40_u32, steps in vec(prop_oneof![
        2 => step().prop_map(Ok), 1 => lie().prop_map(Err), 2 => forgery().prop_map(Err),
    ], 1..150)) {
        // It may say anything, and says it.
        World::among_liars(before, steps).end().audit(&[]);
    }
}

/// A kernel that is played touches only frames that it has. The others may be in packets.
#[test]
fn a_kernel_that_goes_on_after_its_end() {
    let pool = pool();
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, SLOTS, 0, USE);
    let mut batch = Batch::new(FRAMES as usize);
    queue.receive(&mut batch).unwrap();
    kernel.take_fill(6);
    let mut packet = pool.allocate().unwrap();
    packet.append(&[1; 60]).unwrap();
    let address = u64::from(packet.frame()) * 2048;
    assert!(queue.send_one(packet).unwrap().is_none());
    // It says that both are done, and goes on with them.
    kernel.complete_address(address);
    kernel.deliver_descriptor(Descriptor { address: 0, len: 60, options: 0 });
    assert_eq!(queue.receive(&mut batch).unwrap(), 1);
    let before = batch[0].data().to_vec();
    assert_eq!(kernel.deliver(&[9; 1000]), Arrival::Delivered);
    assert_eq!(batch[0].data(), before);
    assert_eq!(kernel.transmit(9), [[]]);
    drop(queue);
    pool.allocate_burst(&mut batch, FRAMES as usize);
    batch.iter_mut().for_each(|packet| packet.buffer_mut().fill(7));
    (0..5).for_each(|_| assert_eq!(kernel.deliver(&[9; 1000]), Arrival::Delivered));
    assert!(batch.iter_mut().all(|packet| packet.buffer_mut().iter().all(|byte| *byte == 7)));
}

/// Two queues of one pool: what came by one leaves by the other, without a copy.
#[test]
fn from_one_queue_to_another() {
    let pool = pool();
    let (mut left, mut left_kernel) = fake_kernel::queue(&pool, SLOTS, 0, USE);
    let (mut right, mut right_kernel) = fake_kernel::queue(&pool, SLOTS, 0, USE);
    let mut batch = Batch::new(4);
    left.receive(&mut batch).unwrap();
    assert_eq!(left_kernel.deliver(&[7; 100]), Arrival::Delivered);
    assert_eq!(left.receive(&mut batch).unwrap(), 1);
    let place = batch[0].data().as_ptr();
    batch[0].data_mut()[0] = 8;
    assert_eq!(batch[0].data().as_ptr(), place);
    assert_eq!(right.send(&mut batch).unwrap(), 1);
    let sent = right_kernel.transmit(9);
    assert_eq!((sent[0].len(), sent[0][0], sent[0][1]), (100, 8, 7));
    let audit = pool.audit(&[left.rings(), right.rings()]);
    assert!(audit.balanced() && audit.found.kernel_tx == 1, "{audit}");
    drop(right);
    assert_eq!(pool.counts().unsent, 1);
    let audit = pool.audit(&[left.rings()]);
    assert!(audit.balanced(), "{audit}");
}

/// The pool, its UMEM and its queue are gone, and a packet is still there.
#[test]
fn packets_outlive_all_else() {
    let pool = pool();
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, SLOTS, 0, USE);
    let mut batch = Batch::new(4);
    queue.receive(&mut batch).unwrap();
    kernel.deliver(&[7; 3000]);
    queue.receive(&mut batch).unwrap();
    pool.allocate_burst(&mut batch, 3);
    drop((queue, kernel, pool));
    let packet = batch.swap_remove(0);
    assert_eq!((packet.frames(), packet.len()), (2, 3000));
    drop(batch);
    assert!(packet.segments().flatten().all(|byte| *byte == 7));
}

#[test]
fn what_cannot_be_sent_is_counted() {
    let (pool, other) = (pool(), pool());
    let only_single = Use { several_frames: false, ..USE };
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, SLOTS, 0, only_single);
    let mut batch = Batch::new(9);
    other.allocate_burst(&mut batch, 1);
    batch[0].append(&[1; 60]).unwrap();
    let copy = batch[0].copy_to(&pool).unwrap();
    batch.push(copy).unwrap();
    pool.allocate_burst(&mut batch, 2);
    batch[2].append(&[2; 13]).unwrap();
    batch[3].append(&[3; 5000]).unwrap();
    assert_eq!(queue.send(&mut batch).unwrap(), 1);
    assert!(batch.is_empty());
    assert_eq!(kernel.transmit(9), [[1; 60]]);
    let counts = queue.counts();
    assert_eq!((counts.unsendable_packets, counts.sent_packets), (3, 1));
    assert_eq!((other.free(), pool.free()), (FRAMES, FRAMES - 1));
}

/// One that never ends, and one with a frame in the middle that is no frame: both are dropped
/// whole, and the next is not.
#[test]
fn packets_that_are_broken() {
    let pool = pool();
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, 32, 0, Use { fill: 22, ..USE });
    let mut batch = Batch::new(32);
    queue.receive(&mut batch).unwrap();
    kernel.take_fill(22);
    let frame = |n: u64| Descriptor { address: n * 2048, len: 9, options: Descriptor::CONTINUED };
    let first = u64::from(FRAMES - pool.free()) - 22;
    for n in 0..17 {
        kernel.deliver_descriptor(frame(first + n));
    }
    kernel.deliver_descriptor(Descriptor { options: 0, ..frame(first + 17) });
    assert_eq!(queue.receive(&mut batch).unwrap(), 0);
    assert_eq!((queue.counts().broken_packets, queue.counts().received_frames), (1, 18));
    kernel.deliver_descriptor(frame(first + 18));
    kernel.deliver_descriptor(frame(u64::from(FRAMES)));
    // Until the rest of it is there, too.
    assert_eq!(queue.receive(&mut batch).unwrap(), 0);
    assert_eq!(queue.counts().broken_packets, 1);
    kernel.deliver_descriptor(Descriptor { options: 0, ..frame(first + 19) });
    kernel.deliver_descriptor(Descriptor { options: 0, ..frame(first + 20) });
    assert_eq!(queue.receive(&mut batch).unwrap(), 1);
    assert_eq!(batch[0].frame() as u64, first + 20);
    assert_eq!((queue.counts().broken_packets, queue.counts().rx_unbelievable), (2, 1));
    let audit = pool.audit(&[queue.rings()]);
    assert!(audit.balanced() && audit.found.held == 1, "{audit}");
}

#[test]
fn full_and_starved() {
    let pool = pool();
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, SLOTS, u32::MAX - 3, USE);
    let mut batch = Batch::new(FRAMES as usize);
    pool.allocate_burst(&mut batch, FRAMES as usize);
    batch.iter_mut().for_each(|packet| packet.append(&[0; 60]).unwrap());
    assert_eq!(queue.send(&mut batch).unwrap(), SLOTS as usize);
    assert_eq!(queue.counts().tx_full_packets, u64::from(FRAMES - SLOTS));
    // Zero progress, as long as the kernel makes none.
    assert_eq!(queue.send(&mut batch).unwrap(), 0);
    assert_eq!(queue.receive(&mut Batch::new(3)).unwrap(), 0);
    assert_eq!(queue.counts().starved_times, 1);
    assert_eq!(kernel.deliver(&[1; 60]), Arrival::NoFrame);
    // One completion makes room for one, and not before the kernel has taken it from TX.
    assert_eq!(kernel.transmit(1).len(), 1);
    assert_eq!(kernel.complete(9, 0), 1);
    assert_eq!(queue.send(&mut batch).unwrap(), 1);
    let packet = batch.pop().unwrap();
    let packet = queue.send_one(packet).unwrap().expect("TX is full");
    drop((batch, packet));
    assert!(pool.audit(&[queue.rings()]).balanced());
}

#[test]
fn woken_only_where_it_asks() {
    let pool = pool();
    let mut batch = Batch::new(2);
    let fill = |batch: &mut Batch| {
        pool.allocate_burst(batch, 1);
        batch[0].append(&[0; 60]).unwrap();
    };
    let (mut queue, mut kernel) =
        fake_kernel::queue(&pool, SLOTS, 0, Use { need_wakeup: true, ..USE });
    fill(&mut batch);
    queue.send(&mut batch).unwrap();
    queue.receive(&mut batch).unwrap();
    assert_eq!(kernel.woken(), (0, 0));
    kernel.ask_for_wakeups(true);
    queue.receive(&mut batch).unwrap();
    queue.flush().unwrap();
    assert_eq!(kernel.woken(), (1, 1));
    // Nothing to be sent or completed.
    kernel.transmit(9);
    kernel.complete(9, 0);
    queue.flush().unwrap();
    queue.flush().unwrap();
    assert_eq!(kernel.woken().1, 2);
    kernel.refuse_wakeups(Some(libc::ENETDOWN));
    fill(&mut batch);
    let error = queue.send(&mut batch).unwrap_err().to_string();
    assert!(error.contains("ip link set"), "{error}");
    assert!(batch.is_empty(), "it is in TX");

    let (mut queue, kernel) = fake_kernel::queue(&pool, SLOTS, 0, Use { busy_poll: true, ..USE });
    fill(&mut batch);
    queue.send(&mut batch).unwrap();
    queue.receive(&mut batch).unwrap();
    assert_eq!(kernel.woken(), (1, 1));
}

/// Workers hand packets to one another. Some are adopted, some dropped on the way; every frame is
/// somebody's in the end, and what a packet holds arrives with it.
#[test]
fn between_two_workers() {
    const ROUNDS: usize = 2000;
    let umem = Umem::new(&UmemConfig { frames: 64, pools: 2, ..UmemConfig::default() }).unwrap();
    let (there, arrive) = mpsc::sync_channel::<Transfer>(8);
    let (back, return_here) = mpsc::sync_channel::<Transfer>(8);
    let other = umem.clone();
    let worker = thread::spawn(move || {
        let pool = other.pool().unwrap();
        for (n, transfer) in arrive.into_iter().enumerate() {
            if n % 3 == 0 {
                continue;
            }
            let packet = pool.adopt(transfer).unwrap();
            assert!(packet.segments().flatten().all(|byte| *byte == packet.data()[0]));
            // Its own frames, as many, instead of those it keeps.
            let copy = (n % 3 == 1).then(|| packet.copy_to(&pool)).flatten();
            back.send(copy.unwrap_or(packet).into_transfer()).unwrap();
        }
        assert!(pool.audit(&[]).balanced(), "{}", pool.audit(&[]));
        pool.counts()
    });
    let pool = umem.pool().unwrap();
    let (mut rounds, end) = (0, Instant::now() + Duration::from_secs(60));
    while rounds < ROUNDS {
        assert!(Instant::now() < end, "{rounds} rounds, {}", pool.audit(&[]));
        return_here.try_iter().for_each(|transfer| drop(pool.adopt(transfer).unwrap()));
        // All frames are on their way.
        let Some(mut packet) = pool.allocate() else {
            thread::yield_now();
            continue;
        };
        let long = if rounds % 10 == 0 { 4000 } else { 100 };
        if packet.append(&vec![rounds as u8; long]).is_err() {
            continue;
        }
        rounds += 1;
        let transfer = packet.into_transfer();
        if rounds % 7 == 0 { drop(transfer) } else { there.send(transfer).unwrap() }
    }
    drop(there);
    return_here.into_iter().for_each(|transfer| drop(pool.adopt(transfer).unwrap()));
    let theirs = worker.join().unwrap();
    let mut batch = Batch::new(64);
    pool.allocate_burst(&mut batch, 64);
    drop(batch);
    let (audit, ours) = (pool.audit(&[]), pool.counts());
    assert!(audit.balanced() && audit.found.away == 0, "{audit}");
    assert!(ours.returned > 0);
    assert_eq!(ours.handed + theirs.handed, ours.adopted + theirs.adopted + ours.returned);
    let stranger = self::pool().allocate().unwrap().into_transfer();
    assert!(pool.adopt(stranger).is_err());
}

/// Every tenth packet is kept by stage 3 and never let go; what is just held by others is younger.
#[test]
fn a_leak_is_named() {
    let umem = Umem::new(&UmemConfig { frames: 1000, ..UmemConfig::default() }).unwrap();
    let (pool, mut watch) = (umem.pool().unwrap(), umem.watch());
    let mut leak = Vec::new();
    for now in 0..200_u32 {
        pool.set_now(now.wrapping_sub(100));
        let mut packet = pool.allocate().unwrap();
        if now % 10 == 0 {
            packet.set_stage(3);
            leak.push(packet);
        }
    }
    pool.set_now(100);
    let _young = pool.allocate();
    let (mut found, mut looks) = (Vec::new(), 0);
    while !watch.aged(300, 50, &mut found) {
        looks += 1;
    }
    assert_eq!(looks, 3);
    let [aged] = *found else { panic!("{found:?}") };
    assert_eq!((aged.pool, aged.stage, aged.frames, aged.oldest), (0, 3, 15, 200));
    assert_eq!(watch.record(aged.frame).map(|r| r.stage), Some(3));
    assert_eq!(aged.frame, leak[0].frame());
}
