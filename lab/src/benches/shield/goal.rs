//! Goals of `bench shield`.

use serde::Serialize;

use crate::harness::report::Goal;

#[derive(Debug, Serialize)]
pub struct ShieldGoal {
    /// What it is a goal of, in words.
    pub case: String,
    #[serde(flatten)]
    pub goal: Goal,
}
