//! Does a program end with 0? It runs as the daemon's user, without a shell, in a process group of
//! its own, which is killed when its time is over.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway_config::ExecCheck;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::failure::Failure;

/// Programs at once: more wait.
pub(super) const AT_ONCE: usize = 64;
/// How much a program may say.
const SAID_LIMIT: usize = 64 * 1024;
/// How much of it becomes the reason.
const REASON_LIMIT: usize = 200;
/// Nothing of the daemon's own environment (NOTIFY_SOCKET and the like) is handed down.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Passes when the program ends with 0 within `limit`.
pub(super) async fn exec(
    check: &ExecCheck,
    service: &str,
    backend: SocketAddr,
    limit: Duration,
) -> Result<(), Failure> {
    let Some((program, arguments)) = check.command.split_first() else { return Ok(()) };
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("RINGWAY_SERVICE", service)
        .env("RINGWAY_ADDRESS", backend.ip().to_string())
        .env("RINGWAY_PORT", backend.port().to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let child = command
        .spawn()
        .map_err(|error| Failure::Program(format!("{program} cannot be run: {error}")))?;
    // Dropped before the child, so that its process still has its number.
    let mut running = Running { group: child.id().and_then(|id| Pid::from_raw(id as i32)), child };
    match timeout(limit, running.end()).await {
        Err(_) => {
            let ms = limit.as_millis();
            Err(Failure::Program(format!("{name} has not ended within {ms} ms: killed")))
        }
        Ok(Err(error)) => Err(Failure::Program(format!("{name}: {error}"))),
        Ok(Ok((status, said))) => verdict(name, status, &said),
    }
}

type Kept = Arc<Mutex<Vec<u8>>>;

fn lock(kept: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program; dropping it kills its whole group.
struct Running {
    /// `None` once it has ended.
    group: Option<Pid>,
    child: Child,
}

impl Running {
    /// How it ends, and what it says: first on stderr, then on stdout.
    async fn end(&mut self) -> std::io::Result<(ExitStatus, [Vec<u8>; 2])> {
        let (out, err) = (Kept::default(), Kept::default());
        let mut hear = JoinSet::new();
        hear.spawn(listen(self.child.stdout.take(), out.clone()));
        hear.spawn(listen(self.child.stderr.take(), err.clone()));
        let status = self.child.wait().await?;
        self.group = None;
        // What it has left running may hold the pipes open: what is there by now must do.
        let heard = async { while hear.join_next().await.is_some() {} };
        let _ = timeout(Duration::from_millis(20), heard).await;
        let said = [err, out].map(|kept| std::mem::take(&mut *lock(&kept)));
        Ok((status, said))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
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

fn verdict(name: &str, status: ExitStatus, said: &[Vec<u8>; 2]) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    // "exit status: 2", "signal: 9 (SIGKILL)"
    let status = status.to_string().replace(':', "");
    let said = said.iter().find_map(|said| first_line(said));
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
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(5);

    async fn shell(script: &str, limit: Duration) -> Result<(), String> {
        let command = ["/bin/sh", "-c", script].map(String::from).to_vec();
        let check = ExecCheck { command: command.into() };
        let backend = "192.0.2.7:8080".parse().expect("an address");
        exec(&check, "web", backend, limit).await.map_err(|failure| failure.to_string())
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
        let began = Instant::now();
        let failure = shell(&script, Duration::from_millis(300)).await.expect_err("too long");
        assert_eq!(failure, "sh has not ended within 300 ms: killed");
        assert!(began.elapsed() < LONG);
        let pids = std::fs::read_to_string(&file).expect("it ran");
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
        let began = Instant::now();
        let flood = shell("while :; do echo flood; done", LONG).await.expect_err("a closed pipe");
        assert!(flood.starts_with("sh: "), "{flood}");
        shell("sleep 3 & exit 0", LONG).await.expect("passes");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_run_is_named() {
        let check = ExecCheck { command: vec!["/nonexistent/check".to_owned()].into() };
        let backend = "192.0.2.7:80".parse().expect("an address");
        let failure = exec(&check, "web", backend, LONG).await.expect_err("no program");
        let failure = failure.to_string();
        assert!(failure.starts_with("/nonexistent/check cannot be run: No such file"), "{failure}");
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
