//! Puts the root program on an interface: native where the driver can, else generic.

use std::path::Path;
use std::{fmt, io};

use libbpf_rs::libbpf_sys::{XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE};

use crate::link::xdp_owner::{XdpOwner, xdp_owner};
use crate::link::{OnInterface, XdpLink};
use crate::load::program::program_name;
use crate::pins::DEFAULT_BPFFS;
use crate::{Error, Result};

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
    /// It ends with this process, until [`Gateway::confirm`](crate::Gateway::confirm).
    pub provisional: bool,
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

pub(crate) fn foreign(iface: &str, id: u32) -> Error {
    let name = program_name(id).unwrap_or_else(|| "unknown".to_owned());
    let held = xdp_owner(Path::new(DEFAULT_BPFFS), id).unwrap_or(XdpOwner::Netlink);
    let (owner, remedy) = (held.owner(), held.remedy(iface));
    Error::ForeignProgram { iface: iface.to_owned(), id, name, owner, remedy }
}

pub(crate) fn attach_error(iface: &str, mode: XdpMode) -> impl FnOnce(io::Error) -> Error {
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
