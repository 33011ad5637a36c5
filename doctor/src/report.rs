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
    let (changes, withheld): (Vec<Change>, Vec<Change>) = outcome
        .changes
        .into_iter()
        .partition(|change| is_harmless(&change.fix) && is_harmless(&change.undo));
    let advice = match withheld.as_slice() {
        [] => outcome.advice,
        _ => Some("a name in it means more to a shell than a name: change it by hand".into()),
    };
    Finding {
        check: check.name.into(),
        number: check.number,
        subject: plain(&outcome.subject),
        severity: outcome.state,
        found: plain(&outcome.found),
        evidence: outcome.evidence.iter().map(seen).collect(),
        rule: check.rule.into(),
        source: check.source.into(),
        why: check.why.into(),
        changes,
        advice,
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

/// A name in a command that a shell takes for more than a name is none of ours. Only `echo VALUE > FILE` redirects.
fn is_harmless(command: &str) -> bool {
    let redirects = command.matches('>').count();
    let echoes = command.starts_with("echo ") && redirects == 1;
    let strange = |c: char| c.is_control() || ";&|`$<\\'".contains(c);
    (redirects == 0 || echoes) && !command.contains(strange)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn what_a_shell_would_take_for_more_is_no_fix() {
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
        assert_eq!(named("eth0.5").changes[0].fix, "ethtool -K eth0.5 lro off");
        for name in ["a;reboot", "$(reboot)", "a`b`", "a\nb", "a>b", "a&b", "a|b"] {
            let finding = named(name);
            assert!(finding.changes.is_empty(), "{finding:?}");
            assert!(finding.advice.unwrap().contains("shell"), "{name}");
        }
        assert!(!named("a\u{1b}[2J").subject.contains('\u{1b}'));
    }

    #[test]
    fn every_fix_of_ours_is_harmless() {
        for command in
            ["echo 3 > /proc/irq/40/smp_affinity_list", "sysctl -w net.ipv4.tcp_rmem=\"1 2 3\""]
        {
            assert!(is_harmless(command), "{command}");
        }
        assert!(!is_harmless("ethtool -K a > /etc/passwd") && !is_harmless("echo 1 > a > b"));
    }
}
