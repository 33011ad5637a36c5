//! What tests share of time and chance: worlds begin at the same second, with the same keys.

use std::sync::OnceLock;
use std::time::Duration;

/// Since boot, when a world begins: longer than any timeout.
pub const START: Duration = Duration::from_secs(1_000_000);

/// Of keys and models: RINGWAY_SEED, or the same every time. Printed once.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = match std::env::var("RINGWAY_SEED") {
            Ok(text) => text.parse().expect("RINGWAY_SEED is a number"),
            Err(_) => 1,
        };
        println!("RINGWAY_SEED={seed}");
        seed
    })
}
