//! A network device of this process's own (TAP), which goes when the process goes.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::netlink::{Netlink, Request, links};
use crate::{Error, Result};

const DEVICE: &str = "/dev/net/tun";
// linux/rtnetlink.h, linux/if_link.h
const IFLA_MTU: u16 = 4;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;

/// An Ethernet device without neighbours: every packet that is routed to it is given to it at once.
/// It lasts for as long as this value.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    name: String,
    ifindex: u32,
}

impl Tap {
    /// Makes one, up, in the calling thread's network namespace. `pattern` is a name in which the
    /// kernel replaces `%d` by a number that is free; `mtu` in bytes of layer 3. It has no address.
    pub fn create(pattern: &str, mtu: u32) -> Result<Self> {
        let failed = |source| Error::Interface {
            what: "making a TAP device (the kernel's module tun, /dev/net/tun)",
            interface: pattern.to_owned(),
            source,
        };
        let (file, name) = open(pattern).map_err(failed)?;
        let ifindex = links::by_name(&name)?.ifindex;
        set_up(ifindex, mtu)?;
        Ok(Self { file, name, ifindex })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Leads everything of a routing table into it. The route goes with the device.
    pub fn default_route(&self, table: u32, v6: bool) -> Result<()> {
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
        let scope = if v6 { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        let mut header = [0; 12];
        header[0] = family;
        header[5..8].copy_from_slice(&[libc::RTPROT_STATIC, scope, libc::RTN_UNICAST]);
        let flags =
            libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let request = Request::new(libc::RTM_NEWROUTE, flags, &header)
            .attribute(RTA_TABLE, &table.to_ne_bytes())
            .attribute(RTA_OIF, &self.ifindex.to_ne_bytes());
        let family = if v6 { "IPv6" } else { "IPv4" };
        let what = format!("routing table {table} of {family} into {}", self.name);
        Netlink::open()?.execute(&what, request)
    }
}

/// A read returns one frame that was sent to the device; the device receives a frame that is
/// written.
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(pattern: &str) -> io::Result<(OwnedFd, String)> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    // SAFETY: plain old data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if pattern.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(pattern.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: an open descriptor, and an initialised ifreq that outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has written a terminated name.
    let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
    Ok((file.into(), name.to_string_lossy().into_owned()))
}

/// Up, and without asking for neighbours.
fn set_up(ifindex: u32, mtu: u32) -> Result<()> {
    // struct ifinfomsg: family, type, index, flags, change.
    let flags = (libc::IFF_UP | libc::IFF_NOARP) as u32;
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    let request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &header)
        .attribute(IFLA_MTU, &mtu.to_ne_bytes());
    Netlink::open()?.execute(&format!("switching interface {ifindex} on"), request)
}
