//! Does it answer a question over UDP? RFC 1035, section 4.

use std::time::Duration;

use ringway_config::{DnsCheck, Rcode};

use super::failure::Failure;
use super::peer::Peer;
use super::udp;

const HEAD: usize = 12;
const CLASS_IN: u16 = 1;
/// In the third byte of the head.
const RESPONSE: u8 = 0x80;
const RECURSION_DESIRED: u8 = 0x01;

/// Passes when the question is answered within `limit`, with one of the expected codes.
pub(super) async fn dns(peer: &Peer, check: &DnsCheck, limit: Duration) -> Result<(), Failure> {
    peer.bounded(limit, async {
        let question = question(id(), check);
        let socket = peer.datagrams().await?;
        let mut answer = udp::ask(&socket, peer, &question).await?;
        // Whatever has another number is no answer to this question.
        while answer.get(..2) != Some(&question[..2]) {
            answer = udp::next(&socket, peer).await?;
        }
        let got = rcode(&answer, &question)
            .ok_or_else(|| Failure::Unexpected("not DNS, or to another question".into()))?;
        match check.rcodes.iter().any(|rcode| rcode.code() == got) {
            true => Ok(()),
            false => Err(Failure::Rcode { got: Rcode::name_of(got), want: wanted(check) }),
        }
    })
    .await
}

fn wanted(check: &DnsCheck) -> String {
    let words: Vec<String> = check.rcodes.iter().map(ToString::to_string).collect();
    words.join(" or ")
}

/// A number that nobody can guess.
fn id() -> [u8; 2] {
    let mut id = [0; 2];
    // Short of randomness (never after boot) the port still tells answers apart.
    let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    id
}

/// One question, with recursion, of class IN.
fn question(id: [u8; 2], check: &DnsCheck) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEAD + check.query.len() + 6);
    message.extend(id);
    message.extend([RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in check.query.split('.').filter(|label| !label.is_empty()) {
        // The configuration lets no label pass that is longer than 63 bytes.
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(check.record.code().to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    message
}

/// The code of an answer to the question; `None` when it is none.
fn rcode(answer: &[u8], question: &[u8]) -> Option<u8> {
    let head = answer.first_chunk::<HEAD>()?;
    if head[2] & RESPONSE == 0 {
        return None;
    }
    let code = head[3] & 0x0f;
    let asked = &question[HEAD..];
    // Servers that cannot read a question send it back in part or not at all.
    let echoed = match answer.get(HEAD..HEAD + asked.len()) {
        Some(echo) => echo.eq_ignore_ascii_case(asked),
        None => false,
    };
    let questions = u16::from_be_bytes([head[4], head[5]]);
    (echoed || questions == 0 && code != Rcode::NoError.code()).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_config::DnsRecord;
    use tokio::net::UdpSocket;

    const SOON: Duration = Duration::from_secs(2);

    fn check(query: &str) -> DnsCheck {
        DnsCheck { query: query.into(), record: DnsRecord::Aaaa, rcodes: vec![Rcode::NoError] }
    }

    #[test]
    fn a_question_on_the_wire() {
        let want = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x00\x00\x1c\x00\x01";
        assert_eq!(question([0x12, 0x34], &check("www.example")), want);
        assert_eq!(question([0, 0], &check(""))[HEAD..], [0, 0, 28, 0, 1]);
    }

    /// Answers each question with what this makes of it.
    async fn server(answer: fn(&[u8]) -> Vec<Vec<u8>>) -> Peer {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        let address = socket.local_addr().expect("address");
        tokio::spawn(async move {
            let mut data = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut data).await {
                for answer in answer(&data[..length]) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Peer::new(address, None)
    }

    fn with_code(question: &[u8], code: u8) -> Vec<u8> {
        let mut answer = question.to_vec();
        (answer[2], answer[3]) = (0x81, 0x80 | code);
        answer
    }

    #[tokio::test]
    async fn results() {
        let good = server(|question| {
            let mut other = with_code(question, 2);
            other[0] ^= 1;
            let mut answer = with_code(question, 0);
            answer[HEAD..].make_ascii_uppercase();
            vec![other, answer]
        })
        .await;
        dns(&good, &check("www.example"), SOON).await.expect("passes");
        let failing = server(|question| vec![with_code(question, 2)]).await;
        let failure = dns(&failing, &check("www.example"), SOON).await.expect_err("SERVFAIL");
        assert_eq!(failure.to_string(), "DNS answer SERVFAIL; NOERROR passes");
        let mut either = check("www.example");
        either.rcodes.push(Rcode::ServFail);
        dns(&failing, &either, SOON).await.expect("either passes");
        let echo = server(|question| vec![question.to_vec()]).await;
        let failure = dns(&echo, &check("www.example"), SOON).await.expect_err("an echo");
        assert!(matches!(failure, Failure::Unexpected(_)), "{failure}");
        let short = server(|question| vec![question[..2].to_vec()]).await;
        assert!(dns(&short, &check("www.example"), SOON).await.is_err());
        let other = server(|_| vec![b"hello".to_vec()]).await;
        assert!(dns(&other, &check("www.example"), Duration::from_millis(50)).await.is_err());
    }
}
