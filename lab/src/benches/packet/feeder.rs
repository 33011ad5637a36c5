//! bpf/feed.bpf.c: BPF_PROG_TEST_RUN with a fresh packet every time.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject, ProgramInput};
use ringway_abi::IntoBytes;

use super::path::{Clients, Ip};
use crate::{Error, Result};

/// Generated from bpf/feed.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/feed.skel.rs"));
}

/// Where [`Feeder::load`] keeps the programs' object.
pub(in crate::benches) type Storage = MaybeUninit<OpenObject>;

pub(in crate::benches) struct Feeder<'s> {
    skel: skeleton::FeedSkel<'s>,
}

#[derive(Clone, Copy)]
pub(in crate::benches) struct Meal<'f> {
    pub(in crate::benches) ip: Ip,
    /// As [`crate::benches::packet::path::frame`] makes it.
    pub(in crate::benches) frame: &'f [u8],
    pub(in crate::benches) clients: Clients,
    /// Of a reply: where those of each flow come from and go to.
    pub(in crate::benches) replies: Option<&'f [Reply]>,
    /// Flows that take turns.
    pub(in crate::benches) flows: u32,
    pub(in crate::benches) packets: u32,
}

/// The ends of a flow as its backend sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::benches) struct Reply {
    /// Last bytes of the backend's address and of ours.
    pub(in crate::benches) ends: (u8, u8),
    /// Ours.
    pub(in crate::benches) port: u16,
}

impl Reply {
    /// As feed.bpf.c reads it.
    fn word(&self) -> u32 {
        u32::from(self.ends.0) << 24 | u32::from(self.ends.1) << 16 | u32::from(self.port)
    }
}

/// So many flows can have replies.
pub(in crate::benches) const MOST_REPLIES: u32 = 1 << 20;

impl<'s> Feeder<'s> {
    pub(in crate::benches) fn load(storage: &'s mut Storage) -> Result<Self> {
        let mut open = skeleton::FeedSkelBuilder::default().open(storage).map_err(Error::Feeder)?;
        open.maps.replies.set_max_entries(MOST_REPLIES).map_err(Error::Feeder)?;
        Ok(Self { skel: open.load().map_err(Error::Feeder)? })
    }

    /// Nanoseconds per packet with a program that does nothing.
    pub(in crate::benches) fn nothing(&mut self, meal: &Meal<'_>) -> Result<u64> {
        let nothing = self.skel.progs.nothing.as_fd().as_raw_fd();
        self.feed(nothing, meal)
    }

    /// Nanoseconds per packet with this program, which must be xdp.frags as the feeder is.
    pub(in crate::benches) fn program(
        &mut self,
        program: BorrowedFd<'_>,
        meal: &Meal<'_>,
    ) -> Result<u64> {
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
        if let Some(replies) = meal.replies {
            let numbers: Vec<u32> = (0..replies.len() as u32).collect();
            let words: Vec<u32> = replies.iter().map(Reply::word).collect();
            let (count, any) = (numbers.len() as u32, MapFlags::ANY);
            maps.replies
                .update_batch(numbers.as_bytes(), words.as_bytes(), count, any, any)
                .map_err(Error::Feeder)?;
        }
        let progs = &self.skel.progs;
        let feed = match (meal.ip, meal.replies) {
            (Ip::V4, None) => &progs.feed_v4,
            (Ip::V6, None) if meal.clients == Clients::Networks => &progs.feed_networks_v6,
            (Ip::V6, None) => &progs.feed_v6,
            (Ip::V4, Some(_)) => &progs.feed_reply_v4,
            (Ip::V6, Some(_)) => &progs.feed_reply_v6,
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
