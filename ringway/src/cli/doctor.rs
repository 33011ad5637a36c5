//! `ringway doctor`: what is wrong with this machine's network settings.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ringway_doctor::{Profile, Rule, rules};

use super::OutputArgs;

/// `ringway doctor`
#[derive(Debug, Args)]
#[command(
    after_help = "Looks at the network namespace that it runs in, twice, since much shows in counters alone, and changes \
    nothing. What cannot be read is unknown, never ok; root sees more. Exit code 3 when something is crit: a limit \
    or a fault turns clients away, or is about to. warn: packets are lost, or the machine is slower.\n\nA collection holds, beside settings and counters, what \
    not everybody may see: addresses, neighbours, sockets, rules of nftables, mounts, names of processes, the kernel's command \
    line. --collect lists it. Read it before you send it.\n\nExamples:\n  ringway doctor\n  \
    ringway doctor --explain listen-overflows\n  ringway doctor --only listen-overflows,79 --interval 10\n  \
    ringway doctor --fix-script fix.sh -o json > before.json; sh fix.sh; ringway doctor --since before.json\n  \
    ringway doctor --collect host.tar; ringway doctor --from host.tar\n  \
    ringway doctor --path eth0 --interval 10"
)]
pub struct DoctorArgs {
    /// Seconds between the two samples: 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval,
        conflicts_with_all = ["from", "explain"])]
    pub interval: Duration,
    /// Only these checks, by name or number.
    #[arg(long, value_name = "CHECK", value_delimiter = ',', value_parser = check)]
    pub only: Vec<&'static Rule>,
    /// Purpose of the machine; default: ending connections.
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub profile: Option<DoctorProfile>,
    /// Also show good results, and why others are unknown.
    #[arg(long)]
    pub all: bool,
    /// Explain a check: its rule, the rule's source and the reason; `all`: every check.
    #[arg(long, value_name = "CHECK", conflicts_with_all = ["only", "collect", "from", "fix_script", "since"])]
    pub explain: Option<String>,
    /// Write the files that the checks read into an archive instead, for `--from` elsewhere.
    #[arg(long, value_name = "FILE.tar", conflicts_with_all = ["from", "fix_script", "since", "only"])]
    pub collect: Option<PathBuf>,
    /// Check an archive of `--collect`, from any machine.
    #[arg(long, value_name = "FILE.tar")]
    pub from: Option<PathBuf>,
    /// Write the fixes as a shell script, and beside it FILE.undo; run nothing.
    #[arg(long, value_name = "FILE", value_parser = script)]
    pub fix_script: Option<PathBuf>,
    /// Print what changed since an earlier run; the file is its JSON.
    #[arg(long, value_name = "FILE.json")]
    pub since: Option<PathBuf>,
    /// Draw the path of packets that an interface receives instead: queues, processors, steps, and
    /// where how many are lost. As root the kernel's reasons are counted meanwhile.
    #[arg(long, value_name = "INTERFACE",
        conflicts_with_all = ["only", "profile", "all", "explain", "collect", "fix_script", "since"])]
    pub path: Option<String>,
    /// Plant known faults one after the other, in network namespaces of its own, and tell which of
    /// them are found. Exit code 1 when fewer than 40 are, or anything is wrong with a healthy one.
    #[arg(long, conflicts_with_all = ["interval", "only", "profile", "all", "explain", "collect",
        "from", "fix_script", "since", "path"])]
    pub exam: bool,
    /// Replace existing files, which is otherwise refused.
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What a machine is to be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoctorProfile {
    /// Bytes per second.
    Throughput,
    /// Short and even delays.
    Latency,
    /// Passing on what others send.
    Balancer,
    /// Programs that fetch packets past the kernel: AF_XDP, DPDK.
    Bypass,
}

impl From<DoctorProfile> for Profile {
    fn from(profile: DoctorProfile) -> Profile {
        match profile {
            DoctorProfile::Throughput => Profile::Throughput,
            DoctorProfile::Latency => Profile::Latency,
            DoctorProfile::Balancer => Profile::Balancer,
            DoctorProfile::Bypass => Profile::Bypass,
        }
    }
}

fn check(text: &str) -> Result<&'static Rule, String> {
    let unknown = || {
        let known: Vec<&str> = rules::ALL.iter().map(|check| check.name).collect();
        let near = ringway_config::nearest(text, &known);
        let near = near.map_or_else(String::new, |near| format!(": did you mean {near:?}?"));
        format!("no such check{near}; `ringway doctor --explain all` lists them")
    };
    rules::find(text).ok_or_else(unknown)
}

/// There are two files, and one standard output.
fn script(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("name a file: the undo is written beside it".to_owned()),
        name => Ok(name.into()),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds, 0.1 to 3600".to_owned()),
    }
}
