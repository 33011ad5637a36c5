//! Programs of other people that do one thing in a namespace and end.

use std::io::Write as _;
use std::process::{Command, Stdio};

use ringway_testnet::Namespace;

use crate::{Error, Result};

/// Runs one to its end.
pub(crate) fn run(namespace: &Namespace, program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = namespace.tool(program)?;
    command.args(arguments);
    feed(command, program, "")
}

/// Runs a command to its end, with a text on its standard input.
pub(crate) fn feed(mut command: Command, program: &str, text: &str) -> Result<()> {
    let failed = |source| Error::Run { program: program.into(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // One that refuses does not read to the end: what it says on standard error counts.
    let _ = child.stdin.take().map(|mut pipe| pipe.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Failed { program: program.into(), output })
}
