//! bpf/syn.bpf.c: bare answers to SYNs, and counters of what arrives.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject};

use super::super::flood::{FROM, FROM_BITS};
use super::super::scenarios::TARGET;
use super::Answerer;
use crate::{Error, Result};

/// Generated from bpf/syn.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/syn.skel.rs"));
}

/// Where the programs' object is kept.
pub(super) type Storage = MaybeUninit<OpenObject>;

pub(super) struct Programs<'s> {
    skel: skeleton::SynSkel<'s>,
}

/// What has arrived so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Answers to the flood, where it comes from.
    pub(super) answers: u64,
    /// SYNs, at the backend.
    pub(super) syns: u64,
}

impl<'s> Programs<'s> {
    pub(super) fn load(storage: &'s mut Storage) -> Result<Self> {
        let open = skeleton::SynSkelBuilder::default().open(storage).map_err(Error::Feeder)?;
        let mut skel = open.load().map_err(Error::Feeder)?;
        let data = skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
        data.flood_from = FROM.to_bits().to_be();
        data.flood_mask = (u32::MAX << (32 - u32::from(FROM_BITS))).to_be();
        data.flood_port = TARGET.tcp.to_be();
        Ok(Self { skel })
    }

    /// The bare program that this is.
    pub(super) fn of(&self, answerer: Answerer) -> Option<BorrowedFd<'_>> {
        match answerer {
            Answerer::BareAnswer => Some(self.skel.progs.answer.as_fd()),
            Answerer::BareCookie => Some(self.skel.progs.cookie.as_fd()),
            Answerer::BareRedirect => Some(self.skel.progs.redirected.as_fd()),
            _ => None,
        }
    }

    /// Takes answers to the flood.
    pub(super) fn answers(&self) -> BorrowedFd<'_> {
        self.skel.progs.answers.as_fd()
    }

    /// Counts SYNs.
    pub(super) fn syns(&self) -> BorrowedFd<'_> {
        self.skel.progs.syns.as_fd()
    }

    pub(super) fn arrived(&self) -> Result<Arrived> {
        let count = |place: u32| -> Result<u64> {
            let counts = &self.skel.maps.counts;
            let by_cpu = counts.lookup_percpu(&place.to_ne_bytes(), MapFlags::ANY);
            let by_cpu = by_cpu.map_err(Error::Feeder)?.unwrap_or_default();
            let word = |bytes: &Vec<u8>| bytes[..].try_into().map_or(0, u64::from_ne_bytes);
            Ok(by_cpu.iter().map(word).sum())
        };
        Ok(Arrived { answers: count(0)?, syns: count(1)? })
    }
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ProgramInput;
    use ringway_testnet::root_or_skip;
    use ringway_wire::{Frame, Header as _, Ip as IpHeader, Tcp};

    use super::*;
    use crate::benches::packet::path::{Clients, Ip, frame};

    /// XDP_TX (linux/bpf.h).
    const TX: u32 = 3;

    #[test]
    fn bare_answers_are_right() {
        if !root_or_skip("syn::bare_answers_are_right") {
            return;
        }
        let mut storage = Storage::uninit();
        let programs = Programs::load(&mut storage).unwrap();
        let progs = &programs.skel.progs;
        for (ip, program) in
            Ip::ALL.into_iter().flat_map(|ip| [(ip, &progs.answer), (ip, &progs.cookie)])
        {
            let syn = frame::syn(Clients::OneNetwork, frame::service(ip));
            let mut answer = syn.clone();
            let input = ProgramInput {
                data_in: Some(&syn),
                data_out: Some(&mut answer),
                ..ProgramInput::default()
            };
            assert_eq!(program.test_run(input).unwrap().return_value, TX);
            assert_eq!(answer[..12], [&syn[6..12], &syn[..6]].concat());
            let packet = IpHeader::parse(Frame::parse(&answer[..]).unwrap().payload).unwrap();
            let tcp = Tcp::parse(packet.payload).unwrap();
            assert!(tcp.checksum_is_right(packet.pseudo()), "{ip:?}");
            assert_eq!((&packet.payload[..4], packet.payload[13]), (&[0, 80, 0, 0][..], 0x12));
            assert_eq!(packet.payload[8..12], 2_u32.to_be_bytes(), "its sequence number and 1");
        }
    }
}
