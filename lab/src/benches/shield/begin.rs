//! When an attack begins, and when a service is armed against it.

use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use ringway_kernel::{DEFAULT_BPFFS, View};

use crate::Result;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Nobody waits longer for the end of a mitigation.
const PATIENCE: Duration = Duration::from_secs(10);
/// The daemon ends a mitigation with its next sample, and the packet path before that.
const FORGET: Duration = Duration::from_millis(750);

/// Waits until no service of this node is armed any more.
pub(super) fn await_calm(node: &str) -> Result<()> {
    let (view, over) = (View::open(Path::new(DEFAULT_BPFFS), node)?, Instant::now());
    if view.armed()?.is_empty() {
        return Ok(());
    }
    while !view.armed()?.is_empty() && over.elapsed() < PATIENCE {
        thread::sleep(LOOK);
    }
    thread::sleep(FORGET);
    Ok(())
}

/// An attack, from its first packet on.
#[derive(Default)]
pub(super) struct Begin(OnceLock<Instant>);

impl Begin {
    /// Told of the time for which the attack has been going on.
    pub(super) fn goes_on(&self, elapsed: Duration) {
        self.0.get_or_init(|| Instant::now() - elapsed);
    }

    /// How long it took until a service of this node was armed. None was before `end` of it: none.
    pub(super) fn armed_after(&self, node: &str, end: Duration) -> Result<Option<Duration>> {
        let view = View::open(Path::new(DEFAULT_BPFFS), node)?;
        loop {
            let armed = !view.armed()?.is_empty();
            let elapsed = self.0.get().map(Instant::elapsed);
            if armed || elapsed > Some(end) {
                return Ok(elapsed.filter(|_| armed));
            }
            thread::sleep(LOOK);
        }
    }
}
