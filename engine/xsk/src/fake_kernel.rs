//! A kernel that is played: the other sides of a queue's rings in plain memory, moved by hand. It
//! needs no privileges and no interface, and does what it is told, however badly a kernel would
//! behave to do so: it stalls by being left alone, does as little as it is asked for, completes in
//! any order, and says things that are not so.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use ringway_ring::{Consumer, Producer, in_memory_from};

use crate::ledger::Place;
use crate::packet::pool::Pool;
use crate::queue::{Descriptor, Kernel, Rings, Use, Wake};
use crate::umem::KERNEL_HEADROOM;

/// A queue whose kernel is played.
pub type Queue = crate::queue::Queue<Wakes>;

/// Counts of the wake-ups that a kernel would get.
#[derive(Clone, Debug, Default)]
pub struct Wakes(Rc<WakeCounts>);

#[derive(Debug, Default)]
struct WakeCounts {
    rx: Cell<u64>,
    tx: Cell<u64>,
    fail: Cell<Option<i32>>,
}

impl Wakes {
    fn hear(&self, times: &Cell<u64>) -> io::Result<()> {
        times.set(times.get() + 1);
        self.0.fail.get().map_or(Ok(()), |error| Err(io::Error::from_raw_os_error(error)))
    }
}

impl Kernel for Wakes {
    fn wake_rx(&mut self) -> io::Result<()> {
        self.hear(&self.0.rx)
    }

    fn wake_tx(&mut self) -> io::Result<Wake> {
        self.hear(&self.0.tx).map(|()| Wake::Done)
    }
}

/// The kernel's sides of one queue.
pub struct FakeKernel {
    frames: Frames,
    fill: Consumer<u64>,
    completion: Producer<u64>,
    rx: Producer<Descriptor>,
    tx: Consumer<Descriptor>,
    /// Frames out of FILL that hold nothing yet.
    to_fill: VecDeque<u64>,
    /// Addresses of frames that were sent and not completed.
    sent: VecDeque<u64>,
    wakes: Wakes,
}

/// The end of a packet that arrived at the fake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is in RX.
    Delivered,
    /// It was dropped: FILL had too few frames.
    NoFrame,
    /// It was dropped: RX had too few slots.
    RxFull,
}

/// A queue of `pool` and its kernel. Its rings have `slots` each, and their indices begin at
/// `first`: just below `u32::MAX`, to see them overflow.
///
/// # Panics
/// Where `slots` is no power of two, or 64 queues of the pool are open.
pub fn queue(pool: &Pool, slots: u32, first: u32, usage: Use) -> (Queue, FakeKernel) {
    let (fill, kernel_fill) = in_memory_from(slots, first);
    let (kernel_completion, completion) = in_memory_from(slots, first);
    let (kernel_rx, rx) = in_memory_from(slots, first);
    let (tx, kernel_tx) = in_memory_from(slots, first);
    let wakes = Wakes::default();
    let rings = Rings { fill, completion, rx, tx };
    let queue = Queue::new(pool, rings, wakes.clone(), usage).unwrap_or_else(|e| panic!("{e}"));
    let fake = FakeKernel {
        frames: Frames { pool: pool.clone(), queue: queue.number() },
        fill: kernel_fill,
        completion: kernel_completion,
        rx: kernel_rx,
        tx: kernel_tx,
        to_fill: VecDeque::new(),
        sent: VecDeque::new(),
        wakes,
    };
    (queue, fake)
}

impl FakeKernel {
    /// Takes up to `count` frames out of FILL. How many.
    pub fn take_fill(&mut self, count: u32) -> usize {
        let Ok(filled) = self.fill.peek(count) else { return 0 };
        self.to_fill.extend(filled.iter());
        filled.release() as usize
    }

    /// A packet arrives: into frames that were taken out of FILL, or are now; as many as it needs.
    pub fn deliver(&mut self, packet: &[u8]) -> Arrival {
        let layout = self.frames.pool.umem().layout();
        let offset = u64::from(KERNEL_HEADROOM + layout.headroom);
        let room = layout.chunk.bytes() as usize - offset as usize;
        let parts: Vec<_> = packet.chunks(room).collect();
        if self.to_fill.len() < parts.len() {
            self.take_fill((parts.len() - self.to_fill.len()) as u32);
        }
        if self.to_fill.len() < parts.len() {
            return Arrival::NoFrame;
        }
        let Ok(mut slots) = self.rx.reserve(parts.len() as u32) else { return Arrival::RxFull };
        if slots.remaining() < parts.len() as u32 {
            return Arrival::RxFull;
        }
        for (n, part) in parts.iter().enumerate() {
            let Some(frame) = self.to_fill.pop_front() else { break };
            let address = frame + offset;
            self.frames.write(address, part);
            let options = if n + 1 < parts.len() { Descriptor::CONTINUED } else { 0 };
            let _ = slots.push(Descriptor { address, len: part.len() as u32, options });
        }
        slots.submit();
        Arrival::Delivered
    }

    /// Sends up to `count` descriptors out of TX: their bytes, a packet of several frames joined.
    pub fn transmit(&mut self, count: u32) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let Ok(taken) = self.tx.peek(count) else { return packets };
        let mut begun = Vec::new();
        for descriptor in taken.iter() {
            begun.extend(self.frames.read(descriptor));
            self.sent.push_back(descriptor.address);
            if descriptor.options & Descriptor::CONTINUED == 0 {
                packets.push(std::mem::take(&mut begun));
            }
        }
        taken.release();
        if !begun.is_empty() {
            packets.push(begun);
        }
        packets
    }

    /// Takes all of TX and completes it, without a look at the packets: a kernel that costs little.
    pub fn take_tx(&mut self) {
        let Ok(taken) = self.tx.peek(u32::MAX) else { return };
        let Ok(mut slots) = self.completion.reserve(taken.len()) else { return };
        // As many as COMPLETION has room for.
        let fit = taken.iter().map_while(|descriptor| slots.push(descriptor.address).ok()).count();
        slots.submit();
        taken.release_first(fit as u32);
    }

    /// Completes up to `count` frames that were sent, beginning with that at `skip` and going
    /// around: 0 completes in order. How many, which are fewer where COMPLETION is full.
    pub fn complete(&mut self, count: u32, skip: usize) -> usize {
        let wanted = count.min(self.sent.len() as u32);
        let Ok(mut slots) = self.completion.reserve(wanted) else { return 0 };
        while slots.remaining() > 0 {
            let at = skip % self.sent.len();
            let Some(address) = self.sent.remove(at) else { break };
            let _ = slots.push(address);
        }
        slots.submit() as usize
    }

    /// Says in COMPLETION that this address was sent, whether or not it was. False where it is
    /// full.
    pub fn complete_address(&mut self, address: u64) -> bool {
        let Ok(mut slots) = self.completion.reserve(1) else { return false };
        let _ = slots.push(address);
        slots.submit() == 1
    }

    /// Says in RX that this has arrived, whether or not it has. False where it is full.
    pub fn deliver_descriptor(&mut self, descriptor: Descriptor) -> bool {
        let Ok(mut slots) = self.rx.reserve(1) else { return false };
        let _ = slots.push(descriptor);
        slots.submit() == 1
    }

    /// Whether it wants to be woken for FILL and TX.
    pub fn ask_for_wakeups(&mut self, needed: bool) {
        self.fill.ask_for_wakeup(needed);
        self.tx.ask_for_wakeup(needed);
    }

    /// Answers wake-ups with this error number from now on; none: takes them.
    pub fn refuse_wakeups(&mut self, error: Option<i32>) {
        self.wakes.0.fail.set(error);
    }

    /// How often it was woken to receive and to send.
    pub fn woken(&self) -> (u64, u64) {
        (self.wakes.0.rx.get(), self.wakes.0.tx.get())
    }

    /// Frames that it has: to be filled, and sent but not completed.
    pub fn has(&self) -> (usize, usize) {
        (self.to_fill.len(), self.sent.len())
    }
}

/// The frames that a queue has given to its kernel.
struct Frames {
    pool: Pool,
    queue: u8,
}

impl Frames {
    /// As a kernel writes into a frame that it was given. Nothing is written where the pool has the
    /// frame back, because of a lie or since the queue was closed.
    fn write(&self, address: u64, bytes: &[u8]) {
        if let Some(place) = self.place(address, bytes.len(), Place::Fill) {
            // SAFETY: within a frame that the pool has given to this kernel: no packet has it.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }

    /// As a kernel reads a frame that it is to send; nothing where the pool has it back.
    fn read(&self, Descriptor { address, len, .. }: Descriptor) -> Vec<u8> {
        let place = self.place(address, len as usize, Place::Tx);
        // SAFETY: as above.
        let bytes = place.map(|place| unsafe { std::slice::from_raw_parts(place, len as usize) });
        bytes.unwrap_or_default().to_vec()
    }

    /// Where so many bytes of a frame lie; none where the kernel does not have it for this.
    fn place(&self, address: u64, len: usize, place: Place) -> Option<*mut u8> {
        let (inner, begin) = (self.pool.inner(), address as usize);
        assert!(begin + len <= inner.umem.frame_bytes(), "{address:#x} is in no frame");
        let has = inner.kernel.has(address >> inner.shift, place, self.queue);
        // SAFETY: within the frames.
        has.then(|| unsafe { inner.umem.base().add(begin) }.as_ptr())
    }
}
