//! The programs that measuring takes: `ringway`, which is measured, this one, for its helpers, and
//! those of other people that do one thing in a namespace and end.

use std::env;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringway_terminal::error::Error as Refusal;
use ringway_testnet::Namespace;

use crate::{Error, Result};

/// Where the programs come from that Ringway is shown and measured beside, for `--help`.
pub const PEERS_HELP: &str = "Environment:\n  RINGWAY_PEERS  directory that nginx, wrk and the like were unpacked \
    into, looked at after PATH [default: target/peers]";

/// This program, for processes that help it.
pub(crate) fn own() -> Result<PathBuf> {
    env::current_exe().map_err(|source| Error::Run { program: "this program again".into(), source })
}

/// Finds `ringway`: where `given` says, else beside this program, else in PATH. What is measured
/// has the version of what measures: one that says another version than `version` is refused.
///
/// # Errors
/// There is none, it does not run, or it is of another version.
pub fn find_ringway(given: Option<&Path>, version: &str) -> Result<PathBuf, Refusal> {
    let own = own().map_err(|error| Refusal::failed(error.to_string(), ""))?;
    let path = env::var_os("PATH").unwrap_or_default();
    let found = choose(given, &own, &path).ok_or_else(|| {
        Refusal::configuration(
            format!("no program `ringway` beside {} or in PATH", own.display()),
            format!("install the package ringway, version {version}, or write --ringway PATH"),
        )
    })?;
    check_version(&found, version)?;
    Ok(found)
}

/// The program with DPDK's devices, of the same build: beside `ringway`, else in PATH.
pub(crate) fn find_dpdk(ringway: &Path) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|directory| directory.join("ringway-dpdk"));
    let beside = std::iter::once(ringway.with_file_name("ringway-dpdk"));
    let found = beside.chain(in_path).find(|file| file.is_file()).ok_or_else(|| {
        Error::Unavailable(format!(
            "no program `ringway-dpdk` beside {} or in PATH; install the package of that name, or build it by `make dpdk`",
            ringway.display()
        ))
    })?;
    let version = |program: &Path| {
        let output = Command::new(program).arg("--version").output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let (its, ours) = (version(&found), version(ringway));
    if its != ours {
        let said = |version: Option<String>| version.unwrap_or_default().trim().to_owned();
        return Err(Error::Unavailable(format!(
            "{} says {:?} and ringway {:?}; install both from one build",
            found.display(),
            said(its),
            said(ours)
        )));
    }
    Ok(found)
}

fn choose(given: Option<&Path>, own: &Path, path: &OsStr) -> Option<PathBuf> {
    if let Some(given) = given {
        return Some(std::path::absolute(given).unwrap_or_else(|_| given.to_owned()));
    }
    let in_path = env::split_paths(path).map(|directory| directory.join("ringway"));
    std::iter::once(own.with_file_name("ringway")).chain(in_path).find(|file| file.is_file())
}

fn check_version(ringway: &Path, version: &str) -> Result<(), Refusal> {
    let name = ringway.display();
    let remedy = format!(
        "install both programs from one build, or write --ringway PATH of a ringway {version}"
    );
    let output = Command::new(ringway).arg("--version").output().map_err(|error| {
        Refusal::configuration(format!("{name} cannot be run: {error}"), remedy.clone())
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.lines().next().unwrap_or_default();
    match said.strip_prefix("ringway ") {
        Some(its) if its == version => Ok(()),
        Some(its) => Err(Refusal::configuration(
            format!(
                "{name} is version {its}, and this ringway-lab is {version}: it would measure another program"
            ),
            remedy,
        )),
        None => Err(Refusal::configuration(
            format!("{name} is no ringway: `--version` says {:?}", said),
            remedy,
        )),
    }
}

/// Runs a program to its end.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(directory: &Path, says: &str) -> PathBuf {
        let file = directory.join("ringway");
        fs::create_dir_all(directory).unwrap();
        fs::write(&file, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    #[test]
    fn what_is_given_outranks_the_neighbour_and_that_the_path() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("lab/ringway-lab");
        let (installed, other) = (place.path().join("bin"), place.path().join("other/ringway"));
        let path = env::join_paths([place.path().join("empty"), installed.clone()]).unwrap();
        assert_eq!(choose(None, &own, &path), None);
        let installed = program(&installed, "");
        assert_eq!(choose(None, &own, &path), Some(installed));
        let beside = program(&place.path().join("lab"), "");
        assert_eq!(choose(None, &own, &path), Some(beside));
        assert_eq!(choose(Some(&other), &own, &path), Some(other));
    }

    #[test]
    fn dpdk_is_of_the_same_build() {
        let place = tempfile::tempdir().unwrap();
        let ringway = program(place.path(), "ringway 0.1.0");
        let dpdk = place.path().join("ringway-dpdk");
        fs::copy(&ringway, &dpdk).unwrap();
        assert_eq!(find_dpdk(&ringway).unwrap(), dpdk);
        program(place.path(), "ringway 0.2.0");
        let refused = find_dpdk(&ringway).unwrap_err().to_string();
        assert!(refused.contains("install both from one build"), "{refused}");
    }

    #[test]
    fn another_version_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let file = program(place.path(), "ringway 0.1.0 (0123456789ab)");
        assert_eq!(check_version(&file, "0.1.0 (0123456789ab)"), Ok(()));
        let refused = |version: &str| check_version(&file, version).unwrap_err().to_string();
        let other = refused("0.1.0 (fedcba987654)");
        assert!(
            other.contains(
                "is version 0.1.0 (0123456789ab), and this ringway-lab is 0.1.0 (fedcba987654)"
            ),
            "{other}"
        );
        assert!(other.contains("--ringway PATH"), "{other}");
        program(place.path(), "nginx 1.2");
        assert!(refused("0.1.0").contains("is no ringway: `--version` says \"nginx 1.2\""));
        fs::remove_file(&file).unwrap();
        assert!(refused("0.1.0").contains("cannot be run"));
    }
}
