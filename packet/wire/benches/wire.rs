//! What a header costs: parsing and building Ethernet, IPv4 and UDP, checksums, a TTL. Each case works on bytes that lie in
//! the first-level cache, as those of a frame do that has just been looked at.

use divan::{Bencher, black_box, counter::BytesCount};
use ringway_wire::{
    BuildError, Builder, Ethernet, Frame, Header as _, Ip, Ipv4, Ipv6, Mac, Malformed, Sum, Tcp,
    Udp, checksum, ethertype, protocol,
};

fn main() {
    divan::main();
}

const FRONT: Mac = Mac([2, 0, 0, 0, 0, 1]);
const BACK: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// An AF_XDP frame's headroom.
const HEADROOM: usize = 256;

#[inline(never)]
fn build_ipv4_udp(buffer: &mut [u8], payload: &[u8], sum: bool) -> Result<usize, BuildError> {
    let ip = Ipv4::new(protocol::UDP, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet.append(payload)?;
    packet.udp(Udp::new(4711, 53), sum.then(|| ip.pseudo()))?;
    packet.ipv4(ip, &[])?;
    packet.put(&Ethernet::new(BACK, FRONT, ethertype::IPV4))?;
    Ok(packet.range().start)
}

#[inline(never)]
fn build_ipv6_tcp(buffer: &mut [u8], payload: &[u8]) -> Result<usize, BuildError> {
    let ip = Ipv6::new(protocol::TCP, [1; 16].into(), [2; 16].into());
    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet.append(payload)?.tcp(Tcp::new(4711, 80, Tcp::ACK), &[], ip.pseudo())?.ipv6(ip)?;
    packet.put(&Ethernet::new(BACK, FRONT, ethertype::IPV6))?;
    Ok(packet.range().start)
}

/// Ports and length of the payload, of a datagram that is one.
#[inline(never)]
fn parse_ipv4_udp(bytes: &[u8]) -> Result<(u16, u16, usize), Malformed> {
    let ethernet = Ethernet::parse(bytes)?;
    if ethernet.header.ethertype.get() != ethertype::IPV4 {
        return Ok((0, 0, 0));
    }
    let ip = Ipv4::parse(ethernet.payload)?;
    if ip.header.protocol != protocol::UDP || ip.header.fragment().is_some() {
        return Ok((0, 0, 0));
    }
    let udp = Udp::parse(ip.payload)?;
    Ok((udp.header.source.get(), udp.header.destination.get(), udp.payload.len()))
}

/// The same, with tags, of either IP.
#[inline(never)]
fn parse_any_udp(bytes: &[u8]) -> Result<(u16, u16, usize), Malformed> {
    let frame = Frame::parse(bytes)?;
    if !matches!(frame.ethertype, ethertype::IPV4 | ethertype::IPV6) {
        return Ok((0, 0, 0));
    }
    let ip = Ip::parse(frame.payload)?;
    if ip.protocol != protocol::UDP || ip.fragment.is_some() {
        return Ok((0, 0, 0));
    }
    let udp = Udp::parse(ip.payload)?;
    Ok((udp.header.source.get(), udp.header.destination.get(), udp.payload.len()))
}

fn frame() -> Vec<u8> {
    let mut buffer = [0; 512];
    let start = build_ipv4_udp(&mut buffer, &[0x5a; 22], true).expect("there is room");
    buffer[start..HEADROOM + 22].to_vec()
}

#[divan::bench]
fn parse_ethernet_ipv4_udp(bencher: Bencher<'_, '_>) {
    let frame = frame();
    assert_eq!(parse_ipv4_udp(&frame), Ok((4711, 53, 22)));
    bencher.bench(|| parse_ipv4_udp(black_box(&frame)));
}

#[divan::bench]
fn parse_frame_ip_udp(bencher: Bencher<'_, '_>) {
    let frame = frame();
    assert_eq!(parse_any_udp(&frame), Ok((4711, 53, 22)));
    bencher.bench(|| parse_any_udp(black_box(&frame)));
}

/// The IPv4 checksum is made; the UDP checksum, which needs the payload, in one case of two.
#[divan::bench(args = [false, true])]
fn build_ethernet_ipv4_udp(bencher: Bencher<'_, '_>, sum: bool) {
    let mut buffer = [0; 512];
    bencher.bench_local(|| build_ipv4_udp(black_box(&mut buffer), black_box(&[0x5a; 22]), sum));
}

#[divan::bench]
fn build_ethernet_ipv6_tcp(bencher: Bencher<'_, '_>) {
    let mut buffer = [0; 512];
    bencher.bench_local(|| build_ipv6_tcp(black_box(&mut buffer), black_box(&[])));
}

#[divan::bench(args = [20, 64, 256, 1500])]
fn sum(bencher: Bencher<'_, '_>, len: usize) {
    let bytes = vec![0x5a; len];
    bencher.counter(BytesCount::new(len)).bench(|| Sum::default().with(black_box(&bytes)).finish());
}

#[divan::bench]
fn replace_an_address(bencher: Bencher<'_, '_>) {
    let mut sum = 0x1234.into();
    bencher.bench_local(|| {
        checksum::replace(black_box(&mut sum), black_box(&[10, 0, 0, 1]), black_box(&[10, 0, 0, 2]))
    });
}

#[divan::bench]
fn decrement_ttl(bencher: Bencher<'_, '_>) {
    let mut ip = Ipv4::new(protocol::UDP, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    bencher.bench_local(|| {
        ip.ttl = 64;
        black_box(&mut ip).decrement_ttl()
    });
}
