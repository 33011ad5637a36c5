//! Packet programs.

use ringway_xsk::Pool;

use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::Burst;

/// A packet program. One worker has it to itself: nothing in it needs a lock.
///
/// It is called for every burst and decides about packets. The worker keeps owning them, so an app
/// can neither lose a packet nor keep one uncounted. An app should not allocate, block or write to
/// a log.
pub trait App<P: BufferPool = Pool> {
    fn name(&self) -> &'static str;

    /// Handles packets that came in by the port [`Burst::from`]. A packet without a decision is
    /// dropped as [`Reason::Undecided`](crate::Reason::Undecided).
    fn on_burst(&mut self, now: Cycles, burst: &mut Burst<'_, P>);

    /// Makes packets of its own. Called once in each round, after the ports were asked for packets;
    /// `burst` has none.
    fn on_round(&mut self, now: Cycles, burst: &mut Burst<'_, P>) {
        let _ = (now, burst);
    }

    /// Whether it looks at what packets hold: they are on their way to the cache then when it gets
    /// them. Asked once.
    fn reads_packets(&self) -> bool {
        true
    }

    /// Whether it is done. The worker then ends as soon as all waiting packets are sent.
    fn is_finished(&self) -> bool {
        false
    }

    /// Whether it makes packets by itself. Such an app has something to do even if nothing will
    /// arrive by any port.
    fn is_source(&self) -> bool {
        false
    }

    /// Names of reasons of its own, at most 16. [`Reason::own`](crate::Reason::own) makes such a
    /// reason.
    fn reasons(&self) -> &'static [&'static str] {
        &[]
    }

    /// Its own counters, for the status.
    fn statistics(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// The stage of packets that came in.
pub(crate) const RECEIVED: u8 = 0;
/// The stage of packets that the app made in [`App::on_round`].
pub(crate) const MADE: u8 = 1;
/// The stage of packets that came from a capture, the last that has a name. [`crate::ports::Pcap`]
/// recognises by it packets that have a time.
pub(crate) const CAPTURED: u8 = 15;

impl<P: BufferPool, A: App<P> + ?Sized> App<P> for Box<A> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn on_burst(&mut self, now: Cycles, burst: &mut Burst<'_, P>) {
        (**self).on_burst(now, burst);
    }

    fn on_round(&mut self, now: Cycles, burst: &mut Burst<'_, P>) {
        (**self).on_round(now, burst);
    }

    fn reads_packets(&self) -> bool {
        (**self).reads_packets()
    }

    fn is_finished(&self) -> bool {
        (**self).is_finished()
    }

    fn is_source(&self) -> bool {
        (**self).is_source()
    }

    fn reasons(&self) -> &'static [&'static str] {
        (**self).reasons()
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        (**self).statistics()
    }
}
