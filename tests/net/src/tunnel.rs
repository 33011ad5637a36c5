//! A sender of tunnel packets that knows nothing of Ringway: a TUN device whose packets a thread
//! wraps by ordinary sockets. For kernels without tunnel devices, and for kinds that no device has.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use ringway_testnet::{Namespace, wait_for};

use crate::SOON;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrap {
    Ipip,
    /// UDP with the inner packet directly behind it: GUE variant 1, FOU.
    Gue(u16),
    /// GUE variant 0.
    Gue0(u16),
}

/// A TUN device and its thread. Dropping it ends both.
#[derive(Debug)]
pub struct Tunnel {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tunnel {
    /// Makes device `name`, up, in the namespace; what is routed to it goes to `far`.
    pub fn start(namespace: &Namespace, name: &str, far: IpAddr, wrap: Wrap) -> Result<Tunnel> {
        let (tun, wrapper) =
            namespace.run(|| -> Result<_> { Ok((open(name)?, Wrapper::new(far, wrap)?)) })??;
        namespace.ip(&format!("link set {name} mtu 1400 up\n"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || pump(tun, &wrapper, &stopped));
        Ok(Tunnel { stop, thread: Some(thread) })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A new TUN device in the calling thread's network namespace: bare IP packets, one per read or
/// write.
pub(crate) fn open(name: &str) -> Result<File> {
    open_with(name, libc::IFF_TUN)
}

/// The same of other flags of if_tun.h: `IFF_TAP` for frames, `IFF_VNET_HDR` for a virtio header
/// before each.
pub(crate) fn open_with(name: &str, flags: libc::c_int) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .context("/dev/net/tun: load the kernel's module tun")?;
    // SAFETY: ifreq is plain old data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    ensure!(name.len() < request.ifr_name.len(), "{name} is too long");
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (flags | libc::IFF_NO_PI) as libc::c_short;
    // Another test's child, on its way from fork() to exec(), may hold the last device of this name
    // for a moment.
    let device = wait_for("a device of this name", SOON, || {
        // SAFETY: an open descriptor and an initialised ifreq that outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } == 0 {
            return Ok(Ok(()));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EBUSY) => Err(error),
            error => Ok(Err(error)),
        }
    })?;
    device.context("TUNSETIFF")?;
    Ok(file)
}

fn pump(tun: File, wrapper: &Wrapper, stop: &AtomicBool) {
    // What is refused is lost, as on any network.
    drain(tun, stop, |packet| drop(wrapper.send(packet)));
}

/// Reads packets out of a TUN device. Polls, so that it ends soon after it is told to.
pub(crate) fn drain(mut tun: File, stop: &AtomicBool, mut take: impl FnMut(&[u8])) {
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let mut ready = libc::pollfd { fd: tun.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that outlives the call.
        if unsafe { libc::poll(&raw mut ready, 1, 100) } <= 0 {
            continue;
        }
        if let Ok(length) = tun.read(&mut packet) {
            take(&packet[..length]);
        }
    }
}

struct Wrapper {
    far: IpAddr,
    udp: Option<(UdpSocket, u16, bool)>,
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Wrapper {
    fn new(far: IpAddr, wrap: Wrap) -> io::Result<Wrapper> {
        let any = if far.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let udp = match wrap {
            Wrap::Ipip => None,
            Wrap::Gue(port) => Some((UdpSocket::bind(any)?, port, false)),
            Wrap::Gue0(port) => Some((UdpSocket::bind(any)?, port, true)),
        };
        let raw = |protocol| raw(far, protocol);
        Ok(Wrapper { far, udp, v4: raw(libc::IPPROTO_IPIP)?, v6: raw(libc::IPPROTO_IPV6)? })
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        let v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        if let Some((socket, port, header)) = &self.udp {
            let protocol = if v4 { libc::IPPROTO_IPIP } else { libc::IPPROTO_IPV6 } as u8;
            let head: &[u8] = if *header { &[0, protocol, 0, 0] } else { &[] };
            socket.send_to(&[head, packet].concat(), SocketAddr::new(self.far, *port))?;
            return Ok(());
        }
        let socket = if v4 { &self.v4 } else { &self.v6 };
        // SAFETY: a connected socket and a buffer of the length given.
        let sent =
            unsafe { libc::send(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A raw socket of this protocol, connected; the kernel writes the outer header.
fn raw(far: IpAddr, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let family = if far.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: takes numbers.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain old data for which all zeroes is valid, as long as said.
    let ret = unsafe {
        match far {
            IpAddr::V4(far) => {
                let mut to: libc::sockaddr_in = std::mem::zeroed();
                to.sin_family = family as u16;
                to.sin_addr.s_addr = u32::from_ne_bytes(far.octets());
                libc::connect(fd.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as u32)
            }
            IpAddr::V6(far) => {
                let mut to: libc::sockaddr_in6 = std::mem::zeroed();
                to.sin6_family = family as u16;
                to.sin6_addr.s6_addr = far.octets();
                libc::connect(fd.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as u32)
            }
        }
    };
    if ret == 0 { Ok(fd) } else { Err(io::Error::last_os_error()) }
}
