//! UDP: the server that each backend runs, and the client.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::load::nanoseconds;

/// The server prints this once it listens.
pub(super) const READY: &str = "listening";
const LONGEST: usize = 1500;

/// Answers every datagram with `name`, a space and the datagram. Until killed.
pub(super) fn serve(address: SocketAddr, name: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    println!("{READY}");
    let mut datagram = [0; LONGEST];
    loop {
        let (length, client) = match socket.recv_from(&mut datagram) {
            // An ICMP error in answer to one client is nothing to others.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => continue,
            other => other?,
        };
        let answer = [name.as_bytes(), b" ", &datagram[..length]].concat();
        let _ = socket.send_to(&answer, client);
    }
}

pub(super) struct Echoed {
    pub answered: BTreeMap<String, u64>,
    pub lost: u64,
    /// Answers that were not to the question, or a flow that changed its backend.
    pub wrong: u64,
    pub latency: Histogram<u64>,
    pub elapsed: Duration,
}

/// `each` datagrams from each of `flows` sockets, one after another, each waiting `timeout` for its
/// answer. Gives up after ten that were lost.
pub(super) fn ask(
    target: SocketAddr,
    flows: u32,
    each: u32,
    timeout: Duration,
) -> io::Result<Echoed> {
    let begin = Instant::now();
    let mut echoed = Echoed {
        answered: BTreeMap::new(),
        lost: 0,
        wrong: 0,
        latency: nanoseconds(),
        elapsed: Duration::ZERO,
    };
    let any: SocketAddr =
        if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    for flow in 0..flows {
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        socket.set_read_timeout(Some(timeout))?;
        let mut first = None;
        for n in 0..each {
            if echoed.lost >= 10 {
                break;
            }
            let question = format!("{flow}/{n}");
            match exchange(&socket, &question, &mut echoed.latency) {
                Ok(Some(backend)) if *first.get_or_insert_with(|| backend.clone()) == backend => {
                    *echoed.answered.entry(backend).or_default() += 1;
                }
                Ok(_) => echoed.wrong += 1,
                Err(_) => echoed.lost += 1,
            }
        }
    }
    echoed.elapsed = begin.elapsed();
    Ok(echoed)
}

/// The name of the backend that answered; `None` for an answer to something else.
fn exchange(
    socket: &UdpSocket,
    question: &str,
    latency: &mut Histogram<u64>,
) -> io::Result<Option<String>> {
    let sent = Instant::now();
    socket.send(question.as_bytes())?;
    let mut answer = [0; LONGEST];
    let length = socket.recv(&mut answer)?;
    latency.saturating_record(sent.elapsed().as_nanos() as u64);
    let answer = String::from_utf8_lossy(&answer[..length]);
    Ok(answer.split_once(' ').filter(|(_, echo)| *echo == question).map(|(name, _)| name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn asks_and_is_answered() {
        // Nobody else has this address, where the port stays free.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let own = SocketAddr::from(([127, 128 | high, middle, low], 0));
        let free = UdpSocket::bind(own).unwrap().local_addr().unwrap();
        thread::spawn(move || serve(free, "b1"));
        let ready = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(free).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            matches!(exchange(&socket, "x", &mut nanoseconds()), Ok(Some(_)))
        };
        ringway_testnet::wait_until("the echo server", Duration::from_secs(5), ready).unwrap();
        let echoed = ask(free, 3, 4, Duration::from_secs(5)).unwrap();
        assert_eq!((echoed.lost, echoed.wrong, echoed.latency.len()), (0, 0, 12));
        assert_eq!(echoed.answered.get("b1"), Some(&12));
    }
}
