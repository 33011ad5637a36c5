//! Rings, interrupt coalescing, pause frames, speed and the indirection table.

use std::io;

use serde::{Deserialize, Serialize};

use super::{Ethtool, Request, failed};
use crate::Result;

const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
/// Entries of an indirection table that are read at most; drivers have 128 to 2048.
const INDIRECTION: usize = 4096;
/// Speeds in Mbit/s by bit of the legacy link modes (linux/ethtool.h): 10, 100, 1000 half and full,
/// and those of 10G and more.
const MODES: [(u32, u32); 13] = [
    (0, 10),
    (1, 10),
    (2, 100),
    (3, 100),
    (4, 1000),
    (5, 1000),
    (12, 10_000),
    (15, 2500),
    (17, 1000),
    (18, 10_000),
    (19, 10_000),
    (23, 40_000),
    (24, 40_000),
];

/// Ring sizes in descriptors (`ethtool -g`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    pub rx: u32,
    pub tx: u32,
    pub max_rx: u32,
    pub max_tx: u32,
}

/// When the device interrupts (`ethtool -c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Microseconds it waits for more after a packet came.
    pub rx_usecs: u32,
    /// Packets it waits for.
    pub rx_frames: u32,
    /// Whether the driver adapts that to the traffic.
    pub adaptive_rx: bool,
}

/// Flow control (`ethtool -a`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The device stops sending when the far end asks it to.
    pub rx: bool,
    /// It asks the far end to stop.
    pub tx: bool,
}

/// The link mode that both ends of the cable have agreed on (`ethtool IF`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkMode {
    /// Mbit/s; absent where it is not known.
    pub speed_mbit: Option<u32>,
    /// Both directions at once; absent where it is not known.
    pub full_duplex: Option<bool>,
    pub autoneg: bool,
    /// The fastest that both can, in Mbit/s, of those modes that the old call knows.
    pub best_mbit: Option<u32>,
}

/// The queue of a packet, by its hash (`ethtool -x`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indirection {
    /// The queue of each hash value.
    pub queues: Vec<u32>,
}

/// Commands whose structs are made of 32-bit words alone.
#[repr(C)]
struct Words<const N: usize>([u32; N]);
// SAFETY: struct ethtool_ringparam is nine words, ethtool_coalesce 23, ethtool_pauseparam four;
// struct ethtool_cmd is 44 bytes and of every bit pattern; struct ethtool_rxfh_indir is two words
// and as many as the second says.
unsafe impl<const N: usize> Request for Words<N> {}

impl Ethtool {
    /// Ring sizes; `None` where the driver cannot say.
    pub fn rings(&self, interface: &str) -> Result<Option<Rings>> {
        // cmd, rx_max, rx_mini_max, rx_jumbo_max, tx_max, rx, rx_mini, rx_jumbo, tx.
        let words = self.words::<9>(interface, ETHTOOL_GRINGPARAM, "reading the ring sizes")?;
        Ok(words.map(|w| Rings { max_rx: w[1], max_tx: w[4], rx: w[5], tx: w[8] }))
    }

    /// Interrupt coalescing; `None` where the driver cannot say.
    pub fn coalescing(&self, interface: &str) -> Result<Option<Coalescing>> {
        // cmd, rx_usecs, rx_frames, seven others, adaptive_rx, ...
        let words = self.words::<23>(interface, ETHTOOL_GCOALESCE, "reading the coalescing")?;
        let read =
            |w: [u32; 23]| Coalescing { rx_usecs: w[1], rx_frames: w[2], adaptive_rx: w[10] != 0 };
        Ok(words.map(read))
    }

    /// Flow control; `None` where the driver cannot say.
    pub fn pause(&self, interface: &str) -> Result<Option<Pause>> {
        // cmd, autoneg, rx, tx.
        let words = self.words::<4>(interface, ETHTOOL_GPAUSEPARAM, "reading the flow control")?;
        Ok(words.map(|w| Pause { rx: w[2] != 0, tx: w[3] != 0 }))
    }

    /// Speed and duplex; `None` where the driver cannot say.
    pub fn link_mode(&self, interface: &str) -> Result<Option<LinkMode>> {
        let words = self.words::<11>(interface, ETHTOOL_GSET, "reading the link mode")?;
        Ok(words.map(|words| link_mode(&words)))
    }

    /// The indirection table; `None` where the driver has none.
    pub fn indirection(&self, interface: &str) -> Result<Option<Indirection>> {
        let mut request = Box::new(Words([0; INDIRECTION + 2]));
        // A size of 0 asks how many entries there are; any other must be that number.
        request.0[0] = ETHTOOL_GRXFHINDIR;
        match self.raw_call(interface, request.as_mut()) {
            Ok(()) if request.0[1] as usize <= INDIRECTION && request.0[1] > 0 => {}
            Ok(()) => return Ok(None),
            Err(source) if unsupported(&source) => return Ok(None),
            Err(source) => return Err(failed("reading the indirection table", interface, source)),
        }
        request.0[0] = ETHTOOL_GRXFHINDIR;
        self.call(interface, request.as_mut(), "reading the indirection table")?;
        let entries = (request.0[1] as usize).min(INDIRECTION);
        Ok(Some(Indirection { queues: request.0[2..2 + entries].to_vec() }))
    }

    fn words<const N: usize>(
        &self,
        interface: &str,
        command: u32,
        what: &'static str,
    ) -> Result<Option<[u32; N]>> {
        let mut request = Words([0; N]);
        request.0[0] = command;
        match self.raw_call(interface, &mut request) {
            Ok(()) => Ok(Some(request.0)),
            Err(source) if unsupported(&source) => Ok(None),
            Err(source) => Err(failed(what, interface, source)),
        }
    }
}

/// EINVAL: some drivers have it for what they do not have.
pub(super) fn unsupported(source: &io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// struct ethtool_cmd: cmd, supported, advertising, speed and duplex and port, phy and transceiver
/// and autoneg, two words, speed_hi, lp_advertising, two words.
fn link_mode(words: &[u32; 11]) -> LinkMode {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let half = |at: usize| u32::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
    let speed = half(12) | half(28) << 16;
    let known = |speed: &u32| *speed != 0 && *speed != u32::MAX && *speed != 0xffff;
    let common = words[1] & words[8];
    let best = MODES.iter().filter(|(bit, _)| common & (1 << bit) != 0).map(|(_, speed)| *speed);
    LinkMode {
        speed_mbit: Some(speed).filter(known),
        full_duplex: Some(bytes[14]).filter(|code| *code <= 1).map(|code| code == 1),
        autoneg: bytes[18] == 1,
        best_mbit: best.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_slow_link() {
        let mut bytes = [0u8; 44];
        bytes[4..8].copy_from_slice(&0x3fu32.to_ne_bytes());
        bytes[12..14].copy_from_slice(&100u16.to_ne_bytes());
        bytes[14] = 0;
        bytes[18] = 1;
        bytes[32..36].copy_from_slice(&0x2fu32.to_ne_bytes());
        let mut words = [0; 11];
        for (word, four) in words.iter_mut().zip(bytes.chunks(4)) {
            *word = u32::from_ne_bytes(four.try_into().unwrap());
        }
        let wanted = LinkMode {
            speed_mbit: Some(100),
            full_duplex: Some(false),
            autoneg: true,
            best_mbit: Some(1000),
        };
        assert_eq!(link_mode(&words), wanted);
    }

    #[test]
    fn loopback_has_none_of_it() {
        let ethtool = Ethtool::open().unwrap();
        assert_eq!(ethtool.rings("lo").unwrap(), None);
        assert_eq!(ethtool.coalescing("lo").unwrap(), None);
        assert_eq!(ethtool.pause("lo").unwrap(), None);
        assert_eq!(ethtool.indirection("lo").unwrap(), None);
        assert!(ethtool.rings("nosuch0").is_err());
        assert!(ethtool.statistics("lo").is_ok());
    }
}
