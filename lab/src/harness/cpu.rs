//! Processors, and the time that threads spend on them.

use std::fs;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Error, Result};

/// The processors of load and program, each for itself, unless there is only one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpus {
    /// The first: load, and the kernel's half of reception, which runs where packets are sent.
    pub load: usize,
    /// The last: what is measured.
    pub measured: usize,
}

impl Cpus {
    /// The processors that this process may use; its first thread keeps to none of them.
    pub(crate) fn here() -> Result<Self> {
        let allowed = sched_getaffinity(Some(getpid())).map_err(|e| Error::Settle(e.into()))?;
        let mut all = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let load = all.next().unwrap_or(0);
        Ok(Self { load, measured: all.next_back().unwrap_or(load) })
    }
}

/// The calling thread stays on this processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| Error::Settle(e.into()))
}

/// The calling thread goes before all processes' threads, as softirqs do; it must not keep its
/// processor for long at a time.
pub(crate) fn outrank() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the priority, which outlives it.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(Error::Settle(std::io::Error::last_os_error())),
    }
}

/// /proc counts in hundredths of a second wherever Linux runs today (USER_HZ).
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// A process or thread in /proc: its directory.
#[derive(Debug)]
pub(crate) struct Task(PathBuf);

impl Task {
    /// A process, with all its threads.
    pub(crate) fn process(pid: u32) -> Self {
        Self(format!("/proc/{pid}").into())
    }

    /// A thread of this process, by its name.
    pub(crate) fn thread(name: &str) -> Result<Self> {
        let source = std::io::ErrorKind::NotFound.into();
        let none = Error::Run { program: format!("thread {name}"), source };
        thread_named(name).map(Self).ok_or(none)
    }

    /// Its time in user mode so far; the kernel samples that some hundred times a second.
    pub(crate) fn user(&self) -> Result<Duration> {
        Ok(TICK * task_ticks(&self.read("stat")?).unwrap_or_default()[0])
    }

    /// Its time in user mode and in the kernel so far.
    pub(crate) fn user_and_system(&self) -> Result<Duration> {
        Ok(TICK * task_ticks(&self.read("stat")?).unwrap_or_default().iter().sum())
    }

    /// How long it has been ready to run so far, and its processor had others. None: the kernel
    /// does not count it.
    pub(crate) fn waited(&self) -> Option<Duration> {
        // On a processor, waiting for one, both in nanoseconds, and how often (proc_pid_schedstat(5)).
        let text = self.read("schedstat").ok()?;
        let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        // It writes zeros where it does not count.
        (numbers.first()? > &0).then(|| numbers.get(1).copied().map(Duration::from_nanos))?
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.0.join(name);
        fs::read_to_string(&path)
            .map_err(|source| Error::Run { program: path.display().to_string(), source })
    }
}

/// What the children of this process took that have ended and were waited for.
pub(crate) fn children() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure, which is all numbers and valid when zero, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1_000))
        .sum()
}

/// Where /proc has a thread of this process.
pub(crate) fn thread_named(name: &str) -> Option<PathBuf> {
    let named = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    fs::read_dir("/proc/self/task").ok()?.flatten().map(|entry| entry.path()).find(named)
}

/// Of all programs, from /proc/stat: user, nice and system.
pub(crate) fn programs_ticks(stat: &str) -> Option<u64> {
    Some(ticks(stat)?.get(..3)?.iter().sum())
}

/// Of all processors, by what they did: `cpu user nice system ...` (proc_stat(5)).
pub(crate) fn ticks(stat: &str) -> Option<Vec<u64>> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

/// In user mode and in the kernel, the 14th and 15th field; the second is in parentheses and may
/// have spaces (proc(5)).
fn task_ticks(stat: &str) -> Option<[u32; 2]> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        let all = "cpu  1 2 3 4 5 6 7 8\ncpu0 9\n";
        assert_eq!((programs_ticks(all), programs_ticks("cpu0 1 2 3")), (Some(6), None));
        let stat = "42 (a) b) R 1 2 3 4 5 6 7 8 9 10 1234 5678 0 0 20 0 1 0 1";
        assert_eq!(task_ticks(stat), Some([1234, 5678]));
        assert_eq!(task_ticks("gone"), None);
    }

    #[test]
    fn a_pinned_thread_knows_the_processors_of_all() {
        let before = Cpus::here().unwrap();
        let pinned = std::thread::spawn(move || {
            pin(before.measured).unwrap();
            Cpus::here().unwrap()
        });
        let after = pinned.join().unwrap();
        assert_eq!((after.load, after.measured), (before.load, before.measured));
    }

    #[test]
    fn children_that_have_ended() {
        let before = children();
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(children() > before);
    }

    #[test]
    fn threads_by_name() {
        let thread = std::thread::Builder::new().name("rw-by-name".into());
        let found = thread.spawn(|| Task::thread("rw-by-name").unwrap().user().unwrap()).unwrap();
        assert!(found.join().unwrap() < Duration::from_secs(10));
        assert!(Task::thread("nobody").is_err());
    }
}
