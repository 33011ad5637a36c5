//! Forwarding tables of bridges: which port leads to a MAC address.

use std::collections::HashMap;

use crate::netlink::{Message, Netlink, Request, attributes, u16_of, u32_of};
use crate::{Mac, Result};

// linux/neighbour.h
const NDA_LLADDR: u16 = 2;
const NDA_MASTER: u16 = 9;
const NUD_PERMANENT: u16 = 0x80;
/// Length of struct ndmsg.
const NDMSG: usize = 12;

/// The ports that the bridge has learnt MAC addresses behind, by interface index. The ports' own
/// addresses are not among them.
pub fn ports(bridge: u32) -> Result<HashMap<Mac, u32>> {
    let request = || {
        let mut header = [0; NDMSG];
        header[0] = libc::AF_BRIDGE as u8;
        Request::new(libc::RTM_GETNEIGH, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &header)
            .attribute(NDA_MASTER, &bridge.to_ne_bytes())
    };
    let what = format!("reading the forwarding table of bridge {bridge}");
    let entries = Netlink::open()?.dump(&what, request, |message| read(message, bridge))?;
    Ok(entries.into_iter().collect())
}

/// A learnt (or statically forwarded) entry of this bridge.
fn read(message: Message, bridge: u32) -> Option<(Mac, u32)> {
    let header = message.body.get(..NDMSG)?;
    if message.kind != libc::RTM_NEWNEIGH || i32::from(header[0]) != libc::AF_BRIDGE {
        return None;
    }
    let (port, state) = (u32_of(&header[4..])?, u16_of(&header[8..])?);
    let (mut mac, mut master) = (None, None);
    for attribute in attributes(&message.body[NDMSG..]) {
        match attribute.kind {
            NDA_LLADDR => mac = attribute.data.try_into().ok().map(Mac),
            NDA_MASTER => master = u32_of(attribute.data),
            _ => {}
        }
    }
    // Local addresses of the bridge and its ports are permanent.
    (master == Some(bridge) && state & NUD_PERMANENT == 0).then_some((mac?, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn entry(state: u16, master: u32) -> Option<(Mac, u32)> {
        let mut header = [libc::AF_BRIDGE as u8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        header[8..10].copy_from_slice(&state.to_ne_bytes());
        let bytes = Request::new(libc::RTM_NEWNEIGH, 0, &header)
            .attribute(NDA_LLADDR, &[2, 0, 0, 0, 0, 9])
            .attribute(NDA_MASTER, &master.to_ne_bytes())
            .finish(1);
        read(messages(&bytes).next().unwrap(), 3)
    }

    #[test]
    fn learnt_entries_of_this_bridge_count() {
        assert_eq!(entry(0x02, 3), Some((Mac([2, 0, 0, 0, 0, 9]), 7)));
        assert_eq!(entry(0x02, 4), None, "another bridge's");
        assert_eq!(entry(0x80, 3), None, "a port's own address");
    }
}
