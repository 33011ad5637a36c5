//! A comparison with the findings of an earlier run.

use serde::{Deserialize, Serialize};

use crate::{Origin, Other, Report, Rule, Severity};

/// As much of an earlier run's JSON as is compared.
#[derive(Debug, Clone, Deserialize)]
pub struct Earlier {
    pub schema: String,
    #[serde(flatten)]
    pub origin: Origin,
    pub findings: Vec<EarlierFinding>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct EarlierFinding {
    check: String,
    subject: String,
    severity: Severity,
    #[serde(default)]
    also: Vec<Other>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Named {
    pub check: String,
    pub subject: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Were there, and are gone.
    pub fixed: Vec<Named>,
    /// Were not there.
    pub new: Vec<Named>,
    /// Were there, and are.
    pub still: Vec<Named>,
    /// Were there; whether they are cannot be told now.
    pub unknown: Vec<Named>,
    /// Were there; nobody asked this time.
    pub not_asked: Vec<Named>,
}

impl Comparison {
    /// Between an earlier run and this one. What was told together with another finding was, or is,
    /// there all the same.
    pub fn between(earlier: &[EarlierFinding], now: &Report, asked: &[&Rule]) -> Self {
        let mut changes = Self::default();
        for was in earlier.iter().filter(|finding| finding.severity > Severity::Unknown) {
            let same_check = || now.findings.iter().filter(|finding| finding.check == was.check);
            let is = same_check().find(|finding| finding.outcome.subject == was.subject);
            let whole = || same_check().all(|one| one.outcome.severity != Severity::Unknown);
            let told = |other: &Other| other.is(&was.check, &was.subject);
            let folded = now.symptoms().any(|finding| finding.also.iter().any(told));
            let to = match is.map(|finding| finding.outcome.severity) {
                _ if asked.iter().all(|check| check.name != was.check) => &mut changes.not_asked,
                None if folded => &mut changes.still,
                Some(Severity::Unknown) => &mut changes.unknown,
                Some(Severity::Ok) => &mut changes.fixed,
                Some(_) => &mut changes.still,
                // Its subject is there no more, or nothing to find fault with.
                None if same_check().next().is_some() && whole() => &mut changes.fixed,
                None => &mut changes.unknown,
            };
            to.push(Named { check: was.check.clone(), subject: was.subject.clone() });
        }
        let bad = || earlier.iter().filter(|finding| finding.severity > Severity::Unknown);
        for is in now.symptoms() {
            let (check, subject) = (is.check, &is.outcome.subject);
            let to = if bad().any(|was| was.also.iter().any(|one| one.is(check, subject))) {
                &mut changes.still
            } else {
                &mut changes.new
            };
            if !bad().any(|was| was.check == check && was.subject == *subject) {
                to.push(Named { check: check.to_owned(), subject: subject.clone() });
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;
    use crate::testing::{Machine, healthy};

    #[test]
    fn fixed_new_still_and_unknown() {
        let somaxconn = "/proc/sys/net/core/somaxconn";
        let cookies = "/proc/sys/net/ipv4/tcp_syncookies";
        let (bad, well) = (healthy().put(cookies, "0"), healthy());
        let names = |named: &[Named]| named.iter().map(|one| one.check.clone()).collect::<Vec<_>>();
        let found = |was: &Machine| -> Vec<EarlierFinding> {
            let json = serde_json::to_value(was.report(rules::ALL).findings).unwrap();
            serde_json::from_value(json).unwrap()
        };
        let between = |was: &Machine, now: &Machine| {
            let asked: Vec<&Rule> = rules::ALL.iter().collect();
            Comparison::between(&found(was), &now.report(rules::ALL), &asked)
        };
        let only = [rules::find("listen-overflows").unwrap()];
        let changes = Comparison::between(&found(&bad), &bad.report(only), &only);
        assert_eq!(names(&changes.not_asked), ["tcp-syncookies"]);
        let changes = between(&bad, &well);
        assert_eq!(names(&changes.fixed), ["tcp-syncookies"]);
        assert!(changes.new.is_empty() && changes.still.is_empty() && changes.unknown.is_empty());
        assert_eq!(names(&between(&bad, &bad).still), ["tcp-syncookies"]);
        assert_eq!(names(&between(&well, &bad).new), ["tcp-syncookies"]);
        let blind = healthy().put(somaxconn, "16").remove(cookies);
        // Told by itself, or together with what comes of it, it is the same.
        let small = well.clone().put(somaxconn, "16");
        let full = small.clone().counts("TcpExt", "ListenOverflows", 9).listener(16);
        let changes = between(&small, &full);
        assert_eq!(names(&changes.still), ["far-below-default"]);
        assert_eq!(names(&changes.new), ["listen-overflows"]);
        assert!(changes.fixed.is_empty());
        let changes = between(&full, &small);
        assert_eq!(names(&changes.still), ["far-below-default"]);
        assert_eq!(names(&changes.fixed), ["listen-overflows"]);
        assert!(changes.new.is_empty());
        let changes = between(&bad, &blind);
        assert_eq!(names(&changes.unknown), ["tcp-syncookies"]);
        assert_eq!(names(&changes.new), ["far-below-default"]);
    }
}
