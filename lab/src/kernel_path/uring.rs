//! io_uring: receives that are under way in the kernel, many handed in and fetched by one system call.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use super::receive::{BYTES, Tally};

/// Receives under way at a time.
const DEPTH: u32 = 64;

/// Whether this kernel and its settings let us (`kernel.io_uring_disabled`).
pub(super) fn probe() -> io::Result<()> {
    IoUring::new(2).map(drop)
}

/// Receives until told to stop.
pub(super) fn receive(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Tally> {
    let mut ring = IoUring::new(DEPTH)?;
    // Left to the kernel for good: what is still under way when the ring is closed may be written for a moment longer.
    let buffers: &'static mut [u8] = Box::leak(vec![0; DEPTH as usize * BYTES].into_boxed_slice());
    let base = buffers.as_mut_ptr();
    let start = |ring: &mut IoUring, slot: u64| {
        // SAFETY: a slot is below DEPTH, so within the buffers.
        let buffer = unsafe { base.add(slot as usize * BYTES) };
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), buffer, BYTES as u32).build();
        // SAFETY: the buffer lives for ever, and nobody else uses it while the kernel does; the socket outlives the ring.
        unsafe { ring.submission().push(&entry.user_data(slot)) }.map_err(io::Error::other)
    };
    (0..u64::from(DEPTH)).try_for_each(|slot| start(&mut ring, slot))?;
    let patience = Timespec::new().nsec(100_000_000);
    let mut tally = Tally::default();
    let mut done = Vec::new();
    while !stop.load(Relaxed) {
        tally.calls += 1;
        match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&patience)) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        done.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (slot, result) in done.drain(..) {
            match result {
                got if got >= 0 => tally.packets += 1,
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
            start(&mut ring, slot)?;
        }
    }
    // Else they hold the socket for a while after all is closed. Kernels before 6.0 cannot.
    let _ = ring.submitter().register_sync_cancel(None, CancelBuilder::any());
    Ok(tally)
}
