//! What became of the findings of an earlier run.

use serde::{Deserialize, Serialize};

use crate::{Finding, Origin, Report, Rule, Severity};

/// As much of an earlier run's JSON as is compared.
#[derive(Debug, Clone, Deserialize)]
pub struct Earlier {
    pub schema: String,
    #[serde(flatten)]
    pub origin: Origin,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Named {
    pub check: String,
    pub subject: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
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

impl Changes {
    /// Between an earlier run and this one. What was told together with another finding was, or is,
    /// there all the same.
    pub fn between(earlier: &[Finding], now: &Report, asked: &[&Rule]) -> Self {
        let mut changes = Self::default();
        for was in earlier.iter().filter(|finding| finding.severity > Severity::Unknown) {
            let same_check = || now.findings.iter().filter(|finding| finding.check == was.check);
            let is = same_check().find(|finding| finding.subject == was.subject);
            let whole = || same_check().all(|finding| finding.severity != Severity::Unknown);
            let folded = now.symptoms().any(|finding| finding.also.iter().any(|one| one.is(was)));
            let to = match is.map(|finding| finding.severity) {
                _ if asked.iter().all(|check| check.name != was.check) => &mut changes.not_asked,
                None if folded => &mut changes.still,
                Some(Severity::Unknown) => &mut changes.unknown,
                Some(Severity::Ok) => &mut changes.fixed,
                Some(_) => &mut changes.still,
                // Its subject is there no more, or nothing to find fault with.
                None if same_check().next().is_some() && whole() => &mut changes.fixed,
                None => &mut changes.unknown,
            };
            to.push(named(was));
        }
        let bad = || earlier.iter().filter(|finding| finding.severity > Severity::Unknown);
        for is in now.symptoms() {
            let folded = bad().any(|was| was.also.iter().any(|one| one.is(is)));
            match bad().any(|was| named(was) == named(is)) {
                true => {}
                false if folded => changes.still.push(named(is)),
                false => changes.new.push(named(is)),
            }
        }
        changes
    }
}

fn named(finding: &Finding) -> Named {
    Named { check: finding.check.clone(), subject: finding.subject.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;
    use crate::testing::Machine;

    #[test]
    fn fixed_new_still_and_unknown() {
        let somaxconn = "/proc/sys/net/core/somaxconn";
        let cookies = "/proc/sys/net/ipv4/tcp_syncookies";
        let (bad, well) = (Machine::healthy().put(cookies, "0"), Machine::healthy());
        let names = |named: &[Named]| named.iter().map(|one| one.check.clone()).collect::<Vec<_>>();
        let between = |was: &Machine, now: &Machine| {
            let asked: Vec<&Rule> = rules::ALL.iter().collect();
            Changes::between(&was.report(rules::ALL).findings, &now.report(rules::ALL), &asked)
        };
        let only = [rules::find("listen-overflows").unwrap()];
        let found = bad.report(rules::ALL).findings;
        let changes = Changes::between(&found, &bad.report(only), &only);
        assert_eq!(names(&changes.not_asked), ["tcp-syncookies"]);
        let changes = between(&bad, &well);
        assert_eq!(names(&changes.fixed), ["tcp-syncookies"]);
        assert!(changes.new.is_empty() && changes.still.is_empty() && changes.unknown.is_empty());
        assert_eq!(names(&between(&bad, &bad).still), ["tcp-syncookies"]);
        assert_eq!(names(&between(&well, &bad).new), ["tcp-syncookies"]);
        let blind = Machine::healthy().put(somaxconn, "16").remove(cookies);
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
