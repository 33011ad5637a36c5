//! bpf/replay.bpf.c: any frames in turn, each fed to a program of its own, or all to one.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput, ProgramMut};

use super::frame::Frame;
use super::victim::Way;
use crate::{Error, Result};

/// Generated from bpf/replay.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/replay.skel.rs"));
}

/// Frames that are stored.
pub(super) const FRAMES: u32 = 65_536;
/// Bytes of each; HEAD in bpf/replay.bpf.c.
const HEAD: usize = 184;
/// Of a call.
const BATCH: usize = 8_192;

/// Where the programs' object is kept.
pub(super) type Storage = MaybeUninit<OpenObject>;

pub(super) struct Replay<'s>(skeleton::ReplaySkel<'s>);

impl<'s> Replay<'s> {
    pub(super) fn load(
        storage: &'s mut Storage,
        measured: &[OwnedFd],
        beside: BorrowedFd<'_>,
    ) -> Result<Self> {
        let open = skeleton::ReplaySkelBuilder::default().open(storage);
        let mut open = open.map_err(Error::Feeder)?;
        open.maps.frames.set_max_entries(FRAMES).map_err(Error::Feeder)?;
        let skel = open.load().map_err(Error::Feeder)?;
        let programs = measured.iter().map(OwnedFd::as_fd).chain([beside]);
        for (place, program) in programs.enumerate() {
            let (place, program) = (place as u32, program.as_raw_fd());
            let fed = &skel.maps.fed;
            fed.update(&place.to_ne_bytes(), &program.to_ne_bytes(), MapFlags::ANY)
                .map_err(Error::Feeder)?;
        }
        Ok(Self(skel))
    }

    /// Takes [`FRAMES`] frames in place of those before.
    pub(super) fn store(&mut self, frames: &[(Way, Frame)]) -> Result<()> {
        let numbers: Vec<u32> = (0..frames.len() as u32).collect();
        for (numbers, frames) in numbers.chunks(BATCH).zip(frames.chunks(BATCH)) {
            let keys: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            let values: Vec<u8> = frames.iter().flat_map(stored).collect();
            let (count, any) = (numbers.len() as u32, MapFlags::ANY);
            let map = &self.0.maps.frames;
            map.update_batch(&keys, &values, count, any, any).map_err(Error::Feeder)?;
        }
        let data = self.0.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
        (data.next, data.cycle) = (0, 0);
        Ok(())
    }

    /// Nanoseconds of a packet, on average of so many.
    pub(super) fn measured(&mut self, packets: u32) -> Result<f64> {
        self.begin()?;
        run(&mut self.0.progs.measured, packets)
    }

    /// The same of the program beside.
    pub(super) fn beside(&mut self, packets: u32) -> Result<f64> {
        self.begin()?;
        run(&mut self.0.progs.beside, packets)
    }

    fn begin(&mut self) -> Result<()> {
        self.0.maps.bss_data.as_mut().ok_or(Error::NoVariables)?.begin = 0;
        Ok(())
    }
}

fn run(program: &mut ProgramMut<'_>, packets: u32) -> Result<f64> {
    let input =
        ProgramInput { data_in: Some(&[0; 64]), repeat: packets, ..ProgramInput::default() };
    let output = program.test_run(input).map_err(Error::Feeder)?;
    Ok(output.duration.as_nanos() as f64)
}

/// struct stored.
fn stored((way, frame): &(Way, Frame)) -> Vec<u8> {
    let (port_at, check_at) = frame.port_and_check.unwrap_or_default();
    let words = [frame.bytes.len() as u16, port_at, check_at, *way as u16].map(u16::to_ne_bytes);
    let mut bytes = words.concat();
    bytes.extend(&frame.bytes[..frame.bytes.len().min(HEAD)]);
    bytes.resize(words.concat().len() + HEAD, 0);
    bytes
}
