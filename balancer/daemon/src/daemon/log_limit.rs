//! Lines of the log that come in crowds: a switch that dies costs many backends their way at once.

use std::collections::BTreeMap;

use ringway_api::text::counted;
use ringway_kernel::Interface;

use super::Daemon;
use crate::backends::Line;

/// Lines in full between two calls of [`LogLimiter::end`]; the others are counted, and are there at level debug.
const SHOWN: usize = 8;

/// The lines of a short while.
#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    shown: usize,
    good: usize,
    bad: usize,
}

impl LogLimiter {
    /// Whether a line is told in full. `good`: something is well again.
    pub(super) fn admits(&mut self, good: bool) -> bool {
        let room = self.shown < SHOWN;
        match (room, good) {
            (true, _) => self.shown += 1,
            (false, true) => self.good += 1,
            (false, false) => self.bad += 1,
        }
        room
    }

    /// Logs a line, in full or only counted.
    pub(super) fn tell(&mut self, Line { good, text, .. }: &Line) {
        match (self.admits(*good), *good) {
            (true, true) => tracing::info!("{text}"),
            (true, false) => tracing::warn!("{text}"),
            (false, _) => tracing::debug!("{text}"),
        }
    }

    /// The while is over: logs how many lines were not told in full.
    pub(super) fn end(&mut self) {
        for Line { good, text, .. } in std::mem::take(self).rest() {
            match good {
                true => tracing::info!("{text}"),
                false => tracing::warn!("{text}"),
            }
        }
    }

    fn rest(&self) -> Vec<Line> {
        let line = |good, count, what| {
            let text = format!("and {count} more have {what}: `ringway status` lists them");
            Line { good, text, lost_by: None }
        };
        let both = [
            (self.bad > 0).then(|| line(false, self.bad, "failed")),
            (self.good > 0).then(|| line(true, self.good, "recovered")),
        ];
        both.into_iter().flatten().collect()
    }
}

impl Daemon {
    /// Whether a line follows from what was told of an interface that many backends are reached by.
    pub(super) fn follows(&self, line: &Line) -> bool {
        let is_cut_off = |name: &str| {
            let gone = |one: &Interface| one.name == name && self.gone.contains(&one.slot);
            self.existing.is_cut_off(name) || self.interfaces.iter().any(gone)
        };
        let mut interface = line.lost_by.iter().filter(|_| !line.good);
        interface.any(|name| is_cut_off(name) && self.backend_set.lost_several(name))
    }

    /// Logs lines about backends; what follows from one cause is one line. `what` became of them.
    pub(super) fn log_lines(&mut self, lines: &[Line], what: &str) {
        let (counts, others) = by_cause(lines, |line| self.follows(line));
        for (name, backends) in counts {
            let backends = counted(backends, "backend");
            tracing::warn!("{name} is cut off: {what} {backends}; `ringway status` lists them");
        }
        others.into_iter().for_each(|line| self.log_limiter.tell(line));
    }
}

/// How many lines follow from what was told of an interface, by interface; and the others.
fn by_cause(
    lines: &[Line],
    was_told: impl Fn(&Line) -> bool,
) -> (BTreeMap<&str, usize>, Vec<&Line>) {
    let (caused, others): (Vec<&Line>, _) = lines.iter().partition(|line| was_told(line));
    let mut counts = BTreeMap::new();
    for interface in caused.iter().filter_map(|line| line.lost_by.as_deref()) {
        *counts.entry(interface).or_default() += 1;
    }
    (counts, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_one_cause_is_counted_by_it() {
        let line = |lost_by: Option<&str>| {
            let lost_by = lost_by.map(str::to_owned);
            Line { good: false, text: "web: backend 10.0.0.2:80: no way to it".into(), lost_by }
        };
        let lines = [Some("eth1"), Some("eth2"), None, Some("eth1"), Some("eth3")].map(line);
        let cut_off = |line: &Line| matches!(line.lost_by.as_deref(), Some("eth1" | "eth3"));
        let (counts, others) = by_cause(&lines, cut_off);
        assert_eq!(counts, [("eth1", 2), ("eth3", 1)].into());
        assert_eq!(others, [&lines[1], &lines[2]]);
    }

    #[test]
    fn a_crowd_is_counted_each_at_its_level() {
        let mut log_limiter = LogLimiter::default();
        assert_eq!((0..140).filter(|_| log_limiter.admits(true)).count(), SHOWN);
        let rest = log_limiter.rest();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert!(rest[0].good && rest[0].text.starts_with("and 132 more have recovered"));
        assert!(!log_limiter.admits(false));
        let rest = log_limiter.rest();
        assert_eq!((rest.len(), rest[0].good), (2, false), "{rest:?}");
        log_limiter.end();
        assert!(log_limiter.rest().is_empty() && log_limiter.admits(false));
    }
}
