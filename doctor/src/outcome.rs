//! The outcome of a check for one thing.

use std::fmt::{self, Display, Formatter};

use ringway_host::{Fix, Interface};
use serde::{Deserialize, Serialize};

/// A rule's outcomes, one for each thing looked at; none where there is nothing to look at.
pub type Looked = Result<Vec<Outcome>, Unknown>;

/// Why something is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown(pub String);

impl From<String> for Unknown {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<&str> for Unknown {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// How something came out. Not knowing is never the same as all being well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Could not be found out.
    Unknown,
    Info,
    /// Works, but worse than it could.
    Warn,
    /// Loses packets or connections, or is about to.
    Crit,
}

impl Severity {
    /// The word shown to people and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Unknown => "unknown",
            Severity::Info => "info",
            Severity::Warn => "warn",
            Severity::Crit => "crit",
        }
    }
}

/// A value that was read, and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// A file, or a command that shows the same.
    pub source: String,
    pub value: String,
}

/// A change, and the one that takes it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReversibleFix {
    pub fix: Fix,
    /// Sets what was read.
    pub undo: Fix,
}

/// A rule's result for one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// An interface, a socket; `this machine`.
    pub subject: String,
    /// The severity of the finding.
    pub severity: Severity,
    /// The finding, in one sentence.
    pub found: String,
    pub evidence: Vec<Evidence>,
    pub changes: Vec<ReversibleFix>,
    /// A remedy that has no way back: advice, or a command.
    pub advice: Option<Fix>,
    /// `FILE:LINE:COLUMN` in the configuration, where that is at fault.
    pub place: Option<String>,
    /// The check that tells of the cause, where it finds that.
    pub part_of: Option<&'static str>,
    /// Unknown to every start on such a machine, and no news there.
    pub lasting: bool,
}

/// The subject of an outcome about no single thing.
pub const MACHINE: &str = "this machine";

impl Outcome {
    /// Says it of a subject.
    pub fn new(severity: Severity, subject: impl Into<String>, found: impl Into<String>) -> Self {
        let (subject, found) = (subject.into(), found.into());
        let (evidence, changes, advice) = (Vec::new(), Vec::new(), None);
        let (place, part_of, lasting) = (None, None, false);
        Self { subject, severity, found, evidence, changes, advice, place, part_of, lasting }
    }

    /// As it should be.
    pub fn ok(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(Severity::Ok, subject, found)
    }

    pub fn info(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(Severity::Info, subject, found)
    }

    /// Works, but worse than it could.
    pub fn warn(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(Severity::Warn, subject, found)
    }

    /// Loses packets or connections, or is about to.
    pub fn crit(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(Severity::Crit, subject, found)
    }

    pub fn unknown(subject: impl Into<String>, why: impl Into<Unknown>) -> Self {
        Self::new(Severity::Unknown, subject, why.into().0)
    }

    /// Adds what was read.
    pub fn saw(mut self, source: impl Into<String>, value: impl ToString) -> Self {
        self.evidence.push(Evidence { source: source.into(), value: value.to_string() });
        self
    }

    /// Adds what a counter has counted between the two looks.
    pub fn counted(self, source: impl std::fmt::Display, delta: impl ToString) -> Self {
        self.saw(format!("{source}, between the two looks"), delta)
    }

    /// Adds what to change.
    pub fn change(mut self, change: ReversibleFix) -> Self {
        self.changes.push(change);
        self
    }

    /// Adds a change of a kernel setting, and as evidence what it is now.
    pub fn sets(mut self, change: ReversibleFix) -> Self {
        if let Some((key, now)) = change.undo.setting() {
            self = self.saw(format!("/proc/sys/{key}"), now);
        }
        self.change(change)
    }

    /// Adds a change, and what takes it back.
    pub fn fix(self, fix: Fix, undo: Fix) -> Self {
        self.change(ReversibleFix { fix, undo })
    }

    /// Adds writing a line into a file, and as evidence what it holds now.
    pub fn write(self, path: &str, to: impl ToString, now: impl ToString) -> Self {
        let now = now.to_string();
        self.saw(path, &now).fix(Fix::write(path, to), Fix::write(path, now))
    }

    /// Adds settings of a device for ethtool, as in `("-K", "eth0", "lro off", "lro on")`.
    pub fn ethtool(
        self,
        option: &'static str,
        device: &str,
        to: impl AsRef<str>,
        now: impl AsRef<str>,
    ) -> Self {
        self.fix(Fix::ethtool(option, device, to), Fix::ethtool(option, device, now))
    }

    /// Says what to do that has no way back.
    pub fn advice(mut self, advice: impl Into<Fix>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The whole remedy: commands, then advice.
    pub fn remedy(&self) -> Fix {
        let changes = self.changes.iter().map(|change| &change.fix);
        let mut fixes: Vec<Fix> = changes.chain(&self.advice).cloned().collect();
        if fixes.len() > 1 { Fix::Sequence(fixes) } else { fixes.pop().unwrap_or_default() }
    }

    /// As it should be, unless something was seen.
    pub fn or_ok(self, found: impl Into<String>) -> Self {
        if self.evidence.is_empty() { Self::ok(self.subject, found) } else { self }
    }

    /// A consequence of another check's finding: it is reported there, where that check finds it.
    pub fn part_of(mut self, check: &'static str) -> Self {
        self.part_of = Some(check);
        self
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        // Many sentences name their subject themselves.
        if !self.found.contains(&self.subject) {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.found)?;
        let remedy = self.remedy();
        if remedy.is_empty() { Ok(()) } else { write!(f, "\n  to do: {remedy}") }
    }
}

impl From<Outcome> for Looked {
    fn from(outcome: Outcome) -> Self {
        Ok(vec![outcome])
    }
}

/// Checks each interface; an unknown one does not affect the others.
pub fn each_interface<'a>(
    cards: impl IntoIterator<Item = &'a Interface>,
    check: impl Fn(&'a Interface, &'a str) -> Result<Outcome, Unknown>,
) -> Vec<Outcome> {
    each(cards, |card| card.link.name.clone(), |card| check(card, &card.link.name))
}

/// Checks each thing of a list; an unknown one does not affect the others.
pub fn each<T>(
    things: impl IntoIterator<Item = T>,
    subject: impl Fn(&T) -> String,
    check: impl Fn(&T) -> Result<Outcome, Unknown>,
) -> Vec<Outcome> {
    let one = |thing: T| check(&thing).unwrap_or_else(|why| Outcome::unknown(subject(&thing), why));
    things.into_iter().map(one).collect()
}
