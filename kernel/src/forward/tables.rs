//! The tables that a program forwards by, as whoever keeps them writes them.

use std::mem::offset_of;
use std::net::Ipv4Addr;

use ringway_abi::raw::{
    RW_BUCKET_STATIONS, RW_FORWARD_LEASE, RW_FORWARD_WAYS, RW_OWN_BITS, RW_OWN_HASH,
    RW_PORT_FILTERS, RW_PORT_FORWARDS, RW_PORT_ISOLATED, RW_PORT_LOOSE, RW_PORT_STRICT,
    RW_STATION_BUCKETS, RW_USED_NEIGHBOURS, RW_VLAN_MEMBER, RW_VLAN_UNTAGGED, RW_WAY_TRIES,
    rw_forwarding, rw_iface, rw_port, rw_port_vlans, rw_station, rw_station_bucket, rw_way,
};

use super::instance::Instance;
use crate::maps::table_view::TableView;
use crate::maps::{Map, Maps};
use crate::sources::clock::Clock;
use crate::{Error, Result};

/// Tables of the program in force, kept by one thread, which may be any.
#[derive(Debug)]
pub struct ForwardTables {
    keys: [u64; 2],
    clock: Clock,
    stations: TableView,
    forwarding: TableView,
    ports: Map<u32, rw_port>,
    port_vlans: Map<u32, rw_port_vlans>,
    ways: Map<u32, rw_way>,
    ifaces: Map<u32, rw_iface>,
    slots: Vec<u32>,
}

/// A place for a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationPlace {
    /// Below [`ForwardTables::BUCKETS`].
    pub bucket: u32,
    /// Below `RW_BUCKET_STATIONS`.
    pub place: u8,
}

impl StationPlace {
    /// Its first word; the second has port and time.
    fn word(self) -> usize {
        const WORDS: usize = size_of::<rw_station>() / 8;
        (self.bucket as usize * RW_BUCKET_STATIONS as usize + usize::from(self.place)) * WORDS
    }
}

/// What the program has to know of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// It may receive and send now.
    pub forwards: bool,
    /// It sends to no other isolated port.
    pub isolated: bool,
    /// Its bridge filters VLANs.
    pub vlans: Option<PortVlans>,
    /// The kernel's rp_filter, in route mode.
    pub reverse_path: ReversePath,
}

/// VLANs of a port whose bridge filters them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortVlans {
    /// EtherType of tags: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Of untagged frames; 0: they are not accepted.
    pub pvid: u16,
    /// First and last VLAN (1..=4094), and whether its frames leave without tag.
    pub members: Vec<(u16, u16, bool)>,
}

/// Whether sources are checked (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    #[default]
    Off,
    /// They have to be reached by the interface itself.
    Strict,
    /// They have to be reached at all.
    Loose,
}

impl ForwardTables {
    /// Of stations: a power of two.
    pub const BUCKETS: u32 = RW_STATION_BUCKETS;
    /// Places for them in each.
    pub const BUCKET: u8 = RW_BUCKET_STATIONS as u8;

    pub(super) fn of(instance: &Instance, maps: &Maps, slots: &[u32]) -> Result<Self> {
        Ok(Self {
            clock: maps.sources.clock.clone(),
            keys: instance.constants.keys,
            stations: TableView::writable::<rw_station_bucket>(&instance.stations, MAP)?,
            forwarding: TableView::writable(&instance.forwarding, MAP)?,
            ports: instance.ports.try_clone()?,
            port_vlans: instance.port_vlans.try_clone()?,
            ways: instance.ways.try_clone()?,
            ifaces: maps.ifaces.try_clone()?,
            slots: slots.to_vec(),
        })
    }

    /// Of the hash by which a station's buckets are found (abi/forward.h).
    pub fn keys(&self) -> [u64; 2] {
        self.keys
    }

    /// Interface slots that are forwarded between.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Index of the interface that the packet path has in a slot; 0: none.
    ///
    /// # Errors
    /// The kernel refuses the read.
    pub fn ifindex(&self, slot: u32) -> Result<u32> {
        Ok(self.ifaces.get(slot)?.ifindex)
    }

    /// Writes a station (`key`, as in abi/forward.h), behind the port of an interface slot, or, with
    /// key 0, none.
    pub fn put_station(&self, at: StationPlace, key: u64, port: u32) {
        let word = at.word();
        if self.stations.word(word) != key {
            self.stations.store(word, 0);
        }
        if key != 0 {
            self.stations.store(word + 1, zerocopy::transmute!([port, 0u32]));
            self.stations.store(word, key);
        }
    }

    /// The second (CLOCK_MONOTONIC) in which a frame of the station there was forwarded last; 0: none
    /// was since it was written.
    pub fn seen(&self, at: StationPlace) -> u32 {
        let [_, seen]: [u32; 2] = zerocopy::transmute!(self.stations.word(at.word() + 1));
        seen
    }

    /// Forgets all stations.
    pub fn clear_stations(&self) {
        for word in (0..self.stations.words()).step_by(2) {
            if self.stations.word(word) != 0 {
                self.stations.store(word, 0);
            }
        }
    }

    /// # Errors
    /// The kernel refuses the write.
    pub fn set_port(&self, slot: u32, port: &Port) -> Result<()> {
        let vlans = port.vlans.as_ref();
        if let Some(vlans) = vlans {
            self.port_vlans.put(&slot, &row_of_vlans(vlans))?;
        }
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let row = rw_port {
            flags: flag(port.forwards, RW_PORT_FORWARDS)
                | flag(port.isolated, RW_PORT_ISOLATED)
                | flag(vlans.is_some(), RW_PORT_FILTERS)
                | flag(port.reverse_path == ReversePath::Strict, RW_PORT_STRICT)
                | flag(port.reverse_path == ReversePath::Loose, RW_PORT_LOOSE),
            pvid: vlans.map_or(0, |vlans| vlans.pvid),
            vlan_proto_be: vlans.map_or(0, |vlans| vlans.protocol.to_be()),
        };
        self.ports.put(&slot, &row)
    }

    /// Says by which slots routes lead out: interface index and slot.
    ///
    /// # Errors
    /// The kernel refuses the write, or too many indexes lie together.
    pub fn set_ways(&self, ways: &[(u32, u32)]) -> Result<()> {
        let mut rows = vec![rw_way::default(); RW_FORWARD_WAYS as usize];
        for (ifindex, slot) in ways {
            let free = (0..RW_WAY_TRIES)
                .map(|step| (ifindex.wrapping_add(step) % RW_FORWARD_WAYS) as usize)
                .find(|place| rows[*place].ifindex == 0);
            let place = free.ok_or(Error::NoSlot { slot: *slot })?;
            rows[place] = rw_way { ifindex: *ifindex, slot: *slot };
        }
        (0..).zip(&rows).try_for_each(|(place, row)| self.ways.put(&place, row))
    }

    /// The tables count for [`RW_FORWARD_LEASE`] more seconds.
    pub fn keep(&self) {
        self.set_until(self.clock.now_seconds().wrapping_add(RW_FORWARD_LEASE));
    }

    /// They do not count any more: every frame goes to the kernel.
    pub fn suspend(&self) {
        // Its clock may be a tick behind ours.
        self.set_until(self.clock.now_seconds().wrapping_sub(2));
    }

    fn set_until(&self, until: u32) {
        self.forwarding.store(0, zerocopy::transmute!([until, 0u32]));
    }

    /// Whether packets were sent to this MAC address since [`Self::forget_used`]; also true where
    /// that was another one in its place.
    pub fn is_used(&self, mac: [u8; 6]) -> bool {
        let place = used_place(mac);
        self.forwarding.word(USED + place / 8).to_ne_bytes()[place % 8] != 0
    }

    pub fn forget_used(&self) {
        for word in USED..OWN {
            if self.forwarding.word(word) != 0 {
                self.forwarding.store(word, 0);
            }
        }
    }

    /// Says which IPv4 addresses are this host's: packets from them are the kernel's, whose routes
    /// back are looked up where there is a bit for their source. At no time is one without its bit
    /// that is in the former and in the new ones. `None`: any may be.
    pub fn set_own(&self, own: Option<&[Ipv4Addr]>) {
        let mut bits = [if own.is_none() { u64::MAX } else { 0 }; (1 << RW_OWN_BITS) / 64];
        for address in own.unwrap_or_default() {
            let bit = own_place(*address);
            bits[bit / 64] |= 1 << (bit % 64);
        }
        for (word, bits) in (OWN..).zip(bits) {
            self.forwarding.store(word, bits);
        }
    }
}

const MAP: &str = "map the tables of forwarding";

/// Words of struct rw_forwarding where its arrays begin.
const USED: usize = offset_of!(rw_forwarding, used) / 8;
const OWN: usize = offset_of!(rw_forwarding, own) / 8;

/// As may_be_own() in bpf/forward/route.bpf.h.
fn own_place(address: Ipv4Addr) -> usize {
    let number = u32::from_ne_bytes(address.octets());
    (number.wrapping_mul(RW_OWN_HASH) >> (32 - RW_OWN_BITS)) as usize
}

/// As note_neighbour() in bpf/forward/route.bpf.h.
fn used_place(mac: [u8; 6]) -> usize {
    let word = |at: usize| u32::from(u16::from_ne_bytes([mac[at], mac[at + 1]]));
    ((word(0) + word(2) * 3 + word(4) * 7) % RW_USED_NEIGHBOURS) as usize
}

fn row_of_vlans(vlans: &PortVlans) -> rw_port_vlans {
    let mut row = rw_port_vlans::default();
    for (first, last, untagged) in &vlans.members {
        let flags = RW_VLAN_MEMBER | if *untagged { RW_VLAN_UNTAGGED } else { 0 };
        for vlan in *first..=*last {
            row.flags[usize::from(vlan & 0xfff)] = flags as u8;
        }
    }
    row
}
