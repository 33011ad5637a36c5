//! Changes a frame's shape and keeps its lengths right, so that what is behind the new header is
//! reached: tags, IPv4 options, IPv6 extension headers, fragments, another flow, the way back, an
//! ICMP error about it, a tunnel around it. Checksums are for [`ringway_bpf_tests::inspect::mend`].

use ringway_bpf_tests::cast::{FAMILIES, Family};
use ringway_bpf_tests::frame::{Frame, UDP};
use ringway_bpf_tests::inspect::{Layout, layout};
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::ports;

const GUE_PORT: u16 = 6080;
/// Longer frames than this are left as they are.
const LONGEST: usize = 9_000;

/// Changes a frame in one way; one that is not IP only gets a tag.
pub fn reshape(random: &mut Random, frame: &mut Vec<u8>) {
    if frame.len() > LONGEST || random.below(8) == 0 {
        return tag(random, frame);
    }
    let Ok(Some(at)) = layout(frame) else { return tag(random, frame) };
    match (random.below(7), at.v6) {
        (0, false) => options(random, frame, &at),
        (0, true) => extension(random, frame, &at),
        (1, false) => fragment4(random, frame, &at),
        (1, true) => fragment6(random, frame, &at),
        (2, _) => mirror(frame, &at),
        (3, _) => error_about(random, frame, &at),
        (4, _) => tunnel(random, frame, &at),
        _ => another_flow(random, frame, &at),
    }
}

fn splice(frame: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    frame.splice(at..at, bytes.iter().copied());
}

fn add_to(frame: &mut [u8], at: usize, n: usize) {
    let value = u16::from_be_bytes([frame[at], frame[at + 1]]).wrapping_add(n as u16);
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn tag(random: &mut Random, frame: &mut Vec<u8>) {
    let tagged = matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
    if tagged && frame.len() >= 18 && random.below(2) == 0 {
        frame.drain(12..16);
        return;
    }
    let ethertype = *random.pick(&[[0x81, 0], [0x88, 0xa8]]);
    let id = (random.below(4096) as u16).to_be_bytes();
    splice(frame, 12, &[ethertype, id].concat());
}

fn options(random: &mut Random, frame: &mut Vec<u8>, at: &Layout) {
    const KINDS: [&[u8]; 6] = [
        &[1, 1, 1, 0],
        &[0x94, 4, 0, 0],
        &[7, 7, 4, 0, 0, 0, 0, 0],
        &[131, 7, 4, 10, 0, 0, 1, 0],
        &[68, 8, 5, 0, 0, 0, 0, 0],
        &[30, 0, 0, 0],
    ];
    let kind = random.pick(&KINDS);
    if at.l4 - at.l3 + kind.len() > 60 {
        return;
    }
    splice(frame, at.l4, kind);
    frame[at.l3] += kind.len() as u8 / 4;
    add_to(frame, at.l3 + 2, kind.len());
}

/// A header of this type between IPv6's own and the next.
fn insert_header(frame: &mut Vec<u8>, at: &Layout, kind: u8, mut header: Vec<u8>) {
    header[0] = frame[at.l3 + 6];
    splice(frame, at.l3 + 40, &header);
    frame[at.l3 + 6] = kind;
    add_to(frame, at.l3 + 4, header.len());
}

fn extension(random: &mut Random, frame: &mut Vec<u8>, at: &Layout) {
    let kind = *random.pick(&[0u8, 43, 51, 60, 135, 139, 140]);
    let units = random.below(3);
    let mut header = vec![0; 8 * (units + 1)];
    header[1] = if kind == 51 { (2 * units) as u8 } else { units as u8 };
    header[3] = if kind == 43 { random.below(2) as u8 } else { 0 };
    if matches!(kind, 0 | 60) {
        // PadN over all of it (RFC 8200 section 4.2).
        header[2..4].copy_from_slice(&[1, (8 * units + 4) as u8]);
    }
    insert_header(frame, at, kind, header);
}

fn fragment4(random: &mut Random, frame: &mut [u8], at: &Layout) {
    let field = *random.pick(&[0x2000u16, 0x2001, 0x2010, 0x0020, 0x6000, 0x1fff, 0x8000]);
    frame[at.l3 + 6..at.l3 + 8].copy_from_slice(&field.to_be_bytes());
}

fn fragment6(random: &mut Random, frame: &mut Vec<u8>, at: &Layout) {
    let [high, low] = random.pick(&[0u16, 1, 0x81, 0x80, 0xfff8, 6]).to_be_bytes();
    let id = random.below(256) as u8;
    insert_header(frame, at, 44, vec![0, 0, high, low, 0, 0, 0, id]);
}

/// Where the source address is, and how long addresses are.
fn addresses(at: &Layout) -> (usize, usize) {
    if at.v6 { (at.l3 + 8, 16) } else { (at.l3 + 12, 4) }
}

fn mirror(frame: &mut [u8], at: &Layout) {
    let (source, len) = addresses(at);
    swap(frame, source, source + len, len);
    if matches!(at.proto, 6 | 17) && !at.later && at.l4 + 4 <= frame.len() {
        swap(frame, at.l4, at.l4 + 2, 2);
    }
}

fn swap(frame: &mut [u8], a: usize, b: usize, len: usize) {
    for n in 0..len {
        frame.swap(a + n, b + n);
    }
}

fn another_flow(random: &mut Random, frame: &mut [u8], at: &Layout) {
    let (source, len) = addresses(at);
    if random.below(2) == 0 {
        frame[source + len - 1] = random.word() as u8;
    }
    if at.later || at.l4 + 4 > frame.len() {
        return;
    }
    let port = match random.below(3) {
        0 => ports::SAME + random.below(16) as u16,
        1 => 10_000 + random.below(20_000) as u16,
        _ => return frame[at.l4 + 1] = random.word() as u8,
    };
    frame[at.l4 + 2..at.l4 + 4].copy_from_slice(&port.to_be_bytes());
}

/// An IP header for what follows: from somebody to these addresses.
fn header(v6: bool, proto: u8, payload: usize, source: &[u8], to: &[u8]) -> Vec<u8> {
    if v6 {
        let length = (payload as u16).to_be_bytes();
        return [&[0x60, 0, 0, 0], &length[..], &[proto, 61], source, to].concat();
    }
    let length = (20 + payload as u16).to_be_bytes();
    [&[0x45, 0], &length[..], &[0, 0, 0x40, 0, 61, proto, 0, 0], source, to].concat()
}

/// What a router would say about a packet that went the other way.
fn error_about(random: &mut Random, frame: &mut Vec<u8>, at: &Layout) {
    const KINDS: [&[u8; 2]; 8] =
        [&[3, 4], &[3, 1], &[3, 3], &[11, 0], &[12, 0], &[2, 0], &[1, 4], &[4, 1]];
    let (source, len) = addresses(at);
    let about = frame[source + len..source + 2 * len].to_vec();
    mirror(frame, at);
    let mut quote = frame[at.l3..at.end].to_vec();
    quote.truncate(random.below(quote.len()).max(28));
    let kind = random.pick(&KINDS);
    let mtu = (random.below(1600) as u16).to_be_bytes();
    let icmp = [&kind[..], &[0, 0, 0, 0], &mtu, &quote].concat();
    // From whoever, to where the mirrored packet came from.
    let router =
        if random.below(2) == 0 { about.clone() } else { frame[source..source + len].to_vec() };
    let proto = if at.v6 { 58 } else { 1 };
    let ip = header(at.v6, proto, icmp.len(), &router, &about);
    frame.truncate(at.l3);
    frame.extend(ip);
    frame.extend(icmp);
}

fn tunnel(random: &mut Random, frame: &mut Vec<u8>, at: &Layout) {
    let inner = frame[at.l3..at.end].to_vec();
    let outer = *random.pick(&FAMILIES);
    let to = *random.pick(&[outer.vip(), outer.nat(), outer.backend(1)]);
    let inner_family = if at.v6 { Family::V6 } else { Family::V4 };
    let proto = if random.below(2) == 0 { inner_family.in_ip() } else { UDP };
    let around = Frame::new(proto, (outer.client(), 0xc001).into(), (to, GUE_PORT).into());
    let around = around.payload(&inner).with(|frame| frame.no_checksum = true).bytes();
    frame.truncate(at.l3 - 2);
    frame.extend(&around[12..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_bpf_tests::{inspect, seeds};

    /// From frames in order come frames in order: otherwise nothing behind a new header is reached.
    #[test]
    fn what_is_reshaped_stays_in_order() {
        let mut random = Random::new(1);
        let (mut good, mut all) = (0, 0);
        for (_, seed) in seeds::of_clients() {
            for _ in 0..20 {
                let mut frame = seed.clone();
                reshape(&mut random, &mut frame);
                inspect::mend(&mut frame);
                all += 1;
                good += u32::from(inspect::check(&frame).is_ok());
            }
        }
        assert!(good * 100 >= all * 95, "{good} of {all}");
    }
}
