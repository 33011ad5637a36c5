//! One engine continues where another stops, with the same memory, sockets and programs. Packets
//! stay in their rings meanwhile.
//!
//! ```text
//! predecessor                                   successor
//!   looks every 50 ms            <-- connects --
//!                                -- memory -->   maps it
//!   workers stop between rounds  <-- "mapped" --
//!   offers its memory            -- message, descriptors --> maps rings, opens pools and ports
//!                                                claims the memory, continues
//!   ends                         <-- "taken" --
//! ```
//! An atomic word in the memory names its owner; only the owner may change it. If the successor
//! ends or hangs before it claims the memory, the predecessor claims it and continues; a successor
//! that is late finds nothing to claim.

pub(crate) mod control_socket;

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_wire::Mac;
use ringway_xsk::{LeftSocket, Redirect, Umem, UmemError, XdpMode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::port::LeftPort;
use crate::programs::{Programs, keep};
use crate::status::inspect::InspectError;

/// Longest time that either side waits for the other while workers stand still ...
const PATIENCE: Duration = Duration::from_secs(3);
/// ... and while they run: mapping much memory takes long.
const MUCH_PATIENCE: Duration = Duration::from_secs(10);
/// Descriptors that one message can carry (`SCM_MAX_FD`, net/scm.h).
const MOST_DESCRIPTORS: usize = 253;
const REQUEST: &[u8] = b"ringway.take-over/1";
const MEMORY: &[u8] = b"memory";
const MAPPED: &[u8] = b"mapped";
const TAKEN: &[u8] = b"taken";

/// Names of ports in a message.
fn named(ports: &[String]) -> String {
    if ports.is_empty() { "no af_xdp port".into() } else { ports.join(" and ") }
}

/// Why an engine cannot take over from another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeoverError {
    /// The socket cannot be used.
    #[error("{path}: {source}; {remedy}")]
    Socket { path: PathBuf, source: io::Error, remedy: &'static str },
    /// The maker of the memory can still write to it.
    #[error(
        "{path}: the running engine belongs to user {user}, who could change this engine's packets and \
         counters; start this one as that user (`setpriv --reuid {user} --clear-groups ringway \
         engine ...`), or stop that one and start again"
    )]
    OtherUser { path: PathBuf, user: u32 },
    /// The predecessor refuses, and continues.
    #[error("the running engine refused the takeover: {0}")]
    Refused(String),
    /// Its reply is invalid.
    #[error(
        "the reply of the running engine is invalid ({0}); it may be another version: stop it and start \
         again"
    )]
    Odd(String),
    /// More or fewer workers than the predecessor's.
    #[error(
        "the number of workers is {ours} here, and {theirs} in the running engine, which has {}; \
         start with the same af_xdp ports and queues",
        named(ports)
    )]
    Workers { ours: usize, theirs: usize, ports: Vec<String> },
    /// Other ports than the predecessor's.
    #[error(
        "worker {worker} has {} here, and {} in the running engine; start with the same workers and af_xdp ports",
        named(ours),
        named(theirs)
    )]
    Ports { worker: usize, ours: Vec<String>, theirs: Vec<String> },
    /// Its programs choose other packets.
    #[error(
        "the running engine takes {theirs}, and here it is {ours}; start with the same `--only`, or start anew"
    )]
    Chooses { ours: String, theirs: String },
    /// Its programs do something else when it dies.
    #[error("the running engine was started with `--when-dead {0}`; start with the same")]
    WhenDead(&'static str),
    /// It cannot be inspected, or is no engine.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The control socket of an engine is unknown.
    #[error("process {pid}: {why}; {remedy}")]
    Where {
        pid: u32,
        /// The obstacle.
        why: String,
        remedy: &'static str,
    },
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// The predecessor continued before this one was ready.
    #[error("the running engine timed out and continues without a takeover; try again")]
    TooLate,
}

pub(crate) struct LeftWorker {
    pub worker: usize,
    /// Frames on its pool's list.
    pub free: u32,
    pub ports: Vec<LeftPort>,
}

/// The message that accompanies the descriptors: those of each program (map, attachment) and of
/// each socket.
#[derive(Serialize, Deserialize)]
enum TakeoverMessage {
    Refused(String),
    Offer { paused_ns: u64, free: Vec<u32>, programs: Vec<Program>, sockets: Vec<SocketOf> },
}

#[derive(Serialize, Deserialize)]
struct Program {
    interface: String,
    generic: bool,
    several_frames: bool,
    /// Whether it outlives an engine that is killed.
    #[serde(default)]
    kept: bool,
    /// The packets that it chooses, in words; empty: all.
    #[serde(default)]
    chooses: String,
}

#[derive(Serialize, Deserialize)]
struct SocketOf {
    worker: usize,
    port: String,
    mac: Option<[u8; 6]>,
    left: LeftSocket,
}

/// The socket that a successor connects to.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
    path: PathBuf,
    /// The inode at the path, which shows whether another process has taken it.
    inode: u64,
}

#[derive(Debug)]
pub struct Successor(OwnedFd);

impl Control {
    /// Listens; only root and this process's own user may connect. `instead`: replaces the socket
    /// of the engine that was taken over.
    ///
    /// # Errors
    /// Another process listens there, the path is something else, or the directory cannot be
    /// written.
    pub fn bind(path: &Path, instead: bool) -> Result<Self, TakeoverError> {
        let failed = |remedy| {
            move |source: io::Error| TakeoverError::Socket { path: path.into(), source, remedy }
        };
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            if !instead && connected(path).is_ok() {
                return Err(failed("take that engine over, or choose another path")(
                    io::ErrorKind::AddrInUse.into(),
                ));
            }
            // The socket file of a killed engine.
            fs::remove_file(path).map_err(failed("remove it"))?;
        }
        let remedy = if path.exists() {
            "something else lies there: remove it, or choose another path"
        } else {
            "choose a path in a directory that may be written"
        };
        let listening = || {
            let socket = self::socket()?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            chmod(path, Mode::RUSR | Mode::WUSR)?;
            listen(&socket, 1)?;
            Ok((socket, fs::metadata(path)?.ino()))
        };
        let (socket, inode) = listening().map_err(failed(remedy))?;
        Ok(Self { socket, path: path.into(), inode })
    }

    /// A successor that asks and may; does not wait for one.
    pub fn asked(&self) -> Option<Successor> {
        if !readable(self.socket.as_fd(), Duration::ZERO) {
            return None;
        }
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
        let user = socket_peercred(&socket).ok()?.uid;
        let may = user.is_root() || user == rustix::process::geteuid();
        // It says so at once, or is somebody who looks whether we are there.
        let mut said = [0; 64];
        let _ = set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(100)));
        let (len, _) = recv(&socket, &mut said, RecvFlags::empty()).ok()?;
        (may && said.get(..len) == Some(REQUEST)).then_some(Successor(socket))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Successor {
    pub(crate) fn refuse(&self, why: &str) {
        if let Ok(message) = serde_json::to_vec(&TakeoverMessage::Refused(why.into())) {
            let _ = send(&self.0, &message, SendFlags::NOSIGNAL);
        }
    }

    /// Has it map the memory while workers run, because that takes longest.
    pub(crate) fn prepare(&self, umem: &Umem) -> io::Result<()> {
        // SAFETY: `Control::asked` let in root or this process's user, who can write to this
        // process in any case. An engine writes to the memory once it has claimed it.
        let file = unsafe { umem.file() };
        send_with(self.0.as_fd(), MEMORY, &[file])?;
        self.hear(MUCH_PATIENCE)
    }

    fn hear(&self, patience: Duration) -> io::Result<()> {
        let mut said = [0; 16];
        set_socket_timeout(&self.0, Timeout::Recv, Some(patience))?;
        match recv(&self.0, &mut said, RecvFlags::empty())? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends it everything, and waits until it has taken over or is gone.
    pub(crate) fn offer(&self, workers: &[LeftWorker], paused_ns: u64) -> io::Result<()> {
        let mut programs = Vec::<&LeftPort>::new();
        for port in workers.iter().flat_map(|worker| &worker.ports) {
            if !programs.iter().any(|other| other.interface == port.interface) {
                programs.push(port);
            }
        }
        let ports = || workers.iter().flat_map(|w| w.ports.iter().map(|port| (w.worker, port)));
        let program = |port: &&LeftPort| Program {
            interface: port.interface.clone(),
            generic: port.redirect.mode() == XdpMode::Generic,
            several_frames: port.redirect.several_frames(),
            kept: port.redirect.is_kept(),
            chooses: port.chooses.clone(),
        };
        let socket = |(worker, port): (usize, &LeftPort)| SocketOf {
            worker,
            port: port.name.clone(),
            mac: port.mac.map(|mac| mac.0),
            left: port.left.clone(),
        };
        let message = serde_json::to_vec(&TakeoverMessage::Offer {
            paused_ns,
            free: workers.iter().map(|worker| worker.free).collect(),
            programs: programs.iter().map(program).collect(),
            sockets: ports().map(socket).collect(),
        })?;
        let of_programs =
            programs.iter().flat_map(|p| [p.redirect.map().as_fd(), p.redirect.link()]);
        let of_sockets = ports().map(|(_, port)| port.socket.as_fd());
        let fds: Vec<_> = of_programs.chain(of_sockets).collect();
        send_with(self.0.as_fd(), &message, &fds)?;
        self.hear(PATIENCE)
    }
}

/// A running engine that has offered itself.
pub struct Predecessor {
    connection: OwnedFd,
    pub(crate) umem: Umem,
    pub(crate) free: Vec<u32>,
    pub(crate) programs: Vec<(String, Arc<Redirect>)>,
    /// Whether they outlive an engine that is killed.
    kept: bool,
    /// The packets that the programs choose; none if there is no program.
    chooses: Option<String>,
    sockets: Mutex<Vec<(SocketOf, OwnedFd)>>,
    paused_ns: u64,
    verdict: AtomicU8,
}

/// Workers wait for this before they begin.
const CLAIMED: u8 = 1;

impl Predecessor {
    /// Asks the engine that listens there to stop, and receives its memory and descriptors. From
    /// now on it waits.
    ///
    /// # Errors
    /// See [`TakeoverError`].
    pub fn ask(path: &Path) -> Result<Self, TakeoverError> {
        let failed = |source: io::Error| TakeoverError::Socket {
            path: path.into(),
            source,
            remedy: "give the path that the running engine was started with (--control PATH) where this is not it; where it is, that engine is stopped, hangs or is dead: end it, and start anew",
        };
        let connection = connected(path).map_err(failed)?;
        let user = socket_peercred(&connection).map_err(|e| failed(e.into()))?.uid;
        if !user.is_root() && user != rustix::process::geteuid() {
            let (path, user) = (path.into(), user.as_raw());
            return Err(TakeoverError::OtherUser { path, user });
        }
        let patience = set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE));
        patience.map_err(|e| failed(e.into()))?;
        send(&connection, REQUEST, SendFlags::NOSIGNAL).map_err(|e| failed(e.into()))?;
        if !readable(connection.as_fd(), PATIENCE) {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        let odd = |why: String| TakeoverError::Odd(why);
        let (said, mut fds) = receive_with(connection.as_fd()).map_err(failed)?;
        if said.is_empty() {
            let why = "it lets in root and its own user alone, or ends just now";
            return Err(TakeoverError::Refused(why.into()));
        }
        let memory = fds.pop().filter(|_| said == MEMORY);
        let memory = memory.ok_or_else(|| odd("no memory".into()))?;
        // SAFETY: the predecessor is root's or this process's user's, as was checked above, who can
        // write to this process in any case. An engine that was taken over writes there no more.
        let umem = unsafe { Umem::from_file(memory) }?;
        send(&connection, MAPPED, SendFlags::NOSIGNAL).map_err(|_| TakeoverError::TooLate)?;
        let (message, fds) = receive_with(connection.as_fd()).map_err(failed)?;
        let message = serde_json::from_slice(&message).map_err(|e| odd(e.to_string()))?;
        let (paused_ns, free, programs, sockets) = match message {
            TakeoverMessage::Refused(why) => return Err(TakeoverError::Refused(why)),
            TakeoverMessage::Offer { paused_ns, free, programs, sockets } => {
                (paused_ns, free, programs, sockets)
            }
        };
        if fds.len() != 2 * programs.len() + sockets.len() {
            return Err(odd(format!("{} descriptors", fds.len())));
        }
        let mut fds = fds.into_iter();
        // As many as were just counted.
        let mut next = || fds.next().ok_or_else(|| odd("a descriptor is missing".into()));
        let kept = programs.iter().any(|program| program.kept);
        let chooses = programs.first().map(|program| program.chooses.clone());
        let program = |program: Program| {
            let mode = if program.generic { XdpMode::Generic } else { XdpMode::Native };
            let redirect = Redirect::take_over(next()?, next()?, mode, program.several_frames)
                .map_err(|e| odd(e.to_string()))?;
            Ok((program.interface, Arc::new(redirect)))
        };
        let programs: Result<_, TakeoverError> = programs.into_iter().map(program).collect();
        let programs = programs?;
        let sockets = sockets.into_iter().zip(fds).collect();
        let (sockets, verdict) = (Mutex::new(sockets), AtomicU8::new(0));
        Ok(Self { connection, umem, free, programs, kept, chooses, sockets, paused_ns, verdict })
    }

    /// Whether these are its workers and ports, which are asked for by their names.
    pub(crate) fn fits(&self, wanted: &[Vec<String>]) -> Result<(), TakeoverError> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let of_worker = |worker: usize| {
            let sockets = sockets.iter().filter(|(socket, _)| socket.worker == worker);
            sockets.map(|(socket, _)| socket.port.clone()).collect()
        };
        let running: Vec<_> = (0..self.free.len()).map(of_worker).collect();
        same_ports(wanted, &running)
    }

    /// The socket of a port.
    pub(crate) fn socket(&self, port: &str) -> Option<(OwnedFd, LeftSocket, Option<Mac>)> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let at = sockets.iter().position(|(socket, _)| socket.port == port)?;
        let (socket, fd) = sockets.remove(at);
        Some((fd, socket.left, socket.mac.map(Mac)))
    }

    /// Claims the memory, and lets workers begin. Returns the time for which the rings were not
    /// read.
    pub(crate) fn claim(&self) -> Result<Duration, TakeoverError> {
        if !self.umem.claim() {
            return Err(TakeoverError::TooLate);
        }
        self.verdict.store(CLAIMED, Release);
        let gap = now_ns().saturating_sub(self.paused_ns);
        // It would find out by itself.
        let _ = send(&self.connection, TAKEN, SendFlags::NOSIGNAL);
        Ok(Duration::from_nanos(gap))
    }

    /// Whether its programs outlive an engine that is killed, if it has any, is part of them.
    pub(crate) fn is_kept_alike(&self, kept: bool) -> Result<(), TakeoverError> {
        let alike = self.programs.is_empty() || self.kept == kept;
        alike.then_some(()).ok_or(TakeoverError::WhenDead(if self.kept { "drop" } else { "pass" }))
    }

    /// Whether its programs, if it has any, choose what those of `ours` would.
    pub(crate) fn chooses_alike(&self, ours: &str) -> Result<(), TakeoverError> {
        let Some(theirs) = self.chooses.as_deref().filter(|theirs| *theirs != ours) else {
            return Ok(());
        };
        let words = |chooses: &str| if chooses.is_empty() { "all packets" } else { chooses }.into();
        Err(TakeoverError::Chooses { ours: words(ours), theirs: words(theirs) })
    }

    /// Keeps the attachments that the predecessor kept beyond its death.
    pub(crate) fn keep(&self, programs: &dyn Programs) {
        for (interface, redirect) in &self.programs {
            if let Err(error) = keep(programs, interface, redirect) {
                warn!("{interface}: {error}: if this engine is killed, packets go to the kernel");
            }
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.verdict.load(Acquire) == CLAIMED
    }
}

/// Whether a successor has the workers and ports of the running engine.
fn same_ports(wanted: &[Vec<String>], running: &[Vec<String>]) -> Result<(), TakeoverError> {
    if wanted.len() != running.len() {
        let (ours, theirs, ports) = (wanted.len(), running.len(), running.concat());
        return Err(TakeoverError::Workers { ours, theirs, ports });
    }
    for (worker, (ours, theirs)) in wanted.iter().zip(running).enumerate() {
        let (mut ours, mut theirs) = (ours.clone(), theirs.clone());
        ours.sort();
        theirs.sort();
        if ours != theirs {
            return Err(TakeoverError::Ports { worker, ours, theirs });
        }
    }
    Ok(())
}

/// The system's clock, which all processes share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Not before the machine was started.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

fn connected(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn readable(socket: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let patience = Timespec::try_from(patience).ok();
    poll(&mut fds, patience.as_ref()).is_ok_and(|ready| ready > 0)
}

fn send_with(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("more sockets than one message carries"));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_with(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; 256 << 10];
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    message.truncate(received.bytes);
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((message, rights.flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_ports_in_plain_words() {
        let theirs = vec!["af_xdp:eth1:0".into(), "af_xdp:eth2:0".into()];
        let said = TakeoverError::Ports { worker: 0, ours: Vec::new(), theirs }.to_string();
        let want = "worker 0 has no af_xdp port here, and af_xdp:eth1:0 and af_xdp:eth2:0 in the";
        assert!(said.starts_with(want), "{said}");
    }

    #[test]
    fn another_number_of_workers_is_the_reason_that_is_told() {
        let queue = |n: u32| vec![format!("af_xdp:va1:{n}")];
        let running = [queue(0), queue(1)];
        let said = same_ports(&[queue(0)], &running).unwrap_err().to_string();
        let want = "the number of workers is 1 here, and 2 in the running engine, which has af_xdp:va1:0 and af_xdp:va1:1;";
        assert!(said.starts_with(want), "{said}");
        let other = same_ports(&[queue(1), queue(0)], &running).unwrap_err().to_string();
        let words = "worker 0 has af_xdp:va1:1 here, and af_xdp:va1:0 in";
        assert!(other.starts_with(words), "{other}");
        assert!(same_ports(&running.clone(), &running).is_ok());
    }

    /// Only root can try.
    #[test]
    fn a_predecessor_of_another_user_is_refused() {
        use rustix::thread::{Uid, set_thread_res_uid};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = std::env::temp_dir().join(format!("ringway-other-{}", std::process::id()));
        let other = Uid::from_raw(62_114);
        let listen = || {
            set_thread_res_uid(other, other, other).unwrap();
            Control::bind(&path, false).unwrap()
        };
        let control = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
        let error = Predecessor::ask(&path).err().unwrap().to_string();
        assert!(error.contains("belongs to user 62114"), "{error}");
        assert!(error.contains("--reuid 62114"), "{error}");
        drop(control);
    }
}
