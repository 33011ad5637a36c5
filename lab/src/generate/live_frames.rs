//! bpf/live.bpf.c: packets out of the kernel itself, without a socket: the highest rate there is.
//! `ringway-lab gen --port xdp:IFACE`.
//!
//! Packets that count as sent were given to the driver. A veth takes none unless its other end has
//! an XDP program or GRO, and reports no error.

use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, ProgramInput};
use ringway_engine::stamp::{Clock, Stamp};

use super::generator::{GeneratorControl, Rate, SendProgress, Traffic};
use super::pace::Pace;
use crate::{Error, Result};

/// Generated from bpf/live.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/live.skel.rs"));
}

/// Flows that are prepared; of more, the first take turns.
pub const MOST_FLOWS: u32 = 65_536;
/// Bytes of a frame, without its checksum: a page, less what the kernel puts there
/// (net/bpf/test_run.c).
pub const LONGEST: usize = 3_000;

/// HEAD of bpf/live.bpf.c.
const HEAD: usize = 96;
/// BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h).
const LIVE_FRAMES: u32 = 1 << 1;
/// Packets of a call where there is no rate: some ten milliseconds' worth.
const CALL: u64 = 32_768;
/// Calls a second at a rate, at most: each costs tens of microseconds, or a grace period of RCU
/// (25 ms were seen on 6.18), which is caught up with.
const CALLS: u64 = 500;
const CATCH_UP: Duration = Duration::from_millis(100);

/// Sends until it is told to stop, or has sent what it should. Of several templates the first
/// alone: a call has frames of one size.
///
/// # Errors
/// Where the program cannot be loaded or run.
pub fn run(
    generated: &Traffic,
    ifindex: u32,
    clock: Clock,
    control: &GeneratorControl,
) -> Result<()> {
    let (Some(template), Some(mut flows)) = (generated.templates.first(), generated.flows.clone())
    else {
        return Err(Error::NotLive);
    };
    let (Some((stamp, checksum)), true) = (template.stamped(), template.frame().len() <= LONGEST)
    else {
        return Err(Error::NotLive);
    };
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::LiveSkelBuilder::default().open(&mut storage).map_err(Error::Live)?;
    let count = flows.count().min(MOST_FLOWS.into()) as u32;
    open.maps.heads.set_max_entries(count).map_err(Error::Live)?;
    let mut skel = open.load().map_err(Error::Live)?;

    let mut head = [0; HEAD];
    let len = HEAD.min(template.frame().len());
    for number in 0..count {
        head[..len].copy_from_slice(&template.frame()[..len]);
        template.write(&mut head[..len], &flows.next(), &Stamp::new(generated.stream, 0, 0));
        let key = number.to_ne_bytes();
        skel.maps.heads.update(&key, &head, MapFlags::ANY).map_err(Error::Live)?;
    }
    let data = skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
    (data.flows, data.head_len) = (count, len as u32);
    (data.numbers_at, data.checksum_at) = (stamp as u32 + 6, checksum as u32);
    // Of the three it is UDP's header alone that ends with its checksum.
    data.no_zero = u32::from(stamp - checksum == 2);
    (data.ifindex, data.since_1970) = (ifindex, since_1970(clock));

    let mut sender = Sender { skel, generated, control, clock };
    sender.send(template.frame())
}

/// From 1970 to the beginning of the kernel's clock, CLOCK_MONOTONIC.
fn since_1970(clock: Clock) -> i64 {
    let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    clock.now() as i64 - (monotonic.tv_sec * 1_000_000_000 + monotonic.tv_nsec)
}

struct Sender<'a> {
    skel: skeleton::LiveSkel<'a>,
    generated: &'a Traffic,
    control: &'a GeneratorControl,
    clock: Clock,
}

impl Sender<'_> {
    fn send(&mut self, frame: &[u8]) -> Result<()> {
        let units = self.generated.rate.map_or(0, |rate| rate.units(frame.len()));
        let new = |rate: Rate| Pace::catching_up(rate.per_second(), units, CATCH_UP);
        let mut pace = self.generated.rate.map(new);
        let (start, mut made) = (self.clock.now(), SendProgress::default());
        let per_second = self.generated.rate.map_or(0, |rate| rate.per_second() / units.max(1));
        let enough = (per_second / CALLS).max(1);
        let last = self.generated.duration.unwrap_or(Duration::MAX).as_nanos();
        while !self.control.is_stopped() {
            let elapsed = self.clock.now() - start;
            let left = self.generated.count.map_or(u64::MAX, |count| count - made.packets);
            if left == 0 || u128::from(elapsed) >= last {
                break;
            }
            let packets = match &mut pace {
                Some(pace) => {
                    pace.advance(elapsed);
                    made.intended_units = pace.intended();
                    due(pace, units, enough.min(left), left)
                }
                None => left.min(CALL),
            };
            if packets > 0 {
                self.call(frame, packets as u32)?;
            }
            let sent = self.sent()? - made.packets;
            made.packets += sent;
            made.bytes += sent * frame.len() as u64;
            made.units += sent * units;
            made.ns = if sent == 0 { elapsed } else { self.clock.now() - start };
            if let Some(pace) = pace.as_mut().filter(|_| sent > 0) {
                pace.spend(sent * units);
            }
            self.control.set_made(made);
            if packets == 0 {
                let wait = pace.as_ref().map_or(Duration::ZERO, |pace| pace.wait(enough * units));
                thread::sleep(wait.clamp(Duration::from_micros(500), PATIENCE));
            }
        }
        made.finished = true;
        self.control.set_made(made);
        Ok(())
    }

    fn call(&mut self, frame: &[u8], packets: u32) -> Result<()> {
        let input = ProgramInput {
            data_in: Some(frame),
            flags: LIVE_FRAMES,
            repeat: packets,
            ..ProgramInput::default()
        };
        match self.skel.progs.live.test_run(input) {
            // By a signal: what was sent is counted in any case.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            other => other.map(drop).map_err(Error::Live),
        }
    }

    fn sent(&self) -> Result<u64> {
        Ok(self.skel.maps.bss_data.as_ref().ok_or(Error::NoVariables)?.sequence)
    }
}

/// How long nobody hears of the end at most.
const PATIENCE: Duration = Duration::from_millis(10);

/// Packets of the next call: as many as are due, but not yet where they are too few for one.
fn due(pace: &Pace, units: u64, enough: u64, left: u64) -> u64 {
    let most = left.min(CALL);
    let allowed = pace.allowance() / units.max(1);
    if allowed < enough { 0 } else { allowed.min(most) }
}
