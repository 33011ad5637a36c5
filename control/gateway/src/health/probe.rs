//! One check of one backend: a TCP connect, or an HTTP/1.1 GET.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest status line and headers that are read.
const HEAD_LIMIT: usize = 16 * 1024;
/// How much of the body is read, so that closing does not reset the connection.
const BODY_LIMIT: usize = 64 * 1024;

/// The node's address that a backend answers to, or why there is no way to it now.
pub type Source = Result<IpAddr, String>;

/// How a check gets to one backend of several that are asked at the same address: by the mark of its
/// packets.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The mark.
    pub mark: u32,
    /// Where replies go.
    pub source: watch::Receiver<Source>,
}

/// Whom to ask.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where to connect.
    pub address: SocketAddr,
    /// How to get there; absent: as the kernel does.
    pub lane: Option<Lane>,
}

/// Why a check failed. The address is the backend's, so only the port is told.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens.
    #[error("connection refused on port {}", .0.port())]
    Refused(SocketAddr),
    /// No answer in time.
    #[error("no answer on port {} within {} ms", address.port(), limit.as_millis())]
    Timeout {
        /// Who was asked.
        address: SocketAddr,
        /// The check's timeout.
        limit: Duration,
    },
    /// The backend cannot be reached now.
    #[error("no way to it: {0}")]
    NoWay(String),
    /// The connection could not be made or broke.
    #[error("port {}: {}", address.port(), in_words(cause))]
    Io {
        /// Who was asked.
        address: SocketAddr,
        /// What the kernel said.
        cause: io::Error,
    },
    /// An HTTP answer with another status than expected.
    #[error("HTTP status {0}; 200 to 399 pass")]
    Status(u16),
    /// The peer closed or sent something that is not HTTP.
    #[error("port {} does not answer in HTTP/1", .0.port())]
    NotHttp(SocketAddr),
}

/// Without the number, which says nothing to people.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// HTTP statuses that pass.
const GOOD: RangeInclusive<u16> = 200..=399;

/// Passes when a connection is accepted within `limit`.
pub async fn tcp(peer: &Peer, limit: Duration) -> Result<(), Failure> {
    bounded(peer, limit, async {
        let stream = connect(peer).await?;
        // Checks of all backends of a service share its address, so ports must not wait long after.
        if peer.lane.is_some() {
            let _ = stream.set_zero_linger();
        }
        Ok(())
    })
    .await
}

/// Passes when `GET path` is answered with a status from 200 to 399 within `limit`.
pub async fn http(peer: &Peer, path: &str, limit: Duration) -> Result<(), Failure> {
    bounded(peer, limit, get(peer, path)).await
}

async fn bounded(
    peer: &Peer,
    limit: Duration,
    probe: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    timeout(limit, probe).await.unwrap_or_else(|_| {
        // Without a way, nothing was asked.
        let no_way = peer.lane.as_ref().and_then(|lane| lane.source.borrow().clone().err());
        let address = peer.address;
        Err(no_way.map_or(Failure::Timeout { address, limit }, Failure::NoWay))
    })
}

async fn connect(peer: &Peer) -> Result<TcpStream, Failure> {
    let address = peer.address;
    let connected = match &peer.lane {
        None => TcpStream::connect(address).await,
        Some(lane) => by_lane(address, lane).await,
    };
    connected.map_err(|cause| match cause.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused(address),
        _ => Failure::Io { address, cause },
    })
}

/// Waits until there is a way.
async fn by_lane(address: SocketAddr, lane: &Lane) -> io::Result<TcpStream> {
    let mut source = lane.source.clone();
    let found = source.wait_for(Result::is_ok).await.map_err(io::Error::other)?.clone();
    let source = found.map_err(io::Error::other)?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    ringway_host::set_mark(&socket, lane.mark)?;
    ringway_host::bind_late(&socket)?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(address).await
}

async fn get(peer: &Peer, path: &str) -> Result<(), Failure> {
    let address = peer.address;
    let mut stream = connect(peer).await?;
    let text = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: ringway-check\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    let failed = |cause| Failure::Io { address, cause };
    stream.write_all(text.as_bytes()).await.map_err(failed)?;

    let head = read_head(&mut stream).await.map_err(failed)?;
    let got = status_code(&head).ok_or(Failure::NotHttp(address))?;
    drain(&mut stream).await;
    if GOOD.contains(&got) { Ok(()) } else { Err(Failure::Status(got)) }
}

/// Reads up to the end of the headers, the end of the stream or the limit.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < HEAD_LIMIT && !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

/// Reads what is left, for half a moment: closing with unread bytes would send a reset, which
/// backends log.
async fn drain(stream: &mut TcpStream) {
    let mut sink = [0; 4096];
    let mut total = 0;
    let rest = async {
        while total < BODY_LIMIT {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => break,
                Ok(n) => total += n,
            }
        }
    };
    // The verdict is already known; a body that does not come must not make it late.
    let _ = timeout(Duration::from_millis(50), rest).await;
}

/// Status code of an HTTP/1 status line (RFC 9112, section 4).
fn status_code(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("HTTP/1.0 ").or_else(|| line.strip_prefix("HTTP/1.1 "))?;
    let code = rest.get(..3)?;
    if rest.len() > 3 && !rest[3..].starts_with(' ') {
        return None;
    }
    code.parse().ok().filter(|code| (100..=599).contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_millis(300);

    fn peer(address: SocketAddr) -> Peer {
        Peer { address, lane: None }
    }

    /// A server that answers one connection with `answer`, whatever it is asked.
    async fn server(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(answer).await;
            if answer.is_empty() {
                tokio::time::sleep(SOON * 4).await;
            }
        });
        address
    }

    #[test]
    fn status_lines() {
        for (line, want) in [
            ("HTTP/1.1 200 OK\r\n", Some(200)),
            ("HTTP/1.0 404\r\n", Some(404)),
            ("HTTP/1.1 2000 OK\r\n", None),
            ("HTTP/2 200\r\n", None),
            ("HTTP/1.1 20", None),
            ("SSH-2.0-OpenSSH\r\n", None),
            ("", None),
        ] {
            assert_eq!(status_code(line.as_bytes()), want, "{line}");
        }
    }

    #[tokio::test]
    async fn http_results() {
        let good = server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        http(&peer(good), "/", SOON).await.expect("passes");
        let bad = server(b"HTTP/1.1 503 Busy\r\n\r\n").await;
        let failure = http(&peer(bad), "/", SOON).await.expect_err("status");
        assert_eq!(failure.to_string(), "HTTP status 503; 200 to 399 pass");
        let other = server(b"SSH-2.0-x\r\n").await;
        assert!(matches!(http(&peer(other), "/", SOON).await, Err(Failure::NotHttp(_))));
        let silent = server(b"").await;
        assert!(matches!(http(&peer(silent), "/", SOON).await, Err(Failure::Timeout { .. })));
    }

    #[tokio::test]
    async fn tcp_results() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        tcp(&peer(address), SOON).await.expect("passes");
        drop(listener);
        assert!(matches!(tcp(&peer(address), SOON).await, Err(Failure::Refused(_))));
    }

    #[tokio::test]
    async fn without_a_way_nothing_is_asked() {
        let (_send, source) = watch::channel(Err("next hop has not told its address".to_owned()));
        let lane = Some(Lane { mark: 1, source });
        let peer = Peer { address: "192.0.2.1:80".parse().expect("an address"), lane };
        let failure = tcp(&peer, Duration::from_millis(20)).await.expect_err("no way");
        assert_eq!(failure.to_string(), "no way to it: next hop has not told its address");
    }
}
