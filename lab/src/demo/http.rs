//! One HTTP/1.1 exchange over a blocking socket, with every way it can fail told apart.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;

/// No answer of the demo's backends comes near it.
const LONGEST_ANSWER: usize = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The connection was not accepted: a reset in answer to the SYN.
    Refused,
    Reset,
    /// The connection was closed before the answer was complete.
    Closed,
    /// No complete answer in time.
    Timeout,
    /// An answer that is no HTTP, not 200, or of no known backend.
    BadAnswer,
    /// Anything else, such as no free port.
    Other,
}

impl Fault {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            io::ErrorKind::ConnectionAborted | io::ErrorKind::UnexpectedEof => Self::Closed,
            // A read past its deadline gives WouldBlock on Linux.
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Timeout,
            io::ErrorKind::InvalidData => Self::BadAnswer,
            _ => Self::Other,
        }
    }
}

/// A connection and the request that is sent over it.
pub(super) struct Connection {
    stream: TcpStream,
    request: String,
}

impl Connection {
    pub fn open(target: SocketAddr, timeout: Duration) -> Result<Self, Fault> {
        let open = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&target, timeout)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = open().map_err(|e| Fault::of(&e))?;
        Ok(Self { stream, request: format!("GET / HTTP/1.1\r\nHost: {target}\r\n\r\n") })
    }

    /// Sends one request and returns the body of its answer.
    pub fn get(&mut self, timeout: Duration) -> Result<String, Fault> {
        self.exchange(Instant::now() + timeout).map_err(|e| Fault::of(&e))
    }

    fn exchange(&mut self, deadline: Instant) -> io::Result<String> {
        self.stream.write_all(self.request.as_bytes())?;
        let mut answer = Vec::with_capacity(512);
        let mut piece = [0; 2048];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => answer.extend_from_slice(&piece[..length]),
            }
            if let Some(body) = complete(&answer)? {
                return Ok(body);
            }
        }
    }
}

/// The body once the answer is complete. Knows what nginx sends for a fixed text: 200 and
/// Content-Length.
fn complete(answer: &[u8]) -> io::Result<Option<String>> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let text = std::str::from_utf8(answer).map_err(|_| bad())?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return if answer.len() > LONGEST_ANSWER { Err(bad()) } else { Ok(None) };
    };
    let mut lines = head.split("\r\n");
    if !lines.next().is_some_and(|status| status.starts_with("HTTP/1.1 200 ")) {
        return Err(bad());
    }
    let length: usize = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .filter(|length| *length <= LONGEST_ANSWER)
        .ok_or_else(bad)?;
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some(body.trim_end().to_owned())),
        std::cmp::Ordering::Greater => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn answers_are_complete_or_not_or_bad() {
        let whole = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 3\r\n\r\nb1\n";
        assert_eq!(complete(whole).unwrap().as_deref(), Some("b1"));
        for cut in 0..whole.len() {
            assert_eq!(complete(&whole[..cut]).unwrap(), None, "{cut}");
        }
        for bad in [
            "HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb1\n",
            "SSH-2.0\r\n\r\n",
        ] {
            assert!(complete(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(complete(&vec![b'a'; LONGEST_ANSWER + 1]).is_err());
        assert!(complete(&[0xff, 0xfe]).is_err());
    }

    /// A server that does `serve` with its first connection.
    fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(listener.accept().unwrap().0));
        address
    }

    #[test]
    fn two_requests_on_one_connection() {
        let address = server(|mut stream| {
            for body in ["b1\n", "b2\n"] {
                let mut request = [0; 512];
                assert!(stream.read(&mut request).unwrap() > 0);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(body.as_bytes()).unwrap();
            }
        });
        let mut connection = Connection::open(address, SOON).unwrap();
        assert_eq!(connection.get(SOON).unwrap(), "b1");
        assert_eq!(connection.get(SOON).unwrap(), "b2");
    }

    #[test]
    fn faults_have_their_names() {
        let closed = server(|mut stream| {
            // Read first: closing with unread data would reset.
            let _ = stream.read(&mut [0; 512]);
        });
        assert_eq!(Connection::open(closed, SOON).unwrap().get(SOON), Err(Fault::Closed));

        let (release, held) = std::sync::mpsc::channel::<()>();
        let silent = server(move |_stream| {
            let _ = held.recv();
        });
        let short = Duration::from_millis(50);
        assert_eq!(Connection::open(silent, SOON).unwrap().get(short), Err(Fault::Timeout));
        drop(release);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(Connection::open(nobody, SOON).err(), Some(Fault::Refused));
    }
}
