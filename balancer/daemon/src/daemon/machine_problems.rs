//! Problems and findings of what preflight found wrong with the machine.

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::{ProblemKind, Subject};
use ringway_doctor::{Finding, Outcome, Report, Severity};

use crate::preflight::{self, Cause, names};

/// Failures since the start; the daemon watches the rest itself.
pub fn problems(report: &Report) -> Vec<Problem> {
    failed(report, &[names::ANSWERS, names::FORWARDING, names::NAT_ADDRESS, names::NAT_PORTS])
}

/// Those of them that are the whole node's.
pub fn unready(report: &Report) -> Vec<Problem> {
    failed(report, &[names::FORWARDING, names::NAT_ADDRESS, names::NAT_PORTS])
}

fn failed(report: &Report, checks: &[&str]) -> Vec<Problem> {
    let watched = |finding: &Finding| {
        finding.outcome.severity == Severity::Crit && checks.contains(&finding.check)
    };
    preflight::causes(report, watched).iter().map(problem).collect()
}

/// Warnings, then unknowns; each cause once. The ways to the backends are shown with them, and
/// interfaces and what forwards between them are watched by the daemon itself.
pub fn findings(report: &Report) -> Vec<Problem> {
    let open = |finding: &Finding| {
        matches!(finding.outcome.severity, Severity::Unknown | Severity::Warn)
            && !matches!(
                finding.check,
                names::INTERFACE | names::FORWARD | names::NEIGHBOUR | names::ROUTE
            )
    };
    let mut causes = preflight::causes(report, open);
    causes.sort_by_key(|cause| cause.first.outcome.severity == Severity::Unknown);
    causes.iter().map(problem).collect()
}

/// One cause, with all that it is about.
pub fn problem(cause: &Cause<'_>) -> Problem {
    let Finding { check, outcome, .. } = cause.first;
    let Outcome { severity, found, .. } = outcome;
    let prefix = if *severity == Severity::Unknown { "not known: " } else { "" };
    let trouble = match *check {
        _ if *severity == Severity::Unknown => ProblemKind::CheckHostUnknown,
        _ if *severity != Severity::Crit => ProblemKind::CheckHost,
        names::ANSWERS | names::NAT_ADDRESS => ProblemKind::AddressUnanswered,
        names::NAT_PORTS => ProblemKind::NatPorts,
        names::FORWARDING => ProblemKind::Forwarding,
        _ => ProblemKind::CheckHost,
    };
    let subjects = cause.subjects();
    let error = format!("{}: {prefix}{found}", subjects.join(", "));
    let subject = Subject::Check(check, outcome.subject.clone());
    Problem { subject, subjects, ..trouble.problem(error, outcome.remedy()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_is_said_once() {
        let mut report = Report::default();
        for name in ["wan", "b1"] {
            report.push("veth-peer", Outcome::unknown(name, "its far end").advice("look there"));
        }
        report.push(names::NEIGHBOUR, Outcome::unknown("web", "no MAC address yet"));
        report.push(names::INTERFACE, Outcome::warn("b1", "it has no carrier"));
        report.push(names::FORWARD, Outcome::warn("b1", "its state in br0 is blocking"));
        report.push("mtu", Outcome::warn("web", "too little room"));
        report.push("mtu", Outcome::warn("api", "no room at all"));
        report.push(names::NAT_ADDRESS, Outcome::crit("10.0.0.9", "nobody answers"));
        report.ok("btf", "kernel", "there");
        let said = |problems: Vec<Problem>| -> Vec<String> {
            problems.into_iter().map(|problem| problem.error).collect()
        };
        let found = findings(&report);
        let kinds: Vec<ProblemKind> = found.iter().map(|finding| finding.kind).collect();
        assert_ne!(found[0].identity(), found[1].identity());
        let [warns, unknown] = [ProblemKind::CheckHost, ProblemKind::CheckHostUnknown];
        assert_eq!(kinds, [warns, warns, unknown]);
        assert_eq!(
            said(found),
            ["web: too little room", "api: no room at all", "wan, b1: not known: its far end"]
        );
        assert_eq!(said(problems(&report)), ["10.0.0.9: nobody answers"]);
    }
}
