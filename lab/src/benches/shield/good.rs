//! Traffic that must notice nothing: a stream of UDP datagrams with numbers and times, and HTTP.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use ringway_testnet::Namespace;
use rustix::net::sockopt;

use super::flood::Target;
use crate::demo::load::{Load, Plan};
use crate::generate::Pace;
use crate::{Error, Result};

/// In front of each datagram of ours.
const MARK: u64 = 0x7269_6e67_7761_7921;
/// So often the sender wakes up.
const STEP: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_millis(100);
/// For the last datagrams to arrive.
const LAST: Duration = Duration::from_millis(300);
/// Of the receiver's socket: what a busy machine leaves lying is not lost.
const BUFFER: usize = 32 << 20;

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct Good {
    /// Datagrams, and requests of HTTP.
    pub(super) sent: u64,
    /// Datagrams that did not arrive, and requests that failed.
    pub(super) lost: u64,
    /// Of datagrams, one way.
    pub(super) p99_ns: Option<u64>,
    pub(super) http_requests: u64,
    pub(super) http_failed: u64,
    /// From request to answer.
    pub(super) http_p99_ns: Option<u64>,
}

/// Sends for so long: so many datagrams a second, and HTTP at a pace of its own.
pub(super) fn run(
    client: &Namespace,
    backend: &Namespace,
    target: &Target,
    rate: u64,
    time: Duration,
) -> Result<Good> {
    let began = Instant::now();
    let bind = || UdpSocket::bind(("0.0.0.0", target.udp));
    let socket = backend.run(bind)?.map_err(failed)?;
    sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).map_err(|e| failed(e.into()))?;
    socket.set_read_timeout(Some(PAUSE)).map_err(failed)?;
    let web = SocketAddr::from((target.address, target.tcp));
    let plan = Plan { kept_alive: 8, new_per_s: 50, ..Plan::new(web) };
    let load = Load::start(client, plan)?;
    let stop = AtomicBool::new(false);
    let (sent, mut times) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&socket, began, &stop));
        let sent = client.run(|| send(target, rate, began, time));
        thread::sleep(LAST);
        stop.store(true, Relaxed);
        let times = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Error>((sent?.map_err(failed)?, times.map_err(failed)?))
    })?;
    let tally = load.stop()?;
    times.sort_unstable();
    let (requests, failed) = (tally.requests(), tally.failures.len() as u64);
    Ok(Good {
        sent: sent + requests,
        lost: sent.saturating_sub(times.len() as u64) + failed,
        p99_ns: times.get(times.len() * 99 / 100).copied(),
        http_requests: requests,
        http_failed: failed,
        http_p99_ns: (tally.answers() > 0).then(|| tally.latency.value_at_quantile(0.99)),
    })
}

fn failed(source: io::Error) -> Error {
    Error::Socket { what: "datagrams", source }
}

fn send(target: &Target, rate: u64, began: Instant, time: Duration) -> io::Result<u64> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((target.address, target.udp))?;
    let mut pace = Pace::new(rate, 1);
    let (first, mut sent) = (Instant::now(), 0_u64);
    while first.elapsed() < time {
        pace.advance(first.elapsed().as_nanos() as u64);
        while pace.allows(1) {
            pace.spend(1);
            let now = began.elapsed().as_nanos() as u64;
            let datagram = [MARK, sent, now].map(u64::to_be_bytes).concat();
            match socket.send(&datagram) {
                Ok(_) => sent += 1,
                // An answer to one before: it is lost, and seen to be.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => sent += 1,
                Err(error) => return Err(error),
            }
        }
        thread::sleep(STEP);
    }
    Ok(sent)
}

/// Nanoseconds that each datagram took.
fn receive(socket: &UdpSocket, began: Instant, stop: &AtomicBool) -> io::Result<Vec<u64>> {
    let (mut times, mut bytes) = (Vec::new(), [0; 2048]);
    while !stop.load(Relaxed) {
        match socket.recv(&mut bytes) {
            Ok(24) => {
                let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_be_bytes);
                if word(0) == MARK {
                    let now = began.elapsed().as_nanos() as u64;
                    times.push(now.saturating_sub(word(16)));
                }
            }
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_counted_and_timed() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PAUSE)).unwrap();
        let std::net::SocketAddr::V4(to) = socket.local_addr().unwrap() else { return };
        let target = Target { address: *to.ip(), tcp: 1, udp: to.port() };
        let (began, stop) = (Instant::now(), AtomicBool::new(false));
        // What is not ours does not count.
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[0; 24], to).unwrap();
        let (sent, times) = thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&socket, began, &stop).unwrap());
            let sent = send(&target, 1000, began, Duration::from_millis(100)).unwrap();
            thread::sleep(LAST);
            stop.store(true, Relaxed);
            (sent, receiver.join().unwrap())
        });
        // The pace catches up with ten milliseconds at most.
        assert!(sent > 0 && sent <= 111, "{sent}");
        assert_eq!(times.len() as u64, sent);
        assert!(times.iter().all(|ns| *ns < 10_000_000_000));
    }
}
