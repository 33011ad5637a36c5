//! Neighbours (ARP and ND) of the calling thread's network namespace.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::netlink::{Message, Netlink, Request, address, attributes, u16_of, u32_of};
use crate::{Error, Mac, Result};

// linux/neighbour.h
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_FLAGS_EXT: u16 = 15;
const NTF_USE: u8 = 1;
const NTF_PROXY: u8 = 8;
const NTF_EXT_MANAGED: u32 = 1;
const NUD_PROBE: u16 = 0x10;
/// Length of struct ndmsg: family, 3 bytes of padding, ifindex, state, flags, type.
const NDMSG: usize = 12;

/// The state of a neighbour entry (NUD states of linux/neighbour.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeighbourState {
    /// Nothing yet.
    None,
    /// Being asked for the first time.
    Incomplete,
    /// Answered lately.
    Reachable,
    /// Answered some time ago; will be asked when next used.
    Stale,
    /// Used while stale; about to be asked.
    Delay,
    /// Being asked again.
    Probe,
    /// Did not answer.
    Failed,
    /// Needs no asking (point-to-point links, loopback).
    NoArp,
    /// Set by hand.
    Permanent,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The interface it is behind.
    pub ifindex: u32,
    pub address: IpAddr,
    /// Its MAC address; may be an old one unless [`Neighbour::usable`].
    pub mac: Option<Mac>,
    pub state: NeighbourState,
    /// Kept resolved by the kernel (NTF_EXT_MANAGED).
    pub managed: bool,
}

impl Neighbour {
    /// The MAC address, if the kernel itself would send to it now.
    pub fn usable(&self) -> Option<Mac> {
        use NeighbourState::{Delay, NoArp, Permanent, Probe, Reachable, Stale};
        let valid = matches!(self.state, Reachable | Stale | Delay | Probe | NoArp | Permanent);
        self.mac.filter(|m| valid && !m.is_zero())
    }
}

/// All neighbours, both families, without proxy entries.
pub fn all() -> Result<Vec<Neighbour>> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(libc::RTM_GETNEIGH, flags, &[0; NDMSG]);
    Netlink::open()?.dump("listing neighbours", request, read)
}

/// The kernel's entry for one neighbour, if it has one.
pub fn get(ifindex: u32, address: IpAddr) -> Result<Option<Neighbour>> {
    let request =
        Request::new(libc::RTM_GETNEIGH, libc::NLM_F_REQUEST, &header(ifindex, address, 0))
            .address(NDA_DST, address);
    let what = format!("asking for the neighbour {address} on interface {ifindex}");
    match Netlink::open()?.get(&what, request, read) {
        Ok(neighbour) => Ok(Some(neighbour)),
        Err(Error::Netlink { source, .. })
            if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Has the kernel resolve this neighbour now and keep it resolved for good, also after this process
/// ends (NTF_EXT_MANAGED, Linux 5.16). [`release`] ends it. An entry set by hand is left alone.
/// Needs CAP_NET_ADMIN.
pub fn keep(ifindex: u32, address: IpAddr) -> Result<()> {
    // __neigh_update (net/core/neighbour.c) takes NUD_PERMANENT away from an entry that becomes
    // managed.
    if get(ifindex, address)?.is_some_and(|n| n.state == NeighbourState::Permanent) {
        return Ok(());
    }
    let what = format!("keeping the neighbour {address} on interface {ifindex} resolved");
    update(&what, ifindex, address, NTF_EXT_MANAGED)
}

/// Ends what [`keep`] began; the entry then ages as any other. Unknown to the kernel is no error.
pub fn release(ifindex: u32, address: IpAddr) -> Result<()> {
    if !get(ifindex, address)?.is_some_and(|n| n.managed) {
        return Ok(());
    }
    update(
        &format!("releasing the neighbour {address} on interface {ifindex}"),
        ifindex,
        address,
        0,
    )
}

/// Has the kernel ask a neighbour again whose MAC address it believes to know: three questions
/// within three seconds, then it is forgotten, and asked for anew where it is kept (see [`keep`]).
/// For when nothing comes back from it. Without a belief to doubt, nothing happens.
pub fn doubt(ifindex: u32, address: IpAddr) -> Result<()> {
    use NeighbourState::{Delay, Reachable, Stale};
    let Some(neighbour) = get(ifindex, address)? else { return Ok(()) };
    if !matches!(neighbour.state, Reachable | Stale | Delay) {
        return Ok(());
    }
    let mut header = header(ifindex, address, 0);
    header[8..10].copy_from_slice(&NUD_PROBE.to_ne_bytes());
    let what = format!("doubting the neighbour {address} on interface {ifindex}");
    send(&what, &header, address, 0)?;
    // A message that makes an entry managed leaves its state alone (__neigh_update), so this takes
    // two.
    if neighbour.managed { update(&what, ifindex, address, NTF_EXT_MANAGED) } else { Ok(()) }
}

fn update(what: &str, ifindex: u32, address: IpAddr, flags_ext: u32) -> Result<()> {
    send(what, &header(ifindex, address, NTF_USE), address, flags_ext)
}

fn send(what: &str, header: &[u8; NDMSG], address: IpAddr, flags_ext: u32) -> Result<()> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let request = Request::new(libc::RTM_NEWNEIGH, flags, header)
        .address(NDA_DST, address)
        .attribute(NDA_FLAGS_EXT, &flags_ext.to_ne_bytes());
    Netlink::open()?.execute(what, request)
}

fn header(ifindex: u32, address: IpAddr, flags: u8) -> [u8; NDMSG] {
    let mut header = [0; NDMSG];
    header[0] = if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 };
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[10] = flags;
    header
}

/// RTM_NEWNEIGH or RTM_DELNEIGH into a neighbour; forwarding entries of bridges are none.
pub(crate) fn read(message: Message) -> Option<Neighbour> {
    if !matches!(message.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH) {
        return None;
    }
    let header = message.body.get(..NDMSG)?;
    let family = i32::from(header[0]);
    if !matches!(family, libc::AF_INET | libc::AF_INET6) || header[10] & NTF_PROXY != 0 {
        return None;
    }
    let (mut destination, mut mac, mut managed) = (None, None, false);
    for attribute in attributes(&message.body[NDMSG..]) {
        match attribute.kind {
            NDA_DST => destination = address(attribute.data),
            NDA_LLADDR => mac = attribute.data.try_into().ok().map(Mac),
            NDA_FLAGS_EXT => managed = u32_of(attribute.data)? & NTF_EXT_MANAGED != 0,
            _ => {}
        }
    }
    Some(Neighbour {
        ifindex: u32_of(&header[4..])?,
        address: destination?,
        mac,
        state: state(u16_of(&header[8..])?),
        managed,
    })
}

fn state(bits: u16) -> NeighbourState {
    match bits {
        0x01 => NeighbourState::Incomplete,
        0x02 => NeighbourState::Reachable,
        0x04 => NeighbourState::Stale,
        0x08 => NeighbourState::Delay,
        0x10 => NeighbourState::Probe,
        0x20 => NeighbourState::Failed,
        0x40 => NeighbourState::NoArp,
        0x80 => NeighbourState::Permanent,
        _ => NeighbourState::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn message(family: i32, bits: u16) -> Vec<u8> {
        let mut header = [family as u8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1];
        header[8..10].copy_from_slice(&bits.to_ne_bytes());
        Request::new(libc::RTM_NEWNEIGH, 0, &header)
            .attribute(NDA_DST, &[10, 0, 0, 2])
            .attribute(NDA_LLADDR, &[2, 0, 0, 0, 0, 2])
            .attribute(NDA_FLAGS_EXT, &NTF_EXT_MANAGED.to_ne_bytes())
            .finish(1)
    }

    #[test]
    fn only_what_the_kernel_would_use_is_usable() {
        for (bits, usable) in
            [(0x02, true), (0x04, true), (0x10, true), (0x20, false), (0x01, false)]
        {
            let bytes = message(libc::AF_INET, bits);
            let neighbour = read(messages(&bytes).next().unwrap()).unwrap();
            assert!(neighbour.managed && neighbour.ifindex == 4);
            assert_eq!(neighbour.usable().is_some(), usable, "{neighbour:?}");
        }
    }

    #[test]
    fn forwarding_entries_of_bridges_are_skipped() {
        let bytes = message(libc::AF_BRIDGE, 2);
        assert!(read(messages(&bytes).next().unwrap()).is_none());
    }
}
