//! Driver, queues and offloads of one interface, by the SIOCETHTOOL ioctl
//! (linux/ethtool.h). The legacy commands are enough here and answer on every kernel.

mod settings;
mod statistics;

use std::ffi::{c_char, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub use settings::{Coalescing, Indirection, LinkMode, Pause, Rings};

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GFLAGS: u32 = 0x25;
/// Bit of ETHTOOL_GFLAGS / SFLAGS that stands for large receive offload.
const ETH_FLAG_LRO: u32 = 1 << 15;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// An offload that can be read and switched. "Transmit" and "receive" are as seen by this
/// interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offload {
    /// The device finishes L4 checksums of frames it transmits (`tx`).
    TxChecksum,
    /// The device verifies checksums of frames it receives (`rx`).
    RxChecksum,
    /// Scatter-gather transmission (`sg`).
    ScatterGather,
    /// TCP segmentation by the device (`tso`).
    Tso,
    /// Segmentation just before the driver (`gso`).
    Gso,
    /// Generic receive offload (`gro`); on veth this also turns NAPI on.
    Gro,
}

impl Offload {
    /// (get, set) commands of linux/ethtool.h.
    fn commands(self) -> (u32, u32) {
        match self {
            Self::RxChecksum => (ETHTOOL_GRXCSUM, 0x15),
            Self::TxChecksum => (0x16, 0x17),
            Self::ScatterGather => (0x18, 0x19),
            Self::Tso => (0x1e, 0x1f),
            Self::Gso => (0x23, 0x24),
            Self::Gro => (0x2b, 0x2c),
        }
    }

    /// The name that `ethtool -K` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::RxChecksum => "rx",
            Self::TxChecksum => "tx",
            Self::ScatterGather => "sg",
            Self::Tso => "tso",
            Self::Gso => "gso",
            Self::Gro => "gro",
        }
    }
}

/// State of the offloads that matter to XDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offloads {
    /// The device finishes L4 checksums on transmission.
    pub tx_checksum: bool,
    /// The device verifies checksums on reception.
    pub rx_checksum: bool,
    /// Frames may lie in several pieces; without it there is neither GSO nor TSO.
    #[serde(default)]
    pub scatter_gather: bool,
    /// TCP segmentation by the device.
    pub tso: bool,
    /// Generic segmentation offload.
    pub gso: bool,
    /// Generic receive offload.
    pub gro: bool,
    /// Large receive offload: most drivers refuse XDP while it is on.
    pub lro: bool,
    /// The device takes the VLAN tag off what it receives: XDP does not see it.
    #[serde(default)]
    pub rx_vlan: bool,
}

/// Queue counts (`ethtool -l`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Channels {
    /// Receive queues in use, combined ones included.
    pub rx: u32,
    /// Transmit queues in use, combined ones included.
    pub tx: u32,
    /// Most receive queues, combined ones included.
    pub max_rx: u32,
    /// Most transmit queues, combined ones included.
    pub max_tx: u32,
    /// Both kinds are counted and set apart, as on veth, and not combined.
    #[serde(default)]
    pub apart: bool,
}

impl Channels {
    /// The name of receive queues for `ethtool -L`.
    pub fn word(&self) -> &'static str {
        if self.apart { "rx" } else { "combined" }
    }
}

/// The interface's driver (`ethtool -i`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Driver {
    /// Driver name, for example `veth` or `virtio_net`.
    pub name: String,
    /// Bus address, for example `0000:00:03.0`; empty for virtual devices.
    pub bus: String,
}

/// An ioctl socket, opened in the calling thread's network namespace and bound to it for its life.
pub struct Ethtool {
    socket: OwnedFd,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    command: u32,
    data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    erom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawChannels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// Plain kernel structs that SIOCETHTOOL may fill.
///
/// # Safety
/// `repr(C)`, every bit pattern valid, and laid out as the kernel's struct of the command stored in
/// it.
unsafe trait Request {}
// SAFETY: struct ethtool_value.
unsafe impl Request for Value {}
// SAFETY: struct ethtool_drvinfo, 196 bytes.
unsafe impl Request for DriverInfo {}
// SAFETY: struct ethtool_channels, 36 bytes.
unsafe impl Request for RawChannels {}

impl Ethtool {
    /// Opens the socket. Needs no privilege.
    pub fn open() -> Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|e| Error::Interface {
            what: "opening a socket for ethtool",
            interface: "any interface".into(),
            source: e.into(),
        })?;
        Ok(Self { socket })
    }

    /// Whether `offload` is on.
    pub fn get(&self, interface: &str, offload: Offload) -> Result<bool> {
        let value = self.value(interface, offload.commands().0, "reading an offload")?;
        Ok(value != 0)
    }

    /// Switches `offload`. Needs CAP_NET_ADMIN. Being so already is success, and an offload that
    /// the device does not have is off.
    pub fn set(&self, interface: &str, offload: Offload, on: bool) -> Result<()> {
        let mut value = Value { command: offload.commands().1, data: u32::from(on) };
        match self.raw_call(interface, &mut value) {
            Err(e)
                if e.raw_os_error() == Some(libc::EOPNOTSUPP)
                    && self.get(interface, offload).ok() == Some(on) =>
            {
                Ok(())
            }
            other => other.map_err(|source| failed("switching an offload", interface, source)),
        }
    }

    /// The offloads that matter to XDP. What a device does not know counts as off.
    pub fn offloads(&self, interface: &str) -> Result<Offloads> {
        let flags = self.optional(interface, ETHTOOL_GFLAGS)?;
        Ok(Offloads {
            tx_checksum: self.optional(interface, Offload::TxChecksum.commands().0)? != 0,
            rx_checksum: self.optional(interface, Offload::RxChecksum.commands().0)? != 0,
            scatter_gather: self.optional(interface, Offload::ScatterGather.commands().0)? != 0,
            tso: self.optional(interface, Offload::Tso.commands().0)? != 0,
            gso: self.optional(interface, Offload::Gso.commands().0)? != 0,
            gro: self.optional(interface, Offload::Gro.commands().0)? != 0,
            lro: flags & ETH_FLAG_LRO != 0,
            rx_vlan: flags & ETH_FLAG_RXVLAN != 0,
        })
    }

    /// Driver and bus address; `None` where the device has no ethtool operations (loopback on some
    /// kernels).
    pub fn driver(&self, interface: &str) -> Result<Option<Driver>> {
        let mut info = DriverInfo {
            command: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            version: [0; 32],
            firmware: [0; 32],
            bus: [0; 32],
            erom: [0; 32],
            reserved: [0; 12],
            counts: [0; 5],
        };
        match self.raw_call(interface, &mut info) {
            Ok(()) => Ok(Some(Driver { name: text(&info.driver), bus: text(&info.bus) })),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(source) => Err(failed("reading the driver", interface, source)),
        }
    }

    /// Queue counts; `None` where the driver cannot say.
    pub fn channels(&self, interface: &str) -> Result<Option<Channels>> {
        let mut raw = RawChannels { command: ETHTOOL_GCHANNELS, ..RawChannels::default() };
        match self.raw_call(interface, &mut raw) {
            Ok(()) => Ok(Some(Channels {
                rx: raw.rx + raw.combined,
                tx: raw.tx + raw.combined,
                max_rx: raw.max_rx + raw.max_combined,
                max_tx: raw.max_tx + raw.max_combined,
                apart: raw.combined == 0 && raw.rx > 0,
            })),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(source) => Err(failed("reading the queue counts", interface, source)),
        }
    }

    fn value(&self, interface: &str, command: u32, what: &'static str) -> Result<u32> {
        let mut value = Value { command, data: 0 };
        self.call(interface, &mut value, what)?;
        Ok(value.data)
    }

    fn optional(&self, interface: &str, command: u32) -> Result<u32> {
        let mut value = Value { command, data: 0 };
        match self.raw_call(interface, &mut value) {
            Ok(()) => Ok(value.data),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
            Err(source) => Err(failed("reading an offload", interface, source)),
        }
    }

    fn call<T: Request>(&self, interface: &str, request: &mut T, what: &'static str) -> Result<()> {
        self.raw_call(interface, request).map_err(|source| failed(what, interface, source))
    }

    fn raw_call<T: Request>(&self, interface: &str, request: &mut T) -> io::Result<()> {
        // SAFETY: `Request` promises that the struct has the layout of its command.
        unsafe { self.pointer_call(interface, std::ptr::from_mut(request).cast()) }
    }

    /// # Safety
    /// `request` points to a struct of the command stored in it, with all the room that the kernel
    /// fills.
    unsafe fn pointer_call(&self, interface: &str, request: *mut c_void) -> io::Result<()> {
        // SAFETY: ifreq is plain old data for which all zeroes is valid.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte stays zero: the kernel wants a terminated name.
        if interface.is_empty() || interface.len() >= ifreq.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = from as c_char;
        }
        ifreq.ifr_ifru.ifru_data = request.cast();
        // SAFETY: the socket is open, ifreq lives through the call, and the caller vouches for what
        // is behind ifru_data.
        let rc = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &mut ifreq) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn failed(what: &'static str, interface: &str, source: io::Error) -> Error {
    if source.raw_os_error() == Some(libc::ENODEV) {
        return Error::NoInterface { name: interface.into() };
    }
    Error::Interface { what, interface: interface.into(), source }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_kernels_sizes() {
        assert_eq!(size_of::<Value>(), 8);
        assert_eq!(size_of::<DriverInfo>(), 196);
        assert_eq!(size_of::<RawChannels>(), 36);
    }

    #[test]
    fn unknown_interface_is_named() {
        let error = Ethtool::open().unwrap().offloads("nosuch0").unwrap_err();
        assert!(error.to_string().contains("nosuch0"), "{error}");
        let error = Ethtool::open().unwrap().offloads("a-name-that-is-too-long").unwrap_err();
        assert!(matches!(error, Error::NoInterface { .. }));
    }
}
