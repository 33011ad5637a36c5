//! Drivers' counters under names of their own (`ethtool -S`).

use std::collections::BTreeMap;

use super::settings::unsupported;
use super::{Ethtool, failed, text};
use crate::Result;

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
/// ETH_GSTRING_LEN
const NAME: usize = 32;
/// The kernel fills in as many as the driver has at that moment: room for more than it had just
/// now.
const SPARE: usize = 4096;

impl Ethtool {
    /// Counters by the driver's names; none where it has none.
    pub fn statistics(&self, interface: &str) -> Result<BTreeMap<String, u64>> {
        let count = match self.count(interface) {
            Err(source) if unsupported(&source) => 0,
            count => count.map_err(|source| failed("counting statistics", interface, source))?,
        };
        if count == 0 {
            return Ok(BTreeMap::new());
        }
        let read = |command, word, size| {
            let buffer = self.fill(interface, command, word, (count + SPARE) * size);
            buffer.map_err(|source| failed("reading statistics", interface, source))
        };
        // struct ethtool_gstrings: cmd, string_set, len, names.
        let names = read(ETHTOOL_GSTRINGS, ETH_SS_STATS, NAME)?;
        // struct ethtool_stats: cmd, n_stats, values.
        let values = read(ETHTOOL_GSTATS, count as u32, 8)?;
        let name = |at: usize| text(&names[12 + at * NAME..12 + (at + 1) * NAME]);
        let value = |at: usize| {
            let bytes = values[8 + at * 8..16 + at * 8].first_chunk();
            u64::from_ne_bytes(*bytes.unwrap_or(&[0; 8]))
        };
        Ok((0..count).map(|at| (name(at), value(at))).collect())
    }

    fn count(&self, interface: &str) -> std::io::Result<usize> {
        // struct ethtool_sset_info: cmd, reserved, sset_mask (64 bits), a count for each bit.
        let mut request = [u64::from(ETHTOOL_GSSET_INFO).to_ne_bytes(), [0; 8], [0; 8]].concat();
        request[0..4].copy_from_slice(&ETHTOOL_GSSET_INFO.to_ne_bytes());
        request[8..16].copy_from_slice(&(1u64 << ETH_SS_STATS).to_ne_bytes());
        let mut words: Vec<u64> = aligned(&request);
        // SAFETY: one bit is asked for, so that one count comes back, for which there are eight
        // bytes.
        unsafe { self.pointer_call(interface, words.as_mut_ptr().cast()) }?;
        // A set that the driver does not have has its bit taken away.
        let count = words[2].to_ne_bytes();
        let known = words[1] != 0;
        Ok(if known {
            u32::from_ne_bytes([count[0], count[1], count[2], count[3]]) as usize
        } else {
            0
        })
    }

    fn fill(
        &self,
        interface: &str,
        command: u32,
        word: u32,
        bytes: usize,
    ) -> std::io::Result<Vec<u8>> {
        let mut head = [command.to_ne_bytes(), word.to_ne_bytes()].concat();
        head.resize(bytes + 16, 0);
        let mut words = aligned(&head);
        // SAFETY: the room is for what the driver has and SPARE more.
        unsafe { self.pointer_call(interface, words.as_mut_ptr().cast()) }?;
        Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }
}

/// The same bytes where the kernel's structs may begin.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let word = |eight: &[u8]| {
        let mut whole = [0; 8];
        whole[..eight.len()].copy_from_slice(eight);
        u64::from_ne_bytes(whole)
    };
    bytes.chunks(8).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_answers() {
        let ethtool = Ethtool::open().unwrap();
        for link in crate::netlink::links::all().unwrap() {
            let statistics = ethtool.statistics(&link.name).unwrap();
            assert!(statistics.keys().all(|name| !name.is_empty()), "{statistics:?}");
        }
        assert!(ethtool.statistics("nosuch0").is_err());
    }
}
