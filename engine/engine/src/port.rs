//! Where packets come from and go to.

use std::fmt::Display;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_host::netlink::xdp_features::Features;
use ringway_wire::Mac;
use ringway_xsk::{Batch, LeftSocket, Pool, Redirect, Rings};
use serde::Serialize;

use crate::buffer_pool::BufferPool;

/// A port of a worker. Its frames belong to the worker's pool, so it stays on the worker's thread.
pub trait Port<P: BufferPool = Pool> {
    /// As it was specified: `af_packet:eth0`.
    fn name(&self) -> &str;

    /// Adds packets that have arrived, as far as the batch has room. Returns their number.
    ///
    /// # Errors
    /// The port cannot continue. Packets that it has added by then came in and stay in the batch.
    fn rx_burst(&mut self, batch: &mut Batch<P::Packet>) -> Result<usize, PortError>;

    /// Sends packets from the front of the batch, as far as there is room; the others stay there.
    /// Packets that it can never send are freed. Returns the number of packets that were sent.
    ///
    /// # Errors
    /// The port cannot continue; packets that it took out of the batch are lost.
    fn tx_burst(&mut self, batch: &mut Batch<P::Packet>) -> Result<usize, PortError>;

    fn statistics(&mut self) -> PortStatistics;

    /// The descriptor that becomes readable when packets arrive; none if the port must be polled.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether nothing will arrive any more.
    fn is_finished(&self) -> bool {
        false
    }

    /// Its rings, where the pool's frames may be.
    fn rings(&self) -> Option<&Rings> {
        None
    }

    /// Checks whether it can still be used, which rings do not show. Called a few times a second.
    ///
    /// # Errors
    /// For example, its interface is gone or down.
    fn check(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// The state that a successor needs to continue; none: the successor opens the port anew. A
    /// packet that has not arrived completely is dropped. The worker goes on with it, or drops it
    /// after its memory was offered.
    fn leave(&mut self) -> Option<LeftPort> {
        None
    }

    /// Counters of its device's own, by their names there.
    fn device_counters(&mut self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Its link-layer address, if it has one.
    fn mac(&self) -> Option<Mac> {
        None
    }

    /// The modes that the kernel granted, if the port has a queue.
    fn obtained(&self) -> Option<Obtained> {
        None
    }
}

/// A port that is left to a successor.
pub struct LeftPort {
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) socket: OwnedFd,
    pub(crate) left: LeftSocket,
    pub(crate) redirect: Arc<Redirect>,
    /// The packets that it chooses, in words; empty: all.
    pub(crate) chooses: String,
    pub(crate) mac: Option<Mac>,
}

/// A queue, and how packets come from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obtained {
    pub interface: String,
    pub queue: u32,
    /// Whether the program that brings packets runs in the driver.
    pub native: bool,
    /// Whether the driver puts packets into the UMEM itself.
    pub zero_copy: bool,
    /// Whether the user asked for a slow mode: behind the driver, or with copies.
    pub chosen: bool,
    /// Whether packets may be longer than a frame.
    pub several_frames: bool,
    /// The driver's features; none if the kernel does not report them.
    pub driver: Option<Features>,
    /// A sentence for each wish that was not granted.
    pub refusals: Vec<String>,
}

/// The counters of a port since it was opened. A counter that this kind of port lacks is none, not
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortStatistics {
    pub received_packets: u64,
    pub transmitted_packets: u64,
    /// Packets handed back because there was no room to send them.
    pub tx_full_packets: u64,
    /// Packets that it can never send.
    pub unsendable_packets: u64,
    /// Times that no packet could be received because no frame was free.
    pub no_frame_times: u64,
    /// Packets that did not come in because they exceed the frames of a packet. They are counted
    /// nowhere else.
    pub too_long_packets: u64,
    /// Frames given to the kernel to be filled.
    pub filled_frames: Option<u64>,
    /// Frames that came back after they were sent.
    pub completed_frames: Option<u64>,
    /// Packets that the kernel dropped before they came here.
    pub kernel_rx_dropped_packets: Option<u64>,
    /// Descriptors that the kernel refused in FILL.
    pub kernel_rx_invalid_descs: Option<u64>,
    /// Descriptors that the kernel refused in TX; of a packet socket, frames that its device
    /// refused: they count as transmitted, too.
    pub kernel_tx_invalid_descs: Option<u64>,
    /// Packets that the kernel dropped because RX was full.
    pub kernel_rx_ring_full_packets: Option<u64>,
    /// Times the kernel found no frame in FILL.
    pub kernel_fill_ring_empty_times: Option<u64>,
    /// Times its interface, link or program was lost, and it waited for that to be back.
    pub lost_times: u64,
    /// Whether it waits for that now.
    pub lost: bool,
}

impl PortStatistics {
    /// The sum of this one and a later one. The state (`lost`) is that of the later one.
    pub(crate) fn then(&self, after: &PortStatistics) -> PortStatistics {
        let both = |of: fn(&PortStatistics) -> Option<u64>| match (of(self), of(after)) {
            (Some(before), Some(after)) => Some(before + after),
            (before, after) => before.or(after),
        };
        PortStatistics {
            received_packets: self.received_packets + after.received_packets,
            transmitted_packets: self.transmitted_packets + after.transmitted_packets,
            tx_full_packets: self.tx_full_packets + after.tx_full_packets,
            unsendable_packets: self.unsendable_packets + after.unsendable_packets,
            no_frame_times: self.no_frame_times + after.no_frame_times,
            too_long_packets: self.too_long_packets + after.too_long_packets,
            filled_frames: both(|s| s.filled_frames),
            completed_frames: both(|s| s.completed_frames),
            kernel_rx_dropped_packets: both(|s| s.kernel_rx_dropped_packets),
            kernel_rx_invalid_descs: both(|s| s.kernel_rx_invalid_descs),
            kernel_tx_invalid_descs: both(|s| s.kernel_tx_invalid_descs),
            kernel_rx_ring_full_packets: both(|s| s.kernel_rx_ring_full_packets),
            kernel_fill_ring_empty_times: both(|s| s.kernel_fill_ring_empty_times),
            lost_times: self.lost_times + after.lost_times,
            lost: after.lost,
        }
    }
}

/// Advice with the name of an interface in the place of IFACE.
pub(crate) fn advice_for(interface: &str, advice: impl Display) -> String {
    advice.to_string().replace("IFACE", interface)
}

/// Why a port cannot be opened, or cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The system refused something.
    #[error("{port}: {what}: {source}; {}", advice_for(interface, remedy))]
    System {
        port: String,
        interface: String,
        /// The request to the system.
        what: &'static str,
        source: io::Error,
        remedy: &'static str,
    },
    /// The request is impossible.
    #[error("{port}: {why}; {remedy}")]
    Refused { port: String, why: String, remedy: &'static str },
    /// Its interface is down.
    #[error("{port}: {interface} is down; `ip link set dev {interface} up`{alternative}")]
    Down { port: String, interface: String, alternative: &'static str },
    /// A ring is damaged.
    #[error("{port}: {source}")]
    Ring { port: String, source: ringway_ring::Corrupt },
    /// The interface cannot be looked up.
    #[error("{port}: {source}")]
    Host { port: String, source: ringway_host::Error },
    /// An AF_XDP socket cannot be opened.
    #[error("{port}: {}", advice_for(interface, source))]
    Setup {
        port: String,
        interface: String,
        /// The cause and the remedy.
        source: ringway_xsk::SetupError,
    },
    /// An AF_XDP socket cannot continue.
    #[error("{port}: {}", advice_for(interface, source))]
    Queue {
        port: String,
        interface: String,
        /// The cause and the remedy.
        source: ringway_xsk::Error,
    },
    /// Somebody has taken its XDP program off the interface, or put another one in its place.
    #[error(
        "{port}: its XDP program was detached by somebody else, so no packets arrive; `bpftool link` shows what is \
         attached: resolve that and restart, or use `--on-loss reopen`"
    )]
    Detached { port: String },
    /// A capture ends in the middle of a packet.
    #[error(
        "{port}: truncated in packet {packet} of {file}; all packets before it were read; capture it \
         again, or cut it there: `editcap -F pcap {file} WHOLE.pcap`"
    )]
    Truncated {
        port: String,
        /// The packet's number, from 1.
        packet: u64,
        file: String,
    },
    /// A capture file cannot be read or written.
    #[error("{port}: {file}: {source}; {remedy}")]
    Capture { port: String, file: String, source: pcap_file::PcapError, remedy: &'static str },
}

#[cfg(test)]
mod tests {
    use ringway_xsk::{Cause, SetupError, Step};

    use super::*;
    use crate::spec::PortSpec;

    #[test]
    fn advice_names_the_interface() {
        let (on, source) = ("eth7, queue 3".to_owned(), io::ErrorKind::Other.into());
        let source = SetupError { step: Step::Bind, on, cause: Cause::Down, source };
        let (port, interface) = ("af_xdp:eth7:3".into(), "eth7".into());
        let said = PortError::Setup { port, interface, source }.to_string();
        assert!(said.contains("`ip link set eth7 up`") && !said.contains("IFACE"), "{said}");
        let said = "af_xdp:eth7:x".parse::<PortSpec>().expect_err("no queue").to_string();
        assert!(said.contains("`ethtool -l eth7`") && !said.contains("IFACE"), "{said}");
    }
}
