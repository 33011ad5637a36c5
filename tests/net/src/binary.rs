//! The programs under test, as cargo built them.

use std::env;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use ringway_testnet::Namespace;
use serde_json::Value;

/// The `ringway` to test: `RINGWAY_BIN`, else the one beside this test in the target directory.
pub fn path() -> Result<PathBuf> {
    if let Some(path) = env::var_os("RINGWAY_BIN") {
        return Ok(path.into());
    }
    // target/debug/deps/net-0123456789abcdef
    let test = env::current_exe()?;
    let directory = test.ancestors().nth(2).context("this test is in no target directory")?;
    let path = directory.join("ringway");
    ensure!(path.is_file(), "{} is missing: first `cargo build -p ringway`", path.display());
    Ok(path)
}

/// The `ringway-lab` to test, which will run that `ringway`: the one beside it, as it looks for
/// `ringway` beside itself.
pub fn lab_path() -> Result<PathBuf> {
    let path = path()?.with_file_name("ringway-lab");
    ensure!(path.is_file(), "{} is missing: first `cargo build -p ringway-lab`", path.display());
    Ok(path)
}

/// The root of the tree under test: that of `CARGO_MANIFEST_DIR`, which cargo and packaging/test set,
/// else the one in which the tests were built.
pub fn tree() -> PathBuf {
    let built_in = || env!("CARGO_MANIFEST_DIR").into();
    let own = env::var_os("CARGO_MANIFEST_DIR").map_or_else(built_in, PathBuf::from);
    own.join("../..")
}

/// The release before this one: `RINGWAY_PREVIOUS`, else what `packaging/previous` has built;
/// `None`: there is none yet.
pub fn previous() -> Result<Option<PathBuf>> {
    if let Some(path) = env::var_os("RINGWAY_PREVIOUS") {
        return Ok(Some(path.into()));
    }
    let script = tree().join("packaging/previous");
    let ran = Ran::from(Command::new(script).arg("--which").output()?);
    ensure!(ran.code == 0, "{}", ran.said());
    let path = ran.out.trim();
    Ok((!path.is_empty()).then(|| path.into()))
}

/// What a finished command said.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Standard output as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("no JSON from {self:?}"))
    }

    /// It has ended well.
    pub fn done(self) -> Result<Ran> {
        ensure!(self.code == 0, "{self:?}");
        Ok(self)
    }

    /// It has ended with this code, and standard output has these words.
    pub fn says(self, code: i32, words: &[&str]) -> Result<Ran> {
        let missing = words.iter().find(|words| !self.out.contains(**words));
        ensure!(self.code == code && missing.is_none(), "{code}, {missing:?}: {self:?}");
        Ok(self)
    }

    /// The same of standard error.
    pub fn complains(self, code: i32, words: &[&str]) -> Result<Ran> {
        let missing = words.iter().find(|words| !self.err.contains(**words));
        ensure!(self.code == code && missing.is_none(), "{code}, {missing:?}: {self:?}");
        Ok(self)
    }

    /// Both outputs together.
    pub fn said(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs `ringway ARGUMENTS` in a namespace to its end.
pub fn ringway(namespace: &Namespace, arguments: &[&str]) -> Result<Ran> {
    run(&path()?, namespace, arguments)
}

/// The same of `ringway-lab`.
pub fn ringway_lab(namespace: &Namespace, arguments: &[&str]) -> Result<Ran> {
    run(&lab_path()?, namespace, arguments)
}

/// The same with another binary.
pub(crate) fn run(binary: &Path, namespace: &Namespace, arguments: &[&str]) -> Result<Ran> {
    let output = namespace.command(binary).args(arguments).output()?;
    Ok(output.into())
}

/// A secret in a file that its owner alone may read.
pub fn write_secret(file: &Path, digits: &str) -> Result<()> {
    std::fs::write(file, digits)?;
    Ok(std::fs::set_permissions(file, Permissions::from_mode(0o600))?)
}

/// Runs somebody else's program in a namespace to its end.
pub fn tool(namespace: &Namespace, name: &str, arguments: &[&str]) -> Result<Ran> {
    Ok(namespace.tool(name)?.args(arguments).output()?.into())
}
