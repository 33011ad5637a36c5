//! Programs in the background, ended with their guard.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Error, Namespace, Result, sweep, wait_for};

/// How long a program may take to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// A running program. Dropping it ends its process group: SIGTERM, then SIGKILL after two seconds.
pub struct Child {
    process: process::Child,
    program: String,
    namespace: Namespace,
    log: PathBuf,
    status: Option<ExitStatus>,
}

#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// All it wrote to standard output and error.
    pub log: String,
}

type Job = Box<dyn FnOnce() + Send>;

/// Starts the thread that forks. PR_SET_PDEATHSIG fires when the *thread* that forked ends, so
/// children must come from one that lives as long as the process; and it must start outside every
/// namespace.
pub(crate) fn start_spawner() -> &'static Sender<Job> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (jobs, inbox) = channel::<Job>();
        thread::spawn(move || inbox.iter().for_each(|job| job()));
        jobs
    })
}

pub(crate) fn spawn(namespace: &Namespace, mut command: Command) -> Result<Child> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let program = command.get_program().to_string_lossy().into_owned();
    let base = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let log = namespace.directory().join(format!("{base}-{number}.log"));
    let open = || {
        let file = File::create(&log)?;
        Ok((file.try_clone()?, file))
    };
    let (out, err): (File, File) =
        open().map_err(|e: io::Error| Error::file("creating", log.as_path(), e))?;
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);

    let failed = |source| Error::Start {
        program: program.clone(),
        namespace: namespace.name().into(),
        source,
    };
    let (answer, answered) = channel();
    let job: Job = Box::new(move || {
        let _ = answer.send(command.spawn());
    });
    let gone = |_| io::Error::other("the spawning thread has ended");
    start_spawner().send(job).map_err(|_| failed(gone(())))?;
    let process = answered.recv().unwrap_or_else(|_| Err(gone(()))).map_err(failed)?;
    let child = Child { process, program, namespace: namespace.clone(), log, status: None };
    sweep::note_started(namespace.directory(), child.pid())
        .map_err(|e| Error::file("writing into", namespace.directory(), e))?;
    Ok(child)
}

/// The command's program, and with it its sockets, begin in a control group of version 2, named by
/// its directory.
///
/// # Errors
/// There is none, or processes may not enter it.
pub fn join_cgroup(command: &mut Command, cgroup: &Path) -> Result<()> {
    let path = cgroup.join("cgroup.procs");
    let procs = File::options().write(true).open(&path);
    let procs = procs.map_err(|e| Error::file("opening", path, e))?;
    // 0 is the process that writes it.
    let join = move || (&procs).write_all(b"0");
    // SAFETY: between fork and exec only a system call is made: no allocation, no lock.
    unsafe { command.pre_exec(join) };
    Ok(())
}

impl Child {
    /// Process id; it is also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal to the program alone. An ended program is no error.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.running() {
            return Ok(());
        }
        // Not reaped yet, so the pid is still ours.
        match Pid::from_raw(self.pid() as i32).map(|pid| kill_process(pid, signal)) {
            Some(Err(e)) if e != rustix::io::Errno::SRCH => Err(self.failed(e.into())),
            _ => Ok(()),
        }
    }

    /// SIGKILL to the whole process group, and waits for the program.
    pub fn kill(&mut self) -> Result<()> {
        if self.status.is_none() {
            self.signal_group(Signal::KILL);
            let status = self.process.wait().map_err(|e| self.failed(e))?;
            self.status = Some(status);
        }
        Ok(())
    }

    /// Whether it has not ended yet.
    pub fn running(&mut self) -> bool {
        self.poll().is_none()
    }

    /// Waits for its end. On timeout it goes on running.
    pub fn wait(&mut self, timeout: Duration) -> Result<Finished> {
        let what = format!("the end of {}", self.program);
        let status = wait_for(what, timeout, || self.poll().ok_or("it is still running"))?;
        Ok(Finished { status, log: self.log() })
    }

    /// Its standard output and error so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until something accepts TCP connections at `address` in the child's namespace; fails
    /// at once, with the program's last words, when it ends before.
    pub fn wait_for_port(&mut self, address: SocketAddr, timeout: Duration) -> Result<()> {
        let namespace = self.namespace.clone();
        let what = format!("{} accepting at {address}", self.program);
        wait_for(what, timeout, || {
            if let Some(status) = self.poll() {
                return Ok(Err(self.ended_early(status)));
            }
            let one_try = Duration::from_millis(200);
            match namespace.run(|| TcpStream::connect_timeout(&address, one_try)) {
                Ok(Ok(_)) => Ok(Ok(())),
                Ok(Err(e)) => Err(e.to_string()),
                Err(e) => Ok(Err(e)),
            }
        })?
    }

    /// Waits until its log holds `text`; fails at once when it ends before.
    pub fn wait_for_log(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let what = format!("{} saying {text:?}", self.program);
        wait_for(what, timeout, || {
            let status = self.poll();
            let log = self.log();
            match status {
                _ if log.contains(text) => Ok(Ok(())),
                Some(status) => Ok(Err(self.ended_early(status))),
                None => Err(tail(&log)),
            }
        })?
    }

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none()
            && let Ok(Some(status)) = self.process.try_wait()
        {
            self.status = Some(status);
        }
        self.status
    }

    fn ended_early(&self, status: ExitStatus) -> Error {
        Error::Ended {
            program: self.program.clone(),
            status: status.to_string(),
            log: tail(&self.log()),
        }
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Start {
            program: self.program.clone(),
            namespace: self.namespace.name().into(),
            source,
        }
    }

    fn signal_group(&self, signal: Signal) {
        // The leader is not reaped yet, so the group's id cannot have been reused.
        if let Some(group) = Pid::from_raw(self.pid() as i32) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.namespace.keep() || !self.running() {
            return;
        }
        self.signal_group(Signal::TERM);
        if self.wait(GRACE).is_err() {
            let _ = self.kill();
        }
    }
}

/// The last lines of a log, for error messages.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
