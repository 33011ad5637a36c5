//! A queue of a device, as a worker's port.

use std::sync::Arc;

use ringway_engine::{Port, PortError, PortStatistics};
use ringway_wire::Mac;
use ringway_xsk::Batch;
use tracing::warn;

use crate::device::Device;
use crate::mbuf::Mbuf;
use crate::pool::{MbufPool, count};
use crate::sys;

/// A queue of a device.
pub struct DpdkPort {
    device: Arc<Device>,
    queue: u16,
    waits_for_link: bool,
    statistics: PortStatistics,
}

impl DpdkPort {
    pub(crate) fn new(device: Arc<Device>, queue: u16, waits_for_link: bool) -> Self {
        Self { device, queue, waits_for_link, statistics: PortStatistics::default() }
    }

    /// The device's own; its first queue tells them, lest they count twice.
    fn device_counts(&self) -> Option<sys::Counts> {
        let mut counts = sys::Counts::default();
        // SAFETY: a port of ours, and a place for its answer.
        let asked = unsafe { sys::rw_dpdk_counts(self.device.port, &mut counts) };
        (self.queue == 0 && asked == 0).then_some(counts)
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
        // SAFETY: a port of ours.
        if unsafe { sys::rte_eth_dev_is_removed(self.device.port) } == 1 {
            return Err(refused("its device is gone", "see `dmesg`; plug it in, and start again"));
        }
        let lost = !self.device.link_is_up();
        if lost && !self.waits_for_link {
            let remedy =
                "see to its cable and its far end, and start again; or use `--on-loss reopen`";
            return Err(refused("its link is down", remedy));
        }
        if lost && !self.statistics.lost {
            self.statistics.lost_times += 1;
            warn!("{}: its link is down; waiting for it", self.device.name);
        }
        self.statistics.lost = lost;
        Ok(())
    }

    fn device_counters(&mut self) -> Vec<(String, u64)> {
        if self.queue == 0 { self.device.counters() } else { Vec::new() }
    }

    fn mac(&self) -> Option<Mac> {
        let mut mac = [0; 6];
        // SAFETY: a port of ours, and a place for six bytes.
        let asked = unsafe { sys::rte_eth_macaddr_get(self.device.port, &mut mac) };
        (asked == 0).then_some(Mac(mac))
    }
}
