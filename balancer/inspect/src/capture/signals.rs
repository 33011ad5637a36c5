//! Being asked to end: Ctrl-C, SIGTERM, a terminal that is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringway_api::error::Error;
use tokio::signal::unix::{SignalKind, signal};

/// Set once a signal has come that asks for the end. From now on such signals do not kill.
///
/// # Errors
/// Signals cannot be heard.
pub fn asked_to_end() -> Result<Arc<AtomicBool>, Error> {
    let failed =
        |error: std::io::Error| Error::failed(format!("signals cannot be heard: {error}"), "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let hear = |kind| signal(kind).map_err(failed);
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (
            hear(SignalKind::interrupt())?,
            hear(SignalKind::terminate())?,
            hear(SignalKind::hangup())?,
        )
    };
    let asked = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&asked);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            told.store(true, Ordering::Relaxed);
        });
    });
    Ok(asked)
}
