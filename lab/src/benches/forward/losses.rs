//! Losses of a trial by their times, and which are too many.

use std::time::Duration;

/// A device that loses no more than this share of what is sent is not overloaded.
pub(super) const OVERLOADED: f64 = 0.01;

/// What was lost in a trial's last phase, by when the receiver saw it.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    /// Since the phase began, in order.
    pub at: Vec<Duration>,
    /// Until then the receiver could see losses.
    pub watched: Duration,
}

impl Losses {
    /// When the first time began in which nothing was lost for `quiet`.
    pub(super) fn ended(&self, quiet: Duration) -> Option<Duration> {
        let begins = [Duration::ZERO].into_iter().chain(self.at.iter().copied());
        let ends = self.at.iter().copied().chain([self.watched]);
        let mut pauses = begins.zip(ends);
        pauses.find(|(begin, end)| end.saturating_sub(*begin) >= quiet).map(|(begin, _)| begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(at: &[u64], watched: u64) -> Option<u64> {
        let ms = Duration::from_millis;
        let losses = Losses { at: at.iter().copied().map(ms).collect(), watched: ms(watched) };
        losses.ended(ms(100)).map(|time| time.as_millis() as u64)
    }

    #[test]
    fn losses_end_where_none_follows_for_long_enough() {
        assert_eq!(ended(&[], 500), Some(0));
        assert_eq!(ended(&[1, 2, 90], 500), Some(90));
        assert_eq!(ended(&[1, 101, 300], 500), Some(1), "one that is seldom is of the load");
        assert_eq!(ended(&[1, 100, 199, 298, 397, 480], 500), None);
        assert_eq!(ended(&[5], 60), None, "nothing came after 60 ms");
        assert_eq!(ended(&[], 0), None);
    }
}
