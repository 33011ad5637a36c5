//! Does it answer a datagram?

use std::io;
use std::time::Duration;

use ringway_config::UdpCheck;
use tokio::net::UdpSocket;

use super::failure::Failure;
use super::peer::Peer;

/// How much of an answer is looked at.
const ANSWER_LIMIT: usize = 16 * 1024;
/// How much of an answer is shown.
const SHOWN: usize = 40;

/// Passes when the datagram is answered within `limit`, with what is expected.
pub(super) async fn udp(peer: &Peer, check: &UdpCheck, limit: Duration) -> Result<(), Failure> {
    peer.bounded(limit, async {
        let socket = peer.datagrams().await?;
        let answer = ask(&socket, peer, &check.send).await?;
        match &check.expect {
            Some(wanted) if !contains(&answer, wanted) => Err(Failure::Unexpected(shown(&answer))),
            _ => Ok(()),
        }
    })
    .await
}

/// Sends a datagram and waits for the next.
pub(super) async fn ask(
    socket: &UdpSocket,
    peer: &Peer,
    question: &[u8],
) -> Result<Vec<u8>, Failure> {
    let failed = |cause| failed(peer, cause);
    socket.send(question).await.map_err(failed)?;
    next(socket, peer).await
}

/// Waits for the next datagram.
pub(super) async fn next(socket: &UdpSocket, peer: &Peer) -> Result<Vec<u8>, Failure> {
    let mut answer = vec![0; ANSWER_LIMIT];
    let length = socket.recv(&mut answer).await.map_err(|cause| failed(peer, cause))?;
    answer.truncate(length);
    Ok(answer)
}

/// ICMP "port unreachable" comes back as a refusal.
fn failed(peer: &Peer, cause: io::Error) -> Failure {
    let address = peer.address;
    match cause.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Unreachable(address),
        _ => Failure::io(address, cause),
    }
}

fn contains(answer: &[u8], wanted: &[u8]) -> bool {
    answer.windows(wanted.len()).any(|window| window == wanted)
}

/// Text as it is, else bytes as a configuration would write them.
fn shown(answer: &[u8]) -> String {
    let start = &answer[..answer.len().min(SHOWN)];
    let more = if answer.len() > SHOWN { "..." } else { "" };
    match std::str::from_utf8(start) {
        Ok(text) if !text.is_empty() && !text.chars().any(|c| c.is_control() && c != '\n') => {
            format!("{:?}{more}", text)
        }
        _ => {
            let digits: String = start.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("\"hex:{digits}\"{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const SOON: Duration = Duration::from_secs(2);

    /// Answers every datagram so; an empty answer: not at all.
    async fn server(answer: &'static [u8]) -> (Peer, tokio::task::JoinHandle<()>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        let address: SocketAddr = socket.local_addr().expect("address");
        let task = tokio::spawn(async move {
            let mut data = [0; 2048];
            while let Ok((_, from)) = socket.recv_from(&mut data).await {
                if !answer.is_empty() {
                    let _ = socket.send_to(answer, from).await;
                }
            }
        });
        (Peer::new(address, None), task)
    }

    fn check(expect: Option<&[u8]>) -> UdpCheck {
        UdpCheck { send: b"ping".to_vec(), expect: expect.map(<[u8]>::to_vec) }
    }

    #[tokio::test]
    async fn results() {
        let (peer, task) = server(b"well, pong").await;
        udp(&peer, &check(None), SOON).await.expect("any answer");
        udp(&peer, &check(Some(b"pong")), SOON).await.expect("within the answer");
        let failure = udp(&peer, &check(Some(b"ping")), SOON).await.expect_err("another answer");
        assert_eq!(failure.to_string(), "answer is not what is expected: \"well, pong\"");
        task.abort();
        let _ = task.await;
        let failure = udp(&peer, &check(None), SOON).await.expect_err("nobody listens");
        assert!(matches!(failure, Failure::Unreachable(_)), "{failure}");
        let (silent, _task) = server(b"").await;
        let failure = udp(&silent, &check(None), Duration::from_millis(50)).await;
        assert!(matches!(failure, Err(Failure::Timeout { .. })));
    }

    #[test]
    fn answers_are_shown_as_they_would_be_written() {
        assert_eq!(shown(b"a\x01"), "\"hex:6101\"");
        assert_eq!(shown(b""), "\"hex:\"");
        assert_eq!(shown(&[b'x'; 50]), format!("\"{}\"...", "x".repeat(40)));
    }
}
