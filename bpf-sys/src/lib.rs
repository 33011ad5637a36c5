//! bpf(2) without a C library: as much as XDP programs of a few instructions, their maps of
//! sockets, attachments and pins need (linux/bpf.h). What is compiled from C is loaded by
//! ringway-kernel.

mod link;
mod map;
mod program;

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use link::{
    LinkInfo, XdpLink, attach_egress, attach_ingress, egress_programs, info as link_info,
    ingress_programs,
};
pub use map::{Xskmap, create_map};
pub use program::{
    Instruction, LoadError, MOST_MAPS, PASS, Program, ProgramInfo, by_id, info, map_ids,
};

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's receive path, after the packet has become an skb: any driver, slower.
    Generic,
    /// In the device. Ringway attaches none there.
    Hardware,
}

impl XdpMode {
    /// "native", "generic" or "hardware".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Hardware => "hardware",
        }
    }

    /// XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE or XDP_FLAGS_HW_MODE (linux/if_link.h).
    pub const fn flags(self) -> u32 {
        match self {
            Self::Generic => 1 << 1,
            Self::Native => 1 << 2,
            Self::Hardware => 1 << 3,
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Pins an object (a map, a program or an attachment) at a path of a bpffs, so that it outlives
/// this process.
///
/// # Errors
/// The kernel's: EEXIST where something is there, EINVAL where it is no bpffs.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let attributes = Pinned::new(&path, Some(object));
    // SAFETY: laid out as the kernel's; the path is there, and terminated.
    unsafe { bpf(OBJ_PIN, &attributes) }.map(drop)
}

/// Opens what is pinned at a path, whatever it is.
///
/// # Errors
/// The kernel's.
pub fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: as above.
    descriptor(unsafe { bpf(OBJ_GET, &Pinned::new(&path, None)) })
}

const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Pinned {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

impl Pinned {
    fn new(path: &CString, object: Option<BorrowedFd<'_>>) -> Self {
        Self { pathname: path.as_ptr() as u64, bpf_fd: object.map_or(0, number), file_flags: 0 }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A descriptor as the kernel's attributes have it. None is negative.
fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

/// The first 15 bytes of a name, terminated.
fn name(name: &str) -> [u8; 16] {
    std::array::from_fn(|n| if n < 15 { name.as_bytes().get(n).copied().unwrap_or(0) } else { 0 })
}

/// # Safety
/// `attributes` is laid out as the kernel's union for this command, and what it points to is there.
unsafe fn bpf<T: IntoBytes + Immutable>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the caller's; the kernel reads as many bytes as the attributes have, and none is
    // padding.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    // Descriptors fit.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn descriptor(result: io::Result<i32>) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just returned it; nobody else owns it.
    result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The first bytes of the kernel's description of an object.
fn object_info<T: FromBytes + IntoBytes>(object: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::new_zeroed();
    // SAFETY: zeros have no pointers in them.
    unsafe { fill_info(object, &mut info) }?;
    Ok(info)
}

/// # Safety
/// Memory that `info` points to is valid: the kernel reads it before it writes.
unsafe fn fill_info<T: FromBytes + IntoBytes>(
    object: BorrowedFd<'_>,
    info: &mut T,
) -> io::Result<()> {
    #[repr(C)]
    #[derive(IntoBytes, Immutable)]
    struct Attributes {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    let (bpf_fd, info_len) = (number(object), size_of::<T>() as u32);
    let attributes = Attributes { bpf_fd, info_len, info: (&raw mut *info) as u64 };
    // SAFETY: laid out as the kernel's; the info is there, any bytes are one, and it is as long as
    // said.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &attributes) }.map(drop)
}
