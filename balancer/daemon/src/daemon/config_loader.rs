//! Threads that read configurations and judge them. They may hang, as file systems do; a change
//! that is given up does not wait for its thread.

use std::sync::Arc;

use ringway_api::error::Error;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::load::{Loaded, Refusal};

/// Threads that hang, at most: then nothing more is read.
const HANGING: usize = 4;

/// Reads a configuration, and judges it.
pub(super) type Load = Box<dyn FnOnce() -> Result<Loaded, Refusal> + Send>;

/// The number of a change, and what was found of it.
pub(super) type LoadResult = (u64, Result<Loaded, Refusal>);

/// The threads, and what they found.
#[derive(Debug)]
pub(super) struct ConfigLoader {
    held: Arc<()>,
    /// The newest change.
    begun: u64,
    send: mpsc::UnboundedSender<LoadResult>,
    receive: mpsc::UnboundedReceiver<LoadResult>,
}

impl ConfigLoader {
    pub(super) fn new() -> ConfigLoader {
        let (send, receive) = mpsc::unbounded_channel();
        ConfigLoader { held: Arc::default(), begun: 0, send, receive }
    }

    /// Judges the change of this number, once.
    ///
    /// # Errors
    /// Too many before it hang.
    pub(super) fn begin(&mut self, number: u64, judge: Load) -> Result<(), Error> {
        if std::mem::replace(&mut self.begun, number) == number {
            return Ok(());
        }
        if self.running() >= HANGING {
            return Err(Error::failed(
                format!("{HANGING} changes before this one hang while they read files"),
                "see which file system hangs: `ps -eLo pid,stat,wchan:32,comm | grep ringway`; then try again",
            ));
        }
        let (held, send) = (self.held.clone(), self.send.clone());
        spawn_blocking(move || {
            let outcome = judge();
            drop(held);
            // Closed only when the daemon has ended.
            let _ = send.send((number, outcome));
        });
        Ok(())
    }

    /// Threads that have not ended.
    pub(super) fn running(&self) -> usize {
        Arc::strong_count(&self.held) - 1
    }

    pub(super) async fn next(&mut self) -> Option<LoadResult> {
        self.receive.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc};

    #[tokio::test]
    async fn so_many_hang_and_then_no_other_is_begun() {
        let mut loader = ConfigLoader::new();
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let hanging = || -> Load {
            let gate = gate.clone();
            Box::new(move || {
                let _ = gate.lock().expect("the gate").recv();
                Err(Error::failed("it hung", "").into())
            })
        };
        for number in 1..=HANGING as u64 {
            loader.begin(number, hanging()).expect("room");
            loader.begin(number, Box::new(|| unreachable!("it is begun"))).expect("nothing to do");
        }
        let refused = loader.begin(9, Box::new(|| unreachable!("it is refused")));
        let refused = refused.expect_err("no room");
        assert_eq!(refused.what, "4 changes before this one hang while they read files");
        drop(release);
        for _ in 0..HANGING {
            let (number, _) = loader.next().await.expect("a result");
            assert!(number < 9);
        }
        assert_eq!(loader.running(), 0);
        loader.begin(10, hanging()).expect("room again");
        assert_eq!(loader.next().await.expect("a result").0, 10);
    }
}
