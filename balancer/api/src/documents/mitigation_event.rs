//! What the program of automatic mitigation is told.

use serde::{Deserialize, Serialize};

use crate::documents::mitigation::AttackStatus;
use crate::documents::shield::HeavySourceStatus;

/// Name and version of the schema of [`MitigationEvent`].
pub const SCHEMA: &str = "ringway.mitigation/1";

/// One line of JSON on the program's standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MitigationEvent {
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// `begin`, also while it lasts, or `end`.
    pub event: String,
    #[serde(flatten)]
    pub attack: AttackStatus,
    /// Sources that have sent beyond the rate of one since it began, the fastest first.
    pub heavy_sources: Vec<HeavySourceStatus>,
}
