//! Fixes as a shell script, and another that takes them back.

use std::fmt::Write as _;

use ringway_host::quoted;

use crate::{Finding, Origin, Outcome, Report, ReversibleFix};

/// Two scripts for sh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scripts {
    pub fix: String,
    /// Sets what was read, last change first.
    pub undo: String,
    /// How many commands each has.
    pub commands: usize,
}

/// Scripts of the changes that a report proposes, for the machine that it is about.
pub fn scripts(report: &Report, origin: &Origin) -> Scripts {
    let head = |what: &str| format!("#!/bin/sh\n# {what}\n{}{RUN}", place(origin));
    let mut fix = head("Fixes that `ringway doctor` found. Read it before you run it.");
    let mut undo = head("Takes back what the script beside it changes: sets what was read before.");
    let (mut seen, mut back) = (Vec::new(), Vec::new());
    for finding in report.symptoms() {
        fix += &comment(finding);
        for change in &finding.outcome.changes {
            // Two findings may want the same. Of two that set the same the first, the worse,
            // counts.
            let sets = change.fix.setting().map(|(key, _)| key);
            let told = |one: &&ReversibleFix| {
                let same = one.fix.setting().is_some_and(|(key, _)| Some(key) == sets);
                one.fix == change.fix || same
            };
            if !seen.iter().any(told) {
                seen.push(change);
                fix += &format!("run {}\n", quoted(&change.fix.to_string()));
            }
            if !back.contains(&&change.undo) {
                back.push(&change.undo);
            }
        }
    }
    for command in back.iter().rev() {
        undo += &format!("run {}\n", quoted(&command.to_string()));
    }
    let end = "exit $failed\n";
    Scripts { fix: fix + end, undo: undo + end, commands: seen.len() }
}

/// Goes on after a failure, and tells in the end.
const RUN: &str = "failed=0\nrun() {\n    echo \"+ $1\"\n    sh -c \"$1\" || \
                   { echo \"failed: $1\" >&2; failed=1; }\n}\n";

/// Names the machine that it is for, and refuses to run elsewhere.
fn place(origin: &Origin) -> String {
    let mut text = format!("# For {}.\n", one_line(&origin.to_string()));
    let mut only = |shown: &str, wanted: &str, what: &str, how: &str| {
        let words =
            one_line(&format!("this is for the {what}, nothing was done: {how}, or add --force"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "if [ \"$({shown})\" != {} ] && [ \"${{1:-}}\" != --force ]; then\n    echo {} >&2\n    exit 2\nfi",
            quoted(&one_line(wanted)),
            quoted(&words)
        );
    };
    if let Some(host) = &origin.host {
        only("uname -n", host, &format!("host {host}"), "run it there");
    }
    if let Some(namespace) = &origin.namespace {
        let run = format!("run it there ({} sh FILE)", namespace.enter());
        only("readlink /proc/self/ns/net", &namespace.id, &namespace.to_string(), &run);
    }
    text
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn comment(finding: &Finding) -> String {
    let mut text = String::from("\n");
    let Outcome { subject, severity, found, evidence, changes, advice, .. } = &finding.outcome;
    let mut line = |words: &str| {
        // Writing to a String cannot fail. What was read may hold anything.
        let _ = writeln!(text, "# {}", one_line(words));
    };
    line(&format!("{}: {}, {subject}: {found}", severity.as_str(), finding.check));
    if let Some(rule) = finding.rule() {
        line(rule.why);
        line(&format!("Rule: {} ({})", rule.rule, rule.source));
    }
    for evidence in evidence {
        line(&format!("Read: {} = {}", evidence.source, evidence.value));
    }
    if let Some(advice) = advice {
        line(&format!("To do: {advice}"));
    }
    if changes.is_empty() {
        line("No command fixes this.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;
    use crate::testing::healthy;

    #[test]
    fn a_fix_and_its_undo_in_words_that_sh_takes() {
        let machine = healthy()
            .put("/proc/sys/net/core/somaxconn", "16")
            .put("/proc/sys/net/ipv4/tcp_syncookies", "0");
        let scripts = scripts(&machine.report(rules::ALL), &Origin::default());
        assert_eq!(scripts.commands, 2, "{}", scripts.fix);
        let at = |text: &str, words: &str| text.find(words).unwrap_or_else(|| panic!("{text}"));
        let fixes =
            ["'sysctl -w net.core.somaxconn=4096'", "'sysctl -w net.ipv4.tcp_syncookies=1'"];
        let undos = ["'sysctl -w net.core.somaxconn=16'", "'sysctl -w net.ipv4.tcp_syncookies=0'"];
        let order = at(&scripts.fix, fixes[0]) < at(&scripts.fix, fixes[1]);
        assert_ne!(order, at(&scripts.undo, undos[0]) < at(&scripts.undo, undos[1]));
        for script in [&scripts.fix, &scripts.undo] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), script).unwrap();
            let sh = std::process::Command::new("sh").arg("-n").arg(file.path()).status();
            assert!(sh.unwrap().success());
        }
    }

    #[test]
    fn of_two_that_set_the_same_the_first_counts() {
        let mut report = healthy().put("/proc/sys/net/core/somaxconn", "16").report(rules::ALL);
        let mut second = report.symptoms().next().unwrap().clone();
        second.outcome.changes[0].fix = crate::Fix::sysctl("net/core/somaxconn", 17);
        report.findings.push(second);
        let scripts = scripts(&report, &Origin::default());
        assert_eq!(scripts.commands, 1, "{}", scripts.fix);
        assert!(scripts.fix.contains("=4096'") && !scripts.fix.contains("=17'"));
    }

    #[test]
    fn it_runs_where_it_was_found_and_nowhere_else() {
        let report = healthy().put("/proc/sys/net/core/somaxconn", "16").report(rules::ALL);
        let here = std::process::Command::new("uname").arg("-n").output().unwrap();
        let here = String::from_utf8(here.stdout).unwrap().trim().to_owned();
        let elsewhere = "net:[1]".to_owned();
        let of = |host: &str, id: Option<String>| Origin {
            host: Some(host.into()),
            kernel: Some("6.1.0".into()),
            collected: Some("2026-01-31T12:00:00Z".into()),
            namespace: id.map(|id| crate::Namespace { id, name: Some("blue".into()) }),
        };
        for (origin, runs) in [
            (of(&here, None), true),
            (of("it's \nelse`where`", None), false),
            (of(&here, Some(elsewhere)), false),
        ] {
            let scripts = scripts(&report, &origin);
            for script in [scripts.fix, scripts.undo] {
                // Nothing is changed here: the script prints its commands.
                let script = script.replace("    sh -c \"$1\" ||", "    true ||");
                let said = |more: &[&str]| {
                    let mut sh = std::process::Command::new("sh");
                    let out = sh.args(["-c", &script, "sh"]).args(more).output().unwrap();
                    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
                };
                assert_eq!(said(&[]).0, Some(if runs { 0 } else { 2 }), "{script}");
                assert_eq!(said(&["--force"]).0, Some(0), "{script}");
                if !runs {
                    assert!(said(&[]).1.contains("nothing was done"), "{script}");
                }
                assert!(script.contains("Linux 6.1.0") && script.contains("2026-01-31T12:00:00Z"));
            }
        }
    }

    #[test]
    fn quotes_stay_what_they_are() {
        assert_eq!(quoted("a 'b'"), "'a '\\''b'\\'''");
    }
}
