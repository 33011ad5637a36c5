//! Interfaces that carry the default route: there the program stays only when an administrator says
//! within a minute that the machine can still be reached (`ringway confirm`).

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringway_api::client::requests::GUARD_VARIABLE;
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_host::Fix;
use tokio::sync::{Notify, oneshot};

/// Without a confirmation within this, the program is taken off again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a request waits for the daemon's loop.
const ANSWER: Duration = Duration::from_secs(5);

/// Names of interfaces, or why not.
pub type Answer = Result<Vec<String>, Error>;

fn patience(variable: Option<OsString>) -> Duration {
    let seconds = variable.and_then(|text| text.to_str()?.parse().ok());
    seconds.map_or(PATIENCE, Duration::from_secs)
}

/// How long a confirmation is waited for.
pub fn patience_now() -> Duration {
    patience(std::env::var_os(GUARD_VARIABLE))
}

/// Attachments that wait for a confirmation. Pure.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Confirm {
    /// Nothing waits.
    #[default]
    Open,
    Waiting {
        /// Names of interfaces.
        names: Vec<String>,
        /// They are given up then.
        until: Instant,
        /// An order to pin them is on its way.
        pinning: bool,
    },
    /// These were given up.
    Reverted {
        /// Names of interfaces.
        names: Vec<String>,
        /// Why the program may still be on one of them.
        error: Option<Error>,
    },
}

impl Confirm {
    /// When time is up.
    pub fn until(&self) -> Option<Instant> {
        match self {
            Confirm::Waiting { until, pinning: false, .. } => Some(*until),
            _ => None,
        }
    }

    /// Somebody confirms. Returns whether an order to pin is due: not while one is on its way.
    pub fn pin(&mut self) -> bool {
        match self {
            Confirm::Waiting { pinning, .. } => !std::mem::replace(pinning, true),
            Confirm::Open | Confirm::Reverted { .. } => false,
        }
    }

    /// The answer to a request where nothing waits.
    pub fn nothing(&self) -> Option<Answer> {
        match self {
            Confirm::Open => Some(Ok(Vec::new())),
            Confirm::Waiting { .. } => None,
            Confirm::Reverted { names, error } => Some(Err(too_late(names, error.as_ref()))),
        }
    }

    /// They are pinned, or not. Returns those that stay from now on.
    pub fn end<'a>(&mut self, answer: &'a Answer) -> Option<&'a [String]> {
        let names = answer.as_ref().ok().filter(|names| !names.is_empty());
        match (&mut *self, names) {
            // Even if time was up meanwhile: what is pinned stays.
            (Confirm::Waiting { .. } | Confirm::Reverted { .. }, Some(_)) => *self = Confirm::Open,
            (Confirm::Waiting { pinning, .. }, None) => *pinning = false,
            (Confirm::Open | Confirm::Reverted { .. }, _) => return None,
        }
        names.map(Vec::as_slice)
    }

    /// Returns the interfaces that must be given up now. Once.
    pub fn expire(&mut self, now: Instant) -> Option<Vec<String>> {
        self.until().filter(|until| now >= *until)?;
        let names = self.waiting().to_vec();
        *self = Confirm::Reverted { names: names.clone(), error: None };
        Some(names)
    }

    /// Notes that programs that were given up may still be attached.
    pub fn not_reverted(&mut self, why: Error) {
        if let Confirm::Reverted { error, .. } = self {
            *error = Some(why);
        }
    }

    pub fn waiting(&self) -> &[String] {
        match self {
            Confirm::Waiting { names, .. } => names,
            _ => &[],
        }
    }

    /// Those that were given up.
    pub fn reverted(&self) -> &[String] {
        match self {
            Confirm::Reverted { names, .. } => names,
            _ => &[],
        }
    }

    /// For `status`, while something waits.
    fn finding(&self, now: Instant) -> Option<Problem> {
        let Confirm::Waiting { names, until, .. } = self else { return None };
        let left = until.saturating_duration_since(now).as_secs();
        Some(ProblemKind::Confirm.problem(
            format!(
                "{} carries the default route: confirm within {left} s, or the program is taken off \
                 again",
                names.join(", ")
            ),
            Fix::command(["ringway", "confirm"]),
        ))
    }

    /// For `status`, once something was given up.
    pub fn problem(&self) -> Option<Problem> {
        let Confirm::Reverted { names, error } = self else { return None };
        Some(ProblemKind::Unconfirmed.because(too_late(names, error.as_ref())))
    }
}

/// Where requests wait for the daemon's loop, and see what it has decided.
#[derive(Debug, Default)]
pub struct CommitConfirm {
    posted: Mutex<Confirm>,
    asked: Mutex<Vec<oneshot::Sender<Answer>>>,
    bell: Notify,
}

impl CommitConfirm {
    pub fn post(&self, confirm: &Confirm) {
        lock(&self.posted).clone_from(confirm);
    }

    /// For `status`, while something waits.
    pub fn finding(&self) -> Option<Problem> {
        lock(&self.posted).finding(Instant::now())
    }

    /// A request: waits for the daemon's loop.
    ///
    /// # Errors
    /// It was too late, the kernel refused, or the daemon does not answer.
    pub async fn confirm(&self) -> Answer {
        let (send, receive) = oneshot::channel();
        lock(&self.asked).push(send);
        self.bell.notify_one();
        let answer = tokio::time::timeout(ANSWER, receive).await;
        let hangs = || Error::failed("the daemon does not answer", "restart it, and confirm again");
        answer.ok().and_then(Result::ok).unwrap_or_else(|| Err(hangs()))
    }

    /// Returns when there is a request.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    pub fn answer(&self, answer: &Answer) {
        for request in std::mem::take(&mut *lock(&self.asked)) {
            // The client may have disconnected.
            let _ = request.send(answer.clone());
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_late(names: &[String], error: Option<&Error>) -> Error {
    let outcome = match error {
        None => "so the program was taken off again".to_owned(),
        Some(error) => format!("and the program may still be attached: {}", error.what),
    };
    Error::failed(
        format!("{}: nobody confirmed in time, {outcome}", names.join(", ")),
        "restart the daemon (`systemctl restart ringway`, or by hand as it was started), see that the machine can be reached, then: \
         ringway confirm",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_confirmed_is_given_up_once() {
        let (now, names) = (Instant::now(), vec!["eth0".to_owned()]);
        assert_eq!(Confirm::Open.nothing(), Some(Ok(Vec::new())));
        let mut confirm = Confirm::Waiting { names: names.clone(), until: now, pinning: false };
        let finding = confirm.finding(now).expect("finding");
        assert!(finding.error.contains("eth0 carries the default route: confirm within 0 s"));
        assert!(confirm.pin() && !confirm.pin() && confirm.nothing().is_none());
        assert_eq!(confirm.expire(now), None, "while it is being pinned");
        assert_eq!(confirm.end(&Err(Error::failed("refused", ""))), None);
        assert_eq!(confirm.expire(now), Some(names));
        assert_eq!(confirm.expire(now), None);
        assert!(matches!(confirm.nothing(), Some(Err(_))) && confirm.problem().is_some());
        assert!(confirm.end(&Ok(Vec::new())).is_none() && confirm.problem().is_some());
        assert!(confirm.end(&Ok(vec!["eth0".to_owned()])).is_some() && confirm.problem().is_none());
    }

    #[test]
    fn a_minute_unless_a_test_says_otherwise() {
        assert_eq!(patience(None), PATIENCE);
        assert_eq!(patience(Some("on".into())), PATIENCE);
        assert_eq!(patience(Some("3".into())), Duration::from_secs(3));
    }
}
