//! The daemon as the packaged unit runs it: user ringway, and after loading three capabilities
//! alone.

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Ran, SERVICE_V4, SOON, STARTED, Site, WEB, binary, configuration, detach_link, get, needs_root,
    service,
};
use ringway_testnet::{
    Child, End, Namespace, Nginx, Node, Signal, VethOptions, XdpReceive, veth, wait_for, wait_until,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

use super::dsr::{Opener, backends_with_the_addresses};

const UNIT: &str = include_str!("../../../../packaging/ringway.service");
/// The numbers of user and group ringway, which the machine need not have.
pub(super) const ID: u32 = 62_114;
/// CAP_NET_ADMIN 12, CAP_NET_RAW 13, CAP_BPF 39 (linux/capability.h).
const THREE: u64 = 1 << 12 | 1 << 13 | 1 << 39;
const PERFMON: u64 = 1 << 38;

/// Where the daemon runs: the gateway's network namespace, and a mount namespace with a bpffs of
/// its own and a user ringway. A process that sleeps keeps it.
pub(super) struct Machine {
    namespace: Namespace,
    pub(super) directory: PathBuf,
    keeper: Child,
}

impl Machine {
    pub(super) fn new(namespace: &Namespace) -> Result<Machine> {
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
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.namespace.command("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.pid())).args(words);
        command
    }

    /// A path of its own mount namespace, seen from here.
    fn seen(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.keeper.pid()))
    }

    /// Runs one to its end.
    fn run(&self, words: &[&str]) -> Result<Ran> {
        Ok(self.command(words).output()?.into())
    }

    /// `ringway ARGUMENTS`, as root.
    fn ringway(&self, arguments: &[&str]) -> Result<Ran> {
        let ringway = self.directory.join("ringway");
        self.run(&[&[&*ringway.to_string_lossy()], arguments].concat())
    }

    /// What the unit does as root before it starts the daemon.
    pub(super) fn prepare(&self) -> Result<()> {
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
    pub(super) fn write(&self, text: &str) -> Result<PathBuf> {
        let (old, at) = (self.namespace.directory(), &self.directory);
        let moved = |text: &str, name: &str, to: &str| {
            text.replace(&format!("{:?}", old.join(name)), &format!("{:?}", at.join(to)))
        };
        let text = moved(&moved(text, "state", "state"), "api.sock", "run/api.sock");
        let file = at.join("ringway.toml");
        fs::write(&file, text)?;
        Ok(file)
    }

    pub(super) fn start(&self, configuration: &Path) -> Result<Child> {
        self.start_after("", configuration)
    }

    /// The daemon as user ringway with what the unit gives it, after these lines of shell.
    fn start_after(&self, lines: &str, configuration: &Path) -> Result<Child> {
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

/// A service manager: what it is given to keep.
struct Manager {
    socket: PathBuf,
    kept: mpsc::Receiver<OwnedFd>,
}

impl Manager {
    fn new(machine: &Machine) -> Result<Manager> {
        let socket = machine.directory.join("notify");
        let listener = UnixDatagram::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o777))?;
        listener.set_read_timeout(Some(STARTED))?;
        let (give, kept) = mpsc::channel();
        // It reads for as long as somebody sends.
        std::thread::spawn(move || while receive(&listener, &give).is_ok() {});
        Ok(Manager { socket, kept })
    }

    fn daemon(&self) -> String {
        format!("export NOTIFY_SOCKET={}\n", self.socket.display())
    }

    /// The daemon gets this descriptor (sd_listen_fds(3)).
    fn daemon_with(&self, kept: &OwnedFd) -> String {
        let place = format!("/proc/{}/fd/{}", std::process::id(), kept.as_raw_fd());
        format!(
            "{}exec 3<{place}\nexport LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=nodes\n",
            self.daemon()
        )
    }
}

fn receive(listener: &UnixDatagram, give: &mpsc::Sender<OwnedFd>) -> Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let mut message = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut message)];
    recvmsg(listener, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            descriptors.for_each(|descriptor| _ = give.send(descriptor));
        }
    }
    Ok(())
}

/// What systemd makes of bpffs for the daemon: ProtectKernelTunables has it read-only, whatever
/// ReadWritePaths says of that very path; what is below stays as it is (systemd's
/// src/core/namespace.c, protect_kernel_tunables_sys_table).
fn sandbox() -> String {
    let writable = line_of("ReadWritePaths=").split(' ').map(|path| path.trim_start_matches('-'));
    let below = writable.filter(|path| path.starts_with("/sys/fs/bpf/"));
    let binds: String = below.map(|path| format!("mount --bind {path} {path}\n")).collect();
    format!("mount --bind /sys/fs/bpf /sys/fs/bpf\n{binds}mount -o remount,bind,ro /sys/fs/bpf\n")
}

fn line_of(key: &str) -> &'static str {
    UNIT.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default()
}

/// One of the sets in /proc/PID/task/*/status, which must be the same in every thread.
fn capabilities(pid: u32, set: &str) -> Result<u64> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the list and its file.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix(set)).context("no such set")?;
        found.push(u64::from_str_radix(line.trim_start_matches(':').trim(), 16)?);
    }
    ensure!(found.windows(2).all(|two| two[0] == two[1]), "{set} of the threads: {found:x?}");
    found.first().copied().context("no threads")
}

fn configure(site: &Site, machine: &Machine) -> Result<PathBuf> {
    // A dsr service with checks makes a device, a routing rule and a program of its own.
    let services =
        site.service("web", WEB, "check = { type = \"http\", path = \"/\", interval = \"200ms\" }")
            + &site.service(
                "direct",
                "10.1.0.81:80".parse()?,
                "forward = \"dsr-l2\"\ncheck = { type = \"tcp\", interval = \"200ms\" }",
            );
    machine.write(&site.configuration(&services))
}

fn status(machine: &Machine, file: &Path) -> Result<Value> {
    machine.ringway(&["status", "-o", "json", "-c", &file.to_string_lossy()])?.json()
}

/// Both backends of a service.
fn wait_up(machine: &Machine, file: &Path, service: usize) -> Result<Value> {
    let up = || {
        let status = status(machine, file).map_err(|error| format!("{error:#}"))?;
        let backends =
            status["services"][service]["backends"].as_array().cloned().unwrap_or_default();
        match backends.len() == 2 && backends.iter().all(|backend| backend["health"] == "up") {
            true => Ok(status),
            false => Err(format!("{}", status["services"])),
        }
    };
    Ok(wait_for("both backends up", SOON, up)?)
}

#[test]
fn three_capabilities_are_enough() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    // What an earlier version has pinned as root becomes the user's.
    machine.run(&["mkdir", "-p", "/sys/fs/bpf/ringway/earlier/maps"])?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;

    for set in ["CapPrm", "CapEff"] {
        let has = capabilities(daemon.pid(), set)?;
        ensure!(has == THREE, "{set} is {has:#x}, not {THREE:#x}");
    }
    for set in ["CapInh", "CapAmb"] {
        let has = capabilities(daemon.pid(), set)?;
        ensure!(has == 0, "{set} is {has:#x}: what the daemon starts would inherit it");
    }
    let owner = fs::metadata(format!("/proc/{}", daemon.pid()))?;
    ensure!(owner.uid() == ID || owner.uid() == 0, "user {}", owner.uid());

    let socket = fs::metadata(machine.directory.join("run/api.sock"))?;
    ensure!(socket.mode() & 0o7777 == 0o660, "socket mode {:o}", socket.mode());
    ensure!(
        (socket.uid(), socket.gid()) == (ID, ID),
        "socket of {}:{}",
        socket.uid(),
        socket.gid()
    );

    let status = wait_up(&machine, &file, 0)?;
    let lost = format!("{}", status["findings"]);
    ensure!(!lost.contains("not counted"), "what the kernel drops is not counted: {lost}");
    get(site.client(), WEB)?;

    captures_are_swept_away(&site, &machine)?;

    // Who is in the group may use the API, and nobody else.
    let member = |group: &str, words: &[&str]| {
        let who = ["setpriv", "--reuid=62115", &format!("--regid={group}"), "--clear-groups"];
        let binary = machine.directory.join("ringway");
        let (binary, file) = (binary.to_string_lossy(), file.to_string_lossy());
        machine.run(&[&who, &[&*binary][..], words, &["-c", &file]].concat())
    };
    let asked = member("ringway", &["status"])?;
    // Nobody answers for "direct".
    ensure!(asked.code == 3 && asked.out.contains("flows now"), "{}", asked.said());
    let packet = "tcp 10.1.0.2:4711 > 10.1.0.80:80";
    let refused = member("ringway", &["explain", "-i", "eth0", packet])?;
    ensure!(
        refused.code == 1 && refused.err.contains("run as root") && refused.err.contains("CAP_BPF"),
        "{}",
        refused.said()
    );
    let reloaded = member("ringway", &["reload"])?;
    ensure!(reloaded.code == 0, "{}", reloaded.said());
    let drained = member("ringway", &["backend", "drain", "web", "10.2.0.11"])?;
    ensure!(drained.code == 0, "{}", drained.said());
    let cleared = member("ringway", &["overrides", "clear"])?;
    ensure!(cleared.code == 0, "{}", cleared.said());
    let stranger = member("62116", &["reload"])?;
    ensure!(stranger.code == 1 && stranger.err.contains("ermission"), "{}", stranger.said());
    ensure!(capabilities(daemon.pid(), "CapEff")? == THREE, "after reloading");

    // The next daemon takes over what this one has pinned.
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    get(site.client(), WEB)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    ensure!(daemon.log().contains("took over the running packet path"), "{}", daemon.log());
    ensure!(capabilities(daemon.pid(), "CapEff")? == THREE, "after taking over");
    wait_up(&machine, &file, 0)?;
    get(site.client(), WEB)?;

    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success() && !end.log.contains("ermission"), "{}", end.log);
    let detached = machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0, "{}", detached.said());
    Ok(())
}

/// Those that root began and that were killed; one that lives stays.
fn captures_are_swept_away(site: &Site, machine: &Machine) -> Result<()> {
    let node = machine.namespace.name();
    let place = machine.seen(&format!("/sys/fs/bpf/ringway/{node}/capture"));
    let begin = || -> Result<Child> {
        let binary = machine.directory.join("ringway");
        let words = [&*binary.to_string_lossy(), "capture", "--node", node, "tcp port 80"];
        let mut capture = machine.namespace.spawn(machine.command(&words))?;
        capture.wait_for_log("capturing from", SOON)?;
        Ok(capture)
    };
    let (mut killed, mut living) = (begin()?, begin()?);
    ensure!(place.join("0").exists() && place.join("1").exists(), "two have no two places");
    killed.kill()?;
    wait_until("the killed one's place to be empty", SOON, || !place.join("0").exists())?;
    get(site.client(), WEB)?;
    living.wait_for_log("service web", SOON)?;
    ensure!(place.join("1").exists(), "the other one's was taken");
    living.kill()?;
    wait_until("nothing left of captures", SOON, || !place.exists())?;
    get(site.client(), WEB)?;
    Ok(())
}

/// The daemon's user owns the directory of the node's pins. What it plants there makes root neither
/// give away what is not its own nor wait for ever.
#[test]
fn planted_links_are_refused() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    let node = site.net.gateway.name();
    let place = format!("/sys/fs/bpf/ringway/{node}/capture");
    let victim = machine.directory.join("victim");
    fs::create_dir(&victim)?;
    fs::write(victim.join("shadow"), "root's")?;
    fs::set_permissions(victim.join("shadow"), fs::Permissions::from_mode(0o600))?;
    // Whoever has the daemon's user can stop it, so that it sweeps nothing away.
    let as_user = |script: &str| -> Result<()> {
        let who = ["setpriv", "--reuid=ringway", "--regid=ringway", "--clear-groups"];
        let victim = victim.to_string_lossy();
        let bare = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"];
        let ran = machine
            .run(&[&who[..], &bare, &["sh", "-euc", script, "sh", &place, &victim]].concat())?;
        ensure!(ran.code == 0, "{script}: {}", ran.said());
        Ok(())
    };
    let untouched = || -> Result<()> {
        for path in [victim.clone(), victim.join("shadow")] {
            let about = fs::metadata(&path)?;
            ensure!(
                (about.uid(), about.gid()) == (0, 0),
                "{} is {}'s",
                path.display(),
                about.uid()
            );
        }
        Ok(())
    };
    as_user(&format!("kill -STOP {}", daemon.pid()))?;
    let capture = ["capture", "--node", node, "--seconds", "1"];
    for (planted, named) in [
        ("mkdir $1; ln -s $2 $1/x", format!("{place}/x")),
        ("rm -r $1; mkdir $1 $1/3; ln -s $2 $1/3/filter", format!("{place}/3/filter")),
        ("rm -r $1; mkdir $1; ln -s $2 $1/3", format!("{place}/3")),
        ("rm -r $1; ln -s $2 $1", place.clone()),
    ] {
        as_user(planted)?;
        let ran = machine.ringway(&capture)?;
        let said = format!("not Ringway's: {named}; a process with the daemon's rights");
        ensure!(ran.code == 1 && ran.err.contains(&said), "{planted}: {}", ran.said());
        untouched().context(planted)?;
    }
    // What it says helps.
    machine.run(&["rm", "-r", &place])?;
    let ran = machine.ringway(&capture)?;
    ensure!(ran.code == 0, "{}", ran.said());
    as_user("ln -s $2 $1")?;
    daemon.signal(Signal::CONT)?;
    wait_up(&machine, &file, 0)?;
    daemon.signal(Signal::TERM)?;
    daemon.wait(SOON)?;
    // Neither does removing the package stop there, nor what the link leads to go.
    let detached = machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0, "{}", detached.said());
    untouched()
}

/// What loads programs at a start may come by a reload: the probe tunnel, with a device and
/// rules of its own.
#[test]
fn a_reload_opens_the_road_of_checks() -> Result<()> {
    needs_root!();
    let (net, _decaps) = backends_with_the_addresses(Opener::Ringway)?;
    let vip = SocketAddr::new(SERVICE_V4, 80);
    let serve = |node: &Node| Nginx::start(&node.ns, &[vip, node.sockets(80)[0]], "any");
    let _nginx = net.backends.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let backends: Vec<SocketAddr> = net.backends.iter().map(|node| node.sockets(80)[0]).collect();
    let check = "announce = \"arp\"\ncheck = { type = \"http\", interval = \"200ms\" }\n";
    let text = |services: &str| configuration(&net.gateway, &["eth0", "eth1"], services);
    let nat = service("web", "10.1.0.81:80".parse()?, &backends, check);
    let more = format!("forward = \"dsr-ipip\"\n{check}");
    let both = nat.clone() + &service("direct", vip, &backends, &more);

    let machine = Machine::new(&net.gateway)?;
    let file = machine.write(&text(&nat))?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    wait_up(&machine, &file, 0)?;
    machine.write(&text(&both))?;
    let reloaded = machine.ringway(&["reload", "-c", &file.to_string_lossy()])?;
    ensure!(reloaded.code == 0, "{}\n{}", reloaded.said(), daemon.log());
    wait_up(&machine, &file, 1)?;
    get(&net.client.ns, vip)?;
    ensure!(capabilities(daemon.pid(), "CapEff")? == THREE, "after the reload");
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success() && !end.log.contains("ermission"), "{}", end.log);
    let detached = machine.ringway(&["detach", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0, "{}", detached.said());
    Ok(())
}
/// The unit's user may not look below a second bpffs: its manager keeps where its pins are.
#[test]
fn the_units_daemon_survives_a_second_bpffs() -> Result<()> {
    needs_root!();
    ensure!(line_of("FileDescriptorStoreMax=") == "1", "the unit's manager keeps nothing");
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    let manager = Manager::new(&machine)?;
    machine.prepare()?;
    let mut killed = machine.start_after(&manager.daemon(), &file)?;
    wait_up(&machine, &file, 0)?;
    let kept = manager.kept.recv_timeout(SOON)?;
    machine.run(&["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"])?;
    killed.kill()?;
    // Twice: the second one gives what it was given.
    for _ in 0..2 {
        machine.prepare()?;
        let mut daemon = machine.start_after(&manager.daemon_with(&kept), &file)?;
        let log = daemon.log();
        ensure!(log.contains("took over the running packet path"), "{log}");
        manager.kept.recv_timeout(SOON)?;
        get(site.client(), WEB)?;
        let found = status(&machine, &file)?;
        ensure!(found["findings"].to_string().contains("bpffs-covered"), "{found}");
        // It writes there, too.
        machine.write(&fs::read_to_string(&file)?.replace("\"direct\"", "\"straight\""))?;
        let reloaded = machine.ringway(&["reload", "-c", &file.to_string_lossy()])?;
        ensure!(reloaded.code == 0, "{}", reloaded.said());
        daemon.kill()?;
        get(site.client(), WEB)?;
    }
    machine.run(&["umount", "/sys/fs/bpf"])?;
    // What it was given is not needed then, and does no harm.
    machine.prepare()?;
    let mut daemon = machine.start_after(&manager.daemon_with(&kept), &file)?;
    ensure!(daemon.log().contains("took over the running packet path"), "{}", daemon.log());
    daemon.signal(Signal::TERM)?;
    daemon.wait(SOON)?;
    let detached = machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0, "{}", detached.said());
    Ok(())
}

/// Many scripts mount a bpffs without a look. No request is lost when the daemon is killed then and
/// starts again.
#[test]
fn a_second_bpffs_on_top() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    let binary = machine.directory.join("ringway");
    let words = [&*binary.to_string_lossy(), "run", "-c", &file.to_string_lossy()];
    let start = || -> Result<Child> {
        let mut daemon = machine.namespace.spawn(machine.command(&words))?;
        daemon.wait_for_log("serving: ", SOON)?;
        Ok(daemon)
    };
    let mut killed = start()?;
    wait_up(&machine, &file, 0)?;
    let covered = |status: &Value| {
        let finding =
            |f: &Value| f["kind"] == "bpffs-covered" && f["remedy"] == "umount /sys/fs/bpf";
        status["findings"].as_array().is_some_and(|all| all.iter().any(finding))
    };
    let wait_told = |told: bool| {
        wait_for("the finding", SOON, || {
            let status = status(&machine, &file).map_err(|error| format!("{error:#}"))?;
            let as_wanted = covered(&status) == told;
            as_wanted.then_some(()).ok_or_else(|| status["findings"].to_string())
        })
    };
    ensure!(!covered(&status(&machine, &file)?), "one mount is none too many");
    machine.run(&["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"])?;
    wait_told(true)?;
    killed.kill()?;
    get(site.client(), WEB)?;
    let unseen = status(&machine, &file)?;
    ensure!(covered(&unseen) && unseen["from_pins"] == true, "{unseen}");

    // The unit's user may not look below; what it is told helps.
    machine.prepare()?;
    let refused = machine.start(&file).err().context("it has started")?;
    ensure!(format!("{refused:#}").contains("umount /sys/fs/bpf"), "{refused:#}");
    get(site.client(), WEB)?;

    // Root may. Nothing of it is where it does not belong.
    let mut daemon = start()?;
    ensure!(daemon.log().contains("took over the running packet path"), "{}", daemon.log());
    get(site.client(), WEB)?;
    wait_told(true)?;
    let node = site.net.gateway.name();
    ensure!(!machine.seen(&format!("/sys/fs/bpf/ringway/{node}")).exists(), "pinned on top");
    machine.run(&["umount", "/sys/fs/bpf"])?;
    ensure!(machine.seen(&format!("/sys/fs/bpf/ringway/{node}/maps/settings")).exists(), "no pins");
    wait_told(false)?;
    get(site.client(), WEB)?;

    // Neither does taking it all away need the one on top gone.
    machine.run(&["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"])?;
    daemon.signal(Signal::TERM)?;
    daemon.wait(SOON)?;
    let detached = machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0 && detached.said().contains("verified"), "{}", detached.said());
    Ok(())
}

/// Loading a program needs CAP_PERFMON, which is gone: what was loaded is kept for this.
#[test]
fn a_program_is_attached_again_without_more() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    let node = site.net.gateway.name();
    detach_link(&machine.seen(&format!("/sys/fs/bpf/ringway/{node}/ifaces/eth0/link")))?;
    wait_for("attached again", SOON, || {
        let status = status(&machine, &file).map_err(|error| format!("{error:#}"))?;
        let eth0 = &status["interfaces"][0];
        match eth0["attached"] == true && eth0["attached_again"] == 1 {
            true => Ok(()),
            false => Err(format!("{} {}", status["interfaces"], status["problems"])),
        }
    })?;
    get(site.client(), WEB)?;
    // A device of that name made anew, with another index.
    site.net.gateway.ip("link del eth0\n")?;
    let outer = End::new(&site.net.gateway, "eth0").address("10.1.0.1/24");
    let far = End::new(site.client(), "eth0").address("10.1.0.2/24").xdp_receive(XdpReceive::Pass);
    veth(&far, &outer, &VethOptions::default())?;
    site.client().ip("route add default via 10.1.0.1\n")?;
    let answered = || get(site.client(), WEB).map_err(|error| format!("{error:#}"));
    wait_for("traffic on the new device", SOON, answered)?;
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success() && !end.log.contains("ermission"), "{}", end.log);
    let detached = machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0, "{}", detached.said());
    Ok(())
}

/// The right to load programs is kept where there is a shield, and nowhere else.
#[test]
fn a_shield_changes_without_root() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    site.client().ip("addr add 10.1.0.3/24 dev eth0\naddr add 10.1.0.4/24 dev eth0\n")?;
    let machine = Machine::new(&site.net.gateway)?;
    let web = site.service("web", WEB, "check = { type = \"tcp\", interval = \"200ms\" }");
    let list = machine.directory.join("drop.txt");
    let with = |list: &Path, rules: &str| {
        let lists = format!("list = [{{ name = \"drop\", file = {list:?}, action = \"block\" }}]");
        site.configuration(&format!("{web}[shield]\n{lists}\nrule = [{rules}]\n"))
    };
    let curl = |from: &str| -> Result<Option<i32>> {
        let mut curl = site.client().command("curl");
        curl.args(["-s", "-o", "/dev/null", "--interface", from, "--max-time", "1"]);
        Ok(curl.arg(format!("http://{WEB}/")).output()?.status.code())
    };
    let passes = |what: &str, fates: [(&str, bool); 2]| -> Result<()> {
        for (from, passes) in fates {
            let code = curl(from)?;
            ensure!(code == Some(if passes { 0 } else { 28 }), "{what}: {from}: {code:?}");
        }
        Ok(())
    };
    let file = machine.write(&site.configuration(&web))?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    wait_up(&machine, &file, 0)?;
    fs::write(&list, "10.1.0.3\n")?;
    machine.write(&with(&list, ""))?;
    let reload = || machine.ringway(&["reload", "-c", &file.to_string_lossy()]);
    let refused = reload()?;
    let restart = format!("kill {}, then again: ", daemon.pid());
    let said = ["started without one", &restart];
    ensure!(refused.code == 2 && said.iter().all(|w| refused.err.contains(w)), "{refused:?}");
    passes("refused", [("10.1.0.2", true), ("10.1.0.3", true)])?;
    // What it says helps.
    daemon.signal(Signal::TERM)?;
    daemon.wait(SOON)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    wait_up(&machine, &file, 0)?;
    let keeps = |when: &str| -> Result<()> {
        for set in ["CapPrm", "CapEff"] {
            let has = capabilities(daemon.pid(), set)?;
            ensure!(has == THREE | PERFMON, "{when}: {set} is {has:#x}");
        }
        ensure!(capabilities(daemon.pid(), "CapAmb")? == 0, "{when}: CapAmb");
        Ok(())
    };
    keeps("started with [shield]")?;
    passes("a list", [("10.1.0.2", true), ("10.1.0.3", false)])?;

    fs::write(&list, "10.1.0.4/32\n")?;
    let follows =
        || passes("followed", [("10.1.0.3", true), ("10.1.0.4", false)]).map_err(|e| e.to_string());
    wait_for("another list", SOON, follows)?;
    let other = machine.directory.join("other.txt");
    fs::write(&other, "10.1.0.3\n")?;
    machine.write(&with(&other, "{ match = \"src host 10.1.0.2\", action = \"drop\" }"))?;
    let reloaded = reload()?;
    ensure!(reloaded.code == 0, "{}\n{}", reloaded.said(), daemon.log());
    passes("others", [("10.1.0.2", false), ("10.1.0.4", true)])?;
    keeps("after a reload")?;

    // Files that are root's alone.
    let secret =
        |path: &Path, mode: u32| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    secret(&list, 0o600)?;
    machine.write(&with(&list, ""))?;
    let refused = reload()?;
    let said = ["drop.txt", "Permission denied", "what was in force stays"];
    ensure!(refused.code == 2 && said.iter().all(|w| refused.err.contains(w)), "{refused:?}");
    secret(&other, 0o600)?;
    let problem = |wanted: bool| {
        wait_for("what status says of the list", SOON, || {
            let status = status(&machine, &file).map_err(|error| format!("{error:#}"))?;
            let problems = status["problems"].to_string();
            let told = problems.contains("shield-list") && problems.contains("Permission denied");
            if told == wanted { Ok(()) } else { Err(problems) }
        })
    };
    problem(true)?;
    passes("unreadable", [("10.1.0.2", false), ("10.1.0.3", false)])?;
    // Its bytes are the same.
    secret(&other, 0o644)?;
    problem(false)?;
    passes("readable again", [("10.1.0.3", false), ("10.1.0.4", true)])?;
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    let detached = machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?;
    ensure!(detached.code == 0, "{}", detached.said());
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    let ran = machine.run(&[
        "setpriv",
        "--reuid=ringway",
        "--regid=ringway",
        "--clear-groups",
        "--bounding-set=-all,+bpf,+net_admin,+net_raw",
        "--inh-caps=-all,+bpf,+net_admin,+net_raw",
        "--ambient-caps=-all,+bpf,+net_admin,+net_raw",
        &machine.directory.join("ringway").to_string_lossy(),
        "run",
        "-c",
        &file.to_string_lossy(),
    ])?;
    ensure!(ran.code == 1 && ran.err.contains("CAP_PERFMON"), "{ran:?}");
    Ok(())
}
