//! A server that accepts, a client that connects, and clocks beside both.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, connect, sockopt};

use super::way::Way;
use crate::benches::tcp::counters::Counters;
use crate::benches::tcp::socket::{address, listener, receive_all, send_all, set_option, stream};
use crate::{Error, Result};

/// For a connection that was begun: three retransmissions take seven seconds.
const PATIENCE: Duration = Duration::from_secs(12);

fn failed(source: io::Error) -> Error {
    Error::Socket { what: "connecting", source }
}

/// The results of some connections.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// How long connect() took, each.
    pub connect: Vec<Duration>,
    /// From connect() to the return of the server's accept(), each; none where they cannot be told
    /// apart.
    pub accept: Vec<Duration>,
    pub failed: u64,
    /// Of both ends.
    pub counters: std::collections::BTreeMap<&'static str, u64>,
}

/// A listener in the server's namespace, at a port of its own.
pub(super) struct Server<'w> {
    way: &'w Way,
    listener: OwnedFd,
    pub at: SocketAddrV4,
    before: [Counters; 2],
}

impl<'w> Server<'w> {
    pub(super) fn new(way: &'w Way, backlog: i32) -> Result<Self> {
        let listener = way.server.run(|| listener(way.at, backlog, true))?.map_err(failed)?;
        let at = address(&listener).map_err(failed)?;
        Ok(Self { way, listener, at, before: counters(way)? })
    }

    /// Counters since the server is there, of both ends; of one where both are the same.
    fn counters(&self) -> Result<std::collections::BTreeMap<&'static str, u64>> {
        let now = counters(self.way)?;
        let [mut sum, server] = [0, 1].map(|n| now[n].since(&self.before[n]));
        if self.way.client.name() != self.way.server.name() {
            for (name, by) in server {
                *sum.entry(name).or_default() += by;
            }
        }
        Ok(sum)
    }

    /// One connection after the other, each when the one before is accepted.
    pub(super) fn paced(&self, connections: u32) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let run = || -> io::Result<()> {
            for _ in 0..connections {
                let socket = stream(false)?;
                // Gone at once afterwards, so that no port stays taken.
                let began = Instant::now();
                match connect(&socket, &self.at) {
                    // No port is left.
                    Err(Errno::ADDRNOTAVAIL) => {
                        outcome.failed += 1;
                        continue;
                    }
                    other => other?,
                }
                outcome.connect.push(began.elapsed());
                let accepted = self.accept(PATIENCE)?;
                outcome.accept.push(began.elapsed());
                drop_at_once(&socket)?;
                drop(accepted);
            }
            Ok(())
        };
        self.way.client.run(run)?.map_err(failed)?;
        outcome.counters = self.counters()?;
        Ok(outcome)
    }

    /// All at once, accepted by a thread that begins after a while.
    pub(super) fn at_once(&self, connections: u32, accept_after: Duration) -> Result<Outcome> {
        let mut outcome = thread::scope(|scope| -> Result<Outcome> {
            let (stop, stopped) = channel::<()>();
            let accepting = scope.spawn(move || {
                let _ = stopped.recv_timeout(accept_after);
                self.accept_until(&stopped)
            });
            let done = self.way.client.run(|| begin_all(connections, self.at));
            drop(stop);
            accepting.join().unwrap_or_else(|p| std::panic::resume_unwind(p)).map_err(failed)?;
            done?.map_err(failed)
        })?;
        outcome.counters = self.counters()?;
        Ok(outcome)
    }

    /// Round trips of a byte over a connection.
    pub(super) fn round_trips(&self, count: usize) -> Result<Vec<Duration>> {
        let (client, server) = self.pair()?;
        for socket in [&client, &server] {
            set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).map_err(failed)?;
        }
        thread::scope(|scope| {
            let echo = scope.spawn(move || -> io::Result<()> {
                let mut byte = [0];
                for _ in 0..count {
                    receive_all(&server, &mut byte)?;
                    send_all(&server, &byte)?;
                }
                Ok(())
            });
            let trip = || -> io::Result<Duration> {
                let began = Instant::now();
                send_all(&client, &[1])?;
                receive_all(&client, &mut [0])?;
                Ok(began.elapsed())
            };
            let trips: io::Result<Vec<_>> = (0..count).map(|_| trip()).collect();
            drop(client);
            let echoed = echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            trips.and_then(|trips| echoed.map(|()| trips)).map_err(failed)
        })
    }

    /// A connection that the client has closed and then the server: it is in TIME_WAIT.
    pub(super) fn leave_in_time_wait(&self, connections: u32) -> Result<()> {
        let leave = || -> io::Result<()> {
            for _ in 0..connections {
                let socket = stream(false)?;
                connect(&socket, &self.at)?;
                let accepted = self.accept(PATIENCE)?;
                drop(socket);
                drop(accepted);
            }
            Ok(())
        };
        self.way.client.run(leave)?.map_err(failed)
    }

    fn pair(&self) -> Result<(OwnedFd, OwnedFd)> {
        let open = || {
            let socket = stream(false)?;
            connect(&socket, &self.at)?;
            Ok(socket)
        };
        let client = self.way.client.run(open)?.map_err(failed)?;
        let server = self.accept(PATIENCE).map_err(failed)?;
        Ok((client, server))
    }

    fn accept(&self, patience: Duration) -> io::Result<OwnedFd> {
        let time = timespec(patience);
        if poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&time))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(accept_with(&self.listener, SocketFlags::CLOEXEC)?)
    }

    /// Keeps what comes until told to stop, so that no counter of closing moves.
    fn accept_until(&self, stopped: &Receiver<()>) -> io::Result<()> {
        let mut held = Vec::new();
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            match self.accept(Duration::from_millis(20)) {
                Ok(socket) => held.push(socket),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn counters(way: &Way) -> Result<[Counters; 2]> {
    Ok([way.client.run(Counters::read)??, way.server.run(Counters::read)??])
}

/// A reset instead of TIME_WAIT (RFC 9293, section 3.10.4: ABORT).
fn drop_at_once(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

struct Begun {
    set: OwnedFd,
    sockets: Vec<(OwnedFd, Instant)>,
    left: usize,
    outcome: Outcome,
}

/// Begins all connections without waiting for any, then waits for each.
fn begin_all(connections: u32, to: SocketAddrV4) -> io::Result<Outcome> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut begun = Begun { set, sockets: Vec::new(), left: 0, outcome: Outcome::default() };
    for _ in 0..connections {
        begun.begin(to)?;
        // Connections that are ready do not wait for those that have not begun yet.
        begun.take(Duration::ZERO)?;
    }
    let deadline = Instant::now() + PATIENCE;
    while begun.left > 0 && begun.take(deadline.saturating_duration_since(Instant::now()))? > 0 {}
    begun.outcome.failed += begun.left as u64;
    begun.sockets.iter().try_for_each(|(socket, _)| drop_at_once(socket))?;
    Ok(begun.outcome)
}

impl Begun {
    fn begin(&mut self, to: SocketAddrV4) -> io::Result<()> {
        let socket = stream(true)?;
        let began = Instant::now();
        match connect(&socket, &to) {
            // Over lo the other side has answered before the call returns.
            Ok(()) => self.outcome.connect.push(began.elapsed()),
            Err(Errno::INPROGRESS) => {
                let data = epoll::EventData::new_u64(self.sockets.len() as u64);
                let once = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
                epoll::add(&self.set, &socket, data, once)?;
                self.left += 1;
            }
            Err(Errno::ADDRNOTAVAIL) => self.outcome.failed += 1,
            Err(error) => return Err(error.into()),
        }
        self.sockets.push((socket, began));
        Ok(())
    }

    /// Those that are ready, or get so; how many.
    fn take(&mut self, patience: Duration) -> io::Result<usize> {
        let mut events = Vec::with_capacity(256);
        let time = timespec(patience);
        rustix::io::retry_on_intr(|| {
            epoll::wait(&self.set, rustix::buffer::spare_capacity(&mut events), Some(&time))
        })?;
        for event in &events {
            let (socket, began) = &self.sockets[event.data.u64() as usize];
            match sockopt::socket_error(socket)? {
                Ok(()) => self.outcome.connect.push(began.elapsed()),
                Err(_) => self.outcome.failed += 1,
            }
        }
        self.left -= events.len();
        Ok(events.len())
    }
}
