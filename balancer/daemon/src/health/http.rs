//! Does an HTTP/1.1 GET give an expected status?

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ringway_config::HttpCheck;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::failure::Failure;
use super::peer::Peer;

/// Longest status line and headers that are read.
const HEAD_LIMIT: usize = 16 * 1024;
/// How much of the body is read, so that closing does not reset the connection.
const BODY_LIMIT: usize = 64 * 1024;

/// Passes when the GET is answered with an expected status within `limit`.
pub async fn http(peer: &Peer, check: &HttpCheck, limit: Duration) -> Result<(), Failure> {
    peer.bounded(limit, async { get(peer.connect().await?, peer.address, check).await }).await
}

/// Asks over a connection, and closes it.
pub(super) async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    check: &HttpCheck,
) -> Result<(), Failure> {
    let host = check.host.clone().unwrap_or_else(|| address.to_string());
    let text = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: ringway-check\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n",
        check.path
    );
    let failed = |cause| Failure::io(address, cause);
    stream.write_all(text.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;

    let mut head = Vec::with_capacity(1024);
    let got = loop {
        let end = read_head(&mut stream, &mut head).await.map_err(failed)?;
        let got = status_code(&head).ok_or(Failure::NotHttp(address))?;
        match end {
            // Interim answers come before the answer (RFC 9110, section 15.2); after 101 it is no
            // HTTP.
            Some(end) if (100..200).contains(&got) && got != 101 => drop(head.drain(..end)),
            _ => break got,
        }
    };
    drain(&mut stream).await;
    match check.expect.contains(got) {
        true => Ok(()),
        false => Err(Failure::Status { got, want: check.expect.to_string() }),
    }
}

/// Reads up to the end of the headers, the end of the stream or the limit; where the headers end.
async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    head: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    loop {
        let end = head.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        if end.is_some() || head.len() >= HEAD_LIMIT || stream.read_buf(head).await? == 0 {
            return Ok(end);
        }
    }
}

/// Reads what is left, for half a moment: closing with unread bytes would send a reset, which
/// backends log.
async fn drain(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let mut sink = [0; 4096];
    let mut total = 0;
    let rest = async {
        while total < BODY_LIMIT {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => break,
                Ok(n) => total += n,
            }
        }
        // Sends TLS's closing alert.
        let _ = stream.shutdown().await;
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
    use ringway_config::Statuses;
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_secs(2);

    fn check() -> HttpCheck {
        HttpCheck { path: "/".into(), host: None, expect: Statuses::default() }
    }

    /// A server that answers one connection with `answer`, whatever it is asked; returns what it
    /// was asked.
    async fn server(answer: &'static [u8]) -> (Peer, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let mut buffer = [0; 1024];
            let length = stream.read(&mut buffer).await.unwrap_or_default();
            let _ = stream.write_all(answer).await;
            if answer.is_empty() {
                tokio::time::sleep(SOON * 4).await;
            }
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        });
        (Peer::new(address, None), asked)
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
    async fn results() {
        let (good, asked) = server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        http(&good, &check(), SOON).await.expect("passes");
        let host = format!("\r\nHost: {}\r\n", good.address);
        assert!(asked.await.expect("asked").contains(&host));
        let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
            HTTP/1.1 200 OK\r\n\r\n";
        http(&server(hints).await.0, &check(), SOON).await.expect("the last one counts");
        let (bad, _) = server(b"HTTP/1.1 503 Busy\r\n\r\n").await;
        let failure = http(&bad, &check(), SOON).await.expect_err("status");
        assert_eq!(failure.to_string(), "HTTP status 503; 200 to 399 pass");
        let (other, _) = server(b"SSH-2.0-x\r\n").await;
        assert!(matches!(http(&other, &check(), SOON).await, Err(Failure::NotHttp(_))));
        let (silent, _) = server(b"").await;
        let limit = Duration::from_millis(100);
        assert!(matches!(http(&silent, &check(), limit).await, Err(Failure::Timeout { .. })));
    }

    #[tokio::test]
    async fn host_and_statuses_of_ones_own() {
        let host = Some("web.example".to_owned());
        let own = HttpCheck { path: "/up?x=1".into(), host, ..check() };
        let (peer, asked) = server(b"HTTP/1.1 204 -\r\n\r\n").await;
        http(&peer, &own, SOON).await.expect("passes");
        let asked = asked.await.expect("asked");
        assert!(asked.starts_with("GET /up?x=1 HTTP/1.1\r\nHost: web.example\r\n"), "{asked}");
    }
}
