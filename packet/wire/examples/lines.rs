//! Prints a line for each frame of a capture file: `cargo run -p ringway-wire --example lines -- FILE.pcap`. Without a file
//! it prints one that it makes.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;

use pcap_file::pcap::PcapReader;
use ringway_wire::{
    Arp, Builder, Ethernet, Frame, Header as _, Icmp, Icmpv6, Ip, Ipv4, Mac, Malformed, Tcp, Udp,
    ethertype, protocol,
};

/// What a frame is, of which the end may be missing.
fn line(bytes: &[u8]) -> Result<String, Malformed> {
    let frame = Frame::parse(bytes)?;
    let mut line = format!("{} > {}", frame.ethernet.source, frame.ethernet.destination);
    for tag in frame.tags.iter().flatten() {
        let _ = write!(line, " vlan {}", tag.id());
    }
    let rest = match frame.ethertype {
        ethertype::ARP => {
            let arp = Arp::parse(frame.payload)?.header;
            format!("arp {} {:?} for {:?}", arp.operation, arp.sender, arp.target)
        }
        ethertype::IPV4 | ethertype::IPV6 => ip_line(&Ip::parse_partial(frame.payload)?)?,
        other => format!("ethertype {other:#06x}"),
    };
    Ok(format!("{line} {rest}"))
}

fn ip_line(ip: &Ip<&[u8]>) -> Result<String, Malformed> {
    let ends = format!("{} > {}", ip.source(), ip.destination());
    if let Some(fragment) = ip.fragment.filter(|fragment| fragment.offset > 0) {
        return Ok(format!("{ends} fragment at {}", fragment.offset));
    }
    Ok(match ip.protocol {
        protocol::UDP => {
            let udp = Udp::parse_partial(ip.payload)?;
            let len = udp.header.length.get();
            format!("{ends} udp {} > {} length {len}", udp.header.source, udp.header.destination)
        }
        protocol::TCP => {
            let tcp = Tcp::parse_partial(ip.payload)?.header;
            format!("{ends} tcp {} > {} flags {:#x}", tcp.source, tcp.destination, tcp.flags())
        }
        protocol::ICMP => {
            format!("{ends} icmp type {}", Icmp::parse_partial(ip.payload)?.header.kind)
        }
        protocol::ICMPV6 => {
            format!("{ends} icmpv6 type {}", Icmpv6::parse_partial(ip.payload)?.header.kind)
        }
        other => format!("{ends} protocol {other}"),
    })
}

fn print(bytes: &[u8]) {
    match line(bytes) {
        Ok(line) => println!("{line}"),
        Err(malformed) => println!("{malformed}"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(file) = std::env::args_os().nth(1) else {
        let mut buffer = [0; 256];
        let ip = Ipv4::new(protocol::UDP, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut packet = Builder::new(&mut buffer, 128)?;
        packet.append(b"hello")?.udp(Udp::new(4711, 7), Some(ip.pseudo()))?.ipv4(ip, &[])?;
        packet.ethernet(Ethernet::new(Mac([2; 6]), Mac([4; 6]), ethertype::IPV4))?;
        print(packet.packet());
        return Ok(());
    };
    let mut reader = PcapReader::new(File::open(file)?)?;
    while let Some(packet) = reader.next_packet() {
        print(&packet?.data);
    }
    Ok(())
}
