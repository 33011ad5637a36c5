//! The daemon's pulse: how old a sign of life may be before it is taken for busy, and before it is
//! taken for hung.

use std::time::{Duration, SystemTime};

use crate::documents::status::Problem;
use crate::node::service_manager;
use crate::problem_kind::ProblemKind;

/// A daemon beats twice a second.
pub const FRESH: Duration = Duration::from_secs(2);
/// Older than this, the loop's last turn means that it is stuck.
pub const STALLED: Duration = Duration::from_secs(2);
/// And older than this, that it hangs; until then it, or the machine, may be busy. The unit's
/// WatchdogSec.
pub const HANGS: Duration = Duration::from_secs(10);

/// Whether a daemon that last beat then is alive.
pub fn is_fresh(beat: SystemTime) -> bool {
    // A clock that was set back makes it come from the future: then it is not known.
    beat.elapsed().is_ok_and(|age| age < FRESH)
}

/// The problem of a daemon whose loop last turned so long ago.
pub fn stalled(age: Duration, pid: u64) -> Problem {
    let restart = service_manager::restart(pid, true);
    let (means, remedy) = match age < HANGS {
        true => (
            "it, or this machine, is busy",
            format!(
                "ask again in a moment, and look at `uptime`; if it has not turned for {} s, it hangs: {restart}",
                HANGS.as_secs()
            ),
        ),
        false => ("it hangs", format!("{restart}; no packet is lost; report its log")),
    };
    let error = format!("the daemon's loop has not turned for {} s: {means}", age.as_secs());
    ProblemKind::LoopStalled.problem(error, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_grow_old() {
        let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
        assert!(is_fresh(ago(1)) && !is_fresh(ago(4)));
        assert!(!is_fresh(SystemTime::now() + Duration::from_secs(60)));
    }

    #[test]
    fn busy_is_not_yet_hanging() {
        let told = |seconds| stalled(Duration::from_secs(seconds), u64::MAX);
        let (busy, hangs) = (told(3), told(10));
        assert!(busy.error.contains("for 3 s: it, or this machine, is busy"), "{busy:?}");
        assert!(busy.remedy.to_string().starts_with("ask again in a moment"), "{busy:?}");
        assert!(hangs.error.ends_with("for 10 s: it hangs"), "{hangs:?}");
        assert!(hangs.remedy.to_string().starts_with("kill -KILL"), "{hangs:?}");
    }
}
