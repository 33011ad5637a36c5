//! Sizes of frames, their checksum included: one, or a mix.

use std::fmt;

use serde::{Serialize, Serializer};

/// Of Ethernet's checksum, which a veth does not carry.
const FCS: u16 = 4;
/// An IPv6 frame with the stamp of a test.
const LEAST_V6: u16 = 84;
/// Seven of 64, four of 512 and one of 1518 bytes, in this order (RFC 6985, section 4).
pub(super) const GENOME: &str = "aadaadaadadg";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Bytes(u16),
    Imix,
}

impl Size {
    /// Without the checksum, in the order in which they are sent.
    pub(super) fn frames(self, ipv6: bool) -> Vec<u16> {
        let least = if ipv6 { LEAST_V6 } else { 0 };
        let bytes = |letter| match letter {
            'a' => 64,
            'd' => 512,
            _ => 1518,
        };
        let sizes: Vec<u16> = match self {
            Self::Bytes(bytes) => vec![bytes],
            Self::Imix => GENOME.chars().map(bytes).collect(),
        };
        sizes.into_iter().map(|size| size.max(least) - FCS).collect()
    }

    /// The mean of the frames with their checksums.
    pub(super) fn mean(self, ipv6: bool) -> f64 {
        let frames = self.frames(ipv6);
        let sum: f64 = frames.iter().map(|size| f64::from(size + FCS)).sum();
        sum / frames.len() as f64
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.pad(&bytes.to_string()),
            Self::Imix => f.pad("imix"),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(bytes) => serializer.serialize_u16(*bytes),
            Self::Imix => serializer.serialize_str("imix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_checksums() {
        assert_eq!(Size::Bytes(64).frames(false), [60]);
        assert_eq!(Size::Bytes(64).frames(true), [80]);
        let mix = Size::Imix.frames(false);
        let count = |bytes: u16| mix.iter().filter(|size| **size == bytes).count();
        assert_eq!((count(60), count(508), count(1514), mix.len()), (7, 4, 1, 12));
        assert!((Size::Imix.mean(false) - 334.5).abs() < 1e-9);
    }
}
