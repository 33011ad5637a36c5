//! The Linux bridge beside `l2fwd` on packet sockets and on AF_XDP, both ways at once:
//! `cargo run --release -p ringway-engine --example forwarding -- [SECONDS]`, as root.
//!
//! The experiment of a paper that brought DPDK 17.11 to the Loongson 3A2000; `packaging/test-archs`
//! runs it in an emulator. A tester keeps a window of frames under way in each direction and sends
//! as they come back, so that none is lost. Of each device it says how long the machine's processors
//! work for a frame: a packet socket wakes its reader by a timer, so that much of the time is idle.
//! What a frame across a cable takes is the tester's own, and is subtracted.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::{
    App, AppFactory, Burst, Cycles, Engine, EngineConfig, Reason, Verdict, WorkerConfig,
};
use ringway_testnet::{End, Namespace, VethOptions, bridge, veth};
use ringway_xsk::UmemConfig;

/// As an RFC 2544 tester counts them: with the frame check sequence, which no veth has.
const SIZES: [usize; 3] = [64, 256, 1280];
const CHECK_SEQUENCE: usize = 4;
/// Preamble and gap, of a line's rate.
const BETWEEN: usize = 20;
/// Frames under way in each direction. Few enough for every ring on their path.
const WINDOW: usize = 128;
/// Of times in /proc/stat.
const USER_HZ: f64 = 100.0;
const WARM_UP: Duration = Duration::from_millis(300);
/// Frames that are silent for so long are lost.
const SILENT: Duration = Duration::from_millis(500);
/// Of local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// What the paper has: l2fwd to bridge at 64 bytes, and with larger rings.
const PAPER: &str = "3.55, tuned 4.46";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    /// The tester's ends are one cable.
    None,
    Bridge,
    L2fwd(&'static str),
}

const DEVICES: [Device; 4] =
    [Device::None, Device::Bridge, Device::L2fwd("af_packet"), Device::L2fwd("af_xdp")];

/// Sends from each of two ports to the other.
struct Tester {
    frames: [Vec<u8>; 2],
    under_way: [usize; 2],
    heard: Cycles,
    /// Where counting begins and ends.
    from: Option<Cycles>,
    seconds: u64,
    now: Cycles,
    idle_before: f64,
    received: u64,
    lost: u64,
}

/// Seconds that the machine's processors have been idle, all together, and how many there are.
fn idle() -> (f64, usize) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default();
    let waited = all.split_whitespace().skip(4).take(2).filter_map(|word| word.parse::<f64>().ok());
    let processors = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    (waited.sum::<f64>() / USER_HZ, processors)
}

impl Tester {
    fn new(size: usize, seconds: u64) -> Self {
        let frame = |from: u8, to: u8| {
            let mut frame = vec![0; size - CHECK_SEQUENCE];
            (frame[0], frame[5], frame[6], frame[11]) = (2, to, 2, from);
            frame[12..14].copy_from_slice(&ETHERTYPE);
            frame
        };
        Self {
            frames: [frame(1, 2), frame(2, 1)],
            under_way: [0; 2],
            heard: Cycles::now(),
            from: None,
            seconds,
            now: Cycles::now(),
            idle_before: 0.0,
            received: 0,
            lost: 0,
        }
    }

    fn counts(&self) -> bool {
        self.from.is_some_and(|from| self.now > from)
    }
}

fn cycles(time: Duration) -> u64 {
    (time.as_secs_f64() * Cycles::per_second() as f64) as u64
}

impl App for Tester {
    fn name(&self) -> &'static str {
        "tester"
    }

    fn on_burst(&mut self, now: Cycles, burst: &mut Burst<'_>) {
        let direction = 1 - burst.from();
        let mut came = 0;
        burst.decide(|packet| {
            came += usize::from(packet.data().get(12..14) == Some(&ETHERTYPE));
            Verdict::Drop(Reason::Consumed)
        });
        if came > 0 {
            self.heard = now;
            self.under_way[direction] = self.under_way[direction].saturating_sub(came);
            self.received += if self.counts() { came as u64 } else { 0 };
        }
    }

    fn on_round(&mut self, now: Cycles, burst: &mut Burst<'_>) {
        let counted = self.counts();
        self.now = now;
        if !counted && self.counts() {
            self.idle_before = idle().0;
        }
        let from = self.from.get_or_insert(Cycles(now.0 + cycles(WARM_UP)));
        if now.since(self.heard) > cycles(SILENT) {
            self.lost += if now > *from { self.under_way.iter().sum::<usize>() as u64 } else { 0 };
            (self.under_way, self.heard) = ([0; 2], now);
        }
        for direction in 0..2 {
            if self.under_way[direction] > WINDOW / 2 {
                continue;
            }
            let wanted = WINDOW - self.under_way[direction];
            let frame = &self.frames[direction];
            self.under_way[direction] +=
                burst.originate_burst(wanted, |packet| match packet.append(frame) {
                    Ok(()) => Verdict::Forward(direction),
                    Err(_) => Verdict::Drop(Reason::NoRoom),
                });
        }
    }

    fn is_finished(&self) -> bool {
        let until = self.seconds * Cycles::per_second();
        self.from.is_some_and(|from| self.now.since(from) >= until)
    }

    fn is_source(&self) -> bool {
        true
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        let (idle, processors) = idle();
        let worked = self.seconds as f64 * processors as f64 - (idle - self.idle_before);
        vec![
            ("received".into(), self.received),
            ("lost".into(), self.lost),
            ("worked_us".into(), (worked * 1e6) as u64),
        ]
    }
}

fn start(namespace: &Namespace, ports: [String; 2], app: AppFactory) -> Result<Engine, String> {
    let ports: Result<_, _> = ports.iter().map(|port| port.parse()).collect();
    let worker = WorkerConfig { cpu: None, ports: ports.map_err(|e| format!("{e}"))?, app };
    let umem = UmemConfig { frames: 8192, ..UmemConfig::default() };
    let config = EngineConfig { umem, ..EngineConfig::default() };
    let started = namespace.run(|| Engine::start(&config, vec![worker]));
    started.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// The tester's interfaces port0 and port1, and the device's e0 and e1 behind them.
fn connect(tester: &Namespace, device: &Namespace, kind: Device) -> ringway_testnet::Result<()> {
    let options = VethOptions::default();
    if kind == Device::None {
        return veth(&End::new(tester, "port0"), &End::new(tester, "port1"), &options).map(drop);
    }
    if kind == Device::Bridge {
        bridge(device, "br0", &[])?;
    }
    for (near, far) in [("port0", "e0"), ("port1", "e1")] {
        let far = End::new(device, far);
        let far = if kind == Device::Bridge { far.port_of("br0") } else { far };
        veth(&End::new(tester, near), &far, &options)?;
    }
    Ok(())
}

struct Measured {
    received: u64,
    lost: u64,
    /// Nanoseconds of all processors for a frame.
    work: f64,
}

fn measure(kind: Device, size: usize, seconds: u64) -> Result<Measured, Box<dyn Error>> {
    let (outside, device) = (Namespace::new("tester")?, Namespace::new("device")?);
    connect(&outside, &device, kind)?;
    let forwards = match kind {
        Device::L2fwd(port) => {
            let queue = if port == "af_xdp" { ":0" } else { "" };
            let ports = ["e0", "e1"].map(|name| format!("{port}:{name}{queue}"));
            Some(start(&device, ports, Arc::new(|| Box::new(L2fwd::new(Macs::AsIs))))?)
        }
        _ => None,
    };
    let ports = ["port0", "port1"].map(|name| format!("af_packet:{name}"));
    let tester = start(&outside, ports, Arc::new(move || Box::new(Tester::new(size, seconds))))?;
    while !tester.is_over() {
        thread::sleep(Duration::from_millis(50));
    }
    let report = tester.stop().pop().ok_or("no report")??;
    if let Some(engine) = forwards {
        let report = engine.stop().pop().ok_or("no report")??;
        if report.error.is_some() || !report.audit.balanced() {
            return Err(format!("{}\n{}\n{:?}", report.audit, report.status, report.error).into());
        }
    }
    let counter = |name: &str| {
        let mut counters = report.status.app_counters.iter();
        counters.find(|counter| counter.name == name).map_or(0, |counter| counter.count)
    };
    let (received, lost) = (counter("received"), counter("lost"));
    if received == 0 {
        return Err(format!("nothing came back\n{}", report.status).into());
    }
    Ok(Measured { received, lost, work: counter("worked_us") as f64 * 1e3 / received as f64 })
}

/// Mbit/s of a line that a processor carries if a frame takes it so many nanoseconds.
fn line_rate(work: f64, size: usize) -> f64 {
    ((size + BETWEEN) * 8) as f64 * 1e3 / work
}

/// A row of the table: how long the processors work for a frame, and how many times less than for
/// the bridge.
fn row(size: usize, seconds: u64) -> Result<String, Box<dyn Error>> {
    let (mut row, mut own, mut of_bridge) = (format!("| {size} |"), 0.0, 0.0);
    for device in DEVICES {
        let began = Instant::now();
        let Measured { received, lost, work } = measure(device, size, seconds)?;
        eprintln!(
            "{device:?}, {size} bytes: {received} frames in {seconds} s, {work:.0} ns for each, \
             {lost} lost; {} s",
            began.elapsed().as_secs()
        );
        let (own_work, rate) = (work - own, line_rate(work - own, size));
        match device {
            Device::None => own = work,
            Device::Bridge => of_bridge = own_work,
            Device::L2fwd(_) => {}
        }
        row += &match device {
            Device::None => format!(" {work:.0} |"),
            Device::Bridge => format!(" {own_work:.0} | {rate:.0} |"),
            Device::L2fwd(_) => {
                format!(" {own_work:.0} | {rate:.0} | {:.2} |", of_bridge / own_work)
            }
        };
    }
    Ok(row)
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = env::args().nth(1).map_or(Ok(2), |text| text.parse())?;
    let rows: Result<Vec<_>, _> = SIZES.iter().map(|size| row(*size, seconds)).collect();
    println!(
        "\nNanoseconds of a processor for a frame, both ways at once; Mbit/s that it carries; how \
         many times less than the bridge's (the paper: {PAPER}).\n\n\
         | bytes | tester | Linux bridge | Mbit/s | l2fwd, af_packet | Mbit/s | ratio \
         | l2fwd, af_xdp | Mbit/s | ratio |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    rows?.iter().for_each(|row| println!("{row}"));
    Ok(())
}
