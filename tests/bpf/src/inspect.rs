//! Reads any frame that the packet path may get or give: tags, IPv4 options, IPv6 extension
//! headers, fragments, TCP, UDP, ICMP with the packet it quotes. Finds what is wrong with it, and
//! can mend its checksums. Knows nothing of the packet path.

use crate::frame::{TCP, UDP, sum, sum_ipv4};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ROUTING: u8 = 43;
/// Headers whose second byte is their length in units of 8 bytes, less one (RFC 6564).
const OPTIONS: [u8; 6] = [0, ROUTING, 60, 135, 139, 140];

/// Where things are in a frame, in bytes from its beginning. Every length agrees with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The IP header; behind as many tags as there are.
    pub l3: usize,
    /// Layer 4, or what is left of it in a fragment.
    pub l4: usize,
    /// Behind the packet: only padding follows.
    pub end: usize,
    pub v6: bool,
    /// Protocol of what is at `l4`.
    pub proto: u8,
    /// A part of a packet: its layer 4 cannot be summed.
    pub fragment: bool,
    /// Not the first part of it: there is no layer-4 header at `l4`.
    pub later: bool,
    /// The addresses in the IP header are those of layer 4's sum (RFC 8200 section 8.1).
    pub summable: bool,
}

type Result<T> = std::result::Result<T, &'static str>;

/// Bytes from `at` on, which must be there.
fn take(frame: &[u8], at: usize, len: usize) -> Result<&[u8]> {
    frame.get(at..at + len).ok_or("cut short")
}

fn word(frame: &[u8], at: usize) -> Result<u16> {
    take(frame, at, 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// Reads layers 2 and 3. None: not IP.
pub fn layout(frame: &[u8]) -> Result<Option<Layout>> {
    let mut l3 = 14;
    let mut ethertype = word(frame, 12)?;
    while matches!(ethertype, 0x8100 | 0x88a8) {
        ethertype = word(frame, l3 + 2)?;
        l3 += 4;
    }
    match ethertype {
        0x0800 => ipv4(frame, l3, false).map(Some),
        0x86dd => ipv6(frame, l3, false).map(Some),
        _ => Ok(None),
    }
}

/// Reads a packet that is quoted at `l3`: as much of it as is there.
fn quoted(frame: &[u8], l3: usize, v6: bool) -> Result<Layout> {
    if v6 { ipv6(frame, l3, true) } else { ipv4(frame, l3, true) }
}

fn ipv4(frame: &[u8], l3: usize, quoted: bool) -> Result<Layout> {
    let ip = take(frame, l3, 20)?;
    let (header, total) = (usize::from(ip[0] & 15) * 4, usize::from(word(ip, 2)?));
    if ip[0] >> 4 != 4 || header < 20 || total < header {
        return Err("IPv4 lengths disagree");
    }
    take(frame, l3, header)?;
    let end = if quoted { (l3 + total).min(frame.len()) } else { l3 + total };
    if end > frame.len() {
        return Err("IPv4 length beyond the frame");
    }
    let fragment = word(ip, 6)?;
    Ok(Layout {
        l3,
        l4: l3 + header,
        end,
        v6: false,
        proto: ip[9],
        fragment: fragment & 0x3fff != 0,
        later: fragment & 0x1fff != 0,
        summable: true,
    })
}

fn ipv6(frame: &[u8], l3: usize, quoted: bool) -> Result<Layout> {
    let ip = take(frame, l3, 40)?;
    if ip[0] >> 4 != 6 {
        return Err("no IPv6 header");
    }
    let end = l3 + 40 + usize::from(word(ip, 4)?);
    let end = if quoted { end.min(frame.len()) } else { end };
    if end > frame.len() {
        return Err("IPv6 length beyond the frame");
    }
    let mut found = Layout {
        l3,
        l4: l3 + 40,
        end,
        v6: true,
        proto: ip[6],
        fragment: false,
        later: false,
        summable: true,
    };
    while !found.later {
        let at = found.l4;
        let len = match found.proto {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(take(frame, at, 8)?[1]) + 2) * 4,
            proto if OPTIONS.contains(&proto) => (usize::from(take(frame, at, 8)?[1]) + 1) * 8,
            _ => break,
        };
        let header = take(&frame[..end], at, len)?;
        if found.proto == FRAGMENT {
            let offset = word(header, 2)?;
            found.fragment |= offset & 0xfff9 != 0;
            found.later = offset & 0xfff8 != 0;
        }
        // Segments left: the packet's last destination stands in this header.
        found.summable &= found.proto != ROUTING || header[3] == 0;
        (found.proto, found.l4) = (header[0], at + len);
    }
    Ok(found)
}

/// Where a layer-4 checksum is and what it covers.
struct Sum {
    at: usize,
    end: usize,
    pseudo: u64,
}

impl Layout {
    /// Where what is not header begins: behind TCP's options, UDP's or ICMP's eight bytes.
    pub fn payload(&self, frame: &[u8]) -> usize {
        let header = match self.proto {
            _ if self.later => 0,
            TCP => frame.get(self.l4 + 12).map_or(0, |offset| usize::from(offset >> 4) * 4),
            UDP | ICMP | ICMPV6 => 8,
            _ => 0,
        };
        (self.l4 + header).min(self.end)
    }

    /// Type of the ICMP message, if it is one that quotes a packet (RFC 792, RFC 4443).
    pub fn icmp_error(&self, frame: &[u8]) -> Option<u8> {
        let kind = *frame[..self.end].get(self.l4)?;
        let is_error = match (self.v6, self.proto) {
            _ if self.later => false,
            (false, ICMP) => matches!(kind, 3 | 4 | 5 | 11 | 12),
            (true, ICMPV6) => matches!(kind, 1..=4),
            _ => false,
        };
        is_error.then_some(kind)
    }

    fn pseudo(&self, frame: &[u8], len: usize) -> u64 {
        let addresses =
            if self.v6 { self.l3 + 8..self.l3 + 40 } else { self.l3 + 12..self.l3 + 20 };
        u64::from(sum(&frame[addresses], 0)) + u64::from(self.proto) + len as u64
    }

    /// The sum over the bytes that the layer-4 checksum covers; none if there is no checksum, or
    /// not all bytes are here.
    fn covered(&self, frame: &[u8]) -> Result<Option<Sum>> {
        if self.fragment || !self.summable {
            return Ok(None);
        }
        let packet = &frame[..self.end];
        let (check_at, end) = match (self.proto, self.v6) {
            (TCP, _) => {
                let header = usize::from(take(packet, self.l4, 20)?[12] >> 4) * 4;
                if header < 20 || self.l4 + header > self.end {
                    return Err("TCP lengths disagree");
                }
                (16, self.end)
            }
            (UDP, _) => {
                let len = usize::from(word(take(packet, self.l4, 8)?, 4)?);
                if len < 8 || self.l4 + len > self.end {
                    return Err("UDP lengths disagree");
                }
                (6, self.l4 + len)
            }
            (ICMP, false) => {
                take(packet, self.l4, 8)?;
                return Ok(Some(Sum { at: self.l4 + 2, end: self.end, pseudo: 0 }));
            }
            (ICMPV6, true) => {
                take(packet, self.l4, 4)?;
                (2, self.end)
            }
            _ => return Ok(None),
        };
        let pseudo = self.pseudo(frame, end - self.l4);
        Ok(Some(Sum { at: self.l4 + check_at, end, pseudo }))
    }

    fn check_l3(&self, frame: &[u8]) -> Result<()> {
        // Of an IPv4 header in which options were cut off nothing can be said.
        let right = self.v6 || sum(&frame[self.l3..self.l4], 0) == 0xffff;
        if right { Ok(()) } else { Err("IPv4 checksum") }
    }

    fn check_l4(&self, frame: &[u8]) -> Result<()> {
        let Some(covered) = self.covered(frame)? else { return Ok(()) };
        let unchecked = self.proto == UDP && word(frame, covered.at)? == 0;
        let right = unchecked || sum(&frame[self.l4..covered.end], covered.pseudo) == 0xffff;
        if right { Ok(()) } else { Err("layer-4 checksum") }
    }
}

/// Finds a frame in order, or what is wrong with it. None: it is not IP.
pub fn check(frame: &[u8]) -> Result<Option<Layout>> {
    let Some(found) = layout(frame)? else { return Ok(None) };
    found.check_l3(frame)?;
    found.check_l4(frame)?;
    Ok(Some(found))
}

/// Is the packet that an ICMP error quotes in order, as far as it is quoted? None: nothing is
/// quoted, or so little that this cannot be told.
pub fn check_quote(frame: &[u8], outer: &Layout) -> Option<Result<()>> {
    outer.icmp_error(frame)?;
    let packet = &frame[..outer.end];
    let found = match quoted(packet, outer.l4 + 8, outer.v6) {
        Ok(found) => found,
        Err(why) => return Some(Err(why)),
    };
    if let Err(why) = found.check_l3(packet) {
        return Some(Err(why));
    }
    let length_at = found.l3 + if found.v6 { 4 } else { 2 };
    let length = usize::from(word(packet, length_at).ok()?) + if found.v6 { 40 } else { 0 };
    let whole = found.l3 + length <= packet.len();
    Some(if whole { found.check_l4(packet) } else { Ok(()) })
}

/// Makes the checksums of a frame right wherever its lengths allow it, a quoted packet's first.
pub fn mend(frame: &mut [u8]) {
    let Ok(Some(found)) = layout(frame) else { return };
    if found.icmp_error(frame).is_some() {
        let packet = &mut frame[..found.end];
        if let Ok(inner) = quoted(packet, found.l4 + 8, found.v6) {
            mend_packet(packet, &inner);
        }
    }
    mend_packet(frame, &found);
}

fn mend_packet(frame: &mut [u8], packet: &Layout) {
    if !packet.v6 {
        sum_ipv4(&mut frame[packet.l3..]);
    }
    let Ok(Some(covered)) = packet.covered(frame) else { return };
    frame[covered.at..covered.at + 2].fill(0);
    let check = match !sum(&frame[packet.l4..covered.end], covered.pseudo) {
        0 if packet.proto == UDP => 0xffff,
        check => check,
    };
    frame[covered.at..covered.at + 2].copy_from_slice(&check.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::{FAMILIES, Family};
    use crate::frame::{Frame, flags};
    use std::net::SocketAddr;

    fn frames() -> Vec<Frame> {
        let mut all = Vec::new();
        for family in FAMILIES {
            let (src, dst): (SocketAddr, SocketAddr) =
                ((family.client(), 40000).into(), (family.vip(), 80).into());
            for frame in [Frame::tcp(src, dst, flags::ACK).payload(b"odd"), Frame::udp(src, dst)] {
                let proto = frame.proto;
                let options = match family {
                    Family::V4 => vec![1, 1, 1, 0],
                    Family::V6 => [60, 0, 1, 4, 0, 0, 0, 0, proto, 0, 1, 4, 0, 0, 0, 0].to_vec(),
                };
                all.push(frame.clone().with(|f| f.vlans = vec![(0x88a8, 5), (0x8100, 6)]));
                all.push(frame.clone().with(|f| f.options = options));
                all.push(frame);
            }
            let quote = Frame::udp(dst, src).bytes()[14..].to_vec();
            let kind: &[u8] = if family == Family::V4 { &[3, 4] } else { &[2, 0] };
            let error = [kind, &[0, 0, 0, 0, 5, 0], &quote].concat();
            all.push(Frame { proto: family.icmp(), ..Frame::new(1, src, dst) }.payload(&error));
        }
        all
    }

    #[test]
    fn good_frames_are_good_and_mended_ones_too() {
        for frame in frames() {
            let mut bytes = frame.bytes();
            let found = check(&bytes).unwrap().unwrap();
            assert_eq!(found.l4 - found.l3, frame.family().header_len() + frame.options.len());
            assert_eq!(found.proto, frame.proto);
            if let Some(quote) = check_quote(&bytes, &found) {
                assert_eq!(quote, Ok(()));
                // A port in the quote.
                bytes[found.l4 + 8 + frame.family().header_len()] ^= 1;
                assert_eq!(check_quote(&bytes, &found), Some(Err("layer-4 checksum")));
            }
            bytes[found.l4 + 1] ^= 1;
            assert_eq!(check(&bytes), Err("layer-4 checksum"), "{frame:?}");
            mend(&mut bytes);
            assert_eq!(check(&bytes), Ok(Some(found)), "{frame:?}");
            assert!(check_quote(&bytes, &found).is_none_or(|quote| quote.is_ok()));
        }
    }

    #[test]
    fn every_damaged_byte_under_a_checksum_is_noticed() {
        for frame in frames() {
            let (bytes, tags) = (frame.bytes(), 4 * frame.vlans.len());
            // Of IPv6's own header, only what the pseudo-header repeats is summed.
            let summed = if frame.family() == Family::V4 { 14 } else { 14 + 8 } + tags;
            let covered = (summed..bytes.len()).filter(|at| !is_extension(&frame, at - tags));
            for at in covered {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert!(check(&damaged).is_err(), "byte {at} of {frame:?}");
            }
        }
    }

    /// Extension headers are under no checksum.
    fn is_extension(frame: &Frame, at: usize) -> bool {
        frame.family() == Family::V6 && (54..54 + frame.options.len()).contains(&at)
    }

    #[test]
    fn no_frame_however_cut_is_read_beyond_its_end() {
        for frame in frames() {
            let bytes = frame.bytes();
            for len in 0..bytes.len() {
                assert!(check(&bytes[..len]).is_err() || len >= bytes.len() - frame.padding);
                mend(&mut bytes[..len].to_vec());
            }
        }
    }
}
