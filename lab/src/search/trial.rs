//! What came of a trial.

use serde::Serialize;

/// A trial that took so much longer than intended is still on time: 1 %.
const ON_TIME: f64 = 1.01;

/// Frames that were sent at a rate, and what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Intended, frames a second.
    pub load: f64,
    /// Intended.
    pub duration_s: f64,
    /// Frames that were to be sent.
    pub intended: u64,
    pub sent: u64,
    /// Frames that arrived, each counted once.
    pub received: u64,
    /// How long sending took.
    pub elapsed_s: f64,
}

impl Trial {
    /// Of the frames that were to be sent in time. What the generator did not send, or sent late,
    /// counts as lost: a device that was offered less has proved less.
    pub fn loss_ratio(&self) -> f64 {
        lost(self.received as f64 * self.in_time(), self.intended.max(self.sent))
    }

    /// Of the frames that were sent.
    pub fn device_loss_ratio(&self) -> f64 {
        lost(self.received as f64, self.sent)
    }

    /// Frames were missing when the time was over.
    pub fn fell_short(&self) -> bool {
        self.sent < self.intended
    }

    /// The share of the frames that was sent.
    pub(super) fn sent_share(&self) -> f64 {
        self.sent as f64 / self.intended.max(1) as f64
    }

    /// The share of what was sent that was sent within the intended time.
    fn in_time(&self) -> f64 {
        let late = self.elapsed_s > self.duration_s * ON_TIME;
        if late { self.duration_s / self.elapsed_s } else { 1.0 }
    }
}

fn lost(received: f64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { (1.0 - received / of as f64).clamp(0.0, 1.0) }
}
