//! The kernel and its memory: release, BTF, bpffs, huge pages, which network namespace.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Host, Result};

/// A kernel release. Compares by its three numbers first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelRelease {
    /// First number: 6 in `6.1.0-18-amd64`.
    pub major: u32,
    pub minor: u32,
    /// Third number; 0 where there is none.
    pub patch: u32,
    /// As `uname -r` prints it.
    pub text: String,
}

impl KernelRelease {
    /// Reads what `uname -r` prints.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |part: Option<&str>| {
            let digits: String = part?.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        };
        let mut parts = text.splitn(3, '.');
        let (major, minor) = (number(parts.next())?, number(parts.next())?);
        let patch = number(parts.next()).unwrap_or(0);
        Some(Self { major, minor, patch, text: text.into() })
    }

    /// Whether it is this version or newer.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub total_bytes: u64,
    /// Memory that programs could still get without swapping.
    pub available_bytes: u64,
}

/// Huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    pub size_bytes: u64,
    /// Pages set aside.
    pub total: u64,
    pub free: u64,
}

impl Host {
    pub fn kernel_release(&self) -> Result<KernelRelease> {
        const PATH: &str = "/proc/sys/kernel/osrelease";
        let text = self.source.read(PATH)?;
        self.source.parse(PATH, &text, "a release such as 6.1.0-18-amd64", KernelRelease::parse)
    }

    /// Memory of the whole machine.
    pub fn memory(&self) -> Result<Memory> {
        const PATH: &str = "/proc/meminfo";
        let text = self.source.read(PATH)?;
        self.source.parse(PATH, &text, "lines MemTotal and MemAvailable in kB", |text| {
            Some(Memory {
                total_bytes: meminfo(text, "MemTotal")?,
                available_bytes: meminfo(text, "MemAvailable")?,
            })
        })
    }

    /// Memory that the control groups of this process leave it: the least of all of them, from its
    /// own to the root. None: they do not limit it, or cannot be read.
    pub fn memory_left(&self) -> Option<Left> {
        let groups = self.source.read("/proc/self/cgroup").ok()?;
        let limits = groups.lines().filter_map(MemoryGroup::of_line);
        limits
            .flat_map(|group| group.up())
            .filter_map(|group| self.left(&group))
            .min_by_key(|left| left.bytes)
    }

    fn left(&self, group: &MemoryGroup) -> Option<Left> {
        let MemoryGroup { directory, files } = group;
        let path = format!("{directory}/{}", files.limit);
        let number = |path: &str| self.source.read(path).ok()?.parse::<u64>().ok();
        // "max" is no number; without a limit version 1 has one beyond all memory.
        let limit = number(&path).filter(|limit| *limit < UNLIMITED)?;
        let used = number(&format!("{directory}/{}", files.used)).unwrap_or(0);
        // Files that are cached make room, as they do for MemAvailable.
        let statistics = self.source.read(&format!("{directory}/memory.stat")).unwrap_or_default();
        let cached = statistics
            .lines()
            .find_map(|line| line.strip_prefix(files.cached)?.trim().parse().ok());
        let used = used.saturating_sub(cached.unwrap_or(0));
        Some(Left { bytes: limit.saturating_sub(used), limit: path })
    }

    /// Huge pages by size, smallest first.
    pub fn huge_pages(&self) -> Result<Vec<HugePages>> {
        const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
        let mut pools = Vec::new();
        for name in self.source.list(DIRECTORY)? {
            let Some(kib) = name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB"))
            else {
                continue;
            };
            let number = |file: &str| {
                let path = format!("{DIRECTORY}/{name}/{file}");
                let text = self.source.read(&path)?;
                self.source.parse(&path, &text, "a number", |t| t.parse::<u64>().ok())
            };
            if let Ok(kib) = kib.parse::<u64>() {
                let (total, free) = (number("nr_hugepages")?, number("free_hugepages")?);
                pools.push(HugePages { size_bytes: kib * 1024, total, free });
            }
        }
        pools.sort_by_key(|p| p.size_bytes);
        Ok(pools)
    }

    /// Whether the kernel describes its own types (CONFIG_DEBUG_INFO_BTF), which CO-RE programs
    /// need.
    pub fn has_btf(&self) -> bool {
        self.source.exists("/sys/kernel/btf/vmlinux")
    }

    /// Where BPF file systems are mounted.
    pub fn bpffs_mounts(&self) -> Result<Vec<String>> {
        let mounts = self.source.read("/proc/self/mountinfo")?;
        Ok(mounts_of_type(&mounts, "bpf"))
    }

    /// Whether the calling thread is in the machine's first network namespace, told by a sysctl
    /// that exists only there. (Comparing with /proc/1 would mistake a container's own init for the
    /// machine's, and needs rights.)
    pub fn first_network_namespace(&self) -> bool {
        self.source.exists("/proc/sys/net/core/netdev_max_backlog")
    }
}

/// Memory that a control group leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Of its limit, what is not in use.
    pub bytes: u64,
    /// The file that the limit stands in.
    pub limit: String,
}

/// Version 1 counts pages in a signed number of bytes (PAGE_COUNTER_MAX,
/// include/linux/page_counter.h).
const UNLIMITED: u64 = 1 << 62;

/// A control group that may limit memory.
#[derive(Clone)]
struct MemoryGroup {
    directory: String,
    files: &'static MemoryFiles,
}

struct MemoryFiles {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
    /// With the blank behind it.
    cached: &'static str,
}

const VERSION_1: MemoryFiles = MemoryFiles {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: "total_inactive_file ",
};
const VERSION_2: MemoryFiles = MemoryFiles {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    cached: "inactive_file ",
};

impl MemoryGroup {
    /// A line of cgroups(7), `/proc/PID/cgroup`: hierarchy, controllers, path.
    fn of_line(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let files = match controllers {
            "" => &VERSION_2,
            _ if controllers.split(',').any(|one| one == "memory") => &VERSION_1,
            _ => return None,
        };
        Some(Self { directory: format!("{}{}", files.root, path.trim_end_matches('/')), files })
    }

    /// It, and those that it is in.
    fn up(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |group| {
            let (directory, _) = group.directory.rsplit_once('/')?;
            let inside = directory.starts_with(group.files.root);
            inside.then(|| Self { directory: directory.into(), files: group.files })
        })
    }
}

/// A line `Name:   123 kB`, in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Mount points of one file system type out of proc_pid_mountinfo(5). Octal escapes stand for
/// blanks.
fn mounts_of_type(mountinfo: &str, kind: &str) -> Vec<String> {
    let of_line = |line: &str| {
        // Fields up to " - " vary in number; the fifth is the mount point; behind it comes the
        // type.
        let (front, back) = line.split_once(" - ")?;
        let point = front.split(' ').nth(4)?.replace("\\040", " ");
        (back.split(' ').next()? == kind).then_some(point)
    };
    mountinfo.lines().filter_map(of_line).collect()
}

/// Gives memory that was freed back to the kernel. Reading a configuration takes twenty times its
/// size for a moment, and glibc keeps what small pieces leave behind; elsewhere this does nothing.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and frees nothing that is in use (malloc_trim(3)).
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_many_makers() {
        for (text, wanted) in [
            ("6.1.0-18-amd64", (6, 1, 0)),
            ("6.18.44-fc-v669", (6, 18, 44)),
            ("6.12-rc3", (6, 12, 0)),
            ("5.15.0+", (5, 15, 0)),
        ] {
            let release = KernelRelease::parse(text).unwrap();
            assert_eq!((release.major, release.minor, release.patch), wanted, "{text}");
        }
        assert!(KernelRelease::parse("linux").is_none());
        let release = KernelRelease::parse("6.2.1").unwrap();
        assert!(release.at_least(6, 1) && release.at_least(6, 2) && !release.at_least(6, 10));
        assert!(release < KernelRelease::parse("6.10.0").unwrap());
    }

    #[test]
    fn meminfo_lines() {
        let text = "MemTotal:       24684084 kB\nMemAvailable:   100 kB\nHugePages_Total:       0";
        assert_eq!(meminfo(text, "MemAvailable"), Some(102_400));
        assert_eq!(meminfo(text, "Mem"), None);
        assert_eq!(meminfo(text, "HugePages_Total"), None);
    }

    #[test]
    fn the_least_that_control_groups_leave() {
        let left = |files: &[(&str, &str)]| {
            let files = files.iter().map(|(path, text)| ((*path).into(), (*text).into()));
            let left = Host::captured(std::sync::Arc::new(files.collect())).memory_left();
            left.map(|left| (left.bytes, left.limit))
        };
        let own = ("/proc/self/cgroup", "0::/a.slice/b.scope");
        let (a, b) =
            ("/sys/fs/cgroup/a.slice/memory.max", "/sys/fs/cgroup/a.slice/b.scope/memory.max");
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[own, (a, "max"), (b, "max")]), None);
        assert_eq!(left(&[own, (a, "max"), (b, "5000")]), Some((5000, b.into())));
        assert_eq!(left(&[own, (a, "4000"), (b, "5000")]), Some((4000, a.into())));
        let (used, statistics) = (
            "/sys/fs/cgroup/a.slice/b.scope/memory.current",
            "/sys/fs/cgroup/a.slice/b.scope/memory.stat",
        );
        let cached = (statistics, "anon 1\ninactive_file 300\nactive_file 7");
        assert_eq!(left(&[own, (b, "5000"), (used, "800")]), Some((4200, b.into())));
        assert_eq!(left(&[own, (b, "5000"), (used, "800"), cached]), Some((4500, b.into())));
        assert_eq!(left(&[own, (b, "5000"), (used, "6000")]), Some((0, b.into())));
        // In a container its own group is the root of what it sees.
        let root = "/sys/fs/cgroup/memory.max";
        assert_eq!(left(&[("/proc/self/cgroup", "0::/"), (root, "7")]), Some((7, root.into())));
        // Version 1, beside an empty version 2.
        let both = ("/proc/self/cgroup", "5:cpu:/x\n4:memory,hugetlb:/c\n0::/");
        let (c, root) = (
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        );
        let none = (root, "9223372036854771712");
        assert_eq!(left(&[both, none]), None);
        assert_eq!(left(&[both, none, (c, "900")]), Some((900, c.into())));
    }

    #[test]
    fn mounts_with_optional_fields_and_blanks() {
        let text = "41 31 0:38 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n\
                    42 27 0:39 / /sys/fs/bpf rw,relatime - bpf bpf rw\n\
                    43 27 0:39 / /my\\040bpf rw shared:1 master:2 - bpf none rw\nnonsense";
        assert_eq!(mounts_of_type(text, "bpf"), ["/sys/fs/bpf", "/my bpf"]);
    }
}
