//! A veth pair, a sender at one end, and what receives at the other.

use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use std::{io, thread};

use ringway_testnet::{End, Link, Namespace, VethOptions, enable_napi, veth, wait_for};
use rustix::thread::set_current_timer_slack;

use super::Style;
use super::bypass::{ByEngine, Ended};
use super::cost::{Spent, Thread};
use super::receive::{self, Tally};
use crate::harness::cpu::{Cpus, pin};
use crate::{Error, Result};

const SERVER: &str = "192.0.2.2:4000";
const PAYLOAD: [u8; 64] = [7; 64];
/// For a port to be free.
const FREE: Duration = Duration::from_secs(5);
/// For the last packets to be taken.
const LAST: Duration = Duration::from_millis(200);

pub(super) struct Site {
    client: Link,
    server: Link,
    cpus: Cpus,
    rate: u32,
    time: Duration,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub sent: u64,
    pub units: u64,
    pub calls: Option<u64>,
    pub spent: Spent,
    pub seconds: f64,
    pub rtt: Vec<Duration>,
}

fn failed(source: io::Error) -> Error {
    Error::Run { program: "a datagram socket".into(), source }
}

/// The error of a style that this machine lacks, with the remedy.
fn unprepared(style: Style, source: io::Error) -> Error {
    match style {
        Style::IoUring => Error::Unavailable(format!(
            "this process may not have io_uring: {source}; `sysctl -w kernel.io_uring_disabled=0` on a kernel with \
             CONFIG_IO_URING, and outside of what filters system calls"
        )),
        _ => failed(source),
    }
}

/// Part of a packet's period by which it comes later: different each time, and evenly spread (the
/// golden ratio). Packets in step with the processor's ticks, of which 4 ms are exactly 80 periods,
/// would have each sample of time find the same.
fn scattered(number: u64) -> f64 {
    (number as f64 * 0.618_033_988_749_895).fract()
}

impl Site {
    pub(super) fn new(rate: u32, time: Duration) -> Result<Self> {
        let cpus = Cpus::here()?;
        let (near, far) = (Namespace::new("client")?, Namespace::new("server")?);
        let end = |namespace, name, address: &str| End::new(namespace, name).address(address);
        let (client, server) = veth(
            &end(&near, "c0", "192.0.2.1/24"),
            &end(&far, "s0", "192.0.2.2/24"),
            &VethOptions::default(),
        )?;
        // So that busy polling has something to poll.
        enable_napi(&far, "s0")?;
        Ok(Self { client, server, cpus, rate, time })
    }

    /// Where packets come in.
    pub(super) fn namespace(&self) -> &Namespace {
        &self.server.namespace
    }

    /// Datagrams at the pace, to whoever is there; how many.
    fn send(&self) -> Result<u64> {
        let send = || -> Result<u64> {
            pin(self.cpus.load)?;
            // Else sleeps end together with ticks, so that what is sent then never is what a tick
            // finds.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            let socket = UdpSocket::bind("192.0.2.1:0").map_err(failed)?;
            socket.connect(SERVER).map_err(failed)?;
            let began = Instant::now();
            let mut sent = 0;
            while began.elapsed() < self.time {
                let due = (sent as f64 + scattered(sent)) / f64::from(self.rate);
                let due = Duration::from_secs_f64(due);
                if let Some(early) = due.checked_sub(began.elapsed()) {
                    thread::sleep(early.min(self.time));
                }
                match socket.send(&PAYLOAD) {
                    Ok(_) => sent += 1,
                    // Nobody listens there: it is for somebody else than a socket.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => sent += 1,
                    Err(error) => return Err(failed(error)),
                }
            }
            Ok(sent)
        };
        self.client.namespace.run(send)?
    }

    /// A stream of packets, received in a style.
    pub(super) fn stream(&self, style: Style) -> Result<Ran> {
        match style {
            Style::AfPacket | Style::AfXdp => self.by_engine(style),
            Style::Xdp => self.by_xdp(),
            _ => self.by_socket(style, || self.send(), receive::receive),
        }
    }

    /// Requests and answers, one after the other, answered in a style.
    pub(super) fn requests(&self, style: Style) -> Result<Ran> {
        let mut rtt = Vec::new();
        let mut ran = self.by_socket(style, || self.ask(&mut rtt), receive::answer)?;
        ran.rtt = rtt;
        Ok(ran)
    }

    fn ask(&self, rtt: &mut Vec<Duration>) -> Result<u64> {
        let ask = || -> Result<u64> {
            pin(self.cpus.load)?;
            let socket = UdpSocket::bind("192.0.2.1:0").map_err(failed)?;
            socket.connect(SERVER).map_err(failed)?;
            socket.set_read_timeout(Some(Duration::from_secs(2))).map_err(failed)?;
            let began = Instant::now();
            let mut bytes = PAYLOAD;
            while began.elapsed() < self.time {
                let asked = Instant::now();
                socket.send(&PAYLOAD).map_err(failed)?;
                socket.recv(&mut bytes).map_err(failed)?;
                rtt.push(asked.elapsed());
            }
            Ok(rtt.len() as u64)
        };
        self.client.namespace.run(ask)?
    }

    fn by_socket(
        &self,
        style: Style,
        load: impl FnOnce() -> Result<u64>,
        work: fn(Style, &UdpSocket, &AtomicBool) -> io::Result<Tally>,
    ) -> Result<Ran> {
        // io_uring soon releases the previous socket by itself.
        let bind = || wait_for(format!("{SERVER} to be free"), FREE, || UdpSocket::bind(SERVER));
        let socket = self.server.namespace.run(bind)??;
        receive::prepare(style, &socket).map_err(|source| unprepared(style, source))?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| -> Result<(Tally, Spent)> {
                pin(self.cpus.measured)?;
                let thread = Thread::this();
                let before = thread.spent()?;
                let tally = work(style, &socket, &stop).map_err(failed)?;
                Ok((tally, thread.spent()?.since(before)))
            });
            let began = Instant::now();
            let sent = load();
            let seconds = began.elapsed().as_secs_f64();
            thread::sleep(LAST);
            stop.store(true, Relaxed);
            let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (tally, spent) = received?;
            let (units, calls) = (tally.packets, Some(tally.calls));
            Ok(Ran { sent: sent?, units, calls, spent, seconds, rtt: Vec::new() })
        })
    }

    fn by_engine(&self, style: Style) -> Result<Ran> {
        let engine = ByEngine::start(style, &self.server, self.cpus.measured)?;
        let thread = engine.thread()?;
        let (before, began) = (thread.spent()?, Instant::now());
        let sent = self.send()?;
        let seconds = began.elapsed().as_secs_f64();
        thread::sleep(LAST);
        let spent = thread.spent()?.since(before);
        Ok(Ran { sent, units: engine.stop()?, calls: None, spent, seconds, rtt: Vec::new() })
    }

    /// No thread receives: what it costs is softirq time, which is the sender's here.
    fn by_xdp(&self) -> Result<Ran> {
        let mut storage = MaybeUninit::uninit();
        let program = Ended::attach(&mut storage, &self.server)?;
        // For the machine's softirq time alone.
        let thread = Thread::this();
        let (before, began) = (thread.spent()?, Instant::now());
        let sent = self.send()?;
        let seconds = began.elapsed().as_secs_f64();
        let spent = thread.spent()?.since(before);
        let units = program.packets()?;
        drop(program);
        let spent = Spent { user_ns: 0, system_ns: 0, sampled_ns: 0, switches: 0, ..spent };
        Ok(Ran { sent, units, calls: Some(0), spent, seconds, rtt: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_not_in_step() {
        let mut tenths = [0; 10];
        // Every 80th, as ticks would find them.
        for number in (0..80_000).step_by(80) {
            tenths[(scattered(number) * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (80..=120).contains(count)), "{tenths:?}");
    }

    #[test]
    fn why_there_is_no_io_uring() {
        let refused = || io::Error::from_raw_os_error(libc::EPERM);
        let why = unprepared(Style::IoUring, refused()).to_string();
        assert!(why.contains("not permitted") && why.contains("io_uring_disabled"), "{why}");
        assert!(!unprepared(Style::BusyPoll, refused()).to_string().contains("io_uring"));
    }
}
