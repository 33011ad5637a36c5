//! Packets as a pcapng file (draft-ietf-opsawg-pcapng), for Wireshark, tshark and tcpdump. The
//! crate that reads such files for `explain` cannot write the options that carry verdicts and
//! packet ids.

use rustix::system::uname;

use super::packet::{Frame, Packet};

/// Block types (sections 4.1, 4.2, 4.3 and 4.6).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const INTERFACE_STATISTICS: u32 = 5;

/// Ethernet, and IP packets without anything before them (tcpdump.org/linktypes.html).
const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;

/// An option of any block (section 3.5).
const COMMENT: u16 = 1;
/// Options of a packet's block (section 4.3).
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const EPB_PACKETID: u16 = 5;
const EPB_VERDICT: u16 = 7;
/// Bytes of such a block beside the frame and the comment, at most.
const EPB_ROOM: usize = 128;
/// Nanoseconds: 10^-9 (section 4.2, if_tsresol).
const NANOSECONDS: u8 = 9;
/// An XDP action (section 4.3, epb_verdict).
const LINUX_EBPF_XDP: u8 = 2;
/// The lowest two bits of epb_flags (section 4.3.1).
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Totals of a whole capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that matched the filter.
    pub matched: u64,
    /// Of these, written.
    pub captured: u64,
    /// Matched packets that were lost because the ring was full.
    pub lost: u64,
    /// Its begin and end, nanoseconds since 1970.
    pub span_unix_ns: (u64, u64),
}

/// Makes a pcapng file, block by block.
#[derive(Debug)]
pub struct Pcapng {
    /// Slot, and whether its frames lack an Ethernet header, of each interface described so far.
    interfaces: Vec<(u32, bool)>,
    filter: String,
    snaplen: u32,
    next_id: u64,
}

impl Pcapng {
    /// Appends the section header. `filter` and `snaplen` are those of the capture.
    pub fn begin(file: &mut Vec<u8>, filter: &str, snaplen: u32) -> Pcapng {
        let system = uname();
        let [name, release, machine] = [system.sysname(), system.release(), system.machine()]
            .map(|text| text.to_string_lossy().into_owned());
        let mut block = Block::begin(file, SECTION_HEADER);
        block.u32(0x1a2b_3c4d); // byte order
        block.u32(1); // version 1.0
        block.u64(u64::MAX); // of unknown length
        block.option(2, machine.as_bytes());
        block.option(3, format!("{name} {release}").as_bytes());
        block.option(4, concat!("ringway ", env!("CARGO_PKG_VERSION")).as_bytes());
        block.end();
        Pcapng { interfaces: Vec::new(), filter: filter.to_owned(), snaplen, next_id: 0 }
    }

    /// Describes an interface, unless that is done; returns its number in the file. `raw`: its
    /// frames have no Ethernet header.
    pub fn interface(&mut self, file: &mut Vec<u8>, slot: u32, raw: bool, name: &str) -> u32 {
        if let Some(known) = self.interfaces.iter().position(|one| *one == (slot, raw)) {
            return known as u32;
        }
        let mut block = Block::begin(file, INTERFACE_DESCRIPTION);
        block.u32(if raw { LINKTYPE_RAW } else { LINKTYPE_ETHERNET }.into());
        block.u32(self.snaplen);
        block.option(2, name.as_bytes());
        block.option(9, &[NANOSECONDS]);
        if !self.filter.is_empty() {
            // 0: a filter as libpcap has it.
            block.option(11, &[&[0], self.filter.as_bytes()].concat());
        }
        block.end();
        self.interfaces.push((slot, raw));
        self.interfaces.len() as u32 - 1
    }

    /// A packet: a block as it came and, where it was rewritten, one as it leaves, with one packet
    /// id. `lost`: how many are missing before it.
    pub fn packet(&mut self, file: &mut Vec<u8>, packet: &Packet<'_>, lost: u64) {
        let id = self.next_id;
        self.next_id += 1;
        self.frame(file, packet, &packet.before, |block| {
            block.option(EPB_FLAGS, &INBOUND.to_le_bytes());
            if lost > 0 {
                block.option(EPB_DROPCOUNT, &lost.to_le_bytes());
            }
            block.option(EPB_PACKETID, &id.to_le_bytes());
        });
        if let Some(after) = &packet.after {
            self.frame(file, packet, after, |block| {
                block.option(EPB_FLAGS, &OUTBOUND.to_le_bytes());
                block.option(EPB_PACKETID, &id.to_le_bytes());
            });
        }
    }

    fn frame(
        &mut self,
        file: &mut Vec<u8>,
        packet: &Packet<'_>,
        frame: &Frame<'_>,
        options: impl FnOnce(&mut Block<'_>),
    ) {
        let interface = self.interface(file, frame.slot, frame.raw, frame.interface);
        let words = packet.fate.words.as_bytes();
        // Once a block, and not with each of its parts.
        file.reserve(frame.bytes.len() + words.len() + EPB_ROOM);
        let mut block = Block::begin(file, ENHANCED_PACKET);
        block.u32(interface);
        block.moment(packet.unix_ns);
        block.u32(frame.bytes.len() as u32);
        block.u32(frame.wire_len);
        block.padded(frame.bytes);
        block.option(COMMENT, words);
        options(&mut block);
        let mut verdict = [LINUX_EBPF_XDP; 9];
        verdict[1..].copy_from_slice(&(packet.fate.verdict as u64).to_le_bytes());
        block.option(EPB_VERDICT, &verdict);
        block.end();
    }

    /// The end: a statistics block for each interface described. `received`: packets that came in
    /// by an interface slot meanwhile, as far as that is known. The first block tells of all
    /// together.
    pub fn statistics(
        &self,
        file: &mut Vec<u8>,
        received: impl Fn(u32) -> Option<u64>,
        all: &Totals,
    ) {
        for (number, (slot, _)) in self.interfaces.iter().enumerate() {
            let mut block = Block::begin(file, INTERFACE_STATISTICS);
            block.u32(number as u32);
            block.moment(all.span_unix_ns.1);
            if number == 0 {
                block.option(COMMENT, format!("all interfaces together: {all}").as_bytes());
            }
            block.option(2, &halves(all.span_unix_ns.0));
            block.option(3, &halves(all.span_unix_ns.1));
            if let Some(received) = received(*slot) {
                block.option(4, &received.to_le_bytes());
            }
            if number == 0 {
                block.option(5, &all.lost.to_le_bytes());
                block.option(6, &all.matched.to_le_bytes());
                block.option(8, &all.captured.to_le_bytes());
            }
            block.end();
        }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Totals { captured, lost, matched, .. } = self;
        write!(f, "{captured} packets captured, {lost} lost (ring full), of {matched} that matched")
    }
}

/// A block under way: its length is written when it ends, before and behind it.
struct Block<'f> {
    file: &'f mut Vec<u8>,
    start: usize,
    options: bool,
}

impl<'f> Block<'f> {
    fn begin(file: &'f mut Vec<u8>, kind: u32) -> Block<'f> {
        let start = file.len();
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&[0; 4]);
        Block { file, start, options: false }
    }

    fn u32(&mut self, value: u32) {
        self.file.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.file.extend_from_slice(&value.to_le_bytes());
    }

    fn moment(&mut self, unix_ns: u64) {
        self.file.extend_from_slice(&halves(unix_ns));
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.file.extend_from_slice(bytes);
        let padding = (self.start.wrapping_sub(self.file.len())) % 4;
        self.file.extend_from_slice(&[0; 3][..padding]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // None of ours comes near the 65535 bytes there are; a longer one would break the file.
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        let [code, length] = [code, value.len() as u16].map(u16::to_le_bytes);
        self.file.extend_from_slice(&[code[0], code[1], length[0], length[1]]);
        self.padded(value);
        self.options = true;
    }

    fn end(self) {
        if self.options {
            self.file.extend_from_slice(&[0; 4]);
        }
        let length = (self.file.len() + 4 - self.start) as u32;
        self.file.extend_from_slice(&length.to_le_bytes());
        self.file[self.start + 4..self.start + 8].copy_from_slice(&length.to_le_bytes());
    }
}

/// Moments are two words, the upper one first, each in the file's byte order (section 4.3).
fn halves(unix_ns: u64) -> [u8; 8] {
    unix_ns.rotate_left(32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pcap_file::DataLink;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use ringway_abi::{Reason, Verdict};

    use super::super::packet::Fate;
    use super::*;

    const MOMENT: u64 = 0x0123_4567_89ab_cdef;

    fn fate(rewritten: bool) -> Fate {
        let (verdict, reason) = match rewritten {
            true => (Verdict::Redirect, Reason::NatForward),
            false => (Verdict::Drop, Reason::NoBackend),
        };
        Fate::new(verdict, reason, Some("web".into()), rewritten.then(|| "10.0.0.2:80".into()))
    }

    fn packet<'a>(fate: &'a Fate, before: &'a [u8], after: Option<&'a [u8]>) -> Packet<'a> {
        let frame = |slot, bytes: &'a [u8]| Frame {
            slot,
            raw: false,
            interface: if slot == 0 { "eth0" } else { "eth1" },
            bytes,
            wire_len: 100,
        };
        Packet {
            unix_ns: MOMENT,
            fate,
            before: frame(0, before),
            after: after.map(|bytes| frame(1, bytes)),
        }
    }

    /// What somebody else's reader makes of it.
    #[test]
    fn is_read_back() {
        let mut file = Vec::new();
        let mut pcapng = Pcapng::begin(&mut file, "tcp", 64);
        pcapng.interface(&mut file, 0, false, "eth0");
        pcapng.packet(&mut file, &packet(&fate(true), &[1; 61], Some(&[2; 64])), 0);
        pcapng.packet(&mut file, &packet(&fate(false), &[3; 7], None), 5);
        let all = Totals { matched: 9, captured: 2, lost: 5, span_unix_ns: (MOMENT, MOMENT + 1) };
        pcapng.statistics(&mut file, |slot| (slot == 0).then_some(30), &all);

        let mut reader = PcapNgReader::new(&file[..]).expect("a section");
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.expect("a block").into_owned());
        }
        let [Block::InterfaceDescription(eth0), rest @ ..] = &blocks[..] else {
            panic!("{blocks:?}")
        };
        assert_eq!((eth0.linktype, eth0.snaplen), (DataLink::ETHERNET, 64));
        assert_eq!(eth0.options[0], InterfaceDescriptionOption::IfName("eth0".into()));
        assert_eq!(eth0.options[1], InterfaceDescriptionOption::IfTsResol(9));
        assert_eq!(eth0.options[2], InterfaceDescriptionOption::IfFilter(b"\0tcp"[..].into()));
        let [Block::EnhancedPacket(came), Block::InterfaceDescription(_), rest @ ..] = rest else {
            panic!("{rest:?}")
        };
        let [Block::EnhancedPacket(left), Block::EnhancedPacket(dropped), rest @ ..] = rest else {
            panic!("{rest:?}")
        };
        assert_eq!((came.interface_id, &came.data[..]), (0, &[1; 61][..]));
        assert_eq!((left.interface_id, &left.data[..]), (1, &[2; 64][..]));
        assert_eq!((dropped.interface_id, &dropped.data[..]), (0, &[3; 7][..]));
        assert_eq!((came.original_len, came.timestamp), (100, Duration::from_nanos(MOMENT)));
        let fate = "redirect nat-forward, service web, backend 10.0.0.2:80";
        assert_eq!(came.options[0], EnhancedPacketOption::Comment(fate.into()));
        assert_eq!(came.options[1], EnhancedPacketOption::Flags(INBOUND));
        assert_eq!(left.options[1], EnhancedPacketOption::Flags(OUTBOUND));
        assert_eq!(dropped.options[2], EnhancedPacketOption::DropCount(5));
        // One id for both, and the action of the kernel's.
        assert_eq!(came.options[2..], left.options[2..]);
        let text = format!("{:?}", dropped.options);
        assert!(text.contains("code: 5, length: 8, value: [1, 0,"), "{text}");
        assert!(text.contains("code: 7, length: 9, value: [2, 1, 0,"), "{text}");
        let [Block::InterfaceStatistics(first), Block::InterfaceStatistics(second)] = rest else {
            panic!("{rest:?}")
        };
        let comment =
            "all interfaces together: 2 packets captured, 5 lost (ring full), of 9 that matched";
        assert_eq!(first.options[0], InterfaceStatisticsOption::Comment(comment.into()));
        assert_eq!(first.options[3], InterfaceStatisticsOption::IsbIfRecv(30));
        assert_eq!(first.options[4], InterfaceStatisticsOption::IsbIfDrop(5));
        assert_eq!((second.interface_id, second.options.len()), (1, 2));
    }
}
