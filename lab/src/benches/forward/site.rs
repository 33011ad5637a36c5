//! The tester and the device between its two interfaces, and one trial.
//!
//! ```text
//!   sender --> t0 ==== f0 --> device --> f1 ==== t1 --> counted
//! counted <-- t0 ==== f0 <-- device <-- f1 ==== t1 <-- sender       both ways, in turn
//!   sender --> t0 ============================ t1 --> counted       looped
//! ```
//! Interfaces of the machine may be in the places of t0 and t1; then the device is outside.
//! The sender has the first processor. Where the kernel forwards, it does so in threads on the last
//! one; where a program does, that is where it is.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use ringway_kernel::XdpLink;
use ringway_testnet::{End, Namespace, VethOptions, enable_napi, veth, wait_for};
use ringway_wire::Mac;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::latency::Histogram;
use super::losses::Losses;
use super::outside;
use super::port::Port;
use super::program::{HIGHEST, Program};
use super::road::{Road, network};
use super::size::Size;
use super::tune::Setting;
use crate::generate::live_frames::{self, Paced, Phase};
use crate::generate::{Flows, Recipe, Traffic, Transport};
use crate::harness::cpu::{Cpus, pin};
use crate::search::Trial;
use crate::{Error, Result};

/// Generated from bpf/arrive.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/arrive.skel.rs"));
}

/// For the first frames to come through.
const PATIENCE: Duration = Duration::from_secs(20);
/// Trials whose frames are told apart: the stream's number but for the way.
const TRIALS: u32 = 1 << 15;
/// A sender that is still at work when this share of the time is over gives up.
const ENOUGH: f64 = 1.01;

/// Where a [`Site`] keeps its programs' object.
pub(super) type Storage = MaybeUninit<OpenObject>;

/// The shape of trials.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub size: Size,
    pub ipv6: bool,
    /// 1, or 2 for both at once.
    pub ways: usize,
    /// After the last frame was sent, for those on their way (RFC 2544, section 23).
    pub stragglers: Duration,
    /// Before the next trial.
    pub settle: Duration,
}

pub(super) struct Site<'s> {
    shape: Shape,
    cpus: Cpus,
    /// t0, t1.
    ends: [Port; 2],
    recipes: Vec<Recipe>,
    program: Option<Program>,
    looped: bool,
    _device: Option<Namespace>,
    arrivals: skeleton::ArriveSkel<'s>,
    _attached: Vec<XdpLink>,
    trial: u32,
}

/// What is between the tester's two interfaces.
#[derive(Clone, Copy)]
pub(super) enum Between<'a> {
    /// They are each other's ends.
    Nothing,
    /// Its program has this setting, if any.
    Road(Road, Option<Setting>),
    /// They are the machine's.
    Outside(&'a [Port; 2]),
}

/// A trial, and what else was counted.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub trial: Trial,
    /// By the tester alone, without a device.
    pub looped: bool,
    pub duplicates: u64,
    pub reordered: u64,
    pub latency: Histogram,
    /// The longest time that one way had no frame.
    pub gap: Duration,
    pub losses: Losses,
}

impl<'s> Site<'s> {
    /// What forwards is there, and has frames go through.
    pub(super) fn new(
        storage: &'s mut Storage,
        between: Between<'_>,
        shape: Shape,
        cpus: Cpus,
        ringway: &std::path::Path,
    ) -> Result<Self> {
        let t = |tester: &Namespace, side: usize| End::new(tester, &format!("t{side}"));
        let options = VethOptions::default();
        let (ends, macs, device) = match between {
            Between::Outside(ports) => (ports.clone(), [ports[1].mac, ports[0].mac], None),
            Between::Nothing => {
                let tester = Namespace::new("tester")?;
                let (t0, t1) = veth(&t(&tester, 0), &t(&tester, 1), &options)?;
                let macs = [t1.mac, t0.mac];
                ([t0, t1].map(Port::from), macs, None)
            }
            Between::Road(road, setting) => {
                let (tester, device) = (Namespace::new("tester")?, Namespace::new("device")?);
                road.prepare(&device)?;
                let (t0, f0) = veth(&t(&tester, 0), &road.end(&device, 0, shape.ipv6), &options)?;
                let (t1, f1) = veth(&t(&tester, 1), &road.end(&device, 1, shape.ipv6), &options)?;
                let macs = if road.routes() { [f0.mac, f1.mac] } else { [t1.mac, t0.mac] };
                ([t0, t1].map(Port::from), macs, Some((road, setting, device)))
            }
        };
        let arrivals = skeleton::ArriveSkelBuilder::default();
        let arrivals = arrivals.open(storage).and_then(|open| open.load()).map_err(Error::Load)?;
        let arrive = arrivals.progs.arrive.as_fd();
        let _attached = ends.iter().map(|end| end.attach(arrive)).collect::<Result<_>>()?;
        // Only now: a program that is attached to one end of a veth makes it forget that the other
        // can receive from XDP (veth_xdp_set, drivers/net/veth.c).
        let program = match &device {
            Some((road, setting, device)) => {
                set_up((*road, *setting, shape.ipv6), device, &ends, cpus, ringway)?
            }
            None => None,
        };
        let recipes =
            (0..shape.ways).map(|way| recipe(way, shape, Mac(ends[way].mac.0), Mac(macs[way].0)));
        let recipes = recipes.collect();
        let _device = device.map(|(.., namespace)| namespace);
        let looped = matches!(between, Between::Nothing);
        let mut site = Self {
            shape,
            cpus,
            ends,
            recipes,
            program,
            looped,
            _device,
            arrivals,
            _attached,
            trial: 0,
        };
        site.learn(match between {
            Between::Road(..) => "the device",
            Between::Nothing => "the loop",
            Between::Outside(_) => {
                "what joins the interfaces, which has to bridge; their drivers have to send what XDP redirects"
            }
        })?;
        Ok(site)
    }

    /// Learning frames (RFC 2544, section 23), until they come through.
    fn learn(&mut self, what: &str) -> Result<()> {
        let Shape { stragglers, settle, .. } = self.shape;
        (self.shape.stragglers, self.shape.settle) = (Duration::from_millis(50), Duration::ZERO);
        let what = format!("frames through {what}");
        let through = wait_for(what, PATIENCE, || {
            let trial = match self.trial(1000.0, 0.05) {
                Ok(seen) => seen.trial,
                Err(error) => return Ok(Err(error)),
            };
            let Trial { sent, received, .. } = trial;
            let all = received > 0 && received == sent;
            if all { Ok(Ok(())) } else { Err(format!("{received} of {sent} came")) }
        });
        (self.shape.stragglers, self.shape.settle) = (stragglers, settle);
        through?
    }

    /// Sends `load` frames a second, all ways together.
    pub(super) fn trial(&mut self, load: f64, duration_s: f64) -> Result<Observed> {
        let count = (load * duration_s).round().max(1.0) as u64;
        let most = Duration::from_secs_f64(duration_s * ENOUGH);
        let seen = self.phases(&[Phase { rate: Some(load), count, most }])?;
        Ok(Observed { trial: Trial { load, duration_s, ..seen.trial }, ..seen })
    }

    /// As many as can be sent in this time; the trial's load is what came through.
    pub(super) fn most(&mut self, time: Duration) -> Result<Observed> {
        let seen = self.phases(&[Phase { rate: None, count: u64::MAX, most: time }])?;
        let load = seen.trial.received as f64 / seen.trial.elapsed_s;
        Ok(Observed { trial: Trial { load, intended: seen.trial.sent, ..seen.trial }, ..seen })
    }

    /// Phase after phase; the trial is all of them together.
    pub(super) fn phases(&mut self, phases: &[Phase]) -> Result<Observed> {
        let sent = self.send(phases)?;
        let frames: u64 = sent.iter().map(|paced| paced.frames).sum();
        let ended = Instant::now();
        while self.received() < frames && ended.elapsed() < self.shape.stragglers {
            thread::sleep(Duration::from_millis(1));
        }
        for end in self.ends.iter().filter(|end| end.namespace.is_none()) {
            outside::check(end)?;
        }
        let seen = self.observed(phases, &sent, frames);
        thread::sleep(self.shape.settle);
        Ok(seen)
    }

    fn send(&mut self, phases: &[Phase]) -> Result<Vec<Paced>> {
        self.trial = self.trial % (TRIALS - 1) + 1;
        let stream = |way: usize| (self.trial << 1) as u16 | way as u16;
        let traffic: Result<Vec<Traffic>> =
            (0..).zip(&self.recipes).map(|(way, recipe)| traffic(recipe, stream(way))).collect();
        let traffic = traffic?;
        let ways: Vec<_> =
            traffic.iter().zip(&self.ends).map(|(traffic, end)| (traffic, end.ifindex)).collect();
        let places = traffic.first().and_then(|traffic| traffic.templates.first()?.stamped());
        let data = self.arrivals.maps.bss_data.as_mut().ok_or(Error::NoVariables)?;
        (data.ways, data.stale) = (Default::default(), 0);
        data.buckets.iter_mut().for_each(|buckets| buckets.fill(0));
        (data.trial, data.stamp_at) = (self.trial, places.ok_or(Error::NotLive)?.0 as u32);
        let cpu = self.cpus.load;
        self.ends[0].run(|| {
            pin(cpu)?;
            prefer(None);
            live_frames::pace(&ways, phases)
        })?
    }

    fn received(&self) -> u64 {
        let data = self.arrivals.maps.bss_data.as_ref();
        data.map_or(0, |data| data.ways.iter().map(|way| way.unique).sum())
    }

    fn observed(&self, phases: &[Phase], sent: &[Paced], frames: u64) -> Observed {
        let data = self.arrivals.maps.bss_data.as_ref();
        let ways = data.map(|data| data.ways).unwrap_or_default();
        let ways = &ways[..self.shape.ways];
        let sum = |of: fn(&skeleton::types::way) -> u64| ways.iter().map(of).sum();
        let timed = phases.iter().filter(|phase| phase.rate.is_some());
        let trial = Trial {
            load: 0.0,
            duration_s: timed.map(|phase| phase.most.as_secs_f64()).sum(),
            intended: phases.iter().fold(0, |sum: u64, phase| sum.saturating_add(phase.count)),
            sent: frames,
            received: sum(|way| way.unique),
            elapsed_s: sent.iter().map(|paced| paced.elapsed.as_secs_f64()).sum(),
        };
        let gap = ways.iter().map(|way| way.gap_ns).max();
        Observed {
            trial,
            looped: self.looped,
            duplicates: sum(|way| way.duplicate),
            reordered: sum(|way| way.reordered + way.too_late),
            latency: data.map_or_else(Histogram::default, |data| Histogram::of(&data.buckets)),
            gap: Duration::from_nanos(gap.unwrap_or(0)),
            losses: sent.last().map(|last| self.losses(last, frames)).unwrap_or_default(),
        }
    }

    /// In the last phase, of these frames of all phases.
    fn losses(&self, last: &Paced, frames: u64) -> Losses {
        let Some(data) = self.arrivals.maps.bss_data.as_ref() else { return Losses::default() };
        let ways = &data.ways[..self.shape.ways];
        let holes = ways.iter().filter(|way| way.missing > 0).map(|way| way.hole_ns);
        let seen = data.losses[..self.shape.ways].iter().flatten().copied().chain(holes);
        let since = |ns: u64| Some(Duration::from_nanos(ns.checked_sub(last.begin_ns)?));
        let mut at: Vec<Duration> = seen.filter_map(since).collect();
        at.sort_unstable();
        // Nobody sees that the last frames are missing: none comes after them.
        let is_whole = ways.iter().map(|way| way.next).sum::<u64>() == frames;
        let last_came = ways.iter().map(|way| way.last_ns).min().and_then(since);
        let watched = if is_whole { last.elapsed } else { last_came.unwrap_or_default() };
        Losses { at, watched }
    }

    /// KiB of the forwarding program, and of the machine that are free.
    pub(super) fn memory(&self) -> (Option<u64>, u64) {
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let program = self
            .program
            .as_ref()
            .and_then(|program| field(&format!("/proc/{}/status", program.child.pid()), "VmRSS:"));
        (program, field("/proc/meminfo", "MemAvailable:").unwrap_or(0))
    }

    /// Sends while the program that forwards is killed and started again; none has no program.
    pub(super) fn killed(&mut self, load: f64, time: Duration) -> Result<Option<Observed>> {
        let Some(mut program) = self.program.take() else { return Ok(None) };
        let (seen, program) = thread::scope(|scope| {
            let restarted = scope.spawn(move || {
                thread::sleep(time / 4);
                program.restart()?;
                Ok::<_, Error>(program)
            });
            let seen = self.trial(load, time.as_secs_f64());
            (seen, restarted.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        self.program = Some(program?);
        seen.map(Some)
    }
}

/// Prepares the device's interfaces, and starts its program.
fn set_up(
    (road, setting, ipv6): (Road, Option<Setting>, bool),
    device: &Namespace,
    ends: &[Port; 2],
    cpus: Cpus,
    ringway: &std::path::Path,
) -> Result<Option<Program>> {
    for (side, end) in ends.iter().enumerate() {
        let name = format!("f{side}");
        // Frames that XDP sends arrive only where there is NAPI.
        enable_napi(device, &name)?;
        if road.is_kernel() {
            own_thread(device, &name, cpus.measured)?;
        }
        if setting.is_some_and(|setting| setting.busy_poll > 0) {
            busy_poll(device, &name)?;
        }
        if road.routes() {
            let (host, mac) = (network(side, ipv6, 2), end.mac);
            device.ip(&format!("neigh add {host} lladdr {mac} dev {name} nud permanent\n"))?;
        }
    }
    road.begin(device)?;
    Program::start(road, setting, device, cpus, ringway)
}

/// Writes a setting of an interface.
fn set(namespace: &Namespace, interface: &str, name: &str, value: &str) -> Result<()> {
    let path = PathBuf::from(format!("/sys/class/net/{interface}/{name}"));
    let write = || fs::write(&path, value);
    namespace.run_with_sysfs(write)?.map_err(|source| Error::Write { path, source })
}

/// Whoever polls has the interface, and interrupts have it after 200 us without a poll
/// (Documentation/networking/napi.rst).
fn busy_poll(namespace: &Namespace, interface: &str) -> Result<()> {
    set(namespace, interface, "napi_defer_hard_irqs", "2")?;
    set(namespace, interface, "gro_flush_timeout", "200000")
}

/// The kernel forwards what comes in by this interface in a thread of its own, on this processor:
/// else it does so on the sender's, and who is overloaded is the sender.
fn own_thread(namespace: &Namespace, interface: &str, cpu: usize) -> Result<()> {
    set(namespace, interface, "threaded", "1")?;
    let named = format!("napi/{interface}-");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| name.starts_with(&named)) {
            let mut set = CpuSet::new();
            set.set(cpu);
            // One of another run may end at any time.
            let _ = sched_setaffinity(Some(pid), &set);
            prefer(Some(pid));
        }
    }
    Ok(())
}

/// This thread, or the calling one, goes before others' programs: what they take of its processor is
/// neither the device's loss nor its latency. A real-time priority would be worse: where something
/// else waits, the kernel stops that for 50 ms of each second.
fn prefer(thread: Option<Pid>) {
    let _ = setpriority_process(thread, HIGHEST);
}

/// Sixty-four flows of UDP from one of the networks for tests to the other.
fn recipe(way: usize, shape: Shape, source_mac: Mac, destination_mac: Mac) -> Recipe {
    let Shape { size, ipv6, .. } = shape;
    let host = |side: usize| network(side, ipv6, 2).into();
    Recipe {
        source_mac,
        destination_mac,
        vlan: None,
        sources: host(way),
        destinations: host(1 - way),
        transport: Transport::Udp,
        source_ports: "1024-1087".parse().expect("ports"),
        destination_ports: 7.into(),
        sizes: size.frames(ipv6),
    }
}

fn traffic(recipe: &Recipe, stream: u16) -> Result<Traffic> {
    let templates = recipe.templates().map_err(|error| Error::Unavailable(error.to_string()))?;
    let flows = Some(Flows::of(recipe));
    Ok(Traffic { templates, flows, stream, rate: None, count: None, duration: None })
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ProgramInput;
    use ringway_engine::stamp::Stamp;

    use super::*;

    const SHAPE: Shape = Shape {
        size: Size::Bytes(64),
        ipv6: false,
        ways: 2,
        stragglers: Duration::from_millis(200),
        settle: Duration::ZERO,
    };

    #[test]
    fn every_frame_is_counted_once() {
        if !ringway_testnet::root_or_skip("forward::every_frame_is_counted_once") {
            return;
        }
        let mix = Shape { size: Size::Imix, ..SHAPE };
        for (between, shape) in [
            (Between::Nothing, SHAPE),
            (Between::Road(Road::LinuxBridge, None), mix),
            (Between::Road(Road::LinuxRoute, None), mix),
            (Between::Road(Road::LinuxRoute, None), Shape { ipv6: true, ..mix }),
        ] {
            let mut storage = Storage::uninit();
            let (cpus, no_program) = (Cpus::here().unwrap(), std::path::Path::new(""));
            let mut site = Site::new(&mut storage, between, shape, cpus, no_program).unwrap();
            let seen = site.trial(5_000.0, 0.2).unwrap();
            // A busy machine may send fewer.
            let Trial { intended, sent, received, .. } = seen.trial;
            assert!(intended == 1000 && sent > 100 && received == sent, "{seen:?}");
            assert_eq!((seen.duplicates, seen.reordered), (0, 0));
            assert!(seen.losses.at.is_empty() && seen.losses.watched > Duration::ZERO, "{seen:?}");
            assert!(seen.latency.percentiles().is_some_and(|times| times.p50_us > 0.0), "{seen:?}");
        }
    }
    #[test]
    fn a_device_that_sends_nothing_has_not_recovered() {
        if !ringway_testnet::root_or_skip("forward::a_device_that_sends_nothing_has_not_recovered")
        {
            return;
        }
        let mut storage = Storage::uninit();
        let (between, cpus) = (Between::Road(Road::LinuxBridge, None), Cpus::here().unwrap());
        let no_program = std::path::Path::new("");
        let mut site = Site::new(&mut storage, between, SHAPE, cpus, no_program).unwrap();
        let ended = |site: &mut Site<'_>| {
            let seen = site.trial(5_000.0, 0.2).unwrap();
            seen.losses.ended(Duration::from_millis(100))
        };
        assert_eq!(ended(&mut site), Some(Duration::ZERO));
        site._device.as_ref().unwrap().ip("link set f1 down\n").unwrap();
        assert_eq!(ended(&mut site), None);
    }

    /// What the receiver counts of frames in this order: losses, and the last numbers missing.
    fn arrived(order: &[u64]) -> (usize, u64) {
        let mut storage = Storage::uninit();
        let arrivals = skeleton::ArriveSkelBuilder::default().open(&mut storage).unwrap();
        let mut arrivals = arrivals.load().unwrap();
        let data = arrivals.maps.bss_data.as_mut().unwrap();
        let recipe = recipe(0, SHAPE, Mac([2; 6]), Mac([2; 6]));
        let (template, mut flows) = (recipe.templates().unwrap().remove(0), Flows::of(&recipe));
        (data.trial, data.stamp_at) = (1, template.stamped().unwrap().0 as u32);
        for &sequence in order {
            let mut frame = template.frame().to_vec();
            template.write(&mut frame, &flows.next(), &Stamp::new(2, sequence, 0));
            let input = ProgramInput { data_in: Some(&frame), ..Default::default() };
            arrivals.progs.arrive.test_run(input).unwrap();
            // Losses are told apart by the millisecond.
            thread::sleep(Duration::from_millis(2));
        }
        let data = arrivals.maps.bss_data.as_ref().unwrap();
        (data.losses[0].iter().filter(|at| **at > 0).count(), data.ways[0].missing)
    }

    #[test]
    fn frames_that_were_overtaken_are_not_lost() {
        if !ringway_testnet::root_or_skip("forward::frames_that_were_overtaken_are_not_lost") {
            return;
        }
        assert_eq!(arrived(&[0, 1, 2, 3]), (0, 0));
        assert_eq!(arrived(&[0, 3, 1, 2, 4, 6, 5]), (0, 0));
        assert_eq!(arrived(&[0, 2, 3, 5, 4, 6]), (1, 0), "1 is lost");
        assert_eq!(arrived(&[0, 2, 4, 1, 3]), (1, 0), "1 comes when 3 is missing");
        assert_eq!(arrived(&[0, 1, 5]), (0, 3), "may yet come");
        assert_eq!(arrived(&[0, 2, 1, 1, 5, 3]), (0, 1), "a duplicate fills nothing");
    }
}
