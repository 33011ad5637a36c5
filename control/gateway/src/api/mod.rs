//! The local API: HTTP and JSON over a Unix socket, and the client that `ringway` uses.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | the whole of [`crate::status::Status`] |
//! | `GET /v1/ledger` | `counters` and `ledger` of it |
//! | `GET /v1/health` | `healthy`, `problems` and each backend's health |
//!
//! Anything else is answered with a fitting status and `{"error", "remedy"}`.

pub mod client;
pub mod server;

/// Longest request body that is read, bytes.
pub const BODY_LIMIT: usize = 64 * 1024;
/// Requests answered at once; more get status 503.
pub const CONCURRENCY: usize = 64;
