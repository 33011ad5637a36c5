//! Checksums that containers leave unfinished (CHECKSUM_PARTIAL): right wherever they arrive,
//! whatever device is on either side, in both modes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Cable, Checksums, Echo, Gateway, Line, SERVICE_V4, SERVICE_V6, ask_udp, configuration,
    needs_root, service,
};
use ringway_testnet::{End, Namespace, VethOptions, XdpReceive, bridge, veth};

const PORT: u16 = 7;

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
/// Gateways that run at the same time: most of their time is the verifier's.
const AT_ONCE: usize = 3;

impl Way {
    /// Makes it, `name` being the gateway's device. What it lives by, and the neighbour's
    /// namespace.
    fn make(self, gateway: &Namespace, name: &str, net: u8) -> Result<(Namespace, Option<Cable>)> {
        let neighbour = Namespace::new(name)?;
        let ours = [format!("10.{net}.0.1/24"), format!("fd0{net}::1/64")];
        let theirs = [format!("10.{net}.0.2/24"), format!("fd0{net}::2/64")];
        if matches!(self, Way::Veth | Way::Bridge) {
            let options = VethOptions { offloads: true, ..VethOptions::default() };
            let far = End::new(&neighbour, "eth0").xdp_receive(XdpReceive::Gro);
            let far = theirs.iter().fold(far, |end, address| end.address(address));
            let near = if self == Way::Bridge {
                bridge(gateway, name, &ours.each_ref().map(String::as_str))?;
                End::new(gateway, &format!("{name}-port")).port_of(name)
            } else {
                ours.iter().fold(End::new(gateway, name), |end, address| end.address(address))
            };
            veth(&far, &near, &options)?;
            return Ok((neighbour, None));
        }
        let [ours, theirs] = [ours, theirs].map(|[v4, v6]| [v4, format!("{v6} nodad")]);
        let (ours, theirs) =
            (ours.each_ref().map(String::as_str), theirs.each_ref().map(String::as_str));
        let ends: [(&Namespace, &[&str]); 2] = [(gateway, &ours), (&neighbour, &theirs)];
        let checksums = match self {
            Way::Card => Checksums::FinishedByCard,
            Way::Virtio => Checksums::LeftUnfinished,
            Way::Tap | Way::Veth | Way::Bridge => Checksums::AsSent,
        };
        let cable = Cable::ethernet(name, ends, checksums)?;
        Ok((neighbour, Some(cable)))
    }
}

/// Short and long, odd and even; none so long that TSO would matter.
fn exchange(client: &Namespace) -> Result<()> {
    for vip in [SERVICE_V4, SERVICE_V6] {
        let vip = SocketAddr::new(vip, PORT);
        let mut line = Line::open(client, vip).with_context(|| format!("TCP to {vip}"))?;
        let local = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let udp = client.run(|| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind(local)?;
            socket.connect(vip)?;
            Ok(socket)
        })??;
        for text in ["a", "bc", &"d".repeat(600), &"e".repeat(1201)] {
            let what = || format!("{} bytes to {vip}", text.len());
            ensure!(line.ask(text).with_context(what)? == "b1");
            ensure!(ask_udp(&udp, text).with_context(what)? == "b1");
        }
    }
    Ok(())
}

fn serves(clients: Way, backends: Way, mode: &str) -> Result<()> {
    let gateway = Namespace::new("gw")?;
    let (client, _cable) = clients.make(&gateway, "front", 1)?;
    let (backend, _cable_too) = backends.make(&gateway, "back", 2)?;
    let mut echo = Vec::new();
    let mut services = String::new();
    for (name, vip, address) in [("v4", SERVICE_V4, "10.2.0.2"), ("v6", SERVICE_V6, "fd02::2")] {
        let address = SocketAddr::new(address.parse()?, PORT);
        echo.push(Echo::start(&backend, address, "b1")?);
        let more = "announce = \"arp\"\nprotocol = [\"tcp\", \"udp\"]\n";
        services += &service(name, SocketAddr::new(vip, PORT), &[address], more);
    }
    let text = configuration(&gateway, &["front", "back"], &services);
    let text = text.replacen("\n\n", &format!("\nxdp_mode = {mode:?}\n\n"), 1);
    let _gateway = Gateway::start(&gateway, &text)?;
    exchange(&client)
}

/// Each two once: answers take the way that requests of the other order would.
fn pairs(mode: &str) -> Vec<(Way, Way)> {
    let all = (0..WAYS.len()).flat_map(|n| WAYS[n..].iter().map(move |other| (WAYS[n], *other)));
    // Native XDP cannot redirect into a bridge.
    let fits =
        |(one, other): &(Way, Way)| mode == "generic" || ![one, other].contains(&&Way::Bridge);
    all.filter(fits).collect()
}

/// Tries all pairs, and names each that fails.
fn every_pair_serves(mode: &str) -> Result<()> {
    let (left, failures) = (Mutex::new(pairs(mode)), Mutex::new(Vec::new()));
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        while let Some((clients, backends)) = take() {
            if let Err(error) = serves(clients, backends, mode) {
                let failure = format!("{clients:?} to {backends:?}, {mode}: {error:#}");
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
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
