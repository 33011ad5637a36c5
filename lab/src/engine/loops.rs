//! What needs no kernel: a loop on one processor.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::ports::Null;
use ringway_engine::{Options, Worker};
use ringway_wire::{
    BuildError, Builder, Ethernet, Header as _, Ipv4, Mac, Malformed, Udp, ethertype, protocol,
};
use ringway_xsk::{Batch, PageSize, Pool, Umem, UmemConfig};

use super::case::Case;
use super::cpu::{Cpus, pin};
use super::{Figure, per_packet};
use crate::{Error, Result};

const BURST: usize = 32;
/// Bursts between two looks at the clock.
const BURSTS: usize = 1024;
/// An AF_XDP frame's headroom.
const HEADROOM: usize = 256;
/// What makes it a frame of 64 bytes.
const PAYLOAD: usize = 22;

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

/// The whole of the time is user mode's, and so it is not asked for.
fn repeat(time: Duration, mut burst: impl FnMut()) -> Figure {
    (0..BURSTS).for_each(|_| burst());
    let (began, mut packets) = (Instant::now(), 0);
    while began.elapsed() < time {
        (0..BURSTS).for_each(|_| burst());
        packets += (BURST * BURSTS) as u64;
    }
    let passed = began.elapsed();
    let pps = (packets as f64 / passed.as_secs_f64()) as u64;
    Figure { pps, user_ps: Some(per_packet(passed, packets)), ..Figure::default() }
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
    let options = Options { burst: BURST, ..Options::default() };
    let app = L2fwd::new(Macs::Swap);
    let mut worker = Worker::new(pool, vec![Box::new(port)], app, options);
    let figure = repeat(time, || drop(worker.round()));
    let books = worker.books();
    if books.balanced() { Ok(figure) } else { Err(failed(books.to_string())) }
}

fn frames(time: Duration) -> Result<Figure> {
    let (pool, mut batch) = (pool()?, Batch::new(BURST));
    Ok(repeat(time, || {
        pool.allocate_burst(&mut batch, BURST);
        black_box(&mut batch).clear();
    }))
}

#[inline(never)]
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
    Ok(if udp.header.destination.get() == 53 { udp.payload.len() } else { 0 })
}

/// With the IPv4 checksum; that of UDP may be left out over IPv4 (RFC 768).
#[inline(never)]
fn build_one(buffer: &mut [u8], macs: [Mac; 2]) -> Result<usize, BuildError> {
    let ip = Ipv4::new(protocol::UDP, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut packet = Builder::around(buffer, HEADROOM..HEADROOM + PAYLOAD)?;
    packet.udp(Udp::new(4711, 53), None)?.ipv4(ip, &[])?;
    packet.ethernet(Ethernet::new(macs[0], macs[1], ethertype::IPV4))?;
    Ok(packet.range().start)
}

const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1])];

fn parse(time: Duration) -> Result<Figure> {
    let mut buffer = [0; 512];
    let start = build_one(&mut buffer, MACS).expect("there is room");
    let frame = &buffer[start..HEADROOM + PAYLOAD];
    assert_eq!(parse_one(frame), Ok(PAYLOAD));
    Ok(repeat(time, || {
        for _ in 0..BURST {
            let _ = black_box(parse_one(black_box(frame)));
        }
    }))
}

fn build(time: Duration) -> Result<Figure> {
    let mut buffer = [0; 512];
    Ok(repeat(time, || {
        for _ in 0..BURST {
            let _ = black_box(build_one(black_box(&mut buffer), black_box(MACS)));
        }
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
            assert!(figure.pps > 1000 && figure.user_ps.is_some_and(|ps| ps > 0), "{case}");
        }
    }
}
