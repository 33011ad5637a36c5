//! Cost of this process, by proc(5).

use rustix::process::{Resource, getrlimit};

/// Ticks a second of times that the kernel shows, on every architecture
/// (include/uapi/asm-generic/param.h).
const USER_HZ: f64 = 100.0;

/// The figures that every Prometheus client library shows, by the same names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// In user and kernel mode.
    pub cpu_seconds: f64,
    /// Memory that is in RAM.
    pub resident_bytes: u64,
    pub open_fds: usize,
    /// How many there may be.
    pub max_fds: u64,
}

/// As it is now; `None` without /proc.
pub fn read() -> Option<Process> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in brackets, may hold anything; fields 3 and on follow.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(Process {
        cpu_seconds: (field(14)? + field(15)?) as f64 / USER_HZ,
        resident_bytes: kib * 1024,
        open_fds: std::fs::read_dir("/proc/self/fd").ok()?.count(),
        max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_costs_something() {
        let process = super::read().expect("/proc");
        assert!(process.resident_bytes > 1 << 20 && process.open_fds > 2, "{process:?}");
        assert!(process.max_fds >= process.open_fds as u64 && process.cpu_seconds < 1e6);
    }
}
