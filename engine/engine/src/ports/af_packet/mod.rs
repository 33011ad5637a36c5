//! `af_packet:IFACE`: a packet socket with rings (TPACKET_V3): slower than AF_XDP, and on every
//! interface of every kernel.
//!
//! Packets are copied out of the kernel's ring and into it. The kernel's own stack sees arriving
//! packets, too. A VLAN tag that the kernel removed is put back, and a checksum that it left
//! unfinished (between namespaces of one machine) is finished.

mod checksum;
mod map;
mod socket;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ringway_wire::Mac;
use ringway_xsk::{Batch, MAX_FRAMES, Packet, Pool};
use tracing::warn;

use self::map::{Arrived, Map};
use self::socket::Socket;
use super::pcap::too_long;
use crate::port::{Port, PortError, PortStatistics};

/// How long a device may refuse a frame: its queue, or the far end's, may be full. What it refuses
/// for longer, it refuses for good: a veth whose far end has a smaller MTU does, and the kernel
/// would try that frame, and none behind it, for ever.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long all of them may take at the end.
const LAST_PATIENCE: Duration = Duration::from_millis(200);

/// The settings of a packet socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub interface: String,
    /// Blocks of 128 KiB for reception, 2 to 1 024.
    pub blocks: u32,
    /// Past the queueing discipline (`PACKET_QDISC_BYPASS`): faster, but what the device cannot
    /// take at once is lost.
    pub bypass: bool,
}

impl Config {
    /// An interface; all else by default.
    pub fn new(interface: impl Into<String>) -> Self {
        Self { interface: interface.into(), blocks: 16, bypass: false }
    }
}

pub struct AfPacket {
    name: String,
    interface: String,
    // Before the map goes, so must the socket: fields are dropped in this order.
    socket: Socket,
    map: Map,
    pool: Pool,
    mac: Mac,
    mtu: usize,
    /// The longest packet that can come in.
    longest: usize,
    /// The frame of the TX ring that the device refuses, and since when.
    refused: Option<(usize, Instant)>,
    statistics: PortStatistics,
}

impl AfPacket {
    /// Opens the interface.
    ///
    /// # Errors
    /// There is no interface of this name, it is down or not Ethernet, or this process lacks
    /// CAP_NET_RAW.
    pub fn open(name: String, pool: &Pool, config: &Config) -> Result<Self, PortError> {
        let host = |source| PortError::Host { port: name.clone(), source };
        let link = ringway_host::interface_by_name(&config.interface).map_err(host)?.link;
        let Some(mac) = link.mac else {
            let (port, why) = (name.clone(), "it has no Ethernet addresses".into());
            return Err(PortError::Refused {
                port,
                why,
                remedy: "give it an interface with Ethernet",
            });
        };
        let opened = || {
            let socket = Socket::open(config)?;
            let map = Map::new(&socket, config.blocks).map_err(|e| ("mapping its rings", e))?;
            socket.bind(link.ifindex).map_err(|e| ("binding to the interface", e))?;
            socket.error().map_err(|e| ("binding to the interface", e))?;
            Ok((socket, map))
        };
        let (socket, map) = opened().map_err(|error| failed(&name, &config.interface, error))?;
        let longest = MAX_FRAMES.min(pool.free() as usize) * pool.umem().room() as usize;
        // Ethernet's header and a tag beside the MTU.
        if link.mtu as usize + 18 > map::LONGEST {
            warn!(
                "{name}: the MTU is {}, and it sends packets up to {} bytes, others are dropped: \
                 take an af_xdp port, or `ip link set dev {} mtu 1500`",
                link.mtu,
                map::LONGEST,
                config.interface
            );
        }
        let (pool, statistics) = (pool.clone(), PortStatistics::default());
        let (mac, mtu) = (Mac(mac.0), link.mtu as usize);
        let interface = config.interface.clone();
        Ok(Self {
            name,
            interface,
            socket,
            map,
            pool,
            mac,
            mtu,
            longest,
            refused: None,
            statistics,
        })
    }

    /// Has the kernel send the packets in the TX ring.
    fn kick(&mut self) -> io::Result<()> {
        while !self.socket.send()? {
            let Some(head) = self.map.head() else { break };
            match self.refused {
                Some((frame, since)) if frame == head => {
                    if since.elapsed() < PATIENCE {
                        return Ok(());
                    }
                    self.map.give_up(head);
                    *self.statistics.kernel_tx_invalid_descs.get_or_insert(0) += 1;
                }
                _ => {
                    self.refused = Some((head, Instant::now()));
                    return Ok(());
                }
            }
        }
        self.refused = None;
        Ok(())
    }
}

impl Drop for AfPacket {
    fn drop(&mut self) {
        let began = Instant::now();
        while self.refused.is_some() && began.elapsed() < LAST_PATIENCE && self.kick().is_ok() {
            std::thread::yield_now();
        }
    }
}

fn failed(port: &str, interface: &str, (what, source): (&'static str, io::Error)) -> PortError {
    let remedy = match source.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => {
            "there is no such interface here: `ip link` has their names"
        }
        Some(libc::ENETDOWN) => {
            "the interface is down or gone: `ip link set IFACE up`, then start again"
        }
        Some(libc::EPERM | libc::EACCES) => "run it as root or with CAP_NET_RAW",
        Some(libc::ENOMEM) => "ask for fewer blocks, `,blocks=N`",
        _ => "look at the interface with `ip -d link`",
    };
    PortError::System { port: port.into(), interface: interface.into(), what, source, remedy }
}

/// Copies an arrived packet into one of the pool, with its tag and its checksum; none if the pool
/// has too few frames.
fn copy_in(pool: &Pool, arrived: &Arrived<'_>) -> Option<Packet> {
    let mut packet = pool.allocate()?;
    let mut rest = arrived.bytes;
    if let (Some(tag), Some((macs, behind))) = (arrived.tag, rest.split_at_checked(12)) {
        packet.append(macs).ok()?;
        packet.append(&tag).ok()?;
        rest = behind;
    }
    if let Some((at, checksum)) = arrived.unfinished.then(|| checksum::of(arrived.bytes)).flatten()
    {
        let (before, behind) = rest.split_at(at - (arrived.bytes.len() - rest.len()));
        packet.append(before).ok()?;
        packet.append(&checksum).ok()?;
        rest = &behind[checksum.len()..];
    }
    packet.append(rest).ok()?;
    Some(packet)
}

impl Port for AfPacket {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while batch.room() > 0 {
            // Without a frame it stays where it is, and the kernel counts what it has no room for
            // then.
            if self.pool.free() == 0 {
                self.statistics.no_frame_times += 1;
                break;
            }
            let pool = &self.pool;
            let taken = |arrived: &Arrived<'_>| (arrived.len(), copy_in(pool, arrived));
            let Some((bytes, packet)) = self.map.receive(taken) else { break };
            match packet {
                // There was room.
                Some(packet) => drop(batch.push(packet)),
                None if bytes > self.longest => {
                    too_long(&self.name, &mut self.statistics, bytes, self.longest);
                }
                None => self.statistics.no_frame_times += 1,
            }
        }
        let received = batch.len() - before;
        self.statistics.received_packets += received as u64;
        Ok(received)
    }

    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        // Of the MTU, and of a frame of the TX ring.
        super::drop_too_long(batch, self.mtu);
        let unsendable = |packet: &Packet| !(14..=map::LONGEST).contains(&packet.len());
        if batch.iter().any(unsendable) {
            batch.retain(|packet| !unsendable(packet));
        }
        self.statistics.unsendable_packets += (before - batch.len()) as u64;
        let sent = batch.iter().take_while(|packet| self.map.send(packet.segments())).count();
        self.statistics.tx_full_packets += (batch.len() - sent) as u64;
        if sent > 0 || !batch.is_empty() || self.refused.is_some() {
            let kicked = self
                .kick()
                .map_err(|source| failed(&self.name, &self.interface, ("sending", source)));
            let mut left = 0;
            // Copied: the frames are free.
            batch.retain(|_| {
                left += 1;
                left > sent
            });
            self.statistics.transmitted_packets += sent as u64;
            kicked?;
        }
        Ok(sent)
    }

    fn statistics(&mut self) -> PortStatistics {
        let (dropped, frozen) = self.socket.dropped();
        let s = &mut self.statistics;
        s.kernel_rx_dropped_packets = Some(s.kernel_rx_dropped_packets.unwrap_or(0) + dropped);
        s.kernel_rx_ring_full_packets = Some(s.kernel_rx_ring_full_packets.unwrap_or(0) + frozen);
        self.statistics
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn check(&mut self) -> Result<(), PortError> {
        self.socket
            .error()
            .map_err(|source| failed(&self.name, &self.interface, ("receiving", source)))
    }

    fn mac(&self) -> Option<Mac> {
        Some(self.mac)
    }
}
