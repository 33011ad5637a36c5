//! Traffic that must go on whatever happens: a paced stream of numbered datagrams, and a long
//! transfer.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_testnet::{Namespace, slowed};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::SOON;

const PACE: Duration = Duration::from_millis(1);
/// Of the receiver's socket: a minute of datagrams. No thread has to keep up.
const ROOM: usize = 64 << 20;
const CHUNK: usize = 16 << 10;

/// What runs until it is told to stop.
struct Runner<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Runner<T> {
    fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Runner<T> {
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        Runner { stop, thread: Some(thread::spawn(move || work(&until))) }
    }

    fn finish(&mut self) -> Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl<T> Drop for Runner<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Datagrams with numbers, one a millisecond, in one direction.
pub struct Numbered {
    sender: Runner<io::Result<u64>>,
    receiver: UdpSocket,
}

impl Numbered {
    /// From the client to a service with this one backend.
    pub fn start(
        client: &Namespace,
        target: SocketAddr,
        backend: (&Namespace, SocketAddr),
    ) -> Result<Numbered> {
        let receiver = backend.0.run(|| UdpSocket::bind(backend.1))??;
        set_socket_recv_buffer_size_force(&receiver, ROOM)?;
        receiver.set_read_timeout(Some(slowed(SOON)))?;
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = client.run(|| UdpSocket::bind(any))??;
        socket.connect(target)?;
        let sender = Runner::start(move |stop| {
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                socket.send(&number.to_be_bytes())?;
                number += 1;
                sleep(PACE);
            }
            Ok(number)
        });
        Ok(Numbered { sender, receiver })
    }

    /// Ends it; how many were sent. Each has arrived, once.
    pub fn finish(mut self) -> Result<u64> {
        let sent = self.sender.finish()?.context("sending")?;
        let mut came = BTreeSet::new();
        let mut number = [0; 8];
        while (came.len() as u64) < sent {
            let received = self.receiver.recv(&mut number);
            received.with_context(|| format!("{} of {sent} datagrams came", came.len()))?;
            ensure!(came.insert(number), "number {} came twice", u64::from_be_bytes(number));
        }
        Ok(sent)
    }
}

/// Bytes over one TCP connection, whose checksum the other end knows, too.
pub struct Transfer {
    sender: Runner<Result<u64>>,
    _receiver: JoinHandle<io::Result<()>>,
}

impl Transfer {
    /// From the client to a service with this one backend.
    pub fn start(
        client: &Namespace,
        target: SocketAddr,
        backend: (&Namespace, SocketAddr),
    ) -> Result<Transfer> {
        let listener = backend.0.run(|| TcpListener::bind(backend.1))??;
        let _receiver = thread::spawn(move || {
            let mut stream = listener.accept()?.0;
            stream.set_read_timeout(Some(slowed(SOON)))?;
            let (mut sum, mut piece) = (Checksum::new(), [0; CHUNK]);
            loop {
                match stream.read(&mut piece)? {
                    0 => return stream.write_all(&sum.0.to_be_bytes()),
                    length => sum.add(&piece[..length]),
                }
            }
        });
        let mut stream = client.run(|| TcpStream::connect_timeout(&target, slowed(SOON)))??;
        stream.set_write_timeout(Some(slowed(SOON)))?;
        stream.set_read_timeout(Some(slowed(SOON)))?;
        let sender = Runner::start(move |stop| {
            let (mut sum, mut sent, mut piece) = (Checksum::new(), 0u64, [0; CHUNK]);
            while !stop.load(Ordering::Relaxed) {
                for (number, byte) in (sent..).zip(&mut piece) {
                    *byte = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
                }
                stream.write_all(&piece)?;
                sum.add(&piece);
                sent += CHUNK as u64;
                sleep(PACE);
            }
            stream.shutdown(Shutdown::Write)?;
            let mut theirs = [0; 8];
            stream.read_exact(&mut theirs)?;
            ensure!(u64::from_be_bytes(theirs) == sum.0, "other bytes came than were sent");
            Ok(sent)
        });
        Ok(Transfer { sender, _receiver })
    }

    /// Ends it; how many bytes were sent. All have arrived as they were sent.
    pub fn finish(mut self) -> Result<u64> {
        self.sender.finish()?
    }
}

/// FNV-1a.
struct Checksum(u64);

impl Checksum {
    fn new() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        let next = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, next);
    }
}
