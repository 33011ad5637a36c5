//! Metrics in Prometheus' text form, and /healthz and /readyz beside them.
//!
//! - `/metrics`: [`families`]. Made anew at most four times a second, whoever asks how often.
//! - `/healthz`: 200 while the daemon's loop turns.
//! - `/readyz`: 200 while the node should get traffic, as `ringway status --ready` tells: the loop
//!   turns, attached to every interface, the last tables written, some service with a backend that
//!   gets traffic. Otherwise 503 and the causes, one per line.

pub mod families;
mod process;
#[cfg(test)]
mod tests;
pub mod text;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ringway_api::error::Error;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::server::connections;
use crate::snapshot::{HeavySources, Sources, StatusStore};

/// A text is shown again until it is so old ...
const FRESH: Duration = Duration::from_millis(250);
/// ... or so many times as old as it took to make: a large one must not keep a core busy.
const REST: u32 = 9;
/// Prometheus waits ten seconds unless told otherwise; a text of the largest node is made in four.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes the address.
///
/// # Errors
/// When it cannot be had. `choose` is how to choose another.
pub async fn listen(address: SocketAddr, choose: &str) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Error::failed(format!("metrics address {address}: {error}"), choose))
}

struct Source {
    status_store: Arc<StatusStore>,
    most_backends: usize,
    /// The last text, and until when it is shown again. Held while another is made: who asks
    /// meanwhile gets that.
    last: Mutex<Option<(Instant, Bytes)>>,
}

/// Answers until cancelled. With more than `most_backends`, no backend has series of its own.
pub async fn serve(listener: TcpListener, status_store: Arc<StatusStore>, most_backends: usize) {
    let source = Source { status_store, most_backends, last: Mutex::default() };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Arc::new(source));
    connections::serve(listener, router, PATIENCE).await;
}

async fn metrics(State(source): State<Arc<Source>>) -> Response {
    match source.text().await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

impl Source {
    async fn text(&self) -> Result<Bytes, Error> {
        let mut last = self.last.lock().await;
        let now = Instant::now();
        if let Some((_, text)) = last.as_ref().filter(|(until, _)| now < *until) {
            return Ok(text.clone());
        }
        let status = StatusStore::read(&self.status_store, HeavySources::Unread).await?;
        // Not known while the daemon starts.
        let shield = StatusStore::shield(&self.status_store, Sources::None).await.ok();
        let most_backends = self.most_backends;
        let made = tokio::task::spawn_blocking(move || {
            families::render(&status, shield.as_ref(), most_backends)
        })
        .await;
        let made = made.map_err(|error| Error::failed(format!("metrics not made: {error}"), ""))?;
        let text = Bytes::from(made);
        let fresh = FRESH.max(now.elapsed() * REST);
        *last = Some((Instant::now() + fresh, text.clone()));
        Ok(text)
    }
}

async fn healthz(State(source): State<Arc<Source>>) -> Response {
    match source.status_store.stalled() {
        None => "ok\n".into_response(),
        Some(age) => {
            let text = format!("the daemon's loop has not turned for {} s\n", age.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn readyz(State(source): State<Arc<Source>>) -> Response {
    let readiness = source.status_store.readiness(None);
    if readiness.ready {
        return "ready\n".into_response();
    }
    let lines: String = readiness.reasons.iter().map(|reason| format!("{reason}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}
