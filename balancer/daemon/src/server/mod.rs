//! The local API: HTTP and JSON over a Unix socket. Its client is in `ringway_api`.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | the whole of [`ringway_api::documents::status::Status`] |
//! | `GET /v1/ledger` | `counters` and `ledger` of it |
//! | `POST /v1/confirm` | [`ringway_api::client::requests::Confirmed`] |
//! | `GET /v1/ready` | [`ringway_api::documents::readiness::Readiness`], at once |
//! | `GET /v1/ready/SERVICE` | the same, and this service must have a backend, too |
//! | `POST /v1/reload` | [`ringway_api::documents::changes::Changes`]; body `{"dry_run": true}` or none |
//! | `POST /v1/backend` | the same; body [`ringway_api::overrides::OverrideChange`] |
//! | `POST /v1/overrides/clear` | the same; body `{"service", "backend"}`, `{"service"}` or none |
//! | `GET /v1/shield` | [`ringway_api::documents::shield::ShieldStatus`] |
//! | `POST /v1/shield` | the same; body [`ringway_api::shield::ShieldChange`] |
//! | `GET /v1/blocked` | [`ringway_api::documents::shield::Blocked`] |
//! | `GET /v1/health` | `healthy`, `problems` and each backend's health |
//!
//! Anything else is answered with a fitting status and `{"error", "remedy"}`.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ringway_host::Fix;
use serde_json::json;

pub mod api;
pub mod connections;
pub mod control;
#[cfg(test)]
mod tests;

/// Longest request body that is read, bytes.
pub const BODY_LIMIT: usize = 64 * 1024;
/// How long a request's body may take.
pub const BODY_PATIENCE: Duration = Duration::from_secs(5);

/// The answer to a request that is not done.
fn refuse(status: StatusCode, error: impl Into<String>, remedy: impl Into<Fix>) -> Response {
    (status, Json(json!({"error": error.into(), "remedy": remedy.into()}))).into_response()
}
