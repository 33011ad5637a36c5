//! Fixes as a shell script, and another that takes them back.

use std::fmt::Write as _;

use crate::{Finding, Report};

/// Two scripts for sh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scripts {
    /// Runs the fixes.
    pub fix: String,
    /// Sets what was read, last change first.
    pub undo: String,
    /// How many commands each has.
    pub commands: usize,
}

/// Of what a report says to change.
pub fn scripts(report: &Report) -> Scripts {
    let mut fix = head("Fixes that `ringway doctor` found. Read it before you run it.");
    let mut undo = head("Takes back what the script beside it changes: sets what was read before.");
    let (mut seen, mut back) = (Vec::new(), Vec::new());
    for finding in report.symptoms() {
        fix += &comment(finding);
        for change in &finding.changes {
            // Two findings may want the same.
            if !seen.contains(&&change.fix) {
                seen.push(&change.fix);
                fix += &format!("run {}\n", quoted(&change.fix));
            }
            if !back.contains(&&change.undo) {
                back.push(&change.undo);
            }
        }
    }
    for command in back.iter().rev() {
        undo += &format!("run {}\n", quoted(command));
    }
    let end = "exit $failed\n";
    Scripts { fix: fix + end, undo: undo + end, commands: seen.len() }
}

fn head(what: &str) -> String {
    format!(
        "#!/bin/sh\n# {what}\nfailed=0\nrun() {{\n    echo \"+ $1\"\n    sh -c \"$1\" || \
         {{ echo \"failed: $1\" >&2; failed=1; }}\n}}\n"
    )
}

fn comment(finding: &Finding) -> String {
    let mut text = String::from("\n");
    let Finding { check, subject, severity, found, why, rule, source, .. } = finding;
    let mut line = |words: &str| {
        // Writing to a String cannot fail. What was read may hold anything.
        let _ = writeln!(text, "# {}", words.replace(['\n', '\r'], " "));
    };
    line(&format!("{}: {check}, {subject}: {found}", severity.as_str()));
    line(why);
    line(&format!("Rule: {rule} ({source})"));
    for evidence in &finding.evidence {
        line(&format!("Read: {} = {}", evidence.source, evidence.value));
    }
    if let Some(advice) = &finding.advice {
        line(&format!("To do: {advice}"));
    }
    if finding.changes.is_empty() {
        line("No command fixes this.");
    }
    text
}

/// One word for the shell.
fn quoted(command: &str) -> String {
    format!("'{}'", command.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;
    use crate::testing::Machine;

    #[test]
    fn a_fix_and_its_undo_in_words_that_sh_takes() {
        let machine = Machine::healthy()
            .put("/proc/sys/net/core/somaxconn", "16")
            .put("/proc/sys/net/ipv4/tcp_syncookies", "0");
        let scripts = scripts(&machine.report(rules::ALL));
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
    fn quotes_stay_what_they_are() {
        assert_eq!(quoted("a 'b'"), "'a '\\''b'\\'''");
    }
}
