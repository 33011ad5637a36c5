//! Two ready-made networks: a gateway between two networks, and containers on one bridge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{End, Link, Namespace, Result, VethOptions, XdpReceive, bridge, veth};

/// The address families of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    V4,
    V6,
    Both,
}

/// A host with one interface, `eth0`.
#[derive(Debug, Clone)]
pub struct Node {
    pub ns: Namespace,
    pub eth0: Link,
    /// The far end of its veth pair.
    pub peer: Link,
    /// Its IPv4 address, if the topology has IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address, if the topology has IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl Node {
    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.v4.map(IpAddr::from).into_iter().chain(self.v6.map(IpAddr::from)).collect()
    }

    /// Its addresses with a port.
    pub fn sockets(&self, port: u16) -> Vec<SocketAddr> {
        self.addresses().into_iter().map(|a| SocketAddr::new(a, port)).collect()
    }
}

/// A client and backends in two networks with a gateway between them; see [`two_armed`].
#[derive(Debug, Clone)]
pub struct TwoArmed {
    /// 10.1.0.2, fd01::2; default route by the gateway.
    pub client: Node,
    /// The gateway's namespace; it does not forward.
    pub gateway: Namespace,
    /// The gateway's interface to the client: `eth0`, 10.1.0.1, fd01::1.
    pub outer: Link,
    /// The gateway's interface to the backends: `eth1`, 10.2.0.1, fd02::1.
    pub inner: Link,
    /// The namespace with the bridge `br0` between `eth1` and the backends.
    pub switch: Namespace,
    /// 10.2.0.11, fd02::11 and on; default route by the gateway.
    pub backends: Vec<Node>,
}

/// Client, balancer and backends as containers on one bridge; see [`one_bridge`].
#[derive(Debug, Clone)]
pub struct OneBridge {
    /// The namespace with the bridge `br0` (172.17.0.1, fd17::1) and the host ends of all veth
    /// pairs, named `client`, `balancer`, `b1`, `b2`, ...
    pub host: Namespace,
    /// 172.17.0.2, fd17::2.
    pub client: Node,
    /// 172.17.0.3, fd17::3.
    pub balancer: Node,
    /// 172.17.0.11, fd17::11 and on.
    pub backends: Vec<Node>,
}

/// ```text
/// client eth0 -- eth0 gateway eth1 -- gw switch(br0) b1..bn -- eth0 backend 1..n
///    10.1.0.0/24, fd01::/64      10.2.0.0/24, fd02::/64
/// ```
/// All offloads off. A program that passes everything sits on the client's `eth0` and the switch's
/// `gw`, so that what XDP on the gateway sends arrives. At most 200 backends.
pub fn two_armed(backends: usize, families: Families) -> Result<TwoArmed> {
    let options = VethOptions::default();
    let (client, gateway) = (Namespace::new("client")?, Namespace::new("gw")?);
    let switch = Namespace::new("switch")?;
    let (outer_net, inner_net) = (Net::new(10, 1), Net::new(10, 2));

    let eth0 = outer_net.end(&client, "eth0", 2, families).xdp_receive(XdpReceive::Pass);
    let (client_eth0, outer) =
        veth(&eth0, &outer_net.end(&gateway, "eth0", 1, families), &options)?;
    add_default_routes(&client, outer_net, families)?;

    bridge(&switch, "br0", &[])?;
    let port = End::new(&switch, "gw").port_of("br0").xdp_receive(XdpReceive::Pass);
    let (inner, _) = veth(&inner_net.end(&gateway, "eth1", 1, families), &port, &options)?;

    let mut nodes = Vec::new();
    for n in 1..=backends {
        let ns = Namespace::new(&format!("b{n}"))?;
        let port = End::new(&switch, &format!("b{n}")).port_of("br0");
        let eth0 = inner_net.end(&ns, "eth0", 10 + n, families);
        let (eth0, peer) = veth(&eth0, &port, &options)?;
        add_default_routes(&ns, inner_net, families)?;
        nodes.push(inner_net.node(ns, eth0, peer, 10 + n, families));
    }
    let client = outer_net.node(client, client_eth0, outer.clone(), 2, families);
    Ok(TwoArmed { client, gateway, outer, inner, switch, backends: nodes })
}

/// Client, balancer and backends, each with `eth0` on the bridge `br0` of a host namespace, as a
/// container engine arranges them. Default routes by the host's 172.17.0.1 and fd17::1.
/// `xdp_receive` holds for both ends of every pair. All offloads off (but GRO if wished by it). At
/// most 200 backends.
pub fn one_bridge(backends: usize, xdp_receive: XdpReceive) -> Result<OneBridge> {
    let host = Namespace::new("host")?;
    let net = Net::new(172, 17);
    bridge(&host, "br0", &[&net.v4(1, 24), &net.v6(1, 64)])?;
    let container = |name: &str, n: usize| -> Result<Node> {
        let ns = Namespace::new(name)?;
        let eth0 = net.end(&ns, "eth0", n, Families::Both).xdp_receive(xdp_receive);
        let port = End::new(&host, name).port_of("br0").xdp_receive(xdp_receive);
        let (eth0, peer) = veth(&eth0, &port, &VethOptions::default())?;
        add_default_routes(&ns, net, Families::Both)?;
        Ok(net.node(ns, eth0, peer, n, Families::Both))
    };
    let (client, balancer) = (container("client", 2)?, container("balancer", 3)?);
    let backends =
        (1..=backends).map(|n| container(&format!("b{n}"), 10 + n)).collect::<Result<_>>()?;
    Ok(OneBridge { host, client, balancer, backends })
}

/// Networks A.B.0.0/24 and fdBB::/64 (B in decimal digits), with host parts that look alike.
#[derive(Clone, Copy)]
struct Net {
    a: u8,
    b: u8,
}

impl Net {
    fn new(a: u8, b: u8) -> Self {
        Self { a, b }
    }

    fn v4(self, host: usize, prefix: u8) -> String {
        format!("{}.{}.0.{host}/{prefix}", self.a, self.b)
    }

    fn v6(self, host: usize, prefix: u8) -> String {
        format!("fd{:02}::{host}/{prefix}", self.b)
    }

    fn end(self, ns: &Namespace, name: &str, host: usize, families: Families) -> End {
        let mut end = End::new(ns, name);
        if families != Families::V6 {
            end = end.address(self.v4(host, 24));
        }
        if families != Families::V4 {
            end = end.address(self.v6(host, 64));
        }
        end
    }

    fn node(self, ns: Namespace, eth0: Link, peer: Link, host: usize, families: Families) -> Node {
        // Both parse: they are built of small decimal numbers above.
        let v4 = self.v4(host, 24).trim_end_matches("/24").parse().ok();
        let v6 = self.v6(host, 64).trim_end_matches("/64").parse().ok();
        Node {
            ns,
            eth0,
            peer,
            v4: v4.filter(|_| families != Families::V6),
            v6: v6.filter(|_| families != Families::V4),
        }
    }
}

fn add_default_routes(ns: &Namespace, net: Net, families: Families) -> Result<()> {
    let mut lines = String::new();
    if families != Families::V6 {
        lines += &format!("route add default via {}\n", net.v4(1, 24).trim_end_matches("/24"));
    }
    if families != Families::V4 {
        lines += &format!("route add default via {}\n", net.v6(1, 64).trim_end_matches("/64"));
    }
    ns.ip(&lines)
}
