//! The helper processes, this same binary: servers that share listeners, and clients. They take
//! orders on standard input, a line each, and answer each with a line. [`Helper`] is the other end
//! of their pipes.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use ringway_testnet::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendFlags, SocketFlags, accept_with, bind, connect, recv, send, sockopt,
};

use super::plan::{SERVER, SERVER_PORT, Scheme};
use crate::benches::tcp::socket::{listener, stream, vanish};
use crate::{Error, Result, programs};

/// Bytes of a token that goes there and back.
const TOKEN: usize = 8;
/// Connections that a client who does not pace begins at once.
const BURST: usize = 1000;
/// For all tokens, and for a burst of connections, at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of this binary that takes orders. It dies with the thread that started it.
pub(super) struct Helper {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts one in the namespace, and waits until it is ready.
    pub(super) fn start(namespace: &Namespace, job: &str) -> Result<Self> {
        let binary = programs::own()?;
        let failed = |source| Error::Run { program: binary.display().to_string(), source };
        let mut command = namespace.command(&binary);
        command.args(["bench", "inner", job]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().map_err(failed)?;
        let missing = || failed(std::io::ErrorKind::BrokenPipe.into());
        let answers = BufReader::new(process.stdout.take().ok_or_else(missing)?);
        let orders = process.stdin.take();
        let mut helper = Self { process, orders, answers };
        match helper.answer()?.as_str() {
            "ready" => Ok(helper),
            other => Err(helper.failed(other)),
        }
    }

    /// Gives an order; the answer is still to come.
    pub(super) fn order(&mut self, line: &str) -> Result<()> {
        let sent = self.orders.as_mut().map(|pipe| writeln!(pipe, "{line}"));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failed("it is gone")),
        }
    }

    /// The answer to the order before.
    pub(super) fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(self.failed("it ended before it answered")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Numbers of an answer.
    pub(super) fn numbers<const N: usize>(&mut self) -> Result<[u64; N]> {
        let answer = self.answer()?;
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().map_err(|_| self.failed(&format!("it answered {answer:?}")))
    }

    /// No more orders: it takes its sockets down and ends.
    pub(super) fn dismiss(&mut self) {
        self.orders = None;
    }

    /// Waits for its end after [`Helper::dismiss`].
    pub(super) fn wait(mut self) {
        let _ = self.process.wait();
    }

    fn failed(&self, what: &str) -> Error {
        let program = format!("helper process {}", self.process.id());
        Error::Failed { program, output: format!("{what}; see what it said before") }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Ended already: fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wrong(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_string())
}

fn say(answer: impl std::fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{answer}")?;
    out.flush()
}

/// Listens at the server's ports, and keeps all that comes. Orders: `count`; `echo`: send back what
/// has arrived.
pub(super) fn serve(ports: u16, backlog: i32) -> io::Result<()> {
    crate::benches::tcp::limits::open_files();
    let at = |n| listener(SocketAddrV4::new(SERVER, SERVER_PORT + n), backlog, true);
    let listeners = (0..ports).map(at).collect::<io::Result<Vec<_>>>()?;
    let mut held: Vec<OwnedFd> = Vec::new();
    say("ready")?;
    loop {
        let stdin = io::stdin();
        let mut ready: Vec<_> = listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)).collect();
        ready.push(PollFd::new(&stdin, PollFlags::IN));
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let ordered = ready.pop().is_some_and(|fd| !fd.revents().is_empty());
        let come: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (listener, _) in listeners.iter().zip(come).filter(|(_, come)| *come) {
            accept_all(listener, &mut held)?;
        }
        if ordered {
            match order()?.as_deref() {
                None => return held.into_iter().try_for_each(vanish),
                Some("count") => say(held.len())?,
                Some("echo") => say(echo(&held)?)?,
                Some(other) => return Err(wrong(other)),
            }
        }
    }
}

/// The next order; none at the end.
fn order() -> io::Result<Option<String>> {
    let mut line = String::new();
    let some = io::stdin().lock().read_line(&mut line)? > 0;
    Ok(some.then(|| line.trim_end().to_owned()))
}

fn accept_all(listener: &OwnedFd, held: &mut Vec<OwnedFd>) -> io::Result<()> {
    loop {
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => held.push(socket),
            Err(Errno::WOULDBLOCK) => return Ok(()),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// One pass over all connections; on how many there was something.
fn echo(held: &[OwnedFd]) -> io::Result<usize> {
    let mut count = 0;
    let mut bytes = [0; TOKEN];
    for socket in held {
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((got, _)) if got > 0 => {
                send(socket, &bytes[..got], SendFlags::NOSIGNAL)?;
                count += 1;
            }
            Ok(_) | Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(count)
}

/// The connections of a client process.
pub(super) struct Work {
    pub scheme: Scheme,
    pub numbers: std::ops::Range<u64>,
}

/// Orders: `go RATE`: connect, so many a second, 0 for as fast as can be; answers
/// `CONNECTED SLOWEST_US`. `sample EACH SEED`: send a token on every so many; answers how many.
/// `check SEED`: how many of those have come back.
pub(super) fn connect_all(work: &Work) -> io::Result<()> {
    crate::benches::tcp::limits::open_files();
    let mut held = Vec::new();
    let mut sampled = Vec::new();
    say("ready")?;
    while let Some(line) = order()? {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong(text));
        match words.as_slice() {
            ["go", rate] => {
                let slowest = match number(rate)? {
                    0 => unpaced(work, &mut held)?,
                    rate => paced(work, rate, &mut held)?,
                };
                say(format_args!("{} {}", held.len(), slowest.as_micros()))?;
            }
            ["sample", each, seed] => {
                sampled = sample(&held, number(each)?.max(1), number(seed)?)?;
                say(sampled.len())?;
            }
            ["check", seed] => say(check(&held, &sampled, number(seed)?)?)?,
            _ => return Err(wrong(line)),
        }
    }
    held.into_iter().try_for_each(vanish)
}

/// A socket with the address that the scheme has for it. Its port may serve other destinations as
/// well.
fn from(client: &SocketAddrV4, nonblocking: bool) -> io::Result<OwnedFd> {
    let socket = stream(nonblocking)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, client)?;
    Ok(socket)
}

fn paced(work: &Work, rate: u64, held: &mut Vec<OwnedFd>) -> io::Result<Duration> {
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    for (done, number) in work.numbers.clone().enumerate() {
        let due = Duration::from_secs_f64(done as f64 / rate as f64);
        if let Some(early) = due.checked_sub(began.elapsed()).filter(|d| d.as_millis() > 0) {
            std::thread::sleep(early);
        }
        let (client, server) = work.scheme.addresses(number);
        let socket = from(&client, false)?;
        let asked = Instant::now();
        connect(&socket, &server)?;
        slowest = slowest.max(asked.elapsed());
        held.push(socket);
    }
    Ok(slowest)
}

fn unpaced(work: &Work, held: &mut Vec<OwnedFd>) -> io::Result<Duration> {
    let mut slowest = Duration::ZERO;
    let numbers: Vec<u64> = work.numbers.clone().collect();
    for burst in numbers.chunks(BURST) {
        let asked = Instant::now();
        let mut waiting = Vec::new();
        for number in burst {
            let (client, server) = work.scheme.addresses(*number);
            let socket = from(&client, true)?;
            match connect(&socket, &server) {
                Ok(()) | Err(Errno::INPROGRESS) => waiting.push(socket),
                Err(error) => return Err(error.into()),
            }
        }
        for socket in waiting {
            if ready(&socket, PollFlags::OUT, asked + PATIENCE)?
                && sockopt::socket_error(&socket)?.is_ok()
            {
                slowest = slowest.max(asked.elapsed());
                held.push(socket);
            }
        }
    }
    Ok(slowest)
}

/// Whether it is, or gets so in time.
fn ready(socket: &OwnedFd, what: PollFlags, deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    Ok(poll(&mut [PollFd::new(socket, what)], Some(&time))? > 0)
}

/// The bytes that go over a connection, different for each.
fn token(place: usize, seed: u64) -> [u8; TOKEN] {
    (seed ^ (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
}

/// Sends on every `each`th, from one on that the seed chooses; which these are.
fn sample(held: &[OwnedFd], each: u64, seed: u64) -> io::Result<Vec<usize>> {
    let chosen: Vec<usize> =
        (0..held.len()).skip((seed % each) as usize).step_by(each as usize).collect();
    for &place in &chosen {
        send(&held[place], &token(place, seed), SendFlags::NOSIGNAL)?;
    }
    Ok(chosen)
}

fn check(held: &[OwnedFd], sampled: &[usize], seed: u64) -> io::Result<usize> {
    let mut good = 0;
    let deadline = Instant::now() + PATIENCE;
    for &place in sampled {
        let socket = &held[place];
        // Those of an unpaced client do not block.
        ready(socket, PollFlags::IN, deadline)?;
        let mut bytes = [0; TOKEN];
        let got = recv(socket, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(got, _)| got);
        good += usize::from(got == TOKEN && bytes == token(place, seed));
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ() {
        assert_ne!(token(0, 7), token(1, 7));
        assert_ne!(token(1, 7), token(1, 8));
    }
}
