//! Another bpffs over the one that holds the pins.

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{SOON, STARTED, Site, WEB, get, needs_root};
use ringway_testnet::{Child, Signal, wait_for};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

use super::machine::{Machine, line_of};
use super::{configure, status, wait_up};

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
        machine.ringway(&["reload", "-c", &file.to_string_lossy()])?.done()?;
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
    machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?.done()?;
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
        daemon.wait_for_log("serving: ", STARTED)?;
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
