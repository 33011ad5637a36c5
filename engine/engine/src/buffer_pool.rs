//! The memory of a worker's packets.

use ringway_xsk::{Audit, Batch, Buffer, Counts, Packet, Pool, Rings};

/// The pool of one worker's packets; clones are handles to the same one.
///
/// Ports, apps and workers are written for any. [`Pool`], frames of a UMEM, is the one that they
/// have unless another is named.
pub trait BufferPool: Clone + 'static {
    type Packet: Buffer;

    /// An empty packet with headroom; none if no frame is free.
    fn allocate(&self) -> Option<Self::Packet>;

    /// Adds up to `count` empty packets, as far as the batch has room and frames are free. Returns
    /// their number.
    fn allocate_burst(&self, into: &mut Batch<Self::Packet>, count: usize) -> usize;

    /// The number of free frames.
    fn free(&self) -> u32;

    /// Sets the time in milliseconds from which ages of frames are computed, if it records them.
    fn set_now(&self, _now_ms: u32) {}

    /// Sets the stage of packets that are received or allocated from now on, if it records them.
    fn set_stage(&self, _stage: u8) {}

    /// Names a stage below 16.
    fn name_stage(&self, _stage: u8, _name: &str) {}

    /// Every transition of its frames so far.
    fn counts(&self) -> Counts;

    /// Finds every frame, in the pool and in these rings, or says what is wrong.
    fn audit(&self, rings: &[&Rings]) -> Audit;
}

impl BufferPool for Pool {
    type Packet = Packet;

    #[inline]
    fn allocate(&self) -> Option<Packet> {
        self.allocate()
    }

    #[inline]
    fn allocate_burst(&self, into: &mut Batch, count: usize) -> usize {
        self.allocate_burst(into, count)
    }

    fn free(&self) -> u32 {
        self.free()
    }

    #[inline]
    fn set_now(&self, now_ms: u32) {
        self.set_now(now_ms);
    }

    #[inline]
    fn set_stage(&self, stage: u8) {
        self.set_stage(stage);
    }

    fn name_stage(&self, stage: u8, name: &str) {
        self.name_stage(stage, name);
    }

    fn counts(&self) -> Counts {
        self.counts()
    }

    fn audit(&self, rings: &[&Rings]) -> Audit {
        self.audit(rings)
    }
}
