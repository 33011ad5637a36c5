//! SYN cookies, as bpf/shield/cookie.bpf.h makes them.

#[allow(deprecated, reason = "the one SipHash of std that takes a key")]
use std::hash::{Hasher as _, SipHasher};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use ringway_abi::addr_to_words;
use zerocopy::IntoBytes as _;

use super::ChallengeKey;

const PERIOD_SECONDS: u32 = 64;
/// MSS of 1220 bytes, no window scale, SACK, neither ECN nor timestamps: for checks, which have
/// little to say.
const AGREED: u32 = 2 << 6 | 15 << 2 | 2;

impl ChallengeKey {
    /// The sequence number of an answer to the SYN with this sequence number.
    #[allow(deprecated, reason = "the one SipHash of std that takes a key")]
    pub fn cookie(self, from: SocketAddr, to: SocketAddr, isn: u32, now: SystemTime) -> u32 {
        let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let period = unix as u32 / PERIOD_SECONDS;
        let mut hasher = SipHasher::new_with_keys(self.0[0], self.0[1]);
        hasher.write(addr_to_words(from.ip()).as_bytes());
        hasher.write(addr_to_words(to.ip()).as_bytes());
        hasher.write(&from.port().to_be_bytes());
        hasher.write(&to.port().to_be_bytes());
        hasher.write(&period.to_le_bytes());
        hasher.write(&isn.to_le_bytes());
        hasher.write(&(AGREED as u16).to_le_bytes());
        (hasher.finish() as u32) << 10 | (period & 1) << 9 | AGREED
    }
}
