//! Requests for changes: `POST /v1/reload`, `/v1/backend`, `/v1/overrides/clear` and `/v1/shield`.
//! Handed to the daemon's loop, which does one at a time, and beside it one of the shield.

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
use ringway_api::documents::shield::ShieldStatus;
use ringway_api::error::{Error, Kind};
use ringway_api::overrides::OverrideChange;
use ringway_api::shield::ShieldChange;
use serde::Serialize;
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

/// Where the outcome of a change of the shield goes.
pub type ShieldReply = oneshot::Sender<Result<ShieldStatus, Error>>;

/// A change of the shield, which waits for no reload.
pub type ShieldRequest = (ShieldChange, Asker, ShieldReply);

/// Requests that are not answered yet.
#[derive(Debug)]
pub struct PendingRequests<R> {
    last: u64,
    replies: BTreeMap<RequestId, R>,
}

impl<R> Default for PendingRequests<R> {
    fn default() -> Self {
        PendingRequests { last: 0, replies: BTreeMap::new() }
    }
}

impl<R> PendingRequests<R> {
    pub fn add(&mut self, reply: R) -> RequestId {
        self.last += 1;
        self.replies.insert(RequestId(self.last), reply);
        RequestId(self.last)
    }

    /// Where its outcome goes; `None`: it is answered.
    pub fn take(&mut self, request: RequestId) -> Option<R> {
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

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Control {
    pub changes: mpsc::Sender<Request>,
    pub shield: mpsc::Sender<ShieldRequest>,
}

/// Commands that wait at most; who brings another waits with it.
pub const WAITING: usize = 16;

pub fn router<S>(control: Control) -> Router<S> {
    Router::new()
        .route("/v1/reload", routing::post(reload))
        .route("/v1/backend", routing::post(backend))
        .route("/v1/overrides/clear", routing::post(clear))
        .route("/v1/shield", routing::post(shield))
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

async fn shield(
    State(control): State<Control>,
    Extension(by): Extension<Asker>,
    body: Bytes,
) -> Response {
    let change = match read::<ShieldChange>(&body, None) {
        Ok(change) => change,
        Err(error) => return refuse(&error),
    };
    let (reply, answer) = oneshot::channel();
    respond(control.shield.send((change, by, reply)).await.is_ok(), answer).await
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
    respond(control.changes.send((command, reply)).await.is_ok(), answer).await
}

/// `sent`: the daemon will answer.
async fn respond<T: Serialize>(
    sent: bool,
    answer: oneshot::Receiver<Result<T, Error>>,
) -> Response {
    let ending = || Error::failed("the daemon is ending", "ask again once it runs");
    match answer.await {
        Ok(Ok(document)) if sent => Json(document).into_response(),
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
