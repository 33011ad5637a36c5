//! A queue of a device, as a worker's port.

use std::sync::Arc;

use ringway_engine::{Port, PortError, PortStatistics};
use ringway_wire::Mac;
use ringway_xsk::{Batch, Buffer as _};
use tracing::warn;

use crate::device::Device;
use crate::mbuf::Mbuf;
use crate::pool::MbufPool;
use crate::sys;
use crate::tally::count;

/// A queue of a device.
pub struct DpdkPort {
    device: Arc<Device>,
    queue: u16,
    waits_for_link: bool,
    /// Bytes of a packet that it sends, at most: the MTU, and a header with a tag.
    longest: usize,
    statistics: PortStatistics,
}

impl DpdkPort {
    pub(crate) fn new(device: Arc<Device>, queue: u16, waits_for_link: bool) -> Self {
        let (longest, statistics) = (device.mtu() + 18, PortStatistics::default());
        Self { device, queue, waits_for_link, longest, statistics }
    }

    /// The device's own; its first queue tells them, lest they count twice.
    fn device_counts(&self) -> Option<sys::Counts> {
        let mut counts = sys::Counts::default();
        if self.queue != 0 {
            return None;
        }
        // SAFETY: a port of ours, whose settings only its first queue's thread asks for, and a place
        // for the answer.
        let asked = unsafe { sys::rw_dpdk_counts(self.device.port, &mut counts) };
        (asked == 0).then_some(counts)
    }
}

impl Port<MbufPool> for DpdkPort {
    fn name(&self) -> &str {
        &self.device.name
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut Batch<Mbuf>) -> Result<usize, PortError> {
        let (port, queue) = (self.device.port, self.queue);
        // SAFETY: the driver writes so many mbufs, at most as many as there is room for, and gives
        // them away. This queue is this thread's alone.
        let received = unsafe {
            batch.fill(|room| {
                let count = room.len().min(u16::MAX.into()) as u16;
                sys::rw_dpdk_rx(port, queue, room.as_mut_ptr().cast(), count).into()
            })
        };
        count(|tally| &tally.received, received);
        self.statistics.received_packets += received as u64;
        Ok(received)
    }

    #[inline]
    fn tx_burst(&mut self, batch: &mut Batch<Mbuf>) -> Result<usize, PortError> {
        let wanted = batch.len().min(u16::MAX.into()) as u16;
        if wanted == 0 {
            return Ok(0);
        }
        let packets = batch.as_mut_ptr().cast();
        // SAFETY: so many mbufs that had one owner; the driver has the first of them afterwards, as
        // many as it says. This queue is this thread's alone.
        let sent = unsafe { sys::rw_dpdk_tx(self.device.port, self.queue, packets, wanted) };
        let sent = usize::from(sent.min(wanted));
        batch.forget_first(sent);
        count(|tally| &tally.sent, sent);
        // Some drivers end a burst before one that is too long, and would do so for ever.
        if batch.first().is_some_and(|first| first.len() > self.longest) {
            let mut first = true;
            batch.retain(|_| !std::mem::take(&mut first));
            self.statistics.unsendable_packets += 1;
        }
        self.statistics.transmitted_packets += sent as u64;
        self.statistics.tx_full_packets += batch.len() as u64;
        Ok(sent)
    }

    fn statistics(&mut self) -> PortStatistics {
        if let Some(counts) = self.device_counts() {
            self.statistics.kernel_rx_ring_full_packets = Some(counts.missed);
            self.statistics.kernel_rx_dropped_packets = Some(counts.errors_in);
            self.statistics.kernel_tx_invalid_descs = Some(counts.errors_out);
            self.statistics.no_frame_times = counts.no_buffer;
        }
        self.statistics
    }

    fn check(&mut self) -> Result<(), PortError> {
        let refused = |why: &str, remedy| PortError::Refused {
            port: self.device.name.clone(),
            why: why.into(),
            remedy,
        };
        if self.queue == 0 {
            self.device.look();
        }
        if self.device.is_gone() {
            let remedy = "see `dmesg`; once it is back, `ringway nic list` says what it needs";
            return Err(refused("its device is gone, or the kernel wants it back", remedy));
        }
        let lost = !self.device.link_is_up();
        if lost && !self.waits_for_link {
            let remedy =
                "see to its cable and its far end, and start again; or use `--on-loss reopen`";
            return Err(refused("its link is down", remedy));
        }
        match (self.statistics.lost, lost) {
            (false, true) => {
                self.statistics.lost_times += 1;
                warn!("{}: its link is down; waiting for it", self.device.name);
            }
            (true, false) => warn!("{}: its link is up again", self.device.name),
            _ => (),
        }
        self.statistics.lost = lost;
        Ok(())
    }

    fn device_counters(&mut self) -> Vec<(String, u64)> {
        if self.queue == 0 { self.device.counters() } else { Vec::new() }
    }

    fn mac(&self) -> Option<Mac> {
        self.device.mac()
    }
}
