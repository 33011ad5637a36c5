//! `ringway decap`: the program that a backend opens tunnel packets with. It has an object, maps
//! and a ledger of its own, and shares nothing with a gateway.

use std::collections::BTreeMap;
use std::mem::{MaybeUninit, offset_of};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use libbpf_rs::{MapCore, MapFlags};
use ringway_abi::raw::{
    RW_DECAP_INNER, RW_DECAP_OUTER, RW_MAX_DECAP_ADDRESSES, rw_address, rw_ledger,
};
use ringway_abi::{addr_from_words, addr_to_words};
use ringway_bpf_sys::{XdpLink, XdpMode};
use ringway_host::netlink::links::Xdp;

use crate::link::attach::{Attached, attach, query};
use crate::link::open_link;
use crate::link::xdp_owner::DECAP;
use crate::load::{self, log};
use crate::maps::{self, Map, map, map_error};
use crate::objects::decap::{self, DecapSkelBuilder, types};
use crate::pins::{encode, netns, pin_error};
use crate::{Error, Result, requirements};

/// Uses of an address of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Tunnels end here.
    pub outer: bool,
    /// What comes out of them may be for this.
    pub inner: bool,
}

/// The program, loaded. Dropping it detaches it, unless it was pinned.
#[derive(Debug)]
pub struct Decap {
    program: OwnedFd,
    addresses: Map<rw_address, u32>,
    ledger: Map<u32, rw_ledger>,
    known: BTreeMap<IpAddr, Uses>,
    link: Option<XdpLink>,
}

impl Decap {
    /// Loads it. `gue_port`: UDP port that GUE comes to, host byte order.
    pub fn load(gue_port: u16) -> Result<Self> {
        Self::load_with(gue_port, None)
    }

    fn load_with(gue_port: u16, ledger: Option<Map<u32, rw_ledger>>) -> Result<Self> {
        log::install();
        requirements::probe()?.require()?;
        let mut storage = MaybeUninit::uninit();
        let mut open = load::open::<DecapSkelBuilder>(DECAP, &mut storage)?;
        load::constants(&mut open.maps.rodata_data)?.gue_port_be = gue_port.to_be();
        if let Some(ledger) = ledger {
            maps::reuse(&mut open.maps.ledger, &ledger)?;
        }
        let loaded = load::load(DECAP, open)?;
        Ok(Self {
            program: load::program(&loaded.progs.ringway_decap)?,
            addresses: map!(decap, loaded.maps, addresses)?,
            ledger: map!(decap, loaded.maps, ledger)?,
            known: BTreeMap::new(),
            link: None,
        })
    }

    /// Tells it the host's addresses; those told before and not now are forgotten.
    pub fn set_addresses(&mut self, wanted: &BTreeMap<IpAddr, Uses>) -> Result<()> {
        if wanted.len() > RW_MAX_DECAP_ADDRESSES as usize {
            return Err(Error::TooManyAddresses {
                found: wanted.len(),
                limit: RW_MAX_DECAP_ADDRESSES as usize,
            });
        }
        for address in self.known.keys().filter(|address| !wanted.contains_key(address)) {
            self.addresses.remove(&key(*address))?;
        }
        for (address, uses) in wanted.iter().filter(|(a, uses)| self.known.get(a) != Some(uses)) {
            let outer = if uses.outer { RW_DECAP_OUTER } else { 0 };
            let inner = if uses.inner { RW_DECAP_INNER } else { 0 };
            self.addresses.put(&key(*address), &(outer | inner))?;
        }
        self.known.clone_from(wanted);
        Ok(())
    }

    /// The host's addresses as they were told last.
    pub fn addresses(&self) -> &BTreeMap<IpAddr, Uses> {
        &self.known
    }

    /// Puts the program on an interface, in the place of one that is pinned there. `mode`: `None`
    /// for the pinned one's, or native where the driver can, else generic. Fails when somebody
    /// else's program is there.
    pub fn attach(
        &mut self,
        pin: &DecapPin,
        ifindex: u32,
        mode: Option<XdpMode>,
    ) -> Result<Attached> {
        let (held, iface) = (pin.open(ifindex)?, (pin.iface.as_str(), ifindex));
        let (link, attached) = attach(self.program(), iface, mode, held, || pin.remove())?;
        self.link = Some(link);
        Ok(attached)
    }

    /// From now on the program stays when this is dropped.
    pub fn pin(&self, pin: &DecapPin) -> Result<()> {
        let Some(link) = self.link.as_ref().filter(|_| !pin.path.exists()) else { return Ok(()) };
        pin.create_directory()?;
        link.pin(&pin.path).map_err(pin_error("pin", &pin.path))
    }

    /// Takes the program off its interface, pinned or not.
    pub fn detach(self, pin: &DecapPin) -> Result<()> {
        if let Some(link) = &self.link {
            link.detach().map_err(pin_error("detach", &pin.path))?;
        }
        pin.remove()
    }

    /// The sum of all CPUs.
    pub fn ledger(&self) -> Result<rw_ledger> {
        self.ledger.sum(&0, rw_ledger::add)
    }

    /// The program, for those who run it themselves.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// Where an interface's attachment is pinned. The name tells the network namespace too: interfaces
/// of several may be called alike.
#[derive(Clone, Debug)]
pub struct DecapPin {
    iface: String,
    bpffs: PathBuf,
    path: PathBuf,
}

impl DecapPin {
    /// For an interface of the calling thread's network namespace. Nothing is made yet.
    pub fn new(bpffs: &Path, iface: &str) -> Result<Self> {
        let file = encode(&format!("{iface}@{}", netns()?));
        let path = bpffs.join("ringway-decap").join(file);
        Ok(Self { iface: iface.to_owned(), bpffs: bpffs.to_owned(), path })
    }

    /// The program that is pinned, loaded anew for this port and with the ledger that it has; a new
    /// one when none is.
    pub fn load(&self, ifindex: u32, gue_port: u16) -> Result<Decap> {
        let ledger = match self.open(ifindex)? {
            Some(link) => match link.info() {
                Ok(info) => Map::of_program(info.program, "ledger")?,
                Err(_) => None,
            },
            None => None,
        };
        Decap::load_with(gue_port, ledger)
    }

    /// Takes a pinned program off; false when there is none.
    pub fn detach(&self) -> Result<bool> {
        if !self.path.exists() {
            return Ok(false);
        }
        let link = open_link(&self.path)?;
        link.detach().map_err(pin_error("detach", &self.path))?;
        self.remove()?;
        Ok(true)
    }

    /// Since when an attachment to the interface of this index is pinned; `None`: none is.
    pub fn since(&self, ifindex: u32) -> Result<Option<SystemTime>> {
        if self.open(ifindex)?.is_none() {
            return Ok(None);
        }
        let pinned = fs::metadata(&self.path).and_then(|pin| pin.modified());
        pinned.map(Some).map_err(pin_error("look at", &self.path))
    }

    /// Whether an attachment is pinned.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The pinned attachment; one of an interface that is gone is removed.
    fn open(&self, ifindex: u32) -> Result<Option<XdpLink>> {
        if !self.path.exists() {
            return Ok(None);
        }
        let link = open_link(&self.path)?;
        if link.info().is_ok_and(|info| info.ifindex == ifindex) {
            return Ok(Some(link));
        }
        self.remove()?;
        Ok(None)
    }

    fn create_directory(&self) -> Result<()> {
        requirements::ensure_bpffs(&self.bpffs)?;
        let directory = self.bpffs.join("ringway-decap");
        fs::create_dir_all(&directory).map_err(pin_error("create", &directory))
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(pin_error("remove", &self.path)(error));
            }
            _ => {}
        }
        // Stays while other interfaces have pins in it.
        let _ = fs::remove_dir(self.bpffs.join("ringway-decap"));
        Ok(())
    }
}

/// A decap that is at work, whichever process started it.
#[derive(Clone, Debug)]
pub struct DecapState {
    pub mode: XdpMode,
    /// UDP port that GUE comes to, host byte order.
    pub gue_port: u16,
    /// The host's addresses as it knows them.
    pub addresses: BTreeMap<IpAddr, Uses>,
    /// The sum of all CPUs.
    pub ledger: rw_ledger,
}

/// Looks at the interface's program; `None` when it is not ours.
pub fn decap_state(iface: &str, ifindex: u32) -> Result<Option<DecapState>> {
    let on = query(iface, ifindex)?;
    let Some(Xdp { program: id, mode }) = on.first() else { return Ok(None) };
    if crate::program_name(id).as_deref() != Some(DECAP) {
        return Ok(None);
    }
    let absent = |name: &str| Error::Content {
        map: name.to_owned(),
        detail: format!("program {id} does not have it"),
    };
    let constants = Map::<u32, ()>::of_program(id, ".rodata")?.ok_or_else(|| absent(".rodata"))?;
    let constants = constants.lookup(&[0; 4], MapFlags::ANY);
    let constants = constants.map_err(map_error("read", ".rodata"))?.unwrap_or_default();
    let port = constants.get(offset_of!(types::rodata, gue_port_be)..);
    let port = port.and_then(<[u8]>::first_chunk).ok_or_else(|| absent(".rodata"))?;
    let addresses = Map::of_program(id, "addresses")?.ok_or_else(|| absent("addresses"))?;
    let ledger = Map::of_program(id, "ledger")?.ok_or_else(|| absent("ledger"))?;
    let uses =
        |bits: u32| Uses { outer: bits & RW_DECAP_OUTER != 0, inner: bits & RW_DECAP_INNER != 0 };
    Ok(Some(DecapState {
        mode,
        gue_port: u16::from_be_bytes(*port),
        addresses: addresses
            .entries()?
            .into_iter()
            .map(|(address, bits): (rw_address, u32)| (addr_from_words(address.addr), uses(bits)))
            .collect(),
        ledger: ledger.sum(&0, rw_ledger::add)?,
    }))
}

fn key(address: IpAddr) -> rw_address {
    rw_address { addr: addr_to_words(address) }
}
