//! Several gateways, a router and backends on one link: docs/two-nodes.md.

use anyhow::Result;
use ringway_testnet::{End, Namespace, VethOptions, XdpReceive, bridge, veth};

/// ```text
/// client eth0 10.1.0.2 -- eth1 10.1.0.1 router eth0 10.0.0.254 --+
///                                       gw1..  eth0 10.0.0.1 ..  +-- br0 of the switch; its ports are
///                                       b1..   eth0 10.0.0.11 .. +   named router, gw1.., b1..
/// ```
/// Everybody's default route leads to the router.
pub struct Lan {
    pub switch: Namespace,
    pub router: Namespace,
    pub client: Namespace,
    /// 10.0.0.1 and on.
    pub gateways: Vec<Namespace>,
    /// 10.0.0.11 and on.
    pub backends: Vec<Namespace>,
}

impl Lan {
    /// Builds it. At most ten gateways.
    pub fn new(gateways: usize, backends: usize) -> Result<Lan> {
        let switch = Namespace::new("switch")?;
        bridge(&switch, "br0", &[])?;
        let host = |name: &str, number: usize| -> Result<Namespace> {
            let namespace = Namespace::new(name)?;
            let eth0 = End::new(&namespace, "eth0").address(format!("10.0.0.{number}/24"));
            // What XDP on the far side sends arrives.
            let port = End::new(&switch, name).port_of("br0").xdp_receive(XdpReceive::Pass);
            veth(&eth0, &port, &VethOptions::default())?;
            if number != 254 {
                namespace.ip("route add default via 10.0.0.254\n")?;
            }
            Ok(namespace)
        };
        let router = host("router", 254)?;
        let client = Namespace::new("client")?;
        veth(
            &End::new(&client, "eth0").address("10.1.0.2/24"),
            &End::new(&router, "eth1").address("10.1.0.1/24"),
            &VethOptions::default(),
        )?;
        client.ip("route add default via 10.1.0.1\n")?;
        router.sysctl("net/ipv4/ip_forward", "1")?;
        let all = |prefix: &str, first: usize, count: usize| -> Result<Vec<Namespace>> {
            (0..count).map(|n| host(&format!("{prefix}{}", n + 1), first + n)).collect()
        };
        let (gateways, backends) = (all("gw", 1, gateways)?, all("b", 11, backends)?);
        Ok(Lan { switch, router, client, gateways, backends })
    }

    /// Takes a machine away, as when it loses power.
    pub fn unplug(&self, name: &str) -> Result<()> {
        Ok(self.switch.ip(&format!("link set {name} down\n"))?)
    }
}
