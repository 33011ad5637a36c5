//! The peer of a check, and the sockets that get there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use ringway_host::TcpOptions;
use ringway_plan::tables::SynOffer;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use super::failure::Failure;

/// The node's address that a backend answers to, or why there is no way to it now.
pub type Source = Result<IpAddr, String>;

/// How a check gets to one backend of several that are asked at the same address: by the mark of
/// its packets.
#[derive(Clone, Debug)]
pub struct ProbeRoute {
    pub mark: u32,
    /// Where replies go.
    pub source: watch::Receiver<Source>,
}

#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// How to get there; absent: as the kernel does.
    pub probe_route: Option<ProbeRoute>,
    /// What it has offered, once it has accepted a TCP connection.
    pub offer: OnceLock<SynOffer>,
}

impl Peer {
    pub fn new(address: SocketAddr, probe_route: Option<ProbeRoute>) -> Peer {
        Peer { address, probe_route, offer: OnceLock::new() }
    }

    /// Ends a probe that takes longer than `limit`.
    pub(super) async fn bounded(
        &self,
        limit: Duration,
        probe: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        timeout(limit, probe).await.unwrap_or_else(|_| {
            // Without a way, nothing was asked.
            let no_way = self
                .probe_route
                .as_ref()
                .and_then(|probe_route| probe_route.source.borrow().clone().err());
            let address = self.address;
            Err(no_way.map_or(Failure::Timeout { address, limit }, Failure::NoWay))
        })
    }

    pub(super) async fn connect(&self) -> Result<TcpStream, Failure> {
        let address = self.address;
        let connected = match &self.probe_route {
            None => TcpStream::connect(address).await,
            Some(probe_route) => probe_route.connect(address).await,
        };
        let stream = connected.map_err(|cause| match cause.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused(address),
            _ => Failure::io(address, cause),
        })?;
        if let Ok(options) = ringway_host::tcp_options(&stream) {
            let TcpOptions { stamps, sack, ecn, mss } = options;
            let _ = self.offer.set(SynOffer { mss, stamps, sack, ecn });
        }
        Ok(stream)
    }

    /// A socket that has its port, and no connection; by the probe route.
    pub(super) async fn bound_socket(&self) -> io::Result<TcpSocket> {
        let route = self.probe_route.as_ref();
        let route = route.ok_or_else(|| io::Error::other("there is no probe route"))?;
        let source = route.open().await?;
        let socket = route.socket(self.address)?;
        socket.bind(SocketAddr::new(source, 0))?;
        Ok(socket)
    }

    /// A UDP socket that hears this peer alone, and what ICMP says of it.
    pub(super) async fn datagrams(&self) -> Result<UdpSocket, Failure> {
        let address = self.address;
        let socket = match &self.probe_route {
            None => any_port(address).await,
            Some(probe_route) => probe_route.datagrams(address).await,
        };
        let reporting = socket.and_then(|socket| {
            ringway_host::report_errors(&socket, address.is_ipv6())?;
            Ok(socket)
        });
        reporting.map_err(|cause| Failure::io(address, cause))
    }
}

async fn any_port(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}

impl ProbeRoute {
    /// Waits until there is a way.
    async fn open(&self) -> io::Result<IpAddr> {
        let mut source = self.source.clone();
        let found = source.wait_for(Result::is_ok).await.map_err(io::Error::other)?.clone();
        found.map_err(io::Error::other)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let source = self.open().await?;
        let socket = self.socket(address)?;
        ringway_host::bind_late(&socket)?;
        socket.bind(SocketAddr::new(source, 0))?;
        socket.connect(address).await
    }

    fn socket(&self, address: SocketAddr) -> io::Result<TcpSocket> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        self.mark(&socket, address)?;
        Ok(socket)
    }

    async fn datagrams(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        let source = self.open().await?;
        let socket = UdpSocket::bind(SocketAddr::new(source, 0)).await?;
        self.mark(&socket, address)?;
        socket.connect(address).await?;
        Ok(socket)
    }

    /// One hop: neither a way in the link-layer's frame nor opening a tunnel takes one off (RFC
    /// 2003, section 3.1), nor does delivery. So the check dies on a backend that has not the
    /// service address and would forward it, to be answered by another.
    fn mark(&self, socket: impl AsFd, to: SocketAddr) -> io::Result<()> {
        ringway_host::set_mark(&socket, self.mark)?;
        match to {
            SocketAddr::V4(_) => sockopt::set_ip_ttl(&socket, 1)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_unicast_hops(&socket, Some(1))?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tcp::tcp;
    use super::*;

    #[tokio::test]
    async fn without_a_way_nothing_is_asked() {
        let (_send, source) = watch::channel(Err("next hop has not told its address".to_owned()));
        let probe_route = Some(ProbeRoute { mark: 1, source });
        let peer = Peer::new("192.0.2.1:80".parse().expect("an address"), probe_route);
        let failure = tcp(&peer, Duration::from_millis(20)).await.expect_err("no way");
        assert_eq!(failure.to_string(), "no way to it: next hop has not told its address");
    }
}
