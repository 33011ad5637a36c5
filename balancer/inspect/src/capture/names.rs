//! Names of the packet path's numbers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ringway_abi::{BackendRef, Verdict};
use ringway_api::client::status_query;
use ringway_kernel::programs::capture::Record;
use ringway_kernel::{ServiceState, View};

use super::packet::{Fate, Frame, Packet};

/// How often an unknown number has the names read again.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Bytes of an Ethernet header, and of its addresses.
const ETHERNET: usize = 14;
const ADDRESSES: usize = 12;

/// An interface of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub slot: u32,
    /// Its name; of one that is gone, its number.
    pub name: String,
    /// Our program is on it, or on the device below a VLAN device, as far as can be seen from here.
    pub attached: bool,
    pub mac: [u8; 6],
    /// Its packets have no Ethernet header.
    pub layer3: bool,
    /// Tags of its frames: ethertype and VLAN id, outer first.
    pub tags: Vec<(u16, u16)>,
    /// Packets that it has given to the packet path, ever.
    pub seen: u64,
}

/// A node's interfaces as they are now.
///
/// # Errors
/// Its tables cannot be read.
pub fn interfaces(view: &View) -> ringway_kernel::Result<Vec<Interface>> {
    let all = status_query::interfaces(view)?.into_iter().map(|one| {
        let known = one.name;
        Interface {
            slot: one.slot,
            attached: one.mode.is_some() || (!one.tags.is_empty() && known.is_some()),
            name: known.unwrap_or_else(|| format!("ifindex {}", one.ifindex)),
            mac: one.mac,
            layer3: one.layer3,
            tags: one.tags,
            seen: one.ledger.seen,
        }
    });
    Ok(all.collect())
}

/// Bytes of a packet's begin that are the packet path's own, where one of these has no Ethernet
/// header.
pub fn inner_bytes(interfaces: &[Interface]) -> u32 {
    if interfaces.iter().any(|one| one.layer3) { ETHERNET as u32 } else { 0 }
}

/// Names of a node's interfaces, services and backends. Those that come while packets are captured
/// are found when they are met.
#[derive(Debug)]
pub struct CaptureNames {
    view: View,
    interfaces: Vec<Interface>,
    services: HashMap<u16, String>,
    /// By reference: an index that gets another owner is another backend.
    backends: HashMap<u32, String>,
    /// What packets met, as far as it has been put into words: where that is, by what was decided.
    fates: Vec<Fate>,
    told: HashMap<u64, usize>,
    /// Bytes of a frame that are wanted.
    snaplen: usize,
    read: Instant,
}

impl CaptureNames {
    /// Those of a node, for frames that are cut to `snaplen` bytes.
    pub fn new(
        view: &View,
        interfaces: Vec<Interface>,
        services: &[ServiceState],
        snaplen: u32,
    ) -> CaptureNames {
        let mut names = CaptureNames {
            view: view.clone(),
            interfaces,
            services: HashMap::new(),
            backends: HashMap::new(),
            fates: Vec::new(),
            told: HashMap::new(),
            snaplen: snaplen as usize,
            read: Instant::now(),
        };
        names.add(services);
        names
    }

    /// What is gone keeps its name: packets that it had may still come.
    fn add(&mut self, services: &[ServiceState]) {
        for service in services {
            self.services.insert(service.id, service.name.clone());
            for backend in &service.backends {
                self.backends.insert(backend.reference(), backend.address.to_string());
            }
        }
        // Put into words anew: an id may have got another name.
        self.told.clear();
    }

    /// Reads the names again, unless that was just done.
    fn learn(&mut self) {
        if self.read.elapsed() < READ_AGAIN {
            return;
        }
        self.read = Instant::now();
        if let (Ok(interfaces), Ok(services)) = (interfaces(&self.view), self.view.services()) {
            self.interfaces = interfaces;
            self.add(&services);
        }
    }

    /// A record with names; what has none is shown by its number.
    pub fn packet<'a>(&'a mut self, record: &Record<'a>) -> Packet<'a> {
        if !self.interfaces.iter().any(|one| one.slot == record.iface) {
            self.learn();
        }
        let place = match self.told.get(&decision(record)) {
            Some(place) => *place,
            None => self.tell(record),
        };
        let names: &'a CaptureNames = self;
        let raw = names.interfaces.iter().any(|one| one.slot == record.iface && one.layer3);
        Packet {
            unix_ns: record.unix_ns,
            fate: &names.fates[place],
            before: names.frame(record.iface, (record.before, record.before_len), raw),
            after: record.after.map(|after| names.after(record, after, raw)),
        }
    }

    /// Puts into words what became of a packet, and keeps that if all of it has names.
    fn tell(&mut self, record: &Record<'_>) -> usize {
        let named = |names: &CaptureNames| {
            record.service.is_none_or(|id| names.services.contains_key(&id))
                && record.backend.is_none_or(|of| names.backends.contains_key(&of.pack()))
        };
        if !named(self) {
            self.learn();
        }
        let number = |number: u64| format!("number {number}");
        let service = record
            .service
            .map(|id| self.services.get(&id).cloned().unwrap_or_else(|| number(id.into())));
        let backend = record.backend.map(|of| {
            self.backends.get(&of.pack()).cloned().unwrap_or_else(|| number(of.index.into()))
        });
        let fate = Fate::new(record.verdict, record.reason, service, backend);
        // One without a name is written over by the next of its kind.
        let place = self.told.len();
        self.fates.truncate(place);
        self.fates.push(fate);
        if named(self) {
            self.told.insert(decision(record), place);
        }
        place
    }

    /// What such a device sends back or passes on is like what came; a redirect leads to an
    /// Ethernet device.
    fn after<'a>(&'a self, record: &Record<'a>, after: (&'a [u8], u32), raw: bool) -> Frame<'a> {
        match record.verdict {
            Verdict::Redirect => {
                let slot = record.out.or_else(|| sender(&self.interfaces, after.0));
                let slot = slot.unwrap_or(record.iface);
                self.frame(slot, after, false)
            }
            _ => self.frame(record.iface, after, raw),
        }
    }

    /// On a device without Ethernet header (`raw`) the one that a frame has is the packet path's
    /// own.
    fn frame<'a>(&'a self, slot: u32, (bytes, len): (&'a [u8], u32), raw: bool) -> Frame<'a> {
        let skip = if raw { ETHERNET } else { 0 };
        let bytes = bytes.get(skip..).unwrap_or_default();
        Frame {
            slot,
            interface: self.name(slot),
            raw,
            bytes: &bytes[..bytes.len().min(self.snaplen)],
            wire_len: len.saturating_sub(skip as u32),
        }
    }

    fn name(&self, slot: u32) -> &str {
        let found = self.interfaces.iter().find(|one| one.slot == slot);
        found.map_or("?", |one| one.name.as_str())
    }
}

/// The decision about a packet, as one number.
fn decision(record: &Record<'_>) -> u64 {
    let service = record.service.unwrap_or(u16::MAX);
    let backend = record.backend.map_or(0, BackendRef::pack);
    (record.verdict as u64) << 56
        | (record.reason as u64) << 48
        | u64::from(service) << 32
        | u64::from(backend)
}

/// The interface that a redirected frame leaves by: its address is the frame's source, and its tags
/// are the frame's.
fn sender(interfaces: &[Interface], frame: &[u8]) -> Option<u32> {
    let mac = frame.get(6..ADDRESSES)?;
    let behind = frame.get(ADDRESSES..)?;
    let tagged = |one: &Interface| {
        let mut want = one.tags.iter().zip(behind.chunks_exact(4));
        want.len() == one.tags.len()
            && want.all(|((ethertype, id), tag)| {
                u16::from_be_bytes([tag[0], tag[1]]) == *ethertype
                    && u16::from_be_bytes([tag[2], tag[3]]) & 0xfff == *id
            })
    };
    let fits = interfaces.iter().filter(|one| !one.layer3 && one.mac == mac && tagged(one));
    fits.max_by_key(|one| one.tags.len()).map(|one| one.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_told_by_address_and_tags() {
        let one = |slot, last, tags: &[(u16, u16)]| Interface {
            slot,
            name: format!("eth{slot}"),
            attached: true,
            mac: [2, 0, 0, 0, 0, last],
            layer3: false,
            tags: tags.to_vec(),
            seen: 0,
        };
        // A VLAN device has the address of the device below it.
        let all =
            [one(0, 1, &[]), one(1, 1, &[(0x8100, 5)]), one(2, 1, &[(0x8100, 6)]), one(3, 2, &[])];
        let frame = |last, behind: &[u8]| [&[4; 6][..], &[2, 0, 0, 0, 0, last], behind].concat();
        assert_eq!(sender(&all, &frame(1, &[8, 0, 0x45, 0])), Some(0));
        assert_eq!(sender(&all, &frame(1, &[0x81, 0, 0x20, 6, 8, 0])), Some(2));
        assert_eq!(sender(&all, &frame(2, &[8, 0, 0x45, 0])), Some(3));
        assert_eq!(sender(&all, &frame(9, &[8, 0, 0x45, 0])), None);
        assert_eq!(sender(&all, &[0; 11]), None);
    }
}
