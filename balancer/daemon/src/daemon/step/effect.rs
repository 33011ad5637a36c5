//! Effects of a step, and lines of the log among them.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ringway_api::documents::changes::Changes;
use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::shield::ShieldStatus;
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::overrides::{OverrideChange, Overrides};
use ringway_api::shield::{RuntimeShield, ShieldChange};
use ringway_config::Config;
use ringway_kernel::Interface;
use tracing::Level;

use crate::backends::Line;
use crate::commit_confirm::Answer;
use crate::daemon::datapath_thread::DatapathCommand;
use crate::daemon::shield_plan::Stamp;
use crate::health::dsr_probe::Surroundings;
use crate::server::control::RequestId;

/// What the loop does, in this order, after a step; it waits for none. What fails is an event. One
/// that is carried out twice does what it does once; what it reads of the state is as it is after
/// the step.
#[derive(Clone, Debug)]
pub enum Effect {
    Datapath(DatapathCommand),
    /// Checks, and the routes that they take, are to be those of the backends that are and that
    /// will be.
    Checks,
    /// The checks' tunnel leads where the ways lead now.
    ProbeWays(Box<Surroundings>),
    /// Makes the tunnel's routes that the change's new checks take.
    Lead(u64),
    Load(u64, Judge),
    /// Keeps these overrides. With the number of the change that wants it.
    Keep(u64, Overrides),
    /// Reads the files of the shield's lists if any has changed since it had these stamps.
    ReadLists(Vec<Stamp>),
    /// Tells the program of an attack.
    RunProgram(ProgramRun),
    /// Keeps what was typed about the shield.
    KeepShield(Arc<RuntimeShield>),
    /// Looks up the ways to these; with the interfaces that our program is on, index by slot.
    LookUpWays(Vec<IpAddr>, HashMap<u32, u32>),
    /// Has the next hop to a backend asked again.
    Doubt(IpAddr),
    Release(Vec<(u32, IpAddr)>),
    /// What backends are like is to be saved with the next survey.
    HealthChanged,
    Announce(BTreeSet<IpAddr>, Vec<Interface>),
    /// Has the interfaces receive what asks for announced addresses.
    ReceiveSolicitations,
    ReadTraffic,
    /// Reads these interfaces' ledgers: name, slot and index.
    ReadCounters(Vec<(String, u32, u32)>),
    ReadTables,
    /// Looks at the machine as this configuration needs it.
    ReadMachine(Arc<Config>),
    /// Once a second: tells what [`Survey`](super::Survey) has, and saves what backends are like.
    Survey,
    /// The service manager: a reload begins.
    Reloading,
    Reloaded,
    /// Traffic is served from now on.
    Serving,
    /// Flows that were counted before are counted anew.
    Recount,
    Post,
    Answer(RequestId, Box<Result<Changes, Error>>),
    /// With the change that was asked for.
    AnswerShield(RequestId, ShieldChange, Box<Result<ShieldStatus, Error>>),
    AnswerConfirm(Answer),
    Log(LogLine),
    /// A short while is over: lines that were not told in full are counted.
    LogRest,
    /// The daemon cannot go on.
    Fail(Error),
}

/// What the program is to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramRun {
    pub command: Vec<String>,
    /// Or goes on; else it has ended.
    pub begins: bool,
    pub attack: AttackStatus,
}

impl ProgramRun {
    /// As the program hears it.
    pub fn event(&self) -> &'static str {
        if self.begins { "begin" } else { "end" }
    }
}

/// How a change is found out.
#[derive(Clone, Debug, PartialEq)]
pub enum Judge {
    /// The file is read again; which one is meant.
    File(Option<PathBuf>),
    /// The same file with one override more or less.
    Overridden(OverrideChange),
    /// The same file with the overrides that are kept.
    Recalled,
}

/// A line of the log, with its fields.
#[derive(Clone, Debug)]
pub struct LogLine {
    pub level: Level,
    pub text: String,
    /// One of many that come together.
    pub crowds: bool,
    pub interface: Option<String>,
    pub interfaces: Option<Vec<String>>,
    pub mode: Option<&'static str>,
    pub taken_over: Option<bool>,
    pub address: Option<IpAddr>,
    pub error: Option<String>,
    pub remedy: Option<String>,
}

impl LogLine {
    pub fn new(level: Level, text: impl Into<String>) -> LogLine {
        let (text, crowds) = (text.into(), false);
        let (interface, interfaces, mode, taken_over) = (None, None, None, None);
        let (address, error, remedy) = (None, None, None);
        LogLine {
            level,
            text,
            crowds,
            interface,
            interfaces,
            mode,
            taken_over,
            address,
            error,
            remedy,
        }
    }

    /// The line for a problem that has just begun.
    pub fn new_problem(problem: &Problem, crowds: bool) -> LogLine {
        let remedy = Some(problem.remedy.to_string());
        LogLine { remedy, crowds, ..LogLine::new(Level::WARN, &problem.error) }
    }

    pub fn write(&self) {
        macro_rules! write {
            ($level:ident) => {
                tracing::$level!(
                    interface = self.interface,
                    interfaces = self.interfaces.as_ref().map(tracing::field::debug),
                    mode = self.mode,
                    taken_over = self.taken_over,
                    address = self.address.as_ref().map(tracing::field::display),
                    error = self.error.as_ref().map(tracing::field::display),
                    remedy = self.remedy,
                    "{}",
                    self.text
                )
            };
        }
        match self.level {
            Level::ERROR => write!(error),
            Level::WARN => write!(warn),
            Level::INFO => write!(info),
            _ => write!(debug),
        }
    }
}

/// About a backend: one of many, perhaps.
impl From<Line> for LogLine {
    fn from(line: Line) -> LogLine {
        let level = if line.good { Level::INFO } else { Level::WARN };
        LogLine { crowds: true, ..LogLine::new(level, line.text) }
    }
}

/// Effects of a step, in their order.
#[derive(Debug, Default)]
pub struct Effects(pub(super) Vec<Effect>);

impl Effects {
    pub(super) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    pub(super) fn order(&mut self, command: DatapathCommand) {
        self.push(Effect::Datapath(command));
    }

    /// Once a step is enough: the state is read after it.
    pub(super) fn post(&mut self) {
        if !self.0.iter().any(|effect| matches!(effect, Effect::Post)) {
            self.push(Effect::Post);
        }
    }

    pub(super) fn log(&mut self, line: LogLine) {
        self.push(Effect::Log(line));
    }

    pub(super) fn error(&mut self, text: &str, error: impl ToString) {
        let error = Some(error.to_string());
        self.log(LogLine { error, ..LogLine::new(Level::ERROR, text) });
    }

    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.log(LogLine::new(Level::WARN, text));
    }

    pub(super) fn info(&mut self, text: impl Into<String>) {
        self.log(LogLine::new(Level::INFO, text));
    }
}
