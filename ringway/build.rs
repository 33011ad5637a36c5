//! Which commit this is built from, for `--version` of both programs: RINGWAY_COMMIT, else git's
//! word, else none.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RINGWAY_COMMIT");
    // ringway-lab is built by this file, too.
    println!("cargo::rerun-if-changed=../ringway/build.rs");
    let told = std::env::var("RINGWAY_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = told.or_else(of_git).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let text = if commit.is_empty() { version.to_owned() } else { format!("{version} ({commit})") };
    println!("cargo::rustc-env=RINGWAY_COMMIT={commit}");
    println!("cargo::rustc-env=RINGWAY_VERSION={text}");
}

/// The commit of the checkout that this source is; a tarball inside somebody's checkout is none.
fn of_git() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != own {
        return None;
    }
    // Written whenever another commit is checked out or made, and only then.
    let moved = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    let moved = Path::new(env!("CARGO_MANIFEST_DIR")).join(moved);
    if moved.exists() {
        println!("cargo::rerun-if-changed={}", moved.display());
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
