//! Packets of ARP and neighbour discovery that the daemon sends by itself.

use std::net::{Ipv4Addr, Ipv6Addr};

use ringway_wire::{
    Arp, BuildError, Builder, Ethernet, Icmpv6, Ipv6, Mac, ethertype, nd, protocol,
};

pub(crate) mod announce;
pub mod multicast;
pub(crate) mod who_has;

/// Room in front of a packet's last part for all headers of the longest message.
const HEADROOM: usize = 128;

/// Asks everybody who has `target`.
fn arp_request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Result<Vec<u8>, BuildError> {
    let mut buffer = [0; HEADROOM];
    let mut packet = Builder::new(&mut buffer, HEADROOM)?;
    packet.put(&Arp::request(mac, sender, target))?;
    packet.ethernet(Ethernet::new(Mac::BROADCAST, mac, ethertype::ARP))?;
    Ok(packet.packet().to_vec())
}

/// A message about `target`, from an address to a group.
fn neighbour_message(
    mac: Mac,
    (from, group): (Ipv6Addr, Ipv6Addr),
    header: Icmpv6,
    target: Ipv6Addr,
    option: &[u8],
) -> Result<Vec<u8>, BuildError> {
    // Receivers discard what a router may have forwarded (RFC 4861, section 7.1).
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(protocol::ICMPV6, from, group) };
    let mut buffer = [0; HEADROOM];
    let mut packet = Builder::new(&mut buffer, HEADROOM)?;
    packet.put(option)?.put(&nd::Neighbour { target: target.octets() })?;
    packet.icmpv6(header, ip.pseudo())?.ipv6(ip)?;
    packet.ethernet(Ethernet::new(Mac::of_multicast(group), mac, ethertype::IPV6))?;
    Ok(packet.packet().to_vec())
}
