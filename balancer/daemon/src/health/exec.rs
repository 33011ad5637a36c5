//! Does a program end with 0? A check's runs as the daemon's user, without a shell, in a process group of
//! its own, which is killed when the program has ended or its time is over.
//!
//! Starting a program and waiting for it may hang as file systems do, so a thread of its own does
//! both. A program that cannot be killed keeps that thread and its permit: there are never more
//! than [`AT_ONCE`] of them.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway_config::ExecCheck;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::failure::Failure;
use super::not_asked::{Lack, NotAsked, lack_of};

/// Programs at once: more wait.
pub(super) const AT_ONCE: usize = 64;
/// How much a program may say.
const SAID_LIMIT: usize = 64 * 1024;
/// How much of it becomes the reason.
const REASON_LIMIT: usize = 200;
/// Nothing of the daemon's own environment (NOTIFY_SOCKET and the like) is handed down.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Held until a program has ended.
pub(crate) type Permit = Arc<OwnedSemaphorePermit>;

/// Why a program is not started for long.
pub(super) fn no_room() -> NotAsked {
    let why = format!("{AT_ONCE} programs of checks have not ended, so no other is started");
    NotAsked { lack: Lack::Program, why }
}

/// Passes when the program ends with 0 within `limit`.
pub(super) async fn exec(
    check: &ExecCheck,
    service: &str,
    backend: SocketAddr,
    limit: Duration,
    last: &mut LastRun,
    permit: Permit,
) -> Result<(), Failure> {
    let Some((program, arguments)) = check.command.split_first() else { return Ok(()) };
    let mut command = command(program, arguments);
    command
        .env("RINGWAY_SERVICE", service)
        .env("RINGWAY_ADDRESS", backend.ip().to_string())
        .env("RINGWAY_PORT", backend.port().to_string())
        .stdin(Stdio::null());
    last.run(program, move || command.spawn(), limit, permit).await.map(drop)
}

/// Runs a program that reads these words from its standard input, at most a page of them; as this
/// user and group, else as the daemon's. The first line that it says.
pub(crate) async fn tell(
    program: &str,
    arguments: &[String],
    words: &str,
    user: Option<(u32, u32)>,
    limit: Duration,
    last: &mut LastRun,
    permit: Permit,
) -> Result<Option<String>, Failure> {
    let not_run = |error| not_asked(&format!("{program} cannot be run"), &error);
    let (reader, mut writer) = io::pipe().map_err(not_run)?;
    // A pipe has room for a page, so this does not wait.
    writer.write_all(words.as_bytes()).map_err(not_run)?;
    drop(writer);
    let mut command = command(program, arguments);
    command.stdin(reader);
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    last.run(program, move || command.spawn(), limit, permit).await
}

fn command(program: &str, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

/// A target's last program, which may not have ended yet. Dropping it kills the program's whole
/// group.
#[derive(Debug, Default)]
pub(crate) struct LastRun(Option<Running>);

impl LastRun {
    /// Waits for its end.
    ///
    /// # Errors
    /// It was given up, and has not ended within `limit` all the same.
    pub(super) async fn end(&mut self, limit: Duration) -> Result<(), Failure> {
        let Some(running) = &mut self.0 else { return Ok(()) };
        if timeout(limit, &mut running.thread).await.is_ok() {
            self.0 = None;
            return Ok(());
        }
        Err(running.not_ended("was killed at an earlier check, and has not ended yet"))
    }

    async fn run(
        &mut self,
        program: &str,
        spawn: impl FnOnce() -> io::Result<Child> + Send + 'static,
        limit: Duration,
        permit: Permit,
    ) -> Result<Option<String>, Failure> {
        let (started, ended) = (oneshot::channel(), oneshot::channel());
        let stage = Arc::new(Mutex::new(Stage::Starting));
        let its = stage.clone();
        let thread = spawn_blocking(move || {
            attend(spawn, &its, started.0, ended.0);
            drop(permit);
        });
        let running = self.0.insert(Running { program: program.to_owned(), stage, thread });
        let concluded = timeout(limit, running.conclude(started.1, ended.1)).await;
        running.give_up();
        concluded.unwrap_or_else(|_| {
            let ms = limit.as_millis();
            Err(running.not_ended(&format!("has not ended within {ms} ms: killed")))
        })
    }
}

/// Its outputs: stdout and stderr.
type Pipes = (Option<ChildStdout>, Option<ChildStderr>);
type Kept = Arc<Mutex<Vec<u8>>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Starting,
    /// To be killed as soon as it has started.
    GivenUp,
    /// Until it is waited for for good, nobody else gets its number.
    Runs(Pid),
    Ended,
}

/// Starts a program and waits for its end.
fn attend(
    spawn: impl FnOnce() -> io::Result<Child>,
    stage: &Mutex<Stage>,
    started: oneshot::Sender<io::Result<Pipes>>,
    ended: oneshot::Sender<io::Result<ExitStatus>>,
) {
    // A check that was given up no longer listens.
    let mut child = match spawn() {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    let group = Pid::from_child(&child);
    if let Stage::GivenUp = std::mem::replace(&mut *lock(stage), Stage::Runs(group)) {
        kill(group);
    }
    let _ = started.send(Ok((child.stdout.take(), child.stderr.take())));
    let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = retry_on_intr(|| waitid(WaitId::Pid(group), exited));
    {
        let mut stage = lock(stage);
        kill(group);
        *stage = Stage::Ended;
    }
    let _ = ended.send(child.wait());
}

fn kill(group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
}

/// A program, and the thread that waits for it.
#[derive(Debug)]
struct Running {
    program: String,
    stage: Arc<Mutex<Stage>>,
    thread: JoinHandle<()>,
}

impl Running {
    fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or(&self.program)
    }

    async fn conclude(
        &self,
        started: oneshot::Receiver<io::Result<Pipes>>,
        ended: oneshot::Receiver<io::Result<ExitStatus>>,
    ) -> Result<Option<String>, Failure> {
        let (program, name) = (&self.program, self.name());
        let not_run = |error| not_asked(&format!("{program} cannot be run"), &error);
        let lost = |error| not_asked(name, &error);
        let (out, err) = started.await.unwrap_or_else(no_thread).map_err(not_run)?;
        let out = out.map(process::ChildStdout::from_std).transpose().map_err(lost)?;
        let err = err.map(process::ChildStderr::from_std).transpose().map_err(lost)?;
        let kept = [Kept::default(), Kept::default()];
        let mut hear = JoinSet::new();
        hear.spawn(listen(err, kept[0].clone()));
        hear.spawn(listen(out, kept[1].clone()));
        let status = ended.await.unwrap_or_else(no_thread).map_err(lost)?;
        // What has left the group may hold the pipes open: what is there by now must do.
        let heard = async { while hear.join_next().await.is_some() {} };
        let _ = timeout(Duration::from_millis(20), heard).await;
        verdict(name, status, &kept.map(|kept| std::mem::take(&mut *lock(&kept))))
    }

    /// Kills its group, or has it killed as soon as it has started.
    fn give_up(&self) {
        let mut stage = lock(&self.stage);
        match *stage {
            Stage::Starting => *stage = Stage::GivenUp,
            Stage::Runs(group) => kill(group),
            Stage::GivenUp | Stage::Ended => {}
        }
    }

    /// A program that has not started has not asked.
    fn not_ended(&self, how: &str) -> Failure {
        match *lock(&self.stage) {
            Stage::Starting | Stage::GivenUp => {
                let program = &self.program;
                let why = format!("{program} cannot be run: the kernel has not started it yet");
                Failure::not_asked(Lack::Program, why)
            }
            Stage::Runs(_) | Stage::Ended => Failure::Program(format!("{} {how}", self.name())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn no_thread<T>(_: RecvError) -> io::Result<T> {
    Err(io::Error::other("its thread has ended"))
}

fn not_asked(what: &str, error: &io::Error) -> Failure {
    Failure::not_asked(lack_of(error).unwrap_or(Lack::Program), format!("{what}: {error}"))
}

/// Keeps the beginning, reads on to a limit; then the program may meet a closed pipe.
async fn listen(pipe: Option<impl AsyncRead + Unpin>, kept: Kept) {
    let Some(mut pipe) = pipe else { return };
    let mut piece = [0; 4096];
    let mut total = 0;
    while let Ok(length @ 1..) = pipe.read(&mut piece).await {
        total += length;
        if total > SAID_LIMIT {
            return;
        }
        let mut kept = lock(&kept);
        let room = (16 * REASON_LIMIT).saturating_sub(kept.len());
        kept.extend_from_slice(&piece[..length.min(room)]);
    }
}

/// What it says, where it ends with 0.
fn verdict(name: &str, status: ExitStatus, said: &[Vec<u8>; 2]) -> Result<Option<String>, Failure> {
    let said = said.iter().find_map(|said| first_line(said));
    if status.success() {
        return Ok(said);
    }
    // "exit status: 2", "signal: 9 (SIGKILL)"
    let status = status.to_string().replace(':', "");
    let reason = match said {
        Some(line) => format!("{name}: {line} ({status})"),
        None => format!("{name} ends with {status} and says nothing"),
    };
    Err(Failure::Program(reason))
}

/// The first line with anything on it, fit to be shown.
fn first_line(said: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(REASON_LIMIT).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Instant;

    use tokio::sync::Semaphore;

    const LONG: Duration = Duration::from_secs(5);

    /// The only one of so much room.
    async fn permit(room: &Arc<Semaphore>) -> Permit {
        Arc::new(room.clone().acquire_owned().await.expect("room"))
    }

    async fn asked(command: &[&str], limit: Duration) -> Result<(), Failure> {
        let command: Vec<String> = command.iter().map(ToString::to_string).collect();
        let check = ExecCheck { command: command.into() };
        let backend = "192.0.2.7:8080".parse().expect("an address");
        let (mut last, permit) = (LastRun::default(), permit(&Arc::new(Semaphore::new(1))).await);
        exec(&check, "web", backend, limit, &mut last, permit).await
    }

    async fn shell(script: &str, limit: Duration) -> Result<(), String> {
        let outcome = asked(&["/bin/sh", "-c", script], limit).await;
        outcome.map_err(|failure| failure.to_string())
    }

    #[tokio::test]
    async fn the_exit_status_decides_and_the_first_line_tells_why() {
        shell("exit 0", LONG).await.expect("passes");
        shell("echo fine; echo hm >&2", LONG).await.expect("passes whatever it says");
        for (script, want) in [
            ("exit 3", "sh ends with exit status 3 and says nothing"),
            (
                "echo out; echo; echo ' no disk' >&2; echo x >&2; exit 2",
                "sh: no disk (exit status 2)",
            ),
            ("echo only out; exit 1", "sh: only out (exit status 1)"),
            ("kill -9 $$", "sh ends with signal 9 (SIGKILL) and says nothing"),
            (
                "echo $RINGWAY_SERVICE $RINGWAY_ADDRESS $RINGWAY_PORT $PWD; exit 1",
                "sh: web 192.0.2.7 8080 / (exit status 1)",
            ),
            // Its outputs closed, it goes on.
            ("exec >&- 2>&-; sleep 0.05; exit 4", "sh ends with exit status 4 and says nothing"),
        ] {
            assert_eq!(shell(script, LONG).await.expect_err(script), want, "{script}");
        }
    }

    #[tokio::test]
    async fn nothing_is_handed_down() {
        let environment = shell("env | sort | tr '\\n' ' '; exit 1", LONG).await.expect_err("1");
        assert!(!environment.contains("CARGO") && !environment.contains("HOME"), "{environment}");
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_with_its_children() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pids");
        let script = format!("sleep 100 & echo $$ $! >{}; wait", file.display());
        let first = Instant::now();
        // A busy machine may not have run it so far by then.
        let (failure, pids) = loop {
            let began = Instant::now();
            let failure = shell(&script, Duration::from_millis(300)).await.expect_err("too long");
            assert!(began.elapsed() < LONG);
            match std::fs::read_to_string(&file) {
                Ok(text) if text.ends_with('\n') => break (failure, text),
                _ => assert!(first.elapsed() < 6 * LONG, "it did not run: {failure}"),
            }
        };
        assert_eq!(failure, "sh has not ended within 300 ms: killed");
        for pid in pids.split_whitespace() {
            gone(pid).await;
        }
    }

    #[tokio::test]
    async fn one_that_is_given_up_is_killed_with_its_children() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pids");
        let script = format!("sleep 100 & echo $$ $! >{}; wait", file.display());
        let asking = tokio::spawn(async move { shell(&script, LONG).await });
        let pids = loop {
            match std::fs::read_to_string(&file) {
                Ok(text) if text.ends_with('\n') => break text,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        asking.abort();
        for pid in pids.split_whitespace() {
            gone(pid).await;
        }
    }

    #[tokio::test]
    async fn what_a_program_leaves_running_is_killed_when_it_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let script = format!("sleep 100 >&- 2>&- & echo $! >{}; exit 0", file.display());
        shell(&script, LONG).await.expect("passes");
        let pid = std::fs::read_to_string(&file).expect("it ran");
        gone(pid.trim()).await;
    }

    /// Waits until there is no such process, not even a zombie of ours. An orphan is another's.
    async fn gone(pid: &str) {
        let stat = Path::new("/proc").join(pid).join("stat");
        let ours = format!(" {} ", std::process::id());
        let began = Instant::now();
        while let Ok(stat) = std::fs::read_to_string(&stat) {
            let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
            if after.starts_with('Z') && !after[1..].starts_with(&ours) {
                return;
            }
            assert!(began.elapsed() < LONG, "still there: {stat}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn output_without_end_and_pipes_left_open_do_not_hold_it_up() {
        let flood = shell("while :; do echo flood; done", LONG).await.expect_err("a closed pipe");
        assert!(flood.starts_with("sh: "), "{flood}");
        shell("sleep 100 & exit 0", LONG).await.expect("passes");
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_run_is_named() {
        let failure = asked(&["/nonexistent/check"], LONG).await.expect_err("no program");
        assert!(matches!(failure, Failure::NotAsked(_)), "it says nothing about the backend");
        let failure = failure.to_string();
        assert!(failure.starts_with("/nonexistent/check cannot be run: No such file"), "{failure}");
    }

    /// Killing its group is in vain, as it is in none of its own.
    #[tokio::test]
    async fn a_program_that_cannot_be_killed_keeps_its_place_and_has_no_second_beside_it() {
        let (room, mut last) = (Arc::new(Semaphore::new(1)), LastRun::default());
        let (reader, hold) = std::io::pipe().expect("a pipe");
        // Started already, so that the limit is for its end alone.
        let cat = Command::new("/bin/cat").stdin(reader).stdout(Stdio::piped()).spawn();
        let limit = Duration::from_secs(1);
        let failure = last.run("/bin/cat", move || cat, limit, permit(&room).await).await;
        let failure = failure.expect_err("it goes on").to_string();
        assert_eq!(failure, "cat has not ended within 1000 ms: killed");
        assert_eq!(room.available_permits(), 0, "it runs");
        let failure = last.end(limit).await.expect_err("it runs");
        assert!(matches!(failure, Failure::Program(_)), "{failure:?}");
        let words = "cat was killed at an earlier check, and has not ended yet";
        assert_eq!(failure.to_string(), words);
        drop(hold);
        last.end(LONG).await.expect("it has ended");
        assert_eq!(room.available_permits(), 1);
    }

    /// As on a file system that hangs.
    #[tokio::test]
    async fn a_program_that_does_not_start_says_nothing_about_the_backend() {
        let (room, mut last) = (Arc::new(Semaphore::new(1)), LastRun::default());
        let (release, gate) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let spawn = move || {
            let _ = gate.recv_timeout(LONG);
            let child = Command::new("/bin/sleep").arg("100").process_group(0).spawn()?;
            let _ = tell.send(child.id());
            Ok(child)
        };
        let limit = Duration::from_millis(100);
        let failure = last.run("/bin/sleep", spawn, limit, permit(&room).await).await;
        for failure in [failure.map(drop), last.end(limit).await] {
            let Err(Failure::NotAsked(NotAsked { lack, why })) = failure else {
                panic!("{failure:?}");
            };
            assert_eq!(lack, Lack::Program);
            assert_eq!(why, "/bin/sleep cannot be run: the kernel has not started it yet");
        }
        assert_eq!(room.available_permits(), 0);
        // Nobody waits for it any more when it starts.
        drop(release);
        last.end(LONG).await.expect("it is killed");
        gone(&told.recv().expect("it has started").to_string()).await;
    }

    /// With a database that answers so.
    #[tokio::test]
    async fn the_documented_program_works() {
        let document = include_str!("../../../../docs/health-checks.md");
        let (_, rest) = document.split_once("```sh replication\n").expect("a program");
        let (program, _) = rest.split_once("```").expect("its end");
        for (lag, want) in [
            ("echo 3", Ok(())),
            ("echo 40", Err("sh: lags 40 s behind (exit status 1)")),
            ("echo 'no route' >&2; return 2", Err("sh: no route (exit status 1)")),
        ] {
            let script = format!("psql() {{ {lag}; }}\nset -- 10\n{program}");
            let found = shell(&script, LONG).await;
            assert_eq!(found, want.map_err(ToOwned::to_owned), "{lag}");
        }
    }
}
