//! Cases without the kernel: a loop on one processor.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::ports::Null;
use ringway_engine::{Worker, WorkerOptions};
use ringway_wire::{
    BuildError, Builder, Ethernet, Header as _, Ipv4, Mac, Malformed, Udp, ethertype, protocol,
};
use ringway_xsk::{Batch, PageSize, Pool, Umem, UmemConfig};
use rustix::time::{ClockId, clock_gettime};

use super::case::Case;
use super::{Figure, per_packet};
use crate::harness::cpu::{Cpus, pin};
use crate::{Error, Result};

const BURST: usize = 32;
/// Bursts between two looks at the clock.
const BURSTS: usize = 1024;
/// An AF_XDP frame's headroom.
const HEADROOM: usize = 256;
/// Bytes of a frame, and what it carries.
const FRAME: usize = 64;
const PAYLOAD: usize = FRAME - 14 - 20 - 8;
const PORT: u16 = 53;

/// Runs a case on a thread of its own.
pub(super) fn run(case: Case, cpus: Cpus, time: Duration) -> Result<Figure> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpus.measured)?;
            match case {
                Case::MemoryMacswap => macswap(time),
                Case::FrameAllocFree => frames(time),
                Case::WireParse => parse(time),
                _ => build(time),
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The thread's own time is user mode's: it makes no system calls. On a busy machine it is less
/// than what passes.
fn repeat(time: Duration, mut burst: impl FnMut()) -> Figure {
    (0..BURSTS).for_each(|_| burst());
    let (began, own, mut packets) = (Instant::now(), own_time(), 0);
    // Once at least, however long others have the processor.
    let passed = loop {
        (0..BURSTS).for_each(|_| burst());
        packets += (BURST * BURSTS) as u64;
        let passed = began.elapsed();
        if passed >= time {
            break passed;
        }
    };
    let own = own_time().saturating_sub(own);
    let pps = (packets as f64 / passed.as_secs_f64()) as u64;
    Figure { pps, user_ps: Some(per_packet(own, packets)), ..Figure::default() }
}

/// Processor time of the calling thread.
fn own_time() -> Duration {
    // Never before 1970.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

fn pool() -> Result<Pool> {
    let config = UmemConfig { pages: PageSize::Huge2M, ..UmemConfig::default() };
    let umem = Umem::new(&config).map_err(ringway_engine::EngineError::from)?;
    Ok(umem.pool().expect("a new UMEM has a pool"))
}

fn macswap(time: Duration) -> Result<Figure> {
    let failed = |what: String| Error::NoFigure { who: "memory-macswap".into(), what };
    let pool = pool()?;
    let port = Null::open("null:64".into(), &pool, vec![0; 64]);
    let port = port.map_err(|error| failed(error.to_string()))?;
    let options = WorkerOptions { burst: BURST, ..WorkerOptions::default() };
    let app = L2fwd::new(Macs::Swap);
    let mut worker = Worker::new(pool, vec![Box::new(port)], app, options);
    let figure = repeat(time, || drop(worker.round()));
    let audit = worker.audit();
    if audit.balanced() { Ok(figure) } else { Err(failed(audit.to_string())) }
}

fn frames(time: Duration) -> Result<Figure> {
    let (pool, mut batch) = (pool()?, Batch::new(BURST));
    Ok(repeat(time, || {
        pool.allocate_burst(&mut batch, BURST);
        black_box(&mut batch).clear();
    }))
}

/// Between whom a packet goes.
struct Flow {
    macs: [Mac; 2],
    addresses: [Ipv4Addr; 2],
    ports: [u16; 2],
}

fn flows() -> Vec<Flow> {
    let macs = [Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1])];
    let flow = |n| Flow {
        macs,
        addresses: [[10, 0, 0, n].into(), [10, 0, 1, n].into()],
        ports: [4000 + u16::from(n), PORT],
    };
    (0..BURST as u8).map(flow).collect()
}

/// The length of the payload, of a datagram to our port.
#[inline]
fn parse_one(bytes: &[u8]) -> Result<usize, Malformed> {
    let ethernet = Ethernet::parse(bytes)?;
    if ethernet.header.ethertype.get() != ethertype::IPV4 {
        return Ok(0);
    }
    let ip = Ipv4::parse(ethernet.payload)?;
    if ip.header.protocol != protocol::UDP || ip.header.fragment().is_some() {
        return Ok(0);
    }
    let udp = Udp::parse(ip.payload)?;
    Ok(if udp.header.destination.get() == PORT { udp.payload.len() } else { 0 })
}

/// With the IPv4 checksum; that of UDP may be left out over IPv4 (RFC 768).
#[inline]
fn build_one(buffer: &mut [u8], payload: usize, flow: &Flow) -> Result<usize, BuildError> {
    let ip = Ipv4::new(protocol::UDP, flow.addresses[0], flow.addresses[1]);
    let mut packet = Builder::around(buffer, HEADROOM..HEADROOM + payload)?;
    packet.udp(Udp::new(flow.ports[0], flow.ports[1]), None)?.ipv4(ip, &[])?;
    packet.ethernet(Ethernet::new(flow.macs[0], flow.macs[1], ethertype::IPV4))?;
    Ok(packet.len())
}

/// Bytes of payload, in all.
#[inline(never)]
fn parse_burst(frames: &[Vec<u8>]) -> usize {
    frames.iter().map(|frame| parse_one(frame).unwrap_or(0)).sum()
}

/// Bytes of frames, in all.
#[inline(never)]
fn build_burst(buffers: &mut [[u8; 512]], payload: usize, flows: &[Flow]) -> usize {
    let each = buffers.iter_mut().zip(flows);
    each.map(|(buffer, flow)| build_one(buffer, payload, flow).unwrap_or(0)).sum()
}

fn parse(time: Duration) -> Result<Figure> {
    let mut buffers = [[0; 512]; BURST];
    assert_eq!(build_burst(&mut buffers, PAYLOAD, &flows()), BURST * FRAME);
    let frames: Vec<_> = buffers
        .iter()
        .map(|b| b[HEADROOM + PAYLOAD - FRAME..HEADROOM + PAYLOAD].to_vec())
        .collect();
    assert_eq!(parse_burst(&frames), BURST * PAYLOAD);
    Ok(repeat(time, || {
        black_box(parse_burst(black_box(&frames)));
    }))
}

fn build(time: Duration) -> Result<Figure> {
    let (mut buffers, flows) = ([[0; 512]; BURST], flows());
    Ok(repeat(time, || {
        black_box(build_burst(black_box(&mut buffers), black_box(PAYLOAD), black_box(&flows)));
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_figure() {
        let cpus = Cpus::here().unwrap();
        for case in [Case::MemoryMacswap, Case::FrameAllocFree, Case::WireParse, Case::WireBuild] {
            let figure = run(case, cpus, Duration::from_millis(1)).unwrap();
            assert!(figure.pps > 0 && figure.user_ps.is_some_and(|ps| ps > 0), "{case}");
        }
    }
}
