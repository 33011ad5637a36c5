//! Holds RTNL, the kernel's lock of all network configuration.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::thread::{self, JoinHandle};

use anyhow::{Result, ensure};
use ringway_testnet::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{SOON, not_tested};

const ETHTOOL_GLINK: u32 = 0x0a;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
// linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// Nobody else on the machine gets RTNL while this lives. An ethtool request holds it: the page
/// that its answer goes to is missing until this is dropped.
pub struct RtnlHeld {
    faults: File,
    page: usize,
    size: usize,
    asking: Option<JoinHandle<()>>,
}

impl RtnlHeld {
    /// Takes the lock through the loopback device of this namespace. `None`, and said aloud: the
    /// kernel has no userfaultfd(2).
    pub fn by(namespace: &Namespace) -> Result<Option<RtnlHeld>> {
        // poll(2) tells nothing of one that blocks (userfaultfd_poll, fs/userfaultfd.c).
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            not_tested("RTNL held: the kernel has no userfaultfd(2)");
            return Ok(None);
        }
        ensure!(fd >= 0, "userfaultfd: {}", io::Error::last_os_error());
        // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
        let faults = unsafe { File::from_raw_fd(i32::try_from(fd)?) };
        // SAFETY: takes no pointer.
        let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever the kernel likes.
        let memory = unsafe { libc::mmap(ptr::null_mut(), 2 * size, access, kind, -1, 0) };
        ensure!(memory != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        let page = memory as usize + size;
        request(&faults, UFFDIO_API, &mut [UFFD_API, 0, 0])?;
        let mode = UFFDIO_REGISTER_MODE_MISSING;
        request(&faults, UFFDIO_REGISTER, &mut [page as u64, size as u64, mode, 0])?;
        // The kernel reads the command before it takes the lock. The answer goes to the next page.
        let asked = page - size_of::<u32>();
        // SAFETY: the end of the first page, which is ours alone.
        unsafe { (asked as *mut u32).write(ETHTOOL_GLINK) };
        let inside = namespace.clone();
        let asking = thread::spawn(move || ask(&inside, asked));
        let mut fault = [PollFd::new(&faults, PollFlags::IN)];
        let came = poll(&mut fault, Timespec::try_from(SOON).ok().as_ref())?;
        let touched = came == 1 && fault[0].revents() == PollFlags::IN;
        ensure!(touched, "the request does not touch the page: {:?}", fault[0].revents());
        Ok(Some(RtnlHeld { faults, page, size, asking: Some(asking) }))
    }
}

impl Drop for RtnlHeld {
    fn drop(&mut self) {
        let mut range = [self.page as u64, self.size as u64, 0, 0];
        if let Err(error) = request(&self.faults, UFFDIO_ZEROPAGE, &mut range) {
            return eprintln!("RTNL is still held: {error:#}");
        }
        if let Some(asking) = self.asking.take() {
            let _ = asking.join();
        }
        // SAFETY: both pages, which nobody uses any more.
        unsafe { libc::munmap((self.page - self.size) as *mut libc::c_void, 2 * self.size) };
    }
}

/// Blocks with RTNL held until the page behind this command is there.
fn ask(namespace: &Namespace, command: usize) {
    let asked = namespace.run(|| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        // SAFETY: a struct of numbers and pointers, for which all zeros are a value.
        let mut device: libc::ifreq = unsafe { std::mem::zeroed() };
        device.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        device.ifr_ifru.ifru_data = command as *mut libc::c_char;
        // SAFETY: an open socket, and memory for a question and its answer, which outlives the
        // call.
        match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut device) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    if !matches!(asked, Ok(Ok(()))) {
        eprintln!("the request that holds RTNL: {asked:?}");
    }
}

fn request<const N: usize>(
    faults: &File,
    number: libc::c_ulong,
    argument: &mut [u64; N],
) -> Result<()> {
    // SAFETY: an open userfaultfd, and a structure of 64-bit numbers that outlives the call.
    let ret = unsafe { libc::ioctl(faults.as_raw_fd(), number, argument.as_mut_ptr()) };
    ensure!(ret == 0, "userfaultfd {number:#x}: {}", io::Error::last_os_error());
    Ok(())
}
