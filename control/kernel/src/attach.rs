//! Puts the root program on an interface: native where the driver can, else generic.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::ProgramHandle;
use libbpf_rs::libbpf_sys::{XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE};

use crate::gateway::Gateway;
use crate::holder::{Holder, holder};
use crate::link::{OnInterface, XdpLink};
use crate::pins::{DEFAULT_BPFFS, Pins, pin_error};
use crate::{Error, Result, losses};

/// What the configuration asks for (`xdp_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Native, or generic where the driver refuses.
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's receive path, after the packet has become an skb.
    Generic,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's receive path.
    Generic,
}

impl XdpMode {
    /// "native" or "generic".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why `auto` ended in generic mode.
#[derive(Debug)]
pub struct NativeRefused {
    /// What the kernel answered.
    pub source: io::Error,
    /// What it usually means.
    pub hint: String,
}

impl fmt::Display for NativeRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "native mode refused: {}; {}", self.source, self.hint)
    }
}

/// A program is on the interface.
#[derive(Debug)]
pub struct Attached {
    /// How.
    pub mode: XdpMode,
    /// Why not in native mode, when `auto` was asked for and it is generic.
    pub refused: Option<NativeRefused>,
    /// The attachment was there already and only its program was swapped.
    pub taken_over: bool,
    /// It ends with this process, until [`Gateway::confirm`].
    pub provisional: bool,
}

impl Gateway {
    /// Puts the root program of this slot on its interface.
    ///
    /// An attachment that is pinned from before keeps its mode under [`Mode::Auto`] and loses no
    /// packet; another explicit mode detaches and attaches again. Fails when somebody else's XDP
    /// program is on the interface.
    pub fn attach(&mut self, slot: u32, mode: Mode) -> Result<Attached> {
        let mut attached = self.put(slot, mode)?;
        if !attached.taken_over {
            self.confirm(slot)?;
        }
        attached.provisional = false;
        Ok(attached)
    }

    /// The same, but a new attachment is not pinned: it ends with this process unless
    /// [`Self::confirm`] follows. For interfaces on which a mistake would lock everybody out.
    pub fn attach_provisionally(&mut self, slot: u32, mode: Mode) -> Result<Attached> {
        self.put(slot, mode)
    }

    /// Pins an attachment, so that it outlives this process. One that is pinned stays so.
    pub fn confirm(&mut self, slot: u32) -> Result<()> {
        let Some(pins) = &self.pins().cloned() else { return Ok(()) };
        let state = self.slot(slot)?;
        let path = pins.link(&state.iface.name);
        let Some(link) = state.link.as_ref().filter(|_| !path.exists()) else { return Ok(()) };
        pins.create_iface(&state.iface.name)?;
        link.pin(&path).map_err(pin_error("pin", &path))
    }

    /// Ends an attachment that is not pinned, now.
    pub fn revert(&mut self, slot: u32) -> Result<()> {
        let state = self.slot_mut(slot)?;
        let name = state.iface.name.clone();
        match state.link.take() {
            Some(link) => link.detach().map_err(attach_error(&name, XdpMode::Native)),
            None => Ok(()),
        }
    }

    fn put(&mut self, slot: u32, mode: Mode) -> Result<Attached> {
        self.load_root(slot)?;
        // One of this process's own that is not pinned gives way.
        let pinned = |pins: &Pins, name: &str| pins.link(name).exists();
        let iface = &self.slot(slot)?.iface;
        if self.pins().is_some_and(|pins| !pinned(pins, &iface.name)) {
            self.revert(slot)?;
        }
        let pins = self.pins().cloned();
        let state = self.slot(slot)?;
        let root = state.root()?;
        let iface = &state.iface;
        let on = query(&iface.name, iface.ifindex)?;
        losses::know_root(self.maps(), root, slot)?;

        let held = match &pins {
            Some(pins) => open_own(pins, &iface.name, iface.ifindex, on)?,
            None => None,
        };
        let (link, attached) = match held {
            Some(link) if keeps_mode(mode, on) => {
                link.update(root).map_err(attach_error(&iface.name, mode_of(on)))?;
                let mode = mode_of(on);
                (link, Attached { mode, refused: None, taken_over: true, provisional: false })
            }
            held => {
                if let (Some(link), Some(pins)) = (held, &pins) {
                    link.detach().map_err(pin_error("detach", &pins.link(&iface.name)))?;
                    pins.remove_iface(&iface.name)?;
                }
                create(root, &iface.name, iface.ifindex, mode)?
            }
        };
        losses::forget_earlier(self.maps(), root, slot)?;
        self.slot_mut(slot)?.link = Some(Arc::new(link));
        self.set_generic(slot, attached.mode == XdpMode::Generic)?;
        Ok(attached)
    }
}

/// The pinned attachment of this interface; a dead one is removed.
fn open_own(pins: &Pins, iface: &str, ifindex: u32, on: OnInterface) -> Result<Option<XdpLink>> {
    let path = pins.link(iface);
    if !path.exists() {
        return Ok(None);
    }
    let link = XdpLink::open(&path).map_err(pin_error("open", &path))?;
    let (at, program) =
        link.info().map_err(|e| pin_error("read", &path)(std::io::Error::other(e)))?;
    // A device that was moved to another namespace may have the same index there.
    if at == ifindex && on.has(program) {
        return Ok(Some(link));
    }
    pins.remove_iface(iface)?;
    Ok(None)
}

/// Attaches a program to an interface that has none.
pub(crate) fn create(
    root: std::os::fd::BorrowedFd<'_>,
    iface: &str,
    ifindex: u32,
    mode: Mode,
) -> Result<(XdpLink, Attached)> {
    let on = query(iface, ifindex)?;
    if let Some(id) = on.any() {
        return Err(foreign(iface, id));
    }
    let attach = |how: XdpMode| XdpLink::create(root, ifindex, how.flags());
    let attached = |mode, refused| Attached { mode, refused, taken_over: false, provisional: true };
    match mode {
        Mode::Generic => attach(XdpMode::Generic)
            .map(|link| (link, attached(XdpMode::Generic, None)))
            .map_err(attach_error(iface, XdpMode::Generic)),
        Mode::Native => attach(XdpMode::Native)
            .map(|link| (link, attached(XdpMode::Native, None)))
            .map_err(attach_error(iface, XdpMode::Native)),
        Mode::Auto => match attach(XdpMode::Native) {
            Ok(link) => Ok((link, attached(XdpMode::Native, None))),
            Err(source) => {
                let link =
                    attach(XdpMode::Generic).map_err(attach_error(iface, XdpMode::Generic))?;
                let refused = NativeRefused { hint: hint(&source, iface), source };
                Ok((link, attached(XdpMode::Generic, Some(refused))))
            }
        },
    }
}

pub(crate) fn query(iface: &str, ifindex: u32) -> Result<OnInterface> {
    OnInterface::query(ifindex).map_err(|_| Error::NoInterface { name: iface.to_owned(), ifindex })
}

pub(crate) fn mode_of(on: OnInterface) -> XdpMode {
    if on.generic != 0 { XdpMode::Generic } else { XdpMode::Native }
}

fn keeps_mode(asked: Mode, on: OnInterface) -> bool {
    match asked {
        Mode::Auto => true,
        Mode::Native => mode_of(on) == XdpMode::Native,
        Mode::Generic => mode_of(on) == XdpMode::Generic,
    }
}

pub(crate) fn foreign(iface: &str, id: u32) -> Error {
    let name = program_name(id).unwrap_or_else(|| "unknown".to_owned());
    let held = holder(Path::new(DEFAULT_BPFFS), id).unwrap_or(Holder::Netlink);
    let (owner, remedy) = (held.owner(), held.remedy(iface));
    Error::ForeignProgram { iface: iface.to_owned(), id, name, owner, remedy }
}

/// Name of a loaded program; `None` when there is none with this id, or it may not be read.
pub fn program_name(id: u32) -> Option<String> {
    let program = ProgramHandle::from_prog_id(id).ok()?;
    Some(program.name().to_string_lossy().into_owned())
}

fn attach_error(iface: &str, mode: XdpMode) -> impl FnOnce(io::Error) -> Error {
    let iface = iface.to_owned();
    move |source| {
        let hint = hint(&source, &iface);
        Error::Attach { iface, mode: mode.name(), hint, source }
    }
}

/// What the drivers' refusals usually mean; the kernel's own text goes only to netlink.
fn hint(error: &io::Error, iface: &str) -> String {
    use rustix::io::Errno;
    let text = match Errno::from_io_error(error) {
        Some(Errno::OPNOTSUPP) => {
            "the driver has no native XDP, or an offload is in its way: \
             try `ethtool -K IFACE lro off rx-gro-hw off`, or use xdp_mode = \"generic\""
        }
        Some(Errno::RANGE | Errno::INVAL | Errno::TOOBIG) => {
            "the MTU of the interface or of its veth peer is too large for XDP in this driver, \
             or LRO is on: lower the MTU or `ethtool -K IFACE lro off`"
        }
        Some(Errno::NOSPC | Errno::NOMEM) => {
            "the driver has too few transmit queues or rings for XDP: \
             reduce its channels with `ethtool -L IFACE combined N`; of a veth, the far end's: \
             `ethtool -L PEER tx N` there, no more than IFACE receives by"
        }
        Some(Errno::BUSY | Errno::EXIST) => {
            "another XDP program is on the interface: `ip link show dev IFACE` names it"
        }
        Some(Errno::PERM | Errno::ACCESS) => "run as root, or grant CAP_NET_ADMIN and CAP_BPF",
        Some(Errno::NODEV) => "the interface has vanished: `ip link` lists those there are",
        _ => "the kernel log (`dmesg`) may tell more",
    };
    text.replace("IFACE", iface)
}
