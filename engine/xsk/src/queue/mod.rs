//! A queue: the four rings between a pool and the kernel.
//!
//! ```text
//!          FILL ---> kernel ---> RX            frames to be filled; packets
//!  pool <                             > packets
//!     COMPLETION <-- kernel <--- TX            frames that were sent; packets
//! ```
//! System calls are only made through [`Kernel`], so that all code here is tested against a
//! simulated kernel ([`crate::fake_kernel`]). An address from RX or COMPLETION is accepted only if
//! this queue gave that frame to the kernel for that purpose. Any other address is counted and
//! ignored.

pub(crate) mod queue_frames;

use std::io;
use std::mem::ManuallyDrop;

use ringway_ring::{Consumer, Corrupt, Producer};
use serde::{Deserialize, Serialize};

use crate::ledger::{Counter, Place, counters};
use crate::packet::Packet;
use crate::packet::batch::Batch;
use crate::packet::pool::Pool;

use queue_frames::{QueueFrames, Reassembly};

/// A packet or part of one, in RX and TX (struct xdp_desc, linux/if_xdp.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Its start, in bytes from the UMEM's start.
    pub address: u64,
    /// Length of the packet in bytes.
    pub len: u32,
    /// [`Descriptor::CONTINUED`], or 0.
    pub options: u32,
}

impl Descriptor {
    /// The packet continues in the next descriptor (`XDP_PKT_CONTD`).
    pub const CONTINUED: u32 = 1;
}

/// The shortest packet that is sent: an Ethernet header.
pub const SHORTEST: usize = 14;

/// Our sides of a queue's rings.
pub struct Rings {
    /// Addresses of frames for the kernel to fill.
    pub fill: Producer<u64>,
    /// Addresses of frames that were sent.
    pub completion: Consumer<u64>,
    /// Descriptors of received packets.
    pub rx: Consumer<Descriptor>,
    /// Packets to be sent.
    pub tx: Producer<Descriptor>,
}

/// The result of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The kernel has seen everything, or will without a wake-up.
    Done,
    /// It did as much as one call does, or had no room below.
    Again,
}

/// The other side of a queue, as far as it needs wake-ups.
pub trait Kernel {
    /// Has it read FILL and receive.
    ///
    /// # Errors
    /// The queue has ended: for example, its interface is gone or down.
    fn wake_rx(&mut self) -> io::Result<()>;

    /// Has it read TX and send.
    ///
    /// # Errors
    /// As [`Kernel::wake_rx`].
    fn wake_tx(&mut self) -> io::Result<Wake>;

    /// Closes it, after our sides of its rings. False if it stays open in another process: the pool
    /// then never gets its frames back.
    fn close(&mut self) -> bool {
        true
    }
}

/// How a queue is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Most frames that the kernel has for reception; the ring's size if that is less.
    pub fill: u32,
    /// The kernel says when it needs a wake-up (`XDP_USE_NEED_WAKEUP`); else every burst to be sent
    /// wakes it.
    pub need_wakeup: bool,
    /// Reception happens only within calls (preferred busy polling): one is made if nothing has
    /// arrived.
    pub busy_poll: bool,
    /// Packets of several frames can be sent (`XDP_USE_SG`).
    pub several_frames: bool,
}

/// Why a queue cannot continue. Close it, and open it again when its interface is there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The indexes of a ring are impossible; see [`Corrupt`].
    #[error("{ring}: {source}")]
    Ring {
        /// Name of the ring.
        ring: &'static str,
        /// The indexes.
        source: Corrupt,
    },
    /// The kernel refused a wake-up.
    #[error("waking the kernel to {what}: {source}; {}", remedy(source))]
    Wake {
        /// "receive" or "send".
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENETDOWN) => "the interface is down: `ip link set IFACE up`",
        Some(libc::ENXIO) => {
            "the interface is gone, or the socket was never bound: open it anew when it is back"
        }
        Some(libc::EOPNOTSUPP) => "the socket has no such ring, or its driver cannot be woken",
        _ => "close the socket and open another",
    }
}

fn ring(ring: &'static str) -> impl Fn(Corrupt) -> Error {
    move |source| Error::Ring { ring, source }
}

counters! {
    /// The counters of a queue.
    Tally,
    /// The work of a queue since it was opened.
    QueueCounts {
        /// Frames put into FILL.
        filled_frames,
        /// Frames that came in RX.
        received_frames,
        /// Packets handed to the program.
        received_packets,
        /// Frames put into TX.
        sent_frames,
        /// Packets put into TX.
        sent_packets,
        /// Frames that came back in COMPLETION.
        completed_frames,
        /// Packets handed back because TX was full.
        tx_full_packets,
        /// Packets that cannot be sent and were freed: they are of another pool, shorter than an
        /// Ethernet header, or have more frames than the socket or the kernel takes.
        unsendable_packets,
        /// Times that FILL needed frames and none was free.
        starved_times,
        /// Impossible descriptors in RX: of no frame, or of one that the kernel does not have.
        rx_unbelievable,
        /// Impossible addresses in COMPLETION.
        completion_unbelievable,
        /// Packets of several frames that were dropped: one frame was impossible, or there were too
        /// many.
        broken_packets,
        /// Times the kernel was woken to receive.
        rx_wakeups,
        /// Times the kernel was woken to send.
        tx_wakeups,
    }
}

/// The queue of a socket, or of a simulated kernel. When it is dropped, its rings go first, then
/// the kernel's side, and then the pool takes back the kernel's frames.
pub struct Queue<K: Kernel> {
    rings: ManuallyDrop<Rings>,
    kernel: K,
    /// A packet whose last frame has not arrived.
    reassembly: Reassembly,
    queue_frames: QueueFrames,
}

/// The state in which a queue was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Left {
    number: u8,
    /// Frames that the kernel has to be filled.
    fill: u64,
    /// Frames that the kernel has to be sent.
    unsent: u64,
    /// The first frames of a packet were dropped, and the rest will follow.
    begun: bool,
}

/// A pool has 64 queues open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("64 queues of this pool are open already; close one, or use another pool")]
pub struct TooManyQueues;

impl<K: Kernel> Queue<K> {
    /// Makes a queue whose other side has the same UMEM; all of its frames are in this pool.
    ///
    /// # Errors
    /// [`TooManyQueues`].
    pub fn new(pool: &Pool, rings: Rings, kernel: K, usage: Use) -> Result<Self, TooManyQueues> {
        let number = pool.inner().open_queue().ok_or(TooManyQueues)?;
        let usage = Use { fill: usage.fill.min(rings.fill.size()), ..usage };
        let queue_frames = QueueFrames {
            pool: pool.clone(),
            number,
            tally: Tally::default(),
            usage,
            closed: true,
        };
        let rings = ManuallyDrop::new(rings);
        Ok(Self { rings, kernel, reassembly: Reassembly::Nothing, queue_frames })
    }

    /// Makes a queue as a predecessor left it: its number, the kernel's frames to be filled and to
    /// be sent, and whether a packet was begun.
    ///
    /// # Errors
    /// [`TooManyQueues`] where the pool has a queue of this number.
    pub(crate) fn resume(
        pool: &Pool,
        rings: Rings,
        kernel: K,
        usage: Use,
        left: &Left,
    ) -> Result<Self, TooManyQueues> {
        pool.inner().take_over_queue(left.number).ok_or(TooManyQueues)?;
        let tally = Tally::default();
        tally.filled_frames.add(left.fill);
        tally.sent_frames.add(left.unsent);
        let queue_frames =
            QueueFrames { pool: pool.clone(), number: left.number, tally, usage, closed: true };
        let reassembly = if left.begun { Reassembly::Broken } else { Reassembly::Nothing };
        Ok(Self { rings: ManuallyDrop::new(rings), kernel, reassembly, queue_frames })
    }

    /// The state that a successor needs. A packet whose end has not arrived is dropped.
    pub(crate) fn leave_queue(&mut self) -> Left {
        let begun = !matches!(self.reassembly, Reassembly::Nothing);
        if begun {
            self.reassembly = Reassembly::Broken;
        }
        let tally = &self.queue_frames.tally;
        let fill = tally.filled_frames.get() - tally.received_frames.get();
        Left { number: self.queue_frames.number, fill, unsent: self.unsent(), begun }
    }

    /// Adds packets that have arrived, as far as there is room; gives the kernel frames for as many
    /// more, and takes back those that were sent. Returns the number of packets added.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn receive(&mut self, into: &mut Batch) -> Result<usize, Error> {
        // More than u32::MAX does not fit into a ring.
        let room = into.room().min(u32::MAX as usize) as u32;
        let before = into.len();
        // Else what arrives is a predecessor's.
        if !self.queue_frames.pool.inner().is_usable() {
            return Ok(0);
        }
        let arrived = self.rings.rx.peek(room).map_err(ring("RX"))?;
        let mut frames = 0;
        for descriptor in arrived.iter() {
            let packet = self.queue_frames.accept(descriptor);
            frames += u64::from(packet.is_some());
            let continued = descriptor.options & Descriptor::CONTINUED != 0;
            if let Some(whole) = self.reassembly.join(packet, continued, &self.queue_frames.tally) {
                into.extend_one(whole);
            }
        }
        let nothing = arrived.is_empty();
        arrived.release();
        let added = into.len() - before;
        self.queue_frames.count_received(frames, added as u64);
        self.complete()?;
        self.refill()?;
        self.wake_rx(nothing)?;
        Ok(added)
    }

    /// Sends packets from the front of the batch, as far as TX has room; the others stay in the
    /// batch. Packets that can never be sent are freed and counted
    /// ([`QueueCounts::unsendable_packets`]). Returns the number of packets sent.
    ///
    /// # Errors
    /// See [`Error`]. Packets that were sent are not in the batch then either.
    pub fn send(&mut self, from: &mut Batch) -> Result<usize, Error> {
        self.complete()?;
        let (queue_frames, mut wanted) = (&self.queue_frames, 0);
        from.retain(|packet| {
            let sendable = queue_frames.sendable(packet);
            wanted += if sendable { packet.frames() as u32 } else { 0 };
            sendable
        });
        let mut reserved = self.rings.tx.reserve(wanted).map_err(ring("TX"))?;
        let mut sent = 0;
        for packet in from.iter() {
            if packet.frames() > reserved.remaining() as usize {
                break;
            }
            queue_frames.hand_over(packet, |descriptor| {
                // There is room for all of its frames.
                let _ = reserved.push(descriptor);
            });
            sent += 1;
        }
        let frames = reserved.submit();
        from.forget_first(sent);
        queue_frames.count_sent(frames.into(), sent as u64, from.len() as u64);
        self.wake_tx()?;
        Ok(sent)
    }

    /// Sends one packet; hands it back if TX is full. A packet that can never be sent is freed and
    /// counted.
    ///
    /// # Errors
    /// See [`Error`]. The packet was freed or sent.
    pub fn send_one(&mut self, packet: Packet) -> Result<Option<Packet>, Error> {
        let mut batch = Batch::new(1);
        batch.extend_one(packet);
        self.send(&mut batch)?;
        Ok(batch.pop())
    }

    /// Takes back frames that were sent, and wakes the kernel if it has not sent all. Call it now
    /// and then while there is nothing to send: in copy mode the kernel stops midway when the
    /// interface is busy.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.wake_tx()?;
        self.complete()
    }

    /// Frames that the kernel has for sending, or has sent and were not taken back.
    pub fn unsent(&self) -> u64 {
        self.queue_frames.tally.sent_frames.get() - self.queue_frames.tally.completed_frames.get()
    }

    /// The work of the queue since it was opened.
    pub fn counts(&self) -> QueueCounts {
        self.queue_frames.tally.read()
    }

    /// The pool of its frames.
    pub fn pool(&self) -> &Pool {
        &self.queue_frames.pool
    }

    /// Its number among the queues of its pool: the `Record::stage` of frames that the kernel has.
    pub fn number(&self) -> u8 {
        self.queue_frames.number
    }

    /// How it is used.
    pub fn usage(&self) -> Use {
        self.queue_frames.usage
    }

    /// Its rings, to be looked at.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }

    /// The kernel's side of the queue.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    pub(crate) fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Gives the kernel its first frames, without a wake-up.
    pub(crate) fn prime(&mut self) -> Result<(), Error> {
        self.refill()
    }

    /// Has the kernel read FILL even if it asks for no wake-up, and continues as granted.
    pub(crate) fn begin(&mut self, usage: Use) {
        self.queue_frames.usage = Use { fill: self.queue_frames.usage.fill, ..usage };
        self.queue_frames.tally.rx_wakeups.add(1);
        // An interface that is down says so again when it is to receive.
        let _ = self.kernel.wake_rx();
    }

    /// A wake-up for its answer.
    pub(crate) fn probe(&mut self) -> Result<(), Error> {
        self.kernel.wake_rx().map_err(|source| Error::Wake { what: "receive", source })
    }

    /// Gives the kernel free frames, up to its number.
    fn refill(&mut self) -> Result<(), Error> {
        let (queue_frames, inner) = (&self.queue_frames, self.queue_frames.pool.inner());
        let have = queue_frames
            .tally
            .filled_frames
            .get()
            .saturating_sub(queue_frames.tally.received_frames.get());
        let wanted = u64::from(queue_frames.usage.fill).saturating_sub(have);
        inner.take_returned();
        if wanted == 0 {
            return Ok(());
        }
        // Not above `usage.fill`.
        let wanted = wanted as u32;
        let mut reserved =
            self.rings.fill.reserve(wanted.min(inner.free())).map_err(ring("FILL"))?;
        for frame in inner.take_burst(reserved.remaining(), Place::Fill, queue_frames.number) {
            inner.kernel.lend(frame, Place::Fill, queue_frames.number);
            // No more are taken than were reserved.
            let _ = reserved.push(inner.address(frame));
        }
        let filled = reserved.submit();
        inner.ledger().filled.add(filled.into());
        queue_frames.tally.filled_frames.add(filled.into());
        queue_frames.tally.starved_times.add(u64::from(filled == 0 && inner.free() == 0));
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Error> {
        let queue_frames = &self.queue_frames;
        let nothing =
            queue_frames.tally.sent_frames.get() == queue_frames.tally.completed_frames.get();
        if nothing || !queue_frames.pool.inner().is_usable() {
            return Ok(());
        }
        let inner = queue_frames.pool.inner();
        let done = self.rings.completion.peek(u32::MAX).map_err(ring("COMPLETION"))?;
        let mut completed = 0;
        for address in done.iter() {
            match queue_frames.redeem(address, Place::Tx) {
                Some(frame) => {
                    inner.put(frame);
                    completed += 1;
                }
                None => queue_frames.tally.completion_unbelievable.add(1),
            }
        }
        done.release();
        inner.ledger().completed.add(completed);
        queue_frames.tally.completed_frames.add(completed);
        Ok(())
    }

    fn wake_rx(&mut self, nothing: bool) -> Result<(), Error> {
        let usage = self.queue_frames.usage;
        if (usage.busy_poll && nothing) || (usage.need_wakeup && self.rings.fill.needs_wakeup()) {
            self.queue_frames.tally.rx_wakeups.add(1);
            self.kernel.wake_rx().map_err(|source| Error::Wake { what: "receive", source })?;
        }
        Ok(())
    }

    /// Wakes the kernel until TX is empty or it gets no further.
    fn wake_tx(&mut self) -> Result<(), Error> {
        if self.unsent() == 0
            || (self.queue_frames.usage.need_wakeup && !self.rings.tx.needs_wakeup())
        {
            return Ok(());
        }
        let mut left = self.left_in_tx()?;
        loop {
            self.queue_frames.tally.tx_wakeups.add(1);
            let wake = self.kernel.wake_tx();
            let wake = wake.map_err(|source| Error::Wake { what: "send", source })?;
            let before = std::mem::replace(&mut left, self.left_in_tx()?);
            if wake == Wake::Done || left == 0 || left >= before {
                return Ok(());
            }
        }
    }

    fn left_in_tx(&self) -> Result<usize, Error> {
        Ok(self.rings.tx.unconsumed().map_err(ring("TX"))?.len())
    }
}

impl<K: Kernel> Drop for Queue<K> {
    fn drop(&mut self) {
        // SAFETY: nothing uses them any more.
        unsafe { ManuallyDrop::drop(&mut self.rings) };
        // A successor has it open otherwise.
        if self.queue_frames.pool.umem().is_ours() {
            self.queue_frames.closed = self.kernel.close();
        }
    }
}
