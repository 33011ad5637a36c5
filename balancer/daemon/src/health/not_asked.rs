//! Checks that this machine could not make. They say nothing about a backend, so they change no
//! state: they are a problem of the node.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

pub use ringway_api::documents::health::Lack;
use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::{ProblemKind, Subject};
use ringway_api::text::counted;
use rustix::io::Errno;

/// What an error says this machine lacks, if only this machine can make it. EACCES is none: an
/// ICMPv6 message of another machine makes it, too.
pub fn lack_of(error: &io::Error) -> Option<Lack> {
    match Errno::from_io_error(error)? {
        Errno::MFILE | Errno::NFILE => Some(Lack::Descriptors),
        Errno::NOMEM | Errno::NOBUFS | Errno::NOSPC | Errno::AGAIN => Some(Lack::Memory),
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => Some(Lack::Address),
        Errno::PERM => Some(Lack::Permission),
        _ => None,
    }
}

fn remedy(lack: Lack) -> &'static str {
    match lack {
        Lack::Descriptors => {
            "`prlimit --nofile -p $(pidof ringway)` and `sysctl fs.file-nr` show the limits: raise LimitNOFILE= \
             of the unit (`systemctl edit ringway`) or fs.file-max; if neither is reached, raise MemoryMax=, for \
             the kernel says the same where it has no memory for a file"
        }
        Lack::Memory => {
            "`free -m` and `systemctl status ringway` show memory and tasks: free some, or raise MemoryMax= and \
             TasksMax= of the unit; `tc -s qdisc show` shows queues that are full"
        }
        Lack::Address => {
            "`ss -s` shows how many local ports are in use: widen net.ipv4.ip_local_port_range; `ip address` \
             shows whether the node still has the address that checks leave from"
        }
        Lack::Permission => {
            "`nft list ruleset` shows rules of the hook output: let checks to the backends pass"
        }
        Lack::Program => {
            "`ringway check --host` shows whether the daemon's user may run it: install it, or let that user; \
             `ps -eo pid,stat,wchan:32,args` shows in state D what hangs in the kernel, mostly for a file system"
        }
        Lack::Authorities => {
            "put the file back: it is read again by itself; or write another ca_file, then `ringway reload`"
        }
    }
}

/// Why a check was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAsked {
    pub lack: Lack,
    pub why: String,
}

impl fmt::Display for NotAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// The targets whose last check could not be made, and how many checks could not.
#[derive(Debug, Default)]
pub(super) struct Unasked {
    now: Mutex<HashMap<usize, NotAsked>>,
    counts: [AtomicU64; Lack::ALL.len()],
}

impl Unasked {
    pub fn note(&self, id: usize, why: Option<&NotAsked>) {
        let Some(why) = why else {
            self.lock().remove(&id);
            return;
        };
        self.counts[why.lack as usize].fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, why.clone());
    }

    /// Forgets all other targets.
    pub fn keep(&self, has: impl Fn(usize) -> bool) {
        self.lock().retain(|id, _| has(*id));
    }

    /// By what was lacking, how many checks could not be made since the daemon began.
    pub fn counts(&self) -> BTreeMap<Lack, u64> {
        let count = |lack: Lack| self.counts[lack as usize].load(Ordering::Relaxed);
        Lack::ALL.into_iter().map(|lack| (lack, count(lack))).collect()
    }

    /// One problem for each lack there is now.
    pub fn problems(&self) -> Vec<Problem> {
        let mut lacks: BTreeMap<Lack, (usize, String)> = BTreeMap::new();
        for NotAsked { lack, why } in self.lock().values() {
            let (targets, example) = lacks.entry(*lack).or_insert((0, why.clone()));
            *targets += 1;
            // The same one each time.
            if why < example {
                example.clone_from(why);
            }
        }
        let counts = self.counts();
        let shown = lacks.into_iter().map(|(lack, (targets, why))| {
            let checks = counts.get(&lack).copied().unwrap_or_default();
            let error = format!(
                "health checks cannot be made (lack of {}): {why}; this affects {}, whose state \
                 stays as it was; {} not made since the daemon began",
                lack.name(),
                counted(targets, "backend"),
                counted(checks, "check")
            );
            ProblemKind::ChecksNotMade.about(Subject::Checks(lack), error, remedy(lack))
        });
        shown.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, NotAsked>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_own_errors_are_its_own() {
        for (errno, want) in [
            (Errno::MFILE, Some(Lack::Descriptors)),
            (Errno::NFILE, Some(Lack::Descriptors)),
            (Errno::NOMEM, Some(Lack::Memory)),
            (Errno::NOBUFS, Some(Lack::Memory)),
            (Errno::ADDRNOTAVAIL, Some(Lack::Address)),
            (Errno::ADDRINUSE, Some(Lack::Address)),
            (Errno::PERM, Some(Lack::Permission)),
            // ICMPv6 "administratively prohibited".
            (Errno::ACCESS, None),
            (Errno::HOSTUNREACH, None),
            (Errno::CONNRESET, None),
            (Errno::TIMEDOUT, None),
        ] {
            assert_eq!(lack_of(&errno.into()), want, "{errno}");
        }
        assert_eq!(lack_of(&io::ErrorKind::UnexpectedEof.into()), None);
    }

    #[test]
    fn there_is_a_problem_while_some_target_is_not_asked() {
        let unasked = Unasked::default();
        let no = |lack, why: &str| NotAsked { lack, why: why.into() };
        unasked.note(1, Some(&no(Lack::Descriptors, "too many open files")));
        unasked.note(1, Some(&no(Lack::Descriptors, "too many open files")));
        unasked.note(2, Some(&no(Lack::Permission, "operation not permitted")));
        let said: Vec<String> = unasked.problems().into_iter().map(|one| one.error).collect();
        assert_eq!(said.len(), 2);
        assert!(
            said[0].starts_with("health checks cannot be made (lack of descriptors): too many")
                && said[0].contains("affects 1 backend,")
                && said[0].contains("2 checks not made"),
            "{said:?}"
        );
        unasked.note(1, None);
        unasked.keep(|id| id != 2);
        assert!(unasked.problems().is_empty());
        assert_eq!(unasked.counts()[&Lack::Descriptors], 2);
    }
}
