//! bpf/live.bpf.c: packets out of the kernel itself, without a socket: the highest rate there is.
//! `ringway-lab gen --port xdp:IFACE`.
//!
//! Packets that count as sent were given to the driver. A veth takes none unless its other end has
//! an XDP program or GRO, and reports no error.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, OpenObject, ProgramInput};
use ringway_engine::stamp::{Clock, Stamp};

use super::Template;
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
/// Ends the call of a paced sender, and how often one looks whether it is time.
const INTERRUPT: libc::c_int = libc::SIGUSR2;
/// Frames a second that no sender reaches.
const FASTEST: f64 = 1e7;
const LOOK: Duration = Duration::from_millis(1);
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
    let mut storage = MaybeUninit::uninit();
    let template = generated.templates.first().ok_or(Error::NotLive)?;
    let one = Traffic { templates: vec![template.clone()], ..generated.clone() };
    let skel = load(&mut storage, &[(&one, ifindex)], since_1970(clock))?;
    let mut sender = Sender { skel, generated, control, clock };
    sender.send(template.frame())
}

/// The program, with the heads of the flows of one way, or of two in turn; templates take turns, too.
fn load<'s>(
    storage: &'s mut MaybeUninit<OpenObject>,
    ways: &[(&Traffic, u32)],
    since_1970: i64,
) -> Result<skeleton::LiveSkel<'s>> {
    let mut of_ways = Vec::with_capacity(ways.len());
    for (traffic, _) in ways {
        match &traffic.flows {
            Some(flows) if longest(traffic).len() <= LONGEST => {
                of_ways.push((&traffic.templates, flows.clone(), traffic.stream));
            }
            _ => return Err(Error::NotLive),
        }
    }
    let (templates, flows, _) = of_ways.first().ok_or(Error::NotLive)?;
    let first = templates.first().ok_or(Error::NotLive)?;
    let (stamp, checksum) = first.stamped().ok_or(Error::NotLive)?;
    let len = templates.iter().fold(HEAD, |len, template| len.min(template.frame().len()));
    let frame_len = longest(ways[0].0).len() as u32;
    let per_way = flows.count().min(u64::from(MOST_FLOWS)) as usize;
    let count = (per_way * templates.len() * ways.len()) as u32;
    let mut open = skeleton::LiveSkelBuilder::default().open(storage).map_err(Error::Live)?;
    open.maps.heads.set_max_entries(count).map_err(Error::Live)?;
    let mut skel = open.load().map_err(Error::Live)?;
    let mut head = [0; HEAD + 2];
    for number in 0..count {
        let turn = number as usize / ways.len();
        let (templates, flows, stream) = &mut of_ways[number as usize % ways.len()];
        // In the next turn of all flows each has the next size.
        let template = &templates[(turn + turn / per_way) % templates.len()];
        head[HEAD..].copy_from_slice(&(template.frame().len() as u16).to_ne_bytes());
        head[..len].copy_from_slice(&template.frame()[..len]);
        template.write(&mut head[..len], &flows.next(), &Stamp::new(*stream, 0, 0));
        let key = number.to_ne_bytes();
        skel.maps.heads.update(&key, &head, MapFlags::ANY).map_err(Error::Live)?;
    }
    let data = skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
    (data.flows, data.head_len, data.frame_len) = (count, len as u32, frame_len);
    (data.numbers_at, data.checksum_at) = (stamp as u32 + 6, checksum as u32);
    // Of the three it is UDP's header alone that ends with its checksum.
    data.no_zero = u32::from(stamp - checksum == 2);
    data.since_1970 = since_1970;
    for (to, (_, ifindex)) in data.ifindex.iter_mut().zip(ways) {
        *to = *ifindex;
    }
    skel.maps.data_data.as_mut().ok_or(Error::NoVariables)?.ways = ways.len() as u32;
    Ok(skel)
}

/// The longest of the frames that take turns.
fn longest(traffic: &Traffic) -> &[u8] {
    let frames = traffic.templates.iter().map(Template::frame);
    frames.max_by_key(|frame| frame.len()).unwrap_or_default()
}

/// Frames that are sent evenly, each at its own time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Frames a second; as fast as can be, if none.
    pub rate: Option<f64>,
    pub count: u64,
    /// It ends then, whatever is missing.
    pub most: Duration,
}

/// What was sent in a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
    pub frames: u64,
    /// CLOCK_MONOTONIC's nanoseconds.
    pub begin_ns: u64,
    /// From the first frame to the last.
    pub elapsed: Duration,
}

/// Sends phase after phase, by these interfaces of the calling thread's network namespace in turn.
/// It keeps a processor busy. The stamps' time is CLOCK_MONOTONIC's, of when a frame was to be sent:
/// a sender that is late must not make the way look shorter.
///
/// # Errors
/// Where the program cannot be loaded or run.
pub fn pace(ways: &[(&Traffic, u32)], phases: &[Phase]) -> Result<Vec<Paced>> {
    let mut storage = MaybeUninit::uninit();
    let mut skel = load(&mut storage, ways, 0)?;
    let frame = longest(ways.first().ok_or(Error::NotLive)?.0);
    phases.iter().map(|phase| paced(&mut skel, frame, phase)).collect()
}

fn paced(skel: &mut skeleton::LiveSkel<'_>, frame: &[u8], phase: &Phase) -> Result<Paced> {
    let data = skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
    data.interval = phase.rate.map_or(1, |rate| (1e9 * 1024.0 / rate) as u64).max(1);
    (data.first, data.count) = (data.sequence, phase.count);
    data.most_ns = phase.most.as_nanos() as u64;
    (data.begin_ns, data.end_ns, data.missed_ns) = (0, 0, 0);
    data.over = 0;
    // SAFETY: it is aligned, and mapped as long as `skel` is there; the program alone writes it, and
    // nobody else reads it meanwhile.
    let over = unsafe { AtomicU32::from_ptr(&raw mut data.over) };
    let rate = phase.rate.unwrap_or(FASTEST);
    let expected = phase.most.min(Duration::from_secs_f64(phase.count as f64 / rate));
    // One call, however long: between two of them pass tens of milliseconds.
    until(expected, || over.load(Relaxed) != 0, || run_program(skel, frame, u32::MAX))?;
    let data = skel.maps.bss_data.as_ref().ok_or(Error::NoVariables)?;
    Ok(Paced {
        frames: data.sequence - data.first,
        begin_ns: data.begin_ns,
        elapsed: Duration::from_nanos(data.end_ns.saturating_sub(data.begin_ns)),
    })
}

/// Interrupts what the calling thread does in one long call when it is over, for which one looks
/// shortly before that is `expected` first.
fn until(
    expected: Duration,
    over: impl Fn() -> bool + Sync,
    call: impl FnOnce() -> Result<()>,
) -> Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let done = AtomicBool::new(false);
    // SAFETY: the handler does nothing, so that it may run anywhere; a thread has always a number.
    let thread = unsafe {
        libc::signal(INTERRUPT, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t);
        libc::pthread_self()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(expected.saturating_sub(LOOK));
            while !done.load(Relaxed) {
                if over() {
                    // SAFETY: the thread is waiting for this one, at the end of the scope at the
                    // latest.
                    unsafe { libc::pthread_kill(thread, INTERRUPT) };
                }
                thread::sleep(LOOK);
            }
        });
        let called = call();
        done.store(true, Relaxed);
        called
    })
}

fn run_program(skel: &skeleton::LiveSkel<'_>, frame: &[u8], packets: u32) -> Result<()> {
    let input = ProgramInput {
        data_in: Some(frame),
        flags: LIVE_FRAMES,
        repeat: packets,
        ..ProgramInput::default()
    };
    match skel.progs.live.test_run(input) {
        // By a signal: what was sent is counted in any case.
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
        other => other.map(drop).map_err(Error::Live),
    }
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
                run_program(&self.skel, frame, packets as u32)?;
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
