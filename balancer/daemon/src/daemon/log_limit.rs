//! Lines of the log that come in crowds: a switch that dies costs many backends their way at once.

use tracing::Level;

use super::step::LogLine;

/// Lines in full between two calls of [`LogLimiter::end`]; the others are counted, and are there at
/// level debug.
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
    fn admits(&mut self, good: bool) -> bool {
        let room = self.shown < SHOWN;
        match (room, good) {
            (true, _) => self.shown += 1,
            (false, true) => self.good += 1,
            (false, false) => self.bad += 1,
        }
        room
    }

    /// Writes a line; one of a crowd in full, or only counted.
    pub(super) fn write(&mut self, line: &LogLine) {
        match !line.crowds || self.admits(line.level == Level::INFO) {
            true => line.write(),
            false => tracing::debug!("{}", line.text),
        }
    }

    /// The while is over: logs how many lines were not told in full.
    pub(super) fn end(&mut self) {
        std::mem::take(self).rest().iter().for_each(LogLine::write);
    }

    fn rest(&self) -> Vec<LogLine> {
        let line = |level, count, what| {
            let text = format!("and {count} more have {what}: `ringway status` lists them");
            LogLine::new(level, text)
        };
        let both = [
            (self.bad > 0).then(|| line(Level::WARN, self.bad, "failed")),
            (self.good > 0).then(|| line(Level::INFO, self.good, "recovered")),
        ];
        both.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_counted_each_at_its_level() {
        let mut log_limiter = LogLimiter::default();
        assert_eq!((0..140).filter(|_| log_limiter.admits(true)).count(), SHOWN);
        let rest = log_limiter.rest();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert_eq!(rest[0].level, Level::INFO);
        assert!(rest[0].text.starts_with("and 132 more have recovered"));
        assert!(!log_limiter.admits(false));
        let rest = log_limiter.rest();
        assert_eq!((rest.len(), rest[0].level), (2, Level::WARN), "{rest:?}");
        log_limiter.end();
        assert!(log_limiter.rest().is_empty() && log_limiter.admits(false));
    }
}
