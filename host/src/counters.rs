//! What a device counts of packets that it or its driver dropped, by RTM_GETLINK.

use crate::Result;
use crate::links::get_link;
use crate::netlink::{Message, attributes};

// linux/if_link.h; the places are those of struct rtnl_link_stats64.
const IFLA_STATS64: u16 = 23;
const RX_DROPPED: usize = 6;
const TX_DROPPED: usize = 7;
const RX_MISSED: usize = 15;

/// Packets that a device dropped since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// Received, and dropped for want of room, or because nobody wants such packets. Some drivers count here
    /// what an XDP program has dropped.
    pub rx_dropped: u64,
    /// Not received, for want of room in the device.
    pub rx_missed: u64,
    /// Not sent.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_drops_nothing() {
        let lo = crate::links::by_name("lo").expect("lo");
        let drops = drops(lo.ifindex).expect("counters");
        assert_eq!((drops.rx_missed, drops.tx_dropped), (0, 0));
    }
}
