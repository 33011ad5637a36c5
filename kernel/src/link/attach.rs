//! Puts the root program on an interface: native where the driver can, else generic.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::{fmt, io};

use ringway_bpf_sys::{XdpLink, XdpMode};
use ringway_host::Fix;
use ringway_host::ethtool::Ethtool;

use crate::link::OnInterface;
use crate::link::xdp_owner::{XdpOwner, program_name, xdp_owner};
use crate::pins::DEFAULT_BPFFS;
use crate::{Error, Result};

/// Why `auto` ended in generic mode.
#[derive(Debug)]
pub struct NativeRefused {
    /// "driver igb, Linux 6.12.1".
    pub driver: String,
    pub source: io::Error,
    pub hint: Fix,
}

impl fmt::Display for NativeRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "native mode refused ({}): {}; {}", self.driver, self.source, self.hint)
    }
}

/// A program is on the interface.
#[derive(Debug)]
pub struct Attached {
    pub mode: XdpMode,
    /// Why not in native mode, when `auto` was asked for and it is generic.
    pub refused: Option<NativeRefused>,
    /// The attachment was there already and only its program was swapped.
    pub taken_over: bool,
    /// It ends with this process, until [`Gateway::confirm`](crate::Gateway::confirm).
    pub provisional: bool,
}

/// Puts a program on an interface: in the place of the one whose attachment is `held` there, if
/// that runs as asked for; else by a new attachment, for which the held one ends and `unpin`
/// removes its pin. `mode`: `None` for native where the driver can, else generic.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    (iface, ifindex): (&str, u32),
    mode: Option<XdpMode>,
    held: Option<XdpLink>,
    unpin: impl FnOnce() -> Result<()>,
) -> Result<(XdpLink, Attached)> {
    let Some(link) = held else { return create(program, iface, ifindex, mode) };
    let now = query(iface, ifindex)?.mode();
    if mode.is_none_or(|mode| mode == now) {
        link.replace(program).map_err(attach_error(iface, now))?;
        let attached = Attached { mode: now, refused: None, taken_over: true, provisional: false };
        return Ok((link, attached));
    }
    link.detach().map_err(attach_error(iface, now))?;
    unpin()?;
    create(program, iface, ifindex, mode)
}

/// Attaches a program to an interface that has none.
fn create(
    program: BorrowedFd<'_>,
    iface: &str,
    ifindex: u32,
    mode: Option<XdpMode>,
) -> Result<(XdpLink, Attached)> {
    if let Some(other) = query(iface, ifindex)?.first() {
        return Err(foreign(iface, other.program));
    }
    let attach = |mode| XdpLink::attach(program, ifindex, mode);
    let attached = |mode, refused| Attached { mode, refused, taken_over: false, provisional: true };
    let first = mode.unwrap_or(XdpMode::Native);
    match (attach(first), mode) {
        (Ok(link), _) => Ok((link, attached(first, None))),
        (Err(source), Some(_)) => Err(attach_error(iface, first)(source)),
        (Err(source), None) => {
            let generic = XdpMode::Generic;
            let link = attach(generic).map_err(attach_error(iface, generic))?;
            let refused =
                NativeRefused { driver: driver(iface), hint: hint(&source, iface), source };
            Ok((link, attached(generic, Some(refused))))
        }
    }
}

pub(crate) fn query(iface: &str, ifindex: u32) -> Result<OnInterface> {
    OnInterface::query(ifindex).map_err(|_| Error::NoInterface { name: iface.to_owned(), ifindex })
}

pub(crate) fn foreign(iface: &str, id: u32) -> Error {
    let name = program_name(id).unwrap_or_else(|| "unknown".to_owned());
    let held = xdp_owner(Path::new(DEFAULT_BPFFS), id).unwrap_or(XdpOwner::Netlink);
    let (owner, remedy) = (held.owner(), Box::new(held.remedy(iface)));
    Error::ForeignProgram { iface: iface.to_owned(), id, name, owner, remedy }
}

pub(crate) fn attach_error(iface: &str, mode: XdpMode) -> impl FnOnce(io::Error) -> Error {
    let iface = iface.to_owned();
    move |source| {
        let hint = Box::new(hint(&source, &iface));
        Error::Attach { driver: driver(&iface), iface, mode: mode.name(), hint, source }
    }
}

/// What refused, beside the interface: which drivers have native XDP depends on the kernel.
fn driver(iface: &str) -> String {
    let driver = Ethtool::open().and_then(|ethtool| ethtool.driver(iface)).ok().flatten();
    let name = driver.map_or("unknown".to_owned(), |driver| driver.name);
    format!("driver {name}, Linux {}", rustix::system::uname().release().to_string_lossy())
}

/// The usual meaning of drivers' refusals; the kernel's own text goes only to netlink.
fn hint(error: &io::Error, iface: &str) -> Fix {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::OPNOTSUPP) => Fix::ethtool("-K", iface, "lro off rx-gro-hw off").after(
            "the driver has no native XDP (use xdp_mode = \"generic\"), or an offload is in its way:",
        ),
        Some(Errno::RANGE | Errno::INVAL | Errno::TOOBIG) => Fix::ethtool("-K", iface, "lro off")
            .after(
                "the MTU of the interface or of its veth peer is too large for XDP in this driver \
                 (lower it), or LRO is on:",
            ),
        Some(Errno::NOSPC | Errno::NOMEM) => Fix::Sequence(vec![
            Fix::ethtool("-L", iface, "combined N").after(
                "the driver has too few transmit queues or rings for XDP: reduce its channels:",
            ),
            Fix::ethtool("-L", "PEER", "tx N")
                .after("of a veth, the far end's:")
                .before(format!("there, no more than {iface} receives by")),
        ]),
        Some(Errno::BUSY | Errno::EXIST) => Fix::command(["ip", "link", "show", "dev", iface])
            .after("another XDP program is on the interface; see which:"),
        Some(Errno::PERM | Errno::ACCESS) => {
            "run as root, or grant CAP_NET_ADMIN and CAP_BPF".into()
        }
        Some(Errno::NODEV) => {
            Fix::command(["ip", "link"]).after("the interface has vanished; list those there are:")
        }
        _ => Fix::command(["dmesg"]).after("the kernel log may tell more:"),
    }
}
