//! The socket itself: system calls without a safe wrapper elsewhere.

use std::ffi::c_void;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::Config;

// linux/if_packet.h.
const PACKET_RX_RING: i32 = 5;
const PACKET_STATISTICS: i32 = 6;
const PACKET_VERSION: i32 = 10;
const PACKET_TX_RING: i32 = 13;
const PACKET_LOSS: i32 = 14;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const TPACKET_V3: i32 = 2;

/// The step that failed, and its error.
type Failed = (&'static str, io::Error);

pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Receives nothing before [`Socket::bind`].
    pub(super) fn open(config: &Config) -> Result<Self, Failed> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
        let socket = Self(fd.map_err(|e| ("opening a packet socket", e.into()))?);
        socket.set(PACKET_VERSION, &TPACKET_V3).map_err(|e| ("asking for TPACKET_V3", e))?;
        // The kernel skips a malformed frame instead of stopping there for ever.
        socket.set(PACKET_LOSS, &1_i32).map_err(|e| ("setting PACKET_LOSS", e))?;
        socket.set(PACKET_IGNORE_OUTGOING, &1_i32).map_err(|e| ("ignoring what goes out", e))?;
        if config.bypass {
            socket.set(PACKET_QDISC_BYPASS, &1_i32).map_err(|e| ("bypassing the qdisc", e))?;
        }
        Ok(socket)
    }

    /// The rings that a map is made of.
    pub(super) fn rings(&self, rx: &libc::tpacket_req3, tx: &libc::tpacket_req3) -> io::Result<()> {
        self.set(PACKET_RX_RING, rx)?;
        self.set(PACKET_TX_RING, tx)
    }

    /// Begins to receive, of all protocols.
    pub(super) fn bind(&self, index: u32) -> io::Result<()> {
        // SAFETY: zeroes are a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address is one of this length, and is read during the call only.
        let bound = unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), len) };
        if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// An error that the kernel noted since the last call; for example, the interface went down.
    pub(super) fn error(&self) -> io::Result<()> {
        sockopt::socket_error(&self.0)?.map_err(io::Error::from)
    }

    /// Has the kernel send what is in the TX ring, as far as it can now. False: the device did not
    /// take the frame at the head.
    pub(super) fn send(&self) -> io::Result<bool> {
        use rustix::io::Errno;
        match rustix::net::send(&self.0, &[], rustix::net::SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Packets that the kernel dropped since the last call, and times the RX ring was full.
    pub(super) fn dropped(&self) -> (u64, u64) {
        // SAFETY: zeroes are valid counters.
        let mut counters: libc::tpacket_stats_v3 = unsafe { zeroed() };
        let mut len = size_of::<libc::tpacket_stats_v3>() as u32;
        let (fd, to) = (self.0.as_raw_fd(), (&raw mut counters).cast::<c_void>());
        // SAFETY: there is room for `len` bytes, which are written during the call only.
        let got =
            unsafe { libc::getsockopt(fd, libc::SOL_PACKET, PACKET_STATISTICS, to, &mut len) };
        if got != 0 {
            return (0, 0);
        }
        (counters.tp_drops.into(), counters.tp_freeze_q_cnt.into())
    }

    /// `T` is a plain structure or integer of C without padding.
    fn set<T>(&self, option: i32, value: &T) -> io::Result<()> {
        let (fd, from) = (self.0.as_raw_fd(), (&raw const *value).cast::<c_void>());
        let len = size_of::<T>() as u32;
        // SAFETY: the value has this length, and is read during the call only.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, option, from, len) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
