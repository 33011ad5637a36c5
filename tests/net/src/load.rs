//! wrk in the background, and what it says at its end.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringway_testnet::{Child, Namespace, Signal};

use crate::SOON;

/// Milliseconds until a connection's next request: hundreds of requests in a second say as much as
/// all that the machine can do, which then is left to other tests.
const SCRIPT: &str = "function delay() return 2 end\n";

pub struct Load {
    child: Child,
    duration: Duration,
}

/// What one run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub requests: u64,
    /// Connections refused, resets, timeouts, and answers that were neither 2xx nor 3xx.
    pub errors: u64,
}

impl Load {
    /// `connections` kept busy for `seconds`.
    pub fn start(client: &Namespace, url: &str, connections: u32, seconds: u32) -> Result<Load> {
        Load::start_with(client, url, connections, seconds, &[])
    }

    /// The same, with a connection of its own for every request.
    pub fn start_closing(
        client: &Namespace,
        url: &str,
        connections: u32,
        seconds: u32,
    ) -> Result<Load> {
        Load::start_with(client, url, connections, seconds, &["-H", "Connection: close"])
    }

    fn start_with(
        client: &Namespace,
        url: &str,
        connections: u32,
        seconds: u32,
        more: &[&str],
    ) -> Result<Load> {
        let script = client.directory().join("wrk.lua");
        std::fs::write(&script, SCRIPT)?;
        let mut command = client.tool("wrk")?;
        command
            .arg("-s")
            .arg(script)
            .arg("-t1")
            .arg(format!("-c{connections}"))
            .arg(format!("-d{seconds}s"));
        command.args(["--timeout", "30s"]).args(more);
        command.arg(url);
        let duration = Duration::from_secs(seconds.into());
        Ok(Load { child: client.spawn(command)?, duration })
    }

    pub fn running(&mut self) -> bool {
        self.child.running()
    }

    /// Ends it now, and tells what it came to.
    pub fn stop(mut self) -> Result<Outcome> {
        // wrk takes an interrupt for the end of its time.
        self.child.signal(Signal::INT)?;
        self.finish()
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Result<Outcome> {
        let end = self.child.wait(self.duration + SOON)?;
        parse(&end.log).with_context(|| format!("wrk said: {}", end.log))
    }
}

fn parse(output: &str) -> Result<Outcome> {
    let numbers = |line: &str| -> u64 {
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok()).sum()
    };
    let with = |text: &str| output.lines().find(|line| line.contains(text));
    let Some(requests) = with(" requests in ") else { bail!("no figures") };
    let requests = requests.split_whitespace().next().unwrap_or_default().parse()?;
    let errors = with("Socket errors:").map_or(0, numbers);
    let bad = output.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses:"));
    Ok(Outcome { requests, errors: errors + bad.map_or(0, numbers) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_wrk_says() {
        let good = "Running 1s test @ http://10.1.0.80/\n  1 threads and 10 connections\n  \
                    5021 requests in 1.00s, 1.2MB read\nRequests/sec: 5021.00\n";
        assert_eq!(parse(good).unwrap(), Outcome { requests: 5021, errors: 0 });
        let bad = "  12 requests in 1.00s, 1.2MB read\n  \
                   Socket errors: connect 1, read 2, write 3, timeout 4\n  \
                   Non-2xx or 3xx responses: 5\n";
        assert_eq!(parse(bad).unwrap(), Outcome { requests: 12, errors: 15 });
        assert!(parse("unable to connect to 10.1.0.80:80 Connection refused").is_err());
    }
}
