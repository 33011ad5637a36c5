//! Health of a backend by a series of check results: a pure state machine.

use ringway_api::documents::health::Health;

use super::failure::Sort;

/// Counts results of one backend's checks.
///
/// The first result of an unknown backend decides alone; after that, `rise` passes in a row bring
/// it up and `fall` failures in a row take it down.
#[derive(Clone, Debug)]
pub struct HealthState {
    rise: u32,
    fall: u32,
    health: Health,
    streak: u32,
}

impl HealthState {
    /// A machine that begins in `health`: [`Health::Unknown`] on a fresh start, what the pinned
    /// tables say when a daemon takes over. `rise` and `fall` of 0 count as 1.
    pub fn new(rise: u32, fall: u32, health: Health) -> Self {
        HealthState { rise: rise.max(1), fall: fall.max(1), health, streak: 0 }
    }

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

/// Tells once when a backend that stays down fails its checks for another reason than before.
#[derive(Clone, Debug)]
pub struct Causes {
    needed: u32,
    told: Option<Sort>,
    /// Another one, and how often in a row.
    other: Option<(Sort, u32)>,
}

impl Causes {
    /// A reason counts after `fall` failures in a row (0 counts as 1), like the failure itself: one
    /// that alternates is no news each time.
    pub fn new(fall: u32) -> Causes {
        Causes { needed: fall.max(1), told: None, other: None }
    }

    /// Takes the state after one result, and how the check failed; returns whether the reason has
    /// changed.
    pub fn observe(&mut self, health: Health, failed: Option<Sort>) -> bool {
        if health != Health::Down {
            (self.told, self.other) = (None, None);
            return false;
        }
        let Some(sort) = failed.filter(|sort| self.told != Some(*sort)) else {
            self.other = None;
            return false;
        };
        let before = self.other.filter(|(other, _)| *other == sort).map_or(0, |(_, times)| times);
        // Why it went down has just been told.
        let first = self.told.is_none();
        if !first && before + 1 < self.needed {
            self.other = Some((sort, before + 1));
            return false;
        }
        (self.told, self.other) = (Some(sort), None);
        !first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Failure;

    /// After each result whether another reason is told: '.' pass, 't' timed out, 'r' refused, 's'
    /// a status.
    fn told(fall: u32, results: &str) -> String {
        let address = "10.0.0.2:80".parse().expect("an address");
        let (mut machine, mut causes) =
            (HealthState::new(1, fall, Health::Unknown), Causes::new(fall));
        let mut one = |result: char| {
            let limit = std::time::Duration::ZERO;
            let failure = match result {
                't' => Some(Failure::Timeout { address, limit }),
                'r' => Some(Failure::Refused(address)),
                '4' | '5' => Some(Failure::Status { got: result as u16, want: "200".into() }),
                _ => None,
            };
            machine.observe(failure.is_none());
            match causes.observe(machine.health(), failure.map(|failure| failure.sort())) {
                true => '!',
                false => '-',
            }
        };
        results.chars().map(&mut one).collect()
    }

    #[test]
    fn another_reason_is_told_once_when_it_lasts() {
        for (fall, results, want) in [
            (1, "ttrrr", "--!--"),
            (2, "ttttrrrr", "-----!--"),
            (2, "trtrtrtr", "--------"),
            (1, "tr.rt", "-!--!"),
            (2, ".t.t.ttrr", "--------!"),
            (1, "45544", "-!-!-"),
        ] {
            assert_eq!(told(fall, results), want, "fall {fall} {results}");
        }
    }

    /// Feeds results ('.' pass, 'x' fail) and writes the state after each (u, d, ?).
    fn walk(rise: u32, fall: u32, from: Health, results: &str) -> String {
        let mut machine = HealthState::new(rise, fall, from);
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
