//! Frames that the kernel itself makes, from memory on: what a packet costs on each I/O path
//! between the NIC's driver and a program.
//!
//! BPF_PROG_TEST_RUN with live frames (net/bpf/test_run.c, Linux 5.18) takes frames out of a page
//! pool and treats each by the program's verdict, as a driver would, all on the calling thread: its
//! processor time is the cost. All paths begin at the same place. A NIC's own work, descriptors and
//! interrupts, is in none of them; nor is what a veth adds, whose frames are skbs before XDP sees
//! them.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fs, io, thread};

use libbpf_rs::Program;
use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use ringway_engine::apps::Sink;
use ringway_engine::ports::af_xdp;
use ringway_engine::{AppFactory, Engine, EngineConfig, PortSpec, WorkerConfig};
use ringway_host::netlink::links;
use ringway_testnet::{Namespace, wait_until};
use ringway_wire::{Builder, Ethernet, Ipv4, Mac, Udp, ethertype, protocol};
use ringway_xsk::UmemConfig;
use rustix::io::ioctl_fionread;
use rustix::net::sockopt;
use serde_json::{Value, json};

use super::clock;
use crate::benches::kernel_path::Style;
use crate::benches::kernel_path::receive::{prepare, receive};
use crate::harness::cpu::{Cpus, pin};
use crate::harness::named_enum::named;
use crate::harness::{Case, Harness};
use crate::{Error, Result};

/// Generated from bpf/calibrate.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/calibrate.skel.rs"));
}

/// Where frames go to; lo's own address, of a namespace that the thread has to itself.
const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const FROM: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// Behind an interface whose other end is down: what leaves by it ends where a driver would begin.
const SERVICE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
const NAT: &str = "table ip calibrate { chain nat { type nat hook prerouting priority -100; \
    ip daddr 192.0.2.3 udp dport 4000 dnat to 203.0.113.2:80; }; }";
const WAY_OUT: &str = "link add v0 type veth peer name v1
link set v0 up
addr add 203.0.113.1/24 dev v0
neigh add 203.0.113.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent";
const PORT: u16 = 4000;
const LO: u32 = 1;
/// BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h).
const LIVE_FRAMES: u32 = 1 << 1;
/// A call makes its page pool anew: so many packets are taken off so that it does not count.
const FEW: u32 = 256;
/// Packets of a call that leaves nothing behind.
const MANY: u32 = 200_000;
/// Datagrams that wait in a socket at once, and frames in a ring.
const WAITING: u32 = 8_000;
const IN_A_RING: u32 = 512;
const CALLS: u32 = 6;
const SOON: Duration = Duration::from_secs(10);

named! {
    /// What some machines cannot measure.
    pub(super) enum Feed {
        Frames = "frames from memory",
        KernelNat = "NAT by the kernel",
        AfXdp = "AF_XDP",
    }
}

impl Case for Feed {
    fn key(&self) -> Value {
        json!({ "feed": self })
    }
}

/// Nanoseconds of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Dropped by XDP, after a look at its headers and for its source.
    pub dropped_by_xdp: f64,
    /// Dropped by the kernel at a socket that is full.
    pub dropped_by_kernel: f64,
    /// To another address and port, routed, by the kernel, as far as the driver of another
    /// interface.
    pub forwarded_by_kernel: Option<f64>,
    /// Into a socket's queue.
    pub to_socket: f64,
    /// Out of it, by a call for each.
    pub one_by_one: f64,
    /// Out of it, by a call for many.
    pub in_batches: f64,
    /// Into the ring of an AF_XDP socket, copied.
    pub to_ring: Option<f64>,
}

impl Round {
    pub(super) fn in_words(&self) -> String {
        let or_none = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
        let ring = or_none(self.to_ring);
        format!(
            "drop by XDP {:.0}, by the kernel {:.0}, by its NAT {}, to a socket {:.0} (out of it {:.0} by recvfrom, {:.0} by recvmmsg), to AF_XDP's ring {ring} ns",
            self.dropped_by_xdp,
            self.dropped_by_kernel,
            or_none(self.forwarded_by_kernel),
            self.to_socket,
            self.one_by_one,
            self.in_batches
        )
    }
}

fn socket_failed(source: io::Error) -> Error {
    Error::Socket { what: "datagrams", source }
}

/// One round, on a thread that keeps to the last processor. Needs root.
pub(super) fn round(harness: &mut Harness<'_>) -> Result<Round> {
    let cpus = Cpus::here()?;
    let namespace = Namespace::new("calibrate")?;
    namespace.ip(&format!("link set lo up\naddr add {HERE}/32 dev lo\n{WAY_OUT}"))?;
    namespace.sysctl("net/ipv4/ip_forward", "1")?;
    let mut storage = MaybeUninit::uninit();
    let open = skeleton::CalibrateSkelBuilder::default().open(&mut storage).map_err(Error::Live)?;
    let loaded = open.load().map_err(Error::Live)?;
    let (guard, pass) = (loaded.progs.guard.as_fd(), loaded.progs.pass.as_fd());
    let (mut round, to_ring) = namespace.run(|| -> Result<_> {
        pin(cpus.measured)?;
        let to_ring = to_ring(cpus.load);
        Ok((by_sockets(guard, pass)?, to_ring))
    })??;
    match forwarded(&namespace, cpus.measured, pass) {
        Ok(ns) => round.forwarded_by_kernel = Some(ns),
        Err(error) => harness.skip(&Feed::KernelNat, error.to_string()),
    }
    match to_ring {
        Ok(ns) => round.to_ring = Some(ns),
        Err(error) => harness.skip(&Feed::AfXdp, error.to_string()),
    }
    Ok(round)
}

fn by_sockets(guard: BorrowedFd<'_>, pass: BorrowedFd<'_>) -> Result<Round> {
    let dropped_by_xdp = more(guard, HERE, MANY)?;
    let socket = receiver()?;
    // The least there is: full after a few.
    sockopt::set_socket_recv_buffer_size(&socket, 1).map_err(|e| socket_failed(e.into()))?;
    let dropped_by_kernel = counted("RcvbufErrors", || more(pass, HERE, MANY))?;
    drop(socket);
    let (first, one_by_one) = queued(Style::Blocking, pass)?;
    let (second, in_batches) = queued(Style::Recvmmsg, pass)?;
    let to_socket = first.midpoint(second);
    Ok(Round {
        dropped_by_xdp,
        dropped_by_kernel,
        forwarded_by_kernel: None,
        to_socket,
        one_by_one,
        in_batches,
        to_ring: None,
    })
}

/// Nanoseconds of a frame through the kernel's NAT: one flow, which is open.
fn forwarded(namespace: &Namespace, cpu: usize, pass: BorrowedFd<'_>) -> Result<f64> {
    let run = |source| Error::Run { program: "nft".into(), source };
    let done = namespace.tool("nft")?.arg(NAT).output().map_err(run)?;
    if !done.status.success() {
        let output = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(Error::Failed { program: "nft".into(), output });
    }
    namespace.run(|| {
        pin(cpu)?;
        counted("ForwDatagrams", || more(pass, SERVICE, MANY))
    })?
}

/// A figure of packets that the kernel must have counted so; else they went elsewhere.
fn counted(name: &str, measure: impl FnOnce() -> Result<f64>) -> Result<f64> {
    let before = counter(name)?;
    let figure = measure()?;
    let counted = counter(name)? - before;
    if counted < u64::from(MANY) * 99 / 100 {
        let what = format!("the kernel counted {counted} of {MANY} packets");
        return Err(Error::NoFigure { who: name.to_owned(), what });
    }
    Ok(figure)
}

/// Of this thread's namespace: /proc/net/snmp.
fn counter(name: &str) -> Result<u64> {
    let path = "/proc/thread-self/net/snmp";
    let text =
        fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    Ok(value(&text, name).unwrap_or(0))
}

/// Pairs of lines, `Ip: NAME ...` and `Ip: NUMBER ...`; the first of that name.
fn value(snmp: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = snmp.lines().collect();
    let pairs = lines.chunks_exact(2);
    let mut columns =
        pairs.flat_map(|two| two[0].split_whitespace().zip(two[1].split_whitespace()));
    columns.find(|(column, _)| *column == name)?.1.parse().ok()
}

/// A child that another thread has just forked has the last socket until it runs its program.
fn receiver() -> Result<UdpSocket> {
    let mut bound = UdpSocket::bind((HERE, PORT));
    let in_use = |bound: &io::Result<_>| {
        bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    wait_until("a port to be free", SOON, || {
        if in_use(&bound) {
            bound = UdpSocket::bind((HERE, PORT));
        }
        !in_use(&bound)
    })?;
    bound.map_err(socket_failed)
}

/// Nanoseconds of a packet into a socket's queue, and out of it.
fn queued(style: Style, pass: BorrowedFd<'_>) -> Result<(f64, f64)> {
    let socket = receiver()?;
    prepare(style, &socket).map_err(socket_failed)?;
    let (mut most, mut least) = (Duration::ZERO, Duration::ZERO);
    let (mut out, mut packets) = (Duration::ZERO, 0);
    for _ in 0..CALLS {
        least += feed(pass, HERE, FEW)?;
        most += feed(pass, HERE, FEW + WAITING)?;
        let (taken, spent) = drain(style, &socket)?;
        (out, packets) = (out + spent, packets + taken);
    }
    let want = u64::from(CALLS) * u64::from(2 * FEW + WAITING);
    if packets < want * 99 / 100 {
        let what = format!("{packets} of {want} datagrams arrived");
        return Err(Error::NoFigure { who: style.name().into(), what });
    }
    let into = clock::each(most.saturating_sub(least), u64::from(CALLS) * u64::from(WAITING));
    Ok((into, clock::each(out, packets)))
}

/// All that waits, on a thread of its own.
fn drain(style: Style, socket: &UdpSocket) -> Result<(u64, Duration)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let before = clock::thread();
            let tally = receive(style, socket, &stop)?;
            Ok((tally.packets, clock::thread() - before))
        });
        // Bytes of the next datagram: none waits any more.
        let empty = || ioctl_fionread(socket).is_ok_and(|bytes| bytes == 0);
        let emptied = wait_until("datagrams to be taken", SOON, empty);
        stop.store(true, Relaxed);
        let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        emptied?;
        received.map_err(socket_failed)
    })
}

/// Nanoseconds of a frame into the ring of Ringway's engine, which sits on another processor if
/// there is one.
fn to_ring(cpu: usize) -> Result<f64> {
    let port = PortSpec::AfXdp(af_xdp::Config::new("lo", 0));
    let app: AppFactory = Arc::new(|| Box::new(Sink::default()));
    let umem = UmemConfig { frames: 8192, ..UmemConfig::default() };
    let config = EngineConfig { umem, ..EngineConfig::default() };
    let worker = WorkerConfig { cpu: Some(cpu), ports: vec![port], app };
    let engine = Engine::start(&config, vec![worker])?;
    let own = program_of_lo()?;
    let taken =
        || engine.status().0.workers.iter().map(|w| w.packets.received_packets).sum::<u64>();
    let own = own.as_fd();
    // Until it has given frames to the kernel, there is no room for any.
    wait_until("a frame to be taken", SOON, || feed(own, HERE, 1).is_ok() && taken() > 0)?;
    let (mut most, mut least) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..CALLS {
        for (packets, spent) in [(FEW, &mut least), (FEW + IN_A_RING, &mut most)] {
            let before = taken();
            *spent += feed(own, HERE, packets)?;
            let all = before + u64::from(packets);
            wait_until("frames to be taken", SOON, || taken() >= all)?;
        }
    }
    engine.stop();
    Ok(clock::each(most.saturating_sub(least), u64::from(CALLS * IN_A_RING)))
}

/// The engine's own, which gives frames to its socket.
fn program_of_lo() -> Result<std::os::fd::OwnedFd> {
    let lo = links::by_index(LO).map_err(|e| Error::Live(std::io::Error::other(e).into()))?;
    let id = lo.xdp.first().map_or(0, |xdp| xdp.program);
    Program::fd_from_id(id).map_err(Error::Live)
}

/// Nanoseconds of one, without what a call costs.
fn more(program: BorrowedFd<'_>, to: Ipv4Addr, packets: u32) -> Result<f64> {
    let few = feed(program, to, FEW)?;
    let spent = feed(program, to, FEW + packets)?;
    Ok(clock::each(spent.saturating_sub(few), packets.into()))
}

/// So many frames to a program; the processor time of it.
fn feed(program: BorrowedFd<'_>, to: Ipv4Addr, packets: u32) -> Result<Duration> {
    let frame = frame(to)?;
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: packets as i32,
        flags: LIVE_FRAMES,
        ..bpf_test_run_opts::default()
    };
    let before = clock::thread();
    // SAFETY: the options say their own size; the frame outlives the call, and nothing is written
    // back.
    let result = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    let spent = clock::thread() - before;
    match result {
        0 => Ok(spent),
        error => Err(Error::Live(libbpf_rs::Error::from_raw_os_error(-error))),
    }
}

/// Ethernet, IPv4 and UDP.
const HEAD: usize = 42;

/// A UDP datagram from [`FROM`], as lo has them: MAC addresses are zero. No UDP checksum (RFC 768).
fn frame(to: Ipv4Addr) -> Result<Vec<u8>> {
    let lo = Mac([0; 6]);
    let mut buffer = [0; 256];
    let built = Builder::new(&mut buffer, 64).and_then(|mut built| {
        built.append(&[7_u8; 64])?.udp(Udp::new(5000, PORT), None)?;
        built.ipv4(Ipv4::new(protocol::UDP, FROM, to), &[])?;
        built.ethernet(Ethernet::new(lo, lo, ethertype::IPV4))?;
        let mut frame = built.packet().to_vec();
        // bpf/calibrate.bpf.c makes its headers anew from there.
        frame.copy_within(..HEAD, HEAD);
        Ok(frame)
    });
    built.map_err(|error| Error::NoFigure { who: "a frame".into(), what: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counted() {
        let snmp = "Ip: Forwarding ForwDatagrams\nIp: 1 42\nUdp: NoPorts RcvbufErrors\nUdp: 3 7\n";
        let wanted = (Some(42), Some(7));
        assert_eq!((value(snmp, "ForwDatagrams"), value(snmp, "RcvbufErrors")), wanted);
        assert_eq!(value(snmp, "Forw"), None);
    }

    /// Frames that go elsewhere are no figure.
    #[test]
    fn a_figure_needs_its_packets() {
        let nothing = counted("ForwDatagrams", || Ok(1.0)).unwrap_err().to_string();
        assert!(nothing.contains("0 of 200000"), "{nothing}");
    }
}
