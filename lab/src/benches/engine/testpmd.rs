//! dpdk-testpmd, from the Debian package dpdk-dev, installed or unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringway_testnet::tools::{self, Tool};
use ringway_testnet::{Child, Namespace, wait_until};

use super::Figure;
use crate::harness::cpu::{Cpus, Task};
use crate::harness::median::median;
use crate::{Error, Result};

/// For it to start, and to say what it has counted.
const PATIENCE: Duration = Duration::from_secs(30);
/// Memory that it gets, and packets that fit.
const MIB: u64 = 256;
const MBUFS: &str = "--total-num-mbufs=32768";
/// Plugins that an unpacked testpmd must be told to load.
const PLUGINS: [&str; 4] =
    ["librte_bus_vdev.so", "librte_mempool_ring.so", "librte_net_null.so", "librte_net_af_xdp.so"];

/// A program that can be started.
#[derive(Debug)]
pub(crate) struct Testpmd {
    tool: Tool,
    plugins: Option<PathBuf>,
    huge: bool,
}

/// The beginning of a line that it prints every second.
pub(crate) const RATE: &str = "Rx-pps:";

impl Testpmd {
    pub(crate) fn find() -> Result<Self> {
        let mut tool = tools::find("dpdk-testpmd")?;
        // What is unpacked loads the plugins of an installed DPDK; with libraries of its own it would
        // have each twice.
        if tools::library_directories(Path::new("/")).iter().any(|lib| lib.join("dpdk").is_dir()) {
            tool.libraries.clear();
        }
        let plugins = tool.libraries.iter().find_map(|libraries| {
            let mut entries = fs::read_dir(libraries.join("dpdk")).ok()?.flatten();
            entries.find_map(|e| e.file_name().to_str()?.starts_with("pmds-").then(|| e.path()))
        });
        Ok(Self { tool, plugins, huge: free_huge_mib() >= MIB })
    }

    /// The kind of its memory: huge pages if enough are free, which only the machine's root
    /// decides.
    pub(super) fn memory(&self) -> &'static str {
        if self.huge { "huge pages" } else { "pages of 4 KiB" }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.tool.path
    }

    /// Starts it in a namespace, forwarding between these devices, and waits until it does.
    pub(super) fn start(
        &self,
        namespace: &Namespace,
        cpus: Cpus,
        mode: &str,
        devices: &[String],
    ) -> Result<Child> {
        let mut command = namespace.command(self.path());
        self.set(&mut command, cpus, mode, devices);
        let mut child = namespace.spawn(command)?;
        child.wait_for_log(RATE, PATIENCE)?;
        Ok(child)
    }

    /// Its environment and arguments for forwarding between these devices.
    pub(crate) fn set(&self, command: &mut Command, cpus: Cpus, mode: &str, devices: &[String]) {
        self.tool.set_environment(command);
        if let Some(plugins) = &self.plugins {
            // By their names alone, for the loader to find: of a path, testpmd refuses every
            // directory that all may write, and a clone may lie under /tmp.
            for plugin in PLUGINS {
                command.args(["-d", plugin]);
            }
            // Beside DPDK's directory lies libxdp's.
            command.env("LIBXDP_OBJECT_PATH", plugins.join("../../bpf"));
        }
        // Its first thread only prints; the second forwards.
        command.args(["-v", "--no-pci", "--no-telemetry", "-m", &MIB.to_string(), "--lcores"]);
        command.arg(format!("0@{},1@{}", cpus.load, cpus.measured));
        match self.huge {
            true => command.arg("--in-memory"),
            false => command.args(["--no-huge", "--no-shconf"]),
        };
        command.args(devices.iter().map(|device| format!("--vdev={device}")));
        command.args(["--", "--auto-start", "--stats-period=1", "--no-lsc-interrupt", MBUFS]);
        command.arg(format!("--forward-mode={mode}"));
        match devices {
            [device] if device.starts_with("net_null") => {
                command.args(["--port-topology=loop", "--burst=32"])
            }
            [_] => command.args(["--port-topology=loop", "--burst=64", "--rxd=2048", "--txd=2048"]),
            _ => command.args(["--port-topology=paired", "--burst=64", "--rxd=2048", "--txd=2048"]),
        };
    }

    /// `memory-macswap`, by its own count.
    pub(super) fn macswap(&self, cpus: Cpus, time: Duration) -> Result<Figure> {
        let namespace = Namespace::new("testpmd")?;
        let child = self.start(&namespace, cpus, "macswap", &["net_null0".into()])?;
        // The first two say how it started.
        let wanted = 2 + time.as_secs().max(1) as usize;
        let task = Task::process(child.pid());
        let (user, packets) = (task.user()?, packets(&child.log()));
        wait_until("packets of dpdk-testpmd", PATIENCE + time, || {
            rates(&child.log()).len() >= wanted
        })?;
        let (user, packets) = (task.user()? - user, self::packets(&child.log()) - packets);
        let pps = median(&rates(&child.log())[2..]);
        if pps == 0 {
            let what = "it forwarded nothing".into();
            return Err(Error::NoFigure { who: "dpdk-testpmd".into(), what });
        }
        Ok(Figure { pps, user_ps: Some(super::per_packet(user, packets)), ..Figure::default() })
    }
}

/// "22.11.11" of "EAL: RTE Version: 'DPDK 22.11.11'".
pub(super) fn version(log: &str) -> Option<String> {
    let (_, version) = log.split_once("RTE Version: 'DPDK ")?;
    Some(version.split('\'').next()?.to_owned())
}

fn rates(log: &str) -> Vec<u64> {
    log.lines().filter_map(|line| number_after(line, RATE)).collect()
}

/// Received so far, as it last said.
fn packets(log: &str) -> u64 {
    log.lines().rev().find_map(|line| number_after(line, "RX-packets:")).unwrap_or(0)
}

fn number_after(line: &str, what: &str) -> Option<u64> {
    line.trim_start().strip_prefix(what)?.split_whitespace().next()?.parse().ok()
}

fn free_huge_mib() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name| meminfo.lines().find_map(|line| number_after(line, name)).unwrap_or(0);
    of("HugePages_Free:") * of("Hugepagesize:") / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says() {
        let log = "EAL: RTE Version: 'DPDK 22.11.11'\n  RX-packets: 10   RX-missed: 0\n  \
                   Rx-pps:      16067606          Rx-bps:            0\n  RX-packets: 32  RX-missed: 0\n";
        assert_eq!(version(log).as_deref(), Some("22.11.11"));
        assert_eq!((rates(log), packets(log)), (vec![16_067_606], 32));
    }
}
