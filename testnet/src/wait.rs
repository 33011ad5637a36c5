//! Waiting for conditions instead of sleeping and hoping.

use std::env;
use std::fmt::Display;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A look that takes long, at a daemon's status say, is not taken so often that it is the machine's
/// main work.
const PAUSE_TO_LOOK: u32 = 4;
const LONGEST_PAUSE_TO_LOOK: Duration = Duration::from_millis(100);
/// However long a try takes: one that waits for a lost packet says nothing of the next.
const FEWEST_TRIES: u32 = 3;

/// What takes this long on a real processor takes so long here: `RINGWAY_SLOWNESS` times as long,
/// which an emulator's guest sets (packaging/guest); 1 elsewhere.
pub fn slowed(time: Duration) -> Duration {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    let read = || env::var("RINGWAY_SLOWNESS").ok()?.parse().ok();
    time * *SLOWNESS.get_or_init(|| read().unwrap_or(1))
}

/// Polls `condition` until it is true. `what` reads as a sentence's subject: "the neighbour of b".
pub fn wait_until(
    what: impl Display,
    timeout: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<()> {
    wait_for(what, timeout, || if condition() { Ok(()) } else { Err("") })
}

/// Polls `attempt` until it succeeds and returns its value; on timeout the error carries the last
/// refusal. An emulated machine gets more time than `timeout`.
pub fn wait_for<T, E: Display>(
    what: impl Display,
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T> {
    let timeout = slowed(timeout);
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut tries: u32 = 0;
    loop {
        tries += 1;
        let looked = Instant::now();
        match attempt() {
            Ok(value) => return Ok(value),
            Err(last) if tries >= FEWEST_TRIES && start.elapsed() >= timeout => {
                return Err(Error::Timeout {
                    what: what.to_string(),
                    after: timeout,
                    tries,
                    last: last.to_string(),
                });
            }
            Err(_) => {
                sleep(pause.max((looked.elapsed() * PAUSE_TO_LOOK).min(LONGEST_PAUSE_TO_LOOK)));
            }
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_as_soon_as_it_holds() {
        let mut left = 3;
        wait_until("three looks", Duration::from_secs(5), || {
            left -= 1;
            left == 0
        })
        .unwrap();
        assert_eq!(left, 0);
    }

    #[test]
    fn timeout_says_what_and_why() {
        let error = wait_for("the moon", Duration::ZERO, || Err::<(), _>("still day")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("the moon"), "{error}");
        assert!(error.contains("(3 tries); last: still day"), "{error}");
    }
}
