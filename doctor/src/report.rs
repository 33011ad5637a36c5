//! The report: findings of all rules.

use std::collections::BTreeMap;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::outcome::{Evidence, MACHINE};
use crate::{Facts, Fix, Outcome, ReversibleFix, Rule, Severity, rules};

/// A check's outcome for one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub check: &'static str,
    pub outcome: Outcome,
    /// Other checks that found the same cause.
    pub also: Vec<Other>,
}

impl Finding {
    /// The rule that the check asks, where it is one of the doctor's.
    pub fn rule(&self) -> Option<&'static Rule> {
        rules::ALL.iter().find(|rule| rule.name == self.check)
    }

    fn is_symptom(&self) -> bool {
        self.outcome.severity > Severity::Unknown
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (rule, outcome) = (self.rule(), &self.outcome);
        let mut fields = serializer.serialize_struct("Finding", 12)?;
        fields.serialize_field("check", self.check)?;
        fields.serialize_field("number", &rule.map(|rule| rule.number))?;
        fields.serialize_field("subject", &outcome.subject)?;
        fields.serialize_field("severity", &outcome.severity)?;
        fields.serialize_field("found", &outcome.found)?;
        fields.serialize_field("evidence", &outcome.evidence)?;
        fields.serialize_field("rule", &rule.map(|rule| rule.rule))?;
        fields.serialize_field("source", &rule.map(|rule| rule.source))?;
        fields.serialize_field("why", &rule.map(|rule| rule.why))?;
        fields.serialize_field("changes", &outcome.changes)?;
        fields.serialize_field("advice", &outcome.advice)?;
        fields.serialize_field("also", &self.also)?;
        fields.end()
    }
}

/// A finding of another check. In JSON one text: `far-below-default net/core/somaxconn`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct Other {
    pub check: String,
    pub subject: String,
}

impl Other {
    /// Whether it is this one.
    pub fn is(&self, check: &str, subject: &str) -> bool {
        (self.check.as_str(), self.subject.as_str()) == (check, subject)
    }
}

impl From<Other> for String {
    fn from(Other { check, subject }: Other) -> Self {
        format!("{check} {subject}")
    }
}

impl From<String> for Other {
    fn from(text: String) -> Self {
        let (check, subject) = text.split_once(' ').unwrap_or((&text, ""));
        Other { check: check.to_owned(), subject: subject.to_owned() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn push(&mut self, check: &'static str, outcome: Outcome) {
        self.findings.push(Finding { check, outcome, also: Vec::new() });
    }

    /// Adds one that is as it should be.
    pub fn ok(&mut self, check: &'static str, subject: &str, found: impl Into<String>) {
        self.push(check, Outcome::ok(subject, found));
    }

    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.outcome.severity == severity)
    }

    /// Those worth a look: info, warn and crit.
    pub fn symptoms(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_symptom())
    }

    /// The worst severity among them.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|one| one.outcome.severity).max().unwrap_or(Severity::Ok)
    }
}

/// Asks rules about these facts. The worst findings come first.
pub fn judge<'a>(checks: impl IntoIterator<Item = &'a Rule>, facts: &Facts) -> Report {
    let mut report = Report::default();
    for check in checks {
        let outcomes = check.ask(facts);
        if outcomes.is_empty() {
            report.ok(check.name, MACHINE, "there is nothing here that this is about");
        }
        outcomes.into_iter().for_each(|outcome| report.push(check.name, plain(outcome)));
    }
    worst_first(&mut report.findings);
    settle(&mut report.findings);
    Report { findings: folded(report.findings) }
}

/// Two that want the same setting changed want the same value: else the second fix would undo the
/// first. The greater limit is enough for both; of equal ones the worse finding's.
fn settle(findings: &mut [Finding]) {
    let limit = |change: &ReversibleFix| change.fix.setting()?.1.limit();
    let mut settled: BTreeMap<String, ReversibleFix> = BTreeMap::new();
    for change in findings.iter().flat_map(|finding| &finding.outcome.changes) {
        let Some((key, _)) = change.fix.setting() else { continue };
        let held = settled.entry(key.to_owned()).or_insert_with(|| change.clone());
        if limit(change) > limit(held) {
            *held = change.clone();
        }
    }
    for change in findings.iter_mut().flat_map(|finding| &mut finding.outcome.changes) {
        if let Some(one) = change.fix.setting().and_then(|(key, _)| settled.get(key)) {
            *change = one.clone();
        }
    }
}

/// Checks that see a cause, and others that see what comes of it: `None` is any.
const SEES_THE_CAUSE: [(&str, Option<&str>); 2] =
    [("far-below-default", None), ("tcp-syncookies", Some("syn-queue"))];

/// One cause is one finding: a cause whose changes its symptom has, too, is told with the symptom.
fn folded(findings: Vec<Finding>) -> Vec<Finding> {
    let (causes, mut kept): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|one| one.is_symptom() && sees(one, None));
    for cause in causes {
        let changes = |one: &Finding, fix: &Fix| one.outcome.changes.iter().any(|o| o.fix == *fix);
        let same = |one: &&mut Finding| {
            one.is_symptom()
                && sees(&cause, Some(one.check))
                && cause.outcome.changes.iter().all(|change| changes(one, &change.fix))
        };
        match kept.iter_mut().find(same) {
            Some(symptom) => {
                let evidence = &mut symptom.outcome.evidence;
                let new = |seen: &Evidence| !evidence.contains(seen);
                let Finding { check, outcome, .. } = cause;
                let seen: Vec<Evidence> = outcome.evidence.into_iter().filter(new).collect();
                evidence.extend(seen);
                symptom.also.push(Other { check: check.to_owned(), subject: outcome.subject });
            }
            None => kept.push(cause),
        }
    }
    worst_first(&mut kept);
    kept
}

fn sees(cause: &Finding, symptom: Option<&str>) -> bool {
    if let Some(of) = cause.outcome.part_of {
        return symptom.is_none_or(|symptom| symptom == of);
    }
    SEES_THE_CAUSE.iter().any(|(check, of)| {
        *check == cause.check
            && symptom.is_none_or(|symptom| of.map_or(symptom != *check, |of| of == symptom))
    })
}

fn worst_first(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.outcome.severity));
}

/// For a terminal: what was read, of a collection above all, may hold anything.
fn plain(mut outcome: Outcome) -> Outcome {
    let hidden = |c: char| c.is_control() && !matches!(c, '\t' | '\n');
    let evidence = outcome.evidence.iter_mut().flat_map(|one| [&mut one.source, &mut one.value]);
    for text in evidence.chain([&mut outcome.subject, &mut outcome.found]) {
        *text = text.replace(hidden, "\u{fffd}");
    }
    outcome
}

#[cfg(test)]
mod tests {
    use crate::testing::{Machine, healthy};

    #[test]
    fn a_name_that_means_more_to_a_shell_is_quoted() {
        let named = |name: &str| {
            let machine = healthy().network(|network| {
                (network.interfaces[1].link.name, network.interfaces[1].link.xdp) =
                    (name.into(), vec![]);
                network.interfaces[1].offloads.lro = true;
            });
            let report =
                machine.put("/proc/sys/net/ipv4/ip_forward", "1").report(crate::rules::find("lro"));
            report.symptoms().next().cloned().unwrap()
        };
        for (name, shown) in [("eth0.5", "eth0.5"), ("a;reboot", "'a;reboot'")] {
            let fix = named(name).outcome.changes[0].fix.to_string();
            assert_eq!(fix, format!("ethtool -K {shown} lro off"));
        }
        assert!(!named("a\u{1b}[2J").outcome.subject.contains('\u{1b}'));
    }

    #[test]
    fn one_cause_is_one_finding() {
        let small = healthy().put("/proc/sys/net/core/somaxconn", "16").listener(16);
        let names = |machine: &Machine| {
            let report = machine.report(crate::rules::ALL);
            report.symptoms().map(|one| (one.check, one.also.clone())).collect::<Vec<_>>()
        };
        let far = "far-below-default";
        assert_eq!(names(&small), [(far, vec![])]);
        let full = small.counts("TcpExt", "ListenOverflows", 9);
        let also = vec![super::Other::from("far-below-default net/core/somaxconn".to_owned())];
        assert_eq!(names(&full), [("listen-overflows", also)]);
        // A cause whose fix does more than the symptom's stays.
        let other = full.put("/proc/sys/net/ipv4/tcp_max_tw_buckets", "10");
        assert!(names(&other).contains(&(far, vec![])), "{:?}", names(&other));
        let sent = healthy().counts("TcpExt", "TCPReqQFullDoCookies", 9).counts(
            "TcpExt",
            "SyncookiesSent",
            9,
        );
        let also = vec![super::Other::from("tcp-syncookies this machine".to_owned())];
        assert_eq!(names(&sent), [("syn-queue", also)]);
    }

    /// A range of ports that is nearly used up is far below the default, too: one finding, one fix.
    #[test]
    fn two_that_set_the_same_set_it_alike() {
        let ports = healthy()
            .put("/proc/sys/net/ipv4/ip_local_port_range", "40000\t40099")
            .connections(100);
        let report = ports.report(crate::rules::ALL);
        let symptoms: Vec<_> = report.symptoms().collect();
        assert_eq!(symptoms.len(), 1, "{symptoms:#?}");
        let also = super::Other::from("far-below-default net/ipv4/ip_local_port_range".to_owned());
        assert_eq!(symptoms[0].also, [also]);
        let wanted = "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"";
        assert_eq!(symptoms[0].outcome.changes[0].fix.to_string(), wanted);
        // Twice a very small limit is less than what the kernel starts with.
        let queue = healthy()
            .counts("TcpExt", "TCPReqQFullDrop", 9)
            .put("/proc/sys/net/ipv4/tcp_max_syn_backlog", "16");
        crate::testing::agree(&queue.report(crate::rules::ALL));
        let receive =
            healthy().counts("Udp", "RcvbufErrors", 11).put("/proc/sys/net/core/rmem_max", "4096");
        crate::testing::agree(&receive.report(crate::rules::ALL));
    }
}
