//! A client, a gateway and a backend, and who answers SYNs between them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ringway_kernel::{DEFAULT_BPFFS, View, XdpLink, XdpMode};
use ringway_testnet::{
    End, Families, Link, Namespace, Nginx, TwoArmed, VethOptions, enable_napi, two_armed, veth,
};

use super::super::flood::{self, Attack, FROM, FROM_BITS};
use super::super::scenarios::TARGET;
use super::Answerer;
use super::programs::{Arrived, Programs};
use crate::demo::daemon::Daemon;
use crate::{Error, Result, programs};

/// Checks ask here, so that their SYNs are none of the service's.
const CHECKED: u16 = 8080;

/// The gateway's end of the flood's way.
const FLOODED: &str = "flooded";

/// Dropping it takes it down.
pub(super) struct Scene<'p> {
    programs: &'p Programs<'p>,
    daemon: Option<Daemon>,
    _nginx: Nginx,
    /// Where the flood leaves, and the other end.
    way: (Link, Link),
    _links: Vec<XdpLink>,
    net: TwoArmed,
}

/// What a flood has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Packets a second that came in, and answers that came back.
    pub(super) arrived_pps: f64,
    pub(super) answered_pps: f64,
    /// SYNs at the backend.
    pub(super) syns: u64,
    /// Of the gateway; none where it keeps none of ours.
    pub(super) flows: Option<u64>,
}

impl<'p> Scene<'p> {
    pub(super) fn new(
        answerer: Answerer,
        ringway: &Path,
        programs: &'p Programs<'p>,
    ) -> Result<Self> {
        let net = two_armed(1, Families::V4)?;
        let (gateway, backend) = (&net.gateway, &net.backends[0].ns);
        // Good traffic has rings of its own for everyone, as it has a queue where a NIC spreads flows.
        let (by, to) = (End::new(&net.client.ns, "flood"), End::new(gateway, FLOODED));
        let way = veth(&by, &to, &VethOptions::default())?;
        let mut links = vec![attach(backend, &net.backends[0].eth0, programs.syns())?];
        // Not by Ringway: the backend, or the gateway, has the service's address itself.
        let (server, socket) = match answerer {
            Answerer::KernelCookies => (gateway, service(gateway)?),
            Answerer::NftSynproxy => (backend, service(backend)?),
            _ => (backend, net.backends[0].sockets(TARGET.tcp)[0]),
        };
        let checked = SocketAddr::new(socket.ip(), CHECKED);
        let nginx = Nginx::start(server, &[socket, checked], "b1")?;
        let mut daemon = None;
        match (answerer, programs.of(answerer)) {
            (Answerer::KernelCookies | Answerer::NftSynproxy, _) => by_kernel(answerer, &net)?,
            (_, Some(program)) => {
                daemon = Some(start(ringway, &net, &[], None)?);
                links.push(attach(gateway, &way.1, program)?);
            }
            (_, None) => daemon = Some(start(ringway, &net, &[FLOODED], answerer.syn())?),
        }
        links.push(attach(&net.client.ns, &way.0, programs.answers())?);
        Ok(Self { programs, daemon, _nginx: nginx, way, _links: links, net })
    }

    /// `rate` SYNs a second, or as many as can be, until `over`.
    pub(super) fn flood(
        &self,
        rate: Option<u64>,
        over: impl Fn(Duration) -> bool + Send,
    ) -> Result<Outcome> {
        let before = (self.programs.arrived()?, self.flows()?);
        let (by, to) = &self.way;
        let flooded = flood::flood(Attack::Syns, &TARGET, (by, to), rate, over)?;
        let Arrived { answers, syns } = self.programs.arrived()?;
        Ok(Outcome {
            arrived_pps: flooded.pps(),
            answered_pps: (answers - before.0.answers) as f64 / flooded.time.as_secs_f64(),
            syns: syns - before.0.syns,
            flows: self.flows()?.zip(before.1).map(|(after, before)| after - before),
        })
    }

    /// Flows that the gateway has opened to its backends.
    fn flows(&self) -> Result<Option<u64>> {
        if self.daemon.is_none() {
            return Ok(None);
        }
        let services = View::open(Path::new(DEFAULT_BPFFS), self.net.gateway.name())?.services()?;
        let backends = services.iter().flat_map(|service| &service.backends);
        Ok(Some(backends.map(|backend| backend.traffic.flows).sum()))
    }

    pub(super) fn client(&self) -> &Namespace {
        &self.net.client.ns
    }

    pub(super) fn take_down(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.detach())
    }
}

fn attach(
    namespace: &Namespace,
    to: &Link,
    program: std::os::fd::BorrowedFd<'_>,
) -> Result<XdpLink> {
    let attached = namespace.run(|| XdpLink::attach(program, to.ifindex, XdpMode::Native))?;
    attached.map_err(|error| Error::Load(error.into()))
}

/// Gives the service's address to this namespace.
fn service(namespace: &Namespace) -> Result<SocketAddr> {
    namespace.ip(&format!("link set lo up\naddr add {}/32 dev lo\n", TARGET.address))?;
    Ok((TARGET.address, TARGET.tcp).into())
}

fn start(ringway: &Path, net: &TwoArmed, more: &[&str], syn: Option<&str>) -> Result<Daemon> {
    let (gateway, directory) = (&net.gateway, net.gateway.directory());
    let (shield, syn) = syn.map_or_else(Default::default, |syn| {
        ("[shield]\nsyn = { always = true }\n", format!("syn = {syn:?}\n"))
    });
    let interfaces = [&["eth0", "eth1"], more].concat();
    let text = format!(
        "[node]\nname = \"{}\"\ninterfaces = {interfaces:?}\nstate = {:?}\n{shield}\
         [[service]]\nname = \"web\"\naddress = \"{}\"\nport = {}\nforward = \"nat\"\n{syn}\
         announce = \"arp\"\ncheck = {{ type = \"tcp\", port = {CHECKED} }}\nbackends = [{{ address = \"{}\" }}]\n[api]\nsocket = {:?}\n",
        gateway.name(),
        directory.join("state"),
        TARGET.address,
        TARGET.tcp,
        net.backends[0].v4.ok_or_else(|| Error::Tables("a backend without IPv4".into()))?,
        directory.join("api.sock"),
    );
    let path = directory.join("ringway.toml");
    fs::write(&path, text).map_err(|source| Error::Write { path: path.clone(), source })?;
    Daemon::start(ringway, gateway, &path)
}

/// The gateway's kernel answers, or forwards what it has answered.
fn by_kernel(answerer: Answerer, net: &TwoArmed) -> Result<()> {
    let gateway = &net.gateway;
    enable_napi(gateway, FLOODED)?;
    // Answers to the flood go where it comes from.
    gateway.ip(&format!(
        "addr add 10.9.0.1/30 dev {FLOODED}\nroute add {FROM}/{FROM_BITS} via 10.9.0.2\n"
    ))?;
    net.client.ns.ip("addr add 10.9.0.2/30 dev flood\n")?;
    net.client.ns.ip(&format!("route add {}/32 via 10.1.0.1\n", TARGET.address))?;
    if answerer == Answerer::KernelCookies {
        return Ok(gateway.sysctl("net.ipv4.tcp_syncookies", "2")?);
    }
    let backend = net.backends[0].v4.map_or_else(String::new, |address| address.to_string());
    gateway.ip(&format!("route add {}/32 via {backend}\n", TARGET.address))?;
    gateway.sysctl("net.ipv4.ip_forward", "1")?;
    let rules = format!(
        "table ip lab {{\n\
         chain first {{ type filter hook prerouting priority raw; tcp dport {0} tcp flags syn notrack; }}\n\
         chain last {{ type filter hook forward priority filter;\n\
         tcp dport {0} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm;\n\
         ct state invalid drop; }}\n}}\n",
        TARGET.tcp
    );
    let mut command = gateway.tool("nft").map_err(|e| Error::Unavailable(e.to_string()))?;
    command.args(["-f", "-"]);
    programs::feed(command, "nft", &rules)
        .map_err(|error| Error::Unavailable(format!("this kernel has no synproxy: {error}")))?;
    // Exists once connections are tracked.
    Ok(gateway.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?)
}
