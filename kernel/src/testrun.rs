//! Feeds frames to the packet path without a wire: BPF_PROG_TEST_RUN of a slot's root program.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys as sys;
use ringway_abi::Verdict;

use crate::{Error, Result};

/// Room for what a program may add in front of a frame or behind it.
const GROWTH: usize = 512;

/// One frame to feed, or the same one many times.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header on; at least 14 bytes.
    pub data: &'a [u8],
    /// Device and receive queue that it pretends to come in by; the device must exist in this
    /// network namespace. Default: the loopback device.
    pub from: Option<(u32, u32)>,
    /// How often. Above 1 the program meets the frame as it left it the time before.
    pub repeat: u32,
}

impl<'a> Frame<'a> {
    /// The frame, once, from the loopback device.
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, from: None, repeat: 1 }
    }
}

/// The fate of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's verdict. A redirect is only announced, nothing is sent.
    pub verdict: Verdict,
    /// The frame as the program left it.
    pub data: Vec<u8>,
    /// Time per run, on average.
    pub duration: Duration,
}

/// Runs a program on a frame.
pub(crate) fn run(program: BorrowedFd<'_>, frame: Frame<'_>) -> Result<TestRun> {
    let (returned, data, duration) = run_any(program, frame)?;
    let verdict = Verdict::try_from(returned).map_err(|unknown| Error::Content {
        map: "test run".to_owned(),
        detail: unknown.to_string(),
    })?;
    Ok(TestRun { verdict, data, duration })
}

/// The same, whatever it returns: that, the frame as it left it, and its time.
pub(crate) fn run_any(
    program: BorrowedFd<'_>,
    frame: Frame<'_>,
) -> Result<(u32, Vec<u8>, Duration)> {
    let mut data = vec![0; frame.data.len() + GROWTH];
    let (ifindex, queue) = frame.from.unwrap_or_default();
    let context = sys::xdp_md {
        data_end: frame.data.len() as u32,
        ingress_ifindex: ifindex,
        rx_queue_index: queue,
        ..Default::default()
    };
    let mut opts = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: frame.data.as_ptr().cast(),
        data_size_in: frame.data.len() as u32,
        data_out: data.as_mut_ptr().cast(),
        data_size_out: data.len() as u32,
        repeat: i32::try_from(frame.repeat).unwrap_or(i32::MAX),
        ..Default::default()
    };
    if frame.from.is_some() {
        opts.ctx_in = (&raw const context).cast();
        opts.ctx_size_in = size_of::<sys::xdp_md>() as u32;
    }
    // SAFETY: every pointer in `opts` is valid for the size beside it and outlives the call;
    // the kernel writes only to `data` and to `opts` itself.
    let ret = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
    if ret < 0 {
        return Err(Error::TestRun { source: io::Error::from_raw_os_error(-ret) });
    }
    data.truncate(opts.data_size_out as usize);
    Ok((opts.retval, data, Duration::from_nanos(opts.duration.into())))
}
