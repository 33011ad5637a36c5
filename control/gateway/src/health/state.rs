//! What a series of check results makes of a backend: a pure state machine.

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

/// Counts results of one backend's checks.
///
/// The first result of an unknown backend decides alone; after that, `rise` passes in a row bring
/// it up and `fall` failures in a row take it down.
#[derive(Clone, Debug)]
pub struct Machine {
    rise: u32,
    fall: u32,
    health: Health,
    streak: u32,
}

impl Machine {
    /// A machine that begins in `health`: [`Health::Unknown`] on a fresh start, what the pinned
    /// tables say when a daemon takes over. `rise` and `fall` of 0 count as 1.
    pub fn new(rise: u32, fall: u32, health: Health) -> Self {
        Machine { rise: rise.max(1), fall: fall.max(1), health, streak: 0 }
    }

    /// The present state.
    pub fn health(&self) -> Health {
        self.health
    }

    /// Takes one result; returns the new state when it changed.
    pub fn observe(&mut self, passed: bool) -> Option<Health> {
        let (next, needed) = match (self.health, passed) {
            (Health::Unknown, true) => (Health::Up, 1),
            (Health::Unknown, false) => (Health::Down, 1),
            (Health::Down, true) => (Health::Up, self.rise),
            (Health::Up, false) => (Health::Down, self.fall),
            (Health::Up, true) | (Health::Down, false) | (Health::Unchecked, _) => {
                self.streak = 0;
                return None;
            }
        };
        self.streak += 1;
        if self.streak < needed {
            return None;
        }
        self.streak = 0;
        self.health = next;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds results ('.' pass, 'x' fail) and writes the state after each (u, d, ?).
    fn walk(rise: u32, fall: u32, from: Health, results: &str) -> String {
        let mut machine = Machine::new(rise, fall, from);
        results
            .chars()
            .map(|result| {
                let before = machine.health();
                let change = machine.observe(result == '.');
                assert_eq!(change.is_some(), before != machine.health());
                match machine.health() {
                    Health::Up => 'u',
                    Health::Down => 'd',
                    Health::Unknown => '?',
                    Health::Unchecked => '-',
                }
            })
            .collect()
    }

    #[test]
    fn table() {
        use Health::{Down, Unchecked, Unknown, Up};
        for (rise, fall, from, results, want) in [
            (2, 2, Unknown, ".", "u"),
            (2, 2, Unknown, "x", "d"),
            (2, 2, Unknown, "x..", "ddu"),
            (2, 2, Up, "xx", "ud"),
            (2, 2, Up, "x.x.xx", "uuuuud"),
            (3, 1, Up, "x..x...", "ddddddu"),
            (1, 3, Down, ".xxx.", "uuudu"),
            (0, 0, Up, "x.", "du"),
            (2, 2, Unchecked, "xxx", "---"),
        ] {
            assert_eq!(walk(rise, fall, from, results), want, "rise {rise} fall {fall} {results}");
        }
    }
}
