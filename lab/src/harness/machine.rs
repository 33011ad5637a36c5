//! The context of a figure: the machine, the versions, the day.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::Command;

use ringway_testnet::tools;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model name of the first processor.
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    /// Day and time, UTC, RFC 3339.
    pub date: String,
    /// Version of each program, by name; absent programs are left out.
    pub versions: BTreeMap<String, String>,
}

impl Machine {
    /// This one, now, with the versions of these programs, each with the option that prints it.
    pub(crate) fn with(programs: &[(&str, &str)]) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let versions = programs
            .iter()
            .filter_map(|(program, flag)| Some(((*program).to_owned(), version(program, flag)?)))
            .chain([("ringway".to_owned(), env!("CARGO_PKG_VERSION").to_owned())])
            .collect();
        Self {
            cpu: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            kernel: kernel.trim().to_owned(),
            date: now(),
            versions,
        }
    }

    /// Each program and its version, in one line.
    pub(crate) fn versions(&self) -> String {
        let versions = self.versions.iter().map(|(name, version)| format!("{name} {version}"));
        versions.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, date, .. } = self;
        write!(f, "{cpu} of {cores} cores, Linux {kernel}, {date}")
    }
}

fn cpu_model(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find(|l| l.starts_with("model name"));
    let model = model.and_then(|l| l.split_once(':')).map(|(_, name)| name.trim());
    model.unwrap_or("unknown").to_owned()
}

/// The version in the first line that a program prints about itself; nginx uses standard error.
fn version(program: &str, flag: &str) -> Option<String> {
    let tool = tools::find(program).ok()?;
    let mut command = Command::new(&tool.path);
    tool.set_environment(&mut command);
    let output = command.arg(flag).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    Some(version_in(String::from_utf8_lossy(&said).lines().next()?))
}

/// The first word that looks like a version, without `name/` or `v` before it; else the whole line.
fn version_in(line: &str) -> String {
    let words = line.split_whitespace().map(|w| w.rsplit('/').next().unwrap_or(w));
    let mut versions = words.map(|w| w.trim_start_matches('v'));
    let found = versions.find(|w| w.contains('.') && w.starts_with(|c: char| c.is_ascii_digit()));
    found.unwrap_or(line.trim()).to_owned()
}

/// In UTC, to the second.
pub(crate) fn now() -> String {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (line, version) in [
            ("nginx version: nginx/1.22.1", "1.22.1"),
            (
                "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/",
                "2.6.12-1+deb12u4",
            ),
            ("nftables v1.0.6 (Lester Gooch #5)", "1.0.6"),
            ("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer", "4.1.0-3+b2"),
            (" unheard of ", "unheard of"),
        ] {
            assert_eq!(version_in(line), version);
        }
    }

    #[test]
    fn model_of_the_first_processor() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nmodel name\t: other\n";
        assert_eq!(cpu_model(cpuinfo), "Some CPU @ 2GHz");
        assert_eq!(cpu_model(""), "unknown");
    }
}
