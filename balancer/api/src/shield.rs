//! What is typed about the shield at run time: prefixes that are blocked or allowed, and another
//! mode for a time. Kept in the state directory, without what has run out.

mod entries;

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use ringway_abi::raw::RW_SHIELD_RUNTIME;
use ringway_config::{ListAction, ShieldMode};
use ringway_plan::prefix_list::Prefix;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::documents::named;
use crate::error::Error;
use crate::state_dir::StateDir;

pub use entries::Entries;

/// Name of the document in the state directory.
pub const DOCUMENT: &str = "shield";
/// Name and version of its schema.
pub const SCHEMA: &str = "ringway.shield-runtime/1";
/// Prefixes of one action that there may be at once.
pub const MAX_ENTRIES: usize = RW_SHIELD_RUNTIME as usize;
/// Longest reason, in bytes.
pub const MAX_REASON: usize = 128;

/// A prefix that was blocked or allowed at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShieldEntry {
    #[serde(with = "prefix_text")]
    pub prefix: Prefix,
    #[serde(with = "named")]
    pub action: ListAction,
    /// Until when; absent: until `ringway unblock`.
    #[serde(default)]
    pub until: Option<Timestamp>,
    #[serde(default)]
    pub reason: String,
    /// When it was typed.
    #[serde(default)]
    pub since: Timestamp,
    /// `until` on the clock that nobody sets, once a daemon has it.
    #[serde(skip)]
    pub ends: Option<Instant>,
}

/// Another mode than that of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeOverride {
    #[serde(with = "named")]
    pub mode: ShieldMode,
    pub until: Timestamp,
    /// As [`ShieldEntry::ends`].
    #[serde(skip)]
    pub ends: Option<Instant>,
}

/// A change at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "change")]
pub enum ShieldChange {
    /// Block or allow; in place of what was said of the same prefix.
    Add(ShieldEntry),
    /// The same of a prefix that holds all clients, or a backend.
    Force(ShieldEntry),
    /// Neither block nor allow this prefix any more.
    Remove {
        #[serde(with = "prefix_text")]
        prefix: Prefix,
    },
    /// Another mode for every packet; none: the configuration's again.
    Mode { mode: Option<ModeOverride> },
}

impl ShieldChange {
    /// What was done, for the log. `was`: what was said of its prefix before.
    pub fn outcome(&self, was: Option<&ShieldEntry>) -> String {
        match (self, was) {
            (ShieldChange::Remove { prefix }, Some(was)) => {
                format!("{prefix} is no longer {}", done(was.action))
            }
            _ => self.to_string(),
        }
    }

    /// The prefix that it is about.
    pub fn prefix(&self) -> Option<Prefix> {
        match self {
            ShieldChange::Add(entry) | ShieldChange::Force(entry) => Some(entry.prefix),
            ShieldChange::Remove { prefix } => Some(*prefix),
            ShieldChange::Mode { .. } => None,
        }
    }
}

/// All that is in force of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeShield {
    pub schema: String,
    pub entries: Entries,
    #[serde(default)]
    pub mode: Option<ModeOverride>,
}

impl Default for RuntimeShield {
    fn default() -> RuntimeShield {
        RuntimeShield { schema: SCHEMA.into(), entries: Entries::default(), mode: None }
    }
}

impl fmt::Display for ShieldChange {
    /// For the log: on what, and what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShieldChange::Add(entry) | ShieldChange::Force(entry) => {
                let until = entry.until.map_or_else(String::new, |until| format!(" until {until}"));
                let colon = if entry.reason.is_empty() { "" } else { ": " };
                let ShieldEntry { prefix, action, reason, .. } = entry;
                write!(f, "{prefix} is {}{until}{colon}{reason}", done(*action))
            }
            ShieldChange::Remove { prefix } => {
                write!(f, "{prefix} is no longer blocked or allowed")
            }
            ShieldChange::Mode { mode: Some(mode) } => {
                write!(f, "the shield's mode is {} until {}", mode.mode.name(), mode.until)
            }
            ShieldChange::Mode { mode: None } => {
                f.write_str("the shield's mode is the configuration's")
            }
        }
    }
}

/// "blocked", "allowed"
pub const fn done(action: ListAction) -> &'static str {
    match action {
        ListAction::Block => "blocked",
        ListAction::Allow => "allowed",
    }
}

impl RuntimeShield {
    /// As it is kept, without what has run out; nothing when nothing is.
    ///
    /// # Errors
    /// The state directory cannot be used, or what is there is of another version.
    pub fn load(state: &StateDir, now: Instant, wall: SystemTime) -> Result<RuntimeShield, Error> {
        let mut kept: RuntimeShield = state.read(DOCUMENT, SCHEMA)?.unwrap_or_default();
        let with_end = |entry: &ShieldEntry| {
            let ends = entry.until.map(|until| end(until, now, wall));
            ShieldEntry { ends, ..entry.clone() }
        };
        let entries = kept.entries.iter().map(with_end);
        kept.entries = entries.filter(|entry| lasts(entry.ends, now)).collect();
        kept.mode =
            kept.mode.map(|mode| ModeOverride { ends: Some(end(mode.until, now, wall)), ..mode });
        kept.mode = kept.mode.filter(|mode| lasts(mode.ends, now));
        Ok(kept)
    }

    /// What the packet path still has, where nothing else is known: prefixes, whether they are
    /// allowed, and the mode, each with the time that is left.
    pub fn recovered(
        prefixes: impl IntoIterator<Item = (Prefix, ListAction, Option<Duration>)>,
        mode: Option<(ShieldMode, Duration)>,
        now: Instant,
        wall: SystemTime,
    ) -> RuntimeShield {
        let since = Timestamp(wall);
        let entry = |(prefix, action, left): (Prefix, ListAction, Option<Duration>)| ShieldEntry {
            prefix,
            action,
            until: left.map(|left| Timestamp(wall + left)),
            reason: String::new(),
            since,
            ends: left.map(|left| now + left),
        };
        let entries = prefixes.into_iter().map(entry).collect();
        let mode = mode.map(|(mode, left)| ModeOverride {
            mode,
            until: Timestamp(wall + left),
            ends: Some(now + left),
        });
        RuntimeShield { entries, mode, ..RuntimeShield::default() }
    }

    /// What was said of exactly this prefix.
    pub fn of(&self, prefix: &Prefix) -> Option<&ShieldEntry> {
        self.entries.get(prefix)
    }

    /// How many prefixes have this action.
    pub fn count(&self, action: ListAction) -> usize {
        self.entries.count(action)
    }

    /// It with one change.
    ///
    /// # Errors
    /// There is no room for one more prefix, none to remove, or a time is past.
    pub fn with(
        &self,
        change: &ShieldChange,
        now: Instant,
        wall: SystemTime,
    ) -> Result<RuntimeShield, Error> {
        let mut new = self.clone();
        let ends = |until: Timestamp| {
            let ends = end(until, now, wall);
            lasts(Some(ends), now).then_some(ends).ok_or_else(|| {
                Error::configuration(
                    format!("{until} is past: it is {} now", Timestamp(wall)),
                    "name a length of time with --for",
                )
            })
        };
        match change {
            ShieldChange::Add(entry) | ShieldChange::Force(entry) => {
                let ends = entry.until.map(ends).transpose()?;
                new.add(ShieldEntry { since: Timestamp(wall), ends, ..entry.clone() })?;
            }
            ShieldChange::Remove { prefix } => {
                if !new.entries.remove(prefix) {
                    return Err(self.not_there(prefix));
                }
            }
            ShieldChange::Mode { mode } => {
                let with_end = |mode: ModeOverride| {
                    ends(mode.until).map(|ends| ModeOverride { ends: Some(ends), ..mode })
                };
                new.mode = mode.map(with_end).transpose()?;
            }
        }
        Ok(new)
    }

    fn add(&mut self, entry: ShieldEntry) -> Result<(), Error> {
        if entry.reason.len() > MAX_REASON || entry.reason.contains(is_unseen) {
            return Err(Error::configuration(
                format!(
                    "the reason is longer than {MAX_REASON} bytes, or has characters that cannot be seen"
                ),
                "write a shorter one, in one line",
            ));
        }
        let has_action = self.of(&entry.prefix).is_some_and(|it| it.action == entry.action);
        if !has_action && self.count(entry.action) >= MAX_ENTRIES {
            return Err(Error::configuration(
                format!(
                    "{MAX_ENTRIES} prefixes are {} at run time, and there is no room for more",
                    done(entry.action)
                ),
                "write a list file: [[shield.list]] in the configuration takes a million prefixes",
            ));
        }
        self.entries.insert(entry);
        Ok(())
    }

    fn not_there(&self, prefix: &Prefix) -> Error {
        let around = self.entries.around(*prefix).last();
        let remedy = match around {
            Some(ShieldEntry { prefix, .. }) => {
                format!("{prefix} covers it: `ringway unblock {prefix}`")
            }
            None => "`ringway blocked` lists what is".into(),
        };
        Error::configuration(
            format!("{prefix} was neither blocked nor allowed at run time"),
            remedy,
        )
    }

    /// It without what has run out, and the prefixes that have; `None`: nothing has.
    pub fn without_ended(&self, now: Instant) -> Option<(RuntimeShield, Vec<Prefix>)> {
        let mut new = self.clone();
        let ended = new.entries.remove_ended(now);
        new.mode = new.mode.filter(|mode| lasts(mode.ends, now));
        (!ended.is_empty() || new.mode != self.mode).then_some((new, ended))
    }
}

/// Control characters, and those that end a line or turn the direction of the text around them: a
/// terminal or a log shows another text than the one that was typed. Unicode's Cc, Cf, Zl and Zp.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

/// When a moment of the wall clock comes, on the clock that nobody sets.
fn end(until: Timestamp, now: Instant, wall: SystemTime) -> Instant {
    /// An `Instant` further off may not be one.
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    now + until.0.duration_since(wall).unwrap_or_default().min(LONGEST)
}

fn lasts(ends: Option<Instant>, now: Instant) -> bool {
    ends.is_none_or(|ends| ends > now)
}

/// Prefixes as text: `192.0.2.0/24`.
pub(crate) mod prefix_text {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(prefix: &Prefix, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(prefix)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Prefix, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests;
