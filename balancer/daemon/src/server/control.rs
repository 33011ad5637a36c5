//! Requests for changes: `POST /v1/reload`, `/v1/backend` and `/v1/overrides/clear`. Handed to
//! the daemon's loop, which does one at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router, routing};
use ringway_api::client::requests::{Clear, Reload};
use ringway_api::documents::changes::Changes;
use ringway_api::error::{Error, Kind};
use ringway_api::overrides::OverrideChange;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};

/// Where the outcome goes.
pub type Reply = oneshot::Sender<Result<Changes, Error>>;

/// A request to the daemon.
#[derive(Debug)]
pub enum Command {
    /// Read the configuration file again.
    Reload {
        /// Tell what would change, no more.
        dry_run: bool,
        /// The file that is meant, as an absolute path; refused when it is not the daemon's.
        file: Option<PathBuf>,
    },
    /// Read the overrides again that could not be read or kept.
    Recall,
    /// Say something about a backend that the file does not.
    Override { change: OverrideChange, by: Asker },
}

/// A command of somebody who waits for its outcome.
pub type Request = (Command, Reply);

/// The number of a request, which no other ever gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Requests that are not answered yet.
#[derive(Debug, Default)]
pub struct PendingRequests {
    last: u64,
    replies: BTreeMap<RequestId, Reply>,
}

impl PendingRequests {
    pub fn add(&mut self, reply: Reply) -> RequestId {
        self.last += 1;
        self.replies.insert(RequestId(self.last), reply);
        RequestId(self.last)
    }

    /// Where its outcome goes; `None`: it is answered.
    pub fn take(&mut self, request: RequestId) -> Option<Reply> {
        self.replies.remove(&request)
    }
}

/// The client, as the kernel knows the socket's other end (unix(7), SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// User id; `None`: the kernel does not tell.
    pub user: Option<u32>,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.user {
            Some(user) => write!(f, "user {user}"),
            None => f.write_str("somebody"),
        }
    }
}

pub type Control = mpsc::Sender<Request>;

/// Commands that wait at most; who brings another waits with it.
pub const WAITING: usize = 16;

pub fn router<S>(control: Control) -> Router<S> {
    Router::new()
        .route("/v1/reload", routing::post(reload))
        .route("/v1/backend", routing::post(backend))
        .route("/v1/overrides/clear", routing::post(clear))
        .with_state(control)
}

async fn reload(State(control): State<Control>, body: Bytes) -> Response {
    match read(&body, Some(Reload::default())) {
        Ok(Reload { dry_run, file }) => ask(&control, Command::Reload { dry_run, file }).await,
        Err(error) => refuse(&error),
    }
}

async fn backend(
    State(control): State<Control>,
    Extension(by): Extension<Asker>,
    body: Bytes,
) -> Response {
    match read::<OverrideChange>(&body, None) {
        Ok(change) => ask(&control, Command::Override { change, by }).await,
        Err(error) => refuse(&error),
    }
}

async fn clear(
    State(control): State<Control>,
    Extension(by): Extension<Asker>,
    body: Bytes,
) -> Response {
    match read(&body, Some(Clear::default())) {
        Ok(Clear { service, backend }) => {
            let change = OverrideChange::Clear { service, backend };
            ask(&control, Command::Override { change, by }).await
        }
        Err(error) => refuse(&error),
    }
}

fn read<T: DeserializeOwned>(body: &[u8], empty: Option<T>) -> Result<T, Error> {
    if let (true, Some(empty)) = (body.is_empty(), empty) {
        return Ok(empty);
    }
    serde_json::from_slice(body).map_err(|error| {
        Error::configuration(
            format!("the request's body cannot be understood: {error}"),
            "send JSON as docs/operations.md has it",
        )
    })
}

async fn ask(control: &Control, command: Command) -> Response {
    let (reply, answer) = oneshot::channel();
    let sent = control.send((command, reply)).await.is_ok();
    let ending = || Error::failed("the daemon is ending", "ask again once it runs");
    match answer.await {
        Ok(Ok(changes)) if sent => Json(changes).into_response(),
        Ok(Err(error)) if sent => refuse(&error),
        _ => refuse(&ending()),
    }
}

fn refuse(error: &Error) -> Response {
    let status = match error.kind {
        Kind::Configuration => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::Failed | Kind::Unhealthy => StatusCode::CONFLICT,
    };
    super::refuse(status, error.what.as_str(), *error.remedy.clone())
}
