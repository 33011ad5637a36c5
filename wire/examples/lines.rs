//! Prints a line for each frame of a capture file:
//! `cargo run -p ringway-wire --example lines -- FILE.pcap`. Without a file it prints one that it
//! makes.

use std::error::Error;
use std::fs::File;

use pcap_file::pcap::PcapReader;
use ringway_wire::protocol;
use ringway_wire::{Builder, Ethernet, Ipv4, Line, Mac, Udp, ethertype};

fn main() -> Result<(), Box<dyn Error>> {
    let Some(file) = std::env::args_os().nth(1) else {
        let mut buffer = [0; 256];
        let ip = Ipv4::new(protocol::UDP, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut packet = Builder::new(&mut buffer, 128)?;
        packet.append(b"hello")?.udp(Udp::new(4711, 7), Some(ip.pseudo()))?.ipv4(ip, &[])?;
        packet.ethernet(Ethernet::new(Mac([2; 6]), Mac([4; 6]), ethertype::IPV4))?;
        println!("{}", Line(packet.packet()));
        return Ok(());
    };
    let mut reader = PcapReader::new(File::open(file)?)?;
    while let Some(packet) = reader.next_packet() {
        println!("{}", Line(&packet?.data));
    }
    Ok(())
}
