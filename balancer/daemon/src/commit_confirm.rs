//! The guard of interfaces that carry the default route: there the program stays only when an
//! administrator says within a minute that the machine can still be reached (`ringway confirm`).

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringway_api::client::confirm::VARIABLE;
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use tokio::sync::{Notify, oneshot};

/// Without a confirmation within this, the program is taken off again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a request waits for the daemon's loop.
const ANSWER: Duration = Duration::from_secs(5);

/// Names of interfaces, or why not.
type Answer = Result<Vec<String>, Error>;

fn patience(variable: Option<OsString>) -> Duration {
    let seconds = variable.and_then(|text| text.to_str()?.parse().ok());
    seconds.map_or(PATIENCE, Duration::from_secs)
}

/// Where the daemon notes what waits, and where requests wait for the daemon.
#[derive(Debug, Default)]
pub struct CommitConfirm {
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

impl CommitConfirm {
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
        Some(ProblemKind::Confirm.problem(
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
        (!names.is_empty()).then(|| ProblemKind::Unconfirmed.because(too_late(&names)))
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
        let commit_confirm = CommitConfirm::default();
        assert!(commit_confirm.expire().is_none() && commit_confirm.finding().is_none());
        *commit_confirm.lock() =
            State::Waiting { names: vec!["eth0".into()], until: Instant::now() };
        let finding = commit_confirm.finding().expect("finding");
        assert!(finding.error.contains("eth0 carries the default route: confirm within 0 s"));
        assert_eq!(commit_confirm.expire(), Some(vec!["eth0".into()]));
        assert!(commit_confirm.expire().is_none());
        assert!(commit_confirm.nothing().is_err() && commit_confirm.problem().is_some());
        let until = Instant::now() + Duration::from_secs(60);
        *commit_confirm.lock() = State::Waiting { names: vec!["eth0".into()], until };
        assert!(commit_confirm.expire().is_none());
        commit_confirm.end();
        assert_eq!(commit_confirm.nothing(), Ok(Vec::new()));
        assert!(commit_confirm.problem().is_none());
    }

    #[test]
    fn a_minute_unless_a_test_says_otherwise() {
        assert_eq!(patience(None), PATIENCE);
        assert_eq!(patience(Some("on".into())), PATIENCE);
        assert_eq!(patience(Some("3".into())), Duration::from_secs(3));
    }
}
