//! What all rules together say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::outcome::{Evidence, MACHINE};
use crate::{Change, Facts, Outcome, Rule, Severity};

/// One thing looked at, with all that is known about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub check: String,
    pub number: u8,
    /// What was looked at.
    pub subject: String,
    /// How it came out.
    pub severity: Severity,
    /// What was found; of `unknown` why it is not known.
    pub found: String,
    /// Where, and the value.
    pub evidence: Vec<Evidence>,
    pub rule: String,
    /// Where the rule comes from.
    pub source: String,
    pub why: String,
    /// What to change, each with what takes it back. Nobody reads it back from JSON.
    #[serde(skip_deserializing)]
    pub changes: Vec<Change>,
    /// What to do that is no command.
    pub advice: Option<String>,
    /// Other checks that found the same cause.
    #[serde(default)]
    pub also: Vec<Other>,
    /// The check that tells of the cause, where it finds that.
    #[serde(skip)]
    pub(crate) part_of: Option<&'static str>,
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
    pub fn is(&self, finding: &Finding) -> bool {
        (&self.check, &self.subject) == (&finding.check, &finding.subject)
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

/// All of them, the worst first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In that order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many came out so.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Those worth a look: info, warn and crit.
    pub fn symptoms(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity > Severity::Unknown)
    }
}

pub fn judge<'a>(checks: impl IntoIterator<Item = &'a Rule>, facts: &Facts) -> Report {
    let mut findings: Vec<Finding> =
        checks.into_iter().flat_map(|check| ask(check, facts)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    settle(&mut findings);
    Report { findings: folded(findings) }
}

/// Two that want the same setting changed want the same value: else the second fix would undo the
/// first. The greater limit is enough for both; of equal ones the worse finding's.
fn settle(findings: &mut [Finding]) {
    let limit = |change: &Change| change.fix.setting()?.1.rsplit(' ').next()?.parse::<i64>().ok();
    let mut settled: BTreeMap<String, Change> = BTreeMap::new();
    for change in findings.iter().flat_map(|finding| &finding.changes) {
        let Some((key, _)) = change.fix.setting() else { continue };
        let held = settled.entry(key.to_owned()).or_insert_with(|| change.clone());
        if limit(change) > limit(held) {
            *held = change.clone();
        }
    }
    for change in findings.iter_mut().flat_map(|finding| &mut finding.changes) {
        if let Some(one) = change.fix.setting().and_then(|(key, _)| settled.get(key)) {
            *change = one.clone();
        }
    }
}

/// Checks that see a cause, and others that see what comes of it: `None` is any.
const SEES_THE_CAUSE: [(&str, Option<&str>); 2] =
    [("far-below-default", None), ("tcp-syncookies", Some("syn-queue"))];

/// One cause is one finding: what would change nothing that its symptom does not is told there.
fn folded(findings: Vec<Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::new();
    let (causes, others): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|one| one.severity > Severity::Unknown && sees(one, None));
    kept.extend(others);
    for cause in causes {
        let same = |one: &&mut Finding| {
            one.severity > Severity::Unknown
                && sees(&cause, Some(&one.check))
                && cause
                    .changes
                    .iter()
                    .all(|change| one.changes.iter().any(|o| o.fix == change.fix))
        };
        match kept.iter_mut().find(same) {
            Some(symptom) => {
                let new = |seen: &&Evidence| !symptom.evidence.contains(seen);
                let seen: Vec<Evidence> = cause.evidence.iter().filter(new).cloned().collect();
                symptom.evidence.extend(seen);
                symptom.also.push(Other { check: cause.check, subject: cause.subject });
            }
            None => kept.push(cause),
        }
    }
    kept.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    kept
}

fn sees(cause: &Finding, symptom: Option<&str>) -> bool {
    if let Some(of) = cause.part_of {
        return symptom.is_none_or(|symptom| symptom == of);
    }
    SEES_THE_CAUSE.iter().any(|(check, of)| {
        *check == cause.check
            && symptom.is_none_or(|symptom| of.map_or(symptom != *check, |of| of == symptom))
    })
}

fn ask(check: &Rule, facts: &Facts) -> Vec<Finding> {
    let outcomes = match (check.check)(facts) {
        Ok(none) if none.is_empty() => {
            vec![Outcome::ok(MACHINE, "there is nothing here that this is about")]
        }
        Ok(outcomes) => outcomes,
        Err(why) => vec![Outcome::unknown(MACHINE, why)],
    };
    outcomes.into_iter().map(|outcome| finding(check, outcome)).collect()
}

fn finding(check: &Rule, outcome: Outcome) -> Finding {
    Finding {
        check: check.name.into(),
        number: check.number,
        subject: plain(&outcome.subject),
        severity: outcome.severity,
        found: plain(&outcome.found),
        evidence: outcome.evidence.iter().map(seen).collect(),
        rule: check.rule.into(),
        source: check.source.into(),
        why: check.why.into(),
        changes: outcome.changes,
        advice: outcome.advice.map(|advice| advice.to_string()),
        also: Vec::new(),
        part_of: outcome.part_of,
    }
}

fn seen(evidence: &Evidence) -> Evidence {
    Evidence { source: plain(&evidence.source), value: plain(&evidence.value) }
}

/// For a terminal: what was read, of a collection above all, may hold anything.
fn plain(text: &str) -> String {
    let hidden = |c: char| c.is_control() && !matches!(c, '\t' | '\n');
    text.chars().map(|c| if hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::Machine;

    #[test]
    fn a_name_that_means_more_to_a_shell_is_quoted() {
        let named = |name: &str| {
            let machine = Machine::healthy().network(|network| {
                (network.interfaces[1].link.name, network.interfaces[1].link.xdp) =
                    (name.into(), vec![]);
                network.interfaces[1].offloads.lro = true;
            });
            let report =
                machine.put("/proc/sys/net/ipv4/ip_forward", "1").report(crate::rules::find("lro"));
            report.symptoms().next().cloned().unwrap()
        };
        for (name, shown) in [("eth0.5", "eth0.5"), ("a;reboot", "'a;reboot'")] {
            let fix = named(name).changes[0].fix.to_string();
            assert_eq!(fix, format!("ethtool -K {shown} lro off"));
        }
        assert!(!named("a\u{1b}[2J").subject.contains('\u{1b}'));
    }

    #[test]
    fn one_cause_is_one_finding() {
        let small = Machine::healthy().put("/proc/sys/net/core/somaxconn", "16").listener(16);
        let names = |machine: &Machine| {
            let report = machine.report(crate::rules::ALL);
            report.symptoms().map(|one| (one.check.clone(), one.also.clone())).collect::<Vec<_>>()
        };
        let far = "far-below-default".to_owned();
        assert_eq!(names(&small), [(far.clone(), vec![])]);
        let full = small.counts("TcpExt", "ListenOverflows", 9);
        let also = vec![super::Other::from("far-below-default net/core/somaxconn".to_owned())];
        assert_eq!(names(&full), [("listen-overflows".into(), also)]);
        // What mends more than the symptom does stays.
        let other = full.put("/proc/sys/net/ipv4/tcp_max_tw_buckets", "10");
        assert!(names(&other).contains(&(far, vec![])), "{:?}", names(&other));
        let sent = Machine::healthy().counts("TcpExt", "TCPReqQFullDoCookies", 9).counts(
            "TcpExt",
            "SyncookiesSent",
            9,
        );
        let also = vec![super::Other::from("tcp-syncookies this machine".to_owned())];
        assert_eq!(names(&sent), [("syn-queue".into(), also)]);
    }

    /// A range of ports that is nearly used up is far below the default, too: one finding, one fix.
    #[test]
    fn two_that_set_the_same_set_it_alike() {
        let pair = ringway_host::netlink::sockets::PeerTuple {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            port: 80,
            connections: 100,
        };
        let ports = Machine::healthy()
            .put("/proc/sys/net/ipv4/ip_local_port_range", "40000\t40099")
            .edit("/netlink/sockets.json", |all: &mut ringway_host::netlink::sockets::Sockets| {
                all.roads = vec![pair];
            });
        let report = ports.report(crate::rules::ALL);
        let symptoms: Vec<_> = report.symptoms().collect();
        assert_eq!(symptoms.len(), 1, "{symptoms:#?}");
        let also = super::Other::from("far-below-default net/ipv4/ip_local_port_range".to_owned());
        assert_eq!(symptoms[0].also, [also]);
        let wanted = "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"";
        assert_eq!(symptoms[0].changes[0].fix.to_string(), wanted);
        // Twice a very small limit is less than what the kernel starts with.
        let queue = Machine::healthy()
            .counts("TcpExt", "TCPReqQFullDrop", 9)
            .put("/proc/sys/net/ipv4/tcp_max_syn_backlog", "16");
        crate::testing::agree(&queue.report(crate::rules::ALL));
        let receive = Machine::healthy()
            .counts("Udp", "RcvbufErrors", 11)
            .put("/proc/sys/net/core/rmem_max", "4096");
        crate::testing::agree(&receive.report(crate::rules::ALL));
    }
}
