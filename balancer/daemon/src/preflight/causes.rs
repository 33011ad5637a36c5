//! One cause, told once: findings of one check that one remedy mends.

use std::path::Path;

use ringway_api::error::{Error, Kind};
use ringway_api::text::listed;
use ringway_doctor::{Finding, Report, Severity};
use ringway_kernel::DEFAULT_BPFFS;

use super::names;

/// Subjects that a line names.
const NAMED: usize = 3;
/// Failures with one remedy that a refusal shows.
const SHOWN: usize = 3;

/// Findings of one check and severity with one remedy; without a remedy, with one reason.
#[derive(Clone, Debug)]
pub struct Cause<'r> {
    /// The first of them.
    pub first: &'r Finding,
    /// All of them, in the order of the report.
    pub all: Vec<&'r Finding>,
}

impl Cause<'_> {
    pub fn subjects(&self) -> Vec<String> {
        self.all.iter().map(|finding| finding.outcome.subject.clone()).collect()
    }

    /// The same in short.
    pub fn named(&self) -> String {
        listed(&self.subjects(), NAMED)
    }
}

/// The causes of these findings, in the order of the report.
pub fn causes(report: &Report, which: impl Fn(&Finding) -> bool) -> Vec<Cause<'_>> {
    let mut causes: Vec<Cause<'_>> = Vec::new();
    for finding in report.findings.iter().filter(|finding| which(finding)) {
        match causes.iter_mut().find(|cause| alike(cause.first, finding)) {
            Some(cause) => cause.all.push(finding),
            None => causes.push(Cause { first: finding, all: vec![finding] }),
        }
    }
    causes
}

/// Why a start, or a reload, is refused; `None` when nothing forbids it.
pub fn refusal(report: &Report) -> Option<Error> {
    let causes = causes(report, |finding| finding.outcome.severity == Severity::Crit);
    if causes.is_empty() {
        return None;
    }
    let mut lines = Vec::new();
    for Cause { all, .. } in &causes {
        lines.extend(all.iter().take(SHOWN).map(|finding| finding.outcome.to_string()));
        if let Some(more) = all.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            lines.push(format!("  and {more} more with the same remedy: `ringway check --host`"));
        }
    }
    if report.of(Severity::Crit).any(|finding| finding.check == names::FOREIGN_XDP) {
        // It may be our own.
        let below = ringway_kernel::require_reachable(Path::new(DEFAULT_BPFFS));
        lines.extend(below.err().map(|error| error.to_string()));
    }
    let at_fault = report.of(Severity::Crit).any(|finding| finding.outcome.place.is_some());
    let kind = if at_fault { Kind::Configuration } else { Kind::Failed };
    let what = format!("this machine is not fit for this configuration:\n{}", lines.join("\n"));
    Some(Error { kind, what, remedy: Box::default() })
}

fn alike(a: &Finding, b: &Finding) -> bool {
    let (mends, found) = (a.outcome.remedy(), &a.outcome.found);
    a.check == b.check
        && a.outcome.severity == b.outcome.severity
        && mends == b.outcome.remedy()
        && (!mends.is_empty() || *found == b.outcome.found)
}

#[cfg(test)]
mod tests {
    use ringway_doctor::{MACHINE, Outcome};

    use super::*;

    #[test]
    fn one_remedy_is_one_cause() {
        let mut report = Report::default();
        for n in 0..36 {
            let reason = format!("room for {} bytes", 1480 - n % 4);
            report.push(
                "mtu",
                Outcome::warn(format!("web 10.0.0.{n}:80"), reason).advice("mtu 1552"),
            );
        }
        report.push("mtu", Outcome::warn("eth0", "room").advice("mtu 9000"));
        report.push("facts", Outcome::warn(MACHINE, "one"));
        report.push("facts", Outcome::warn(MACHINE, "another"));
        let causes = causes(&report, |finding| finding.outcome.severity == Severity::Warn);
        let sizes: Vec<usize> = causes.iter().map(|cause| cause.all.len()).collect();
        assert_eq!(sizes, [36, 1, 1, 1]);
        let named = "web 10.0.0.0:80, web 10.0.0.1:80, web 10.0.0.2:80 and 33 more";
        assert_eq!(causes[0].named(), named);
        assert!(refusal(&report).is_none());
    }

    #[test]
    fn a_refusal_shows_the_first_failures_of_a_cause() {
        let mut report = Report::default();
        for n in 0..9 {
            let reason = format!("10.0.0.{n} is reached by lan");
            report
                .push(names::ROUTE, Outcome::crit(format!("10.0.0.{n}"), reason).advice("add lan"));
        }
        let refusal = refusal(&report).expect("nine failures").to_string();
        assert_eq!(refusal.lines().count(), 8, "{refusal}");
        assert!(refusal.ends_with("and 6 more with the same remedy: `ringway check --host`"));
    }
}
