//! Serves the API on its socket.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ringway_api::client::http::ORDER_PATIENCE;
use ringway_api::documents::status::Status;
use ringway_api::error::Error;
use serde::Serialize;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::time::timeout;

use super::control::{self, Control};
use super::refuse;
use super::{BODY_LIMIT, BODY_PATIENCE};
use crate::server::connections;
use crate::snapshot::{HeavySources, Sources, StatusStore};

/// Group that may use the socket, when it exists.
const GROUP: &str = "ringway";
/// A connection lasts no longer: nobody waits longer for an order.
const PATIENCE: Duration = ORDER_PATIENCE;

/// Takes the socket: removes a leftover of a daemon that is gone, sets mode 0660 and group.
///
/// # Errors
/// When another process listens there, the path is something else, or it cannot be created. `choose`
/// is how to choose another.
pub fn listen(path: &Path, choose: &str) -> Result<UnixListener, Error> {
    let failed = |what: &str, error: io::Error| {
        Error::failed(
            format!("API socket {}: {what}: {error}", path.display()),
            format!("{choose}, or mend the directory's permissions"),
        )
    };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| failed("no directory", error))?;
    }
    remove_leftover(path, choose)?;
    let listener = UnixListener::bind(path).map_err(|error| failed("cannot listen", error))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        .map_err(|error| failed("cannot set mode 0660", error))?;
    if let Some(group) = group_id(GROUP) {
        std::os::unix::fs::chown(path, None, Some(group))
            .map_err(|error| failed("cannot give it to group ringway", error))?;
    }
    Ok(listener)
}

fn remove_leftover(path: &Path, choose: &str) -> Result<(), Error> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Error::configuration(
            format!("API socket {}: a file that is no socket is in the way", path.display()),
            format!("remove it, or {choose}"),
        ));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(Error::configuration(
            format!("API socket {}: another process answers there", path.display()),
            format!("{choose}: each node has its own"),
        ));
    }
    std::fs::remove_file(path).map_err(|error| {
        Error::failed(
            format!("API socket {}: cannot remove the leftover: {error}", path.display()),
            format!("rm {}", path.display()),
        )
    })
}

fn group_id(name: &str) -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Runs until cancelled.
pub async fn serve(listener: UnixListener, status_store: Arc<StatusStore>, control: Control) {
    connections::serve(listener, router(status_store, control), PATIENCE).await;
}

fn router(status_store: Arc<StatusStore>, control: Control) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/ledger", get(ledger))
        .route("/v1/health", get(health))
        .route("/v1/confirm", post(confirm))
        .route("/v1/ready", get(ready))
        .route("/v1/ready/{service}", get(ready_for))
        .route("/v1/shield", get(shield))
        .route("/v1/blocked", get(blocked))
        .merge(control::router(control))
        .fallback(unknown)
        .method_not_allowed_fallback(method)
        .layer(from_fn(bounds))
        .with_state(status_store)
}

/// Bounds bodies, before anything looks at them.
async fn bounds(request: Request, next: Next) -> Response {
    let too_long = || {
        refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {BODY_LIMIT} bytes, or cut short"),
            "send less",
        )
    };
    let (parts, body) = request.into_parts();
    if body.size_hint().lower() > BODY_LIMIT as u64 {
        return too_long();
    }
    match timeout(BODY_PATIENCE, to_bytes(body, BODY_LIMIT)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Ok(Err(_)) => too_long(),
        Err(_) => refuse(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {} s", BODY_PATIENCE.as_secs()),
            "send all of it at once",
        ),
    }
}

async fn status(State(status_store): State<Arc<StatusStore>>) -> Response {
    answer(&status_store, HeavySources::Counted, |status| json!(status)).await
}

async fn ledger(State(status_store): State<Arc<StatusStore>>) -> Response {
    answer(&status_store, HeavySources::Unread, |status| {
        json!({
            "schema": "ringway.ledger/1",
            "node": status.node,
            "ledger": status.ledger,
            "interfaces": status.interfaces.iter()
                .map(|interface| json!({"name": interface.name, "ledger": interface.ledger}))
                .collect::<Vec<_>>(),
            "counters": status.counters,
        })
    })
    .await
}

async fn health(State(status_store): State<Arc<StatusStore>>) -> Response {
    answer(&status_store, HeavySources::Unread, |status| {
        json!({
            "schema": "ringway.health/1",
            "node": status.node,
            "healthy": status.healthy,
            "problems": status.problems,
            "services": status.services.iter().map(|service| json!({
                "name": service.name,
                "protocol": service.protocol.name(),
                "backends": service.backends.iter().map(|backend| json!({
                    "address": backend.address,
                    "port": backend.port,
                    "health": backend.health,
                    "since": backend.since,
                    "reason": backend.reason,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })
    })
    .await
}

async fn confirm(State(status_store): State<Arc<StatusStore>>) -> Response {
    match status_store.commit_confirm.confirm().await {
        Ok(interfaces) => Json(json!({
            "schema": "ringway.confirm/1",
            "node": status_store.node(),
            "interfaces": interfaces,
        }))
        .into_response(),
        Err(failure) => refuse(StatusCode::CONFLICT, failure.what, *failure.remedy),
    }
}

async fn ready(State(status_store): State<Arc<StatusStore>>) -> Response {
    Json(status_store.readiness(None)).into_response()
}

async fn ready_for(
    State(status_store): State<Arc<StatusStore>>,
    service: UrlPath<String>,
) -> Response {
    Json(status_store.readiness(Some(&service))).into_response()
}

async fn shield(State(status_store): State<Arc<StatusStore>>) -> Response {
    of_shield(StatusStore::shield(&status_store, Sources::All).await)
}

async fn blocked(State(status_store): State<Arc<StatusStore>>) -> Response {
    of_shield(status_store.blocked())
}

fn of_shield(document: Result<impl Serialize, Error>) -> Response {
    match document {
        Ok(document) => Json(document).into_response(),
        Err(failure) => refuse(StatusCode::CONFLICT, failure.what, *failure.remedy),
    }
}

async fn answer(
    status_store: &Arc<StatusStore>,
    heavy: HeavySources,
    shape: impl Fn(&Status) -> serde_json::Value,
) -> Response {
    match StatusStore::read(status_store, heavy).await {
        Ok(status) => Json(shape(&status)).into_response(),
        Err(failure) => refuse(StatusCode::INTERNAL_SERVER_ERROR, failure.what, *failure.remedy),
    }
}

async fn unknown(uri: Uri) -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        format!("there is no {}", uri.path()),
        "ask for /v1/status, /v1/ledger or /v1/health",
    )
}

async fn method(method: Method, uri: Uri) -> Response {
    refuse(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} cannot be done with {method}", uri.path()),
        if method == Method::GET { "use POST" } else { "use GET" },
    )
}
