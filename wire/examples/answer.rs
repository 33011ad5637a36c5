//! Answers ARP requests, neighbour solicitations and pings for two addresses, in the buffer that
//! the question is in. The questions are made here too, so that it runs anywhere:
//! `cargo run -p ringway-wire --example answer`.

use std::error::Error;
use std::mem::swap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use ringway_wire::{
    Arp, BuildError, Builder, Ethernet, Frame, Header as _, Icmp, Icmpv6, Ip, Ipv4, Ipv6, Mac,
    Malformed, View, ethertype, nd, protocol,
};

const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const HERE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const HERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const THERE: Mac = Mac([2, 0, 0, 0, 0, 2]);
const THERE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const THERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const HEADROOM: usize = 256;

/// Turns the question at `at` into its answer; None where it asked for nothing that is here.
fn answer(buffer: &mut [u8], at: Range<usize>) -> Result<Option<Range<usize>>, Box<dyn Error>> {
    if let Some((there, whom)) = who_looks_for_us(&buffer[at.clone()])? {
        return Ok(Some(advertise(buffer, there, whom)?));
    }
    let mut frame = Frame::parse(&mut buffer[at.clone()])?;
    let answered = match frame.ethertype {
        ethertype::ARP => answer_arp(frame.payload)?,
        ethertype::IPV4 => answer_ping(frame.payload)?,
        ethertype::IPV6 => answer_ping_v6(frame.payload)?,
        _ => false,
    };
    frame.ethernet.destination = frame.ethernet.source;
    frame.ethernet.source = HERE;
    Ok(answered.then_some(at))
}

fn answer_arp(payload: &mut [u8]) -> Result<bool, Malformed> {
    let mut arp = Arp::parse(payload)?.header;
    let asked = arp.operation.get() == Arp::REQUEST && arp.target == HERE_V4.octets();
    if asked {
        *arp = arp.reply(HERE);
    }
    Ok(asked)
}

/// A wrong checksum stays wrong: whoever asked finds out.
fn answer_ping(payload: &mut [u8]) -> Result<bool, Malformed> {
    let View { mut header, payload, .. } = Ipv4::parse(payload)?;
    if header.protocol != protocol::ICMP
        || header.fragment().is_some()
        || header.destination != HERE_V4.octets()
    {
        return Ok(false);
    }
    let mut icmp = Icmp::parse(payload)?;
    if icmp.header.kind != Icmp::ECHO_REQUEST {
        return Ok(false);
    }
    icmp.header.set_kind(Icmp::ECHO_REPLY, 0);
    let header = &mut *header;
    swap(&mut header.source, &mut header.destination);
    Ok(true)
}

fn answer_ping_v6(payload: &mut [u8]) -> Result<bool, Malformed> {
    let View { mut header, payload, .. } = Ipv6::parse(payload)?;
    if header.next_header != protocol::ICMPV6 || header.destination != HERE_V6.octets() {
        return Ok(false);
    }
    let mut icmp = Icmpv6::parse(payload)?;
    if icmp.header.kind != Icmpv6::ECHO_REQUEST {
        return Ok(false);
    }
    icmp.header.set_kind(Icmpv6::ECHO_REPLY, 0);
    let header = &mut *header;
    swap(&mut header.source, &mut header.destination);
    Ok(true)
}

/// The sender of a valid solicitation (RFC 4861, section 7.1.1) for our address.
fn who_looks_for_us(bytes: &[u8]) -> Result<Option<(Mac, Ipv6Addr)>, Malformed> {
    let frame = Frame::parse(bytes)?;
    if frame.ethertype != ethertype::IPV6 {
        return Ok(None);
    }
    let ip = Ip::parse(frame.payload)?;
    if ip.protocol != protocol::ICMPV6 || ip.fragment.is_some() || ip.ttl() != 255 {
        return Ok(None);
    }
    let icmp = Icmpv6::parse(ip.payload)?;
    if icmp.header.kind != Icmpv6::NEIGHBOUR_SOLICITATION || !icmp.checksum_is_right(ip.pseudo()) {
        return Ok(None);
    }
    let neighbour = nd::Neighbour::parse(icmp.payload)?;
    let mut there = None;
    for option in nd::NdOptions::new(neighbour.payload) {
        if let nd::NdOption::SourceLinkLayer(mac) = option? {
            there = Some(mac);
        }
    }
    let whom = match ip.source() {
        std::net::IpAddr::V6(whom) if neighbour.header.target == HERE_V6.octets() => whom,
        _ => return Ok(None),
    };
    Ok(there.map(|there| (there, whom)))
}

/// From the inside out: target and option, ICMPv6, IPv6, Ethernet.
fn advertise(buffer: &mut [u8], there: Mac, whom: Ipv6Addr) -> Result<Range<usize>, BuildError> {
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(protocol::ICMPV6, HERE_V6, whom) };
    let flags = nd::flags::SOLICITED | nd::flags::OVERRIDE;
    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet
        .append(&nd::Neighbour { target: HERE_V6.octets() })?
        .append(&nd::LinkLayer::target(HERE))?
        .icmpv6(Icmpv6::new(Icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, flags), ip.pseudo())?
        .ipv6(ip)?
        .ethernet(Ethernet::new(there, HERE, ethertype::IPV6))?;
    Ok(packet.range())
}

fn main() -> Result<(), Box<dyn Error>> {
    let buffer = &mut [0; 2048];

    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet.append(&Arp::request(THERE, THERE_V4, HERE_V4))?;
    packet.ethernet(Ethernet::new(Mac::BROADCAST, THERE, ethertype::ARP))?;
    let at = packet.range();
    let at = answer(buffer, at)?.ok_or("no answer to ARP")?;
    let arp = Arp::parse(Frame::parse(&buffer[at])?.payload)?.header;
    println!("{} is at {}", Ipv4Addr::from(arp.sender), arp.sender_mac);

    let ip = Ipv4::new(protocol::ICMP, THERE_V4, HERE_V4);
    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet.append(b"ping")?.icmp(Icmp::echo_request(1, 7))?.ipv4(ip, &[])?;
    packet.ethernet(Ethernet::new(HERE, THERE, ethertype::IPV4))?;
    let at = packet.range();
    let at = answer(buffer, at)?.ok_or("no answer to a ping")?;
    let ip = Ipv4::parse(Frame::parse(&buffer[at])?.payload)?;
    let icmp = Icmp::parse(ip.payload)?;
    assert!(ip.checksum_is_right() && icmp.checksum_is_right());
    println!("{} answers {}", Ipv4Addr::from(ip.header.source), icmp.header.words[1].get());

    let group = nd::Neighbour::solicited_nodes(HERE_V6);
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(protocol::ICMPV6, THERE_V6, group) };
    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet
        .append(&nd::Neighbour { target: HERE_V6.octets() })?
        .append(&nd::LinkLayer::source(THERE))?
        .icmpv6(Icmpv6::new(Icmpv6::NEIGHBOUR_SOLICITATION, 0, 0), ip.pseudo())?
        .ipv6(ip)?
        .ethernet(Ethernet::new(Mac::of_multicast(group), THERE, ethertype::IPV6))?;
    let at = packet.range();
    let at = answer(buffer, at)?.ok_or("no answer to a solicitation")?;
    let ip = Ip::parse(Frame::parse(&buffer[at])?.payload)?;
    let icmp = Icmpv6::parse(ip.payload)?;
    assert!(icmp.checksum_is_right(ip.pseudo()));
    let neighbour = nd::Neighbour::parse(icmp.payload)?;
    let option = nd::NdOptions::new(neighbour.payload).next().ok_or("no option")??;
    println!("{} is at {option:?}", Ipv6Addr::from(neighbour.header.target));
    Ok(())
}
