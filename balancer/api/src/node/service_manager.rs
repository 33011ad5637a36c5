//! How a daemon was started, and so how it is started again: by systemd, or by hand.

use std::path::Path;
use std::process::{Command, Stdio};

/// How to have another daemon in place of this process; traffic goes on meanwhile. `hangs`: it
/// hears no SIGTERM.
pub fn restart(pid: u64, hangs: bool) -> String {
    let about = Path::new("/proc").join(pid.to_string());
    let groups = std::fs::read_to_string(about.join("cgroup")).unwrap_or_default();
    let command = std::fs::read(about.join("cmdline")).unwrap_or_default();
    in_words(pid, hangs, &groups, &command)
}

/// What systemd's start of this node's daemon says of itself, such as `waiting for eth1`; `None`:
/// there is no such start. A daemon that waits for its interfaces has neither pins nor a socket.
pub fn starting(node: &str) -> Option<String> {
    if !is_units(node) {
        return None;
    }
    let arguments = ["show", "ringway.service", "--property=SubState,StatusText"];
    let mut command = Command::new("systemctl");
    let ran = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    in_start(&String::from_utf8_lossy(&ran.stdout))
}

/// The unit runs this node: its file has the name.
pub fn is_units(node: &str) -> bool {
    let file = Path::new(ringway_config::DEFAULT_PATH);
    ringway_config::identity(file).node.as_deref() == Some(node)
}

/// How to stop this process.
pub fn stop(pid: u64) -> String {
    let groups = Path::new("/proc").join(pid.to_string()).join("cgroup");
    match unit(&std::fs::read_to_string(groups).unwrap_or_default()) {
        Some(unit) => format!("systemctl stop {unit}"),
        None => format!("kill {pid}; where it hangs, kill -KILL {pid}"),
    }
}

/// Between two starts the state is `auto-restart`.
fn in_start(properties: &str) -> Option<String> {
    let value = |key| properties.lines().find_map(|line| line.strip_prefix(key));
    let said = value("StatusText=").unwrap_or_default();
    (value("SubState=") == Some("start")).then(|| said.to_owned())
}

/// Whether a signal or a debugger has stopped this process: then it does not hang (proc(5), field 3
/// of stat).
pub fn is_stopped(pid: u64) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stopped(&stat.unwrap_or_default())
}

/// The name in brackets may hold brackets and blanks.
fn stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

fn in_words(pid: u64, hangs: bool, groups: &str, command: &[u8]) -> String {
    if let Some(unit) = unit(groups) {
        return format!("systemctl restart {unit}");
    }
    let kill = if hangs { "kill -KILL" } else { "kill" };
    let command = String::from_utf8_lossy(command);
    let words: Vec<&str> = command.split('\0').filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [] => format!("{kill} {pid}, then start it again as it was started"),
        words => format!("{kill} {pid}, then again: {}", words.join(" ")),
    }
}

/// The unit that systemd made this control group for (cgroups(7)), if it is one of ours: whoever
/// starts the daemon by hand is in the group of a session, or of whatever their shell came from.
fn unit(groups: &str) -> Option<&str> {
    let mut last = groups.lines().filter_map(|line| line.rsplit('/').next());
    last.find(|name| name.starts_with("ringway") && name.ends_with(".service"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_stopped() {
        assert!(stopped("7 (ringway) T 1 7") && stopped("7 (a) S) t 1"));
        assert!(!stopped("7 (ringway) S 1 7") && !stopped("7 (T) T) R 1") && !stopped(""));
        assert!(!is_stopped(std::process::id().into()));
    }

    #[test]
    fn a_start_says_what_it_waits_for() {
        let said = |text: &str| in_start(text);
        let waits = "StatusText=waiting for eth1\nSubState=start\n";
        assert_eq!(said(waits).as_deref(), Some("waiting for eth1"));
        assert_eq!(said("SubState=start\nStatusText=\n").as_deref(), Some(""));
        for none in ["SubState=running\nStatusText=1 service", "SubState=auto-restart", ""] {
            assert_eq!(said(none), None);
        }
    }

    #[test]
    fn as_it_was_started() {
        let command = b"/usr/bin/ringway\0run\0-c\0gw.toml\0";
        let said = |hangs, groups| in_words(7, hangs, groups, command);
        let unit = "0::/system.slice/ringway.service\n";
        assert_eq!(said(true, unit), "systemctl restart ringway.service");
        for by_hand in ["", "0::/user.slice/session-3.scope\n", "0::/system.slice/ssh.service\n"] {
            assert_eq!(said(false, by_hand), "kill 7, then again: /usr/bin/ringway run -c gw.toml");
        }
        assert!(said(true, "").starts_with("kill -KILL 7, "));
        assert!(in_words(7, false, "", b"").contains("as it was started"));
    }
}
