//! io_uring: receives that are under way in the kernel, many handed in and fetched by one system
//! call.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::{io, mem, ptr};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::benches::kernel_path::receive::{BYTES, Tally};

/// Receives under way at a time.
const DEPTH: u32 = 64;

/// Whether this kernel and its settings let us (`kernel.io_uring_disabled`).
pub(super) fn probe() -> io::Result<()> {
    IoUring::new(2).map(drop)
}

/// Receives until told to stop.
pub(super) fn receive(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Tally> {
    let mut ring = IoUring::new(DEPTH)?;
    // Left to the kernel for good: what is still under way when the ring is closed may be written
    // for a moment longer.
    let buffers: &'static mut [u8] = Box::leak(vec![0; DEPTH as usize * BYTES].into_boxed_slice());
    let base = buffers.as_mut_ptr();
    let start = |ring: &mut IoUring, slot: u64| {
        // SAFETY: a slot is below DEPTH, so within the buffers.
        let buffer = unsafe { base.add(slot as usize * BYTES) };
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), buffer, BYTES as u32).build();
        // SAFETY: the buffer lives for ever, and nobody else uses it while the kernel does; the
        // socket outlives the ring.
        unsafe { ring.submission().push(&entry.user_data(slot)) }.map_err(io::Error::other)
    };
    (0..u64::from(DEPTH)).try_for_each(|slot| start(&mut ring, slot))?;
    let mut tally = Tally::default();
    let mut done = Vec::new();
    while !stop.load(Relaxed) {
        tally.calls += 1;
        wait(&ring)?;
        done.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (slot, result) in done.drain(..) {
            match result {
                got if got >= 0 => tally.packets += 1,
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
            start(&mut ring, slot)?;
        }
    }
    cancel(&ring);
    // Completions that came before that.
    tally.packets += ring.completion().filter(|entry| entry.result() >= 0).count() as u64;
    Ok(tally)
}

/// Hands in what is new, until something is done or it is time to look whether to stop.
fn wait(ring: &IoUring) -> io::Result<()> {
    let patience = Timespec::new().nsec(100_000_000);
    match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&patience)) {
        Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other.map(drop),
    }
}

/// Cancels pending requests: they would hold the socket for a while after all is closed. Kernels
/// before 6.0 cannot.
fn cancel(ring: &IoUring) {
    let _ = ring.submitter().register_sync_cancel(None, CancelBuilder::any());
}

/// A datagram with its other end's address, and what the kernel is told of it on its way in and on
/// its way back.
struct Message {
    bytes: [u8; BYTES],
    address: libc::sockaddr_in,
    vectors: [libc::iovec; 2],
    received: libc::msghdr,
    answer: libc::msghdr,
}

impl Message {
    /// For good, as above.
    fn new() -> &'static mut Self {
        // SAFETY: integers, and pointers that may be null: all may be zero.
        let message: &'static mut Self = Box::leak(Box::new(unsafe { mem::zeroed() }));
        let vector = libc::iovec { iov_base: message.bytes.as_mut_ptr().cast(), iov_len: BYTES };
        message.vectors = [vector; 2];
        let [first, second] = &mut message.vectors;
        for (header, vector) in [(&mut message.received, first), (&mut message.answer, second)] {
            header.msg_name = ptr::from_mut(&mut message.address).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
            header.msg_iov = ptr::from_mut(vector);
            header.msg_iovlen = 1;
        }
        message
    }
}

/// Sends back what comes until told to stop. An answer and the next receive go in together, the one
/// after the other.
pub(super) fn answer(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Tally> {
    let mut ring = IoUring::new(4)?;
    let message: *mut Message = Message::new();
    let fd = Fd(socket.as_raw_fd());
    // SAFETY: leaked, so valid for ever; only addresses are taken.
    let (header, back) = unsafe { (&raw mut (*message).received, &raw const (*message).answer) };
    let receive = opcode::RecvMsg::new(fd, header).build();
    let linked = squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS;
    let send = opcode::SendMsg::new(fd, back).build().flags(linked);
    let push = |ring: &mut IoUring, entry: &squeue::Entry| {
        // SAFETY: what the entry points to lives for ever; the socket outlives the ring.
        unsafe { ring.submission().push(entry) }.map_err(io::Error::other)
    };
    push(&mut ring, &receive)?;
    let mut tally = Tally::default();
    while !stop.load(Relaxed) {
        tally.calls += 1;
        wait(&ring)?;
        let Some(entry) = ring.completion().next() else { continue };
        // That of a receive: answers speak up only when they fail, and then the receive that
        // follows has, too.
        let Ok(got) = usize::try_from(entry.result()) else {
            return Err(io::Error::from_raw_os_error(-entry.result()));
        };
        tally.packets += 1;
        // SAFETY: the receive is done and nothing is under way, so the message is ours alone.
        unsafe { (*message).vectors[1].iov_len = got };
        push(&mut ring, &send)?;
        push(&mut ring, &receive)?;
    }
    cancel(&ring);
    Ok(tally)
}
