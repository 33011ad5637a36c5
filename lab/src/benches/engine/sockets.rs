//! `bid` and `udp-echo` by the kernel's sockets, as fast as they go on one processor: many messages
//! in a system call, datagrams of one sender received as one (UDP_GRO), and answers handed over as
//! one (UDP_SEGMENT). SO_REUSEPORT is set, so that there may be one for each processor.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use ringway_engine::apps::{ANSWER_BYTES, Bid};
use ringway_testnet::Namespace;
use ringway_wire::IntoBytes as _;
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

use crate::harness::cpu::pin;
use crate::{Error, Result};

/// Messages in a system call.
const MESSAGES: usize = 64;
/// Bytes of a message: the most that the kernel makes of several datagrams.
const BYTES: usize = 1 << 16;
/// Bytes of the socket's buffer, so that nothing is lost while it answers.
const BUFFER: usize = 32 << 20;
/// linux/udp.h.
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

pub(super) enum Service {
    Echo,
    Bid(Box<Bid>),
}

/// A server on a thread of its own.
pub(super) struct Sockets {
    thread: JoinHandle<io::Result<()>>,
    stop: Arc<AtomicBool>,
}

pub(super) const NAME: &str = "sockets";

impl Sockets {
    /// Listens in this namespace, and stays on this processor.
    pub(super) fn start(
        namespace: &Namespace,
        cpu: usize,
        at: SocketAddrV4,
        service: Service,
    ) -> Result<Self> {
        let (stop, namespace) = (Arc::<AtomicBool>::default(), namespace.clone());
        let (ready, is_ready) = channel();
        let stopped = stop.clone();
        let work = move || {
            let open = || {
                namespace.enter()?;
                pin(cpu)?;
                listen(at).map_err(failed)
            };
            match open() {
                Ok(socket) => {
                    let _ = ready.send(Ok(()));
                    serve(&socket, service, &stopped)
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                    Ok(())
                }
            }
        };
        let thread = thread::Builder::new().name(NAME.into()).spawn(work).map_err(failed)?;
        is_ready.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))??;
        Ok(Self { thread, stop })
    }

    pub(super) fn stop(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        let ended = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended.map_err(failed)
    }
}

fn failed(source: io::Error) -> Error {
    Error::Run { program: "a server on sockets".into(), source }
}

fn listen(at: SocketAddrV4) -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Above the limit that others have.
    sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)?;
    sockopt::set_socket_send_buffer_size_force(&socket, BUFFER)?;
    // So that it sees now and then whether to stop.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_millis(100)))?;
    let on: i32 = 1;
    // SAFETY: the option's value is an int, as long as said.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            UDP_GRO,
            (&raw const on).cast(),
            size_of::<i32>() as u32,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    bind(&socket, &at)?;
    Ok(socket)
}

/// A control message of one number, aligned as the kernel wants it (CMSG_SPACE of an int).
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    header: libc::cmsghdr,
    value: i32,
    _padding: i32,
}

/// Memory for messages, and headers that point into it.
struct Messages {
    bytes: Vec<u8>,
    names: Vec<libc::sockaddr_in>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Messages {
    fn new() -> Self {
        // SAFETY: integers, and pointers that may be null: all may be zero.
        let (name, control, vector, header) = unsafe {
            (mem::zeroed(), mem::zeroed(), mem::zeroed(), mem::zeroed::<libc::mmsghdr>())
        };
        let mut new = Self {
            bytes: vec![0; MESSAGES * BYTES],
            names: vec![name; MESSAGES],
            controls: vec![control; MESSAGES],
            vectors: vec![vector; MESSAGES],
            headers: vec![header; MESSAGES],
        };
        // The contents of the vectors stay in place when the vectors are moved.
        for n in 0..MESSAGES {
            new.vectors[n].iov_base = new.bytes[n * BYTES..].as_mut_ptr().cast();
            let header = &mut new.headers[n].msg_hdr;
            header.msg_name = (&raw mut new.names[n]).cast();
            header.msg_iov = &raw mut new.vectors[n];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut new.controls[n]).cast();
        }
        new
    }

    /// Waits for messages; how many there are.
    fn receive(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        for (header, vector) in self.headers.iter_mut().zip(&mut self.vectors) {
            vector.iov_len = BYTES;
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
            header.msg_hdr.msg_controllen = size_of::<Control>();
        }
        // SAFETY: each header points to a name, a control message and bytes of its own, as long as
        // it says.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                MESSAGES as u32,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// A message, and of how many bytes each of its datagrams is, but for the last, which may be
    /// shorter.
    fn message(&mut self, n: usize) -> (&mut [u8], usize) {
        let (header, control) = (&self.headers[n], &self.controls[n]);
        let len = header.msg_len as usize;
        let several = header.msg_hdr.msg_controllen >= size_of::<libc::cmsghdr>()
            && (control.header.cmsg_level, control.header.cmsg_type) == (libc::SOL_UDP, UDP_GRO);
        let each = if several { control.value as usize } else { len };
        (&mut self.bytes[n * BYTES..n * BYTES + len], each.max(1))
    }

    /// Makes message `n` answers of `each` bytes, except the last, to its sender.
    fn answer(&mut self, n: usize, len: usize, each: usize) {
        self.vectors[n].iov_len = len;
        let several = len > each;
        self.headers[n].msg_hdr.msg_controllen = if several { size_of::<Control>() } else { 0 };
        // A number of 16 bits, at the beginning of what there is room for.
        let value = i32::from_ne_bytes({
            let [a, b] = (each as u16).to_ne_bytes();
            [a, b, 0, 0]
        });
        let (cmsg_level, cmsg_type) = (libc::SOL_UDP, UDP_SEGMENT);
        let cmsg_len = size_of::<libc::cmsghdr>() + size_of::<u16>();
        let header = libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type };
        self.controls[n] = Control { header, value, _padding: 0 };
    }

    /// Sends the first messages. One that is refused is left out.
    fn send(&mut self, socket: &OwnedFd, count: usize) {
        let mut left = &mut self.headers[..count];
        while !left.is_empty() {
            // SAFETY: as in `receive`.
            let sent = unsafe {
                libc::sendmmsg(socket.as_raw_fd(), left.as_mut_ptr(), left.len() as u32, 0)
            };
            // It says how many, or why not the first.
            let gone = usize::try_from(sent).unwrap_or(1);
            left = &mut left[gone..];
        }
    }
}

fn serve(socket: &OwnedFd, mut service: Service, stop: &AtomicBool) -> io::Result<()> {
    let mut messages = Messages::new();
    while !stop.load(Relaxed) {
        let count = match messages.receive(socket) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for n in 0..count {
            let (bytes, each) = messages.message(n);
            let (len, each) = match &mut service {
                Service::Echo => (bytes.len(), each),
                Service::Bid(bid) => (answer(bid, bytes, each), ANSWER_BYTES),
            };
            messages.answer(n, len, each);
        }
        messages.send(socket, count);
    }
    Ok(())
}

/// Answers in the place of requests, which are longer: each is read before an answer is written
/// over it. How many bytes.
fn answer(bid: &mut Bid, bytes: &mut [u8], each: usize) -> usize {
    let mut len = 0;
    for start in (0..bytes.len()).step_by(each) {
        let end = bytes.len().min(start + each);
        if let Ok(answer) = bid.answer(&bytes[start..end]) {
            bytes[len..len + ANSWER_BYTES].copy_from_slice(answer.as_bytes());
            len += ANSWER_BYTES;
        }
    }
    len
}
