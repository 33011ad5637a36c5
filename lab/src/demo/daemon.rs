//! The gateway's daemon: the real binary, asked and told as its user would.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use ringway_testnet::{Child, Namespace, Signal, wait_for};
use serde_json::Value;

use crate::{Error, Result};

/// For start, where the verifier reads all programs beside others, and for a check that has to rise.
const PATIENCE: Duration = Duration::from_secs(90);

/// `ringway run` in the gateway's namespace, perhaps dead.
pub(crate) struct Daemon {
    binary: PathBuf,
    namespace: Namespace,
    configuration: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts it and waits until it says that every backend is up.
    pub fn start(binary: &Path, namespace: &Namespace, configuration: &Path) -> Result<Self> {
        let child = spawn(binary, namespace, configuration)?;
        let mut daemon = Self {
            binary: binary.into(),
            namespace: namespace.clone(),
            configuration: configuration.into(),
            child,
        };
        daemon.wait_until_up()?;
        Ok(daemon)
    }

    /// A new one in place of one that has ended.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.binary, &self.namespace, &self.configuration)?;
        Ok(())
    }

    /// SIGKILL: it cannot tidy anything up.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// SIGTERM, and waits for its end.
    pub fn terminate(&mut self) -> Result<()> {
        self.child.signal(Signal::TERM)?;
        let end = self.child.wait(Duration::from_secs(5))?;
        if end.status.success() {
            return Ok(());
        }
        let output = format!("{}; its last words: {}", end.status, last_line(&end.log));
        Err(Error::Failed { program: "ringway run, told to end by SIGTERM,".into(), output })
    }

    /// Waits until it runs and every backend of every service is up; fails at once when it ends.
    pub fn wait_until_up(&mut self) -> Result<()> {
        let ready = || {
            if !self.child.running() {
                return Ok(Err(self.ended()));
            }
            let status = match self.status() {
                Ok(status) => status,
                Err(e) => return Err(e.to_string()),
            };
            match what_is_missing(&status) {
                None => Ok(Ok(())),
                Some(missing) => Err(missing),
            }
        };
        wait_for("every backend up by `ringway status`", PATIENCE, ready)?
    }

    /// Waits until the daemon says that this backend of the service `web` is down.
    pub fn wait_until_down(&self, address: &str) -> Result<()> {
        let down = || {
            let status = self.status().map_err(|e| e.to_string())?;
            let services = status["services"].as_array().into_iter().flatten();
            let gone = services
                .filter(|service| service["name"] == "web")
                .flat_map(|service| service["backends"].as_array().into_iter().flatten())
                .any(|b| b["address"] == address && b["health"] == "down");
            if gone { Ok(()) } else { Err("it is not down".to_owned()) }
        };
        Ok(wait_for(format!("{address} down by `ringway status`"), PATIENCE, down)?)
    }

    /// `ringway status -o json`, whether or not the daemon runs.
    pub fn status(&self) -> Result<Value> {
        let output = self.command(&["status", "-o", "json", "-c"])?;
        // 3: unhealthy, and said so.
        if matches!(output.status.code(), Some(0 | 3))
            && let Ok(value) = serde_json::from_slice(&output.stdout)
        {
            return Ok(value);
        }
        Err(failed("ringway status", &output))
    }

    /// `ringway status`: what it writes first.
    pub fn status_heading(&self) -> Result<String> {
        let output = self.command(&["status", "-c"])?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    }

    /// Ends the daemon and has `ringway detach --verify` remove its programs and maps.
    pub fn detach(&mut self) -> Result<()> {
        self.child.kill()?;
        let output = self.command(&["detach", "--verify", "-c"])?;
        if output.status.success() {
            Ok(())
        } else {
            Err(failed("ringway detach --verify", &output))
        }
    }

    /// The end of what the daemon logged.
    pub fn last_words(&self) -> String {
        tail(&self.child.log())
    }

    /// Runs the binary with these arguments and the configuration's path.
    fn command(&self, arguments: &[&str]) -> Result<Output> {
        self.namespace
            .command(&self.binary)
            .args(arguments)
            .arg(&self.configuration)
            .output()
            .map_err(|source| Error::Run { program: self.binary.display().to_string(), source })
    }

    fn ended(&self) -> Error {
        let output = self.last_words();
        Error::Failed { program: "ringway run".into(), output }
    }
}

fn spawn(binary: &Path, namespace: &Namespace, configuration: &Path) -> Result<Child> {
    let mut command = namespace.command(binary);
    command.arg("run").arg("-c").arg(configuration);
    Ok(namespace.spawn(command)?)
}

fn backends(status: &Value) -> impl Iterator<Item = &Value> {
    let services = status["services"].as_array().into_iter().flatten();
    services.flat_map(|s| s["backends"].as_array().into_iter().flatten())
}

/// Why not everything is up yet.
fn what_is_missing(status: &Value) -> Option<String> {
    if status["daemon"]["running"] != true {
        return Some("the daemon does not answer".into());
    }
    if backends(status).next().is_none() {
        return Some("it has no backends".into());
    }
    // Up is not enough: without a next hop it is in no ring yet.
    let used = |b: &&Value| b["health"] == "up" && !b["next_hop"].is_null();
    if let Some(b) = backends(status).find(|b| !used(b)) {
        let text = |key: &str| b[key].as_str().unwrap_or_default().to_owned();
        return Some(format!("{} is {}: {}", text("address"), text("health"), text("reason")));
    }
    status["problems"].as_array()?.first().map(|p| p["error"].to_string())
}

fn failed(program: &str, output: &Output) -> Error {
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    Error::Failed {
        program: program.into(),
        output: format!("{}: {}", output.status, tail(&String::from_utf8_lossy(&said))),
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

fn last_line(log: &str) -> &str {
    log.lines().last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn says_what_is_missing() {
        let backend = |health: &str, next_hop: Value| json!({"address": "10.2.0.11", "health": health, "reason": "no route", "next_hop": next_hop});
        let status = |running: bool, backend: Value| {
            let services = json!([{"backends": [backend]}]);
            json!({"daemon": {"running": running}, "problems": [], "services": services})
        };
        assert_eq!(what_is_missing(&status(true, backend("up", json!({})))), None);
        let down = what_is_missing(&status(true, backend("down", json!({}))));
        assert_eq!(down.as_deref(), Some("10.2.0.11 is down: no route"));
        let no_way = what_is_missing(&status(true, backend("up", Value::Null)));
        assert_eq!(no_way.as_deref(), Some("10.2.0.11 is up: no route"));
        assert!(what_is_missing(&status(false, backend("up", json!({})))).is_some());
        assert!(what_is_missing(&json!({"daemon": {"running": true}})).is_some());
    }
}
