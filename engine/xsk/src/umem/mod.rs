//! The memory of packets, shared with the kernel: frames first, then their ledger.
//!
//! ```text
//! +-----------------------+--------+---------+---------+
//! | frames x chunk        | header | ledgers | records |
//! +-----------------------+--------+---------+---------+
//!   registered as UMEM               a pool    a frame
//! ```
//! The ledger lies in the same mapping, so they share its large pages, and a successor that
//! receives the file has it too. The crate's documentation says what is trusted there.

pub(crate) mod inheritance;
pub(crate) mod kernel_frames;
pub(crate) mod memory;
pub(crate) mod memory_map;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::{fmt, io};

use crate::ledger::{Account, Returns, Shared};
use crate::sys;

use inheritance::Inheritance;
use memory::{Memory, Obtained, PageSize, check_file};

/// Bytes of a frame, of which the kernel keeps [`KERNEL_HEADROOM`] on reception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Chunk {
    /// 2 048: enough for an MTU of 1 500.
    #[default]
    Bytes2048,
    /// 4 096: the most that every kernel takes; longer packets need several frames in any case.
    Bytes4096,
}

impl Chunk {
    /// Size of a frame in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Chunk::Bytes2048 => 2048,
            Chunk::Bytes4096 => 4096,
        }
    }

    pub(crate) fn shift(self) -> u32 {
        self.bytes().trailing_zeros()
    }

    fn of_bytes(bytes: u32) -> Option<Self> {
        [Chunk::Bytes2048, Chunk::Bytes4096].into_iter().find(|c| c.bytes() == bytes)
    }
}

/// Bytes that the kernel leaves free in front of each packet that it receives
/// (`XDP_PACKET_HEADROOM`), so that XDP programs can put headers there.
pub const KERNEL_HEADROOM: u32 = 256;

/// The settings of a [`Umem`].
#[derive(Clone, Debug)]
pub struct UmemConfig {
    /// Frames, of all pools together.
    pub frames: u32,
    /// Size of each frame.
    pub chunk: Chunk,
    /// Bytes that stay free in front of received packets, beside the kernel's 256; our own packets
    /// begin behind both.
    pub headroom: u32,
    /// Preferred pages; smaller ones are taken if there are none ([`Umem::obtained`] says why).
    pub pages: PageSize,
    /// Preferred NUMA node: that of the queue ([`crate::node_of_interface`]).
    pub node: Option<u32>,
    /// Pools it is divided into, one for each worker.
    pub pools: u8,
}

impl Default for UmemConfig {
    fn default() -> Self {
        Self {
            frames: 4096,
            chunk: Chunk::default(),
            headroom: 0,
            pages: PageSize::default(),
            node: None,
            pools: 1,
        }
    }
}

impl UmemConfig {
    /// Bytes of such memory: frames and their ledger.
    ///
    /// # Errors
    /// [`UmemError::Frames`], [`UmemError::Headroom`].
    pub fn bytes(&self) -> Result<usize, UmemError> {
        Ok(Layout::new(self.frames, self.chunk, self.headroom, self.pools)?.end)
    }
}

/// Why there is no such memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UmemError {
    /// Less than one frame for each pool, no pool, or more than can be numbered.
    #[error(
        "{frames} frames for {pools} pools: give each pool at least one, better some thousands, and at most 2147483647 in all"
    )]
    Frames {
        /// Frames that were asked for.
        frames: u32,
        /// Pools that were asked for.
        pools: u8,
    },
    /// No room for a packet.
    #[error(
        "{headroom} bytes of headroom leave no room in frames of {chunk}: less than {} can be had, or take larger frames",
        chunk - KERNEL_HEADROOM
    )]
    Headroom {
        /// Bytes of headroom that were asked for.
        headroom: u32,
        /// Bytes of a frame.
        chunk: u32,
    },
    /// The system has not enough memory.
    #[error(
        "{bytes} bytes for {frames} frames: {source}; free memory, raise the limit of this control group, or ask for fewer"
    )]
    Memory {
        /// Frames that were asked for.
        frames: u32,
        /// Bytes that the frames need.
        bytes: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is no memory that Ringway made.
    #[error(
        "this file is no UMEM of a Ringway of this layout: {why}; start anew instead of taking it over"
    )]
    Foreign {
        /// The part that does not fit.
        why: String,
    },
}

/// A handle to memory for packets. Clones are the same memory, which is freed with the last of them
/// and of its packets.
#[derive(Clone)]
pub struct Umem(Arc<Inner>);

struct Inner {
    memory: Memory,
    layout: Layout,
    /// Whether its frames are this process's to use.
    ours: AtomicBool,
    /// Whether another process made it.
    handed_over: bool,
    /// A bit for each pool that was opened in this process.
    opened: [AtomicU64; 4],
    /// A word for each frame: where its packet goes on.
    links: Box<[AtomicU64]>,
    /// For each pool the frames that came home from other threads.
    returns: Box<[Returns]>,
    /// The number of the offer that a claim is for; 0: none yet. Or [`NEVER`].
    offer: AtomicU32,
    /// The state that a predecessor left; none if nothing was offered.
    inheritance: OnceLock<Option<Inheritance>>,
    /// Sockets that the kernel knows to have this memory.
    sockets: Mutex<Vec<RegisteredSocket>>,
}

/// The maker of a memory, and the purpose of its mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Here,
    Predecessor,
    /// By another process, to be read.
    Inspected,
}

/// A socket that the kernel knows to have this memory.
struct RegisteredSocket {
    socket: Weak<OwnedFd>,
    /// Its packets may have several frames, and those of sockets that share its registration.
    several_frames: bool,
}

/// Offsets in the file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) frames: u32,
    pub(crate) chunk: Chunk,
    pub(crate) headroom: u32,
    pub(crate) pools: u8,
    header: usize,
    ledgers: usize,
    records: usize,
    end: usize,
}

/// Written once, for a successor.
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    frames: AtomicU32,
    chunk: AtomicU32,
    headroom: AtomicU32,
    pools: AtomicU32,
    /// Used by former versions; keeps the layout.
    _unused: AtomicU32,
    /// The number of the present offer; 0 while there is none. The process that exchanges it owns
    /// the memory: a successor, or the process that offered it.
    offered: AtomicU32,
}

/// "RW-UMEM" and the layout's version.
const MAGIC: u64 = u64::from_be_bytes(*b"RW-UMEM\x04");
/// Of 0.1.0 (packaging/releases), which has lists behind the records. This version takes such
/// memory over, and 0.1.0 must not take over what has no lists. Remove it once the next release is
/// out.
const MAGIC_WITH_LISTS: u64 = u64::from_be_bytes(*b"RW-UMEM\x03");

/// Pools were taken over where nothing was offered.
const NEVER: u32 = u32::MAX;

// 2^31 frames of 4 096 bytes: offsets are `usize`, and would overflow.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("ringway-xsk needs a target of 64 bits");

impl Layout {
    fn new(frames: u32, chunk: Chunk, headroom: u32, pools: u8) -> Result<Self, UmemError> {
        // A bit of a frame's number is a packet's to mark itself with.
        if pools == 0 || frames < u32::from(pools) || frames > i32::MAX as u32 {
            return Err(UmemError::Frames { frames, pools });
        }
        if headroom >= chunk.bytes() - KERNEL_HEADROOM {
            return Err(UmemError::Headroom { headroom, chunk: chunk.bytes() });
        }
        let count = frames as usize;
        // Whole base pages of frames: what is registered ends at one.
        let header = (count << chunk.shift()).next_multiple_of(PageSize::Base.bytes());
        let ledgers = header + size_of::<Header>();
        let records = ledgers + size_of::<Account>() * usize::from(pools);
        let end = records + (count * size_of::<AtomicU64>()).next_multiple_of(128);
        Ok(Self { frames, chunk, headroom, pools, header, ledgers, records, end })
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem").field("layout", self.layout()).finish_non_exhaustive()
    }
}

impl Umem {
    /// New memory.
    ///
    /// # Errors
    /// See [`UmemError`]. Smaller pages or another node than preferred are no error: see
    /// [`Umem::obtained`].
    pub fn new(config: &UmemConfig) -> Result<Self, UmemError> {
        let layout = Layout::new(config.frames, config.chunk, config.headroom, config.pools)?;
        let memory = Memory::new(layout.end, config.pages, config.node).map_err(|source| {
            UmemError::Memory { frames: config.frames, bytes: layout.end, source }
        })?;
        let umem = Self::of(memory, layout, Origin::Here);
        let header = umem.header();
        header.frames.store(layout.frames, Relaxed);
        header.chunk.store(layout.chunk.bytes(), Relaxed);
        header.headroom.store(layout.headroom, Relaxed);
        header.pools.store(layout.pools.into(), Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(umem)
    }

    /// Maps memory that another process made and handed over: its [`Umem::file`]. [`Umem::claim`]
    /// takes it over. To read its ledger, use an [`Inspector`](crate::Inspector).
    ///
    /// # Safety
    /// From the claim until this process offers the memory itself, nobody else writes to its
    /// frames: neither the process that made it, nor others that have the file, nor this process by
    /// another mapping. This cannot be checked. So take memory over only from a process that is
    /// trusted with all that this one may do.
    ///
    /// The ledger is checked: it may say anything, and may change at any time.
    ///
    /// # Errors
    /// [`UmemError::Foreign`], [`UmemError::Memory`].
    pub unsafe fn from_file(file: OwnedFd) -> Result<Self, UmemError> {
        Self::of_memory(file, Memory::from_file, Origin::Predecessor)
    }

    /// The same, where nothing may be written: what is made of it must only read.
    pub(crate) fn read_only(file: OwnedFd) -> Result<Self, UmemError> {
        Self::of_memory(file, Memory::read_only, Origin::Inspected)
    }

    fn of_memory(
        file: OwnedFd,
        map: impl FnOnce(OwnedFd) -> io::Result<Memory>,
        origin: Origin,
    ) -> Result<Self, UmemError> {
        let foreign = |why: &str| UmemError::Foreign { why: why.into() };
        check_file(&file).map_err(foreign)?;
        let memory = map(file);
        let memory = memory.map_err(|source| UmemError::Memory { frames: 0, bytes: 0, source })?;
        let layout = find_header(&memory).ok_or_else(|| foreign("it has no header"))?;
        if layout.end > memory.obtained().bytes {
            return Err(foreign("it is shorter than its header says"));
        }
        Ok(Self::of(memory, layout, origin))
    }

    fn of(memory: Memory, layout: Layout, origin: Origin) -> Self {
        // An inspecting process has no packets.
        let (frames, pools) = match origin {
            Origin::Inspected => (0, 0),
            _ => (layout.frames, layout.pools),
        };
        Self(Arc::new(Inner {
            memory,
            layout,
            ours: AtomicBool::new(origin == Origin::Here),
            handed_over: origin != Origin::Here,
            opened: Default::default(),
            links: (0..frames).map(|_| AtomicU64::new(0)).collect(),
            returns: (0..pools).map(|_| Returns::default()).collect(),
            offer: AtomicU32::new(0),
            inheritance: OnceLock::new(),
            sockets: Mutex::default(),
        }))
    }

    /// Offers it, with all its frames, to the process that claims it first: a successor that was
    /// given [`Umem::file`], or this process, which then continues. Its queues may be dropped
    /// meanwhile: their frames stay with the kernel.
    ///
    /// # Safety
    /// Until it has claimed the memory ([`Umem::claim`]), this process uses neither its pools nor
    /// their queues, packets and parcels.
    pub unsafe fn offer(&self) {
        self.0.ours.store(false, Release);
        // Another number each time, so that a late successor cannot claim what the next one is
        // offered.
        let number = self.0.offer.load(Relaxed) % (NEVER - 1) + 1;
        self.0.offer.store(number, Relaxed);
        // Release: whoever claims it sees all that was written before.
        self.header().offered.store(number, Release);
    }

    /// Claims memory that was offered. Returns whether it is ours now: not if another process was
    /// first, or the offer is not that of the pools which were taken over.
    ///
    /// Safe: an offer has one claimer, and the contracts of [`Umem::offer`] and [`Umem::from_file`]
    /// bind the others.
    pub fn claim(&self) -> bool {
        let header = self.header();
        let offered = match self.0.offer.load(Relaxed) {
            0 => header.offered.load(Relaxed),
            offer => offer,
        };
        let claimed = ![0, NEVER].contains(&offered)
            && header.offered.compare_exchange(offered, 0, Acquire, Relaxed).is_ok();
        if claimed {
            // A former release would look for lists, which are not kept from now on.
            header.magic.store(MAGIC, Relaxed);
            self.0.offer.store(offered, Relaxed);
            // Release: who finds that it is ours sees what was written before it was.
            self.0.ours.store(true, Release);
        }
        claimed
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.0.ours.load(Acquire)
    }

    /// The state that a predecessor left. It is read once for all pools, so that no frame is in two
    /// of them.
    pub(crate) fn inheritance(&self) -> Option<&Inheritance> {
        let read = || {
            if !self.is_ours() {
                // Acquire: the records are of this offer. If they are of a later one, the claim
                // fails.
                let offered = self.header().offered.load(Acquire);
                self.0.offer.store(if offered == 0 { NEVER } else { offered }, Relaxed);
                if offered == 0 {
                    return None;
                }
            }
            Some(Inheritance::read(self.records()))
        };
        self.0.inheritance.get_or_init(read).as_ref()
    }

    /// Whether another process made it.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.0.handed_over
    }

    /// Whether nobody has opened this pool before. Not asked of the memory, where others can write.
    pub(crate) fn open_once(&self, pool: u8) -> bool {
        let bit = 1 << (pool % 64);
        self.0.opened[usize::from(pool / 64)].fetch_or(bit, Relaxed) & bit == 0
    }

    /// The frames a pool begins with: an even share.
    pub(crate) fn share(&self, pool: u8) -> std::ops::Range<u32> {
        let (frames, pools) = (u64::from(self.layout().frames), u64::from(self.layout().pools));
        // Neither is above `frames`.
        let bound = |n: u64| (frames * n / pools) as u32;
        bound(pool.into())..bound(u64::from(pool) + 1)
    }

    /// How large its pages are and where, beside what was asked for.
    pub fn obtained(&self) -> &Obtained {
        self.0.memory.obtained()
    }

    /// Its file, for a successor or an inspector (SCM_RIGHTS).
    ///
    /// # Safety
    /// Everyone who gets it, this process included, writes there only through a [`Umem`] that has
    /// claimed the memory.
    /// ```compile_fail,E0133
    /// # fn written(umem: &ringway_xsk::Umem) -> std::io::Result<()> {
    /// use std::os::unix::fs::FileExt;
    /// let file = std::fs::File::from(umem.file().try_clone_to_owned()?);
    /// file.write_all_at(&[0; 4096], 0)
    /// # }
    /// ```
    pub unsafe fn file(&self) -> BorrowedFd<'_> {
        self.0.memory.file()
    }

    /// Frames, of all pools together.
    pub fn frames(&self) -> u32 {
        self.layout().frames
    }

    /// Bytes of a frame.
    pub fn chunk(&self) -> Chunk {
        self.layout().chunk
    }

    /// Bytes of a received packet that a frame has room for.
    pub fn room(&self) -> u32 {
        let Layout { chunk, headroom, .. } = self.0.layout;
        chunk.bytes() - headroom - KERNEL_HEADROOM
    }

    /// Where it lies in this process: frames, then the ledger. (begin, bytes of frames, bytes of
    /// the ledger)
    pub fn place(&self) -> (usize, usize, usize) {
        let (begin, ledger) = (self.base().as_ptr() as usize, self.layout().header);
        (begin, ledger, self.layout().end - ledger)
    }

    /// Tells the kernel of this memory, by a socket that is new.
    pub(crate) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let registration = libc::xdp_umem_reg {
            addr: self.base().as_ptr() as u64,
            len: self.frame_bytes() as u64,
            chunk_size: self.layout().chunk.bytes(),
            headroom: self.layout().headroom,
            flags: 0,
            tx_metadata_len: 0,
        };
        sys::set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
    }

    /// A socket whose registration another can share, and whether packets may have several frames
    /// then.
    pub(crate) fn shared_by(&self) -> Option<(Arc<OwnedFd>, bool)> {
        let mut sockets = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|other| other.socket.strong_count() > 0);
        sockets.iter().find_map(|other| Some((other.socket.upgrade()?, other.several_frames)))
    }

    /// This socket's registration can be shared while it is open.
    pub(crate) fn shared_with(&self, socket: &Arc<OwnedFd>, several_frames: bool) {
        let mut sockets = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.push(RegisteredSocket { socket: Arc::downgrade(socket), several_frames });
    }

    /// Bytes of the frames, all of which are registered with the kernel.
    pub(crate) fn frame_bytes(&self) -> usize {
        (self.layout().frames as usize) << self.layout().chunk.shift()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.0.memory.base()
    }

    fn header(&self) -> &Header {
        self.table::<Header>(self.layout().header, 1).into_first()
    }

    pub(crate) fn account(&self, pool: u8) -> &Account {
        assert!(pool < self.layout().pools, "pool {pool} of {}", self.layout().pools);
        let place = self.layout().ledgers + usize::from(pool) * size_of::<Account>();
        self.table::<Account>(place, 1).into_first()
    }

    /// A word for each frame: [`crate::ledger::Record`].
    pub(crate) fn records(&self) -> &[AtomicU64] {
        self.table(self.layout().records, self.layout().frames).into_slice()
    }

    /// Whether both are the same memory, mapped once.
    pub fn is(&self, other: &Umem) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A word for each frame: where its packet goes on.
    pub(crate) fn links(&self) -> &[AtomicU64] {
        &self.0.links
    }

    /// Frames of a pool that came home from other threads.
    pub(crate) fn returns(&self, pool: u8) -> &Returns {
        &self.0.returns[usize::from(pool)]
    }

    fn table<T: Shared>(&self, place: usize, count: u32) -> Table<'_, T> {
        Table {
            first: self.0.memory.base(),
            place,
            count: count as usize,
            _of: std::marker::PhantomData,
        }
    }
}

// SAFETY: made of atomics.
unsafe impl Shared for Header {}

/// Part of the ledger, within the mapping.
struct Table<'a, T> {
    first: NonNull<u8>,
    place: usize,
    count: usize,
    _of: std::marker::PhantomData<&'a [T]>,
}

impl<'a, T: Shared> Table<'a, T> {
    fn into_slice(self) -> &'a [T] {
        // SAFETY: the layout puts it within the mapping, aligned, which the UMEM borrowed for 'a
        // keeps; T is `Shared`.
        unsafe {
            std::slice::from_raw_parts(self.first.add(self.place).cast::<T>().as_ptr(), self.count)
        }
    }

    fn into_first(self) -> &'a T {
        &self.into_slice()[0]
    }
}

/// The header lies behind the frames, of which only it knows how many there are: it is at a base
/// page's begin.
fn find_header(memory: &Memory) -> Option<Layout> {
    let page = PageSize::Base.bytes();
    (page..memory.obtained().bytes.saturating_sub(size_of::<Header>())).step_by(page).find_map(
        |place| {
            // SAFETY: within the mapping, as the range says, and aligned; made of atomics.
            let header = unsafe { memory.base().add(place).cast::<Header>().as_ref() };
            if ![MAGIC, MAGIC_WITH_LISTS].contains(&header.magic.load(Acquire)) {
                return None;
            }
            let chunk = Chunk::of_bytes(header.chunk.load(Relaxed))?;
            let pools = u8::try_from(header.pools.load(Relaxed)).ok()?;
            let (frames, headroom) = (header.frames.load(Relaxed), header.headroom.load(Relaxed));
            // A packet could look like a header, but not say where it is itself.
            Layout::new(frames, chunk, headroom, pools).ok().filter(|l| l.header == place)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for (frames, pools) in [(1, 1), (7, 3), (4096, 16), (5, 5)] {
            let l = Layout::new(frames, Chunk::Bytes2048, 0, pools).unwrap();
            assert!(l.header >= frames as usize * 2048 && l.header.is_multiple_of(4096));
            assert!(l.header < l.ledgers && l.ledgers < l.records);
            assert!(l.end - l.records >= frames as usize * 8);
            let umem = Umem::new(&UmemConfig { frames, pools, ..UmemConfig::default() }).unwrap();
            let shares: Vec<_> = (0..pools).flat_map(|pool| umem.share(pool)).collect();
            assert_eq!(shares, (0..frames).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_cannot_be() {
        let of = |frames, headroom, pools| {
            let config = UmemConfig { frames, headroom, pools, ..UmemConfig::default() };
            Umem::new(&config).unwrap_err().to_string()
        };
        assert!(of(0, 0, 1).contains("at least one"));
        assert!(of(3, 0, 4).contains("at least one"));
        assert!(of(9, 0, 0).contains("pools"));
        assert!(of(9, 1792, 1).contains("less than 1792"), "{}", of(9, 1792, 1));
    }

    #[test]
    fn each_pool_is_opened_once() {
        let config = UmemConfig { frames: 8, pools: 2, ..UmemConfig::default() };
        let umem = Umem::new(&config).unwrap();
        let (a, b) = (umem.pool().unwrap(), umem.pool().unwrap());
        assert!(umem.pool().is_none());
        assert_eq!((a.free(), b.free()), (4, 4));
    }

    #[test]
    fn handed_over() {
        let config =
            UmemConfig { frames: 3, chunk: Chunk::Bytes4096, pools: 2, ..UmemConfig::default() };
        let umem = Umem::new(&config).unwrap();
        let _pool = umem.pool();
        // SAFETY: nothing is written there.
        let file = unsafe { umem.file() }.try_clone_to_owned().unwrap();
        // SAFETY: it is not claimed.
        let again = unsafe { Umem::from_file(file) }.unwrap();
        assert_eq!(again.layout(), umem.layout());
        assert_eq!(again.watch().counts(0), umem.watch().counts(0));
    }
}
