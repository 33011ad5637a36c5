//! What all rules together say.

use serde::{Deserialize, Serialize};

use crate::check::{Change, Evidence, MACHINE};
use crate::{Check, Facts, Outcome, State};

/// One thing looked at, with all that is known about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The check's name.
    pub check: String,
    /// Its number.
    pub number: u8,
    /// What was looked at.
    pub subject: String,
    /// How it came out.
    pub severity: State,
    /// What was found; of `unknown` why it is not known.
    pub found: String,
    /// Where, and the value.
    pub evidence: Vec<Evidence>,
    /// What must hold.
    pub rule: String,
    /// Where the rule comes from.
    pub source: String,
    /// Why it matters.
    pub why: String,
    /// Commands, each with the one that takes it back.
    pub changes: Vec<Change>,
    /// What to do that is no command.
    pub advice: Option<String>,
}

/// All of them, the worst first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In that order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many came out so.
    pub fn count(&self, state: State) -> usize {
        self.findings.iter().filter(|finding| finding.severity == state).count()
    }

    /// Those worth a look: info, warn and crit.
    pub fn symptoms(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity > State::Unknown)
    }
}

/// Asks these rules.
pub fn judge<'a>(checks: impl IntoIterator<Item = &'a Check>, facts: &Facts) -> Report {
    let mut findings: Vec<Finding> =
        checks.into_iter().flat_map(|check| ask(check, facts)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Report { findings }
}

fn ask(check: &Check, facts: &Facts) -> Vec<Finding> {
    let outcomes = match (check.look)(facts) {
        Ok(none) if none.is_empty() => {
            vec![Outcome::ok(MACHINE, "there is nothing here that this is about")]
        }
        Ok(outcomes) => outcomes,
        Err(why) => vec![Outcome::unknown(MACHINE, why)],
    };
    outcomes.into_iter().map(|outcome| finding(check, outcome)).collect()
}

fn finding(check: &Check, outcome: Outcome) -> Finding {
    Finding {
        check: check.name.into(),
        number: check.number,
        subject: outcome.subject,
        severity: outcome.state,
        found: outcome.found,
        evidence: outcome.evidence,
        rule: check.rule.into(),
        source: check.source.into(),
        why: check.why.into(),
        changes: outcome.changes,
        advice: outcome.advice,
    }
}
