//! Health of a backend by its checks, and reasons why this machine cannot make them.

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

/// A resource that this machine lacks for a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// File descriptors, of this process or of the machine.
    Descriptors,
    /// Memory, buffers or processes.
    Memory,
    /// A free local port, or the local address.
    Address,
    Permission,
    /// The program of an exec check.
    Program,
    /// The authorities of an https check.
    Authorities,
}

impl Lack {
    pub const ALL: [Lack; 6] = [
        Lack::Descriptors,
        Lack::Memory,
        Lack::Address,
        Lack::Permission,
        Lack::Program,
        Lack::Authorities,
    ];

    /// The label of its metric.
    pub const fn name(self) -> &'static str {
        match self {
            Lack::Descriptors => "descriptors",
            Lack::Memory => "memory",
            Lack::Address => "address",
            Lack::Permission => "permission",
            Lack::Program => "program",
            Lack::Authorities => "authorities",
        }
    }
}
