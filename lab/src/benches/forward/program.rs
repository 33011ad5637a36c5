//! The program that forwards: how it is started, and when it does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringway_testnet::{Child, Namespace, wait_until};

use super::road::{DPDK_DEVICES, Road};
use super::tune::Setting;
use crate::benches::engine::testpmd::{self, Testpmd};
use crate::harness::cpu::Cpus;
use crate::{Error, Result, programs};

/// The nice value of what measures and what is measured.
pub(super) const HIGHEST: i32 = -20;
/// DPDK's devices wait for their links.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Program {
    start: Start,
    pub child: Child,
    mounts: Child,
}

/// How it is started, once or again.
struct Start {
    road: Road,
    namespace: Namespace,
    command: Command,
    ready: Ready,
}

/// What a program does when it forwards.
enum Ready {
    /// It says so.
    Log(&'static str),
    /// It listens there.
    Socket(PathBuf),
}

impl Program {
    /// None: the kernel forwards.
    pub fn start(
        road: Road,
        setting: Option<Setting>,
        device: &Namespace,
        cpus: Cpus,
        ringway: &Path,
    ) -> Result<Option<Self>> {
        let Some((command, ready)) = program(road, setting, device, cpus, ringway)? else {
            return Ok(None);
        };
        let start = Start { road, namespace: device.clone(), command, ready };
        let mounts = start.mounts()?;
        Ok(Some(Self { child: start.run(&mounts)?, start, mounts }))
    }

    /// Killed, and started again. A daemon finds what the former one pinned, an engine does not.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        if !self.start.road.is_kernel() {
            self.mounts = self.start.mounts()?;
        }
        self.child = self.start.run(&self.mounts)?;
        Ok(())
    }
}

impl Start {
    /// Keeps a mount namespace with a bpffs of its own: pins go with it. What libxdp attached stays
    /// with its pin, and would be in the way of the next.
    fn mounts(&self) -> Result<Child> {
        const MOUNTED: &str = "mounted";
        let mut command = self.namespace.tool("unshare")?;
        let script = "mount -t bpf bpf /sys/fs/bpf; echo \"$0\"; exec sleep infinity";
        command.args(["--mount", "sh", "-ec", script, MOUNTED]);
        let mut child = self.namespace.spawn(command)?;
        child.wait_for_log(MOUNTED, PATIENCE)?;
        Ok(child)
    }

    fn run(&self, mounts: &Child) -> Result<Child> {
        let mut command = self.namespace.tool("nsenter")?;
        command.arg(format!("--mount=/proc/{}/ns/mnt", mounts.pid()));
        // What forwards goes first; a daemon is not what forwards.
        if !self.road.is_kernel() {
            command.args(["nice", "-n", &HIGHEST.to_string()]);
        }
        command.arg(self.command.get_program()).args(self.command.get_args());
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Ready::Socket(path) = &self.ready {
            let _ = fs::remove_file(path);
        }
        let mut child = self.namespace.spawn(command)?;
        match &self.ready {
            Ready::Log(text) => child.wait_for_log(text, PATIENCE)?,
            Ready::Socket(path) => {
                wait_until("ringway's socket", PATIENCE, || !child.running() || path.exists())?;
                if !child.running() {
                    return Err(Error::Failed {
                        program: "ringway forward".into(),
                        output: child.log(),
                    });
                }
            }
        }
        Ok(child)
    }
}

fn program(
    road: Road,
    setting: Option<Setting>,
    device: &Namespace,
    cpus: Cpus,
    ringway: &Path,
) -> Result<Option<(Command, Ready)>> {
    if road == Road::DpdkTestpmd {
        let testpmd = Testpmd::find().map_err(|error| Error::Unavailable(error.to_string()))?;
        let mut command = Command::new(testpmd.path());
        testpmd.set(&mut command, cpus, "io", &DPDK_DEVICES.map(String::from));
        return Ok(Some((command, Ready::Log(testpmd::RATE))));
    }
    let Some(arguments) = road.arguments() else { return Ok(None) };
    let binary = if road == Road::Dpdk { programs::find_dpdk(ringway)? } else { ringway.into() };
    let mut command = Command::new(binary);
    command.args(arguments).args(setting.iter().flat_map(Setting::arguments));
    if !road.is_kernel() {
        command.arg("--cpu").arg(cpus.measured.to_string());
        return Ok(Some((command, Ready::Log("running on"))));
    }
    let socket = device.directory().join("forward.sock");
    command.args(["--name", "lab-forward", "--metrics", "off", "--socket"]).arg(&socket);
    Ok(Some((command, Ready::Socket(socket))))
}
