//! Nothing is left behind: not by a demo that ends, nor one that is interrupted, nor one that is
//! killed.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fs, thread};

use ringway_testnet::{keepers, remove_kept, sweep, wait_until};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::signal::unix::{SignalKind, signal};

use crate::benches::tcp::memcg;
use crate::{Error, Result, needs_root, programs};

const PINS: &str = "/sys/fs/bpf/ringway";
const NETNS: &str = "/run/netns";
/// The demo's node is named like its gateway's namespace, so that each leads to the other.
const NODES: [&str; 2] = ["rw-gw-", "rwkeep-gw-"];

/// For helper processes to close their sockets.
const HELPERS_END: Duration = Duration::from_secs(120);
/// A signal is being obeyed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    pub removed: Vec<String>,
    /// Processes that are still at work in theirs, and keep them.
    pub at_work: Vec<u32>,
}

/// Takes down every demo that was left standing, whoever started it, except those still going
/// through their phases.
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
struct Guard(Child);

impl Guard {
    fn start() -> Result<Self> {
        let binary = programs::own()?;
        let job = format!("guard,{}", std::process::id());
        let child = Command::new(&binary)
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

    /// Everything is removed already, or to be kept. Where a signal is being obeyed it does not
    /// return: what was measured meanwhile, by helpers that were being ended, is nothing, and the
    /// process ends as the signal says.
    fn dismiss(mut self) {
        while INTERRUPTED.load(Relaxed) {
            thread::park();
        }
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b".");
        }
        let _ = self.0.wait();
    }
}

/// Does something whose namespaces go whatever happens to this process: an interrupt takes
/// everything down at once.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let guard = Guard::start()?;
    end_on_signals()?;
    let done = work();
    guard.dismiss();
    done
}

/// The guard's life: waits for the end of process `demo`, and unless dismissed before, tidies up
/// after it.
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
fn end_on_signals() -> Result<()> {
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
            INTERRUPTED.store(true, Relaxed);
            let _ = writeln!(io::stderr(), "\ninterrupted: removing what was built");
            end_helpers();
            if let Err(e) = remove_own() {
                let _ = writeln!(io::stderr(), "{e}");
            }
            std::process::exit(128 + number);
        })
        .map_err(failed)?;
    Ok(())
}

/// Ends the processes that this one has started in its own group, so not the guard, and waits until
/// they are gone: one with thousands of sockets takes a while to close them.
fn end_helpers() {
    let helpers = helpers_of(std::process::id());
    let mut helpers: Vec<Pid> =
        helpers.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect();
    for pid in &helpers {
        // Ended meanwhile: fine.
        let _ = kill_process(*pid, Signal::KILL);
    }
    let gone = || {
        helpers.retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
        helpers.is_empty()
    };
    let _ = wait_until("the end of helper processes", HELPERS_END, gone);
}

/// Children of a process that are in its group.
fn helpers_of(parent: u32) -> Vec<u32> {
    let is_helper = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parent_and_group(&stat) == Some((parent, group_of(parent)))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_helper).collect()
}

fn group_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    parent_and_group(&stat).map_or(0, |(_, group)| group)
}

/// `PID (NAME) STATE PARENT GROUP ...` (proc_pid_stat(5)).
fn parent_and_group(stat: &str) -> Option<(u32, u32)> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_and_not_the_guard() {
        let sleep = |apart: bool| {
            let mut command = Command::new("sleep");
            command.arg("60");
            if apart {
                command.process_group(0);
            }
            command.spawn().unwrap()
        };
        let (mut helper, mut guard) = (sleep(false), sleep(true));
        let found = helpers_of(std::process::id());
        for child in [&mut helper, &mut guard] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(found.contains(&helper.id()) && !found.contains(&guard.id()), "{found:?}");
        assert!(ended(helper.id()));
        assert_eq!(parent_and_group("7 (a) b) S 3 5 5 0"), Some((3, 5)));
    }
}
