//! Packets on their way through a worker, and the one place where their verdicts are carried out.

use std::mem;

use ringway_xsk::{Batch, Buffer as _, Front, Pool};

use crate::buffer_pool::BufferPool;
use crate::port::{Port, PortError};
use crate::status::reason::Reason;

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes out by the worker's port of this number, counted from 0.
    Forward(usize),
    /// It is freed, and counted.
    Drop(Reason),
}

/// A reason stands for its drop, so that `?` drops a malformed packet.
impl From<Result<Verdict, Reason>> for Verdict {
    #[inline]
    fn from(result: Result<Verdict, Reason>) -> Self {
        result.unwrap_or_else(Verdict::Drop)
    }
}

/// Packets that came in together, and the ports that they can leave by.
pub struct Burst<'a, P: BufferPool = Pool> {
    from: usize,
    incoming: &'a mut Batch<P::Packet>,
    tx_queues: &'a mut TxQueues<P>,
}

impl<'a, P: BufferPool> Burst<'a, P> {
    pub(crate) fn new(
        from: usize,
        incoming: &'a mut Batch<P::Packet>,
        tx_queues: &'a mut TxQueues<P>,
    ) -> Self {
        Self { from, incoming, tx_queues }
    }

    /// The number of the port that the packets came in by.
    pub fn from(&self) -> usize {
        self.from
    }

    /// How many ports the worker has.
    pub fn ports(&self) -> usize {
        self.tx_queues.queues.len()
    }

    /// The number of packets without a decision.
    pub fn len(&self) -> usize {
        self.incoming.len()
    }

    pub fn is_empty(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Decides about each packet, in order.
    #[inline]
    pub fn decide(&mut self, mut verdict: impl FnMut(&mut P::Packet) -> Verdict) {
        self.tx_queues.decide(self.incoming, |packet| Some(verdict(packet)));
    }

    /// Forwards all packets by one port, without a look at any.
    #[inline]
    pub fn forward_all(&mut self, to: usize) {
        self.tx_queues.forward_all(self.incoming, to);
    }

    /// Decides about some packets, in order, and leaves the others to the next app:
    ///
    /// ```
    /// use ringway_engine::apps::Icmp;
    /// use ringway_engine::{App, Burst, Cycles, Reason, Verdict};
    ///
    /// /// Takes long packets, and leaves all others to a host that can be pinged.
    /// struct Long(Icmp);
    ///
    /// impl App for Long {
    ///     fn name(&self) -> &'static str {
    ///         "long"
    ///     }
    ///
    ///     fn on_burst(&mut self, now: Cycles, burst: &mut Burst<'_>) {
    ///         burst.decide_some(|packet| {
    ///             (packet.len() > 1000).then_some(Verdict::Drop(Reason::Consumed))
    ///         });
    ///         self.0.on_burst(now, burst);
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn decide_some(&mut self, verdict: impl FnMut(&mut P::Packet) -> Option<Verdict>) {
        self.tx_queues.decide(self.incoming, verdict);
        // They came from there: there is room for all.
        self.tx_queues.made.take_front().give(usize::MAX, self.incoming);
    }

    /// Makes a packet: `build` gets an empty one, with headroom. False if no frame is free, which
    /// is counted.
    #[inline]
    pub fn originate(&mut self, build: impl FnMut(&mut P::Packet) -> Verdict) -> bool {
        self.originate_burst(1, build) == 1
    }

    /// Makes up to `count` packets, each as [`Burst::originate`] does, and returns their number. It
    /// is less than `count` if no frame is free, which is counted.
    #[inline]
    pub fn originate_burst(
        &mut self,
        count: usize,
        mut build: impl FnMut(&mut P::Packet) -> Verdict,
    ) -> usize {
        // A batch for nothing has no memory of its own.
        let mut made = mem::replace(&mut self.tx_queues.made, Batch::new(0));
        let count = count.min(made.room());
        let taken = self.tx_queues.pool.allocate_burst(&mut made, count);
        self.tx_queues.tally.originated += taken as u64;
        self.tx_queues.tally.no_frame += u64::from(taken < count);
        self.tx_queues.decide(&mut made, |packet| Some(build(packet)));
        self.tx_queues.made = made;
        taken
    }

    /// The number of packets that wait to be sent by this port. A source checks it before it makes
    /// more.
    pub fn waiting(&self, port: usize) -> usize {
        self.tx_queues.queues.get(port).map_or(0, |queue| queue.waiting.len())
    }
}

/// The way of packets from an app to the ports.
pub(crate) struct TxQueues<P: BufferPool> {
    pub pool: P,
    pub queues: Vec<TxQueue<P>>,
    /// New packets, whose frames are taken together.
    made: Batch<P::Packet>,
    /// Dropped packets, which are freed together: that costs less than one by one.
    dropped: Batch<P::Packet>,
    pub tally: Tally,
    /// A port that failed in the middle of a burst.
    pub failed: Option<PortError>,
}

/// A port, and the packets that wait to be sent by it.
pub(crate) struct TxQueue<P: BufferPool> {
    pub port: Box<dyn Port<P>>,
    pub waiting: Batch<P::Packet>,
    /// In this round, before its end.
    pub has_sent: bool,
}

impl<P: BufferPool> TxQueues<P> {
    pub(crate) fn new(pool: P, ports: Vec<Box<dyn Port<P>>>, waiting: usize) -> Self {
        let queue = |port| TxQueue { port, waiting: Batch::new(waiting), has_sent: false };
        Self {
            pool,
            queues: ports.into_iter().map(queue).collect(),
            made: Batch::new(waiting),
            dropped: Batch::new(waiting),
            tally: Tally::default(),
            failed: None,
        }
    }

    /// Decides about packets. Those that `verdict` leaves are in `made` afterwards. Neighbours with
    /// the same verdict are moved together: that costs less than one by one.
    #[inline]
    fn decide(
        &mut self,
        batch: &mut Batch<P::Packet>,
        mut verdict: impl FnMut(&mut P::Packet) -> Option<Verdict>,
    ) {
        let mut front = batch.take_front();
        let Some(mut run) = front.left().first_mut().map(&mut verdict) else { return };
        loop {
            let rest = front.left()[1..].iter_mut().map(&mut verdict);
            let (mut count, mut next) = (1, None);
            for other in rest {
                if other != run {
                    next = Some(other);
                    break;
                }
                count += 1;
            }
            self.carry_out(&mut front, count, run);
            match next {
                Some(next) => run = next,
                None => break,
            }
        }
        self.dropped.clear();
    }

    #[inline]
    fn forward_all(&mut self, batch: &mut Batch<P::Packet>, to: usize) {
        let Self { queues, tally, failed, .. } = self;
        match queues.get_mut(to) {
            // A full burst need not wait for more.
            Some(queue) if batch.room() == 0 && queue.waiting.is_empty() => {
                send(&mut *queue.port, batch, tally, failed);
                queue.has_sent = true;
            }
            _ => (),
        }
        let mut left = batch.take_front();
        let count = left.left().len();
        if count > 0 {
            self.carry_out(&mut left, count, Some(Verdict::Forward(to)));
            drop(left);
            self.dropped.clear();
        }
    }

    #[inline]
    fn carry_out(
        &mut self,
        packets: &mut Front<'_, P::Packet>,
        count: usize,
        verdict: Option<Verdict>,
    ) {
        match verdict {
            None => drop(packets.give(count, &mut self.made)),
            Some(Verdict::Drop(reason)) => self.drop(packets, count, reason),
            Some(Verdict::Forward(to)) => {
                let Some(queue) = self.queues.get_mut(to) else {
                    return self.drop(packets, count, Reason::NoSuchPort);
                };
                let given = packets.give(count, &mut queue.waiting);
                if given < count {
                    self.make_room(packets, count - given, to);
                }
            }
        }
    }

    /// Sends the packets that wait before these.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, packets: &mut Front<'_, P::Packet>, count: usize, to: usize) {
        self.transmit(to);
        let given = packets.give(count, &mut self.queues[to].waiting);
        self.drop(packets, count - given, Reason::PortFull);
    }

    #[inline]
    fn drop(&mut self, packets: &mut Front<'_, P::Packet>, mut count: usize, reason: Reason) {
        self.tally.drop(reason, count);
        while count > 0 {
            count -= packets.give(count, &mut self.dropped);
            if self.dropped.room() == 0 {
                self.dropped.clear();
            }
        }
    }

    /// Sends waiting packets by a port, as far as it takes them. Returns whether it took any.
    pub(crate) fn transmit(&mut self, to: usize) -> bool {
        let Self { queues, tally, failed, .. } = self;
        let TxQueue { port, waiting, .. } = &mut queues[to];
        send(&mut **port, waiting, tally, failed)
    }

    /// Drops packets without a decision.
    pub(crate) fn undecided(&mut self, incoming: &mut Batch<P::Packet>) {
        self.tally.drop(Reason::Undecided, incoming.len());
        incoming.clear();
    }

    /// Packets that wait to be sent.
    pub(crate) fn waiting(&self) -> u64 {
        self.queues.iter().map(|queue| queue.waiting.len() as u64).sum()
    }

    /// Frames of packets that wait to be sent: all that the worker has between two rounds.
    pub(crate) fn known_held(&self) -> u64 {
        let frames = |batch: &Batch<P::Packet>| {
            batch.iter().map(|packet| packet.frames() as u64).sum::<u64>()
        };
        self.queues.iter().map(|queue| frames(&queue.waiting)).sum()
    }

    /// Drops and counts waiting packets.
    pub(crate) fn stop(&mut self) {
        let waiting = self.queues.iter().map(|queue| queue.waiting.len()).sum();
        self.tally.drop(Reason::Stopped, waiting);
        self.queues.iter_mut().for_each(|queue| queue.waiting.clear());
    }
}

/// Sends packets by a port, as far as it takes them. Returns whether it took any.
#[inline]
fn send<P: BufferPool>(
    port: &mut dyn Port<P>,
    packets: &mut Batch<P::Packet>,
    tally: &mut Tally,
    failed: &mut Option<PortError>,
) -> bool {
    let before = packets.len();
    let sent = port.tx_burst(packets);
    let gone = before - packets.len();
    match sent {
        Ok(sent) => {
            tally.transmitted += sent as u64;
            tally.drop(Reason::Unsendable, gone.saturating_sub(sent));
        }
        Err(error) => {
            tally.drop(Reason::PortFailed, gone);
            failed.get_or_insert(error);
        }
    }
    gone > 0
}

/// Burst sizes are told apart by powers of two: 1, 2 to 3, 4 to 7, ..., 64 and more.
pub(crate) const BURST_SIZES: usize = 7;

/// The counters of a worker. Only the worker writes and reads them, the latter when it is asked for
/// its status. On cache lines of its own: workers lie in memory beside each other.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub received: u64,
    pub originated: u64,
    pub transmitted: u64,
    /// Times the app wanted to originate, and no frame was free.
    pub no_frame: u64,
    pub rounds: u64,
    pub sleeps: u64,
    pub busy_cycles: u64,
    pub idle_cycles: u64,
    pub bursts: [u64; BURST_SIZES],
    dropped: Dropped,
}

#[derive(Debug)]
struct Dropped([u64; Reason::COUNT]);

impl Default for Dropped {
    fn default() -> Self {
        Self([0; Reason::COUNT])
    }
}

impl Tally {
    #[inline]
    pub(crate) fn burst(&mut self, packets: usize) {
        self.received += packets as u64;
        if let Some(size) = packets.checked_ilog2() {
            self.bursts[(size as usize).min(BURST_SIZES - 1)] += 1;
        }
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: Reason, packets: usize) {
        self.dropped.0[reason as usize] += packets as u64;
    }

    pub(crate) fn dropped(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::all().zip(self.dropped.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let mut tally = Tally::default();
        for packets in [0, 1, 2, 3, 4, 32, 63, 64, 1000] {
            tally.burst(packets);
        }
        assert_eq!(tally.bursts, [1, 2, 1, 0, 0, 2, 2]);
        assert_eq!(tally.received, 1 + 2 + 3 + 4 + 32 + 63 + 64 + 1000);
    }
}
