//! A link of two TUN or TAP devices, and two threads that carry the packets: bare ones as a
//! WireGuard tunnel would, or frames as cards do.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, ensure};
use ringway_testnet::Namespace;

use crate::tunnel::{drain, open, open_with};

/// What becomes of a packet on its way: what arrives when it has been sent.
pub type Through = Box<dyn FnMut(&[u8]) -> Vec<Vec<u8>> + Send>;

fn as_sent() -> Through {
    Box::new(|packet| vec![packet.to_vec()])
}

/// What becomes of checksums on a link with Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The sender's stack finishes them: the devices send what they are given.
    AsSent,
    /// The devices finish them, as most cards do.
    FinishedByCard,
    /// Nobody does, and the receiver is told which they are: as between two virtual machines
    /// (virtio).
    LeftUnfinished,
}

/// The link. Dropping it takes both devices away.
#[derive(Debug)]
pub struct Cable {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cable {
    /// Makes device `name` in both namespaces, up, with these addresses.
    pub fn new(name: &str, ends: [(&Namespace, &[&str]); 2]) -> Result<Cable> {
        Cable::with(name, ends, <[u8]>::to_vec)
    }

    /// The same; what reaches the second end goes through `arrive` first.
    pub fn with(
        name: &str,
        ends: [(&Namespace, &[&str]); 2],
        arrive: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
    ) -> Result<Cable> {
        let there: Through = Box::new(move |packet| vec![arrive(packet)]);
        Cable::build(name, ends, || open(name), [there, as_sent()])
    }

    /// A link with Ethernet.
    pub fn ethernet(
        name: &str,
        ends: [(&Namespace, &[&str]); 2],
        checksums: Checksums,
    ) -> Result<Cable> {
        let through = || -> Through {
            match checksums {
                Checksums::FinishedByCard => Box::new(|frame| vec![finish(frame)]),
                Checksums::AsSent | Checksums::LeftUnfinished => as_sent(),
            }
        };
        let open = || match checksums {
            Checksums::AsSent => open_with(name, libc::IFF_TAP),
            Checksums::FinishedByCard | Checksums::LeftUnfinished => open_virtio(name),
        };
        Cable::build(name, ends, open, [through(), through()])
    }

    /// A link with Ethernet and checksums as sent, on which frames meet something: to the second
    /// end, and to the first.
    pub fn through(
        name: &str,
        ends: [(&Namespace, &[&str]); 2],
        through: [Through; 2],
    ) -> Result<Cable> {
        Cable::build(name, ends, || open_with(name, libc::IFF_TAP), through)
    }

    fn build(
        name: &str,
        ends: [(&Namespace, &[&str]); 2],
        open: impl Fn() -> Result<File> + Sync,
        [there, back]: [Through; 2],
    ) -> Result<Cable> {
        let make = |(namespace, addresses): (&Namespace, &[&str])| -> Result<File> {
            let tun = namespace.run(&open)??;
            let mut lines = format!("link set {name} up\n");
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                lines += &format!("addr add {address} dev {name}{nodad}\n");
            }
            namespace.ip(&lines)?;
            Ok(tun)
        };
        let (near, far) = (make(ends[0])?, make(ends[1])?);
        let stop = Arc::new(AtomicBool::new(false));
        let carry = |from: &File, to: &File, mut through: Through| {
            let (from, mut to, stop) = (from.try_clone()?, to.try_clone()?, stop.clone());
            // What the device refuses is lost, as on any link.
            let work = move || {
                drain(from, &stop, |packet| {
                    through(packet).iter().for_each(|arrives| drop(to.write(arrives)));
                });
            };
            Ok::<_, std::io::Error>(std::thread::spawn(work))
        };
        let (there, back) = (carry(&near, &far, there)?, carry(&far, &near, back)?);
        Ok(Cable { stop, threads: vec![there, back] })
    }
}

/// A TAP device that leaves checksums to us; before each frame is a virtio header (virtio 1.2,
/// section 5.1.6). Written without blocking, as hypervisors do: only such frames meet a native
/// program as that (drivers/net/tun.c, `tun_can_build_skb`).
fn open_virtio(name: &str) -> Result<File> {
    let tap = open_with(name, libc::IFF_TAP | libc::IFF_VNET_HDR)?;
    // SAFETY: an open descriptor, and a number.
    let set = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, libc::TUN_F_CSUM) };
    ensure!(set == 0, "TUNSETOFFLOAD: {}", std::io::Error::last_os_error());
    rustix::fs::fcntl_setfl(&tap, rustix::fs::OFlags::NONBLOCK)?;
    Ok(tap)
}

/// What a card does with a frame behind a virtio header (virtio 1.2, section 5.1.6.2): the rest of
/// the checksum, where the driver left that to it.
fn finish(sent: &[u8]) -> Vec<u8> {
    const HEADER: usize = 10;
    const NEEDS_CSUM: u8 = 1;
    let mut frame = sent.to_vec();
    let word = |at: usize| usize::from(u16::from_ne_bytes([sent[at], sent[at + 1]]));
    if sent.len() > HEADER && sent[0] & NEEDS_CSUM != 0 {
        let (start, field) = (HEADER + word(6), HEADER + word(6) + word(8));
        let pairs = sent[start..].chunks(2);
        let sum: u64 =
            pairs.map(|p| u64::from(p[0]) << 8 | p.get(1).map_or(0, |b| u64::from(*b))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let check = !(((folded & 0xffff) + (folded >> 16)) as u16);
        frame[field..field + 2].copy_from_slice(&check.to_be_bytes());
    }
    frame[..HEADER.min(sent.len())].fill(0);
    frame
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
