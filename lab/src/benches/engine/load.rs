//! bpf/load.bpf.c: packets from the kernel, at a pace, and their end.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Map, MapCore as _, MapFlags, OpenObject, ProgramInput};
use ringway_kernel::{XdpLink, XdpMode};
use ringway_testnet::Link;

use crate::harness::median::percentile;
use crate::{Error, Result};

/// Generated from bpf/load.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/load.skel.rs"));
}

/// Packets of one run in the kernel; between two of them one sees whether time is up.
const RUN: u32 = 1 << 16;
/// linux/bpf.h.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// Of UDP over IPv4 without options: where the checksum is.
const CHECKSUM: usize = 14 + 20 + 6;
/// In the map `packets`.
const SENT: u32 = 0;
const ARRIVED: u32 = 1;
/// In the map `times`.
const TIMES: u32 = 10_001;

/// Sends copies of a frame, with a time of its own in each, by an interface of the calling thread's
/// network namespace, `rate` a second or as many as can be, until `over`, which is told for how
/// long. They are of so many clients in turn, by their source port, which is 0 in the frame. How
/// many were sent.
pub(super) fn send(
    by: &Link,
    frame: &[u8],
    clients: u16,
    rate: Option<u64>,
    over: impl Fn(Duration) -> bool,
) -> Result<u64> {
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::LoadSkelBuilder::default().open(&mut storage).map_err(Error::Load)?;
    let data = open.maps.rodata_data.as_mut().ok_or(Error::NoVariables)?;
    data.towards = by.ifindex;
    data.clients = clients.into();
    data.interval_ns = rate.map_or(0, |rate| 1_000_000_000 / rate.max(1));
    let sum = frame.get(CHECKSUM..CHECKSUM + 2).and_then(|bytes| bytes.try_into().ok());
    // Its time and source port are 0, so that they add nothing.
    data.base_sum = u32::from(!sum.map_or(0, u16::from_ne_bytes));
    let loaded = open.load().map_err(Error::Load)?;
    let began = Instant::now();
    while !over(began.elapsed()) {
        let input = ProgramInput {
            data_in: Some(frame),
            repeat: RUN,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            ..ProgramInput::default()
        };
        loaded.progs.load.test_run(input).map_err(Error::Load)?;
    }
    count(&loaded.maps.packets, SENT)
}

fn count(map: &Map<'_>, index: u32) -> Result<u64> {
    let value = map.lookup(&index.to_ne_bytes(), MapFlags::ANY).map_err(Error::Load)?;
    let value = value.and_then(|bytes| bytes.try_into().ok());
    value.map(u64::from_ne_bytes).ok_or(Error::NoVariables)
}

/// The program at the end of an interface.
pub(super) struct Arrivals<'s> {
    skel: skeleton::LoadSkel<'s>,
    _attached: XdpLink,
}

/// Where [`Arrivals::at`] keeps the programs' object.
pub(super) type Storage = MaybeUninit<OpenObject>;

impl<'s> Arrivals<'s> {
    /// Ends what arrives at this interface; `timed`, it looks how long that took.
    pub(super) fn at(storage: &'s mut Storage, link: &Link, timed: bool) -> Result<Self> {
        let mut open = skeleton::LoadSkelBuilder::default().open(storage).map_err(Error::Load)?;
        open.maps.rodata_data.as_mut().ok_or(Error::NoVariables)?.timed = timed.into();
        let skel = open.load().map_err(Error::Load)?;
        let program = skel.progs.arrived.as_fd();
        let attach = || XdpLink::attach(program, link.ifindex, XdpMode::Native);
        let _attached = link.namespace.run(attach)?.map_err(|error| Error::Load(error.into()))?;
        Ok(Self { skel, _attached })
    }

    pub(super) fn packets(&self) -> Result<u64> {
        count(&self.skel.maps.packets, ARRIVED)
    }

    /// Microseconds that 99 of 100 took at most; none where there were none.
    pub(super) fn p99_us(&self) -> Result<Option<u64>> {
        let times = &self.skel.maps.times;
        let time = |us| Ok((u64::from(us), count(times, us)?));
        let times: Result<Vec<_>> = (0..TIMES).map(time).collect();
        Ok(percentile(&times?, 99))
    }
}
