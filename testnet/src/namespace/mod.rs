//! A network namespace with a name, removed with its last handle.

pub(crate) mod ip;
pub(crate) mod process;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
};
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::owner::{Owner, directory_of, keeping};
use crate::sweep::{self, NETNS};
use crate::{Error, Result, tools};
use process::Child;

/// A network namespace. Clones are handles to the same one; the last to go removes it and ends the
/// programs that were started in it.
#[derive(Clone)]
pub struct Namespace(Arc<Inner>);

struct Inner {
    name: String,
    file: Arc<OwnedFd>,
    directory: PathBuf,
    keep: bool,
}

impl Namespace {
    /// Makes a namespace named `rw-HINT-PID-START-N` with `lo` up, and IPv6 set so that addresses
    /// are usable at once (no duplicate address detection) and no router advertisements are
    /// listened to. Needs root.
    pub fn new(hint: &str) -> Result<Self> {
        Self::make(hint, true)
    }

    /// The calling thread's own, by a name like that of [`Namespace::new`] and with the same
    /// settings. It stays when the name goes. For a machine that is there for tests alone.
    pub fn own(hint: &str) -> Result<Self> {
        Self::make(hint, false)
    }

    fn make(hint: &str, anew: bool) -> Result<Self> {
        sweep_once()?;
        process::start_spawner();
        let name = Owner::this()?.name(hint);
        let directory = directory_of(&name);
        let _leave = sweep::leave_to_make().ok_or(Error::Ending)?;
        fs::create_dir_all(&directory)
            .map_err(|e| Error::file("creating", directory.as_path(), e))?;
        let file = mount_named(&name, anew).map_err(|source| {
            let _ = sweep::remove(&name);
            Error::Namespace { step: "creating", name: name.clone(), source }
        })?;
        let namespace =
            Self(Arc::new(Inner { name, file: Arc::new(file), directory, keep: keeping() }));
        namespace.run(quiet_ipv6)??;
        ip::batch(&namespace, "link set lo up")?;
        Ok(namespace)
    }

    /// The name under /run/netns.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// `/run/netns/NAME`, for `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS).join(&self.0.name)
    }

    /// A directory of this namespace's own, removed with it (logs, configurations).
    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// The open namespace, for setns(2).
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.0.file
    }

    /// Runs `work` on a fresh thread inside the namespace and waits for it. Sockets opened there
    /// stay in the namespace for life. A panic of `work` goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// [`Namespace::run`] with the namespace's own sysfs at /sys, as `ip netns exec` mounts it.
    pub fn run_with_sysfs<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.run(|| own_sysfs().map(|()| work()))?
    }

    /// Moves the **calling thread** into the namespace, for good. For threads of your own; never
    /// call it on a thread of an asynchronous runtime's pool.
    pub fn enter(&self) -> Result<()> {
        move_into_link_name_space(self.0.file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
            |e| Error::Namespace { step: "entering", name: self.0.name.clone(), source: e.into() },
        )
    }

    /// A command that will run inside the namespace, with /sys and bpffs as they are outside
    /// (`ip netns exec` would hide them), and that dies with the **thread** that starts it. For
    /// `.output()` and `.status()`; for programs that go on in the background use
    /// [`Namespace::spawn`]. Open files: as many as allowed.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let netns = Arc::clone(&self.0.file);
        let parent = rustix::process::getpid();
        let keep = self.0.keep;
        let enter = move || -> io::Result<()> {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
            raise_open_files();
            if !keep {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have died before the line above.
                if getppid() != Some(parent) {
                    return Err(io::Error::from_raw_os_error(
                        rustix::io::Errno::CHILD.raw_os_error(),
                    ));
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// [`Namespace::command`] for a tool on PATH or among the unpacked packages (see
    /// [`tools::find`]).
    pub fn tool(&self, name: &str) -> Result<Command> {
        let tool = tools::find(name)?;
        let mut command = self.command(&tool.path);
        tool.set_environment(&mut command);
        Ok(command)
    }

    /// Starts a command made by [`Namespace::command`] or [`Namespace::tool`] in the background, in
    /// a process group of its own, with standard output and error going to a log file. The child is
    /// ended when the returned guard is dropped, when the namespace goes, or when this process
    /// dies.
    pub fn spawn(&self, command: Command) -> Result<Child> {
        process::spawn(self, command)
    }

    /// Writes a sysctl in the namespace: `ns.sysctl("net/ipv4/ip_forward", "1")`; dots work as
    /// well.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.run(|| write_sysctl(key, value))?
    }

    /// Runs lines of `ip -batch` in the namespace, all or up to the first failure.
    pub fn ip(&self, lines: &str) -> Result<()> {
        ip::batch(self, lines)
    }

    pub(crate) fn keep(&self) -> bool {
        self.0.keep
    }
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Namespace").field(&self.0.name).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(e) = sweep::remove(&self.name) {
            eprintln!("ringway-testnet: {e}");
        }
    }
}

/// Removes what dead owners left, once per process.
fn sweep_once() -> Result<()> {
    static SWEPT: Mutex<bool> = Mutex::new(false);
    let mut swept = SWEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if !*swept {
        sweep::sweep()?;
        *swept = true;
    }
    Ok(())
}

/// Mounts a namespace at /run/netns/NAME, a new one or that of the calling thread.
fn mount_named(name: &str, anew: bool) -> io::Result<OwnedFd> {
    share_netns_directory()?;
    let path = Path::new(NETNS).join(name);
    fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
    let make = || -> io::Result<OwnedFd> {
        if anew {
            // SAFETY: only the network namespace of this short-lived thread changes; no file
            // descriptor table, memory or file system state is unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        }
        mount_bind("/proc/thread-self/ns/net", &path)?;
        Ok(fs::File::open(&path)?.into())
    };
    thread::scope(|scope| {
        scope.spawn(make).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes /run/netns a shared mount point just as `ip netns add` does, so that both can be used side
/// by side and unmounting reaches every mount namespace.
fn share_netns_directory() -> io::Result<()> {
    fs::create_dir_all(NETNS)?;
    let directory = fs::File::open(NETNS)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(NETNS, flags) {
        Err(rustix::io::Errno::INVAL) => {
            mount_bind_recursive(NETNS, NETNS)?;
            Ok(mount_change(NETNS, flags)?)
        }
        other => Ok(other?),
    }
}

fn quiet_ipv6() -> Result<()> {
    for scope in ["all", "default"] {
        for key in ["accept_dad", "dad_transmits", "accept_ra", "router_solicitations"] {
            let key = format!("net/ipv6/conf/{scope}/{key}");
            match write_sysctl(&key, "0") {
                // A kernel without IPv6.
                Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    Ok(())
}

fn write_sysctl(key: &str, value: &str) -> Result<()> {
    let path = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
    let path = Path::new("/proc/sys").join(path);
    fs::write(&path, value).map_err(|e| Error::file("writing", path, e))
}

/// Raises the soft limit of open files: load generators and servers need more than the usual 1 024.
fn raise_open_files() {
    const ENOUGH: u64 = 65_536;
    let now = getrlimit(Resource::Nofile);
    let current = now.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum });
}

/// Gives this process a /run of its own. Names of namespaces are kept there, so they go with the
/// process and its children, however these end. Call it before the first thread and the first
/// namespace. Needs root.
pub fn private_run() -> Result<()> {
    mount_alone("tmpfs", "/run")
}

/// Shows the calling thread the sysfs of its network namespace, as `ip netns exec` does.
fn own_sysfs() -> Result<()> {
    mount_alone("sysfs", "/sys")
}

fn mount_alone(kind: &str, place: &'static str) -> Result<()> {
    let alone = || -> io::Result<()> {
        // SAFETY: the mounts of this thread change, and of threads that it starts later; no
        // descriptor table and no memory is unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        Ok(mount(kind, place, kind, MountFlags::empty(), None)?)
    };
    alone().map_err(|source| Error::file("mounting", place, source))
}
