//! Clients that say exactly how a request failed.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ringway_testnet::{Namespace, slowed};

use crate::SOON;

/// One `GET /` over a connection of its own; returns the body of a 200 without its newline.
pub fn get(client: &Namespace, target: SocketAddr) -> Result<String> {
    let answer = http(client, target, "/")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    if !head.starts_with("HTTP/1.1 200 ") {
        bail!("{target} answered {head:?}");
    }
    Ok(body.trim_end().to_owned())
}

/// One `GET PATH` over a connection of its own; returns the whole answer.
pub fn http(client: &Namespace, target: SocketAddr, path: &str) -> Result<String> {
    let host = target.ip();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    http_raw(client, target, request.as_bytes())
}

/// Asks with one `GET /`, and tells whether nobody answers within a second: for what must not be
/// answered.
pub fn is_silent(client: &Namespace, target: SocketAddr) -> Result<bool> {
    let patience = slowed(Duration::from_secs(1));
    let ask = || -> io::Result<usize> {
        let mut stream = TcpStream::connect_timeout(&target, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
        stream.read(&mut [0])
    };
    Ok(client.run(ask)?.is_err())
}

/// Sends these bytes and reads until the other side closes.
pub fn http_raw(client: &Namespace, target: SocketAddr, request: &[u8]) -> Result<String> {
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&target, slowed(SOON))?;
        stream.set_read_timeout(Some(slowed(SOON)))?;
        stream.write_all(request)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    client.run(exchange)?.with_context(|| format!("asking {target}"))
}

/// Sends a [`crate::Bulk`] server `up` bytes and reads `down` from it.
pub fn bulk(client: &Namespace, target: SocketAddr, up: u64, down: u64) -> Result<()> {
    let exchange = || -> io::Result<u64> {
        let mut stream = TcpStream::connect_timeout(&target, slowed(SOON))?;
        stream.set_read_timeout(Some(slowed(SOON)))?;
        stream.set_write_timeout(Some(slowed(SOON)))?;
        stream.write_all(&[up.to_be_bytes(), down.to_be_bytes()].concat())?;
        io::copy(&mut io::repeat(b'.').take(up), &mut stream)?;
        io::copy(&mut stream, &mut io::sink())
    };
    let came = client.run(exchange)?.with_context(|| format!("bytes to and from {target}"))?;
    if came != down {
        bail!("{came} of {down} bytes from {target}");
    }
    Ok(())
}

/// A long-lived connection to a [`crate::Echo`]: it answers each line with its name and the line.
#[derive(Debug)]
pub struct Line(TcpStream);

impl Line {
    /// Connects from within the namespace; the connection may be used from anywhere.
    pub fn open(client: &Namespace, target: SocketAddr) -> io::Result<Line> {
        let open = || {
            let stream = TcpStream::connect_timeout(&target, slowed(SOON))?;
            stream.set_read_timeout(Some(slowed(SOON)))?;
            stream.set_nodelay(true)?;
            Ok(Line(stream))
        };
        client.run(open).map_err(io::Error::other)?
    }

    /// Sends a line, and returns the name of whoever sent it back.
    pub fn ask(&mut self, line: &str) -> io::Result<String> {
        self.0.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\n") {
            if self.0.read(&mut byte)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer);
        let (name, echoed) = answer.trim_end().split_once(' ').unwrap_or_default();
        if echoed != line {
            return Err(io::Error::other(format!("asked {line:?}, got {answer:?}")));
        }
        Ok(name.to_owned())
    }

    /// Closes this side and waits until the other has closed, too: only the last ACK is under way.
    ///
    /// # Errors
    /// The connection is reset or silent.
    pub fn close(mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)?;
        io::copy(&mut self.0, &mut io::sink()).map(drop)
    }

    /// The client's own end.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A connection or a UDP socket to an [`crate::Echo`], and who answered it first.
#[derive(Debug)]
pub struct Flow {
    pub owner: String,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Tcp(Line),
    Udp(UdpSocket),
}

impl Flow {
    pub fn tcp(client: &Namespace, target: SocketAddr) -> Result<Flow> {
        let mut line = Line::open(client, target)?;
        Ok(Flow { owner: line.ask("first")?, way: Way::Tcp(line) })
    }

    pub fn udp(client: &Namespace, target: SocketAddr) -> Result<Flow> {
        let socket = udp_to(client, target)?;
        Ok(Flow { owner: ask_udp(&socket, "first")?, way: Way::Udp(socket) })
    }

    pub fn is_tcp(&self) -> bool {
        matches!(self.way, Way::Tcp(_))
    }

    /// Who answers now.
    pub fn ask(&mut self, what: &str) -> io::Result<String> {
        match &mut self.way {
            Way::Tcp(line) => line.ask(what),
            Way::Udp(socket) => ask_udp(socket, what),
        }
    }

    /// It is answered by whoever answered first.
    pub fn stays(&mut self, what: &str) -> Result<()> {
        let now = self.ask(what).with_context(|| format!("a flow of {}, {what}", self.owner))?;
        ensure!(now == self.owner, "a flow of {} is answered by {now}, {what}", self.owner);
        Ok(())
    }
}

/// Whether each of `count` pings, `interval` seconds apart, is answered.
pub fn all_answered(client: &Namespace, target: &str, count: u32, interval: &str) -> Result<bool> {
    let mut ping = client.tool("ping")?;
    ping.args(["-n", "-w", "30", "-i", interval, "-c", &count.to_string(), target]);
    Ok(no_ping_is_lost(&String::from_utf8_lossy(&ping.output()?.stdout), count))
}

/// Whether each of the first `count` was answered, by what `ping -w` says: it sends more until so
/// many answers have come.
pub fn no_ping_is_lost(said: &str, count: u32) -> bool {
    let numbers = said.split("icmp_seq=").skip(1);
    let numbers = numbers.filter_map(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    let came: BTreeSet<u32> = numbers.collect();
    (1..=count).all(|number| came.contains(&number))
}

/// A socket of the client's for datagrams to this address.
pub fn udp_to(client: &Namespace, target: SocketAddr) -> Result<UdpSocket> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = client.run(|| UdpSocket::bind(any))??;
    socket.connect(target)?;
    Ok(socket)
}

/// Sends one datagram by this socket and returns the name of whoever sent it back.
pub fn ask_udp(socket: &UdpSocket, text: &str) -> io::Result<String> {
    ask_udp_within(SOON, socket, text)
}

/// The same, with this patience: for who asks again, as a datagram may be lost.
pub fn ask_udp_within(patience: Duration, socket: &UdpSocket, text: &str) -> io::Result<String> {
    socket.set_read_timeout(Some(slowed(patience)))?;
    socket.send(text.as_bytes())?;
    let mut answer = [0; 65536];
    let length = socket.recv(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    match answer.split_once(' ') {
        Some((name, echoed)) if echoed == text => Ok(name.to_owned()),
        _ => Err(io::Error::other(format!("asked {} bytes, got {}", text.len(), answer.len()))),
    }
}

/// From now on the socket sends datagrams without a checksum (IPv4, RFC 768).
pub fn no_checksum(socket: &UdpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: an open socket, and an integer that outlives the call with its length.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
