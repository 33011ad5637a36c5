//! A generation of the shield as the configuration and its list files have it. Reads files: on a
//! thread that may wait.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use ringway_abi::ShieldMode;
use ringway_api::clock::{Timestamp, from_unix_s};
use ringway_api::documents::shield::ListReading;
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::{ProblemKind, Subject};
use ringway_api::syn_secret;
use ringway_api::text::counted;
use ringway_config::{
    BadLines, Config, Errors, ListAction, Protect, RuleAction, Shield, ShieldList, Syn,
};
use ringway_filter::{Filter, Instruction, OnMatch};
use ringway_kernel::shield::{ChallengeKey, Generation, Rule};
use ringway_plan::prefix_list::{self, BadLine, Entry, ListFile, ListTables, PrefixSet};
use rustix::fs::{Mode, OFlags};

use super::wide_prefix;

/// The longest list file: a million prefixes of 43 characters and some comments.
const LONGEST_FILE: u64 = 128 << 20;

/// Of a list's lines that were skipped.
const BAD_LINES_KEPT: usize = 3;

/// What the packet path is to be given, and what the lists were when they were read.
#[derive(Debug)]
pub struct ShieldPlan {
    mode: ShieldMode,
    sanity: bool,
    protect_host: bool,
    service_modes: bool,
    /// Some service answers SYNs.
    answers: bool,
    pub secret: SecretReading,
    tables: ListTables,
    list_names: Vec<String>,
    rules: Vec<Rule>,
    program: Vec<Instruction>,
    /// In the order of the configuration.
    pub lists: Vec<ReadList>,
    /// What is in them, for a plan after this one that cannot read a file.
    contents: Vec<Arc<[Entry]>>,
}

/// The secret of answers to SYNs as it was read.
#[derive(Clone, Debug, Default)]
pub struct SecretReading {
    /// `None`: the node makes one of its own.
    pub key: Option<ChallengeKey>,
    /// Why it is not that of the file which the configuration names.
    pub error: Option<Error>,
}

impl SecretReading {
    /// As a start reads it: nothing about it keeps a gateway from starting.
    pub fn at_start(config: &Config) -> SecretReading {
        match syn_secret::of(config) {
            Ok(key) => SecretReading { key, error: None },
            Err(error) => SecretReading { key: None, error: Some(error) },
        }
    }

    /// The node answers with a key that no other node and no backend has.
    fn problem(&self) -> Option<Problem> {
        let Error { what, remedy, .. } = self.error.as_ref()?;
        let what = format!(
            "{what}: SYNs are answered with a key of this node's own, which no other node and no \
             backend has"
        );
        Some(
            ProblemKind::SynSecretUnusable.problem(what, format!("{remedy}; then: ringway reload")),
        )
    }

    /// What becomes of it, for whoever has read it beside a daemon.
    pub fn unusable(&self) -> Option<String> {
        let Error { what, remedy, .. } = self.error.as_ref()?;
        Some(format!(
            "{what}: a running daemon refuses a reload with it; a daemon that starts answers SYNs with \
             a key of its own, which no other node and no backend has, so that \"backend\" challenges \
             them; {remedy}"
        ))
    }
}

/// A list as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadList {
    pub name: String,
    pub file: PathBuf,
    pub action: ListAction,
    /// Prefixes that are in force.
    pub entries: usize,
    /// Lines that are no prefixes, and were skipped.
    pub skipped: usize,
    /// The first of them.
    pub bad: Vec<BadLine>,
    /// Lines in force that hold what nobody means: most clients, or our own addresses.
    pub wide: Vec<String>,
    /// Why it is not as its file is: it has what it had before, or nothing since the daemon started.
    pub error: Option<Error>,
    /// When the file was written that its prefixes are from.
    pub written: Option<Timestamp>,
    /// Of the file when it was last looked at.
    pub stamp: Stamp,
}

impl ReadList {
    /// What others are told of it.
    pub fn reading(&self) -> ListReading {
        ListReading {
            name: self.name.clone(),
            prefixes: self.entries as u64,
            skipped_lines: self.skipped as u64,
            written: self.written,
        }
    }

    /// It is not as its file is.
    pub fn problem(&self) -> Option<Problem> {
        let stays = match self.entries {
            0 => "the list is empty meanwhile".to_owned(),
            entries => format!("{} of before stay in force", counted(entries, "prefix")),
        };
        let Error { what, remedy, .. } = self.error.as_ref()?;
        let what = format!("{what}; {stays}");
        let remedy = format!("{remedy}; it is read again when it changes");
        Some(ProblemKind::ShieldList.about(Subject::List(self.name.clone()), what, remedy))
    }

    /// What becomes of it, for whoever has read it beside a daemon.
    pub fn unreadable(&self) -> Option<String> {
        let Error { what, remedy, .. } = self.error.as_ref()?;
        Some(format!(
            "{what}: a running daemon refuses a reload with it, unless the list is in force already: \
             then its prefixes stay as they are; a daemon that starts begins with the list empty, and \
             is unhealthy; {remedy}"
        ))
    }

    /// It holds what nobody means.
    pub fn wide_lines(&self) -> Option<Problem> {
        let what = format!("list {}: {}", self.name, self.wide.join("; "));
        let remedy =
            format!("unless you mean it, write narrower prefixes into {}", self.file.display());
        let subject = Subject::List(self.name.clone());
        let problem = ProblemKind::ShieldListWide.about(subject, what, remedy);
        (!self.wide.is_empty()).then_some(problem)
    }

    fn is(&self, list: &ShieldList) -> bool {
        (&*self.name, &*self.file, self.action) == (&*list.name, &*list.file, list.action)
    }
}

/// Tells whether a file has changed since it was read; `None`: it was not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stamp(Option<FileState>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    file: (u64, u64),
    size: u64,
    /// Seconds and nanoseconds since 1970.
    written: (i64, i64),
    /// The same of its rights, too: whoever was not allowed to read it may be now.
    changed: (i64, i64),
}

impl Stamp {
    pub fn of(path: &Path) -> Stamp {
        Stamp(path.metadata().ok().map(|about| Self::from(&about)))
    }

    /// When the file was written.
    fn written(&self) -> Option<Timestamp> {
        let (written, _) = self.0?.written;
        Some(Timestamp(from_unix_s(u64::try_from(written).ok()?)))
    }

    fn from(about: &Metadata) -> FileState {
        FileState {
            file: (about.dev(), about.ino()),
            size: about.size(),
            written: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

/// The stamps that the files of a configuration's lists have now.
pub fn stamps(config: &Config) -> Vec<Stamp> {
    let lists = config.shield.iter().flat_map(|shield| &shield.lists);
    lists.map(|list| Stamp::of(&list.file)).collect()
}

/// The shield of another configuration.
#[derive(Clone, Debug)]
pub enum PlannedShield {
    /// As it is.
    Same,
    /// None, or another.
    Other(Option<Arc<ShieldPlan>>),
}

/// Reads the lists and the secret of a configuration as a start does: a list that cannot be read is
/// empty, and says why.
///
/// # Errors
/// Rules that cannot be one program.
pub fn check(config: &Config) -> Result<Option<Arc<ShieldPlan>>, Errors> {
    ShieldPlan::read(config, Unreadable::Empty, SecretReading::at_start(config)).or_else(|error| {
        let at = config.error_at_key("shield", "rule", error.what);
        Errors::new(vec![at]).map_or(Ok(None), Err)
    })
}

/// How lists are treated that cannot be read.
#[derive(Clone, Copy, Debug)]
pub enum Unreadable<'a> {
    /// There is no plan.
    Refused,
    /// They have what they have in this plan. One that it does not have is refused.
    Kept(&'a ShieldPlan),
    /// They are empty: a daemon that starts has nothing else.
    Empty,
}

impl<'a> Unreadable<'a> {
    /// Lists stay as they are in the shield in force.
    pub fn kept(plan: Option<&'a ShieldPlan>) -> Unreadable<'a> {
        plan.map_or(Unreadable::Refused, Unreadable::Kept)
    }
}

impl ShieldPlan {
    /// `None`: the configuration has no shield.
    ///
    /// # Errors
    /// A list cannot be read, or has lines that refuse it, and `unreadable` does not allow that.
    pub fn read(
        config: &Config,
        unreadable: Unreadable<'_>,
        secret: SecretReading,
    ) -> Result<Option<Arc<ShieldPlan>>, Error> {
        let Some(shield) = &config.shield else { return Ok(None) };
        let mut lists = Vec::new();
        let mut contents = Vec::new();
        for list in &shield.lists {
            let stamp = Stamp::of(&list.file);
            let (read, content) = match (read_list(list), unreadable) {
                (Ok(file), _) => as_read(list, stamp, file),
                (Err(error), Unreadable::Refused) => return Err(refused(error)),
                (Err(error), Unreadable::Kept(before)) => {
                    let (read, content) =
                        before.list(list).ok_or_else(|| refused(error.clone()))?;
                    (ReadList { error: Some(error), stamp, ..read.clone() }, content.clone())
                }
                (Err(error), Unreadable::Empty) => {
                    let (read, content) = as_read(list, Stamp::default(), ListFile::default());
                    (ReadList { error: Some(error), stamp, ..read }, content)
                }
            };
            lists.push(read);
            contents.push(content);
        }
        let mut set = |action| match join(&shield.lists, &contents, action) {
            Err(error) if matches!(unreadable, Unreadable::Empty) => {
                let of_action = lists.iter_mut().zip(&mut contents);
                for (list, content) in of_action.filter(|(list, _)| list.action == action) {
                    (list.entries, list.error) = (0, Some(error.clone()));
                    *content = Arc::default();
                }
                Ok(PrefixSet::default())
            }
            joined => joined,
        };
        let (allow, block) = (set(ListAction::Allow)?, set(ListAction::Block)?);
        for (list, content) in lists.iter_mut().zip(&contents) {
            list.wide = wide_prefix::lines(config, list.action, content);
        }
        let tables = ListTables::new(&allow, &block);
        let plan = ShieldPlan {
            mode: shield.mode,
            sanity: shield.sanity,
            protect_host: shield.protect == Protect::Host,
            service_modes: config
                .services
                .iter()
                .any(|service| service.shield.is_some_and(|own| own.mode.is_some())),
            answers: config.services.iter().any(|service| *service.syn != Syn::Off),
            secret,
            tables,
            list_names: lists.iter().map(|list| list.name.to_string()).collect(),
            rules: shield.rules.iter().map(|rule| kernel_rule(&rule.name, rule.action)).collect(),
            program: program(shield)?,
            lists,
            contents,
        };
        Ok(Some(Arc::new(plan)))
    }

    /// A list that is in force, and what is in it.
    fn list(&self, list: &ShieldList) -> Option<(&ReadList, &Arc<[Entry]>)> {
        self.lists.iter().zip(&self.contents).find(|(read, _)| read.is(list))
    }

    /// The lists, and what is in them.
    pub fn entries(&self) -> impl Iterator<Item = (&ReadList, &[Entry])> {
        self.lists.iter().zip(self.contents.iter().map(|content| &content[..]))
    }

    pub fn generation(&self) -> Generation<'_> {
        Generation {
            mode: self.mode,
            sanity: self.sanity,
            protect_host: self.protect_host,
            service_modes: self.service_modes,
            answers: self.answers,
            challenge_key: self.secret.key,
            lists: &self.tables,
            list_names: &self.list_names,
            rules: &self.rules,
            program: &self.program,
        }
    }

    /// Whether packets would meet the same lists: a file may be written anew with what it had.
    pub fn has_lists_of(&self, other: &ShieldPlan) -> bool {
        self.tables == other.tables
    }

    /// The secret of answers to SYNs, if there are any, is not that of its file.
    pub fn secret_problem(&self) -> Option<Problem> {
        self.secret.problem().filter(|_| self.answers)
    }

    pub fn stamps(&self) -> Vec<Stamp> {
        self.lists.iter().map(|list| list.stamp).collect()
    }
}

/// As a line of the log tells it.
impl fmt::Display for ShieldPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shield: {}, {}", self.mode.name(), counted(self.rules.len(), "rule"))?;
        for list in &self.lists {
            write!(f, ", list {} with {}", list.name, counted(list.entries, "prefix"))?;
            if list.skipped > 0 {
                write!(f, " ({} skipped)", counted(list.skipped, "line"))?;
            }
        }
        Ok(())
    }
}

fn kernel_rule(name: &str, action: RuleAction) -> Rule {
    let (action, limit) = match action {
        RuleAction::Drop => (ringway_abi::RuleAction::Drop, None),
        RuleAction::Pass => (ringway_abi::RuleAction::Pass, None),
        RuleAction::Count => (ringway_abi::RuleAction::Count, None),
        RuleAction::Limit(limit) => (ringway_abi::RuleAction::Limit, Some(limit)),
    };
    Rule { name: name.to_owned(), action, limit }
}

fn program(shield: &Shield) -> Result<Vec<Instruction>, Error> {
    let rules: Vec<(&Filter, OnMatch)> = shield
        .rules
        .iter()
        .map(|rule| match rule.action {
            RuleAction::Count => (&*rule.filter, OnMatch::Note),
            _ => (&*rule.filter, OnMatch::End),
        })
        .collect();
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    ringway_filter::first_match(&rules)
        .map_err(|error| Error::configuration(format!("the rules of [shield]: {error}"), ""))
}

/// The lists of one action.
fn join(
    lists: &[ShieldList],
    contents: &[Arc<[Entry]>],
    action: ListAction,
) -> Result<PrefixSet, Error> {
    let of_action = (0u8..)
        .zip(lists)
        .zip(contents)
        .filter(|((_, list), _)| list.action == action)
        .map(|((number, _), entries)| (number, &entries[..]));
    PrefixSet::new(of_action).map_err(|error| {
        Error::configuration(format!("the {action} lists of [shield] together: {error}"), "")
    })
}

fn as_read(list: &ShieldList, stamp: Stamp, file: ListFile) -> (ReadList, Arc<[Entry]>) {
    let read = ReadList {
        name: list.name.to_string(),
        file: list.file.to_path_buf(),
        action: list.action,
        entries: file.entries.len(),
        skipped: file.bad_lines,
        bad: file.bad.into_iter().take(BAD_LINES_KEPT).collect(),
        wide: Vec::new(),
        error: None,
        written: stamp.written(),
        stamp,
    };
    (read, file.entries.into())
}

/// Of a reload that a list refuses.
fn refused(error: Error) -> Error {
    let remedy = format!("{}; what was in force stays", error.remedy);
    Error::configuration(error.what, remedy)
}

fn read_list(list: &ShieldList) -> Result<ListFile, Error> {
    let (name, path) = (&*list.name, list.file.display());
    let wrong = |what: String, remedy: &str| {
        Error::configuration(format!("list {name:?} of [shield]: {path}: {what}"), remedy)
    };
    const MEND: &str = "mend the file, or take the list out of [shield]";
    let text = read_text(&list.file).map_err(|error| wrong(error.to_string(), MEND))?;
    let file = prefix_list::parse(&text).map_err(|error| wrong(error.to_string(), MEND))?;
    match (list.bad_lines, file.bad.first()) {
        (BadLines::Refuse, Some(bad)) => {
            let more = match file.bad_lines {
                1 => String::new(),
                lines => format!(" (and {} more)", counted(lines - 1, "bad line")),
            };
            let remedy =
                "mend the file, or write bad_lines = \"skip\", which takes the other lines";
            Err(wrong(format!("{bad}{more}"), remedy))
        }
        _ => Ok(file),
    }
}

/// A regular file, not longer than a list may be.
fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    // Else opening a pipe waits for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(LONGEST_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(io::Error::other("longer than 128 MiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gateway;

    fn config(list: &Path, bad_lines: &str) -> Config {
        let list = format!(
            "[shield]\nlist = [{{ name = \"junk\", file = {list:?}, action = \"block\", bad_lines = {bad_lines:?} }}]"
        );
        gateway(&list, "")
    }

    #[test]
    fn a_check_reads_lists_as_a_start_does() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("junk.txt");
        let read = |bad_lines: &str| {
            let plan = check(&config(&file, bad_lines)).expect("no reason for no start");
            plan.expect("a shield").lists[0].clone()
        };
        let problem = |list: ReadList| list.problem().map(|it| (it.error, it.remedy.to_string()));
        let (what, _) = problem(read("skip")).expect("there is no file");
        let said = "the list is empty meanwhile";
        assert!(what.contains("\"junk\"") && what.ends_with(said), "{what}");
        std::fs::write(&file, "192.0.2.0/24\nx\n198.51.100.0/33\na\nb\n").expect("written");
        let told = read("refuse").unreadable().expect("bad lines");
        for words in ["line 2: \"x\"", "a running daemon refuses a reload", "; mend the file"] {
            assert!(told.contains(words), "{told}");
        }
        let (what, remedy) = problem(read("refuse")).expect("bad lines");
        assert!(what.contains("line 2: \"x\", no IPv4") && what.contains("3 bad lines"), "{what}");
        assert!(remedy.contains("bad_lines = \"skip\""), "{remedy}");
        let read = read("skip");
        assert_eq!((read.entries, read.skipped), (1, 4));
        let lines: Vec<u32> = read.bad.iter().map(|bad| bad.line).collect();
        assert_eq!((lines, problem(read)), (vec![2, 3, 4], None));
    }

    #[test]
    fn a_list_that_cannot_be_read_stays_as_it_is_in_force() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("list.txt");
        let read = |list: &Path, unreadable: Unreadable<'_>| {
            let plan =
                ShieldPlan::read(&config(list, "refuse"), unreadable, SecretReading::default())?;
            Ok::<_, Error>(plan.expect("a shield"))
        };
        std::fs::write(&file, "192.0.2.0/24\n").expect("written");
        let first = read(&file, Unreadable::Refused).expect("read");
        assert_eq!(first.lists[0].problem(), None);
        std::fs::write(&file, "192.0.2.0/24\n198.51.100.7\nx\n").expect("written");
        let second = read(&file, Unreadable::Kept(&first)).expect("kept");
        std::fs::remove_file(&file).expect("there");
        let third = read(&file, Unreadable::Kept(&second)).expect("kept again");
        for (kept, why) in [(&second, "line 3"), (&third, "No such file")] {
            assert!(kept.has_lists_of(&first), "{why}");
            let (list, was) = (&kept.lists[0], &first.lists[0]);
            assert_eq!((list.entries, list.written), (was.entries, was.written), "{why}");
            let problem = list.problem().expect("is told").error;
            assert!(problem.contains(why) && problem.contains("1 prefix of before"), "{problem}");
        }
        let other = place.path().join("other.txt");
        let error = read(&other, Unreadable::Kept(&first)).expect_err("it was never in force");
        assert!(error.what.contains("other.txt"), "{error}");
    }

    /// A provider's job may write every minute what the list has already.
    #[test]
    fn a_file_with_the_same_prefixes_is_no_other_list() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("list.txt");
        let read = |text: &str| {
            std::fs::write(&file, text).expect("written");
            let plan = ShieldPlan::read(
                &config(&file, "refuse"),
                Unreadable::Refused,
                SecretReading::default(),
            );
            plan.expect("read").expect("a shield")
        };
        let first = read("192.0.2.0/24\n");
        assert!(read("# anew\n192.0.2.0/24\n192.0.2.7\n").has_lists_of(&first));
        assert!(!read("192.0.2.0/24\n198.51.100.7\n").has_lists_of(&first));
    }
}
