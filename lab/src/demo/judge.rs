//! Decides what caused a failed request.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::http::Fault;
use super::load::{Failure, Tally};

#[derive(Debug, Clone)]
pub struct Kill {
    pub at: Instant,
    pub backend: String,
    /// Its share of new connections while it was thought to live, 0..1.
    pub share: f64,
    /// Until when after `at` a request may still be sent to it.
    pub limit: Duration,
    /// True when it fell silent (requests hang), false when its machine still answers with resets.
    pub silent: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Failures the dead backend explains.
    pub lost_to_killed: u64,
    pub errors: u64,
    /// From the kill to the sending of the last request that was lost to it.
    pub failover: Option<Duration>,
    /// The errors by kind, for people.
    pub problems: Vec<String>,
}

/// Sentences every failure. The dead backend explains a request that ended after the kill, was sent
/// at most `limit` after it, failed as a dead backend fails, and was on a connection that this
/// backend had served. A new connection that never got an answer could have been anybody's: of
/// those, it explains no more than its share of all that were opened until the last loss (plus five
/// standard deviations).
pub fn judge(tally: &Tally, kill: Option<&Kill>) -> Verdict {
    let (excused, mut errors): (Vec<&Failure>, Vec<&Failure>) =
        tally.failures.iter().partition(|f| kill.is_some_and(|kill| kill.explains(f)));
    let mut lost_to_killed = excused.len() as u64;
    let last = excused.iter().map(|f| f.sent).max();
    let mut problems = Vec::new();
    if let (Some(kill), Some(last)) = (kill, last) {
        let unknown: Vec<&Failure> =
            excused.iter().copied().filter(|f| f.backend.is_none()).collect();
        let answered =
            tally.opened.iter().filter(|sent| **sent >= kill.at && **sent <= last).count();
        let most = at_most(unknown.len() + answered, kill.share);
        if unknown.len() > most {
            problems.push(format!(
                "{} of {} new connections failed until the failover: more than the {most} that {} explains",
                unknown.len(),
                unknown.len() + answered,
                kill.backend
            ));
            lost_to_killed -= (unknown.len() - most) as u64;
            errors.extend(&unknown[most..]);
        }
    }
    problems.extend(describe(&errors, kill));
    Verdict {
        lost_to_killed,
        errors: errors.len() as u64,
        failover: kill.zip(last).map(|(kill, last)| last.saturating_duration_since(kill.at)),
        problems,
    }
}

impl Kill {
    fn explains(&self, failure: &Failure) -> bool {
        let theirs = failure.backend.as_ref().is_none_or(|b| *b == self.backend);
        let in_time = failure.ended >= self.at && failure.sent <= self.at + self.limit;
        let as_the_dead_do = match failure.fault {
            Fault::Refused | Fault::Reset | Fault::Closed => true,
            Fault::Timeout => self.silent,
            Fault::BadAnswer | Fault::Other => false,
        };
        theirs && in_time && as_the_dead_do
    }
}

/// Of `n` new connections, how many may have met a backend of this share by chance.
fn at_most(n: usize, share: f64) -> usize {
    let n = n as f64;
    // One more, since a handful cannot be judged by deviations.
    (n * share + 5.0 * (n * share * (1.0 - share)).sqrt() + 1.0).floor() as usize
}

/// One line per kind of failure and backend.
fn describe(errors: &[&Failure], kill: Option<&Kill>) -> Vec<String> {
    let mut kinds: BTreeMap<(Fault, Option<&str>), Vec<&Failure>> = BTreeMap::new();
    for error in errors {
        kinds.entry((error.fault, error.backend.as_deref())).or_default().push(error);
    }
    let line = |((fault, backend), all): ((Fault, Option<&str>), Vec<&Failure>)| {
        let whom =
            backend.map_or("on new connections".into(), |b| format!("on connections to {b}"));
        let when = match (kill, all.iter().map(|f| f.sent).min()) {
            (Some(kill), Some(first)) if first >= kill.at => {
                format!(", the first {} ms after the kill", (first - kill.at).as_millis())
            }
            (Some(_), Some(_)) => ", the first before the kill".into(),
            _ => String::new(),
        };
        format!("{} x {fault:?} {whom}{when}", all.len())
    };
    kinds.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(3000);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn kill(at: Instant) -> Kill {
        Kill { at, backend: "b2".into(), share: 1.0 / 3.0, limit: LIMIT, silent: false }
    }

    fn failure(sent: Instant, fault: Fault, backend: Option<&str>) -> Failure {
        Failure { sent, ended: sent + ms(1), fault, backend: backend.map(Into::into) }
    }

    fn tally(failures: Vec<Failure>, opened: Vec<Instant>) -> Tally {
        let mut tally = Tally::empty();
        (tally.failures, tally.opened) = (failures, opened);
        tally
    }

    #[test]
    fn without_a_kill_every_failure_is_an_error() {
        let now = Instant::now();
        let verdict = judge(&tally(vec![failure(now, Fault::Reset, Some("b2"))], vec![]), None);
        assert_eq!((verdict.errors, verdict.lost_to_killed, verdict.failover), (1, 0, None));
        assert_eq!(verdict.problems, ["1 x Reset on connections to b2"]);
    }

    #[test]
    fn the_dead_explain_only_their_own() {
        let at = Instant::now();
        let judged = |failure| {
            let verdict = judge(&tally(vec![failure], vec![]), Some(&kill(at)));
            (verdict.lost_to_killed, verdict.errors)
        };
        let (lost, error) = ((1, 0), (0, 1));
        assert_eq!(judged(failure(at + ms(5), Fault::Reset, Some("b2"))), lost);
        assert_eq!(judged(failure(at - ms(0), Fault::Closed, Some("b2"))), lost);
        assert_eq!(judged(failure(at + ms(5), Fault::Refused, None)), lost);
        assert_eq!(judged(failure(at + LIMIT, Fault::Refused, None)), lost);
        // Another backend's, too early, too late, and as a dead backend does not fail.
        assert_eq!(judged(failure(at + ms(5), Fault::Reset, Some("b1"))), error);
        assert_eq!(judged(failure(at - ms(5), Fault::Reset, Some("b2"))), error);
        assert_eq!(judged(failure(at + LIMIT + ms(1), Fault::Refused, None)), error);
        assert_eq!(judged(failure(at + ms(5), Fault::Timeout, Some("b2"))), error);
        assert_eq!(judged(failure(at + ms(5), Fault::BadAnswer, Some("b2"))), error);
    }

    #[test]
    fn the_silent_let_requests_hang() {
        let at = Instant::now();
        let hung = vec![failure(at + ms(5), Fault::Timeout, Some("b2"))];
        let verdict = judge(&tally(hung, vec![]), Some(&Kill { silent: true, ..kill(at) }));
        assert_eq!((verdict.errors, verdict.lost_to_killed), (0, 1));
    }

    #[test]
    fn failover_ends_with_the_last_loss_and_in_flight_ones_count_as_at_once() {
        let at = Instant::now();
        let mut in_flight = failure(at - ms(2), Fault::Reset, Some("b2"));
        in_flight.ended = at + ms(1);
        let verdict = judge(&tally(vec![in_flight.clone()], vec![]), Some(&kill(at)));
        assert_eq!((verdict.lost_to_killed, verdict.failover), (1, Some(ms(0))));
        let later = failure(at + ms(1700), Fault::Refused, None);
        let verdict = judge(&tally(vec![later, in_flight], vec![]), Some(&kill(at)));
        assert_eq!(verdict.failover, Some(ms(1700)));
    }

    #[test]
    fn a_gateway_that_refuses_everybody_cannot_hide_behind_the_dead() {
        let at = Instant::now();
        let refused: Vec<Failure> =
            (0..300).map(|n| failure(at + ms(n), Fault::Refused, None)).collect();
        let third: Vec<Failure> = refused.iter().step_by(3).cloned().collect();
        let answered: Vec<Instant> = (0..200).map(|n| at + ms(n)).collect();
        let fair = judge(&tally(third, answered), Some(&kill(at)));
        assert_eq!((fair.lost_to_killed, fair.errors), (100, 0));
        let all = judge(&tally(refused, vec![]), Some(&kill(at)));
        assert_eq!(all.lost_to_killed + all.errors, 300);
        assert!(all.errors > 100 && all.problems[0].contains("more than"), "{:?}", all.problems);
    }
}
