//! The cost of a header: parsing and building Ethernet, IPv4 and UDP, and checksums. Each case
//! works on bytes in the first-level cache, where those of a frame are that has just been read.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use ringway_wire::protocol;
use ringway_wire::{
    BuildError, Builder, Ethernet, Frame, Header as _, Ip, Ipv4, Ipv6, Mac, Malformed, Sum, Tcp,
    Udp, checksum, ethertype,
};

fn main() {
    divan::main();
}

const FRONT: Mac = Mac([2, 0, 0, 0, 0, 1]);
const BACK: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// An AF_XDP frame's headroom.
const HEADROOM: usize = 256;
/// Packets a burst.
const BURST: usize = 32;
/// A payload that makes it a frame of 64 bytes.
const PAYLOAD: usize = 22;

/// A case that does nothing.
#[inline(never)]
fn nothing(_: &mut [u8], _: bool) -> Result<usize, BuildError> {
    Ok(HEADROOM)
}

/// In front of a payload that lies there.
#[inline(never)]
fn build_ipv4_udp(buffer: &mut [u8], macs: [Mac; 2], sum: bool) -> Result<usize, BuildError> {
    let ip = Ipv4::new(protocol::UDP, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut packet = Builder::around(buffer, HEADROOM..HEADROOM + PAYLOAD)?;
    packet.udp(Udp::new(4711, 53), sum.then(|| ip.pseudo()))?;
    packet.ipv4(ip, &[])?;
    packet.ethernet(Ethernet::new(macs[0], macs[1], ethertype::IPV4))?;
    Ok(packet.range().start)
}

#[inline(never)]
fn build_ipv6_tcp(buffer: &mut [u8], macs: [Mac; 2]) -> Result<usize, BuildError> {
    let ip = Ipv6::new(protocol::TCP, [1; 16].into(), [2; 16].into());
    let mut packet = Builder::new(buffer, HEADROOM)?;
    packet.tcp(Tcp::new(4711, 80, Tcp::ACK), &[], ip.pseudo())?.ipv6(ip)?;
    packet.ethernet(Ethernet::new(macs[0], macs[1], ethertype::IPV6))?;
    Ok(packet.range().start)
}

/// The length of the payload, of a datagram to our port.
#[inline(never)]
fn parse_ipv4_udp(bytes: &[u8]) -> Result<usize, Malformed> {
    let ethernet = Ethernet::parse(bytes)?;
    if ethernet.header.ethertype.get() != ethertype::IPV4 {
        return Ok(0);
    }
    let ip = Ipv4::parse(ethernet.payload)?;
    if ip.header.protocol != protocol::UDP || ip.header.fragment().is_some() {
        return Ok(0);
    }
    let udp = Udp::parse(ip.payload)?;
    Ok(if udp.header.destination.get() == 53 { udp.payload.len() } else { 0 })
}

/// The same, with tags, of either IP.
#[inline(never)]
fn parse_any_udp(bytes: &[u8]) -> Result<usize, Malformed> {
    let frame = Frame::parse(bytes)?;
    if !matches!(frame.ethertype, ethertype::IPV4 | ethertype::IPV6) {
        return Ok(0);
    }
    let ip = Ip::parse(frame.payload)?;
    if ip.protocol != protocol::UDP || ip.fragment.is_some() {
        return Ok(0);
    }
    let udp = Udp::parse(ip.payload)?;
    Ok(if udp.header.destination.get() == 53 { udp.payload.len() } else { 0 })
}

fn frame() -> Vec<u8> {
    let mut buffer = [0; 512];
    let start = build_ipv4_udp(&mut buffer, [BACK, FRONT], true).expect("there is room");
    buffer[start..HEADROOM + PAYLOAD].to_vec()
}

/// Runs a case on a burst, as a packet loop does; what is printed as items a second are packets.
fn bursts(bencher: Bencher<'_, '_>, mut each: impl FnMut() -> usize) {
    let burst = || (0..BURST).map(|_| each()).fold(0, usize::wrapping_add);
    bencher.counter(ItemsCount::new(BURST)).bench_local(burst);
}

/// To be subtracted from the others: a call that does nothing.
#[divan::bench]
fn baseline(bencher: Bencher<'_, '_>) {
    let mut buffer = [0; 512];
    bursts(bencher, || nothing(black_box(&mut buffer), black_box(true)).unwrap_or(0));
}

#[divan::bench]
fn parse_ethernet_ipv4_udp(bencher: Bencher<'_, '_>) {
    let frame = frame();
    assert_eq!(parse_ipv4_udp(&frame), Ok(PAYLOAD));
    bursts(bencher, || parse_ipv4_udp(black_box(&frame)).unwrap_or(0));
}

#[divan::bench]
fn parse_frame_ip_udp(bencher: Bencher<'_, '_>) {
    let frame = frame();
    assert_eq!(parse_any_udp(&frame), Ok(PAYLOAD));
    bursts(bencher, || parse_any_udp(black_box(&frame)).unwrap_or(0));
}

/// The IPv4 checksum is made; the UDP checksum, which needs the payload, in one case of two.
#[divan::bench(args = [false, true])]
fn build_ethernet_ipv4_udp(bencher: Bencher<'_, '_>, sum: bool) {
    let mut buffer = [0; 512];
    let macs = [BACK, FRONT];
    bursts(bencher, || build_ipv4_udp(black_box(&mut buffer), black_box(macs), sum).unwrap_or(0));
}

#[divan::bench]
fn build_ethernet_ipv6_tcp(bencher: Bencher<'_, '_>) {
    let mut buffer = [0; 512];
    let macs = [BACK, FRONT];
    bursts(bencher, || build_ipv6_tcp(black_box(&mut buffer), black_box(macs)).unwrap_or(0));
}

#[divan::bench(args = [20, 64, 256, 1500])]
fn sum(bencher: Bencher<'_, '_>, len: usize) {
    let bytes = vec![0x5a; len];
    bursts(bencher, || Sum::default().with(black_box(&bytes)).finish().get().into());
}

#[divan::bench]
fn replace_an_address(bencher: Bencher<'_, '_>) {
    let mut sum = 0x1234.into();
    bursts(bencher, || {
        checksum::replace(
            black_box(&mut sum),
            black_box(&[10, 0, 0, 1]),
            black_box(&[10, 0, 0, 2]),
        );
        0
    });
}
