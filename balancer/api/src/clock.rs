//! Moments as people and JSON read them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Seconds since 1970 (UTC); 0 before.
pub fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The moment `seconds` after 1970 (UTC); 1970 where there is none so late.
pub fn from_unix_s(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

/// RFC 3339 in UTC, to the second: `2026-01-31T12:00:00Z`. 1970 for what has no date there.
pub fn rfc3339(at: SystemTime) -> String {
    let seconds = i64::try_from(unix_s(at)).unwrap_or(0);
    let date = OffsetDateTime::from_unix_timestamp(seconds);
    date.unwrap_or(OffsetDateTime::UNIX_EPOCH).format(&Rfc3339).unwrap_or_default()
}

/// Reads what [`rfc3339`] wrote; `None` for anything else.
pub fn from_rfc3339(text: &str) -> Option<SystemTime> {
    let date = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(date.unix_timestamp()).ok().map(from_unix_s)
}

/// A moment that documents write as [`rfc3339`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp(pub SystemTime);

impl Default for Timestamp {
    fn default() -> Self {
        Timestamp(UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&rfc3339(self.0))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let moment = from_rfc3339(&text).map(Timestamp);
        moment.ok_or_else(|| D::Error::custom(format!("{text:?} is no moment in RFC 3339")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(from_unix_s(seconds)), want);
            assert_eq!(from_rfc3339(want), Some(from_unix_s(seconds)));
        }
        assert_eq!(rfc3339(from_unix_s(u64::MAX)), "1970-01-01T00:00:00Z");
    }
}
