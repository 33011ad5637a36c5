//! Ways of receiving datagrams by a socket.

pub(crate) mod uring;

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::net::sockopt;

use super::Style;
use crate::benches::tcp::socket::set_option;

/// Room for a datagram.
pub(super) const BYTES: usize = 2048;
/// Datagrams of a recvmmsg.
const MESSAGES: usize = 64;
/// Of the socket, above the limit that others have: what a busy machine leaves lying is not lost.
const BUFFER: usize = 32 << 20;
/// One looks so often whether to stop.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the kernel polls the device before it sleeps, in microseconds.
const BUSY_US: i32 = 50;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub packets: u64,
    /// System calls.
    pub calls: u64,
}

/// Makes a socket ready for a style.
pub(crate) fn prepare(style: Style, socket: &UdpSocket) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, BUFFER)?;
    match style {
        Style::Epoll | Style::Spin => socket.set_nonblocking(true),
        Style::BusyPoll => {
            socket.set_read_timeout(Some(PAUSE))?;
            set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, BUSY_US)
        }
        Style::IoUring => uring::probe(),
        _ => socket.set_read_timeout(Some(PAUSE)),
    }
}

/// Receives until told to stop.
pub(crate) fn receive(style: Style, socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Tally> {
    match style {
        Style::Epoll => by_epoll(socket, stop, false),
        Style::Recvmmsg => by_recvmmsg(socket, stop),
        Style::IoUring => uring::receive(socket, stop),
        _ => one_by_one(socket, stop, false),
    }
}

/// The same, and sends each back.
pub(super) fn answer(style: Style, socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Tally> {
    match style {
        Style::Epoll => by_epoll(socket, stop, true),
        Style::IoUring => uring::answer(socket, stop),
        _ => one_by_one(socket, stop, true),
    }
}

/// Whether it is no error: nothing came, or a signal did.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Waits in the call, or spins where the socket does not block.
fn one_by_one(socket: &UdpSocket, stop: &AtomicBool, answer: bool) -> io::Result<Tally> {
    let mut tally = Tally::default();
    let mut bytes = [0; BYTES];
    while !stop.load(Relaxed) {
        take(socket, &mut bytes, answer, &mut tally)?;
    }
    Ok(tally)
}

/// One datagram, if there is one.
fn take(socket: &UdpSocket, bytes: &mut [u8], answer: bool, tally: &mut Tally) -> io::Result<bool> {
    tally.calls += 1;
    match socket.recv_from(bytes) {
        Ok((len, from)) => {
            tally.packets += 1;
            if answer {
                tally.calls += 1;
                socket.send_to(&bytes[..len], from)?;
            }
            Ok(true)
        }
        Err(error) if is_nothing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for readiness, then takes all there is.
fn by_epoll(socket: &UdpSocket, stop: &AtomicBool, answer: bool) -> io::Result<Tally> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let time = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
    let mut tally = Tally::default();
    let mut bytes = [0; BYTES];
    let mut events = Vec::with_capacity(1);
    while !stop.load(Relaxed) {
        tally.calls += 1;
        events.clear();
        rustix::io::retry_on_intr(|| {
            epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&time))
        })?;
        while !events.is_empty() && take(socket, &mut bytes, answer, &mut tally)? {}
    }
    Ok(tally)
}

/// Waits for one datagram, and takes what else is there by the same call.
fn by_recvmmsg(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Tally> {
    let mut tally = Tally::default();
    let mut bytes = vec![[0_u8; BYTES]; MESSAGES];
    let vector = |bytes: &mut [u8; BYTES]| libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: BYTES,
    };
    let mut vectors: Vec<libc::iovec> = bytes.iter_mut().map(vector).collect();
    let header = |vector: &mut libc::iovec| {
        // SAFETY: integers, and pointers that may be null: all may be zero.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_iov = ptr::from_mut(vector);
        header.msg_hdr.msg_iovlen = 1;
        header
    };
    let mut headers: Vec<libc::mmsghdr> = vectors.iter_mut().map(header).collect();
    while !stop.load(Relaxed) {
        tally.calls += 1;
        // SAFETY: each header points to one vector, each vector to as many bytes as it says; all
        // outlive the call.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                MESSAGES as u32,
                libc::MSG_WAITFORONE as _,
                ptr::null_mut(),
            )
        };
        match u64::try_from(got) {
            Ok(got) => tally.packets += got,
            Err(_) => match io::Error::last_os_error() {
                error if is_nothing(&error) => {}
                error => return Err(error),
            },
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    use ringway_testnet::wait_until;
    use rustix::io::ioctl_fionread;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const RECEIVE: [Style; 5] =
        [Style::Blocking, Style::Epoll, Style::Recvmmsg, Style::Spin, Style::IoUring];

    /// A socket for each style that this machine has; none without root.
    fn prepared(test: &str, styles: &[Style]) -> Vec<(Style, UdpSocket)> {
        let root = ringway_testnet::root_or_skip(&format!("kernel_path::receive::{test}"));
        let styles = styles.iter().filter(|_| root).map(|style| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            prepare(*style, &socket).ok()?;
            Some((*style, socket))
        });
        styles.flatten().collect()
    }

    #[test]
    fn nothing_is_lost() {
        for (style, socket) in prepared("nothing_is_lost", &RECEIVE) {
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.connect(socket.local_addr().unwrap()).unwrap();
            (0..100).for_each(|_| assert_eq!(sender.send(&[1; 64]).unwrap(), 64));
            let stop = AtomicBool::new(false);
            let tally = thread::scope(|scope| {
                let receiver = scope.spawn(|| receive(style, &socket, &stop));
                let taken = wait_until("all to be taken", SOON, || {
                    // Bytes of the next datagram: none waits any more.
                    ioctl_fionread(&socket).unwrap() == 0
                });
                stop.store(true, Relaxed);
                taken.unwrap();
                receiver.join().unwrap().unwrap()
            });
            assert_eq!(tally.packets, 100, "{style}");
            assert!(tally.calls > 0, "{style}");
        }
    }

    /// A signal that comes while a style waits ends nothing.
    #[test]
    fn signals_are_no_errors() {
        use std::os::unix::thread::JoinHandleExt as _;

        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, nothing as *const () as libc::sighandler_t) };
        for (style, socket) in prepared("signals_are_no_errors", &RECEIVE) {
            let (socket, stop) = (Arc::new(socket), Arc::new(AtomicBool::new(false)));
            let receiver = thread::spawn({
                let (socket, stop) = (Arc::clone(&socket), Arc::clone(&stop));
                move || receive(style, &socket, &stop)
            });
            // Two waits' time, so that some signals find it in the call.
            let until = Instant::now() + 2 * PAUSE;
            while Instant::now() < until && !receiver.is_finished() {
                // SAFETY: the thread is joined below, so its handle is valid.
                unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGUSR2) };
                thread::sleep(PAUSE / 20);
            }
            stop.store(true, Relaxed);
            let tally = receiver.join().unwrap();
            assert!(tally.is_ok(), "{style}: {tally:?}");
        }
    }

    /// Every style that answers sends back what has come, to whom it came from.
    #[test]
    fn what_is_asked_is_answered() {
        for (style, socket) in prepared("what_is_asked_is_answered", &Style::ANSWER) {
            let clients = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
            let stop = AtomicBool::new(false);
            let tally = thread::scope(|scope| {
                let receiver = scope.spawn(|| answer(style, &socket, &stop));
                let mut answers = Vec::new();
                for n in 0..20_u8 {
                    let client = &clients[usize::from(n % 2)];
                    client.set_read_timeout(Some(SOON)).unwrap();
                    client
                        .send_to(&vec![n; usize::from(n) + 1], socket.local_addr().unwrap())
                        .unwrap();
                    let mut bytes = [0; 64];
                    answers.push(client.recv(&mut bytes).map(|len| bytes[..len].to_vec()));
                }
                stop.store(true, Relaxed);
                for (n, answer) in (0..20_u8).zip(answers) {
                    assert_eq!(answer.unwrap(), vec![n; usize::from(n) + 1], "{style}");
                }
                receiver.join().unwrap().unwrap()
            });
            assert_eq!(tally.packets, 20, "{style}");
        }
    }
}
