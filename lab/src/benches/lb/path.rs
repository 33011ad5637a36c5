//! The paths from the client to the backends, and one that is set up and carries requests.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

use ringway_kernel::XdpMode;
use ringway_testnet::{Child, Nginx, OneBridge, XdpReceive, one_bridge, wait_for};

use super::balancer::{Balancer, PORT, v4};
use super::cost::{Clock, Spent};
use super::sockmap::{Redirected, ShortCut};
use super::{bare, gateway, kernel_nat, proxies};
use crate::harness::named_enum::named;
use crate::harness::wrk;
use crate::{Error, Result};

named! {
    /// One way from the client to the two backends.
    pub enum LbPath {
        /// No balancer: the client's own multipath route spreads connections over the two backends.
        Direct = "direct",
        /// nginx's stream module, one worker.
        NginxStream = "nginx-stream",
        /// The same nginx and backends, whose sockets the kernel short-cuts (sockops and sk_msg).
        NginxSockmap = "nginx-sockmap",
        /// HAProxy in tcp mode, one thread.
        Haproxy = "haproxy",
        /// nftables: DNAT and masquerade.
        Nftables = "nftables",
        /// IPVS in masquerading mode.
        Ipvs = "ipvs",
        /// The fixed rewriter, generic XDP, in the balancer's container.
        BareGeneric = "bare-generic",
        /// The fixed rewriter, native XDP, in the balancer's container.
        BareNative = "bare-native",
        /// Ringway, generic XDP, in the balancer's container.
        RingwayGeneric = "ringway-generic",
        /// Ringway, native XDP, in the balancer's container.
        RingwayNative = "ringway-native",
        /// Ringway, native XDP, at the host ends of the veth pairs: redirects past the bridge.
        RingwayHost = "ringway-host",
        /// The same with `syn = "proxy"`, always: each segment's numbers are shifted.
        RingwayShifted = "ringway-shifted",
    }
}

impl LbPath {
    /// Whether it is one of Ringway's own.
    pub fn is_ringway(self) -> bool {
        matches!(
            self,
            Self::RingwayGeneric | Self::RingwayNative | Self::RingwayHost | Self::RingwayShifted
        )
    }
}

const BACKENDS: usize = 2;
/// Fetches made before measuring, to see that both backends answer. A fair spread misses one of
/// them once in 2^47 times.
const TRIAL_FETCHES: usize = 48;

/// What requests came to on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub figures: wrk::Figures,
    pub spent: Spent,
    /// Where there is a short cut.
    pub redirected: Option<Redirected>,
}

/// A path with traffic. Dropping it takes everything down.
pub(super) struct PathSetup {
    // Dropped in this order: programs before the namespaces they live in.
    balancer: Balancer,
    _backends: Vec<Nginx>,
    backend_pids: Vec<u32>,
    short_cut: Option<ShortCut>,
    pub net: OneBridge,
}

impl PathSetup {
    /// Makes the topology, the backends and the balancer, and waits until both backends answer
    /// through it.
    pub fn set_up(path: LbPath, ringway: &Path) -> Result<Self> {
        let net = one_bridge(BACKENDS, XdpReceive::No)?;
        let short_cut = match path {
            LbPath::NginxSockmap => Some(ShortCut::lay(&net)?),
            _ => None,
        };
        let group = short_cut.as_ref().map(ShortCut::group);
        let mut backends = Vec::new();
        for (n, node) in net.backends.iter().enumerate() {
            let listen = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT).into();
            backends.push(Nginx::start_in(&node.ns, &[listen], &format!("backend {n}"), group)?);
        }
        let balancer = match path {
            LbPath::Direct => multipath(&net)?,
            LbPath::NginxStream | LbPath::NginxSockmap => proxies::nginx_stream(&net, group)?,
            LbPath::Haproxy => proxies::haproxy(&net)?,
            LbPath::Nftables => kernel_nat::nftables(&net)?,
            LbPath::Ipvs => kernel_nat::ipvs(&net)?,
            LbPath::BareGeneric => bare::attach(&net, XdpMode::Generic)?,
            LbPath::BareNative => bare::attach(&net, XdpMode::Native)?,
            LbPath::RingwayGeneric => gateway::in_container(&net, ringway, XdpMode::Generic)?,
            LbPath::RingwayNative => gateway::in_container(&net, ringway, XdpMode::Native)?,
            LbPath::RingwayHost => gateway::on_host(&net, ringway, "", "")?,
            LbPath::RingwayShifted => gateway::on_host(
                &net,
                ringway,
                "\n[shield]\nsyn = { always = true }\n",
                "\nsyn = \"proxy\"",
            )?,
        };
        let backend_pids = backends.iter_mut().map(|nginx| nginx.child().pid()).collect();
        let mut setup = Self { balancer, _backends: backends, backend_pids, short_cut, net };
        setup.try_out()?;
        Ok(setup)
    }

    pub fn url(&self) -> String {
        format!("http://{}:{PORT}/", self.balancer.address)
    }

    /// The balancer's process, where it is one.
    pub fn pid(&self) -> Option<u32> {
        self.balancer.child.as_ref().map(Child::pid)
    }

    /// Sends requests.
    pub(super) fn measure(&self, connections: u32, duration: Duration) -> Result<Measured> {
        let redirected = || self.short_cut.as_ref().map(ShortCut::redirected).transpose();
        let clock = || Clock::read(self.pid(), &self.backend_pids);
        let (redirected_before, before) = (redirected()?, clock()?);
        let figures = wrk::run(&self.net.client.ns, &self.url(), connections, duration)?;
        let spent = clock()?.since(before);
        let both = redirected()?.zip(redirected_before);
        let redirected = both.map(|(now, before)| now.since(before)).transpose()?;
        Ok(Measured { figures, spent, redirected })
    }

    /// The configuration as text, for the report.
    pub fn configuration(&self) -> &str {
        &self.balancer.configuration
    }

    /// A figure for a path that uses one backend, or none, would be worth nothing.
    fn try_out(&mut self) -> Result<()> {
        let (address, client) = (self.balancer.address, self.net.client.ns.clone());
        let fetch = || client.run(|| fetch(address)).map_err(|e| e.to_string())?;
        let what = format!("an answer from {address}:{PORT}");
        let child = &mut self.balancer.child;
        wait_for(what, Duration::from_secs(20), || {
            let Err(refusal) = fetch() else { return Ok(Ok(())) };
            let Some(child) = child.as_mut() else { return Err(refusal) };
            if child.running() {
                return Err(format!("{refusal}\n{}", last_words(&child.log())));
            }
            let output = last_words(&child.log());
            Ok(Err(Error::Failed { program: "the balancer".into(), output }))
        })??;
        let mut seen = BTreeSet::new();
        for _ in 0..TRIAL_FETCHES {
            seen.insert(fetch().map_err(|output| Error::Failed {
                program: format!("a request to {address}:{PORT}"),
                output,
            })?);
        }
        if seen.len() == BACKENDS {
            return Ok(());
        }
        Err(Error::Failed {
            program: "spreading requests".into(),
            output: format!(
                "{TRIAL_FETCHES} connections all saw {seen:?}; expected {BACKENDS} backends"
            ),
        })
    }
}

fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

/// One request on a connection of its own; the answer's body, or what went wrong.
fn fetch(address: Ipv4Addr) -> Result<String, String> {
    let patience = Duration::from_secs(2);
    let get = || -> std::io::Result<String> {
        let mut stream =
            TcpStream::connect_timeout(&SocketAddrV4::new(address, PORT).into(), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = get().map_err(|e| e.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.trim().to_owned()),
        _ => Err(format!("not an HTTP 200: {answer:?}")),
    }
}

/// No balancer in the way, and yet one wrk over both backends: both own one more address, and the
/// client's multipath route picks one of them for each connection.
fn multipath(net: &OneBridge) -> Result<Balancer> {
    let address = Ipv4Addr::new(172, 17, 0, 100);
    for node in &net.backends {
        node.ns.ip(&format!("addr add {address}/32 dev lo\n"))?;
    }
    net.client.ns.sysctl("net.ipv4.fib_multipath_hash_policy", "1")?;
    let hops: String = net.backends.iter().map(|b| format!(" nexthop via {}", v4(b.v4))).collect();
    let route = format!("route add {address}{hops}\n");
    net.client.ns.ip(&route)?;
    let configuration = format!(
        "on each backend:  ip addr add {address}/32 dev lo\n\
         on the client:    sysctl net.ipv4.fib_multipath_hash_policy=1; ip {route}"
    );
    Ok(Balancer { address, configuration, child: None, _xdp: None })
}
