//! From a workload and measured costs to an I/O path through the machine, and what it takes.
//!
//! ```text
//! Workload (what comes)  --\
//!                           >-- size() --> Answer: a row for each I/O path, the one chosen and why,
//! Costs (what was measured) /               cores, memory, bandwidth, queues, machines, what would change it
//! ```
//!
//! Everything is arithmetic on two values: no clock, no file, no machine is looked at. What a thing
//! costs comes from a [`Costs`] file that `ringway-lab size --calibrate` writes, or from the
//! reference run shipped as `reference.toml`; each figure carries the command that measured it, and
//! the answer repeats it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod costs;
mod demand;
#[cfg(test)]
mod tests;
mod workload;

pub use answer::changes::InputChange;
pub use answer::{Answer, IoPathSize, Line, Unit, size};
pub use costs::{BytesCost, Costs, IoPath, NsCost, SPREAD};
pub use demand::{DEFAULT_PORTS, Demand, Limit, MachineShares};
pub use workload::{Machine, Work, Workload};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The workload contradicts itself, or is out of range.
    #[error("{what}; {remedy}")]
    Workload { what: String, remedy: &'static str },
    /// Costs that are not understood.
    #[error(
        "the costs are not understood: {0}; `ringway-lab size --calibrate FILE` writes such a file anew"
    )]
    Costs(String),
}
