//! Queues of interfaces: who polls them, and what they count; by the netlink family "netdev" (Linux
//! 6.8; counters 6.10 and where the driver has them).

use serde::{Deserialize, Serialize};

use crate::netlink::netdev::{HEADER, Netdev};
use crate::netlink::{Message, attributes, u32_of, u64_of};
use crate::{Error, Result};

// linux/netdev.h
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_QSTATS_GET: u8 = 12;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_QSTATS_IFINDEX: u16 = 1;
const NETDEV_A_QSTATS_QUEUE_TYPE: u16 = 2;
const NETDEV_A_QSTATS_QUEUE_ID: u16 = 3;
const NETDEV_A_QSTATS_SCOPE: u16 = 4;
const NETDEV_A_QSTATS_RX_PACKETS: u16 = 8;
const NETDEV_A_QSTATS_RX_HW_DROPS: u16 = 13;
const SCOPE_QUEUE: u32 = 1;
const TYPE_RX: u32 = 0;

/// A queue for received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub ifindex: u32,
    /// From 0.
    pub queue: u32,
    /// The NAPI instance that polls it; absent while none does.
    pub napi: Option<u32>,
    /// The interrupt that has it polled; absent where the driver does not tell, or has none.
    pub irq: Option<u32>,
}

/// The counters of a queue for received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub ifindex: u32,
    /// From 0.
    pub queue: u32,
    pub packets: u64,
    /// Packets that the device dropped, for want of room, say; absent where the driver does not
    /// tell.
    pub dropped: Option<u64>,
}

/// Queues of all interfaces of the calling thread's network namespace; `None` where this kernel
/// does not tell.
pub fn all() -> Result<Option<Vec<Queue>>> {
    let Some(mut netdev) = Netdev::open()? else { return Ok(None) };
    let napis = netdev.dump("listing NAPI instances", NETDEV_CMD_NAPI_GET, None, napi);
    let Some(napis) = told(napis)? else { return Ok(None) };
    let queues = netdev.dump("listing queues", NETDEV_CMD_QUEUE_GET, None, queue);
    let with_irq = |queue: Queue| {
        let napi = napis.iter().find(|(id, _)| Some(*id) == queue.napi);
        Queue { irq: napi.and_then(|(_, irq)| *irq), ..queue }
    };
    Ok(told(queues)?.map(|queues| queues.into_iter().map(with_irq).collect()))
}

/// The counters of all queues, without those of which the driver does not tell. `None` where
/// this kernel does not tell.
pub fn counts() -> Result<Option<Vec<Counts>>> {
    let Some(mut netdev) = Netdev::open()? else { return Ok(None) };
    let by_queue = Some((NETDEV_A_QSTATS_SCOPE, SCOPE_QUEUE));
    told(netdev.dump("reading counters of queues", NETDEV_CMD_QSTATS_GET, by_queue, count))
}

/// A kernel that does not know the command says so.
fn told<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

fn u32_at(message: Message, kind: u16) -> Option<u32> {
    u32_of(attributes(message.body.get(HEADER..)?).find(|a| a.kind == kind)?.data)
}

/// Of type uint: four bytes or eight.
fn uint_at(message: Message, kind: u16) -> Option<u64> {
    let data = attributes(message.body.get(HEADER..)?).find(|a| a.kind == kind)?.data;
    u64_of(data).or_else(|| u32_of(data).map(u64::from))
}

fn napi(message: Message) -> Option<(u32, Option<u32>)> {
    Some((u32_at(message, NETDEV_A_NAPI_ID)?, u32_at(message, NETDEV_A_NAPI_IRQ)))
}

fn queue(message: Message) -> Option<Queue> {
    (u32_at(message, NETDEV_A_QUEUE_TYPE)? == TYPE_RX).then_some(())?;
    Some(Queue {
        ifindex: u32_at(message, NETDEV_A_QUEUE_IFINDEX)?,
        queue: u32_at(message, NETDEV_A_QUEUE_ID)?,
        napi: u32_at(message, NETDEV_A_QUEUE_NAPI_ID),
        irq: None,
    })
}

fn count(message: Message) -> Option<Counts> {
    (u32_at(message, NETDEV_A_QSTATS_QUEUE_TYPE)? == TYPE_RX).then_some(())?;
    Some(Counts {
        ifindex: u32_at(message, NETDEV_A_QSTATS_IFINDEX)?,
        queue: u32_at(message, NETDEV_A_QSTATS_QUEUE_ID)?,
        packets: uint_at(message, NETDEV_A_QSTATS_RX_PACKETS)?,
        dropped: uint_at(message, NETDEV_A_QSTATS_RX_HW_DROPS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Request, messages};

    #[test]
    fn counters_of_either_length() {
        let bytes = Request::new(0, 0, &[0; HEADER])
            .attribute(NETDEV_A_QSTATS_IFINDEX, &2_u32.to_ne_bytes())
            .attribute(NETDEV_A_QSTATS_QUEUE_TYPE, &TYPE_RX.to_ne_bytes())
            .attribute(NETDEV_A_QSTATS_QUEUE_ID, &1_u32.to_ne_bytes())
            .attribute(NETDEV_A_QSTATS_RX_PACKETS, &700_u32.to_ne_bytes())
            .attribute(NETDEV_A_QSTATS_RX_HW_DROPS, &5_u64.to_ne_bytes())
            .finish(1);
        let found = count(messages(&bytes).next().unwrap());
        let wanted = Counts { ifindex: 2, queue: 1, packets: 700, dropped: Some(5) };
        assert_eq!(found, Some(wanted));
    }

    #[test]
    fn every_queue_is_of_an_interface() {
        let links = crate::netlink::links::all().unwrap();
        for queue in all().unwrap().unwrap_or_default() {
            let link = links.iter().find(|link| link.ifindex == queue.ifindex).unwrap();
            assert!(queue.queue < link.rx_queues, "{queue:?} of {link:?}");
        }
        assert!(counts().is_ok());
    }
}
