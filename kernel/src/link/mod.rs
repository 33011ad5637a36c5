//! An XDP attachment as a bpf_link: created, pinned, opened, given another program, ended.
//! libbpf-rs has no call that takes the mode, so this goes one level below it.

pub(crate) mod attach;
pub(crate) mod attach_state;
pub(crate) mod xdp_owner;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};

/// One attachment. It lasts for as long as it is pinned or this descriptor is open.
#[derive(Debug)]
pub(crate) struct XdpLink {
    fd: OwnedFd,
}

impl XdpLink {
    /// Attaches `program` to the interface; `flags` are XDP_FLAGS_* of linux/if_link.h.
    pub(crate) fn create(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<Self> {
        let opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            flags,
            ..Default::default()
        };
        let target = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `opts` is initialised, tells its own size and outlives the call; the program's
        // descriptor is open while borrowed.
        let ret = unsafe { sys::bpf_link_create(program.as_raw_fd(), target, sys::BPF_XDP, &opts) };
        owned(ret).map(|fd| Self { fd })
    }

    /// Opens a pinned attachment.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = c_path(path)?;
        // SAFETY: a NUL-terminated string that outlives the call.
        let ret = unsafe { sys::bpf_obj_get(path.as_ptr()) };
        owned(ret).map(|fd| Self { fd })
    }

    /// One that somebody else has made.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Another descriptor of it.
    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Pins the attachment, so that it outlives this process.
    pub(crate) fn pin(&self, path: &Path) -> io::Result<()> {
        let path = c_path(path)?;
        // SAFETY: an open descriptor and a NUL-terminated string that outlives the call.
        let ret = unsafe { sys::bpf_obj_pin(self.fd.as_raw_fd(), path.as_ptr()) };
        check(ret).map(drop)
    }

    /// Swaps the program; every packet meets either the old one or the new one.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both descriptors are open; null options are allowed (libbpf's OPTS_VALID).
        let ret = unsafe {
            sys::bpf_link_update(self.fd.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        };
        check(ret).map(drop)
    }

    /// Detaches now, whoever else holds the link.
    pub(crate) fn detach(&self) -> io::Result<()> {
        // SAFETY: an open descriptor.
        let ret = unsafe { sys::bpf_link_detach(self.fd.as_raw_fd()) };
        check(ret).map(drop)
    }

    /// Interface it is attached to (0: none any more) and id of its program.
    pub(crate) fn info(&self) -> libbpf_rs::Result<(u32, u32)> {
        let info = LinkInfo::from_fd(self.fd.as_fd())?;
        let ifindex = match info.info {
            LinkTypeInfo::Xdp(xdp) => xdp.ifindex,
            _ => 0,
        };
        Ok((ifindex, info.prog_id))
    }

    /// Its own id, as bpftool shows it.
    pub(crate) fn id(&self) -> libbpf_rs::Result<u32> {
        Ok(LinkInfo::from_fd(self.fd.as_fd())?.id)
    }
}

/// libbpf 1.x returns negative error numbers.
pub(crate) fn check(ret: i32) -> io::Result<i32> {
    if ret < 0 { Err(io::Error::from_raw_os_error(-ret)) } else { Ok(ret) }
}

pub(crate) fn owned(ret: i32) -> io::Result<OwnedFd> {
    let fd = check(ret)?;
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// XDP programs on an interface of this network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnInterface {
    /// Id of the program in the driver, 0: none.
    pub(crate) native: u32,
    /// Id of the program in the kernel's generic path, 0: none.
    pub(crate) generic: u32,
    /// Id of the program on the NIC itself, 0: none.
    pub(crate) offloaded: u32,
}

impl OnInterface {
    /// Asks the kernel.
    pub(crate) fn query(ifindex: u32) -> io::Result<Self> {
        let mut opts = sys::bpf_xdp_query_opts {
            // Only the program ids: the fields from feature_flags on cost another netlink call.
            sz: std::mem::offset_of!(sys::bpf_xdp_query_opts, feature_flags) as sys::size_t,
            ..Default::default()
        };
        let index = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `opts` is initialised, tells how much of it may be written, outlives the call.
        check(unsafe { sys::bpf_xdp_query(index, 0, &mut opts) })?;
        let mut found = Self {
            native: opts.drv_prog_id,
            generic: opts.skb_prog_id,
            offloaded: opts.hw_prog_id,
        };
        // With a single program the kernel tells its mode and one id.
        match u32::from(opts.attach_mode) {
            sys::XDP_ATTACHED_DRV => found.native = opts.prog_id,
            sys::XDP_ATTACHED_SKB => found.generic = opts.prog_id,
            sys::XDP_ATTACHED_HW => found.offloaded = opts.prog_id,
            _ => {}
        }
        Ok(found)
    }

    /// Whether this program is one of them.
    pub(crate) fn has(&self, id: u32) -> bool {
        id != 0 && [self.native, self.generic, self.offloaded].contains(&id)
    }

    /// The id of one of them.
    pub(crate) fn any(&self) -> Option<u32> {
        [self.native, self.generic, self.offloaded].into_iter().find(|id| *id != 0)
    }
}
