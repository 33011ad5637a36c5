//! Ways of sending a file or a buffer by TCP, which differ in how often the bytes are copied.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::cost::{Spent, Thread};
use crate::benches::tcp::socket::set_option;
use crate::harness::named_enum::named;
use crate::{Error, Result};

/// Bytes of a file, which stays in memory.
const FILE: usize = 8 << 20;
/// Bytes that are handed over at a time.
pub(super) const CHUNK: usize = 64 << 10;

named! {
    /// How bytes get to the socket.
    pub(super) enum Way {
        Send = "send",
        ZeroCopy = "MSG_ZEROCOPY",
        ReadWrite = "read+write",
        MmapWrite = "mmap+write",
        Sendfile = "sendfile",
        Splice = "splice",
    }
}

/// Bytes that were sent, and their cost.
pub(super) struct Sent {
    /// Chunks of [`CHUNK`] bytes each.
    pub chunks: u64,
    pub calls: u64,
    pub spent: Spent,
    pub seconds: f64,
}

/// Sends by `lo` of the calling thread's namespace for a while, to somebody who throws it away
/// without a copy.
pub(super) fn run(way: Way, directory: &Path, time: Duration) -> Result<Sent> {
    let failed = |source| Error::Run { program: way.name().into(), source };
    let path = directory.join("file");
    File::create(&path).and_then(|mut file| file.write_all(&vec![7; FILE])).map_err(failed)?;
    let file = File::open(&path).map_err(failed)?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let to = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let (from, _) = listener.accept().map_err(failed)?;
    let drain = thread::spawn(move || throw_away(&from));
    let sent = pass(way, &file, &to, time);
    drop(to);
    let drained = drain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    drained.map_err(failed)?;
    sent
}

/// TCP drops what is asked for with MSG_TRUNC (tcp(7)).
fn throw_away(from: &TcpStream) -> io::Result<()> {
    let mut room = vec![0; 1 << 20];
    while recv(from, &mut room, RecvFlags::TRUNC)?.1 > 0 {}
    Ok(())
}

fn pass(way: Way, file: &File, to: &TcpStream, time: Duration) -> Result<Sent> {
    let failed = |source| Error::Run { program: way.name().into(), source };
    let mut sender = Sender::new(way, file, to).map_err(failed)?;
    let thread = Thread::this();
    let (before, began) = (thread.spent()?, Instant::now());
    let mut bytes = 0;
    while began.elapsed() < time {
        bytes += sender.send().map_err(failed)?;
    }
    let spent = thread.spent()?.since(before);
    let chunks = (bytes / CHUNK).max(1) as u64;
    Ok(Sent { chunks, calls: sender.calls, spent, seconds: began.elapsed().as_secs_f64() })
}

struct Sender<'f> {
    way: Way,
    file: &'f File,
    to: &'f TcpStream,
    buffer: Vec<u8>,
    /// Where in the file.
    at: u64,
    pipe: (OwnedFd, OwnedFd),
    calls: u64,
}

impl<'f> Sender<'f> {
    fn new(way: Way, file: &'f File, to: &'f TcpStream) -> io::Result<Self> {
        if way == Way::ZeroCopy {
            set_option(to, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
        }
        let (reader, writer) = io::pipe()?;
        let pipe = (reader.into(), writer.into());
        Ok(Self { way, file, to, buffer: vec![7; CHUNK], at: 0, pipe, calls: 0 })
    }

    /// Some bytes more; how many.
    fn send(&mut self) -> io::Result<usize> {
        self.at = if self.at + CHUNK as u64 > FILE as u64 { 0 } else { self.at };
        self.calls += 1;
        let sent = match self.way {
            Way::Send => send(self.to, &self.buffer, SendFlags::NOSIGNAL)?,
            Way::ZeroCopy => self.zero_copy()?,
            Way::ReadWrite => {
                self.calls += 2;
                let mut file = self.file;
                file.seek(io::SeekFrom::Start(self.at))?;
                file.read_exact(&mut self.buffer)?;
                send(self.to, &self.buffer, SendFlags::NOSIGNAL)?
            }
            Way::MmapWrite => self.mapped()?,
            Way::Sendfile => sendfile(self.to, self.file, Some(&mut self.at.clone()), CHUNK)?,
            Way::Splice => self.spliced()?,
        };
        self.at += sent as u64;
        Ok(sent)
    }

    /// Pages go as they are, and the kernel says on the error queue when they are free again. Over
    /// lo it copies after all.
    fn zero_copy(&mut self) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
        loop {
            match send(self.to, &self.buffer, flags) {
                // Too many notifications that nobody has fetched.
                Err(Errno::NOBUFS) => self.calls += 1,
                other => {
                    self.fetch_notifications();
                    return Ok(other?);
                }
            }
            self.fetch_notifications();
        }
    }

    fn fetch_notifications(&mut self) {
        self.calls += 1;
        let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
        while recv(self.to, &mut [0; 0], flags).is_ok() {
            self.calls += 1;
        }
    }

    fn mapped(&mut self) -> io::Result<usize> {
        self.calls += 2;
        // SAFETY: a new mapping, of a file that is longer and that nobody changes or cuts.
        let map = unsafe {
            mmap(ptr::null_mut(), CHUNK, ProtFlags::READ, MapFlags::SHARED, self.file, self.at)
        }?;
        // SAFETY: it is as long, readable, and mapped until after the call.
        let bytes = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), CHUNK) };
        let sent = send(self.to, bytes, SendFlags::NOSIGNAL);
        // SAFETY: the mapping from above; `bytes` is used no more.
        unsafe { munmap(map, CHUNK) }?;
        Ok(sent?)
    }

    /// File to pipe, pipe to socket: pages change hands.
    fn spliced(&mut self) -> io::Result<usize> {
        let mut at = self.at as i64;
        let got = splice(self.file.as_raw_fd(), Some(&mut at), self.pipe.1.as_raw_fd(), CHUNK)?;
        let mut left = got;
        while left > 0 {
            self.calls += 1;
            left -= splice(self.pipe.0.as_raw_fd(), None, self.to.as_raw_fd(), left)?;
        }
        Ok(got)
    }
}

fn splice(from: i32, at: Option<&mut i64>, to: i32, bytes: usize) -> io::Result<usize> {
    let at = at.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: open descriptors; the offset is null or a number that outlives the call.
    let got = unsafe { libc::splice(from, at, to, ptr::null_mut(), bytes, 0) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}
