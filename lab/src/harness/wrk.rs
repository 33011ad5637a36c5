//! wrk, and what it says at its end.

use std::fs;
use std::time::Duration;

use ringway_testnet::Namespace;

use crate::{Error, Result};

/// Prints the figures in one line. Having no `request` function, it costs nothing while requests
/// run.
const SCRIPT: &str = r#"
done = function(summary, latency, requests)
    local e = summary.errors
    io.write(string.format("figures %d %d %d %d %d\n", summary.requests, summary.duration,
        latency:percentile(50), latency:percentile(99),
        e.connect + e.read + e.write + e.timeout + e.status))
end
"#;

/// The figures of one run of wrk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub requests: u64,
    pub requests_per_s: f64,
    pub latency_p50_ns: u64,
    pub latency_p99_ns: u64,
    /// Socket errors, timeouts and answers that are neither 2xx nor 3xx.
    pub errors: u64,
}

/// `wrk -t1 -cCONNECTIONS` against `url` from within a namespace.
pub(crate) fn run(
    namespace: &Namespace,
    url: &str,
    connections: u32,
    duration: Duration,
) -> Result<Figures> {
    let script = namespace.directory().join("figures.lua");
    fs::write(&script, SCRIPT).map_err(|source| Error::Write { path: script.clone(), source })?;
    let mut command = namespace.tool("wrk")?;
    command
        .args(["-t1", "--latency", &format!("-c{connections}"), "--timeout", "10s"])
        .arg(format!("-d{}s", duration.as_secs().max(1)))
        .arg("-s")
        .arg(&script)
        .arg(url);
    let output = command.output().map_err(|source| Error::Run { program: "wrk".into(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| Error::Failed {
        program: format!("wrk {url}"),
        output: format!("{text}{}", String::from_utf8_lossy(&output.stderr)),
    })
}

/// Reads the script's line: requests, then microseconds run, p50 and p99, then errors.
fn parse(output: &str) -> Option<Figures> {
    let line = output.lines().find_map(|l| l.strip_prefix("figures "))?;
    let numbers: Vec<u64> = line.split(' ').map_while(|n| n.parse().ok()).collect();
    let &[requests, duration_us, p50_us, p99_us, errors] = numbers.as_slice() else {
        return None;
    };
    (duration_us > 0).then(|| Figures {
        requests,
        requests_per_s: requests as f64 * 1e6 / duration_us as f64,
        latency_p50_ns: p50_us * 1000,
        latency_p99_ns: p99_us * 1000,
        errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_script() {
        let figures = parse("Running 2s test\nfigures 100000 2000000 1100 3200 7\n").unwrap();
        assert_eq!(figures.requests_per_s, 50_000.0);
        assert_eq!((figures.latency_p50_ns, figures.latency_p99_ns), (1_100_000, 3_200_000));
        assert_eq!((figures.requests, figures.errors), (100_000, 7));
    }

    #[test]
    fn refuses_what_is_cut_short() {
        for bad in ["", "figures", "figures 1 2 3 4", "figures 1 0 3 4 5", "figures a b c d e"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
