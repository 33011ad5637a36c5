//! Small servers on threads; each ends with its guard.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use ringway_testnet::Namespace;

use crate::SOON;

/// How often a waiting thread looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(20);

/// Whose datagrams and connections were seen.
#[derive(Debug, Clone, Default)]
pub struct Named(Arc<Mutex<Vec<SocketAddr>>>);

impl Named {
    fn note(&self, peer: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
    }

    /// Peers in the order in which they came.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Their addresses, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<_> = self.peers().iter().map(|peer| peer.ip().to_canonical()).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// A thread that is told to end and waited for.
#[derive(Debug)]
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Worker {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        Worker { stop, thread: Some(thread::spawn(move || work(&told))) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// TCP and UDP: sends every line or datagram back, its name before it.
#[derive(Debug)]
pub struct Echo {
    pub seen: Named,
    _tcp: Worker,
    _udp: Worker,
}

impl Echo {
    /// Listens on `address` in the namespace, both protocols.
    pub fn start(namespace: &Namespace, address: SocketAddr, name: &str) -> Result<Echo> {
        let seen = Named::default();
        let listener = namespace.run(|| TcpListener::bind(address))??;
        listener.set_nonblocking(true)?;
        let socket = namespace.run(|| UdpSocket::bind(address))??;
        socket.set_read_timeout(Some(GLANCE))?;
        let (tcp_name, tcp_seen) = (name.to_owned(), seen.clone());
        let tcp = Worker::start(move |stop| accept(&listener, stop, &tcp_name, &tcp_seen));
        let (udp_name, udp_seen) = (name.to_owned(), seen.clone());
        let udp = Worker::start(move |stop| {
            datagrams(&socket, stop, |peer, data| {
                udp_seen.note(peer);
                Some([udp_name.as_bytes(), b" ", data].concat())
            });
        });
        Ok(Echo { seen, _tcp: tcp, _udp: udp })
    }
}

fn accept(listener: &TcpListener, stop: &AtomicBool, name: &str, seen: &Named) {
    let mut connections = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, peer)) => {
                seen.note(peer);
                let name = name.to_owned();
                connections.push(Worker::start(move |stop| {
                    let _ = lines(stream, stop, &name);
                }));
            }
            Err(_) => thread::sleep(GLANCE / 10),
        }
    }
}

fn lines(stream: TcpStream, stop: &AtomicBool, name: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GLANCE))?;
    let mut answers = stream.try_clone()?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) if line.ends_with(b"\n") => {
                answers.write_all(&[name.as_bytes(), b" ", &line].concat())?;
                line.clear();
            }
            Ok(_) => {}
            Err(error) if again(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn datagrams(
    socket: &UdpSocket,
    stop: &AtomicBool,
    mut answer: impl FnMut(SocketAddr, &[u8]) -> Option<Vec<u8>>,
) {
    let mut data = [0; 65536];
    while !stop.load(Ordering::Relaxed) {
        // Errors: nothing came, or an earlier answer was refused.
        if let Ok((length, peer)) = socket.recv_from(&mut data)
            && let Some(answer) = answer(peer, &data[..length])
        {
            let _ = socket.send_to(&answer, peer);
        }
    }
}

/// TCP: takes and gives as many bytes as it is asked to; see [`crate::bulk`].
#[derive(Debug)]
pub struct Bulk {
    _tcp: Worker,
}

impl Bulk {
    /// Listens on `address` in the namespace.
    pub fn start(namespace: &Namespace, address: SocketAddr) -> Result<Bulk> {
        let listener = namespace.run(|| TcpListener::bind(address))??;
        listener.set_nonblocking(true)?;
        let tcp = Worker::start(move |stop| {
            while !stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(take_and_give(stream)),
                    Err(_) => thread::sleep(GLANCE / 10),
                }
            }
        });
        Ok(Bulk { _tcp: tcp })
    }
}

/// Two numbers of 8 bytes: how many bytes follow, and how many are wanted back.
fn take_and_give(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    let number = |at: usize| {
        head[at..at + 8].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    io::copy(&mut (&stream).take(number(0)), &mut io::sink())?;
    io::copy(&mut io::repeat(b'.').take(number(8)), &mut stream)?;
    Ok(())
}

/// A DNS server that has one answer to every question: its own IPv4 address record.
#[derive(Debug)]
pub struct Dns {
    _udp: Worker,
}

impl Dns {
    /// Answers on `address` with `record`.
    pub fn start(namespace: &Namespace, address: SocketAddr, record: Ipv4Addr) -> Result<Dns> {
        let socket = namespace.run(|| UdpSocket::bind(address))??;
        socket.set_read_timeout(Some(GLANCE))?;
        Ok(Dns {
            _udp: Worker::start(move |stop| {
                datagrams(&socket, stop, |_, query| dns_answer(query, record));
            }),
        })
    }
}

/// RFC 1035, section 4: header, the question as it came, one A record whose name points to it.
fn dns_answer(query: &[u8], record: Ipv4Addr) -> Option<Vec<u8>> {
    const HEAD: usize = 12;
    let name = query.get(HEAD..)?.iter().position(|byte| *byte == 0)? + 1;
    let question = query.get(HEAD..HEAD + name + 4)?;
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    answer.extend(question);
    answer.extend([0xc0, HEAD as u8, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
    answer.extend(record.octets());
    Some(answer)
}

/// HTTP with a status that can be changed while it runs.
#[derive(Debug)]
pub struct Responder {
    pub seen: Named,
    status: Arc<AtomicU16>,
    _tcp: Worker,
}

impl Responder {
    /// Answers every request on `address` with 200, and its name as the body.
    pub fn start(namespace: &Namespace, address: SocketAddr, name: &str) -> Result<Responder> {
        let listener = namespace.run(|| TcpListener::bind(address))??;
        listener.set_nonblocking(true)?;
        let status = Arc::new(AtomicU16::new(200));
        let seen = Named::default();
        let (name, now, peers) = (name.to_owned(), status.clone(), seen.clone());
        let tcp = Worker::start(move |stop| {
            while !stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        peers.note(peer);
                        let _ = respond(stream, now.load(Ordering::Relaxed), &name);
                    }
                    Err(_) => thread::sleep(GLANCE / 10),
                }
            }
        });
        Ok(Responder { seen, status, _tcp: tcp })
    }

    /// From now on answers with this status.
    pub fn say(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }
}

fn respond(mut stream: TcpStream, status: u16, body: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} -\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_answers_have_the_question_and_one_record() {
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01";
        let answer = dns_answer(query, Ipv4Addr::new(192, 0, 2, 7)).unwrap();
        assert_eq!(answer[..2], query[..2]);
        assert_eq!(answer[12..19], query[12..19]);
        assert!(answer.ends_with(&[0, 4, 192, 0, 2, 7]));
        assert_eq!(dns_answer(&query[..14], Ipv4Addr::LOCALHOST), None);
    }
}
