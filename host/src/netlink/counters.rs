//! A device's counters of packets, and of those that it or its driver dropped, by RTM_GETLINK.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::netlink::links::get_link;
use crate::netlink::{Message, Netlink, Request, attributes, string, u64_of};

// linux/if_link.h; the places are those of struct rtnl_link_stats64.
const IFLA_IFNAME: u16 = 3;
const IFLA_STATS64: u16 = 23;
const RX_DROPPED: usize = 6;
const TX_DROPPED: usize = 7;
const RX_MISSED: usize = 15;

/// Packets that a device dropped since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// Received, and dropped for want of room, or because nobody wants such packets. Some drivers
    /// count here what an XDP program has dropped.
    pub rx_dropped: u64,
    /// Not received, for want of room in the device.
    pub rx_missed: u64,
    pub tx_dropped: u64,
}

/// Of the interface of this index, in the calling thread's network namespace.
pub fn drops(ifindex: u32) -> Result<Drops> {
    get_link(ifindex, read)
}

fn read(message: Message) -> Option<Drops> {
    let stats =
        attributes(message.body.get(16..)?).find(|attribute| attribute.kind == IFLA_STATS64)?;
    let at = |place: usize| {
        let bytes = stats.data.get(place * 8..place * 8 + 8)?;
        bytes.try_into().ok().map(u64::from_ne_bytes)
    };
    Some(Drops {
        rx_dropped: at(RX_DROPPED)?,
        rx_missed: at(RX_MISSED)?,
        tx_dropped: at(TX_DROPPED)?,
    })
}

/// All counters of a device (struct rtnl_link_stats64). Packets, but for the bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub multicast: u64,
    pub collisions: u64,
    pub rx_length_errors: u64,
    pub rx_over_errors: u64,
    pub rx_crc_errors: u64,
    pub rx_frame_errors: u64,
    pub rx_fifo_errors: u64,
    pub rx_missed_errors: u64,
}

/// Of all interfaces of the calling thread's network namespace, by name.
pub fn stats() -> Result<BTreeMap<String, Stats>> {
    let request =
        || Request::new(libc::RTM_GETLINK, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &[0; 16]);
    let found = Netlink::open()?.dump("reading counters", request, |message| {
        let name = attributes(message.body.get(16..)?).find(|a| a.kind == IFLA_IFNAME)?;
        Some((string(name.data), read_stats(message)?))
    });
    Ok(found?.into_iter().collect())
}

fn read_stats(message: Message) -> Option<Stats> {
    let stats = attributes(message.body.get(16..)?).find(|a| a.kind == IFLA_STATS64)?;
    let at = |place: usize| u64_of(stats.data.get(place * 8..)?);
    Some(Stats {
        rx_packets: at(0)?,
        tx_packets: at(1)?,
        rx_bytes: at(2)?,
        tx_bytes: at(3)?,
        rx_errors: at(4)?,
        tx_errors: at(5)?,
        rx_dropped: at(RX_DROPPED)?,
        tx_dropped: at(TX_DROPPED)?,
        multicast: at(8)?,
        collisions: at(9)?,
        rx_length_errors: at(10)?,
        rx_over_errors: at(11)?,
        rx_crc_errors: at(12)?,
        rx_frame_errors: at(13)?,
        rx_fifo_errors: at(14)?,
        rx_missed_errors: at(RX_MISSED)?,
    })
}

/// An interface's counters of all packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    pub rx_packets: u64,
    pub rx_errors: u64,
    /// Received and dropped, or missed.
    pub rx_dropped: u64,
    /// Lost for want of room in the device's queues.
    pub rx_fifo: u64,
    pub tx_packets: u64,
    /// Not sent for errors.
    pub tx_errors: u64,
    /// Not sent for want of room.
    pub tx_dropped: u64,
}

/// All interfaces of the network namespace that a process is in, by name.
///
/// # Errors
/// Where there is no such process.
pub fn traffic_of_process(pid: u32) -> Result<Vec<(String, Traffic)>> {
    let path = std::path::PathBuf::from(format!("/proc/{pid}/net/dev"));
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|source| crate::Error::Read { path, source })?;
    Ok(text.lines().filter_map(traffic).collect())
}

/// "eth0: " and eight numbers each way (dev_seq_printf_stats, net/core/net-procfs.c); the heading
/// has no colon.
fn traffic(line: &str) -> Option<(String, Traffic)> {
    let (name, numbers) = line.split_once(':')?;
    let n: Vec<u64> = numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
    let at = |place: usize| n.get(place).copied();
    let traffic = Traffic {
        rx_packets: at(1)?,
        rx_errors: at(2)?,
        rx_dropped: at(3)?,
        rx_fifo: at(4)?,
        tx_packets: at(9)?,
        tx_errors: at(10)?,
        tx_dropped: at(11)?,
    };
    Some((name.trim().into(), traffic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_kernel_writes_it() {
        let line = "  eth0: 1500 10 1 2 3 0 0 0  800 20 4 5 6 0 0 0";
        let (name, traffic) = traffic(line).expect("a line");
        assert_eq!(name, "eth0");
        let Traffic { rx_packets, rx_errors, rx_dropped, rx_fifo, .. } = traffic;
        assert_eq!((rx_packets, rx_errors, rx_dropped, rx_fifo), (10, 1, 2, 3));
        assert_eq!((traffic.tx_packets, traffic.tx_errors, traffic.tx_dropped), (20, 4, 5));
        assert_eq!(super::traffic(" face |bytes    packets errs drop fifo"), None);
        let ours = traffic_of_process(std::process::id()).expect("our own");
        assert!(ours.iter().any(|(name, _)| name == "lo"), "{ours:?}");
    }

    #[test]
    fn loopback_drops_nothing() {
        let lo = crate::netlink::links::by_name("lo").expect("lo");
        let drops = drops(lo.ifindex).expect("counters");
        assert_eq!((drops.rx_missed, drops.tx_dropped), (0, 0));
        let stats = super::stats().expect("counters")["lo"];
        assert_eq!(stats.rx_packets, stats.tx_packets, "{stats:?}");
    }
}
