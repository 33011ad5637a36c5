//! Many long connections that never stop talking, and what becomes of each.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use ringway_testnet::{Namespace, wait_for};

use crate::{Line, SOON};

/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(20);

/// Connections to one service, each asked again and again by a thread of its own.
pub struct Flows {
    all: Vec<Arc<Flow>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct Flow {
    answers: AtomicU64,
    end: Mutex<Option<String>>,
}

impl Flow {
    fn broken(&self) -> Option<String> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn talk(&self, mut line: Line, stop: &AtomicBool) {
        let mut name = None;
        while !stop.load(Ordering::Relaxed) {
            let answer = line.ask("still there?").and_then(|from| match &name {
                Some(before) if *before != from => {
                    Err(io::Error::other("another backend answered"))
                }
                _ => Ok(from),
            });
            match answer {
                Ok(from) => name = Some(from),
                Err(error) => {
                    let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
                    *end = Some(error.to_string());
                    return;
                }
            }
            self.answers.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
    }
}

impl Flows {
    /// Opens `count` connections to an [`crate::Echo`] behind a gateway.
    pub fn open(client: &Namespace, target: SocketAddr, count: usize) -> Result<Flows> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut flows = Flows { all: Vec::new(), threads: Vec::new(), stop };
        for _ in 0..count {
            let line = Line::open(client, target)?;
            let (flow, stop) = (Arc::new(Flow::default()), flows.stop.clone());
            flows.all.push(flow.clone());
            flows.threads.push(thread::spawn(move || flow.talk(line, &stop)));
        }
        Ok(flows)
    }

    /// Waits until each has had two more answers, or broke.
    pub fn settle(&self) -> Result<()> {
        let before: Vec<u64> = self.all.iter().map(|f| f.answers.load(Ordering::Relaxed)).collect();
        wait_for("every connection going on or breaking", 2 * SOON, || {
            let open = |(flow, before): &(&Arc<Flow>, &u64)| {
                flow.broken().is_none() && flow.answers.load(Ordering::Relaxed) < **before + 2
            };
            match self.all.iter().zip(&before).filter(open).count() {
                0 => Ok(()),
                some => Err(format!("{some} do neither")),
            }
        })?;
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Why those broke that did.
    pub fn broken(&self) -> Vec<String> {
        self.all.iter().filter_map(|flow| flow.broken()).collect()
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
