//! Asks a running daemon: one GET over its Unix socket, without a runtime.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// How long the daemon may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a reload of many services: new backends are checked first.
pub const ORDER_PATIENCE: Duration = Duration::from_secs(120);
/// Longest answer that is read.
const ANSWER_LIMIT: u64 = 64 * 1024 * 1024;

/// Why nothing was learnt.
#[derive(Debug)]
pub enum Failure {
    /// Nobody listens on the socket.
    NotRunning,
    /// Somebody does, and has not answered in time.
    Late(Error),
    /// Somebody does, but the answer is no use.
    Failed(Error),
}

/// Asks for `path` and reads the JSON answer.
///
/// # Errors
/// [`Failure::NotRunning`] when nobody listens; else what went wrong, with its remedy.
pub fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Failure> {
    request(socket, ("GET", path, b""), PATIENCE)
}

/// The same with another patience, and without waiting for the daemon to take the connection.
///
/// # Errors
/// As above; [`Failure::Late`] when time is up.
pub fn get_at_once<T>(socket: &Path, path: &str, patience: Duration) -> Result<T, Failure>
where
    T: DeserializeOwned + Send + 'static,
{
    get_and_identify(socket, path, patience).map(|(answer, _)| answer)
}

/// The process that answers: the one that began to listen on the socket.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    pub pid: u64,
    /// Whether it was root's then.
    pub is_root: bool,
}

/// The same, and who has answered, if that can be told: not who listens at this path a moment
/// later.
///
/// # Errors
/// As above.
pub fn get_and_identify<T>(
    socket: &Path,
    path: &str,
    patience: Duration,
) -> Result<(T, Option<Listener>), Failure>
where
    T: DeserializeOwned + Send + 'static,
{
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    let (to, what) = (socket.to_owned(), path.to_owned());
    let ask = move || {
        let mut stream = connect(&to)?;
        let answer = ask(&to, &mut stream, ("GET", &what, b""), patience)?;
        Ok((answer, listener(&stream)))
    };
    // connect(2) waits for room in a stopped daemon's queue, and no option bounds that wait.
    std::thread::spawn(move || send.send(ask()));
    receive.recv_timeout(patience).unwrap_or_else(|_| Err(hangs(socket, patience)))
}

fn listener(stream: &UnixStream) -> Option<Listener> {
    let peer = socket_peercred(stream).ok()?;
    let pid = u64::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
    Some(Listener { pid, is_root: peer.uid.is_root() })
}

/// Orders something and reads the JSON answer. It may take twice as long.
///
/// # Errors
/// As above.
pub fn post<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Failure> {
    request(socket, ("POST", path, b""), 2 * PATIENCE)
}

/// Orders something that may take a while, with a body.
///
/// # Errors
/// As above; of [`crate::error::Kind::Configuration`] where what was asked for is wrong.
pub fn order<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Failure> {
    let body = serde_json::to_vec(body)
        .map_err(|error| failed(socket, &format!("the request is no JSON: {error}"), ""))?;
    request(socket, ("POST", path, &body), ORDER_PATIENCE)
}

fn request<T: DeserializeOwned>(
    socket: &Path,
    asked: (&str, &str, &[u8]),
    patience: Duration,
) -> Result<T, Failure> {
    ask(socket, &mut connect(socket)?, asked, patience)
}

fn connect(socket: &Path) -> Result<UnixStream, Failure> {
    UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::NotRunning,
        io::ErrorKind::PermissionDenied => failed(
            socket,
            "permission denied",
            "run as root, or join the group that owns the socket (ringway)",
        ),
        _ => failed(socket, &error.to_string(), "see the daemon's log"),
    })
}

fn ask<T: DeserializeOwned>(
    socket: &Path,
    stream: &mut UnixStream,
    asked: (&str, &str, &[u8]),
    patience: Duration,
) -> Result<T, Failure> {
    let answer = exchange(stream, asked, patience).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => hangs(socket, patience),
        _ => failed(socket, &error.to_string(), "see the daemon's log"),
    })?;
    let (head, body) = split(&answer)
        .ok_or_else(|| failed(socket, "the answer is not HTTP", "is this Ringway's socket?"))?;
    if !head.starts_with(b"HTTP/1.1 200 ") {
        return Err(refused(socket, head, body));
    }
    serde_json::from_slice(body).map_err(|error| {
        let what = format!("the answer cannot be read: {error}");
        failed(socket, &what, "use the same version of ringway as the daemon's")
    })
}

fn hangs(socket: &Path, patience: Duration) -> Failure {
    let within = match patience.as_secs() {
        0 => format!("{} ms", patience.as_millis()),
        seconds => format!("{seconds} s"),
    };
    Failure::Late(Error::failed(
        format!(
            "API socket {}: no answer within {within}: the daemon hangs, or has no time",
            socket.display()
        ),
        "try again; `uptime` tells of a busy machine; else restart it: it takes over without losing a packet",
    ))
}

/// `asked`: method, path, body.
fn exchange(
    stream: &mut UnixStream,
    (method, path, body): (&str, &str, &[u8]),
    patience: Duration,
) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: ringway\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
    Ok(answer)
}

fn split(answer: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    Some((&answer[..end], &answer[end + 4..]))
}

fn refused(socket: &Path, head: &[u8], body: &[u8]) -> Failure {
    let problem: crate::documents::status::Problem =
        serde_json::from_slice(body).unwrap_or_default();
    if problem.error.is_empty() {
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        return failed(socket, &String::from_utf8_lossy(line), "see the daemon's log");
    }
    if head.starts_with(b"HTTP/1.1 422 ") {
        return Failure::Failed(Error::configuration(problem.error, problem.remedy));
    }
    // The daemon's own words: its socket has done its part.
    Failure::Failed(Error::failed(problem.error, problem.remedy))
}

fn failed(socket: &Path, what: &str, remedy: &str) -> Failure {
    Failure::Failed(Error::failed(format!("API socket {}: {what}", socket.display()), remedy))
}
