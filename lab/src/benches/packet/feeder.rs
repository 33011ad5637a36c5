//! bpf/feed.bpf.c: BPF_PROG_TEST_RUN with a fresh packet every time.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject, ProgramInput};

use super::path::Ip;
use crate::{Error, Result};

/// Generated from bpf/feed.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/feed.skel.rs"));
}

/// Where [`Feeder::load`] keeps the programs' object.
pub(super) type Storage = MaybeUninit<OpenObject>;

pub(super) struct Feeder<'s> {
    skel: skeleton::FeedSkel<'s>,
}

#[derive(Clone, Copy)]
pub(super) struct Meal<'f> {
    pub(super) ip: Ip,
    /// As [`crate::benches::packet::path::frame::segment`] makes it.
    pub(super) frame: &'f [u8],
    /// Flows that take turns.
    pub(super) flows: u32,
    pub(super) packets: u32,
}

impl<'s> Feeder<'s> {
    pub(super) fn load(storage: &'s mut Storage) -> Result<Self> {
        let open = skeleton::FeedSkelBuilder::default().open(storage).map_err(Error::Feeder)?;
        Ok(Self { skel: open.load().map_err(Error::Feeder)? })
    }

    /// Nanoseconds per packet with a program that does nothing.
    pub(super) fn nothing(&mut self, meal: &Meal<'_>) -> Result<u64> {
        let nothing = self.skel.progs.nothing.as_fd().as_raw_fd();
        self.feed(nothing, meal)
    }

    /// Nanoseconds per packet with this program, which must be xdp.frags as the feeder is.
    pub(super) fn program(&mut self, program: BorrowedFd<'_>, meal: &Meal<'_>) -> Result<u64> {
        self.feed(program.as_raw_fd(), meal)
    }

    fn feed(&mut self, program: i32, meal: &Meal<'_>) -> Result<u64> {
        let maps = &mut self.skel.maps;
        let (slot, program) = (0u32.to_ne_bytes(), program.to_ne_bytes());
        maps.fed.update(&slot, &program, MapFlags::ANY).map_err(Error::Feeder)?;
        let data = maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
        for (to, from) in data.frame.iter_mut().zip(meal.frame.chunks_exact(8)) {
            *to = u64::from_ne_bytes(from.try_into().unwrap_or_default());
        }
        (data.flows, data.next) = (meal.flows, 0);
        let feed = match meal.ip {
            Ip::V4 => &self.skel.progs.feed_v4,
            Ip::V6 => &self.skel.progs.feed_v6,
        };
        let input = ProgramInput {
            data_in: Some(meal.frame),
            repeat: meal.packets,
            ..ProgramInput::default()
        };
        let output = feed.test_run(input).map_err(Error::Feeder)?;
        u64::try_from(output.duration.as_nanos()).map_err(|_| Error::NoVariables)
    }
}
