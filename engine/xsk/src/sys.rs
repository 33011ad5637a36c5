//! The system calls of AF_XDP that no library here wraps (linux/if_xdp.h), each as safe as its
//! arguments allow.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SOL_XDP` options that this crate's libc has no name for.
pub(crate) const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// asm-generic/socket.h.
pub(crate) const SO_BUSY_POLL: libc::c_int = 46;
/// As above.
pub(crate) const SO_PREFER_BUSY_POLL: libc::c_int = 69;
/// As above.
pub(crate) const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// # Safety
/// Has no padding, and any bytes are one.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: eights of bytes, then fours; the sizes add up.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: integers of one size.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_options {}

fn answer(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An AF_XDP socket of the calling thread's network namespace.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: takes and touches no memory.
    let fd = answer(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just returned it; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The MTU of an interface of the calling thread's network namespace. /sys may be another's.
pub(crate) fn interface_mtu(name: &str) -> io::Result<u32> {
    // SAFETY: numbers, characters and pointers that nobody follows: zeros are a value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The last byte stays 0.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let (family, kind) = (libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC);
    // SAFETY: takes and touches no memory.
    let any = answer(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the kernel has just returned it; nobody else owns it.
    let any = unsafe { OwnedFd::from_raw_fd(any) };
    // SAFETY: the kernel reads and writes one ifreq, which outlives the call.
    answer(unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: the kernel has written this member of the union; any bytes are a number.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.unsigned_abs())
}

pub(crate) fn set<T: Plain>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads as many bytes as the value has.
    answer(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len) }).map(drop)
}

/// An option of the socket's own level, whole: older kernels that know less of it are refused.
pub(crate) fn get<T: Plain>(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes no more bytes than there are.
    answer(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    if len as usize != size_of::<T>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: any bytes are a T.
    Ok(unsafe { value.assume_init() })
}

pub(crate) fn bind(
    fd: BorrowedFd<'_>,
    ifindex: u32,
    queue: u32,
    flags: u16,
    shared: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        // Descriptors are not negative.
        sxdp_shared_umem_fd: shared.map_or(0, |fd| fd.as_raw_fd() as u32),
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which is as long as said.
    answer(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}
