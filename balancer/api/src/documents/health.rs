//! What the checks say of a backend.

use serde::{Deserialize, Serialize};

/// Whether a backend may be given traffic, and how we know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Checked, but no result yet: gets no traffic.
    #[default]
    Unknown,
    /// Its checks pass.
    Up,
    /// Its checks fail.
    Down,
    /// It has no check: always up.
    Unchecked,
}

impl Health {
    /// Whether a backend in this state is given traffic.
    pub fn is_up(self) -> bool {
        matches!(self, Health::Up | Health::Unchecked)
    }

    /// The word shown to people and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Down => "down",
            Health::Unchecked => "unchecked",
        }
    }
}
