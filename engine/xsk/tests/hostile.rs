//! Memory of somebody who means ill: it is refused, or costs packets. It never costs the process
//! that maps it.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use ringway_xsk::fake_kernel::{self, Arrival};
use ringway_xsk::{Batch, Descriptor, Inspector, Packet, Pool, Umem, UmemConfig, UmemError, Use};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

const FRAMES: u32 = 8;
const USE: Use = Use { fill: 2, need_wakeup: false, busy_poll: false, several_frames: true };

fn umem() -> Umem {
    Umem::new(&UmemConfig { frames: FRAMES, ..UmemConfig::default() }).unwrap()
}

/// The memory's file: everyone who was ever given it can write to it, whatever the claim says.
fn file(umem: &Umem) -> File {
    // SAFETY: tests write to the ledger, which must be harmless, and to no frame in use.
    File::from(unsafe { umem.file() }.try_clone_to_owned().unwrap())
}

fn from_file(file: OwnedFd) -> Result<Umem, UmemError> {
    // SAFETY: as above.
    unsafe { Umem::from_file(file) }
}

/// Another mapping of it, as a successor has it.
fn again(umem: &Umem) -> Umem {
    from_file(file(umem).into()).unwrap()
}

fn bytes(umem: &Umem) -> Vec<u8> {
    let (_, frames, ledger) = umem.place();
    let mut bytes = vec![0; frames + ledger];
    file(umem).read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Overwrites all of the ledger behind the header with one word.
fn overwrite(umem: &Umem, word: u32) {
    let (_, frames, ledger) = umem.place();
    let ledger = word.to_ne_bytes().repeat((ledger - 128) / 4);
    file(umem).write_all_at(&ledger, frames as u64 + 128).unwrap();
}

/// Overwrites what is written down about a frame. Records are the end of the ledger.
fn overwrite_record(umem: &Umem, frame: u32, record: u64) {
    let (_, frames, ledger) = umem.place();
    let records = (frames + ledger - 8 * FRAMES.next_multiple_of(16) as usize) as u64;
    file(umem).write_all_at(&record.to_ne_bytes(), records + 8 * u64::from(frame)).unwrap();
}

/// Hands all over, as an engine does to its successor.
fn offer(umem: &Umem) -> Umem {
    // SAFETY: nothing of it is used any more.
    unsafe { umem.offer() };
    again(umem)
}

fn refusal<T: std::fmt::Debug>(result: Result<T, UmemError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn each_pool_is_had_once() {
    let umem = umem();
    let pool = umem.pool().unwrap();
    let said = refusal(umem.take_over_pool(0, FRAMES));
    assert!(said.contains("pool 0: there is none"), "{said}");
    // Another mapping of it has no pools of its own, and no frames before they are offered ...
    let other = again(&umem);
    assert!(other.pool().is_none() && !other.claim());
    let early = other.take_over_pool(0, FRAMES).unwrap();
    assert!(early.allocate().is_none() && early.free() == 0);
    drop(pool);
    // SAFETY: nothing of it is used any more.
    unsafe { umem.offer() };
    assert!(!other.claim() && early.allocate().is_none());
    // ... and it has claimed them.
    let other = again(&umem);
    let (pool, mut batch) = (other.take_over_pool(0, FRAMES).unwrap(), Batch::new(8));
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, 8, 0, USE);
    assert!(pool.allocate().is_none() && pool.allocate_burst(&mut batch, 8) == 0);
    assert_eq!((queue.receive(&mut batch).unwrap(), kernel.take_fill(8)), (0, 0));
    queue.flush().unwrap();
    assert!(other.claim() && !umem.claim());
    assert_eq!(queue.receive(&mut batch).unwrap(), 0);
    assert_eq!((pool.free(), kernel.deliver(&[7; 60])), (FRAMES - 2, Arrival::Delivered));
    assert_eq!(queue.receive(&mut batch).unwrap(), 1);
    let audit = pool.audit(&[queue.rings()]);
    assert!(audit.balanced(), "{audit}");
    let said = refusal(other.take_over_pool(0, FRAMES));
    assert!(said.contains("in use"), "{said}");
    assert!(refusal(other.take_over_pool(1, 0)).contains("pool 1: there is none"));
}

/// Its predecessor has gone on since, and offers the memory to the next one.
#[test]
fn a_late_successor_claims_nothing() {
    let umem = umem();
    let pool = umem.pool().unwrap();
    let late = offer(&umem);
    let _of_late = late.take_over_pool(0, FRAMES).unwrap();
    assert!(umem.claim());
    let transfer = pool.allocate().unwrap().into_transfer();
    drop(pool.adopt(transfer).unwrap());
    let next = offer(&umem);
    assert!(!late.claim());
    next.take_over_pool(0, FRAMES).unwrap();
    assert!(next.claim() && !late.claim() && !umem.claim());
}

/// Why it is refused, and what breaks it.
type Broken = (&'static str, fn(&Umem));

#[test]
fn a_damaged_ledger_is_refused() {
    /// A [`ringway_xsk::Record`] in a word.
    const fn record(place: u64, pool: u64, stage: u64) -> u64 {
        pool << 16 | stage << 8 | place
    }
    let broken: [Broken; 5] = [
        ("frame 3 is still in a packet", |umem| overwrite_record(umem, 3, record(3, 0, 0))),
        ("frame 0 is with queue 64", |umem| overwrite_record(umem, 0, record(2, 0, 64))),
        ("its records show 7", |umem| overwrite_record(umem, 7, record(1, 1, 0))),
        ("its records show 7", |umem| overwrite_record(umem, 5, u64::MAX)),
        ("its counters 9", |umem| {
            // One that the ledger does not know of.
            let mut bytes = bytes(umem);
            let given = u64::from(FRAMES).to_ne_bytes();
            let (_, frames, _) = umem.place();
            let at = bytes[frames..].windows(8).position(|window| window == given).unwrap();
            // The header has the number of frames in four bytes, and zeroes nowhere behind it.
            bytes[frames + at] = 9;
            file(umem).write_all_at(&bytes, 0).unwrap();
        }),
    ];
    for (why, break_it) in broken {
        let umem = umem();
        drop(umem.pool());
        break_it(&umem);
        let said = refusal(offer(&umem).take_over_pool(0, FRAMES));
        assert!(said.contains(why), "{said}, not {why}");
    }
    let umem = umem();
    drop(umem.pool());
    assert!(refusal(offer(&umem).take_over_pool(0, FRAMES + 1)).contains("reports 9 free frames"));
    // A packet that its predecessor still has is nobody's later.
    let pool = again_held();
    let said = refusal(offer(pool.0.umem()).take_over_pool(0, FRAMES - 1));
    assert!(said.contains("frame 0 is still in a packet"), "{said}");
}

/// A frame may come to a pool that is taken over before it has given any.
#[test]
fn frames_come_first() {
    let umem =
        Umem::new(&UmemConfig { frames: FRAMES, pools: 2, ..UmemConfig::default() }).unwrap();
    drop((umem.pool(), umem.pool()));
    let successor = offer(&umem);
    let pools = [0, 1].map(|number| successor.take_over_pool(number, FRAMES / 2).unwrap());
    assert!(successor.claim());
    let transfer = pools[0].allocate().unwrap().into_transfer();
    drop(pools[1].adopt(transfer).unwrap());
    assert_eq!(pools.each_ref().map(Pool::free), [FRAMES / 2 - 1, FRAMES / 2 + 1]);
    let audit = pools[1].audit(&[]);
    assert!(audit.balanced(), "{audit}");
}

/// Frames that were between two pools of the predecessor, or are with the kernel, are its
/// successor's.
#[test]
fn nothing_is_lost_on_the_way() {
    let umem = umem();
    let pool = umem.pool().unwrap();
    let (mut queue, _kernel) = fake_kernel::queue(&pool, 8, 0, USE);
    queue.receive(&mut Batch::new(1)).unwrap();
    let [_kept, dropped] = [0; 2].map(|_| pool.allocate().unwrap().into_transfer());
    drop(dropped);
    let successor = offer(&umem);
    let taken = successor.take_over_pool(0, FRAMES - 4).unwrap();
    assert!(successor.claim());
    let mut batch = Batch::new(FRAMES as usize);
    assert_eq!(taken.allocate_burst(&mut batch, FRAMES as usize), FRAMES as usize - 2);
    let audit = taken.audit(&[]);
    assert!(audit.balanced() && audit.found.kernel_rx == 2, "{audit}");
    // The queue that these frames are with is none of the successor's, unless it goes on with it.
    batch.clear();
    let (fresh, mut kernel) = fake_kernel::queue(&taken, 8, 0, USE);
    assert_eq!(fresh.number(), 1);
    kernel.deliver_descriptor(Descriptor { address: 0, len: 60, options: 0 });
    drop(fresh);
    assert_eq!(taken.free(), FRAMES - 2);
}

fn again_held() -> (Pool, Packet) {
    let pool = umem().pool().unwrap();
    let packet = pool.allocate().unwrap();
    (pool, packet)
}

/// As many packets as a pool has frames for, short and long, each filled with its number.
fn filled(pool: &Pool) -> Batch {
    let mut batch = Batch::new(FRAMES as usize);
    for n in 0..FRAMES {
        let Some(mut packet) = pool.allocate() else { break };
        let long = if n % 2 == 0 { 3000 } else { 60 };
        let len = if packet.append(&vec![n as u8; long]).is_ok() { long } else { 0 };
        assert_eq!(packet.len(), len);
        batch.push(packet).unwrap();
    }
    batch
}

/// Checks that each still has what was written there, in frames of its own.
#[track_caller]
fn check(batch: &Batch) {
    for (n, packet) in batch.iter().enumerate() {
        assert!(packet.segments().flatten().all(|byte| usize::from(*byte) == n), "{n}: {packet:?}");
    }
    let frames: usize = batch.iter().map(Packet::frames).sum();
    let begins = batch.iter().flat_map(|packet| packet.segments().map(<[u8]>::as_ptr));
    assert_eq!(begins.collect::<HashSet<_>>().len(), frames);
}

/// Numbers of frames and records, possible and impossible.
const WORDS: [u32; 7] = [0, 1, 3, 0x0001_0001, FRAMES, u32::MAX / 2, u32::MAX];

/// Somebody who has the file may write at any time. It changes neither free lists nor chains, nor
/// what the kernel has: no frame has two owners.
#[test]
fn what_changes_later_stays_within_the_frames() {
    for word in WORDS {
        let umem = umem();
        drop(umem.pool());
        let successor = offer(&umem);
        let pool = successor.take_over_pool(0, FRAMES).unwrap();
        assert!(successor.claim());
        let (mut queue, mut kernel) = fake_kernel::queue(&pool, 8, 0, USE);
        overwrite(&umem, word);
        let mut arrived = Batch::new(1);
        queue.receive(&mut arrived).unwrap();
        overwrite(&umem, word);
        assert_eq!(kernel.deliver(&[7; 60]), Arrival::Delivered);
        assert_eq!((queue.receive(&mut arrived).unwrap(), arrived[0].len()), (1, 60));
        let mut batch = filled(&pool);
        assert_eq!(batch.iter().map(Packet::frames).sum::<usize>(), FRAMES as usize - 3);
        overwrite(&umem, word);
        check(&batch);
        // Packets that return from other threads, too.
        let transfers: Vec<_> = batch.drain().map(Packet::into_transfer).collect();
        overwrite(&umem, word);
        for (n, transfer) in transfers.into_iter().enumerate() {
            if n % 2 == 0 {
                drop(transfer);
            } else {
                drop(pool.adopt(transfer).unwrap());
            }
        }
        arrived.clear();
        overwrite(&umem, word);
        check(&filled(&pool));
        drop(queue);
        assert_eq!(filled(&pool).iter().map(Packet::frames).sum::<usize>(), FRAMES as usize);
        assert_eq!(pool.free(), FRAMES);
    }
}

/// Where a packet goes on, and how long it is there, is nobody else's to write.
#[test]
fn packets_of_several_frames_stay_within_theirs() {
    let pool = umem().pool().unwrap();
    let mut packet = pool.allocate().unwrap();
    packet.append(&[7; 3000]).unwrap();
    for (n, word) in WORDS.into_iter().enumerate() {
        overwrite(pool.umem(), word);
        packet.append(&[7; 1000]).unwrap();
        assert_eq!(packet.len(), 4000 + 1000 * n);
        assert!(packet.segments().flatten().all(|byte| *byte == 7));
    }
}

/// A forged record says that the kernel has a frame, and the kernel says that it is done with it.
#[test]
fn a_frame_that_is_held_does_not_come_back() {
    let pool = umem().pool().unwrap();
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, 8, 0, USE);
    let mut batch = Batch::new(8);
    pool.allocate_burst(&mut batch, 3);
    batch[0].append(&[1; 60]).unwrap();
    let sent = batch.swap_remove(0);
    assert!(queue.send_one(sent).unwrap().is_none());
    for (at, packet) in batch.iter().enumerate() {
        let (place, frame) = ([2, 4][at], packet.frame());
        overwrite_record(pool.umem(), frame, place);
        let address = u64::from(frame) * 2048;
        kernel.complete_address(address);
        kernel.deliver_descriptor(Descriptor { address, len: 60, options: 0 });
    }
    let before = pool.free();
    assert_eq!(queue.receive(&mut Batch::new(8)).unwrap(), 0);
    assert_eq!(pool.free(), before - USE.fill);
    let counts = queue.counts();
    assert_eq!((counts.rx_unbelievable, counts.completion_unbelievable), (2, 2));
    drop(queue);
    assert_eq!(pool.free(), before + 1);
}

/// The pool ends with its last packet by its own count, whatever the ledger says.
#[test]
fn a_ledger_that_lies_frees_nothing() {
    let umem = umem();
    let pool = umem.pool().unwrap();
    let mut packet = pool.allocate().unwrap();
    overwrite(&umem, 0);
    drop(pool);
    packet.append(b"still here").unwrap();
    assert_eq!(packet.data(), b"still here");
}

fn memfd(bytes: &[u8], len: usize, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("ringway-umem", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = File::from(file.unwrap());
    file.write_all_at(&bytes[..len.min(bytes.len())], 0).unwrap();
    file.set_len(len as u64).unwrap();
    if !seals.is_empty() {
        fcntl_add_seals(&file, seals).unwrap();
    }
    file.into()
}

/// To be read or written, memory that can be cut short, is too short, or is none at all is refused,
/// so that no access is a SIGBUS.
#[test]
fn files_that_are_no_memory() {
    let config = UmemConfig { frames: 4096, ..UmemConfig::default() };
    let umem = Umem::new(&config).unwrap();
    drop(umem.pool());
    let honest = bytes(&umem);
    let (_, frames, _) = umem.place();
    let copy = |len, seals| memfd(&honest, len, seals);
    let page = rustix::param::page_size();
    let whole = honest.len().next_multiple_of(page);
    let (all, shrink) = (SealFlags::SHRINK | SealFlags::GROW, SealFlags::SHRINK);
    from_file(copy(whole, all)).unwrap();
    Inspector::of_file(copy(whole, shrink)).unwrap();
    let cases: [(&dyn Fn() -> OwnedFd, &str); 7] = [
        (&|| copy(whole, SealFlags::empty()), "cut short"),
        (&|| copy(whole, SealFlags::GROW), "cut short"),
        (&|| copy(frames + page, shrink), "shorter than its header says"),
        (&|| copy(frames, shrink), "no header"),
        // To look for a header in a hole takes memory.
        (&|| copy(whole + page, shrink), "holes"),
        (&|| memfd(&[], 0, shrink), ""),
        (&|| File::open("/proc/self/exe").unwrap().into(), "cut short"),
    ];
    for (file, why) in cases {
        for said in [refusal(from_file(file())), refusal(Inspector::of_file(file()))] {
            assert!(said.contains(why), "{said}, not {why}");
        }
    }
}
