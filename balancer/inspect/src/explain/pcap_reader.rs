//! One packet of a capture: pcapng or the classic format, as tcpdump and Wireshark write them.

use std::fs::{self, File};
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use ringway_api::error::Error;

/// Type of a pcapng file's first block (draft-ietf-opsawg-pcapng, section 4.1).
const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// How files of the classic format begin, with microseconds and with nanoseconds, in either order
/// of bytes (draft-ietf-opsawg-pcap, section 4).
const CLASSIC: [u32; 4] = [0xa1b2_c3d4, 0xd4c3_b2a1, 0xa1b2_3c4d, 0x4d3c_b2a1];

struct Packet {
    link: DataLink,
    original: u32,
    data: Vec<u8>,
}

/// The `n`th packet of a capture, counted from 1 as tcpdump and Wireshark do.
///
/// # Errors
/// The file is no capture or has no such packet, or the packet was cut or not captured on an
/// Ethernet device (`layer3`: on one without Ethernet headers).
pub fn packet(path: &Path, n: u64, layer3: bool) -> Result<Vec<u8>, Error> {
    let failed = |why: &dyn std::fmt::Display, remedy: &str| {
        Error::configuration(format!("{}: {why}", path.display()), remedy)
    };
    let unreadable = |error: std::io::Error| failed(&error, "give a file that tcpdump -w wrote");
    // Before it is opened: to open a named pipe waits for its writer. The file is read twice, so no
    // pipe will do.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(failed(&"not a regular file", "write the capture to a file, and name that"));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut magic = [0; 4];
    let filled = file.read_exact(&mut magic).is_ok();
    file.rewind().map_err(unreadable)?;
    let reader = BufReader::new(file);
    let found = match magic {
        SECTION_HEADER => from_pcapng(reader, n),
        _ if filled && CLASSIC.contains(&u32::from_be_bytes(magic)) => from_pcap(reader, n),
        _ => {
            let what = "this is no capture: it begins neither as pcap nor as pcapng";
            return Err(failed(
                &what,
                "give a file that `ringway capture -w FILE` or tcpdump -w wrote",
            ));
        }
    };
    let damaged =
        |error| failed(&format!("the capture is damaged or cut short: {error}"), "write it anew");
    let packet = found.map_err(damaged)?;
    let packet = packet.map_err(|count| {
        failed(&format!("there is no packet {n}: it has {count}"), "packets count from 1")
    })?;
    let fits = match layer3 {
        true => [DataLink::RAW, DataLink::IPV4, DataLink::IPV6].contains(&packet.link),
        false => packet.link == DataLink::ETHERNET,
    };
    if !fits {
        let what = format!("packet {n} was captured as {:?}", packet.link);
        return Err(failed(&what, "capture on the interface itself: tcpdump -i IFACE -w FILE"));
    }
    if packet.data.len() < packet.original as usize {
        let what = format!(
            "of packet {n} only {} of {} bytes were captured",
            packet.data.len(),
            packet.original
        );
        return Err(failed(&what, "capture whole packets: tcpdump -s 0"));
    }
    Ok(packet.data)
}

/// The packet, or how many there are.
type Found = Result<Packet, u64>;

fn from_pcap(reader: impl Read, n: u64) -> Result<Found, pcap_file::PcapError> {
    let mut reader = PcapReader::new(reader)?;
    let link = reader.header().datalink;
    let mut count = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        count += 1;
        if count == n {
            let data = packet.data.into_owned();
            return Ok(Ok(Packet { link, original: packet.orig_len, data }));
        }
    }
    Ok(Err(count))
}

fn from_pcapng(reader: impl Read, n: u64) -> Result<Found, pcap_file::PcapError> {
    let mut reader = PcapNgReader::new(reader)?;
    let (mut links, mut count) = (Vec::new(), 0);
    while let Some(block) = reader.next_block() {
        let (interface, original, data) = match block? {
            Block::SectionHeader(_) => {
                links.clear();
                continue;
            }
            Block::InterfaceDescription(interface) => {
                links.push(interface.linktype);
                continue;
            }
            Block::EnhancedPacket(p) => (p.interface_id, p.original_len, p.data.into_owned()),
            Block::SimplePacket(p) => (0, p.original_len, p.data.into_owned()),
            _ => continue,
        };
        count += 1;
        if count == n {
            let link = links.get(interface as usize).copied().unwrap_or(DataLink::NULL);
            return Ok(Ok(Packet { link, original, data }));
        }
    }
    Ok(Err(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn le(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = body.len() as u32 + 12;
        [&le(&[kind, len])[..], body, &le(&[len])].concat()
    }

    /// Two packets of 16 bytes, of which the second has lost some.
    fn pcapng(link: u32) -> Vec<u8> {
        let section = le(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
        let packet =
            |original, byte| block(6, &[&le(&[0, 0, 0, 16, original])[..], &[byte; 16]].concat());
        [block(0x0a0d_0d0a, &section), block(1, &le(&[link, 0])), packet(16, 7), packet(60, 8)]
            .concat()
    }

    fn pcap(link: u32) -> Vec<u8> {
        let mut file = le(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, link]);
        for (original, byte) in [(16, 7), (60, 8)] {
            file.extend(le(&[0, 0, 16, original]));
            file.extend([byte; 16]);
        }
        file
    }

    fn read(name: &str, content: &[u8], n: u64, layer3: bool) -> Result<Vec<u8>, String> {
        let path =
            std::env::temp_dir().join(format!("ringway-capture-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("write");
        let found = packet(&path, n, layer3).map_err(|error| error.to_string());
        std::fs::remove_file(&path).expect("remove");
        found
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let place = tempfile::tempdir().expect("a directory");
        let fifo = place.path().join("fifo");
        let (mode, kind) = (rustix::fs::Mode::RUSR, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).expect("made");
        let refused = packet(&fifo, 1, false).expect_err("no file").to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
    }

    #[test]
    fn both_formats() {
        for (name, file) in [("a", pcapng(1)), ("b", pcap(1))] {
            assert_eq!(read(name, &file, 1, false), Ok(vec![7; 16]));
            let error = |n| read(name, &file, n, false).expect_err("error");
            assert!(error(2).contains("only 16 of 60 bytes"), "{}", error(2));
            assert!(error(3).contains("there is no packet 3: it has 2"), "{}", error(3));
            assert!(error(0).contains("there is no packet 0"), "{}", error(0));
        }
        for (name, file) in [("c", pcapng(101)), ("d", pcap(101))] {
            assert!(read(name, &file, 1, false).expect_err("raw").contains("tcpdump -i IFACE"));
            assert_eq!(read(name, &file, 1, true), Ok(vec![7; 16]));
        }
    }

    #[test]
    fn no_capture_at_all() {
        let none = "this is no capture";
        for (name, file, words) in [
            ("e", &b"hello, this is text"[..], none),
            ("f", b"", none),
            ("g", &pcapng(1)[..40], "damaged or cut short"),
            ("h", &pcap(1)[..20], "damaged or cut short"),
        ] {
            let error = read(name, file, 1, false).expect_err(words);
            assert!(error.contains(words) && error.contains("to do: "), "{error}");
        }
        let missing = packet(Path::new("/nonexistent.pcapng"), 1, false).expect_err("missing");
        assert!(missing.what.contains("/nonexistent.pcapng"), "{missing}");
    }
}
