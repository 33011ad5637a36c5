//! The traffic that the command line asks for, with defaults for the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use ringway_engine::ports::{Pcap, pcap};
use ringway_engine::{Port as _, PortSpec};
use ringway_host::netlink::{addresses, neighbours, routes};
use ringway_host::{Fix, Interface, who_has};
use ringway_measure::generate::{
    Addresses, Flows, Recipe, SIZES, Template, Traffic, Transport, live_frames,
};
use ringway_terminal::error::Error;
use ringway_wire::Mac;
use ringway_xsk::{Batch, Chunk, Umem, UmemConfig};

use crate::cli::{GenArgs, GenPort, PacketArgs};

/// Set aside for benchmarks (RFC 2544, RFC 5180).
const SOURCE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);
/// Where a port has no interface, and so no address.
const SOURCE_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const DESTINATION_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Ports from here on are nobody's (RFC 6335), and what comes to port 9 is discarded (RFC 863).
const SOURCE_PORT: u16 = 49152;
const DISCARD: u16 = 9;
/// Bytes of captures that are kept in memory.
const MOST_BYTES: usize = 256 << 20;
/// How long a neighbour has to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// All that is to be sent.
pub(super) fn generated(args: &GenArgs, port: &GenPort) -> anyhow::Result<Traffic> {
    let (templates, flows) = match &args.packets {
        packets if !packets.pcap.is_empty() => {
            if let GenPort::Live(_) = port {
                return Err(wrong(
                    "a capture's packets are not sent from within the kernel",
                    "take another --port: af_xdp:IFACE:QUEUE or af_packet:IFACE",
                ));
            }
            is_not_written_over(&packets.pcap, port)?;
            let mut templates = Vec::new();
            for path in &packets.pcap {
                read(path, &mut templates)?;
            }
            (templates, None)
        }
        packets => {
            let recipe = recipe(packets, port)?;
            let templates = recipe.templates().map_err(|e| wrong(e.to_string(), ""))?;
            (templates, Some(Flows::of(&recipe)))
        }
    };
    if let GenPort::Live(name) = port {
        check_live(name, &templates)?;
    }
    let (rate, count, duration) = (args.rate, args.count, args.seconds);
    Ok(Traffic { templates, flows, stream: stream(), rate, count, duration })
}

/// A capture that is sent stays as it is.
fn is_not_written_over(captures: &[PathBuf], port: &GenPort) -> anyhow::Result<()> {
    let GenPort::Engine(PortSpec::Pcap { output, .. }) = port else { return Ok(()) };
    match pcap::written_over(captures.iter().map(PathBuf::as_path), output.as_deref()) {
        None => Ok(()),
        Some((written, other)) => Err(wrong(
            format!("{} is the same file as {}", written.display(), other.display()),
            "give --port another file to write to",
        )),
    }
}

fn wrong(what: impl Into<String>, remedy: impl Into<Fix>) -> anyhow::Error {
    Error::configuration(what, remedy).into()
}

/// Another one every time, so that a receiver that goes on does not take it for the last.
fn stream() -> u16 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_micros() as u64 >> 4) as u16
}

fn check_live(name: &str, templates: &[Template]) -> anyhow::Result<()> {
    if templates.len() > 1 {
        let remedy = "give one --size, or take another --port";
        return Err(wrong(format!("xdp:{name} sends frames of one size alone"), remedy));
    }
    match templates.iter().any(|template| template.frame().len() > live_frames::LONGEST) {
        true => Err(too_long(name)),
        false => Ok(()),
    }
}

fn too_long(name: &str) -> anyhow::Error {
    let remedy = format!("ask for {} bytes or less", live_frames::LONGEST);
    wrong(format!("xdp:{name} sends no frames that long"), remedy)
}

fn recipe(packets: &PacketArgs, port: &GenPort) -> anyhow::Result<Recipe> {
    let destinations = packets.destination.ok_or_else(|| {
        wrong("nothing says what to send", "add --destination ADDRESS, or --pcap FILE")
    })?;
    let transport = packets.protocol.unwrap_or_default();
    let has_ports = packets.source_ports.is_some() || packets.destination_ports.is_some();
    if transport == Transport::Icmp && has_ports {
        return Err(wrong("echo requests have no ports", "leave the ports out, or take udp"));
    }
    let interface = port.interface().map(ringway_host::interface_by_name).transpose()?;
    let sources = match packets.source {
        Some(sources) => sources,
        None => source(interface.as_ref(), destinations.first())?,
    };
    let own = interface.as_ref().and_then(|i| i.link.mac).map(|mac| Mac(mac.0));
    let source_mac = packets.source_mac.map(|mac| Mac(mac.0)).or(own).unwrap_or(SOURCE_MAC);
    let destination_mac = match (packets.destination_mac, &interface) {
        (Some(mac), _) => Mac(mac.0),
        (None, Some(interface)) => neighbour(interface, source_mac, destinations)?,
        (None, None) => DESTINATION_MAC,
    };
    let mut recipe = Recipe {
        source_mac,
        destination_mac,
        vlan: packets.vlan,
        sources,
        destinations,
        transport,
        source_ports: packets.source_ports.unwrap_or_else(|| SOURCE_PORT.into()),
        destination_ports: packets.destination_ports.unwrap_or_else(|| DISCARD.into()),
        sizes: packets.size.iter().flat_map(|sizes| sizes.0.clone()).collect(),
    };
    if recipe.sizes.is_empty() {
        recipe.sizes = vec![recipe.least()];
    }
    // Here, since other ports send longer ones, and would be told so.
    match port {
        GenPort::Live(name)
            if recipe.sizes.iter().any(|len| usize::from(*len) > live_frames::LONGEST) =>
        {
            Err(too_long(name))
        }
        _ => Ok(recipe),
    }
}

/// The interface's own address of the destination's family.
fn source(interface: Option<&Interface>, destination: IpAddr) -> anyhow::Result<Addresses> {
    let benchmark: IpAddr = match destination {
        IpAddr::V4(_) => SOURCE_V4.into(),
        IpAddr::V6(_) => SOURCE_V6.into(),
    };
    let Some(interface) = interface else { return Ok(benchmark.into()) };
    let own = addresses::all()?.into_iter().find(|own| {
        own.ifindex == interface.link.ifindex
            && own.address.is_ipv4() == destination.is_ipv4()
            && !own.local_scope
            && !own.unusable
    });
    Ok(own.map_or(benchmark, |own| own.address).into())
}

/// The MAC address that leads to the first of the destinations by this interface.
fn neighbour(interface: &Interface, own: Mac, destinations: Addresses) -> anyhow::Result<Mac> {
    let (link, destination) = (&interface.link, destinations.first());
    let route = routes::route_to(destination).ok();
    // Where the kernel knows no way by this interface, it may be on the link all the same.
    let path = route.filter(|path| path.ifindex == link.ifindex);
    let next = path.map_or(destination, |path| path.next_hop());
    if let Some(mac) = neighbours::get(link.ifindex, next)?.and_then(|n| n.usable()) {
        return Ok(Mac(mac.0));
    }
    let answers = who_has(link.ifindex, ringway_host::Mac(own.0), next, PATIENCE);
    match answers.ok().and_then(|answers| answers.first().copied()) {
        Some(mac) => Ok(Mac(mac.0)),
        None => Err(Error::failed(
            format!("{}: nobody has answered for {next} within a second", link.name),
            "check that it is up and on this link, or say --destination-mac MAC",
        )
        .into()),
    }
}

/// A capture's packets, as they are.
fn read(path: &Path, templates: &mut Vec<Template>) -> anyhow::Result<()> {
    let umem = UmemConfig { frames: 64, chunk: Chunk::Bytes4096, ..UmemConfig::default() };
    let pool = Umem::new(&umem)?.pool().context("a memory has a pool")?;
    let mut port = Pcap::open("--pcap".into(), &pool, Some(path), None)?;
    let mut batch = Batch::new(1);
    let (mut number, before) = (0, templates.len());
    let mut bytes: usize = templates.iter().map(|template| template.frame().len()).sum();
    while !port.is_finished() {
        port.rx_burst(&mut batch)?;
        for packet in batch.drain() {
            number += 1;
            let frame: Vec<u8> = packet.segments().flatten().copied().collect();
            bytes += frame.len();
            if !(14..=usize::from(*SIZES.end())).contains(&frame.len()) {
                let (path, len) = (path.display(), frame.len());
                bail!(
                    "{path}: packet {number} has {len} bytes, which cannot be sent: 14 to 3840; leave it out (editcap)"
                );
            }
            if bytes > MOST_BYTES {
                bail!("{}: more than 256 MiB of packets; take a part (editcap)", path.display());
            }
            templates.push(Template::fixed(frame));
        }
    }
    if templates.len() == before {
        bail!("{}: it has no packets; give a capture with some", path.display());
    }
    Ok(())
}
