//! Checksums that containers leave unfinished (CHECKSUM_PARTIAL): right wherever they arrive,
//! whatever device is on either side, in both modes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Cable, Checksums, Echo, Gateway, Line, ask_udp, configuration, needs_root, service,
};
use ringway_testnet::{End, Namespace, VethOptions, XdpReceive, bridge, veth};

const VIPS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10)),
];
/// The service over the first backend; the next one has the next port.
const PORT: u16 = 7000;

/// What is between the gateway and a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A container's, as Docker sets it up: offloads on.
    Veth,
    /// The same behind a bridge.
    Bridge,
    /// A device that sends what it is given; whoever is behind it looks at checksums.
    Tap,
    /// One that finishes checksums, like most cards.
    Card,
    /// One that hands unfinished checksums on as such, like that of a virtual machine to its
    /// neighbour.
    Virtio,
}

const WAYS: [Way; 5] = [Way::Veth, Way::Bridge, Way::Tap, Way::Card, Way::Virtio];

/// A host behind a device of the gateway's.
struct Neighbour {
    way: Way,
    device: String,
    namespace: Namespace,
    addresses: [IpAddr; 2],
    _cable: Option<Cable>,
}

impl Neighbour {
    /// In a network of its own, of this number.
    fn new(gateway: &Namespace, way: Way, net: u8) -> Result<Neighbour> {
        let device = format!("{way:?}{net}").to_lowercase();
        let host = |own: u8| [format!("10.{net}.0.{own}/24"), format!("fd00:{net}::{own}/64")];
        let (ours, theirs) = (host(1), host(2));
        let [ours, theirs] = [&ours, &theirs].map(|all| all.each_ref().map(String::as_str));
        let namespace = Namespace::new(&device)?;
        let with = |end: End, all: [&str; 2]| all.into_iter().fold(end, End::address);
        let cabled = |checksums| {
            Cable::ethernet(&device, [(gateway, &ours), (&namespace, &theirs)], checksums)
        };
        let veth_to = |near: End| {
            let far = End::new(&namespace, "eth0").xdp_receive(XdpReceive::Gro);
            let options = VethOptions { offloads: true, ..VethOptions::default() };
            veth(&with(far, theirs), &near, &options)
        };
        let cable = match way {
            Way::Veth => veth_to(with(End::new(gateway, &device), ours)).map(|_| None)?,
            Way::Bridge => {
                bridge(gateway, &device, &ours)?;
                let port = End::new(gateway, &format!("{device}-port")).port_of(&device);
                veth_to(port).map(|_| None)?
            }
            Way::Tap => Some(cabled(Checksums::AsSent)?),
            Way::Card => Some(cabled(Checksums::FinishedByCard)?),
            Way::Virtio => Some(cabled(Checksums::LeftUnfinished)?),
        };
        namespace.ip(&format!(
            "route add default via 10.{net}.0.1\nroute add default via fd00:{net}::1\n"
        ))?;
        let addresses = [format!("10.{net}.0.2").parse()?, format!("fd00:{net}::2").parse()?];
        Ok(Neighbour { way, device, namespace, addresses, _cable: cable })
    }
}

/// Short and long, odd and even; none so long that TSO would matter.
fn exchange(client: &Namespace, port: u16) -> Result<()> {
    for vip in VIPS.map(|vip| SocketAddr::new(vip, port)) {
        let mut line = Line::open(client, vip).with_context(|| format!("TCP to {vip}"))?;
        let local = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let udp = client.run(|| UdpSocket::bind(local))??;
        udp.connect(vip)?;
        for text in ["a", "bc", &"d".repeat(600), &"e".repeat(1201)] {
            let what = || format!("{} bytes to {vip}", text.len());
            ensure!(line.ask(text).with_context(what)? == "b");
            ensure!(ask_udp(&udp, text).with_context(what)? == "b");
        }
    }
    Ok(())
}

/// One gateway between clients and backends of all kinds. Each two are tried once: answers take the
/// way that requests of the other order would. Names each pair that fails.
fn every_pair_serves(mode: &str) -> Result<()> {
    let gateway = Namespace::new("gw")?;
    // Native XDP cannot redirect into a bridge.
    let ways = WAYS.into_iter().filter(|way| mode == "generic" || *way != Way::Bridge);
    let (mut clients, mut backends, mut echo) = (Vec::new(), Vec::new(), Vec::new());
    let mut services = String::new();
    for (n, way) in (0u8..).zip(ways) {
        clients.push(Neighbour::new(&gateway, way, 2 * n + 1)?);
        let backend = Neighbour::new(&gateway, way, 2 * n + 2)?;
        for (vip, address) in VIPS.into_iter().zip(backend.addresses) {
            let at = SocketAddr::new(address, 7);
            echo.push(Echo::start(&backend.namespace, at, "b")?);
            let endpoint = SocketAddr::new(vip, PORT + u16::from(n));
            let more = "announce = \"routed\"\nprotocol = [\"tcp\", \"udp\"]\n";
            services += &service(&format!("s{}", echo.len()), endpoint, &[at], more);
        }
        backends.push(backend);
    }
    let devices: Vec<&str> = clients.iter().chain(&backends).map(|all| &*all.device).collect();
    let text = configuration(&gateway, &devices, &services);
    let text = text.replacen("\n\n", &format!("\nxdp_mode = {mode:?}\n\n"), 1);
    let _gateway = Gateway::start(&gateway, &text)?;
    let mut failures = Vec::new();
    for (n, client) in clients.iter().enumerate() {
        for (port, backend) in (PORT..).zip(&backends).skip(n) {
            if let Err(error) = exchange(&client.namespace, port) {
                failures.push(format!("{:?} to {:?}, {mode}: {error:#}", client.way, backend.way));
            }
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[test]
fn checksums_are_right_in_generic_mode() -> Result<()> {
    needs_root!();
    every_pair_serves("generic")
}

#[test]
fn checksums_are_right_in_native_mode() -> Result<()> {
    needs_root!();
    every_pair_serves("native")
}
