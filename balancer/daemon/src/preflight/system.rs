//! Rules about this process.

use super::facts::Facts;
use super::{Report, Severity};

/// Privileges.
pub fn check(facts: &Facts, report: &mut Report) {
    let missing = match &facts.probe {
        Err(error) => {
            return report.push("privileges", "this process", Severity::Unknown, error, "");
        }
        Ok(probe) if probe.missing_capabilities.is_empty() => {
            return report.ok("privileges", "this process", "sufficient");
        }
        Ok(probe) => probe.missing_capabilities.join(", "),
    };
    let fix = "run as root, or grant these capabilities";
    report.push("privileges", "this process", Severity::Crit, format!("missing {missing}"), fix);
}
