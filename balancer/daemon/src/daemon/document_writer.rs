//! Documents of one name on their way to the state directory, which may hang. One thread writes, in
//! the order in which it is told to; of documents that wait for it, only the newest is written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_api::error::Error;
use ringway_api::state_dir::StateDir;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// No change has this number.
pub(super) const NONE: u64 = 0;

/// The number of the change that wanted it, and whether its document is written.
pub(super) type Written = (u64, Result<(), Error>);

/// The thread, and what became of documents.
#[derive(Debug)]
pub(super) struct DocumentWriter<D> {
    state: Arc<StateDir>,
    /// Name of the documents in the state directory.
    name: &'static str,
    desk: Arc<Mutex<Desk<D>>>,
    thread: Option<JoinHandle<()>>,
    /// The newest change that wanted a document.
    newest: u64,
    send: mpsc::UnboundedSender<Written>,
    receive: mpsc::UnboundedReceiver<Written>,
}

#[derive(Debug)]
struct Desk<D> {
    waiting: Option<(u64, Arc<D>)>,
    /// A thread writes, and will take what waits.
    busy: bool,
}

fn lock<D>(desk: &Mutex<Desk<D>>) -> MutexGuard<'_, Desk<D>> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Serialize + Send + Sync + 'static> DocumentWriter<D> {
    pub(super) fn new(state: Arc<StateDir>, name: &'static str) -> DocumentWriter<D> {
        let (send, receive) = mpsc::unbounded_channel();
        let desk = Arc::new(Mutex::new(Desk { waiting: None, busy: false }));
        DocumentWriter { state, name, desk, thread: None, newest: 0, send, receive }
    }

    /// Writes this after what is being written. `number`: of the change that wants it, once.
    pub(super) fn write(&mut self, number: u64, document: impl Into<Arc<D>>) {
        if number != NONE && std::mem::replace(&mut self.newest, number) == number {
            return;
        }
        let mut desk = lock(&self.desk);
        desk.waiting = Some((number, document.into()));
        if std::mem::replace(&mut desk.busy, true) {
            return;
        }
        drop(desk);
        let (state, desk, send) = (self.state.clone(), self.desk.clone(), self.send.clone());
        let name = self.name;
        self.thread = Some(spawn_blocking(move || {
            while let Some((number, document)) = next(&desk) {
                // The state remembers what goes wrong; closed only when the daemon has ended.
                let _ = send.send((number, state.write(name, document.as_ref())));
            }
        }));
    }

    /// Whether the document may change yet.
    pub(super) fn is_busy(&self) -> bool {
        lock(&self.desk).busy
    }

    /// The next document that was written, or could not be.
    pub(super) async fn next(&mut self) -> Option<Written> {
        self.receive.recv().await
    }

    /// Waits for what is not written yet.
    pub(super) async fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = timeout(super::LAST_WRITE, thread).await;
        }
    }
}

fn next<D>(desk: &Mutex<Desk<D>>) -> Option<(u64, Arc<D>)> {
    let mut desk = lock(desk);
    let next = desk.waiting.take();
    desk.busy = next.is_some();
    next
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ringway_api::clock::Timestamp;
    use std::fs;
    use std::sync::atomic::Ordering;

    use ringway_api::overrides::{self, Override, Overrides};

    /// A state directory on a disk that does not answer.
    pub struct Hanging {
        pub state: Arc<StateDir>,
        _place: tempfile::TempDir,
    }

    impl Hanging {
        pub fn new() -> Hanging {
            let place = tempfile::tempdir().expect("a directory");
            let state = StateDir::new(place.path());
            state.hangs.store(true, Ordering::Relaxed);
            Hanging { state: Arc::new(state), _place: place }
        }

        pub fn release(&self) {
            self.state.hangs.store(false, Ordering::Relaxed);
        }

        pub fn kept(&self) -> Option<Overrides> {
            self.state.read(overrides::DOCUMENT, overrides::SCHEMA).expect("read")
        }
    }

    /// The runtime waits for its threads, also after a test that fails.
    impl Drop for Hanging {
        fn drop(&mut self) {
            self.release();
        }
    }

    impl<D> DocumentWriter<D> {
        /// Until nothing waits for the thread.
        pub async fn begins(&self) {
            while lock(&self.desk).waiting.is_some() {
                tokio::task::yield_now().await;
            }
        }
    }

    pub fn drained(n: u8) -> Overrides {
        let address = [10, 0, 0, n].into();
        let (service, since) = ("web".to_owned(), Timestamp::default());
        let drained = Override { service, address, port: 80, drained: true, weight: None, since };
        Overrides { overrides: vec![drained], ..Overrides::default() }
    }

    #[tokio::test]
    async fn documents_are_written_one_after_the_other_and_the_newest_lasts() {
        let place = Hanging::new();
        let mut writer = DocumentWriter::new(place.state.clone(), overrides::DOCUMENT);
        writer.write(1, drained(1));
        writer.begins().await;
        writer.write(1, drained(1));
        writer.write(2, drained(2));
        writer.write(3, drained(3));
        writer.write(3, drained(3));
        assert!(writer.is_busy());
        place.release();
        writer.finish().await;
        assert!(!writer.is_busy());
        assert_eq!(place.kept(), Some(drained(3)));
        let results: [_; 3] = std::array::from_fn(|_| writer.receive.try_recv().ok());
        assert!(matches!(results, [Some((1, Ok(()))), Some((3, Ok(()))), None]), "{results:?}");
        let names = fs::read_dir(place.state.directory()).expect("listed");
        assert_eq!(names.count(), 1, "overrides.json alone");
    }
}
