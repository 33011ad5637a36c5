//! Nothing is left behind: not by a demo that ends, nor one that is interrupted, nor one that is killed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use ringway_testnet::{keepers, remove_kept, sweep, wait_until};
use tokio::signal::unix::{SignalKind, signal};

use crate::tcp::memcg;
use crate::{Error, Result, needs_root};

const PINS: &str = "/sys/fs/bpf/ringway";
const NETNS: &str = "/run/netns";
/// The demo's node is named like its gateway's namespace, so that each leads to the other.
const NODES: [&str; 2] = ["rw-gw-", "rwkeep-gw-"];

/// What [`clean`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Namespaces and pins.
    pub removed: Vec<String>,
    /// Processes that are still at work in theirs, and keep them.
    pub at_work: Vec<u32>,
}

/// Takes down every demo that was left standing, whoever started it, except those still going through their phases.
///
/// # Errors
/// Not root, or a namespace or pin could not be removed.
pub fn clean() -> Result<Cleaned> {
    needs_root("demo --clean")?;
    let mut removed = remove_kept()?;
    removed.extend(sweep()?);
    removed.extend(remove_pins()?);
    Ok(Cleaned { removed, at_work: keepers()?.into_iter().collect() })
}

/// Removes what demos left that were killed together with their guards.
pub(super) fn remove_stale() -> Result<()> {
    sweep()?;
    memcg::remove_stale();
    remove_pins()?;
    Ok(())
}

/// Removes all that this process built, kept or not.
pub(super) fn remove_own() -> Result<()> {
    ringway_testnet::remove_own()?;
    remove_pins()?;
    Ok(())
}

/// Removes the pins of nodes whose namespace is gone, and with it their interfaces.
fn remove_pins() -> Result<Vec<String>> {
    let entries = match fs::read_dir(PINS) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::Remove { path: PINS.into(), source }),
    };
    let mut removed = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = NODES.iter().any(|prefix| name.starts_with(prefix));
        if ours && !Path::new(NETNS).join(&name).exists() {
            remove_directory(entry.path())?;
            removed.push(format!("{PINS}/{name}"));
        }
    }
    Ok(removed)
}

fn remove_directory(path: PathBuf) -> Result<()> {
    match fs::remove_dir_all(&path) {
        // Another demo's guard was faster.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|source| Error::Remove { path, source }),
    }
}

/// A second process that outlives this one, should it be killed, and removes what it leaves.
pub(crate) struct Guard(Child);

impl Guard {
    pub fn start(binary: &Path) -> Result<Self> {
        let job = format!("guard,{}", std::process::id());
        let child = Command::new(binary)
            .args(["demo", "--inner", &job])
            // Closed by the kernel when this process ends in whatever way.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is not for it.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Run { program: binary.display().to_string(), source })?;
        Ok(Self(child))
    }

    /// Everything is removed already, or to be kept.
    pub fn dismiss(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b".");
        }
        let _ = self.0.wait();
    }
}

/// The guard's life: waits for the end of process `demo`, and unless dismissed before, tidies up after it.
pub(super) fn guard(demo: u32) -> io::Result<()> {
    if io::stdin().read(&mut [0])? > 0 {
        return Ok(());
    }
    // The pipe is closed a moment before the process is gone.
    let _ = wait_until("the demo's end", Duration::from_secs(5), || ended(demo));
    remove_stale().map_err(io::Error::other)
}

/// Gone, or a zombie that its parent has not asked after.
fn ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"))
}

/// On SIGINT, SIGTERM and SIGHUP: removes everything, then ends with 128 and the signal's number.
pub(crate) fn end_on_signals() -> Result<()> {
    let failed = |source| Error::Run { program: "a signal handler".into(), source };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let wait = {
        let _inside = runtime.enter();
        let mut signals = Vec::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            signals.push((kind, signal(kind).map_err(failed)?));
        }
        first_of(signals)
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let number = runtime.block_on(wait);
            // A reader that has gone away, perhaps by the same signal, is no reason to stop here.
            let _ = writeln!(io::stderr(), "\ninterrupted: removing what was built");
            if let Err(e) = remove_own() {
                let _ = writeln!(io::stderr(), "{e}");
            }
            std::process::exit(128 + number);
        })
        .map_err(failed)?;
    Ok(())
}

async fn first_of(mut signals: Vec<(SignalKind, tokio::signal::unix::Signal)>) -> i32 {
    std::future::poll_fn(|context| {
        for (kind, signal) in &mut signals {
            if signal.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(kind.as_raw_value());
            }
        }
        std::task::Poll::Pending
    })
    .await
}
