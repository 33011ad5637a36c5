//! Regular checks: counters, the machine, and whether the packet path's thread answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ringway_api::documents::forward::ForwardStatus;
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_doctor::Report;
use tracing::Level;

use super::State;
use super::effect::{Effect, LogLine};
use crate::daemon::background::{BackgroundEvent, BackgroundWork};
use crate::daemon::datapath_thread::DatapathCommand;
use crate::daemon::document_writer::NONE;
use crate::daemon::log_transitions::{LogTransitions, beside, may_be_many};
use crate::health::Lack;
use crate::monitor::answer_watch::AnswerWatch;
use crate::monitor::counter_watch::{self, CounterWatch};
use crate::monitor::no_reply_watch::{self, NoReplyWatch};
use crate::server::control::Command;

/// Period of regular checks; some run every so many times.
pub const TICK: Duration = counter_watch::PERIOD;
/// Lines of the log that come together within this are counted together.
const CROWD: u64 = every(Duration::from_secs(2));
const A_SECOND: u64 = every(Duration::from_secs(1));
/// The ways to backends are looked up this often even when the kernel tells no change.
const LOOK_ANYWAY: u64 = every(Duration::from_secs(30));
const LOOK_AT_MACHINE: u64 = every(Duration::from_secs(30));
/// Counting ten million flows takes half a second: a count that took long is used again for a while
/// (snapshot/).
const LOOK_AT_TABLES: u64 = every(Duration::from_millis(1500));
/// A state directory that could not be used is tried again this often.
const LOOK_AT_STATE: u64 = every(Duration::from_secs(5));
/// The packet path's thread must be heard within this; it is asked every moment, and may be busy
/// for a while with the rings of a large configuration.
const SILENCE: Duration = Duration::from_secs(5);
/// A tick this late means that the process did not run: stopped, or without a processor.
const AWAY: Duration = Duration::from_secs(3);

const fn every(period: Duration) -> u64 {
    (period.as_millis() / TICK.as_millis()) as u64
}

/// Facts that the loop gathers once a second.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Problems of the checks and of the state directory.
    pub problems: Vec<Problem>,
    /// Findings about the checks' authorities and the network watch.
    pub findings: Vec<Problem>,
    /// Problems with counting losses and with the pins.
    pub of_tables: Vec<Problem>,
    /// What is forwarded between interfaces.
    pub forward: Option<ForwardStatus>,
    /// [`Checks::not_made`](crate::health::Checks::not_made)
    pub not_made: BTreeMap<Lack, u64>,
    /// The kernel asks for MAC addresses.
    pub macs_unknown: bool,
    /// Overrides could not be read or written, and nobody tries.
    pub overrides_unknown: bool,
    /// What was typed about the shield could not be written, and nobody tries.
    pub shield_unkept: bool,
}

#[derive(Debug, Default)]
pub struct Monitor {
    pub counter_watch: CounterWatch,
    pub no_reply_watch: NoReplyWatch,
    pub answer_watch: AnswerWatch,
    pub machine: Report,
    /// The survey that was posted last.
    posted: Survey,
    /// Problems that the log has.
    logged: LogTransitions,
    /// Since when the packet path's thread has been asked for a beat, and has not answered.
    beating: Option<Instant>,
    pub(super) beat_error: Option<Error>,
    pub(super) probe_tunnel_error: Option<Error>,
    ticks: u64,
    ticked: Option<Instant>,
}

impl Monitor {
    /// Though nothing has happened.
    pub(super) fn is_time_to_look_anyway(&self) -> bool {
        self.ticks.is_multiple_of(LOOK_ANYWAY)
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.beating.is_some_and(|since| now.saturating_duration_since(since) > SILENCE)
    }

    pub(super) fn problems(&self, now: Instant, tables: Option<&Error>) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.is_silent(now) {
            problems.push(ProblemKind::PathSilent.problem(
                "the thread that writes the packet path's tables does not answer",
                "restart the daemon (no packet is lost), and report its log",
            ));
        }
        let unwritten = self.beat_error.as_ref().into_iter().chain(tables).cloned();
        problems.extend(unwritten.map(|error| ProblemKind::TablesNotWritten.because(error)));
        let probes = self.probe_tunnel_error.clone();
        problems.extend(probes.map(|error| ProblemKind::ProbeTunnel.because(error)));
        problems
    }
}

impl State {
    pub(super) fn tick(&mut self) {
        let monitor = &mut self.monitor;
        monitor.ticks += 1;
        let last = monitor.ticked.replace(self.at.now).unwrap_or(self.at.now);
        let since = self.at.now.saturating_duration_since(last);
        if since > AWAY {
            self.effects.warn(format!(
                "the daemon did not run for {} s: it was stopped, or got no CPU time; nothing was \
                 checked meanwhile, and the packet path went on by itself",
                since.as_secs()
            ));
        }
        if monitor.ticks.is_multiple_of(CROWD) {
            self.effects.push(Effect::LogRest);
        }
        if monitor.beating.is_none() {
            monitor.beating = Some(self.at.now);
            self.effects.order(DatapathCommand::Beat);
        }
        if self.attachment.is_done() {
            self.effects.push(Effect::ReadCounters(self.attachment.with_counters()));
        }
        if monitor.ticks.is_multiple_of(A_SECOND) {
            self.effects.push(Effect::Survey);
        }
        if monitor.is_silent(self.at.now) {
            self.effects.post();
        }
    }

    /// Once a second.
    pub(super) fn surveyed(&mut self, survey: Survey) {
        self.apply_again();
        self.work_again();
        self.tend_shield();
        let ticks = self.monitor.ticks;
        let unknown = survey.macs_unknown || self.failed.contains_key(&BackgroundWork::LookUpWays);
        if self.monitor.is_time_to_look_anyway() || unknown {
            self.look_up_ways();
        }
        let attached = self.attachment.is_done();
        if self.takes_commands() && ticks.is_multiple_of(LOOK_AT_STATE) && survey.overrides_unknown
        {
            match self.reload.to_keep() {
                // The disk may have what was refused meanwhile.
                Some(kept) => self.effects.push(Effect::Keep(NONE, kept.clone())),
                None => self.begin(Command::Recall, None),
            }
        }
        if ticks.is_multiple_of(LOOK_AT_STATE) && survey.shield_unkept {
            self.keep_shield();
        }
        if attached && ticks.is_multiple_of(every(no_reply_watch::PERIOD)) {
            self.effects.push(Effect::ReadTraffic);
        }
        if attached && ticks.is_multiple_of(LOOK_AT_MACHINE) {
            self.effects.push(Effect::ReadMachine(self.reload.config.clone()));
        }
        if attached && ticks.is_multiple_of(LOOK_AT_TABLES) {
            self.effects.push(Effect::ReadTables);
        }
        let shown = |survey: &Survey| {
            let Survey { problems, findings, of_tables, not_made, .. } = survey.clone();
            (problems, findings, of_tables, not_made)
        };
        if shown(&self.monitor.posted) != shown(&survey) {
            self.effects.post();
        }
    }

    /// The state was posted with this survey: the log has what has begun, and what is over.
    pub(super) fn posted(&mut self, survey: Survey) {
        if self.attachment.is_done() {
            let now = [self.problems(&survey), self.findings(&survey)].concat();
            let (begun, over) = self.monitor.logged.note(now);
            for problem in begun {
                let crowds = may_be_many(problem.kind);
                self.effects.log(LogLine::new_problem(&problem, crowds));
            }
            // An attack's end has a line of its own.
            for problem in over.into_iter().filter(|it| it.kind != ProblemKind::Mitigation) {
                let line = LogLine::new(Level::INFO, format!("over: {}", problem.error));
                self.effects.log(LogLine { crowds: may_be_many(problem.kind), ..line });
            }
        }
        self.monitor.posted = survey;
    }

    /// The packet path's thread answers.
    pub(super) fn beaten(&mut self, outcome: Result<(), Error>) {
        self.monitor.beating = None;
        if let Err(error) = outcome {
            self.unread(error);
        }
    }

    /// The checks' tunnel leads where the ways lead, or why not.
    pub(super) fn probe_ways(&mut self, error: Option<Error>) {
        if self.monitor.probe_tunnel_error != error {
            self.monitor.probe_tunnel_error = error;
            self.effects.post();
        }
    }

    pub(super) fn unread(&mut self, error: Error) {
        if self.monitor.beat_error.as_ref() != Some(&error) {
            self.effects.error("the packet path cannot be read", &error);
        }
        self.monitor.beat_error = Some(error);
    }

    pub(super) fn background(&mut self, event: BackgroundEvent) {
        let before = self.monitor.counter_watch.findings(|_| false);
        match event {
            BackgroundEvent::Done(done) => {
                done.into_iter().for_each(|(work, outcome)| self.done(work, outcome));
            }
            BackgroundEvent::Traffic(sample, replies) => {
                self.tables.replies = replies;
                self.tend();
                let watch = &mut self.monitor.no_reply_watch;
                let before = watch.problems();
                watch.note(self.at.now, sample);
                for problem in beside(&watch.problems(), &before) {
                    self.effects.log(LogLine::new_problem(problem, true));
                }
                self.effects.post();
            }
            BackgroundEvent::Answers(sample) => {
                let before = self.monitor.answer_watch.findings(None).len();
                self.monitor.answer_watch.note(self.at.now, sample);
                if self.monitor.answer_watch.findings(None).len() != before {
                    self.effects.post();
                }
            }
            BackgroundEvent::Lists(config, stamps, plan) => self.lists_read(&config, stamps, plan),
            BackgroundEvent::Machine(report) => {
                self.monitor.machine = report;
                self.effects.post();
            }
            BackgroundEvent::Counters(sample) => {
                self.monitor.counter_watch.note(self.at.now, sample);
                self.log_counter_problems(&before);
            }
            BackgroundEvent::Tables(flows, tracked) => {
                self.monitor.counter_watch.tables(&flows, &tracked);
                self.log_counter_problems(&before);
            }
        }
    }

    /// Logs problems that are new, and those that are over. Higher figures alone are posted later.
    fn log_counter_problems(&mut self, before: &[Problem]) {
        let now = self.monitor.counter_watch.findings(|_| false);
        let (begun, over) = (beside(&now, before), beside(before, &now));
        for finding in &begun {
            self.effects.log(LogLine::new_problem(finding, false));
        }
        let over: BTreeSet<_> = over.into_iter().map(Problem::identity).collect();
        for (kind, subject) in &over {
            let kind = kind.name();
            self.effects.info(format!("{subject}: {kind} is over, or has become usual"));
        }
        if !(begun.is_empty() && over.is_empty()) {
            self.effects.post();
        }
    }
}
