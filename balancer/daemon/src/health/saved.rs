//! What outlives the daemon of its backends' health: since when, and why. Whether a backend has
//! traffic is in the packet path's own tables; this document only adds to what those say.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ringway_api::clock;
use ringway_api::state_dir::StateDir;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::Health;

/// The document's name in the state directory.
const NAME: &str = "health";
const SCHEMA: &str = "ringway.health/1";
/// What an earlier daemon knew is believed if it was alive this long ago.
const FRESH: Duration = Duration::from_secs(3600);
/// Changes wait this long for others, or as many times as long as writing takes.
const SETTLE: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;
/// A failed write is tried again after this.
const AGAIN: Duration = Duration::from_secs(5);

/// One backend whose checks have had results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub service: String,
    pub address: SocketAddr,
    /// Its own address and port.
    pub backend: SocketAddr,
    pub check: String,
    pub health: Health,
    /// Since when, seconds since 1970 (UTC).
    pub since_s: u64,
    /// Why, when it is down.
    pub reason: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Document {
    schema: String,
    /// A machine that has restarted begins anew.
    boot_id: String,
    written_s: u64,
    backends: Vec<Saved>,
}

/// Writes the document when something has changed, away from the daemon's loop.
#[derive(Debug)]
pub struct HealthFile {
    state: Arc<StateDir>,
    /// Something is not written yet.
    changed: Arc<AtomicBool>,
    /// A write in progress, or the last one.
    writing: Option<JoinHandle<()>>,
    /// No other before then.
    not_before: Arc<Mutex<Instant>>,
}

impl HealthFile {
    pub fn new(state: Arc<StateDir>) -> HealthFile {
        let not_before = Arc::new(Mutex::new(Instant::now()));
        HealthFile { state, changed: Arc::default(), writing: None, not_before }
    }

    /// What the daemon before, last alive then, has left; nothing if it is of no use now.
    pub fn read(&self, alive: Option<SystemTime>) -> Vec<Saved> {
        let fresh = alive.is_some_and(|alive| alive.elapsed().is_ok_and(|age| age <= FRESH));
        let document = match self.state.read::<Document>(NAME, SCHEMA) {
            Ok(document) => document.filter(|document| fresh && document.is_ours()),
            Err(error) => {
                tracing::warn!(%error, "health of an earlier daemon not read");
                // It is of no use, and is written anew: a problem only if that cannot be.
                let _ = self.state.probe(NAME);
                None
            }
        };
        document.map(|document| document.backends).unwrap_or_default()
    }

    pub fn changed(&mut self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Every second: begins to write if it is time.
    pub fn tick(&mut self, saved: impl FnOnce() -> Vec<Saved>) {
        let busy = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        if self.changed.load(Ordering::Relaxed)
            && !busy
            && Instant::now() >= *lock(&self.not_before)
        {
            self.write(saved());
        }
    }

    fn write(&mut self, saved: Vec<Saved>) {
        self.changed.store(false, Ordering::Relaxed);
        let (state, not_before) = (self.state.clone(), self.not_before.clone());
        let changed = self.changed.clone();
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            // The state remembers what goes wrong, and `status` shows it.
            let pause = match state.write(NAME, &Document::new(saved)) {
                Ok(()) => SETTLE,
                Err(_) => {
                    changed.store(true, Ordering::Relaxed);
                    AGAIN
                }
            };
            *lock(&not_before) = Instant::now() + pause.max(began.elapsed() * SHARE);
        }));
    }

    /// Writes what is not written yet, and waits for it.
    pub async fn finish(&mut self, saved: impl FnOnce() -> Vec<Saved>) {
        self.wait().await;
        if self.changed.load(Ordering::Relaxed) {
            self.write(saved());
        }
        self.wait().await;
    }

    async fn wait(&mut self) {
        if let Some(writing) = self.writing.take() {
            let _ = writing.await;
        }
    }
}

fn lock(moment: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    moment.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Document {
    fn new(backends: Vec<Saved>) -> Document {
        let written_s = clock::unix_s(SystemTime::now());
        Document { schema: SCHEMA.into(), boot_id: boot_id(), written_s, backends }
    }

    fn is_ours(&self) -> bool {
        self.boot_id == boot_id() && !self.boot_id.is_empty()
    }
}

/// Another after each start of the machine (random(4)).
fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(health: Health) -> Vec<Saved> {
        vec![Saved {
            service: "web".into(),
            address: "203.0.113.10:80".parse().expect("an address"),
            backend: "10.0.0.2:80".parse().expect("an address"),
            check: "tcp".into(),
            health,
            since_s: 1_700_000_000,
            reason: None,
        }]
    }

    #[tokio::test]
    async fn only_changes_are_written_and_the_end_waits_for_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("gw");
        let mut health_file = HealthFile::new(Arc::new(StateDir::new(&place)));
        let now = || Some(SystemTime::now());
        health_file.tick(|| unreachable!("nothing has changed"));
        health_file.finish(|| unreachable!("nothing has changed")).await;
        assert!(health_file.read(now()).is_empty() && !place.join("health.json").exists());
        health_file.changed();
        health_file.tick(|| saved(Health::Up));
        health_file.changed();
        // The first is hardly written, the next must wait.
        health_file.tick(|| unreachable!("too soon"));
        health_file.finish(|| saved(Health::Down)).await;
        assert_eq!(health_file.read(now()), saved(Health::Down));
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_written_when_it_can() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("gw");
        fs::write(&place, "in the way").expect("written");
        let state = Arc::new(StateDir::new(&place));
        let mut health_file = HealthFile::new(state.clone());
        health_file.changed();
        health_file.finish(|| saved(Health::Up)).await;
        assert!(!state.problems().is_empty());
        fs::remove_file(&place).expect("removed");
        // Nothing has changed since; it is due again.
        *lock(&health_file.not_before) = Instant::now();
        health_file.tick(|| saved(Health::Up));
        health_file.wait().await;
        assert!(state.problems().is_empty(), "{:?}", state.problems());
        assert_eq!(health_file.read(Some(SystemTime::now())), saved(Health::Up));
    }

    #[tokio::test]
    async fn what_is_old_or_of_another_boot_is_not_believed() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = Arc::new(StateDir::new(directory.path().join("gw")));
        let mut health_file = HealthFile::new(state.clone());
        health_file.changed();
        health_file.finish(|| saved(Health::Up)).await;
        let now = SystemTime::now();
        assert_eq!(health_file.read(Some(now - FRESH / 2)).len(), 1);
        assert_eq!(health_file.read(Some(now - 2 * FRESH)).len(), 0);
        assert_eq!(health_file.read(None).len(), 0);
        let other = Document { boot_id: "another".into(), ..Document::new(saved(Health::Up)) };
        state.write(NAME, &other).expect("written");
        assert_eq!(health_file.read(Some(now)).len(), 0);
        fs::write(directory.path().join("gw/health.json"), "{").expect("written");
        assert_eq!(health_file.read(Some(now)).len(), 0);
    }
}
