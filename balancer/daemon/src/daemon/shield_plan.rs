//! A generation of the shield as the configuration and its list files have it. Reads files: on a
//! thread that may wait.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use ringway_abi::ShieldMode;
use ringway_api::error::Error;
use ringway_api::text::counted;
use ringway_config::{BadLines, Config, ListAction, Protect, RuleAction, Shield, ShieldList};
use ringway_filter::{Filter, Instruction, OnMatch};
use ringway_kernel::shield::{Generation, Limit, Rule};
use ringway_plan::prefix_list::{self, Entry, ListFile, ListTables, PrefixSet};
use rustix::fs::{Mode, OFlags};

/// The longest list file: a million prefixes of 43 characters and some comments.
const LONGEST_FILE: u64 = 128 << 20;

/// What the packet path is to be given, and what the lists were when they were read.
#[derive(Debug)]
pub struct ShieldPlan {
    mode: ShieldMode,
    sanity: bool,
    protect_host: bool,
    service_modes: bool,
    tables: ListTables,
    list_names: Vec<String>,
    rules: Vec<Rule>,
    program: Vec<Instruction>,
    /// In the order of the configuration.
    pub lists: Vec<ReadList>,
}

/// A list as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadList {
    pub name: String,
    pub action: ListAction,
    /// Prefixes that are in force.
    pub entries: usize,
    /// Lines that are no prefixes, and were skipped.
    pub skipped: usize,
    /// Why it is empty, where it could not be read when the daemon started.
    pub error: Option<String>,
    pub stamp: Stamp,
}

/// Tells whether a file has changed since it was read; `None`: it was not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stamp(Option<(u64, u64, u64, i64, i64)>);

impl Stamp {
    pub fn of(path: &Path) -> Stamp {
        Stamp(path.metadata().ok().map(|about| Self::from(&about)))
    }

    fn from(about: &Metadata) -> (u64, u64, u64, i64, i64) {
        (about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec())
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

/// How lists are treated that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// There is no plan: what is in force stays.
    Refused,
    /// They are empty: a daemon that starts has nothing else.
    Empty,
}

impl ShieldPlan {
    /// `None`: the configuration has no shield.
    ///
    /// # Errors
    /// A list cannot be read, or has lines that refuse it; with [`Unreadable::Empty`] none.
    pub fn read(config: &Config, unreadable: Unreadable) -> Result<Option<Arc<ShieldPlan>>, Error> {
        let Some(shield) = &config.shield else { return Ok(None) };
        let mut lists = Vec::new();
        let mut contents = Vec::new();
        for list in &shield.lists {
            let stamp = Stamp::of(&list.file);
            let (file, error) = match read_list(list) {
                Ok(file) => (file, None),
                Err(error) if unreadable == Unreadable::Refused => return Err(error),
                Err(error) => (ListFile::default(), Some(error.what)),
            };
            lists.push(ReadList {
                name: list.name.to_string(),
                action: list.action,
                entries: file.entries.len(),
                skipped: file.bad_lines,
                error,
                stamp,
            });
            contents.push(file.entries);
        }
        let set = |action| join(&shield.lists, &contents, action);
        let tables = ListTables::new(&set(ListAction::Allow)?, &set(ListAction::Block)?);
        let plan = ShieldPlan {
            mode: shield.mode,
            sanity: shield.sanity,
            protect_host: shield.protect == Protect::Host,
            service_modes: config.services.iter().any(|service| service.shield.is_some()),
            tables,
            list_names: lists.iter().map(|list| list.name.to_string()).collect(),
            rules: shield.rules.iter().map(|rule| kernel_rule(&rule.name, rule.action)).collect(),
            program: program(shield)?,
            lists,
        };
        Ok(Some(Arc::new(plan)))
    }

    pub fn generation(&self) -> Generation<'_> {
        Generation {
            mode: self.mode,
            sanity: self.sanity,
            protect_host: self.protect_host,
            service_modes: self.service_modes,
            lists: &self.tables,
            list_names: &self.list_names,
            rules: &self.rules,
            program: &self.program,
        }
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
        RuleAction::Limit(limit) => {
            let packets_per_second = limit.packets_per_second;
            let limit = Limit { packets_per_second, burst: limit.burst };
            (ringway_abi::RuleAction::Limit, Some(limit))
        }
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
    contents: &[Vec<Entry>],
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

fn read_list(list: &ShieldList) -> Result<ListFile, Error> {
    let (name, path) = (&*list.name, list.file.display());
    let remedy = || "mend the file, or take the list out of [shield]; what was in force stays";
    let wrong = |what: String| {
        Error::configuration(format!("list {name:?} of [shield]: {path}: {what}"), remedy())
    };
    let text = read_text(&list.file).map_err(|error| wrong(error.to_string()))?;
    let file = prefix_list::parse(&text).map_err(|error| wrong(error.to_string()))?;
    match (list.bad_lines, file.bad.first()) {
        (BadLines::Refuse, Some(bad)) => {
            let more = match file.bad_lines {
                1 => String::new(),
                lines => format!(" (and {} more)", counted(lines - 1, "bad line")),
            };
            Err(wrong(format!("line {}: {:?} {}{more}", bad.line, bad.text, bad.why)))
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
