//! Rules about this process.

use ringway_doctor::Outcome;

use super::Report;
use super::facts::Facts;

/// Privileges.
pub fn check(facts: &Facts, report: &mut Report) {
    let missing = match &facts.probe {
        Err(error) => {
            return report.push("privileges", Outcome::unknown("this process", error.as_str()));
        }
        Ok(probe) if probe.missing_capabilities.is_empty() => {
            return report.ok("privileges", "this process", "sufficient");
        }
        Ok(probe) => probe.missing_capabilities.join(", "),
    };
    let fix = "run as root, or grant these capabilities";
    report.push(
        "privileges",
        Outcome::crit("this process", format!("missing {missing}")).advice(fix),
    );
}
