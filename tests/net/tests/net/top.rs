//! `ringway top` on a running gateway: one look, and a real terminal.

use std::process::Command;

use anyhow::{Result, ensure};
use ringway_net_tests::{
    Gateway, Load, SERVICE_V4, SOON, Site, WEB, binary, needs_root, not_tested,
};
use ringway_testnet::wait_for;

#[test]
fn one_look_has_the_rates_of_its_time() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let mut gateway = site.start(&site.service("web", WEB, ""))?;
    let load = Load::start_closing(site.client(), &format!("http://{SERVICE_V4}/"), 10, 60)?;
    gateway.wait_status("traffic", |status| {
        status["services"][0]["backends"][0]["packets"].as_u64() > Some(0)
    })?;
    let said = gateway.ringway(&["top", "--once", "-d", "1", "--view", "flows", "-o", "json"])?;
    ensure!(said.code == 0, "{said:?}");
    let said = said.json()?;
    ensure!(
        said["schema"] == "ringway.top/1" && said["interval_s"].as_f64() >= Some(1.0),
        "{said}"
    );
    let rate = &said["status"]["services"][0]["rates"]["rate_pps"];
    ensure!(rate.as_f64() > Some(0.0), "{said}");
    ensure!(said["flows"].as_array().is_some_and(|flows| !flows.is_empty()), "{said}");
    // Without a daemon the rates are its own.
    gateway.kill()?;
    let said = gateway.ringway(&["top", "--once", "--view", "backends"])?;
    ensure!(said.code == 3 && said.out.contains("no daemon"), "{said:?}");
    for backend in site.backends(SERVICE_V4, 80) {
        let row = said.out.lines().find(|line| line.contains(&backend.to_string()));
        // Weights and moments are the daemon's alone.
        let unknown = row.map(|row| row.split_whitespace().filter(|field| *field == "-").count());
        ensure!(unknown == Some(2), "{said:?}");
    }
    load.stop()?;
    gateway.ringway(&["top"])?.complains(2, &["--once"])?;
    Ok(())
}

/// A terminal of tmux, on a server of its own.
struct Screen<'a> {
    gateway: &'a Gateway,
    socket: String,
}

impl Screen<'_> {
    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let ran = Command::new("tmux").args(["-S", &self.socket]).args(arguments).output()?;
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    fn shows(&self, words: &str) -> Result<()> {
        wait_for(words, SOON, || {
            let screen = self.tmux(&["capture-pane", "-p"]).map_err(|error| error.to_string())?;
            if screen.contains(words) { Ok(()) } else { Err(screen) }
        })?;
        Ok(())
    }

    fn begin(&self, options: &str) -> Result<()> {
        let line = format!(
            "nsenter --net=/run/netns/{} {} top -c {} {options}; echo ended with $?",
            self.gateway.node(),
            binary()?.display(),
            self.gateway.configuration().display()
        );
        self.tmux(&["send-keys", &line, "Enter"]).map(drop)
    }

    /// What runs in it.
    fn child(&self) -> Result<i32> {
        let pid = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        Ok(wait_for("ringway top", SOON, || {
            let path = format!("/proc/{0}/task/{0}/children", pid.trim());
            let children = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
            children.trim().parse::<i32>().map_err(|error| error.to_string())
        })?)
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

#[test]
fn keys_work_at_forty_columns_and_the_terminal_comes_back() -> Result<()> {
    needs_root!();
    if Command::new("tmux").arg("-V").output().is_err() {
        not_tested("ringway top on a terminal: there is no tmux");
        return Ok(());
    }
    let site = Site::new(2)?;
    let gateway = site.start(&site.service("web", WEB, ""))?;
    let socket = site.net.gateway.directory().join("tmux").to_string_lossy().into_owned();
    let screen = Screen { gateway: &gateway, socket };
    screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "40", "-y", "12", "sh"])?;
    screen.begin("-d 0.5")?;
    screen.shows("SERVICE")?;
    screen.shows("[services]")?;
    screen.tmux(&["send-keys", "t"])?;
    screen.shows("BACKEND")?;
    screen.tmux(&["send-keys", "/"])?;
    screen.tmux(&["send-keys", "nothing-like-it", "Enter"])?;
    screen.shows("filter: nothing-like-it")?;
    screen.tmux(&["send-keys", "F1"])?;
    screen.shows("column to sort by")?;
    screen.tmux(&["resize-window", "-x", "120", "-y", "30"])?;
    screen.tmux(&["send-keys", "x"])?;
    screen.shows("interfaces   reasons   flows")?;
    screen.tmux(&["send-keys", "q"])?;
    screen.shows("ended with 0")?;

    // SIGTERM gives the terminal back, too.
    screen.begin("--view interfaces")?;
    screen.shows("ATTACHED")?;
    let child = screen.child()?;
    let ran = Command::new("kill").args(["-TERM", &child.to_string()]).status()?;
    ensure!(ran.success(), "no process {child}");
    screen.shows("ended with 0")?;

    // It does not outlive its terminal.
    screen.tmux(&["send-keys", "clear", "Enter"])?;
    screen.begin("--view interfaces")?;
    screen.shows("ATTACHED")?;
    let child = screen.child()?;
    screen.tmux(&["kill-server"])?;
    wait_for("the end of ringway top", SOON, || {
        // Whoever inherits it may leave it a zombie.
        match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            Ok(stat) if !stat.contains(") Z ") => Err(stat),
            _ => Ok(()),
        }
    })?;
    Ok(())
}
