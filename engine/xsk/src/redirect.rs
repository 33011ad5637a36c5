//! The program that brings packets into sockets: packets of a queue with a socket go there, all
//! others to the kernel as if there were no program.
//!
//! If you have an XDP program already, put sockets into a map of that program: [`SocketMap::from`].
//!
//! Loading requires CAP_BPF and CAP_NET_ADMIN; putting sockets into a map only requires the map.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use ringway_bpf_sys::{self as bpf, Instruction, LinkInfo, XdpLink, XdpMode, Xskmap};

use crate::socket::setup::{Cause, SetupError, Step};
use crate::socket::{driver_and_kernel, interface_index};

/// A map from an interface's queues to sockets (BPF_MAP_TYPE_XSKMAP).
#[derive(Debug)]
pub struct SocketMap(OwnedFd);

/// A map of your own program.
impl From<OwnedFd> for SocketMap {
    fn from(map: OwnedFd) -> Self {
        Self(map)
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SocketMap {
    /// Makes a map for queues below `queues`. Requires CAP_BPF.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(queues: u32) -> Result<Self, SetupError> {
        let map = Xskmap::create(queues);
        map.map(Self).map_err(|e| SetupError::new(Step::Map, format!("{queues} queues"), e))
    }

    /// Sends packets of this queue into this socket from now on. A socket leaves the map by itself
    /// when it is closed.
    ///
    /// # Errors
    /// [`SetupError`]: the map is shorter, or it is no map of sockets.
    pub fn insert(&self, queue: u32, socket: impl AsFd) -> Result<(), SetupError> {
        let insert = |map: Xskmap<'_>| map.insert(queue, socket.as_fd());
        let inserted = Xskmap::of(self.as_fd()).and_then(insert);
        inserted.map_err(|e| failed(queue, e))
    }

    /// Sends packets of this queue to the kernel again. It is no error if the queue has no socket.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn remove(&self, queue: u32) -> Result<(), SetupError> {
        match Xskmap::of(self.as_fd()).and_then(|map| map.remove(queue)) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map_err(|e| failed(queue, e)),
        }
    }
}

fn failed(queue: u32, error: io::Error) -> SetupError {
    SetupError::new(Step::Map, format!("queue {queue}"), error)
}

/// A loaded program that redirects into a map of sockets.
#[derive(Debug)]
pub struct Program {
    /// The loaded program, to be attached.
    pub program: OwnedFd,
    /// The sockets that it redirects to.
    pub map: SocketMap,
}

impl Program {
    /// Loads the program that brings all packets of queues below `queues`. `several_frames`:
    /// packets of several buffers, too. The interface is for the error's text.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn for_queues(
        interface: &str,
        queues: u32,
        several_frames: bool,
    ) -> Result<Self, SetupError> {
        let map = SocketMap::new(queues)?;
        let instructions = &to_sockets(&map);
        let program =
            bpf::Program { name: "rw_redirect", instructions, frags: several_frames }.load();
        let program = program.map_err(|e| SetupError::new(Step::Load, interface, e.source))?;
        Ok(Self { program, map })
    }
}

/// A program that is attached to an interface. It is detached when this is dropped, and when the
/// process ends in any way.
#[derive(Debug)]
pub struct Redirect {
    map: SocketMap,
    mode: XdpMode,
    several_frames: bool,
    /// Dropped before the attachment is.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    link: XdpLink,
    attached: LinkInfo,
    /// Others have the attachment, too, or had it before: it ends with the last of its descriptors.
    shared: AtomicBool,
}

impl Drop for Redirect {
    fn drop(&mut self) {
        // A child that another thread is starting has a copy of the descriptor until it executes.
        if !*self.shared.get_mut() {
            let _ = self.link.detach();
        }
    }
}

impl Redirect {
    /// Attaches the program to an interface of the calling thread's network namespace, for queues
    /// below `queues`. Nothing is redirected before [`SocketMap::insert`].
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn attach(interface: &str, mode: XdpMode, queues: u32) -> Result<Self, SetupError> {
        Self::attach_program(interface, mode, |frames| {
            Program::for_queues(interface, queues, frames)
        })
    }

    /// The same with your own program. `load(true)` loads one that takes packets of several buffers
    /// (`BPF_F_XDP_HAS_FRAGS`); if that fails, `load(false)` follows.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn attach_program(
        interface: &str,
        mode: XdpMode,
        load: impl Fn(bool) -> Result<Program, SetupError>,
    ) -> Result<Self, SetupError> {
        let ifindex = interface_index(interface).map_err(|source| SetupError {
            step: Step::Attach,
            on: interface.into(),
            cause: Cause::NoInterface,
            source,
        })?;
        Self::put(interface, mode, load, |program| XdpLink::attach(program, ifindex, mode))
    }

    /// The same in place of a program that was left there, with its attachment and mode: every
    /// packet meets one of the two.
    ///
    /// # Errors
    /// [`SetupError`]. The other program is still there then.
    pub fn replace_program(
        interface: &str,
        link: &XdpLink,
        mode: XdpMode,
        load: impl Fn(bool) -> Result<Program, SetupError>,
    ) -> Result<Self, SetupError> {
        let mut redirect = Self::put(interface, mode, load, |program| {
            link.replace(program)?;
            link.try_clone()
        })?;
        *redirect.shared.get_mut() = true;
        Ok(redirect)
    }

    /// Loads a program and has it put where it belongs, by what returns its attachment.
    fn put(
        interface: &str,
        mode: XdpMode,
        load: impl Fn(bool) -> Result<Program, SetupError>,
        attach: impl Fn(BorrowedFd<'_>) -> io::Result<XdpLink>,
    ) -> Result<Self, SetupError> {
        let attach = |several_frames| {
            let Program { program, map } = load(several_frames)?;
            let link = attach(program.as_fd());
            let link = link.and_then(|link| Ok((link.info()?, link)));
            let (attached, link) = link.map_err(|e| attach_error(interface, e))?;
            let (kept, shared) = (OnceLock::new(), AtomicBool::new(false));
            Ok(Self { map, mode, several_frames, kept, link, attached, shared })
        };
        // A kernel before 5.18, or a driver without: then only packets that fit into one buffer.
        attach(true).or_else(|first: SetupError| match first.source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::ENODEV) => Err(first),
            _ => attach(false),
        })
    }

    /// Continues with a predecessor's program: its map and its attachment, which stays as long as
    /// any process has it open.
    ///
    /// # Errors
    /// The kernel does not describe `link`.
    pub fn take_over(
        map: OwnedFd,
        link: OwnedFd,
        mode: XdpMode,
        several_frames: bool,
    ) -> io::Result<Self> {
        let link = XdpLink::from(link);
        let attached = link.info()?;
        let (map, kept, shared) = (SocketMap(map), OnceLock::new(), AtomicBool::new(true));
        Ok(Self { map, mode, several_frames, kept, link, attached, shared })
    }

    /// The attachment, for a pin or a successor. From now on dropping this closes a descriptor, and
    /// detaches only if it is the last one.
    pub fn link(&self) -> BorrowedFd<'_> {
        self.shared.store(true, Relaxed);
        self.link.as_fd()
    }

    /// Keeps `by`, for example a pin ([`Redirect::link`]) that is removed when it is dropped: the
    /// attachment then outlives this process if it is killed. `by` is dropped before this is. Only
    /// the first is kept.
    pub fn keep(&self, by: Box<dyn Any + Send + Sync>) {
        let _ = self.kept.set(by);
    }

    /// Whether something keeps it beyond this process.
    pub fn is_kept(&self) -> bool {
        self.kept.get().is_some()
    }

    /// Whether it still runs where it was attached: not if the interface is gone, or the program
    /// was detached or replaced.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn is_attached(&self) -> io::Result<bool> {
        Ok(self.link.info()? == self.attached)
    }

    /// The map that holds the sockets, by queue.
    pub fn map(&self) -> &SocketMap {
        &self.map
    }

    /// The mode that the program is attached in.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Whether it takes packets of several buffers.
    pub fn several_frames(&self) -> bool {
        self.several_frames
    }
}

/// A driver that refuses is named, with the kernel.
fn attach_error(interface: &str, source: io::Error) -> SetupError {
    let mut error = SetupError::new(Step::Attach, interface, source);
    if matches!(error.cause, Cause::NoNative | Cause::FewQueues) {
        error.on += &driver_and_kernel(&Path::new("/sys/class/net").join(interface));
    }
    error
}

/// `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);`
fn to_sockets(map: &SocketMap) -> [Instruction; 6] {
    /// xdp_md.rx_queue_index.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        // r2 = *(u32 *)(r1 + 16)
        (0x61, 0x12, RX_QUEUE_INDEX, 0),
        // r1 = map, in two
        (0x18, 0x11, 0, map.0.as_raw_fd()),
        (0x00, 0x00, 0, 0),
        // r3 = what is returned where the map has no socket
        (0xb7, 0x03, 0, XDP_PASS),
        (0x85, 0x00, 0, REDIRECT_MAP),
        (0x95, 0x00, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use ringway_testnet::{End, Namespace, VethOptions, root_or_skip, veth};

    use super::*;

    /// Into another one more bytes were written than a descriptor has.
    #[test]
    fn a_map_of_something_else_is_refused() {
        const MAP_TYPE_ARRAY: u32 = 2;
        if !root_or_skip("a_map_of_something_else_is_refused") {
            return;
        }
        let map = SocketMap::from(bpf::create_map(MAP_TYPE_ARRAY, 4096, 1).unwrap());
        for refused in [map.insert(0, &map), map.remove(0)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("it is no map of sockets"), "{said}");
        }
        SocketMap::new(1).unwrap().remove(0).unwrap();
    }

    /// As a child has it that is being started. Whoever was handed the attachment keeps it.
    #[test]
    fn a_copy_of_the_descriptor_is_in_nobodys_way() {
        if !root_or_skip("a_copy_of_the_descriptor_is_in_nobodys_way") {
            return;
        }
        let ours = Namespace::new("ours").unwrap();
        veth(&End::new(&ours, "eth0"), &End::new(&ours, "eth1"), &VethOptions::default()).unwrap();
        let attach = || Redirect::attach("eth0", XdpMode::Native, 1);
        ours.run(|| {
            let first = attach().unwrap();
            let _copy = first.link.try_clone().unwrap();
            drop(first);
            let second = attach().unwrap();
            let handed = second.link().try_clone_to_owned().unwrap();
            drop(second);
            assert_eq!(attach().unwrap_err().cause, Cause::ProgramThere);
            let map = SocketMap::new(1).unwrap();
            let third = Redirect::take_over(map.0, handed, XdpMode::Native, true).unwrap();
            assert!(third.is_attached().unwrap());
            let kept = third.link.try_clone().unwrap();
            drop(third);
            assert_eq!(attach().unwrap_err().cause, Cause::ProgramThere);
            drop(kept);
            drop(attach().unwrap());
        })
        .unwrap();
    }
}
