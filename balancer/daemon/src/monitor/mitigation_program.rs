//! The program of `[shield.mitigation]`: whether it can be run, and what came of its runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;
use ringway_api::state_dir::USER;
use ringway_config::{Config, Protocol};
use ringway_host::users;
use rustix::process::{getegid, geteuid};

/// The user and the group that it is to run as, where that is not the daemon's.
///
/// # Errors
/// There is no such user.
pub fn user() -> Result<Option<(u32, u32)>, String> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    users::ids(USER).map(Some).ok_or_else(|| {
        format!("it runs as user {USER}, and there is none: useradd --system --user-group {USER}")
    })
}

/// Why the program of a configuration cannot be run: this process is taken for its daemon's.
pub fn unfit(config: &Config) -> Option<String> {
    let program = config.shield.as_ref()?.mitigation.as_ref()?.run.first()?;
    let own = || (geteuid().as_raw(), getegid().as_raw());
    let why = match user() {
        Ok(user) => forbidden(Path::new(program), user.unwrap_or_else(own))?,
        Err(why) => why,
    };
    Some(format!("run of [shield.mitigation]: {program}: {why}"))
}

/// Why a user cannot run a program, by the modes of the file and the directories that lead there.
fn forbidden(program: &Path, (user, group): (u32, u32)) -> Option<String> {
    let missing = |error| format!("{error}: install it, or write the path of another");
    let program = match program.canonicalize() {
        Ok(program) => program,
        Err(error) => return Some(missing(error)),
    };
    for path in program.ancestors() {
        let about = match path.metadata() {
            Ok(about) => about,
            Err(error) => return Some(missing(error)),
        };
        if path == program && !about.is_file() {
            return Some("it is no file: write the path of a program".into());
        }
        let shift = match () {
            () if user == about.uid() => 6,
            () if group == about.gid() => 3,
            () => 0,
        };
        if about.mode() >> shift & 1 == 0 {
            let (mode, path) = (about.mode() & 0o7777, path.display());
            return Some(format!(
                "user {user} cannot run it, as {path} has mode {mode:04o}: chmod a+x {path}"
            ));
        }
    }
    None
}

/// What came of its runs.
#[derive(Debug, Default)]
pub struct ProgramOutcomes(Mutex<Outcomes>);

#[derive(Debug, Default)]
struct Outcomes {
    /// Since the daemon began.
    failures: u64,
    /// Of attacks that last, those that it was not told of. A reload may give a service another name.
    untold: BTreeMap<(IpAddr, u16, Protocol), Problem>,
}

impl ProgramOutcomes {
    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `begins`: it was told that the attack begins or goes on, else that it is over.
    pub fn note(
        &self,
        attack: &AttackStatus,
        command: &[String],
        begins: bool,
        failure: Option<String>,
    ) {
        let (mut outcomes, subject) = (self.lock(), attack.subject());
        let key = (attack.address, attack.port, attack.protocol);
        outcomes.failures += u64::from(failure.is_some());
        let Some(failure) = failure.filter(|_| begins) else {
            outcomes.untold.remove(&key);
            return;
        };
        let program = command.join(" ");
        let what = format!(
            "the program of [shield.mitigation] was not told of the attack on {subject}: {program}: \
             {failure}"
        );
        let remedy = "correct the program, then: ringway check --host";
        let problem = ProblemKind::MitigationProgram.about(subject, what, remedy);
        outcomes.untold.insert(key, problem);
    }

    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    pub fn findings(&self) -> Vec<Problem> {
        self.lock().untold.values().cloned().collect()
    }
}

#[cfg(test)]
pub mod tests {
    use ringway_api::clock::Timestamp;
    use ringway_config::ShieldMode;

    use super::*;

    /// One on a service of this port.
    pub fn attack(port: u16) -> AttackStatus {
        AttackStatus {
            service: "web".into(),
            address: [203, 0, 113, 9].into(),
            port,
            last_port: port,
            protocol: Protocol::Tcp,
            mode: ShieldMode::Enforce,
            since: Timestamp::default(),
            until: Timestamp::default(),
            ended: None,
            measure: None,
            packets_per_second: 7,
            new_flows_per_second: 0,
            baseline: None,
            syn: "off".into(),
            syns_answered_per_second: 0,
            lasts: false,
        }
    }

    #[test]
    fn a_failure_is_a_finding_until_a_success_or_the_end() {
        let outcomes = ProgramOutcomes::default();
        let failed = || Some("ended with status 3".to_owned());
        let note = |begins, failure| outcomes.note(&attack(80), &["/a".into()], begins, failure);
        let both = || (outcomes.failures(), outcomes.findings());
        note(true, failed());
        let (failures, findings) = both();
        assert_eq!((failures, findings.len()), (1, 1));
        assert!(findings[0].error.ends_with("ended with status 3"), "{findings:?}");
        note(true, None);
        assert_eq!(both(), (1, vec![]));
        note(true, failed());
        note(false, failed());
        assert_eq!(both(), (3, vec![]), "what is over needs nobody told");
        note(true, failed());
        let renamed = AttackStatus { service: "shop".into(), ..attack(80) };
        outcomes.note(&renamed, &["/a".into()], true, None);
        assert_eq!(both(), (4, vec![]), "its service has another name now");
    }

    #[test]
    fn a_program_that_its_user_cannot_run() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt as _;

        const SOMEBODY: (u32, u32) = (54_321, 54_321);
        let place = tempfile::tempdir().expect("a directory");
        let (directory, program) = (place.path(), place.path().join("announce"));
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        let why = |program: &Path| forbidden(program, SOMEBODY).unwrap_or_default();
        assert!(why(&program).contains("install it"));
        fs::write(&program, "#!/bin/sh\n").expect("written");
        set(directory, 0o755).expect("a mode");
        set(&program, 0o644).expect("a mode");
        assert!(why(&program).contains(&format!("chmod a+x {}", program.display())));
        set(&program, 0o755).expect("a mode");
        assert_eq!(why(&program), "");
        set(directory, 0o700).expect("a mode");
        assert!(why(&program).contains(&format!("{} has mode 0700", directory.display())));
        let own = fs::metadata(directory).expect("it is there");
        assert_eq!(forbidden(&program, (own.uid(), own.gid())), None, "it is the owner's");
        set(directory, 0o755).expect("a mode");
        assert!(why(directory).contains("it is no file"));
    }
}
