//! Mounts of a process or a thread alone.

use std::io;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::{Error, Result};

/// Gives this process a /run of its own. Names of namespaces are kept there, so they go with the
/// process and its children, however these end. Call it before the first thread and the first
/// namespace. Needs root.
pub fn private_run() -> Result<()> {
    mount_alone("tmpfs", "/run")
}

/// Shows the calling thread the sysfs of its network namespace, as `ip netns exec` does.
pub(super) fn own_sysfs() -> Result<()> {
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
