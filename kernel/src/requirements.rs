//! Requirements on this machine: kernel, capabilities, bpffs.
//!
//! RLIMIT_MEMLOCK does not matter: since 5.11, below our floor, BPF memory is accounted to the
//! memory control group instead.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use ringway_bpf_sys::{self as bpf, PASS, Program};
use rustix::mount::MountFlags;
use rustix::thread::CapabilitySet;

use crate::{Error, Result};

/// Magic number of bpffs, linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// The oldest kernel that Ringway runs on.
const FLOOR: (u32, u32) = (6, 1);

/// State of the file system that holds the pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bpffs {
    /// A bpf file system is mounted there.
    Mounted,
    /// None was, and one has just been mounted.
    JustMounted {
        /// In a mount namespace of its own (under `ip netns exec`, in a container): the pins
        /// are seen only there and vanish with it.
        private: bool,
    },
}

/// The findings. Nothing was changed.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Release of the running kernel.
    pub kernel: String,
    pub kernel_ok: bool,
    /// Capabilities that are needed and missing.
    pub missing_capabilities: Vec<&'static str>,
}

impl Probe {
    /// Fails on the first thing that makes loading impossible.
    pub fn require(&self) -> Result<()> {
        if !self.kernel_ok {
            return Err(Error::KernelTooOld { found: self.kernel.clone() });
        }
        if !self.missing_capabilities.is_empty() {
            return Err(Error::NotPermitted { missing: self.missing_capabilities.clone() });
        }
        Ok(())
    }
}

/// Looks at the machine, changing nothing.
pub fn probe() -> Result<Probe> {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Ok(Probe {
        kernel_ok: version(&kernel) >= FLOOR,
        kernel,
        missing_capabilities: missing_capabilities()?,
    })
}

/// Makes sure that bpffs is mounted at `path`, mounting it when it is not.
pub fn ensure_bpffs(path: &Path) -> Result<Bpffs> {
    if is_bpffs(path) {
        return Ok(Bpffs::Mounted);
    }
    let refused = |source| Error::NoBpffs { path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(refused)?;
    rustix::mount::mount("bpf", path, "bpf", MountFlags::empty(), c"mode=0700")
        .map_err(|errno| refused(errno.into()))?;
    let private = in_private_mount_namespace();
    if private {
        tracing::warn!(
            path = %path.display(),
            "bpffs mounted in a private mount namespace: pins are seen only there and vanish with it; \
             instead of `ip netns exec NAME ringway`: nsenter --net=/run/netns/NAME ringway"
        );
    }
    Ok(Bpffs::JustMounted { private })
}

pub(crate) fn is_bpffs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == BPF_FS_MAGIC)
}

/// Whether pins may exist that this process cannot see: it has mounts of its own and no bpffs among
/// them, or another file system lies over the bpffs. `ip netns exec` does the first (iproute2,
/// lib/namespace.c: it mounts /sys anew).
pub fn bpffs_is_hidden(path: &Path) -> bool {
    !is_bpffs(path) && (has_bpffs_below(path) || in_private_mount_namespace())
}

/// Whether another file system is mounted over the bpffs at this path: `umount` brings that back.
pub fn bpffs_is_overmounted(path: &Path) -> bool {
    !is_bpffs(path) && has_bpffs_below(path)
}

fn has_bpffs_below(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    bpffs_among(&mounts, path)
}

/// By proc_pid_mountinfo(5): the fifth field is the mount point.
fn bpffs_among(mounts: &str, path: &Path) -> bool {
    let here = |line: &str| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path);
    mounts.lines().any(|line| here(line) && line.contains(" - bpf "))
}

/// Mounts have numbers of their own on the whole machine; which namespace process 1 has is not
/// everybody's to read.
fn in_private_mount_namespace() -> bool {
    let mounts = |process: &str| -> BTreeSet<u64> {
        let text = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    };
    let (own, init) = (mounts("self"), mounts("1"));
    !own.is_empty() && !init.is_empty() && own.is_disjoint(&init)
}

/// Whether the kernel compiles programs, instead of interpreting them; `None` when this process may
/// not load any.
pub fn compiles_programs() -> Option<bool> {
    let program = Program { name: "rw_jit", instructions: &PASS, frags: false }.load().ok()?;
    bpf::info(program.as_fd()).ok().map(|info| info.jited_len > 0)
}

/// (major, minor) of a kernel release; zeros where it cannot be told.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next().and_then(|n: std::result::Result<u32, _>| n.ok()).unwrap_or(0);
    (next(), next())
}

/// Whether every link of the machine may be listed (kernel/bpf/syscall.c, bpf_obj_get_next_id).
pub(crate) fn may_list_links() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Capabilities that are missing to load programs. CAP_PERFMON is for that alone: the verifier lets
/// only those who have it compute addresses from packets, and attach to tracepoints.
pub(crate) fn missing_capabilities() -> Result<Vec<&'static str>> {
    let sets = rustix::thread::capabilities(None)
        .map_err(|errno| Error::System { action: "read capabilities", source: errno.into() })?;
    let has = |wanted| sets.effective.contains(wanted);
    if has(CapabilitySet::SYS_ADMIN) && has(CapabilitySet::NET_ADMIN) {
        return Ok(Vec::new());
    }
    let needed = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    Ok(needed.into_iter().filter(|(set, _)| !has(*set)).map(|(_, name)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare() {
        assert_eq!(version("6.1.0-loongson-3"), (6, 1));
        assert_eq!(version("5.10.0-39-amd64"), (5, 10));
        assert!(version("6.18.44") >= FLOOR && version("5.15.1") < FLOOR);
        assert_eq!(version("strange"), (0, 0));
    }

    #[test]
    fn a_bpffs_below_another_file_system_is_known() {
        let mounts = "42 27 0:39 / /sys/fs/bpf rw,relatime shared:9 - bpf bpf rw\n\
                      77 42 0:50 / /sys/fs/bpf rw,relatime - tmpfs tmpfs rw\n";
        assert!(bpffs_among(mounts, Path::new("/sys/fs/bpf")));
        assert!(!bpffs_among(mounts, Path::new("/sys/fs")));
        let tmpfs_alone = mounts.lines().nth(1).unwrap_or_default();
        assert!(!bpffs_among(tmpfs_alone, Path::new("/sys/fs/bpf")));
    }

    #[test]
    fn an_ordinary_directory_is_not_bpffs() {
        assert!(!is_bpffs(Path::new("/proc")));
        assert!(!is_bpffs(Path::new("/no/such/place")));
    }
}
