//! What must be true of the machine before the gateway may start, and what had better be.
//!
//! `MachineState` is read once; the rules are pure functions of it and the configuration.

mod causes;
mod dsr;
mod firewall;
mod gro;
mod host;
mod interfaces;
mod machine_state;
mod mtu;
pub(crate) mod names;
mod nat;
mod passing;
mod services;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_all;

use std::collections::BTreeSet;

use ringway_config::{Config, Located};
use ringway_doctor::{MACHINE, Outcome, Program, Severity};
use ringway_host::Fix;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

pub use causes::Cause;
pub(crate) use machine_state::own_links;
pub use machine_state::{MachineState, compiler};
pub(crate) use services::covers;

/// Looks at this machine, in the calling thread's network namespace. Changes nothing.
pub fn run(config: &Config) -> Report {
    with_needs(config, judge(config, &MachineState::gather(config)))
}

fn with_needs(config: &Config, mut report: Report) -> Report {
    for error in crate::health::unfit(config) {
        report.push("check-needs", Outcome::crit("health checks", &error.message));
        let place = format!("{}:{}:{}", error.file, error.line, error.column);
        report.findings.last_mut().map(|finding| finding.place.replace(place));
    }
    report
}

/// Looks at what takes time or asks others on the link, too: for an administrator. Of the host
/// itself the doctor tells, under its profile balancer: asked about the interfaces that are
/// returned beside the findings. Changes nothing.
pub fn run_all(config: &Config) -> (Report, Program) {
    let facts = MachineState::gather_all(config);
    let report = with_needs(config, about(config, &facts, Report::default()));
    (report, host::program(config, &facts))
}

/// Interfaces on which the program stays only when an administrator confirms it: see
/// [`crate::commit_confirm`].
pub fn needs_confirm(config: &Config) -> BTreeSet<String> {
    match config.node.allow_default_route {
        true => guarded_by(config, &MachineState::of_links()),
        // Without, no start comes this far.
        false => BTreeSet::new(),
    }
}

fn guarded_by(config: &Config, facts: &MachineState) -> BTreeSet<String> {
    if facts.first_namespace == Some(false) {
        return BTreeSet::new();
    }
    let needs_confirm = |name: &&str| {
        // What cannot be seen may be the only way in.
        !facts.errors.is_empty()
            || facts
                .link(name)
                .is_some_and(|link| interfaces::carries_default(facts, link).is_some())
    };
    let names = config.node.interfaces.iter().map(|name| name.as_str());
    names.filter(needs_confirm).map(str::to_owned).collect()
}

/// What these facts mean for this configuration.
pub fn judge(config: &Config, facts: &MachineState) -> Report {
    let mut report = Report::default();
    host::check(config, facts, &mut report);
    about(config, facts, report)
}

/// What they mean but for the host's own properties.
fn about(config: &Config, facts: &MachineState, mut report: Report) -> Report {
    for error in &facts.errors {
        report.push("facts", Outcome::unknown(MACHINE, error.as_str()));
    }
    report.blind = facts.blind;
    host::privileges(facts, &mut report);
    nat::check(config, facts, &mut report);
    interfaces::check(config, facts, &mut report);
    gro::check(config, facts, &mut report);
    services::check(config, facts, &mut report);
    dsr::checks(config, facts, &mut report);
    passing::check(config, facts, &mut report);
    mtu::check(config, facts, &mut report);
    dsr::check(config, facts, &mut report);
    firewall::check(config, facts, &mut report);
    report
}

/// How a finding is called here: what is critical forbids a start.
pub fn word(severity: Severity) -> &'static str {
    if severity == Severity::Crit { "fail" } else { severity.as_str() }
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of check, such as `xdp-mode`.
    pub check: &'static str,
    /// How it came out; nothing here is `Info`.
    pub outcome: Outcome,
    /// `FILE:LINE:COLUMN` in the configuration, when that is at fault.
    pub place: Option<String>,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Outcome { subject, severity, found, .. } = &self.outcome;
        let mut fields = serializer.serialize_struct("Finding", 6)?;
        fields.serialize_field("check", self.check)?;
        fields.serialize_field("subject", subject)?;
        fields.serialize_field("state", word(*severity))?;
        fields.serialize_field("reason", found)?;
        fields.serialize_field("fix", &self.outcome.remedy())?;
        fields.serialize_field("place", &self.place)?;
        fields.end()
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        self.outcome.fmt(f)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of the packet path.
    pub findings: Vec<Finding>,
    /// Not all could be asked: what is said to be missing may be there.
    #[serde(skip)]
    pub blind: bool,
}

impl Report {
    /// Adds one that is as it should be.
    pub fn ok(&mut self, check: &'static str, subject: &str, found: impl Into<String>) {
        self.push(check, Outcome::ok(subject, found));
    }

    pub fn push(&mut self, check: &'static str, outcome: Outcome) {
        self.findings.push(Finding { check, outcome, place: None });
    }

    /// Adds a failure for which a value of the configuration is to blame.
    pub fn fail_at<T: std::fmt::Display>(
        &mut self,
        config: &Config,
        value: &Located<T>,
        check: &'static str,
        found: impl Into<String>,
        fix: impl Into<Fix>,
    ) {
        self.push(check, Outcome::crit(value.to_string(), found).advice(fix));
        self.place_last(config, value);
    }

    /// Says which value of the configuration the last finding is about.
    pub fn place_last<T>(&mut self, config: &Config, value: &Located<T>) {
        let error = config.error_at(value, "");
        if let Some(finding) = self.findings.last_mut().filter(|_| error.line > 0) {
            finding.place = Some(format!("{}:{}:{}", error.file, error.line, error.column));
        }
    }

    /// Those that forbid a start.
    pub fn failures(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.outcome.severity == Severity::Crit)
    }

    /// The worst severity among them.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.outcome.severity).max().unwrap_or(Severity::Ok)
    }
}
