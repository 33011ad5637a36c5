//! A network with backends that say their names.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{Echo, Gateway};
use anyhow::{Context, Result};
use ringway_testnet::{
    End, Families, Namespace, Nginx, Node, TwoArmed, VethOptions, two_armed, veth,
};

/// A service address in the client's network that no kernel owns.
pub const SERVICE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 80));
/// The same for IPv6.
pub const SERVICE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0x80));

/// Where [`Site`]'s nginx are reached by IPv4.
pub const WEB: SocketAddr = SocketAddr::new(SERVICE_V4, 80);
/// Where tests have [`Site::echo`] answer.
pub const ECHO: SocketAddr = SocketAddr::new(SERVICE_V4, 7);
/// Where a gateway's metrics are, in its namespace.
pub const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9810);
/// A check of [`Site`]'s nginx that notices soon and does not fail by chance.
pub const CHECK: &str = "check = { type = \"http\", interval = \"200ms\", fall = 15 }\n";

/// A client, a gateway with an interface on either side, and backends `b1`, `b2`, ... with nginx on
/// port 80 that answers with their name.
pub struct Site {
    pub net: TwoArmed,
    /// One per backend.
    pub nginx: Vec<Nginx>,
}

impl Site {
    /// Builds it.
    pub fn new(backends: usize) -> Result<Site> {
        let net = two_armed(backends, Families::Both)?;
        // One request per connection leaves a port in TIME_WAIT for a minute.
        net.client.ns.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        let nginx = (0..backends).map(|n| start_nginx(&net, n)).collect::<Result<_>>()?;
        Ok(Site { net, nginx })
    }

    pub fn client(&self) -> &Namespace {
        &self.net.client.ns
    }

    /// Starts a killed backend's nginx again.
    pub fn restart_nginx(&mut self, n: usize) -> Result<()> {
        self.nginx[n] = start_nginx(&self.net, n)?;
        Ok(())
    }

    /// The backends' addresses of the family of `address`, with a port.
    pub fn backends(&self, address: IpAddr, port: u16) -> Vec<SocketAddr> {
        let nodes = self.net.backends.iter();
        nodes.filter_map(|node| Some(SocketAddr::new(of_family(node, address)?, port))).collect()
    }

    /// An echo server per backend, named like it, on this port of both families.
    pub fn echo(&self, address: IpAddr, port: u16) -> Result<Vec<Echo>> {
        let start = |(n, endpoint): (usize, &SocketAddr)| {
            Echo::start(&self.net.backends[n].ns, *endpoint, &format!("b{}", n + 1))
        };
        self.backends(address, port).iter().enumerate().map(start).collect()
    }

    /// Takes the switch's port to backend `n` down or up: silence, as when a machine loses power.
    pub fn set_link(&self, n: usize, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        Ok(self.net.switch.ip(&format!("link set b{} {state}\n", n + 1))?)
    }

    /// A configuration for this site's gateway with these services.
    pub fn configuration(&self, body: &str) -> String {
        configuration(&self.net.gateway, &["eth0", "eth1"], body)
    }

    /// A gateway with these services, once nothing is wrong.
    pub fn start(&self, services: &str) -> Result<Gateway> {
        Gateway::start(&self.net.gateway, &self.configuration(services))
    }

    /// A service over the same port of all backends, answered for by Ringway; `more` are further
    /// lines.
    pub fn service(&self, name: &str, endpoint: SocketAddr, more: &str) -> String {
        let more = format!("announce = \"arp\"\n{more}");
        service(name, endpoint, &self.backends(endpoint.ip(), endpoint.port()), &more)
    }
}

fn start_nginx(net: &TwoArmed, n: usize) -> Result<Nginx> {
    let node = &net.backends[n];
    Nginx::start(&node.ns, &node.sockets(80), &format!("b{}", n + 1)).context("nginx")
}

fn of_family(node: &Node, address: IpAddr) -> Option<IpAddr> {
    node.addresses().into_iter().find(|a| a.is_ipv4() == address.is_ipv4())
}

/// ```text
/// far eth0 (1500) -- (`mtu`) client, now a router -- gateway
/// ```
/// A host that says it takes 1500 bytes, behind a link that carries less: 10.9.0.2, fd09::2.
pub fn behind_small_link(client: &Namespace, mtu: u16) -> Result<Namespace> {
    let far = Namespace::new("far")?;
    let here = End::new(&far, "eth0").address("10.9.0.2/24").address("fd09::2/64");
    let router = End::new(client, "far").address("10.9.0.1/24").address("fd09::1/64");
    veth(&here, &router, &VethOptions::default())?;
    far.ip("route add default via 10.9.0.1\nroute add default via fd09::1\n")?;
    client.ip(&format!("link set dev far mtu {mtu}\n"))?;
    client.sysctl("net/ipv4/ip_forward", "1")?;
    client.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    Ok(far)
}

/// A configuration of the gateway in `namespace`: its node is named like the namespace, its socket
/// lies in the namespace's directory, its tables are small.
pub fn configuration(namespace: &Namespace, interfaces: &[&str], body: &str) -> String {
    let mut text = format!(
        "[node]\nname = {:?}\ninterfaces = {interfaces:?}\nstate = {:?}\n\n[api]\nsocket = {:?}\n\n",
        namespace.name(),
        namespace.directory().join("state"),
        namespace.directory().join("api.sock"),
    );
    if !body.contains("[nat]") {
        text += "[nat]\nflows = 16384\n\n";
    }
    if !body.contains("[flows]") {
        text += "[flows]\ntracked = 16384\n\n";
    }
    text + body
}

/// One `[[service]]` over `backends`; `more` are further lines.
pub fn service(name: &str, endpoint: SocketAddr, backends: &[SocketAddr], more: &str) -> String {
    let mut text = format!(
        "[[service]]\nname = {name:?}\naddress = \"{}\"\nport = {}\n",
        endpoint.ip(),
        endpoint.port()
    );
    text += more;
    if !more.is_empty() && !more.ends_with('\n') {
        text.push('\n');
    }
    text += "backends = [\n";
    for backend in backends {
        // Writing to a String cannot fail.
        let (address, port) = (backend.ip(), backend.port());
        let _ = writeln!(text, "    {{ address = \"{address}\", port = {port} }},");
    }
    text + "]\n\n"
}
