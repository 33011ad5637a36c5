//! The guard of interfaces that carry the default route: there the program stays only when an
//! administrator says within a minute that the machine can still be reached (`ringway confirm`).

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

use crate::api::client::{self, Failure};
use crate::problem::Error;
use crate::status::Problem;
use crate::trouble::Trouble;
use crate::whom::Whom;

/// For tests: the guard holds in every network namespace, for so many seconds ("on": the usual ones).
pub const VARIABLE: &str = "RINGWAY_GUARD";

/// Without a confirmation within this, the program is taken off again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a request waits for the daemon's loop.
const ANSWER: Duration = Duration::from_secs(5);

/// What was confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    /// `ringway.confirm/1`.
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Interfaces on which the program stays from now on; none: nothing waited for it.
    pub interfaces: Vec<String>,
}

/// `ringway confirm`: asks the node's daemon.
///
/// # Errors
/// It does not run, it was too late, or the kernel refused.
pub fn confirm(whom: &Whom<'_>) -> Result<Confirmed, Error> {
    let target = whom.find()?;
    client::post(target.daemon()?, "/v1/confirm").map_err(|failure| match failure {
        Failure::NotRunning => target.silent(),
        Failure::Late(error) | Failure::Failed(error) => error,
    })
}

/// Names of interfaces, or why not.
type Answer = Result<Vec<String>, Error>;

/// Whether [`VARIABLE`] asks for the guard in every namespace.
pub fn forced() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

fn patience(variable: Option<OsString>) -> Duration {
    let seconds = variable.and_then(|text| text.to_str()?.parse().ok());
    seconds.map_or(PATIENCE, Duration::from_secs)
}

/// Where the daemon notes what waits, and where requests wait for the daemon.
#[derive(Debug, Default)]
pub struct Guard {
    state: Mutex<State>,
    asked: Mutex<Vec<oneshot::Sender<Answer>>>,
    bell: Notify,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Open,
    Waiting {
        names: Vec<String>,
        until: Instant,
    },
    Reverted {
        names: Vec<String>,
    },
}

impl Guard {
    /// These interfaces are attached provisionally from now on. Returns for how long.
    pub fn begin(&self, names: Vec<String>) -> Duration {
        let patience = patience(std::env::var_os(VARIABLE));
        *self.lock() = State::Waiting { names, until: Instant::now() + patience };
        patience
    }

    /// They stay.
    pub fn end(&self) {
        *self.lock() = State::Open;
    }

    /// Time is up: the interfaces that must be given up now. Once.
    pub fn expire(&self) -> Option<Vec<String>> {
        let mut state = self.lock();
        let names = match &*state {
            State::Waiting { names, until } if Instant::now() >= *until => names.clone(),
            _ => return None,
        };
        *state = State::Reverted { names: names.clone() };
        Some(names)
    }

    /// Those that wait.
    pub fn waiting(&self) -> Vec<String> {
        match &*self.lock() {
            State::Waiting { names, .. } => names.clone(),
            _ => Vec::new(),
        }
    }

    /// Those that were given up.
    pub fn reverted(&self) -> Vec<String> {
        match &*self.lock() {
            State::Reverted { names } => names.clone(),
            _ => Vec::new(),
        }
    }

    /// For `status`, while something waits.
    pub fn finding(&self) -> Option<Problem> {
        let State::Waiting { names, until } = &*self.lock() else { return None };
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        Some(Trouble::Confirm.problem(
            format!(
                "{} carries the default route: confirm within {left} s, or the program is taken off \
                 again",
                names.join(", ")
            ),
            "ringway confirm",
        ))
    }

    /// For `status`, once something was given up.
    pub fn problem(&self) -> Option<Problem> {
        let names = self.reverted();
        (!names.is_empty()).then(|| Trouble::Unconfirmed.because(too_late(&names)))
    }

    /// A request: waits for the daemon's loop.
    ///
    /// # Errors
    /// It was too late, the kernel refused, or the daemon does not answer.
    pub async fn confirm(&self) -> Answer {
        let (send, receive) = oneshot::channel();
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(send);
        self.bell.notify_one();
        let answer = tokio::time::timeout(ANSWER, receive).await;
        let hangs = || Error::failed("the daemon does not answer", "restart it, and confirm again");
        answer.ok().and_then(Result::ok).unwrap_or_else(|| Err(hangs()))
    }

    /// Returns when there is a request.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Answers all requests.
    pub fn answer(&self, answer: &Answer) {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        for request in asked {
            // Whoever asked may be gone.
            let _ = request.send(answer.clone());
        }
    }

    /// What a request is told where nothing waits.
    pub fn nothing(&self) -> Answer {
        let reverted = self.reverted();
        if reverted.is_empty() { Ok(Vec::new()) } else { Err(too_late(&reverted)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_late(names: &[String]) -> Error {
    Error::failed(
        format!(
            "{}: nobody confirmed in time, so the program was taken off again",
            names.join(", ")
        ),
        "restart the daemon (`systemctl restart ringway`, or by hand as it was started), see that the machine can be reached, then: \
         ringway confirm",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_confirmed_is_given_up_once() {
        let guard = Guard::default();
        assert!(guard.expire().is_none() && guard.finding().is_none());
        *guard.lock() = State::Waiting { names: vec!["eth0".into()], until: Instant::now() };
        let finding = guard.finding().expect("finding");
        assert!(finding.error.contains("eth0 carries the default route: confirm within 0 s"));
        assert_eq!(guard.expire(), Some(vec!["eth0".into()]));
        assert!(guard.expire().is_none());
        assert!(guard.nothing().is_err() && guard.problem().is_some());
        let until = Instant::now() + Duration::from_secs(60);
        *guard.lock() = State::Waiting { names: vec!["eth0".into()], until };
        assert!(guard.expire().is_none());
        guard.end();
        assert_eq!(guard.nothing(), Ok(Vec::new()));
        assert!(guard.problem().is_none());
    }

    #[test]
    fn a_minute_unless_a_test_says_otherwise() {
        assert_eq!(patience(None), PATIENCE);
        assert_eq!(patience(Some("on".into())), PATIENCE);
        assert_eq!(patience(Some("3".into())), Duration::from_secs(3));
    }
}
