//! iproute2 in batch mode: one process for many settings.

use std::io::Write;
use std::process::Stdio;

use crate::{Error, Namespace, Result};

/// Runs `lines` as `ip -batch -` inside `namespace`.
pub(crate) fn batch(namespace: &Namespace, lines: &str) -> Result<()> {
    let start = |source| Error::Start {
        program: "ip (package iproute2)".into(),
        namespace: namespace.name().into(),
        source,
    };
    let mut child = namespace
        .command("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut input) = child.stdin.take() {
        // A broken pipe means that ip has given up: its words below say why.
        let _ = input.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(start)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Ip {
        command: failed_line(lines, &message).to_owned(),
        namespace: namespace.name().into(),
        message,
    })
}

/// The line that `ip` names at the end of its complaint ("Command failed -:3"), else all of them.
fn failed_line<'a>(lines: &'a str, message: &str) -> &'a str {
    message
        .rsplit(':')
        .next()
        .and_then(|n| n.trim().parse::<usize>().ok())
        .and_then(|n| lines.lines().nth(n.checked_sub(1)?))
        .unwrap_or(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_failing_line() {
        let lines = "link set lo up\nlink set nosuch up\n";
        let message = "Cannot find device \"nosuch\"\nCommand failed -:2";
        assert_eq!(failed_line(lines, message), "link set nosuch up");
        assert_eq!(failed_line(lines, "no number"), lines);
    }
}
