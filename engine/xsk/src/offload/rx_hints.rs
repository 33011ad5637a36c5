//! What the driver knows of a packet beside its bytes: when it arrived, its hash, its VLAN tag
//! (Documentation/networking/xdp-rx-metadata.rst).
//!
//! Only an XDP program can ask, and only the driver that it was loaded for. So there is another program than the usual one
//! ([`Redirect::attach_with_hints`](crate::Redirect::attach_with_hints)), which writes the answers in front of each packet:
//!
//! ```text
//! +--------+-------+-----------+------+-----------+-------+-----+--------+
//! | cookie | which | timestamp | hash | hash kind | proto | tci | (zero) | packet
//! +--------+-------+-----------+------+-----------+-------+-----+--------+
//!     4        4         8         4        4         2      2      4      32 bytes, in host order
//! ```
//! The cookie is another for each program, so that what lies there since earlier is not taken for an answer.

use std::slice;

use crate::packet::Packet;
use crate::redirect::bpf::Instruction;

/// Bytes of answers; what every driver has room for.
const LEN: usize = 32;
const TIMESTAMP: u32 = 1;
const HASH: u32 = 2;
const VLAN: u32 = 4;

/// Kinds of hints: those that a driver has, or a program is to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HintKinds {
    /// When the packet arrived.
    pub timestamp: bool,
    /// What the NIC spread it by.
    pub hash: bool,
    /// The tag that the NIC has taken out of it.
    pub vlan: bool,
}

impl HintKinds {
    /// All that there are.
    pub const ALL: Self = Self { timestamp: true, hash: true, vlan: true };
}

/// What the driver has told of a packet; none where it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RxHints {
    /// When it arrived, in nanoseconds of the NIC's clock.
    pub timestamp_ns: Option<u64>,
    /// Its hash.
    pub hash: Option<RxHash>,
    /// The VLAN tag that it had.
    pub vlan: Option<RxVlan>,
}

/// A packet's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// As the NIC computed it.
    pub value: u32,
    /// Of what: `enum xdp_rss_hash_type` (net/xdp.h), which is not promised to stay; 0: not known.
    pub kind: u32,
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxVlan {
    /// 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN id, as in the tag.
    pub tci: u16,
}

/// Reads what one program has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintReader {
    cookie: u32,
}

impl Packet {
    /// What the driver has told of it: to be asked before anything is written in front of it or taken off. None where it has not come by
    /// the program that this reader is of.
    #[inline]
    pub fn rx_hints(&self, reader: HintReader) -> Option<RxHints> {
        // SAFETY: the headroom of its first frame, which is this packet's alone, and it is borrowed.
        let front = unsafe {
            slice::from_raw_parts(self.inner().frame(self.frame()).as_ptr(), self.headroom())
        };
        reader.read(front.last_chunk()?)
    }
}

impl HintReader {
    pub(crate) fn new(cookie: u32) -> Self {
        Self { cookie }
    }

    fn read(self, bytes: &[u8; LEN]) -> Option<RxHints> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some([*bytes.get(at)?, *bytes.get(at + 1)?]);
        if word(0)? != self.cookie {
            return None;
        }
        let (known, timestamp) = (word(4)?, u64::from_ne_bytes(bytes[8..16].try_into().ok()?));
        let is = |kind| known & kind != 0;
        Some(RxHints {
            // veth says 0 of what no hardware has stamped (drivers/net/veth.c).
            timestamp_ns: (is(TIMESTAMP) && timestamp != 0).then_some(timestamp),
            hash: is(HASH).then_some(RxHash { value: word(16)?, kind: word(20)? }),
            vlan: is(VLAN).then_some(RxVlan {
                protocol: u16::from_be_bytes(half(24)?),
                tci: u16::from_ne_bytes(half(26)?),
            }),
        })
    }
}

/// Where programs find the kernel's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Functions {
    pub(crate) timestamp: Option<u32>,
    pub(crate) hash: Option<u32>,
    pub(crate) vlan: Option<u32>,
}

impl Functions {
    pub(crate) const NAMES: [&str; 3] = [
        "bpf_xdp_metadata_rx_timestamp",
        "bpf_xdp_metadata_rx_hash",
        "bpf_xdp_metadata_rx_vlan_tag",
    ];

    pub(crate) fn new([timestamp, hash, vlan]: [Option<u32>; 3], wanted: HintKinds) -> Self {
        Self {
            timestamp: timestamp.filter(|_| wanted.timestamp),
            hash: hash.filter(|_| wanted.hash),
            vlan: vlan.filter(|_| wanted.vlan),
        }
    }

    pub(crate) fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// Asks for hints and writes the answers in front of the packet; `then` follows, with the context in r1 as at a program's begin.
///
/// ```text
/// if (!bpf_xdp_adjust_meta(ctx, -32)) { struct { ... } told = { cookie }; if (!ask(ctx, &told.x)) told.which |= X; ... *ctx->data_meta = told; }
/// ```
pub(crate) fn asking(
    functions: Functions,
    reader: HintReader,
    then: &[Instruction],
) -> Vec<Instruction> {
    const ADJUST_META: i32 = 54;
    // Offsets from the frame pointer: the answers are put together on the stack.
    const TOLD: i16 = -(LEN as i16);
    // r6 = r1, which calls leave alone; r7: which are known
    let mut program =
        vec![(0xbf, 0x16, 0, 0), (0xb7, 0x02, 0, -(LEN as i32)), (0x85, 0x00, 0, ADJUST_META)];
    let mut body = vec![(0xb7, 0x07, 0, 0)];
    // *(u64 *)(r10 + TOLD + n) = 0
    body.extend((0..4).map(|n| (0x7a, 0x0a, TOLD + 8 * n, 0)));
    // An immediate is signed, and stored as it is.
    body.push((0x62, 0x0a, TOLD, reader.cookie.cast_signed()));
    let asked = [
        (functions.timestamp, TIMESTAMP, 8, None),
        (functions.hash, HASH, 16, Some(20)),
        (functions.vlan, VLAN, 24, Some(26)),
    ];
    for (function, kind, first, second) in asked {
        let Some(function) = function else { continue };
        // r1 = r6; r2 = r10 + ...; r3 = r10 + ...
        body.push((0xbf, 0x61, 0, 0));
        for (register, place) in [(2, Some(first)), (3, second)] {
            let Some(place) = place else { continue };
            body.push((0xbf, 0xa0 | register, 0, 0));
            body.push((0x07, register, 0, (TOLD + place).into()));
        }
        body.push((0x85, 0x20, 0, function.cast_signed()));
        // if (!r0) r7 |= kind
        body.push((0x55, 0x00, 1, 0));
        body.push((0x47, 0x07, 0, kind.cast_signed()));
    }
    // *(u32 *)(r10 + TOLD + 4) = r7; r2 = ctx->data_meta; r3 = ctx->data; r4 = r2 + 32
    body.extend([(0x63, 0x7a, TOLD + 4, 0), (0x61, 0x62, 8, 0), (0x61, 0x63, 0, 0)]);
    body.extend([(0xbf, 0x24, 0, 0), (0x07, 0x04, 0, LEN as i32)]);
    let mut write = Vec::new();
    for n in 0..4 {
        // r5 = *(u64 *)(r10 + TOLD + n); *(u64 *)(r2 + n) = r5
        write.extend([(0x79, 0xa5, TOLD + 8 * n, 0), (0x7b, 0x52, 8 * n, 0)]);
    }
    // if (r4 > r3) goto then: never, as the verifier has to be told
    body.push((0x2d, 0x34, write.len() as i16, 0));
    body.extend(write);
    // if (r0) goto then
    program.push((0x55, 0x00, body.len() as i16, 0));
    program.extend(body);
    // then: r1 = r6
    program.push((0xbf, 0x61, 0, 0));
    program.extend(then);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cookie: u32, which: u32) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&cookie.to_ne_bytes());
        bytes[4..8].copy_from_slice(&which.to_ne_bytes());
        bytes[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
        bytes[16..20].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[20..24].copy_from_slice(&9_u32.to_ne_bytes());
        bytes[24..26].copy_from_slice(&[0x81, 0]);
        bytes[26..28].copy_from_slice(&0x2005_u16.to_ne_bytes());
        bytes
    }

    #[test]
    fn what_was_told_and_what_was_not() {
        let (reader, hash) = (HintReader::new(5), Some(RxHash { value: 7, kind: 9 }));
        let vlan = Some(RxVlan { protocol: 0x8100, tci: 0x2005 });
        for (which, told_of) in [
            (0, RxHints::default()),
            (TIMESTAMP, RxHints { timestamp_ns: Some(u64::MAX), ..RxHints::default() }),
            (HASH, RxHints { hash, ..RxHints::default() }),
            (HASH | VLAN, RxHints { hash, vlan, timestamp_ns: None }),
        ] {
            assert_eq!(reader.read(&told(5, which)), Some(told_of));
        }
        assert_eq!(reader.read(&told(6, HASH)), None);
    }

    #[test]
    fn what_the_kernel_has_not_is_not_called() {
        let functions =
            Functions::new([Some(1), None, Some(3)], HintKinds { vlan: false, ..HintKinds::ALL });
        assert_eq!(functions, Functions { timestamp: Some(1), hash: None, vlan: None });
        let calls = |functions| {
            let program = asking(functions, HintReader::new(0), &[(0x95, 0, 0, 0)]);
            program
                .iter()
                .filter(|(code, registers, ..)| (*code, *registers) == (0x85, 0x20))
                .count()
        };
        assert_eq!((calls(functions), calls(Functions::default())), (1, 0));
        assert!(functions.any() && !Functions::default().any());
    }
}
