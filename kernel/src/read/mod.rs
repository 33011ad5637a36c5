//! Reads a node's counters, flows and tables: for the daemon, and for `status` without one.

pub(crate) mod flows;
pub(crate) mod memory;
pub(crate) mod shield;
pub(crate) mod tracked;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringway_abi::BackendRef;
use ringway_abi::raw::{
    RW_MAX_IFACES, RW_SVC_NONE_RESET, RW_SVC_SOURCE_CLIENT, rw_ledger, rw_settings, rw_traffic,
};
use ringway_bpf_sys::{LinkInfo, XdpMode};
use ringway_plan::tables::{Forward, NextHop, ServiceKey};

use crate::Result;
use crate::gateway::layout::check_layout;
use crate::link::{OnInterface, info_of, open_link};
use crate::load::log;
use crate::maps::{self, MapName, Maps};
use crate::pins::Pins;
use crate::tables::rows::{Rows, backend_row, forward_from, is_vacant, label_text, service_key_of};

/// A window on one node. Cheap to clone; changes nothing.
#[derive(Clone, Debug)]
pub struct View {
    maps: Arc<Maps>,
    pins: Option<Pins>,
}

/// The daemon of the node, as of its last heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Daemon {
    pub pid: u64,
    pub started: SystemTime,
    /// Its last heartbeat.
    pub alive: SystemTime,
    /// A process holds the node now.
    pub running: bool,
}

/// One interface slot that is in use.
#[derive(Clone, Debug)]
pub struct InterfaceState {
    /// Interface slot.
    pub slot: u32,
    pub ifindex: u32,
    /// Name under which it is pinned; `None` when nothing is pinned for it.
    pub name: Option<String>,
    /// MAC address that frames for us carry.
    pub mac: [u8; 6],
    /// MTU, bytes of layer 3.
    pub mtu: u16,
    /// Its packets have no Ethernet header.
    pub layer3: bool,
    /// Tags of its frames, where it is a VLAN device: ethertype and VLAN id, outer first.
    pub tags: Vec<(u16, u16)>,
    /// How our program is on it; `None` when it is not, or in another network namespace.
    pub mode: Option<XdpMode>,
    /// The sum of all CPUs.
    pub ledger: rw_ledger,
}

#[derive(Clone, Debug)]
pub struct ServiceState {
    pub id: u16,
    pub key: ServiceKey,
    /// Its name in the configuration.
    pub name: String,
    /// How packets reach its backends.
    pub forward: Forward,
    /// nat that keeps its clients' addresses.
    pub source_client: bool,
    /// It resets TCP when no backend is healthy.
    pub reset_when_none: bool,
    /// Its backends, by ascending index.
    pub backends: Vec<BackendState>,
}

/// One backend of a service.
#[derive(Clone, Debug)]
pub struct BackendState {
    pub index: u32,
    pub generation: u16,
    pub address: std::net::SocketAddr,
    pub up: bool,
    /// It is not, but its established TCP flows go on.
    pub kept: bool,
    /// Way out, when known.
    pub next_hop: Option<NextHop>,
    /// Packets, bytes and flows, all CPUs added up. Counted per index: a backend that got a used
    /// index inherits its numbers.
    pub traffic: rw_traffic,
}

impl BackendState {
    /// The reference that members and flow records hold. Never 0.
    pub fn reference(&self) -> u32 {
        BackendRef { index: self.index, generation: self.generation }.pack()
    }
}

impl View {
    /// Opens the pins of a node, for reading only. Fails when nothing is pinned for it or when
    /// its tables have another layout.
    pub fn open(bpffs: &Path, node: &str) -> Result<Self> {
        log::install();
        let pins = Pins::new(bpffs, node)?;
        if !pins.exist()? {
            return Err(pins.not_loaded());
        }
        let settings = maps::open_pinned(&pins.map(MapName::settings.name()))?;
        if let Some(settings) = settings {
            check_layout(node, &settings)?;
        }
        let maps = Maps::open_read_only(&pins)?;
        Ok(Self { maps: Arc::new(maps), pins: Some(pins) })
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    pub(crate) fn on(maps: Arc<Maps>, pins: Option<Pins>) -> Self {
        Self { maps, pins }
    }

    /// Paths of the pins; `None` when nothing is pinned.
    pub fn pins(&self) -> Option<&Pins> {
        self.pins.as_ref()
    }

    /// Whether what the kernel drops after our verdict is counted ([`rw_ledger::losses`]).
    pub fn counts_losses(&self) -> Result<bool> {
        let Some(pins) = &self.pins else { return Ok(false) };
        Ok(!pins.loss_names()?.is_empty())
    }

    pub fn settings(&self) -> Result<rw_settings> {
        self.maps.settings.get(0)
    }

    /// The ledger of one interface slot, the sum of all CPUs.
    pub fn ledger(&self, slot: u32) -> Result<rw_ledger> {
        self.maps.ledger.sum(&slot, rw_ledger::add)
    }

    /// A backend's traffic by its index, all CPUs added up.
    pub fn traffic(&self, index: u32) -> Result<rw_traffic> {
        self.maps.traffic.sum(&index, rw_traffic::add)
    }

    /// The last heartbeat; `None` when there never was one.
    pub fn daemon(&self) -> Result<Option<Daemon>> {
        let daemon = self.maps.daemon.get(0)?;
        let time = |ns| UNIX_EPOCH + Duration::from_nanos(ns);
        Ok((daemon.pid != 0).then(|| Daemon {
            pid: daemon.pid,
            started: time(daemon.started_unix_ns),
            alive: time(daemon.alive_unix_ns),
            running: self.pins.as_ref().is_none_or(Pins::is_held),
        }))
    }

    /// Interface slots in use, with their ledgers, by ascending slot.
    pub fn interfaces(&self) -> Result<Vec<InterfaceState>> {
        let pinned = self.pinned_ifaces()?;
        let mut states = Vec::new();
        for slot in 0..RW_MAX_IFACES {
            let iface = self.maps.ifaces.get(slot)?;
            if iface.ifindex == 0 {
                continue;
            }
            let own = pinned.iter().find(|pin| pin.ifindex == iface.ifindex);
            states.push(InterfaceState {
                slot,
                ifindex: iface.ifindex,
                name: own.map(|pin| pin.name.clone()),
                mac: iface.mac,
                mtu: iface.mtu,
                layer3: iface.is_layer3(),
                tags: iface.tags().collect(),
                mode: own.and_then(|pin| {
                    OnInterface::query(pin.ifindex).ok().and_then(|on| on.mode_of(pin.program))
                }),
                ledger: self.ledger(slot)?,
            });
        }
        Ok(states)
    }

    fn pinned_ifaces(&self) -> Result<Vec<PinnedIface>> {
        let Some(pins) = &self.pins else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in pins.iface_names()? {
            let path = pins.link(&name);
            if !path.exists() {
                continue;
            }
            let LinkInfo { ifindex, program, .. } = info_of(&open_link(&path)?, &path)?;
            found.push(PinnedIface { name, ifindex, program });
        }
        Ok(found)
    }

    /// Services with their backends, by ascending id.
    pub fn services(&self) -> Result<Vec<ServiceState>> {
        let rows = Rows::read_services(&self.maps)?;
        let mut services = Vec::new();
        for (id, info) in &rows.info {
            services.push(ServiceState {
                id: *id as u16,
                key: service_key_of(info),
                name: rows.labels.get(id).map(label_text).unwrap_or_default(),
                forward: forward_from(info.forward),
                source_client: info.flags & RW_SVC_SOURCE_CLIENT != 0,
                reset_when_none: info.flags & RW_SVC_NONE_RESET != 0,
                backends: self.backends_of(&rows, *id)?,
            });
        }
        Ok(services)
    }

    /// Service addresses that the packet path answers ARP and neighbour solicitations for.
    pub fn announced(&self) -> Result<BTreeSet<IpAddr>> {
        let rows = Rows::read_services(&self.maps)?;
        let services = rows.info.iter().filter_map(|(id, info)| rows.service(*id, info));
        Ok(services.filter(|row| row.announce).map(|row| row.key.address).collect())
    }

    fn backends_of(&self, rows: &Rows, service: u32) -> Result<Vec<BackendState>> {
        let own = |row: &ringway_abi::raw::rw_backend| {
            !is_vacant(row) && u32::from(row.service) == service
        };
        let mut backends = Vec::new();
        for (index, row) in rows.backends.iter().filter(|(_, row)| own(row)) {
            let row = backend_row(*index, row);
            backends.push(BackendState {
                index: row.index,
                generation: row.generation,
                address: row.endpoint(),
                up: row.up,
                kept: row.kept,
                next_hop: row.next_hop,
                traffic: self.traffic(*index)?,
            });
        }
        Ok(backends)
    }
}

struct PinnedIface {
    name: String,
    ifindex: u32,
    program: u32,
}
