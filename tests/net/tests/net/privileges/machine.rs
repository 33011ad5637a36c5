//! Where the daemon runs as the unit has it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use ringway_net_tests::{Ran, SOON, STARTED, binary};
use ringway_testnet::{Child, Namespace};

const UNIT: &str = include_str!("../../../../../packaging/ringway.service");
/// The numbers of user and group ringway, which the machine need not have.
pub(crate) const ID: u32 = 62_114;
/// CAP_NET_ADMIN 12, CAP_NET_RAW 13, CAP_BPF 39 (linux/capability.h).
pub(super) const THREE: u64 = 1 << 12 | 1 << 13 | 1 << 39;
pub(super) const PERFMON: u64 = 1 << 38;

/// Where the daemon runs: the gateway's network namespace, and a mount namespace with a bpffs of
/// its own and a user ringway. A process that sleeps keeps it.
pub(crate) struct Machine {
    pub(super) namespace: Namespace,
    pub(crate) directory: PathBuf,
    keeper: Child,
}

impl Machine {
    pub(crate) fn new(namespace: &Namespace) -> Result<Machine> {
        let directory = namespace.directory().join("machine");
        fs::create_dir(&directory)?;
        fs::set_permissions(namespace.directory(), fs::Permissions::from_mode(0o755))?;
        // The build may lie where only its owner may go.
        fs::copy(binary()?, directory.join("ringway"))?;
        let row = |file: &str, line: &str| -> Result<()> {
            let kept = fs::read_to_string(format!("/etc/{file}"))?;
            let kept = kept.lines().filter(|l| !l.starts_with("ringway:")).collect::<Vec<_>>();
            Ok(fs::write(directory.join(file), format!("{}\n{line}\n", kept.join("\n")))?)
        };
        row("passwd", &format!("ringway:x:{ID}:{ID}::/nonexistent:/usr/sbin/nologin"))?;
        row("group", &format!("ringway:x:{ID}:"))?;
        for owned in ["run", "state"] {
            fs::create_dir(directory.join(owned))?;
            std::os::unix::fs::chown(directory.join(owned), Some(ID), Some(ID))?;
        }
        let script = format!(
            "mount -t bpf -o mode=1700 bpf /sys/fs/bpf\n\
             # As udev makes it.\n\
             mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200\n\
             for file in passwd group; do mount --bind {at}/$file /etc/$file; done\n\
             echo ready\nexec sleep infinity",
            at = directory.display()
        );
        let mut command = namespace.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", &script]);
        let mut keeper = namespace.spawn(command)?;
        keeper.wait_for_log("ready", SOON)?;
        Ok(Machine { namespace: namespace.clone(), directory, keeper })
    }

    /// A command in both namespaces, as root.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.namespace.command("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.pid())).args(words);
        command
    }

    /// A path of its own mount namespace, seen from here.
    pub(super) fn seen(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.keeper.pid()))
    }

    /// Runs one to its end.
    pub(super) fn run(&self, words: &[&str]) -> Result<Ran> {
        Ok(self.command(words).output()?.into())
    }

    /// `ringway ARGUMENTS`, as root.
    pub(super) fn ringway(&self, arguments: &[&str]) -> Result<Ran> {
        let ringway = self.directory.join("ringway");
        self.run(&[&[&*ringway.to_string_lossy()], arguments].concat())
    }

    /// What the unit does as root before it starts the daemon.
    pub(crate) fn prepare(&self) -> Result<()> {
        let lines: Vec<&str> =
            UNIT.lines().filter_map(|line| line.strip_prefix("ExecStartPre=+")).collect();
        ensure!(!lines.is_empty(), "the unit prepares nothing");
        for line in lines {
            let ran = self.run(&line.split(' ').collect::<Vec<_>>())?;
            ensure!(ran.code == 0, "{line}: {}", ran.said());
        }
        Ok(())
    }

    /// Writes this configuration, with the paths that the daemon's user may write to.
    pub(crate) fn write(&self, text: &str) -> Result<PathBuf> {
        let (old, at) = (self.namespace.directory(), &self.directory);
        let moved = |text: &str, name: &str, to: &str| {
            text.replace(&format!("{:?}", old.join(name)), &format!("{:?}", at.join(to)))
        };
        let text = moved(&moved(text, "state", "state"), "api.sock", "run/api.sock");
        let file = at.join("ringway.toml");
        fs::write(&file, text)?;
        Ok(file)
    }

    pub(crate) fn start(&self, configuration: &Path) -> Result<Child> {
        self.start_after("", configuration)
    }

    /// The daemon as user ringway with what the unit gives it, after these lines of shell.
    pub(super) fn start_after(&self, lines: &str, configuration: &Path) -> Result<Child> {
        let given = line_of("AmbientCapabilities=");
        ensure!(given == line_of("CapabilityBoundingSet="), "two sets");
        let given: String =
            given.split(' ').map(|name| format!(",+{}", &name[4..])).collect::<String>();
        let set = format!("-all{}", given.to_lowercase());
        // The last words of the script are what follows it.
        let script = format!("{}{lines}\nexec \"$@\"", sandbox());
        let mut command = self.command(&["unshare", "--mount", "--propagation", "private"]);
        command.args(["sh", "-euc", &script, "sh"]);
        command.args(["setpriv", "--reuid=ringway", "--regid=ringway"]);
        command.args(["--clear-groups", "--no-new-privs"]);
        command
            .args(["--bounding-set", "--inh-caps", "--ambient-caps"].map(|o| format!("{o}={set}")));
        command.arg(self.directory.join("ringway")).arg("run").arg("-c").arg(configuration);
        let mut daemon = self.namespace.spawn(command)?;
        daemon.wait_for_log("serving: ", STARTED)?;
        Ok(daemon)
    }
}

/// What systemd makes of bpffs for the daemon: ProtectKernelTunables has it read-only, whatever
/// ReadWritePaths says of that very path; what is below stays as it is (systemd's
/// src/core/namespace.c, protect_kernel_tunables_sys_table).
pub(super) fn sandbox() -> String {
    let writable = line_of("ReadWritePaths=").split(' ').map(|path| path.trim_start_matches('-'));
    let below = writable.filter(|path| path.starts_with("/sys/fs/bpf/"));
    let binds: String = below.map(|path| format!("mount --bind {path} {path}\n")).collect();
    format!("mount --bind /sys/fs/bpf /sys/fs/bpf\n{binds}mount -o remount,bind,ro /sys/fs/bpf\n")
}

pub(super) fn line_of(key: &str) -> &'static str {
    UNIT.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default()
}
