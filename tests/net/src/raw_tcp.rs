//! A client that is made of frames, so that a test says what its segments hold; and the cookies of a
//! gateway, by another implementation.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ringway_testnet::{Namespace, wait_for};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

use crate::SOON;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;

/// MSS of 1460, a scale of 3, SACK, no ECN.
pub const AGREED: u32 = 6 << 6 | 3 << 2 | 2;
/// No scale, neither SACK nor ECN; MSS of 1220.
pub const PLAIN: u32 = 2 << 6 | 15 << 2;
const STAMPS: u32 = 0x200;
const PERIOD_S: u64 = 64;

/// What a gateway answers a SYN with.
#[derive(Clone, Copy, Debug)]
pub struct Cookie {
    pub number: u32,
    pub stamp: u32,
}

/// `age`: so many seconds ago.
#[allow(deprecated)]
pub fn cookie(
    [key0, key1]: [u64; 2],
    (from, to): (SocketAddr, SocketAddr),
    isn: u32,
    (agreed, stamped): (u32, bool),
    age: u64,
) -> Result<Cookie> {
    use std::hash::{Hasher as _, SipHasher};
    let period = (SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() - age) / PERIOD_S;
    let mut hasher = SipHasher::new_with_keys(key0, key1);
    for address in [from.ip(), to.ip()] {
        match address {
            IpAddr::V4(v4) => hasher.write(&v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => hasher.write(&v6.octets()),
        }
    }
    hasher.write(&from.port().to_be_bytes());
    hasher.write(&to.port().to_be_bytes());
    hasher.write(&(period as u32).to_le_bytes());
    hasher.write(&isn.to_le_bytes());
    hasher.write(&((agreed | if stamped { STAMPS } else { 0 }) as u16).to_le_bytes());
    let hash = hasher.finish();
    let number = (hash as u32) << 10 | (period as u32 & 1) << 9 | agreed;
    Ok(Cookie { number, stamp: (hash >> 32) as u32 })
}

/// A segment as it is sent, or has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    /// TSval, TSecr
    pub stamps: Option<(u32, u32)>,
    /// Options before these, whole words.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

/// On eth0 of a namespace, past its kernel.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    macs: [u8; 12],
}

impl Client {
    pub fn new(namespace: &Namespace, macs: [u8; 12]) -> Result<Self> {
        let socket = namespace.run(|| packet_socket("eth0"))??;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 8 << 20)?;
        Ok(Self { socket, macs })
    }

    /// Sends it as soon as there is room.
    pub fn send(&self, segment: &Segment) -> io::Result<()> {
        let frame = frame(&self.macs, segment);
        loop {
            match rustix::net::send(&self.socket, &frame, SendFlags::empty()) {
                Err(Errno::NOBUFS | Errno::AGAIN) => std::thread::yield_now(),
                sent => return sent.map(drop).map_err(Into::into),
            }
        }
    }

    /// The next segment that has come already.
    pub fn next(&self) -> io::Result<Option<Segment>> {
        let mut buffer = [0; 4096];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => match read(&buffer[..length]) {
                    None => {}
                    segment => return Ok(segment),
                },
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The first segment to this address that `wanted` likes.
    pub fn receive(&self, to: SocketAddr, wanted: impl Fn(&Segment) -> bool) -> Result<Segment> {
        let look = || {
            while let Some(segment) = self.next().map_err(|error| error.to_string())? {
                if segment.to == to && wanted(&segment) {
                    return Ok(segment);
                }
            }
            Err("none".to_owned())
        };
        Ok(wait_for(format!("a segment to {to}"), SOON, look)?)
    }
}

impl Segment {
    /// One without acknowledgement, options and data.
    pub fn bare(from: SocketAddr, to: SocketAddr, flags: u8, seq: u32) -> Segment {
        let (options, payload) = (Vec::new(), Vec::new());
        Segment { from, to, flags, seq, ack: 0, stamps: None, options, payload }
    }
}

/// Bound to an interface of the thread's namespace: all protocols.
fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
    // SAFETY: zeroes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = 0x0003u16.to_be();
    address.sll_ifindex = index as i32;
    let length = size_of_val(&address) as u32;
    // SAFETY: an open socket, and an address that outlives the call with its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn sum(bytes: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.iter().flat_map(|part| part.chunks(2).map(word)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn frame(macs: &[u8; 12], segment: &Segment) -> Vec<u8> {
    let Segment { from, to, flags, seq, ack, stamps, options, payload } = segment;
    let mut options = options.clone();
    if let Some((value, echo)) = stamps {
        options.extend([1, 1, 8, 10]);
        options.extend(value.to_be_bytes());
        options.extend(echo.to_be_bytes());
    }
    let header = 20 + options.len();
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([(header as u8 / 4) << 4, *flags, 0xfa, 0xf0, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.extend(payload);
    let (source, target) = (octets(from.ip()), octets(to.ip()));
    let pseudo = [0, 6, (tcp.len() >> 8) as u8, tcp.len() as u8];
    let check = sum(&[&source, &target, &pseudo, &tcp]);
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    let (kind, ip) = if from.is_ipv4() {
        let length = (20 + tcp.len() as u16).to_be_bytes();
        let mut ip = vec![0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, 6, 0, 0];
        ip.extend([source, target].concat());
        let check = sum(&[&ip]);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        ([0x08, 0x00], ip)
    } else {
        let length = (tcp.len() as u16).to_be_bytes();
        let mut ip = vec![0x60, 0, 0, 0, length[0], length[1], 6, 64];
        ip.extend([source, target].concat());
        ([0x86, 0xdd], ip)
    };
    [&macs[..], &kind, &ip, &tcp].concat()
}

/// A frame with TCP in it, without options before that.
fn read(frame: &[u8]) -> Option<Segment> {
    let (source, target, at) = match frame.get(12..14)? {
        [0x08, 0x00] if frame.get(23) == Some(&6) => {
            let of = |at: usize| -> Option<IpAddr> {
                Some(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?.into())
            };
            (of(26)?, of(30)?, 34)
        }
        [0x86, 0xdd] if frame.get(20) == Some(&6) => {
            let of = |at: usize| -> Option<IpAddr> {
                Some(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?.into())
            };
            (of(22)?, of(38)?, 54)
        }
        _ => return None,
    };
    let tcp = frame.get(at..)?;
    let port = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    let number = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    let stamped = tcp.get(20..24) == Some(&[1, 1, 8, 10]);
    Some(Segment {
        from: SocketAddr::new(source, port(0)?),
        to: SocketAddr::new(target, port(2)?),
        flags: *tcp.get(13)?,
        seq: number(4)?,
        ack: number(8)?,
        stamps: if stamped { Some((number(24)?, number(28)?)) } else { None },
        options: tcp.get(20..header)?.to_vec(),
        payload: tcp.get(header..)?.to_vec(),
    })
}

/// The MAC address of an interface.
pub fn mac(namespace: &Namespace, interface: &str) -> Result<[u8; 6]> {
    let output = namespace.command("ip").args(["-j", "link", "show", interface]).output()?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let text = links[0]["address"].as_str().context("no MAC address")?;
    let mut mac = [0; 6];
    for (byte, digits) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(mac)
}
