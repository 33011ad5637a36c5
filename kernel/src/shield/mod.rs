//! The shield: a program in front of the balancer, with constants, lists and rules of its own.
//!
//! Each change of the configuration makes another generation beside the one in force: what cannot
//! be made leaves that in force, and a packet meets one of both as a whole. Counters, budgets and
//! prefixes blocked at run time outlive generations.

pub(crate) mod challenge_key;
mod control;
mod cookie;
pub(crate) mod generation;
pub(crate) mod runtime;

pub use challenge_key::{ChallengeKey, FORMER_KEY_COUNTS, SynSecrets};
pub use generation::{Generation, Rule};
pub use runtime::RuntimePrefix;
