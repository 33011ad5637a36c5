//! Forwarding tables of bridges: which port leads to a MAC address.

use std::collections::HashMap;
use std::time::Duration;

use super::clock;
use crate::netlink::{Attribute, Message, Netlink, Request, attributes, u16_of, u32_of};
use crate::{Mac, Result};

// linux/neighbour.h
const NDA_LLADDR: u16 = 2;
const NDA_CACHEINFO: u16 = 3;
const NDA_VLAN: u16 = 5;
const NDA_MASTER: u16 = 9;
const NDA_FDB_EXT_ATTRS: u16 = 14;
const NDA_FLAGS_EXT: u16 = 15;
const NFEA_ACTIVITY_NOTIFY: u16 = 1;
const FDB_NOTIFY_BIT: u8 = 1;
const NTF_SELF: u8 = 1 << 1;
const NTF_MASTER: u8 = 1 << 2;
const NTF_EXT_LEARNED: u8 = 1 << 4;
const NTF_STICKY: u8 = 1 << 6;
const NTF_EXT_LOCKED: u32 = 1 << 1;
const NUD_REACHABLE: u16 = 0x02;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
/// Length of struct ndmsg: family, 3 bytes of padding, ifindex, state, flags, type.
const NDMSG: usize = 12;
/// Entries that one system call refreshes: the answers must fit into a receive buffer.
const AT_ONCE: usize = 32;

/// How the bridge came by an entry, as far as forwarding needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FdbKind {
    /// Ages, unless frames from it or [`touch`] refresh it. Most have been learnt.
    Learnt,
    /// Does not age: set by hand, or by another program that has learnt it (NTF_EXT_LEARNED).
    Static,
    /// An address of the bridge or of its ports: its frames are for this machine.
    Local,
    /// Frames must not follow it: its port is locked and has not let the station in
    /// (NTF_EXT_LOCKED), or it is a group's address.
    Unusable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdbEntry {
    pub mac: Mac,
    /// 0: learnt while VLANs were not filtered.
    pub vlan: u16,
    /// Interface index of the port; of the bridge itself in some [`FdbKind::Local`] ones.
    pub port: u32,
    /// Interface index.
    pub bridge: u32,
    pub kind: FdbKind,
    /// Time since a frame from it, or a change, refreshed it.
    pub updated: Option<Duration>,
}

/// The whole forwarding table of this bridge.
pub fn fdb(bridge: u32) -> Result<Vec<FdbEntry>> {
    let request = || {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        Request::new(libc::RTM_GETNEIGH, flags, &header(0, 0, 0))
            .attribute(NDA_MASTER, &bridge.to_ne_bytes())
    };
    let what = format!("reading the forwarding table of bridge {bridge}");
    Netlink::open()?
        .dump(&what, request, |message| read(message).filter(|entry| entry.bridge == bridge))
}

/// The ports that lead to MAC addresses, by interface index. The bridge's and the ports' own
/// addresses are not among them.
pub fn ports(bridge: u32) -> Result<HashMap<Mac, u32>> {
    let entries = fdb(bridge)?.into_iter().filter(|entry| entry.kind != FdbKind::Local);
    Ok(entries.map(|entry| (entry.mac, entry.port)).collect())
}

/// [`touch_all`] of one entry.
pub fn touch(entry: &FdbEntry) -> Result<bool> {
    Ok(touch_all(&[*entry])? == 1)
}

/// Refreshes the age of [`FdbKind::Learnt`] entries, as a frame from each station would, and
/// returns the number refreshed. Needs CAP_NET_ADMIN.
///
/// An entry that is gone stays gone. One that the kernel has elsewhere by now, or that no longer
/// ages, is left alone; so are ports that may not learn, and entries whose activity the kernel
/// reports to somebody (NFEA_ACTIVITY_NOTIFY).
///
/// One race stays. The kernel cannot compare and refresh in one step: a station that moves in the
/// microseconds between reading its entry and refreshing it is put back to its old port, until its
/// next frame that the kernel sees.
///
/// Leave out entries without a VLAN while the bridge filters VLANs: the kernel takes such a request
/// for one about all VLANs of the port.
///
/// Each refresh is announced as a change of the entry. It counts as added by a user from then on
///, so that `fdb_max_learned` no longer counts it.
pub fn touch_all(entries: &[FdbEntry]) -> Result<usize> {
    let mut netlink = Netlink::open()?;
    let mut refreshed = 0;
    for entries in entries.chunks(AT_ONCE) {
        refreshed += refresh(&mut netlink, entries)?;
    }
    Ok(refreshed)
}

fn refresh(netlink: &mut Netlink, entries: &[FdbEntry]) -> Result<usize> {
    let what = "asking for entries of a bridge's forwarding table";
    let mut flags = vec![None; entries.len()];
    netlink.exchange_all(what, entries.iter().map(get_request), |at, answer| {
        // Refused: gone, or its port or its bridge is.
        flags[at] = answer.ok().and_then(|message| touchable(&message, &entries[at]));
    })?;
    // The kernel sets the time only where it changes something (fdb_add_entry of br_fdb.c). Activity
    // notification goes on and off again, which is nothing in the end. NTF_USE would set the time
    // alone, but it also brings back what is gone, and adds an entry in each VLAN of the port.
    let found: Vec<_> =
        entries.iter().zip(flags).filter_map(|(entry, flags)| Some((entry, flags?))).collect();
    let requests = found.iter().flat_map(|(entry, flags)| {
        [FDB_NOTIFY_BIT, 0].map(|notify| touch_request(entry, *flags, notify))
    });
    let what = "refreshing entries of a bridge's forwarding table";
    let mut refreshed = 0;
    netlink.exchange_all(what, requests, |at, answer| {
        // After the entry without a VLAN the kernel goes on to those in the port's VLANs, and says
        // that there is none.
        let done = match answer {
            Ok(_) => true,
            Err(error) => error.raw_os_error() == Some(libc::ENOENT) && found[at / 2].0.vlan == 0,
        };
        refreshed += usize::from(done && at % 2 == 0);
    })?;
    Ok(refreshed)
}

/// The flags of the kernel's entry, if it is still this one and may be refreshed.
fn touchable(message: &Message, entry: &FdbEntry) -> Option<u8> {
    let now = read(*message)?;
    let same = now.port == entry.port && now.kind == FdbKind::Learnt;
    let mut details = attributes(&message.body[NDMSG..]);
    let reported = details.any(|attribute| attribute.kind == NDA_FDB_EXT_ATTRS);
    (same && !reported).then(|| message.body[10])
}

fn get_request(entry: &FdbEntry) -> Request {
    let header = header(entry.port, 0, NTF_MASTER);
    with_key(Request::new(libc::RTM_GETNEIGH, libc::NLM_F_REQUEST, &header), entry)
}

/// Without NLM_F_CREATE: what is gone stays gone.
fn touch_request(entry: &FdbEntry, flags: u8, notify: u8) -> Request {
    let header = header(entry.port, NUD_REACHABLE, NTF_MASTER | flags & NTF_STICKY);
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_REPLACE;
    let details = Request::nested().attribute(NFEA_ACTIVITY_NOTIFY, &[notify]);
    with_key(Request::new(libc::RTM_NEWNEIGH, flags, &header), entry)
        .nest(NDA_FDB_EXT_ATTRS, details)
}

fn with_key(request: Request, entry: &FdbEntry) -> Request {
    let request = request.attribute(NDA_LLADDR, &entry.mac.0);
    match entry.vlan {
        0 => request,
        vlan => request.attribute(NDA_VLAN, &vlan.to_ne_bytes()),
    }
}

fn header(ifindex: u32, state: u16, flags: u8) -> [u8; NDMSG] {
    let mut header = [0; NDMSG];
    header[0] = libc::AF_BRIDGE as u8;
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

/// RTM_NEWNEIGH or RTM_DELNEIGH into an entry of a bridge. Entries of devices with tables of their
/// own, such as VXLAN, are none.
pub(super) fn read(message: Message) -> Option<FdbEntry> {
    let header = message.body.get(..NDMSG)?;
    let (state, flags) = (u16_of(&header[8..])?, header[10]);
    let of_bridge = i32::from(header[0]) == libc::AF_BRIDGE && flags & NTF_SELF == 0;
    if !(of_bridge && matches!(message.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH)) {
        return None;
    }
    let (mut mac, mut bridge, mut vlan, mut updated, mut extended) = (None, None, 0, None, 0);
    for Attribute { kind, data } in attributes(&message.body[NDMSG..]) {
        match kind {
            NDA_LLADDR => mac = data.try_into().ok().map(Mac),
            NDA_MASTER => bridge = u32_of(data),
            NDA_VLAN => vlan = u16_of(data)?,
            // struct nda_cacheinfo: confirmed, used, updated, refcnt.
            NDA_CACHEINFO => updated = data.get(8..).and_then(u32_of).map(clock),
            NDA_FLAGS_EXT => extended = u32_of(data)?,
            _ => {}
        }
    }
    let (mac, port) = (mac?, u32_of(&header[4..])?);
    let kind = if state & NUD_PERMANENT != 0 {
        FdbKind::Local
    } else if extended & NTF_EXT_LOCKED != 0 || mac.0[0] & 1 != 0 {
        FdbKind::Unusable
    } else if state & NUD_NOARP != 0 || flags & NTF_EXT_LEARNED != 0 {
        FdbKind::Static
    } else {
        FdbKind::Learnt
    };
    Some(FdbEntry { mac, vlan, port, bridge: bridge?, kind, updated })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    const STATION: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn message(mac: Mac, state: u16, flags: u8, extended: u32) -> Vec<u8> {
        let times: Vec<u8> = [1u32, 2, 300, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        Request::new(libc::RTM_NEWNEIGH, 0, &header(7, state, flags))
            .attribute(NDA_LLADDR, &mac.0)
            .attribute(NDA_MASTER, &3u32.to_ne_bytes())
            .attribute(NDA_FLAGS_EXT, &extended.to_ne_bytes())
            .attribute(NDA_CACHEINFO, &times)
            .attribute(NDA_VLAN, &5u16.to_ne_bytes())
            .finish(1)
    }

    fn entry(mac: Mac, state: u16, flags: u8, extended: u32) -> Option<FdbEntry> {
        read(messages(&message(mac, state, flags, extended)).next().unwrap())
    }

    #[test]
    fn an_entry_has_a_port_and_a_vlan() {
        let entry = entry(STATION, NUD_REACHABLE, 0, 0).unwrap();
        assert_eq!((entry.mac, entry.vlan, entry.port, entry.bridge), (STATION, 5, 7, 3));
        assert_eq!(entry.updated, Some(Duration::from_secs(3)));
    }

    #[test]
    fn kinds_of_entries() {
        let stale = 0x04;
        for (state, flags, extended, kind) in [
            (NUD_REACHABLE, 0, 0, FdbKind::Learnt),
            (stale, 0, 0, FdbKind::Learnt),
            (NUD_REACHABLE, NTF_STICKY, 0, FdbKind::Learnt),
            (NUD_NOARP, 0, 0, FdbKind::Static),
            (NUD_REACHABLE, NTF_EXT_LEARNED, 0, FdbKind::Static),
            (NUD_PERMANENT, 0, 0, FdbKind::Local),
            (NUD_REACHABLE, 0, NTF_EXT_LOCKED, FdbKind::Unusable),
        ] {
            let entry = entry(STATION, state, flags, extended).unwrap();
            assert_eq!(entry.kind, kind, "{state:#x} {flags:#x} {extended}");
        }
        let group = entry(Mac([1, 0, 0x5e, 0, 0, 1]), NUD_NOARP, 0, 0).unwrap();
        assert_eq!(group.kind, FdbKind::Unusable);
        // Of a device's own table.
        assert_eq!(entry(STATION, NUD_REACHABLE, NTF_SELF, 0), None);
    }

    /// A frame follows the entry to another port while it is asked for, or its port is locked.
    #[test]
    fn only_the_same_entry_is_refreshed() {
        let ours = entry(STATION, NUD_REACHABLE, 0, 0).unwrap();
        let flags = |state, flags, entry: &FdbEntry| {
            let bytes = message(STATION, state, flags, 0);
            touchable(&messages(&bytes).next().unwrap(), entry)
        };
        assert_eq!(flags(NUD_REACHABLE, NTF_STICKY, &ours), Some(NTF_STICKY));
        assert_eq!(flags(NUD_REACHABLE, 0, &FdbEntry { port: 8, ..ours }), None);
        assert_eq!(flags(NUD_NOARP, 0, &ours), None);
    }
}
