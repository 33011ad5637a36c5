//! `ringway run` in a namespace.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringway_testnet::{Child, Namespace, Signal, abandoned, wait_for, wait_until};
use serde_json::Value;

use crate::binary::{self, Ran};
use crate::{SOON, STARTED, ringway};

const PINS: &str = "/sys/fs/bpf/ringway";

/// A daemon and the packet path it made. Dropping it ends the one and detaches the other.
pub struct Gateway {
    binary: PathBuf,
    namespace: Namespace,
    configuration: PathBuf,
    child: Child,
}

impl Gateway {
    /// Writes the configuration, starts the daemon, and waits until it serves, nothing is wrong and
    /// every backend gets traffic: on a busy machine the first result of a check may be a failure.
    pub fn start(namespace: &Namespace, text: &str) -> Result<Gateway> {
        let gateway = Gateway::start_degraded(namespace, text)?;
        gateway.wait_status("all backends", |status| status["degraded"] == false)?;
        Ok(gateway)
    }

    /// The same where some backends get no traffic.
    pub fn start_degraded(namespace: &Namespace, text: &str) -> Result<Gateway> {
        let mut gateway = Gateway::launch(namespace, text)?;
        gateway.wait_healthy()?;
        Ok(gateway)
    }

    /// Writes the configuration and starts the daemon, no more.
    pub fn launch(namespace: &Namespace, text: &str) -> Result<Gateway> {
        Gateway::launch_with(namespace, text, |_| ())
    }

    /// The same, with a say in how the daemon is started.
    pub fn launch_with(
        namespace: &Namespace,
        text: &str,
        adapt: impl FnOnce(&mut Command),
    ) -> Result<Gateway> {
        Gateway::launch_binary(binary::path()?, namespace, text, adapt)
    }

    /// The same, of another version.
    pub fn launch_binary(
        binary: PathBuf,
        namespace: &Namespace,
        text: &str,
        adapt: impl FnOnce(&mut Command),
    ) -> Result<Gateway> {
        let configuration = namespace.directory().join("ringway.toml");
        fs::write(&configuration, text)?;
        let child = spawn(&binary, namespace, &configuration, adapt)?;
        Ok(Gateway { binary, namespace: namespace.clone(), configuration, child })
    }

    /// Another version is started, and asked, from now on.
    pub fn change_binary(&mut self, binary: &Path) {
        self.binary = binary.to_owned();
    }

    /// Name of the node: that of its namespace.
    pub fn node(&self) -> &str {
        self.namespace.name()
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub fn configuration(&self) -> &Path {
        &self.configuration
    }

    pub fn pins(&self) -> PathBuf {
        Path::new(PINS).join(self.node())
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Threads of the daemon but its first: numbers and names.
    pub fn threads(&self) -> Result<Vec<(u32, String)>> {
        let first = self.child.pid();
        let mut found = Vec::new();
        for entry in fs::read_dir(format!("/proc/{first}/task"))? {
            let path = entry?.path();
            let number = path.file_name().unwrap_or_default().to_string_lossy().parse()?;
            // One that has just ended has no name.
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            if number != first {
                found.push((number, name.trim().to_owned()));
            }
        }
        Ok(found)
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        self.child.log()
    }

    /// Waits until the daemon says that it serves; fails at once when it ends.
    pub fn wait_serving(&mut self) -> Result<()> {
        Ok(self.child.wait_for_log("serving: ", STARTED)?)
    }

    /// Waits until the daemon finds nothing wrong; fails at once when it ends.
    pub fn wait_healthy(&mut self) -> Result<()> {
        self.wait_serving()?;
        self.wait_status("a healthy gateway", |status| status["healthy"] == true)?;
        Ok(())
    }

    /// Waits until the daemon has used so many times 60 ms of a processor, or serves: a moment of its
    /// start that is the same on a busy machine.
    pub fn wait_progress(&mut self, steps: u64) -> Result<()> {
        // In hundredths of a second.
        let used = |child: &Child| -> Option<u64> {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.pid())).ok()?;
            let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
            Some(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
        };
        wait_until("progress of a start", STARTED, || {
            used(&self.child).is_some_and(|ticks| ticks >= steps * 6)
                || self.log().contains("serving: ")
                || !self.child.running()
        })?;
        ensure!(self.child.running(), "it ended: {}", self.log());
        Ok(())
    }

    /// Waits for a status that fits, and returns it.
    pub fn wait_status(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let look = || {
            let status = self.status().map_err(|error| format!("{error:#}"))?;
            if fits(&status) { Ok(status) } else { Err(summary(&status)) }
        };
        wait_for(what, SOON, look)
            .with_context(|| format!("the daemon said:\n{}", tail(&self.log())))
    }

    /// Waits until the daemon itself answers, whose loop has turned later than this.
    pub fn wait_turn(&self, later_than: Instant) -> Result<Value> {
        let look = || {
            let asked = Instant::now();
            let status = self.status().map_err(|error| format!("{error:#}"))?;
            let age = status["daemon"]["loop_age_ms"].as_u64().map(Duration::from_millis);
            let turned = age.is_some_and(|age| asked > later_than + age);
            if turned { Ok(status) } else { Err(status["daemon"].to_string()) }
        };
        Ok(wait_for("a turn of the daemon's loop", SOON, look)?)
    }

    /// `ringway status -o json`: the daemon's own, unless there is none or it stands still.
    pub fn status(&self) -> Result<Value> {
        let ask = || {
            let asked = self.ringway(&["status", "--ledger", "-o", "json"]);
            let status = match asked.and_then(|ran| ran.json()) {
                Ok(status) => status,
                Err(error) => return Ok(Err(error)),
            };
            let late = status["from_pins"] == true && self.goes_on();
            if late { Err(summary(&status)) } else { Ok(Ok(status)) }
        };
        wait_for("the daemon's own status", SOON, ask)?
    }

    /// The daemon lives and is not stopped.
    fn goes_on(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.pid()));
        let state = stat.ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
        state.is_some_and(|state| !"TtZX".contains(state))
    }

    /// `ringway ARGUMENTS -c CONFIGURATION` in the gateway's namespace, of the gateway's version. A
    /// busy machine may keep the daemon from answering within two seconds; then `status` asks again.
    pub fn ringway(&self, arguments: &[&str]) -> Result<Ran> {
        let configuration = self.configuration.to_string_lossy();
        let all = [arguments, &["-c", &configuration]].concat();
        let ask = || {
            let ran = binary::run(&self.binary, &self.namespace, &all);
            let late = arguments.first() == Some(&"status")
                && ran.as_ref().is_ok_and(|ran| ran.out.contains("its daemon does not answer"))
                && self.goes_on();
            if late { Err("it does not answer") } else { Ok(ran) }
        };
        wait_for("the daemon's answer", SOON, ask)?
    }

    /// The document that `ringway ARGUMENTS -o json` succeeds with.
    pub fn document(&self, arguments: &[&str]) -> Result<Value> {
        self.ringway(&[arguments, &["-o", "json"]].concat())?.done()?.json()
    }

    /// `ringway ARGUMENTS`, of the gateway's version; of commands that are about no node.
    pub fn plain(&self, arguments: &[&str]) -> Result<Ran> {
        binary::run(&self.binary, &self.namespace, arguments)
    }

    /// What the API answers to raw bytes: everything until it closes the connection.
    pub fn api(&self, request: &[u8]) -> Result<String> {
        let mut stream = UnixStream::connect(self.namespace.directory().join("api.sock"))?;
        stream.set_read_timeout(Some(STARTED))?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            // An answer to a request that was not read to its end is followed by a reset.
            Err(error) if error.kind() == ErrorKind::ConnectionReset && !answer.is_empty() => {}
            other => drop(other?),
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// SIGTERM, and waits for the end; returns what the daemon logged.
    pub fn terminate(&mut self) -> Result<String> {
        self.child.signal(Signal::TERM)?;
        let end = self.child.wait(SOON)?;
        ensure!(end.status.success(), "SIGTERM ended the daemon with {}: {}", end.status, end.log);
        Ok(end.log)
    }

    /// Starts a daemon in place of one that has ended.
    pub fn start_again(&mut self) -> Result<()> {
        self.start_again_with(|_| ())
    }

    /// The same, and waits until nothing is wrong.
    pub fn start_healthy(&mut self) -> Result<()> {
        self.start_again()?;
        self.wait_healthy()
    }

    /// [`Gateway::start_again`], with a say in how it is started.
    pub fn start_again_with(&mut self, adapt: impl FnOnce(&mut Command)) -> Result<()> {
        self.child = spawn(&self.binary, &self.namespace, &self.configuration, adapt)?;
        Ok(())
    }

    /// Replaces the configuration file; for the next daemon.
    pub fn rewrite(&self, text: &str) -> Result<()> {
        Ok(fs::write(&self.configuration, text)?)
    }

    /// Another configuration comes into force.
    pub fn reload(&self, text: &str) -> Result<()> {
        self.rewrite(text)?;
        let ran = self.ringway(&["reload"])?;
        ensure!(ran.code == 0, "{}", ran.said());
        Ok(())
    }

    /// Waits for the end of a daemon that is expected to refuse; its exit code and its words.
    pub fn refusal(&mut self) -> Result<(i32, String)> {
        let end = self.child.wait(STARTED)?;
        Ok((end.status.code().unwrap_or(-1), end.log))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        if !self.pins().exists() {
            return;
        }
        match ringway(&self.namespace, &["detach", "--node", self.node()]) {
            Ok(Ran { code: 0, .. }) => {}
            Ok(ran) => eprintln!("{} not detached: {}", self.node(), ran.said()),
            Err(error) => eprintln!("{} not detached: {error:#}", self.node()),
        }
        if std::thread::panicking() {
            eprintln!("the daemon's last words:\n{}", tail(&self.log()));
        }
    }
}

fn spawn(
    binary: &Path,
    namespace: &Namespace,
    configuration: &Path,
    adapt: impl FnOnce(&mut Command),
) -> Result<Child> {
    let mut command = namespace.command(binary);
    command.arg("run").arg("-c").arg(configuration).env_remove("NOTIFY_SOCKET");
    adapt(&mut command);
    Ok(namespace.spawn(command)?)
}

/// Packets that ended for this reason, by a status.
pub fn packets(status: &Value, reason: &str) -> u64 {
    let counters = status["counters"].as_array().into_iter().flatten();
    let of = counters.filter(|counter| counter["reason"] == reason);
    of.filter_map(|counter| counter["packets"].as_u64()).sum()
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// What a failed wait wants to show of a status.
fn summary(status: &Value) -> String {
    format!("problems {}, services {}", status["problems"], status["services"])
}

/// Removes the pins of nodes whose test was killed, once per process.
pub fn remove_stale_pins() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| result = remove_pins());
    result
}

fn remove_pins() -> Result<()> {
    let Ok(entries) = fs::read_dir(PINS) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !abandoned(&name) {
            continue;
        }
        match fs::remove_dir_all(entry.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                bail!("stale pins {}: {error}", entry.path().display())
            }
            _ => {}
        }
    }
    Ok(())
}
