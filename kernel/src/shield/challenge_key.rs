//! The keys of challenges to SYNs.

use std::fmt;
#[allow(deprecated, reason = "the one SipHash of std that takes a key")]
use std::hash::{Hasher as _, SipHasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringway_abi::raw::rw_syn_secrets;

use crate::Result;
use crate::maps::{Map, Maps};
use crate::sources::Sources;
use crate::sources::clock::Clock;
use crate::sources::random::Purpose;

/// A key of SipHash, 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChallengeKey(pub [u64; 2]);

impl ChallengeKey {
    /// Of whoever has the same key the same; it gives nobody the key.
    pub fn fingerprint(self) -> String {
        fingerprint(self.0)
    }
}

/// Secret: nothing prints it.
impl fmt::Debug for ChallengeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChallengeKey")
    }
}

/// After a change the former key is known for so long: the longest that an answer holds, with the
/// clocks of nodes apart.
const FORMER_SECONDS: u32 = 128;
/// The same.
pub const FORMER_KEY_COUNTS: Duration = Duration::from_secs(FORMER_SECONDS as u64);

/// What answers to SYNs are made of, as much of it as everybody may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynSecrets {
    /// Of the key that makes answers.
    pub present: String,
    /// Of the one before, which is known as well for a time.
    pub former: Option<String>,
    /// It is of a file, and other nodes may have it.
    pub is_shared: bool,
    /// Since then it makes answers, to the second.
    pub since: SystemTime,
}

impl SynSecrets {
    pub(crate) fn of(secrets: &rw_syn_secrets) -> Self {
        let [present, former] = secrets.keys;
        Self {
            present: fingerprint(present),
            former: (former != present).then(|| fingerprint(former)),
            is_shared: secrets.shared == 1,
            // By the offset that the program has, which stays the same between two readings.
            since: UNIX_EPOCH
                + Duration::from_secs(secrets.since.wrapping_add(secrets.wall).into()),
        }
    }
}

/// SipHash of words that no SYN is hashed as: whoever knows it knows nothing of the key, and nodes
/// with one key have the same.
#[allow(deprecated, reason = "the one SipHash of std that takes a key")]
fn fingerprint([key0, key1]: [u64; 2]) -> String {
    let mut hasher = SipHasher::new_with_keys(key0, key1);
    hasher.write(b"fingerprint of a secret of Ringway's");
    format!("{:08x}", hasher.finish() as u32)
}

/// Gives new maps a key of their own, so that nobody knows it. It has made no answer yet: `since` is
/// 0.
pub(crate) fn settle(maps: &Maps) -> Result<()> {
    let secrets = maps.syn_secrets.get(0)?;
    if secrets.keys[0] != [0; 2] {
        return Ok(());
    }
    let Sources { clock, randomness } = &maps.sources;
    let key = randomness.words(Purpose::FirstChallengeKey)()?;
    let wall = wall_offset(clock.wall_time(), clock);
    maps.syn_secrets.put(&0, &rw_syn_secrets { keys: [key; 2], wall, ..Default::default() })
}

/// Gives a program that knows no key yet its first one.
pub(crate) fn begin(
    secrets: &Map<u32, rw_syn_secrets>,
    key: ChallengeKey,
    clock: &Clock,
) -> Result<()> {
    let (wall, since) = (wall_offset(clock.wall_time(), clock), clock.now_seconds());
    let keys = [key.0; 2];
    secrets.put(&0, &rw_syn_secrets { keys, wall, since, shared: 1, ..Default::default() })
}

/// Makes answers with this key from now on; `None`: with one that no other node has. The one before
/// counts for a while, if it has made any.
pub(crate) fn set(
    map: &Map<u32, rw_syn_secrets>,
    key: Option<ChallengeKey>,
    Sources { clock, randomness }: &Sources,
) -> Result<()> {
    let secrets = map.get(0)?;
    let ([present, _], is_first) = (secrets.keys, secrets.since == 0);
    let (key, shared) = match key {
        Some(key) if key.0 == present && secrets.shared == 1 => return Ok(()),
        Some(key) => (key.0, 1),
        None if secrets.shared == 0 && is_first => (present, 0),
        None if secrets.shared == 0 => return Ok(()),
        None => (randomness.words(Purpose::ChallengeKey)()?, 0),
    };
    let (keys, since) = ([key, if is_first { key } else { present }], clock.now_seconds());
    map.put(&0, &rw_syn_secrets { keys, since, shared, ..secrets })
}

/// Follows the clock of the machine, by which nodes agree, and forgets the former key.
pub(crate) fn follow_clock(
    map: &Map<u32, rw_syn_secrets>,
    now: SystemTime,
    clock: &Clock,
) -> Result<()> {
    let secrets = map.get(0)?;
    let (wall, [present, former]) = (wall_offset(now, clock), secrets.keys);
    let is_over = present != former && clock.now_seconds() - secrets.since > FORMER_SECONDS;
    if secrets.wall.abs_diff(wall) < 2 && !is_over {
        return Ok(());
    }
    let keys = [present, if is_over { present } else { former }];
    map.put(&0, &rw_syn_secrets { keys, wall, ..secrets })
}

/// Seconds from CLOCK_MONOTONIC to CLOCK_REALTIME; they wrap as the program's sum does.
fn wall_offset(now: SystemTime, clock: &Clock) -> u32 {
    let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    (unix.as_secs() as u32).wrapping_sub(clock.now_seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_keys_apart() {
        let secrets =
            |keys| SynSecrets::of(&rw_syn_secrets { keys, shared: 1, ..Default::default() });
        let (one, other) = (secrets([[1, 2]; 2]), secrets([[2, 1], [1, 2]]));
        assert_eq!(one.present.len(), 8);
        assert_eq!((one.former, other.former), (None, Some(one.present.clone())));
        assert_ne!(one.present, other.present);
        assert_eq!(ChallengeKey([1, 2]).fingerprint(), one.present);
    }

    #[test]
    fn the_time_of_a_key_does_not_depend_on_when_it_is_read() {
        let secrets = rw_syn_secrets { since: 100, wall: 1_767_225_500, ..Default::default() };
        let since = SynSecrets::of(&secrets).since;
        assert_eq!(since, UNIX_EPOCH + Duration::from_secs(1_767_225_600));
    }
}
