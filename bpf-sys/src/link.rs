//! An XDP attachment (a bpf_link): made, pinned, opened, given another program, ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{XdpMode, bpf, descriptor, number, object_info, open_pinned, pin};

const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const LINK_DETACH: libc::c_int = 34;
const PROG_QUERY: libc::c_int = 16;
/// BPF_XDP.
pub(crate) const ATTACH_XDP: u32 = 37;
/// BPF_TCX_INGRESS.
const ATTACH_TCX_INGRESS: u32 = 46;
/// BPF_TCX_EGRESS.
const ATTACH_TCX_EGRESS: u32 = 47;
/// BPF_LINK_TYPE_XDP and BPF_LINK_TYPE_TCX: of both the kernel says the interface alike.
const LINK_TYPE_XDP: u32 = 6;
const LINK_TYPE_TCX: u32 = 11;

/// One attachment. It lasts for as long as it is pinned or a descriptor of it is open.
#[derive(Debug)]
pub struct XdpLink {
    fd: OwnedFd,
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One that somebody else has made.
impl From<OwnedFd> for XdpLink {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

/// Attaches a program to the egress of an interface of the calling thread's network namespace
/// (tcx).
///
/// # Errors
/// The kernel's: EINVAL before Linux 6.6.
pub fn attach_egress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    create(program, ifindex, ATTACH_TCX_EGRESS, 0)
}

/// The same at its ingress.
///
/// # Errors
/// The kernel's: EINVAL before Linux 6.6.
pub fn attach_ingress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    create(program, ifindex, ATTACH_TCX_INGRESS, 0)
}

/// The ids of the programs at the ingress of an interface of the calling thread's network namespace
/// (tcx), in the order in which packets meet them: the first 64.
///
/// # Errors
/// The kernel's: EINVAL before Linux 6.6.
pub fn ingress_programs(ifindex: u32) -> io::Result<Vec<u32>> {
    programs(ifindex, ATTACH_TCX_INGRESS)
}

/// The same of its egress.
///
/// # Errors
/// The kernel's: EINVAL before Linux 6.6.
pub fn egress_programs(ifindex: u32) -> io::Result<Vec<u32>> {
    programs(ifindex, ATTACH_TCX_EGRESS)
}

fn programs(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    #[repr(C)]
    #[derive(IntoBytes, Immutable)]
    struct Attributes {
        target: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        program_ids: u64,
        count: u32,
        pad: u32,
        more: [u64; 4],
    }
    let mut ids = [0u32; 64];
    let attributes = Attributes {
        target: ifindex,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        program_ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        pad: 0,
        more: [0; 4],
    };
    // SAFETY: laid out as the kernel's, and there is room for as many ids as is said.
    match unsafe { bpf(PROG_QUERY, &attributes) } {
        // ENOSPC: there are more. ENOENT: nobody has ever attached one.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
        Err(error) if error.raw_os_error() != Some(libc::ENOSPC) => return Err(error),
        _ => {}
    }
    Ok(ids.into_iter().take_while(|id| *id != 0).collect())
}

fn create(program: BorrowedFd<'_>, ifindex: u32, kind: u32, flags: u32) -> io::Result<OwnedFd> {
    let attributes = [number(program), ifindex, kind, flags];
    // SAFETY: program, interface, kind and flags, as the kernel has them; it points to nothing.
    descriptor(unsafe { bpf(LINK_CREATE, &attributes) })
}

impl XdpLink {
    /// Attaches a program to an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's: EBUSY where another program is there.
    pub fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> io::Result<Self> {
        create(program, ifindex, ATTACH_XDP, mode.flags()).map(Self::from)
    }

    /// Opens a pinned attachment.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        open_pinned(path).map(Self::from)
    }

    /// Pins it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.as_fd(), path)
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// There are none left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.fd.try_clone().map(Self::from)
    }

    /// Puts a program in the place of its own: every packet meets either of them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let attributes = [number(self.as_fd()), number(program), 0, 0];
        // SAFETY: attachment, program, flags and former program, as the kernel has them; it points
        // to nothing.
        unsafe { bpf(LINK_UPDATE, &attributes) }.map(drop)
    }

    /// Detaches its program, even if others have it open.
    ///
    /// # Errors
    /// The kernel's.
    pub fn detach(&self) -> io::Result<()> {
        // SAFETY: the kernel's attributes are the descriptor alone; it points to nothing.
        unsafe { bpf(LINK_DETACH, &number(self.as_fd())) }.map(drop)
    }

    /// Its present state.
    ///
    /// # Errors
    /// The kernel's: it is no attachment.
    pub fn info(&self) -> io::Result<LinkInfo> {
        info(self.as_fd())
    }
}

/// The present state of an attachment, of XDP or another.
///
/// # Errors
/// The kernel's: it is no attachment.
pub fn info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let raw: RawInfo = object_info(link)?;
    let ifindex = match raw.kind {
        LINK_TYPE_XDP | LINK_TYPE_TCX => raw.ifindex,
        _ => 0,
    };
    Ok(LinkInfo { id: raw.id, program: raw.program, ifindex })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Its own id, as `bpftool` shows it.
    pub id: u32,
    /// The id of its program.
    pub program: u32,
    /// 0: detached, the interface is gone, or it is an attachment to none.
    pub ifindex: u32,
}

/// The head of struct bpf_link_info.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct RawInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    ifindex: u32,
    pad_too: u32,
}
