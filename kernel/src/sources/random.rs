//! Random numbers: keys of hashes, which nobody outside may know.

use ringway_abi::IntoBytes;

use crate::{Error, Result};

/// Where keys of hashes come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Randomness {
    /// The kernel's generator.
    #[default]
    Kernel,
    /// The same numbers for the same seed: for tests.
    Seeded(u64),
}

impl Randomness {
    /// Words for one purpose, as many as are asked for.
    ///
    /// # Errors
    /// The kernel has none.
    pub(crate) fn words<const N: usize>(
        self,
        purpose: Purpose,
    ) -> impl FnMut() -> Result<[u64; N]> {
        let mut state = match self {
            Self::Kernel => None,
            Self::Seeded(seed) => Some(seed ^ (purpose as u64) << 56),
        };
        move || match &mut state {
            None => kernel_words(),
            Some(state) => Ok([(); N].map(|()| next(state))),
        }
    }
}

/// What random numbers are for: two purposes with one seed have different ones.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Settings,
    ServiceIndex,
    Forwarding,
    FirstChallengeKey,
    ChallengeKey,
}

fn kernel_words<const N: usize>() -> Result<[u64; N]> {
    let mut words = [0; N];
    rustix::rand::getrandom(words.as_mut_bytes(), rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::System { action: "get random bytes", source: errno.into() })?;
    Ok(words)
}

/// splitmix64 (Steele, Lea and Flood, 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_purposes_differ() {
        let draw = |randomness: Randomness, purpose| {
            let mut words = randomness.words::<2>(purpose);
            [words().unwrap(), words().unwrap()]
        };
        let one = draw(Randomness::Seeded(1), Purpose::Settings);
        assert_eq!(one, draw(Randomness::Seeded(1), Purpose::Settings));
        assert_ne!(one[0], one[1]);
        assert_ne!(one, draw(Randomness::Seeded(1), Purpose::Forwarding));
        assert_ne!(one, draw(Randomness::Seeded(2), Purpose::Settings));
        assert_ne!(
            draw(Randomness::Kernel, Purpose::Settings),
            draw(Randomness::Kernel, Purpose::Settings)
        );
    }
}
