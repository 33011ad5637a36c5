//! What a request is answered with that is not done.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The body of a refusal.
pub(super) fn refuse(status: StatusCode, error: impl Into<String>, remedy: &str) -> Response {
    (status, Json(json!({"error": error.into(), "remedy": remedy}))).into_response()
}
