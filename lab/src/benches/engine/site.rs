//! Two veth pairs between a namespace where load comes from and one where it is dealt with.
//!
//! ```text
//!   load --> c0 ======== s0 --> measured --> s1 ======== c1 --> arrived     l2fwd
//!   load --> c0 ======== s0 --> measured                                     receive: s0 itself counts
//!            c0 ======== s0 <-- measured         c0 --> arrived              transmit
//!   load --> c0 ======== s0 <-> measured         c0 --> arrived              bid, udp-echo
//! ```

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use ringway_engine::apps::{Bid, Host, L2fwd, Macs, Offer, Request, Sink, Source, UdpEcho};
use ringway_engine::ports::af_xdp;
use ringway_engine::{AppFactory, Engine, EngineConfig, PortSpec, WorkerConfig};
use ringway_testnet::{Child, End, Link, Namespace, VethOptions, enable_napi, veth, wait_until};
use ringway_wire::{
    Builder, Ethernet, IntoBytes as _, Ipv4, Mac, U16, U32, Udp, ethertype, protocol,
};
use ringway_xsk::{PageSize, UmemConfig};

use super::case::{Case, Side};
use super::load::{self, Arrivals, Storage};
use super::sockets::{self, Service, Sockets};
use super::testpmd::Testpmd;
use super::{Figure, Loss, per_packet};
use crate::harness::cpu::{Cpus, Task, pin};
use crate::{Error, Result};

const US: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THEM: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 4242;
/// Offers of the bidder, and the segment that is asked for.
const OFFERS: u64 = 100_000;
const SEGMENT: u64 = 4711;
/// For the first packet to come through, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Until everything runs as it will.
const WARM_UP: Duration = Duration::from_millis(300);
/// For the last packets of a run to arrive.
const LAST: Duration = Duration::from_secs(1);
/// Beyond it loss is no matter of a busy processor any more.
const SHARE_PERCENT: u64 = 90;

/// The topology of a case, made anew for each figure.
pub(super) struct Site<'s> {
    case: Case,
    cpus: Cpus,
    /// c0.
    source: Link,
    /// s0, and s1.
    near: [Link; 2],
    arrivals: Arrivals<'s>,
}

/// The program that handles packets.
pub(super) enum Server {
    Ringway(Engine),
    Testpmd(Child),
    Sockets(Sockets),
}

impl<'s> Site<'s> {
    pub(super) fn new(
        storage: &'s mut Storage,
        case: Case,
        cpus: Cpus,
        timed: bool,
    ) -> Result<Self> {
        let (client, server) = (Namespace::new("load")?, Namespace::new("measured")?);
        // As the kernel sets them up: its sockets then neither compute checksums nor look at each
        // datagram.
        let options = VethOptions { offloads: true, ..VethOptions::default() };
        let pair = |n: u32| {
            let (c, s) = (format!("c{n}"), format!("s{n}"));
            let s = End::new(&server, &s);
            let s = if n == 0 { s.address(format!("{US}/24")) } else { s };
            veth(&End::new(&client, &c), &s, &options)
        };
        let ((c0, s0), (c1, s1)) = (pair(0)?, pair(1)?);
        // The kernel's own answers need not ask.
        server.ip(&format!("neigh add {THEM} lladdr {} dev s0 nud permanent\n", c0.mac))?;
        let end = if case == Case::AfXdpL2fwd { &c1 } else { &c0 };
        let arrivals = Arrivals::at(storage, end, timed)?;
        // Sockets, too, get what XDP sends, and several datagrams as one. The order matters: a
        // program that is attached to c0 later makes it forget that s0 can receive from XDP
        // (veth_xdp_set, drivers/net/veth.c).
        enable_napi(&server, "s0")?;
        Ok(Self { case, cpus, source: c0, near: [s0, s1], arrivals })
    }

    /// Starts what is to be measured.
    pub(super) fn start(&self, side: Side, testpmd: Option<&Testpmd>) -> Result<Server> {
        match (side, testpmd) {
            (Side::Ringway, _) => self.engine().map(Server::Ringway),
            (Side::Peer, Some(testpmd)) if self.case.needs_testpmd() => {
                self.testpmd(testpmd).map(Server::Testpmd)
            }
            (Side::Peer, _) => self.sockets().map(Server::Sockets),
        }
    }

    fn engine(&self) -> Result<Engine> {
        let [s0, _] = &self.near;
        let host = Host::new(Mac(s0.mac.0), [US.into()]);
        let interfaces: &[&str] = match self.case {
            Case::AfXdpL2fwd => &["s0", "s1"],
            _ => &["s0"],
        };
        let port = |interface: &&str| PortSpec::AfXdp(af_xdp::Config::new(*interface, 0));
        let ports = interfaces.iter().map(port).collect();
        let app: AppFactory = match self.case {
            Case::AfXdpL2fwd => Arc::new(|| Box::new(L2fwd::new(Macs::AsIs))),
            Case::AfXdpTransmit => {
                let frame = self.frame();
                Arc::new(move || Box::new(Source::new(frame.clone(), u64::MAX, 64)))
            }
            case if case.is_bid() => Arc::new(move || Box::new(bid(host.clone()))),
            case if case.answers() => Arc::new(move || Box::new(UdpEcho::new(host.clone(), PORT))),
            _ => Arc::new(|| Box::new(Sink::default())),
        };
        let umem = UmemConfig { frames: 16384, pages: PageSize::Huge2M, ..UmemConfig::default() };
        let config = EngineConfig { umem, ..EngineConfig::default() };
        let cpu = Some(self.cpus.measured);
        let worker = WorkerConfig { cpu, ports, app };
        // Its threads are born in the namespace.
        Ok(s0.namespace.run(move || Engine::start(&config, vec![worker]))??)
    }

    fn testpmd(&self, testpmd: &Testpmd) -> Result<Child> {
        let (mode, ports) = match self.case {
            Case::AfXdpL2fwd => ("io", 2),
            Case::AfXdpTransmit => ("txonly", 1),
            _ => ("rxonly", 1),
        };
        let devices = (0..ports).map(|n| format!("net_af_xdp{n},iface=s{n}"));
        let devices: Vec<_> = devices.collect();
        testpmd.start(&self.near[0].namespace, self.cpus, mode, &devices)
    }

    fn sockets(&self) -> Result<Sockets> {
        let service = match self.case.is_bid() {
            true => Service::Bid(Box::new(bid(Host::new(Mac([0; 6]), [])))),
            false => Service::Echo,
        };
        let at = SocketAddrV4::new(US, PORT);
        Sockets::start(&self.near[0].namespace, self.cpus.measured, at, service)
    }

    fn failed(&self, what: impl ToString) -> Error {
        Error::NoFigure { who: self.case.name().into(), what: what.to_string() }
    }

    /// The frame that is sent: a request of `bid`, and nothing else.
    fn frame(&self) -> Vec<u8> {
        let request = Request {
            magic: U16::new(Request::MAGIC),
            version: Request::VERSION,
            client: U32::new(1),
            segment: SEGMENT.into(),
            ..Request::default()
        };
        // 64 bytes, unless it is asked.
        let payload = if self.case.answers() { request.as_bytes() } else { &[0; 22] };
        let (c0, [s0, _]) = (&self.source, &self.near);
        let (from, to) = (Mac(c0.mac.0), Mac(s0.mac.0));
        let ip = Ipv4::new(protocol::UDP, THEM, US);
        let mut buffer = [0; 256];
        let mut built = Builder::new(&mut buffer, 64).expect("there is room");
        let build = |built: &mut Builder<'_>| {
            built.append(payload)?.udp(Udp::new(0, PORT), Some(ip.pseudo()))?.ipv4(ip, &[])?;
            built.ethernet(Ethernet::new(to, from, ethertype::IPV4)).map(drop)
        };
        build(&mut built).expect("there is room");
        built.packet().to_vec()
    }

    /// Packets dealt with so far.
    fn packets(&self) -> Result<u64> {
        if self.case == Case::AfXdpReceive { self.redirected() } else { self.arrivals.packets() }
    }

    /// By veth's own count (drivers/net/veth.c): what the socket took.
    fn redirected(&self) -> Result<u64> {
        self.counted(&self.near[0], "_xdp_redirect")
    }

    /// Packets that never came as far as the socket: s0's own queue was full.
    fn overrun(&self) -> Result<u64> {
        self.counted(&self.source, "_xdp_xmit_errors")
    }

    fn counted(&self, link: &Link, what: &str) -> Result<u64> {
        let output = link.namespace.tool("ethtool")?.args(["-S", &link.name]).output();
        let run = |source| Error::Run { program: format!("ethtool -S {}", link.name), source };
        let output = output.map_err(run)?;
        of_queues(&String::from_utf8_lossy(&output.stdout), what)
            .ok_or_else(|| self.failed(format_args!("`ethtool -S` has no {what} of a veth")))
    }

    /// Sends until `over`, which is told for how long it has sent; how many packets.
    fn send(&self, rate: Option<u64>, over: impl Fn(Duration) -> bool + Send) -> Result<u64> {
        let sent = self.source.namespace.run(|| {
            pin(self.cpus.load)?;
            load::send(&self.source, &self.frame(), self.case.clients(), rate, over)
        });
        sent?
    }

    /// As many packets as can be.
    pub(super) fn most(&self, server: &Server, time: Duration) -> Result<Figure> {
        let stop = AtomicBool::new(self.case == Case::AfXdpTransmit);
        thread::scope(|scope| {
            let load = scope.spawn(|| self.send(None, |_| stop.load(Relaxed)));
            let figure = self.window(server, time);
            stop.store(true, Relaxed);
            load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            figure
        })
    }

    /// The packets that are handled in some time, once packets arrive and caches are warm.
    fn window(&self, server: &Server, time: Duration) -> Result<Figure> {
        let first = self.packets()?;
        wait_until("the first packets", PATIENCE, || self.packets().is_ok_and(|now| now > first))?;
        thread::sleep(WARM_UP);
        let task = server.task()?;
        let (began, user, packets) = (Instant::now(), task.user()?, self.packets()?);
        thread::sleep(time);
        let (passed, user, packets) =
            (began.elapsed(), task.user()? - user, self.packets()? - packets);
        if packets == 0 {
            return Err(self.failed("no packet came through"));
        }
        let pps = (packets as f64 / passed.as_secs_f64()) as u64;
        Ok(Figure { pps, user_ps: Some(per_packet(user, packets)), ..Figure::default() })
    }

    /// What is lost at 90 % of the most. None where there is no load to be lost.
    pub(super) fn loss(&self, server: &Server, most: u64, time: Duration) -> Result<Option<Loss>> {
        if self.case == Case::AfXdpTransmit {
            return Ok(None);
        }
        let task = server.task()?;
        let (overrun, waited) = (self.overrun()?, task.waited());
        let Paced { sent, arrived, ended } =
            self.paced(most * SHARE_PERCENT / 100, time, || task.waited())?;
        let overrun = self.overrun()? - overrun;
        let ppb = |count: u64| (u128::from(count) * 1_000_000_000 / u128::from(sent.max(1))) as u64;
        Ok(Some(Loss {
            ppb: ppb(sent.saturating_sub(arrived)),
            before_ppb: ppb(overrun),
            waited: ended.zip(waited).map(|(ended, began)| ended - began),
        }))
    }

    /// Microseconds that 99 of 100 answers took at most.
    pub(super) fn p99_us(&self, rate: u64, time: Duration) -> Result<u64> {
        self.paced(rate, time, || ())?;
        self.arrivals.p99_us()?.ok_or_else(|| self.failed("no answer came back"))
    }

    /// Packets sent at a rate, how many of them were dealt with, and what was so when the last was
    /// sent.
    fn paced<T>(&self, rate: u64, time: Duration, look: impl FnOnce() -> T) -> Result<Paced<T>> {
        let before = self.packets()?;
        let sent = self.send(Some(rate), |passed| passed >= time)?;
        let ended = look();
        // A packet that has not come by then never will.
        let _ = wait_until("the last packets", LAST, || {
            self.packets().is_ok_and(|now| now - before >= sent)
        });
        Ok(Paced { sent, arrived: self.packets()? - before, ended })
    }
}

struct Paced<T> {
    sent: u64,
    arrived: u64,
    ended: T,
}

/// The sum over queues, of `     rx_queue_0_xdp_redirect: 17`.
fn of_queues(statistics: &str, what: &str) -> Option<u64> {
    let counts = statistics.lines().filter_map(|line| {
        let (name, count) = line.trim().split_once(": ")?;
        let queue = name.strip_suffix(what)?.trim_end_matches(|c: char| c.is_ascii_digit());
        queue.ends_with("x_queue_").then(|| count.parse::<u64>().ok())?
    });
    counts.reduce(|a, b| a + b)
}

fn bid(host: Host) -> Bid {
    let offer = |n| Offer { price: 1000, creative: n };
    let offers: HashMap<_, _> = (0..OFFERS).map(|n| (n, offer(n))).collect();
    Bid::new(host, PORT, offers, 4)
}

impl Server {
    fn task(&self) -> Result<Task> {
        match self {
            Self::Ringway(_) => Task::thread("ringway-0"),
            Self::Testpmd(child) => Ok(Task::process(child.pid())),
            Self::Sockets(_) => Task::thread(sockets::NAME),
        }
    }

    /// Ends it; what was measured does not count unless its ledger balances. What a program of
    /// others said.
    pub(super) fn stop(self) -> Result<Option<String>> {
        match self {
            Self::Ringway(engine) => {
                for report in engine.stop() {
                    let report = report?;
                    if let Some(error) = report.error {
                        return Err(error.into());
                    }
                    if !report.audit.balanced() {
                        let what = report.audit.to_string();
                        return Err(Error::NoFigure { who: "ringway".into(), what });
                    }
                }
                Ok(None)
            }
            Self::Testpmd(child) => Ok(Some(child.log())),
            Self::Sockets(sockets) => sockets.stop().map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_veth_counts() {
        let statistics = "NIC statistics:\n     peer_ifindex: 5\n     rx_queue_0_xdp_packets: 20\n     \
                          rx_queue_0_xdp_redirect: 17\n     rx_queue_1_xdp_redirect: 3\n     \
                          rx_queue_0_xdp_redirect_errors: 9\n     \
                          tx_queue_0_xdp_xmit: 8\n     tx_queue_0_xdp_xmit_errors: 4\n";
        assert_eq!(of_queues(statistics, "_xdp_redirect"), Some(20));
        assert_eq!(of_queues(statistics, "_xdp_xmit_errors"), Some(4));
        assert_eq!(of_queues("NIC statistics:\n", "_xdp_redirect"), None);
    }
}
