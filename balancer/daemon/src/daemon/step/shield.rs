//! What is typed about the shield at run time: prefixes to block or allow, another mode for a time.
//!
//! One change at a time is on its way to the packet path, while reloads go on. What the packet path
//! has taken is in force, and is kept in the state directory; a disk that fails refuses nobody.
//!
//! And the lists, which follow their files: one that cannot be read stays as it was.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_api::documents::shield::{ListReading, ShieldStatus};
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::{ProblemKind, Subject};
use ringway_api::shield::{ModeOverride, RuntimeShield, ShieldChange, ShieldEntry, done};
use ringway_api::text::{counted, listed};
use ringway_config::{Config, ListAction, ShieldMode};
use ringway_host::Fix;
use ringway_plan::prefix_list::Prefix;

use super::State;
use super::effect::Effect;
use crate::daemon::datapath_thread::DatapathCommand;
use crate::daemon::shield_plan::{PlannedShield, ReadList, ShieldPlan, Stamp};
use crate::daemon::{shield_warnings, wide_prefix};
use crate::privileges;
use crate::server::control::{Asker, RequestId};

/// Between two generations that files of lists cause. Each loads a program and lists beside those in
/// force; a job that writes a file each second must not keep the packet path's thread busy.
const LIST_SPACING: Duration = Duration::from_secs(5);
/// Prefixes whose time is over that a line of the log names.
const ENDED_NAMED: usize = 3;

/// What was typed, and what is on its way.
#[derive(Debug)]
pub struct Shield {
    pub in_force: Arc<RuntimeShield>,
    /// Whether it may be kept: not over a document that could not be read.
    keeps: bool,
    /// The packet path is to be given it again: at the start, after a reload, after an error.
    due: bool,
    pending: Option<PendingWrite>,
    writes: u64,
    error: Option<Error>,
    /// The shield in force, with its lists as they were read.
    plan: Option<Arc<ShieldPlan>>,
    /// Its lists could not follow their files, which had these stamps.
    lists_failed: Option<(Vec<Stamp>, Error)>,
    /// Other lists are being put in force.
    listing: bool,
    /// When that began the last time.
    listing_since: Option<Instant>,
}

/// What the packet path is being given.
#[derive(Debug)]
struct PendingWrite {
    number: u64,
    next: Arc<RuntimeShield>,
    /// The change, and who asked for it.
    asked: Option<(ShieldChange, Asker, RequestId)>,
}

impl Shield {
    /// None: what is kept cannot be read.
    pub fn new(kept: Option<RuntimeShield>, plan: Option<Arc<ShieldPlan>>) -> Shield {
        Shield {
            keeps: kept.is_some(),
            in_force: Arc::new(kept.unwrap_or_default()),
            due: true,
            pending: None,
            writes: 0,
            error: None,
            plan,
            lists_failed: None,
            listing: false,
            listing_since: None,
        }
    }

    /// The files of its lists were last read with these stamps, for better or worse.
    fn stamps(&self) -> Option<Vec<Stamp>> {
        let failed = self.lists_failed.as_ref().map(|(stamps, _)| stamps.clone());
        failed.or_else(|| self.plan.as_ref().map(|plan| plan.stamps()))
    }

    /// Whether other lists may be put in force.
    fn takes_lists(&self, now: Instant) -> bool {
        let rests = self.listing_since.is_some_and(|since| now < since + LIST_SPACING);
        !self.listing && !rests
    }

    /// Its lists, as they were read last.
    pub fn lists(&self) -> Vec<ListReading> {
        let lists = self.plan.iter().flat_map(|plan| &plan.lists);
        lists.map(ReadList::reading).collect()
    }

    /// Lists that are not as their files are.
    pub fn list_problems(&self) -> Vec<Problem> {
        let lists = self.plan.iter().flat_map(|plan| &plan.lists);
        match &self.lists_failed {
            Some((_, error)) => vec![ProblemKind::ShieldList.because(error.clone())],
            None => lists.filter_map(ReadList::problem).collect(),
        }
    }

    /// The secret of answers to SYNs is not that of its file.
    pub fn secret_problem(&self) -> Option<Problem> {
        self.plan.as_ref()?.secret_problem()
    }

    /// Lists that are in force but for some lines.
    pub fn skipped_lines(&self) -> Vec<Problem> {
        let lists = self.plan.iter().flat_map(|plan| &plan.lists);
        let skipped = lists.filter(|list| list.skipped > 0).map(|list| {
            let lines = counted(list.skipped, "line");
            let what = format!("list {}: skipped {lines} of its file", list.name);
            let remedy = "`ringway check` names the first of them";
            let subject = Subject::List(list.name.clone());
            ProblemKind::ShieldListLines.about(subject, what, remedy)
        });
        skipped.collect()
    }

    /// Lists that hold what nobody means.
    pub fn wide_lines(&self) -> Vec<Problem> {
        let lists = self.plan.iter().flat_map(|plan| &plan.lists);
        lists.filter_map(ReadList::wide_lines).collect()
    }

    /// The packet path does not have what is in force.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }
}

impl State {
    /// The shield in force; another one may be on its way.
    pub fn shield_plan(&self) -> Option<Arc<ShieldPlan>> {
        self.shield.plan.clone()
    }

    /// What was typed about it, as far as it is in force.
    pub fn shield_in_force(&self) -> Arc<RuntimeShield> {
        self.shield.in_force.clone()
    }

    /// That it is off, or observes, for a time.
    pub(super) fn mode_finding(&self) -> Option<Problem> {
        self.reload.config.shield.as_ref()?;
        let ModeOverride { mode, until, .. } = self.shield.in_force.mode?;
        let what = match mode {
            ShieldMode::Enforce => return None,
            ShieldMode::Observe => {
                "observes until {}: it counts what it would drop, and drops nothing"
            }
            ShieldMode::Off => "is off until {}: it drops nothing",
        };
        let what = format!("the shield {}", what.replace("{}", &until.to_string()));
        let remedy = Fix::command(["ringway", "shield", "enforce"]);
        Some(ProblemKind::ShieldMode.problem(what, remedy.after("to end that now:")))
    }

    /// Whether the next change of the shield may begin.
    pub fn takes_shield_changes(&self) -> bool {
        self.attachment.is_done() && self.shield.pending.is_none()
    }

    pub(super) fn change_shield(&mut self, change: ShieldChange, by: Asker, request: RequestId) {
        let with = |_| self.shield.in_force.with(&change, self.at.now, self.at.wall);
        if let (None, ShieldChange::Remove { .. }) = (&self.reload.config.shield, &change)
            && let Ok(next) = self.shield.in_force.with(&change, self.at.now, self.at.wall)
        {
            // No packet meets it, so the packet path has nothing to take.
            let before = std::mem::replace(&mut self.shield.in_force, next.into());
            self.keep_shield();
            self.effects.post();
            return self.answer_change(Ok(()), &before, change, by, request);
        }
        let config = &self.reload.config;
        let spares = |()| spares_our_own(config, &self.tables.own_addresses, &change);
        match has_shield(config).and_then(spares).and_then(with) {
            Ok(next) => {
                let changed = change.prefix().into_iter().collect();
                self.write_shield(next.into(), Some(changed), Some((change, by, request)));
            }
            Err(error) => {
                let answer = Effect::AnswerShield(request, change, Box::new(Err(error)));
                self.effects.push(answer);
            }
        }
    }

    /// `changed`: the prefixes in which it differs from what is in force; none: the packet path may
    /// have anything.
    fn write_shield(
        &mut self,
        next: Arc<RuntimeShield>,
        changed: Option<Vec<Prefix>>,
        asked: Option<(ShieldChange, Asker, RequestId)>,
    ) {
        self.shield.writes += 1;
        let unknown = std::mem::take(&mut self.shield.due) || self.shield.error.is_some();
        let changed = changed.filter(|_| !unknown);
        let number = self.shield.writes;
        self.effects.order(DatapathCommand::Shield(number, next.clone(), changed));
        self.shield.pending = Some(PendingWrite { number, next, asked });
    }

    /// The packet path has it, or why not.
    pub(super) fn shielded(&mut self, number: u64, outcome: Result<(), Error>) {
        let pending = self.shield.pending.take_if(|pending| pending.number == number);
        let Some(PendingWrite { next, asked, .. }) = pending else { return };
        self.shield.error = outcome.as_ref().err().cloned();
        let before = std::mem::replace(&mut self.shield.in_force, next);
        match &outcome {
            Ok(()) if !Arc::ptr_eq(&before, &self.shield.in_force) => self.keep_shield(),
            Ok(()) => {}
            Err(_) => self.shield.in_force = before.clone(),
        }
        let Some((change, by, request)) = asked else { return self.tell_ended(&before) };
        self.answer_change(outcome, &before, change, by, request);
    }

    /// `before`: what was in force before the change.
    fn answer_change(
        &mut self,
        outcome: Result<(), Error>,
        before: &RuntimeShield,
        change: ShieldChange,
        by: Asker,
        request: RequestId,
    ) {
        let outcome = outcome.map(|()| {
            let was = change.prefix().and_then(|prefix| before.of(&prefix));
            self.effects.info(format!("{} (by {by})", change.outcome(was)));
            let status = ShieldStatus::new(&self.reload.config, &self.shield.in_force);
            let of = |shield: &RuntimeShield, prefix| shield.of(prefix).cloned();
            let (entry, replaced) = match &change {
                ShieldChange::Add(ShieldEntry { prefix, .. })
                | ShieldChange::Force(ShieldEntry { prefix, .. }) => {
                    (of(&self.shield.in_force, prefix), of(before, prefix))
                }
                ShieldChange::Remove { prefix } => (of(before, prefix), None),
                ShieldChange::Mode { .. } => (None, None),
            };
            ShieldStatus { entry, replaced, ..status }
        });
        self.effects.push(Effect::AnswerShield(request, change, Box::new(outcome)));
    }

    /// Logs what has run out.
    fn tell_ended(&mut self, before: &RuntimeShield) {
        let now = &self.shield.in_force;
        if before.mode.is_some() && now.mode.is_none() {
            self.effects.info(ShieldChange::Mode { mode: None }.to_string());
        }
        for action in [ListAction::Block, ListAction::Allow] {
            if before.count(action) == now.count(action) {
                continue;
            }
            let gone =
                |entry: &&ShieldEntry| entry.action == action && now.of(&entry.prefix).is_none();
            let gone = before.entries.iter().filter(gone);
            let gone: Vec<String> = gone.map(|entry| entry.prefix.to_string()).collect();
            let (done, gone) = (done(action), listed(&gone, ENDED_NAMED));
            self.effects.info(format!("no longer {done}, as the time is over: {gone}"));
        }
    }

    /// Keeps what is in force, also where that failed before.
    pub(super) fn keep_shield(&mut self) {
        if self.shield.keeps {
            self.effects.push(Effect::KeepShield(self.shield.in_force.clone()));
        }
    }

    /// Another configuration is in force, and the packet path may have lost what was typed.
    pub(super) fn renew_shield(&mut self, planned: PlannedShield) {
        self.shield.due = true;
        if let PlannedShield::Other(plan) = planned {
            self.shield.plan = plan;
            self.shield.lists_failed = None;
        }
    }

    /// The files of the lists have changed.
    pub(super) fn lists_read(
        &mut self,
        config: &Arc<Config>,
        stamps: Vec<Stamp>,
        plan: Result<Option<Arc<ShieldPlan>>, Error>,
    ) {
        // Of a configuration that is no longer in force, or soon will not be.
        let outdated = !Arc::ptr_eq(config, &self.reload.config) || self.reload.change.is_some();
        if outdated || !self.shield.takes_lists(self.at.now) {
            return;
        }
        match plan {
            Ok(Some(plan)) if self.shield.plan.as_ref().is_some_and(|it| plan.has_lists_of(it)) => {
                self.shield.plan = Some(plan);
                self.shield.lists_failed = None;
            }
            Ok(Some(plan)) => {
                self.shield.listing = true;
                self.shield.listing_since = Some(self.at.now);
                self.effects.order(DatapathCommand::Lists(plan));
            }
            Ok(None) => {}
            Err(error) => self.shield.lists_failed = Some((stamps, error)),
        }
        self.effects.post();
    }

    /// The packet path has other lists, or why not.
    pub(super) fn listed(&mut self, plan: Arc<ShieldPlan>, outcome: Result<(), Error>) {
        self.shield.listing = false;
        match outcome {
            Ok(()) => {
                self.effects.info(format!("lists read again: {plan}"));
                let warnings = shield_warnings::list_warnings(&plan);
                warnings.into_iter().for_each(|warning| self.effects.warn(warning));
                self.shield.plan = Some(plan);
                self.shield.lists_failed = None;
            }
            Err(error) => self.shield.lists_failed = Some((plan.stamps(), error)),
        }
    }

    /// Gives the packet path what it lacks, where there is a shield.
    pub(super) fn advance_shield(&mut self) {
        if self.reload.config.shield.is_none() {
            self.shield.error = None;
        } else if self.shield.due && self.takes_shield_changes() {
            self.write_shield(self.shield.in_force.clone(), None, None);
        }
    }

    /// Once a second: what has run out goes, and what failed is done again.
    pub(super) fn tend_shield(&mut self) {
        let takes_lists = self.shield.takes_lists(self.at.now);
        let stamps = self.shield.stamps().filter(|stamps| takes_lists && !stamps.is_empty());
        if let Some(stamps) = stamps {
            self.effects.push(Effect::ReadLists(stamps));
        }
        if !self.takes_shield_changes() {
            return;
        }
        self.shield.due |= self.shield.error.is_some();
        let ended = self.shield.in_force.without_ended(self.at.now);
        let Some((next, ended)) = ended else { return };
        match self.reload.config.shield {
            Some(_) => self.write_shield(Arc::new(next), Some(ended), None),
            None => {
                self.shield.in_force = Arc::new(next);
                self.keep_shield();
                self.effects.post();
            }
        }
    }
}

fn has_shield(config: &Config) -> Result<(), Error> {
    match config.shield {
        Some(_) => Ok(()),
        None => Err(no_shield(config.file(), privileges::may_load())),
    }
}

/// What puts one in force.
fn no_shield(file: Option<&Path>, may_load: bool) -> Error {
    let then = match may_load {
        true => "ringway reload".to_owned(),
        false => format!("{} (no packet is lost)", privileges::restart()),
    };
    Error::configuration(
        "the configuration has no [shield], so packets meet none",
        match file {
            Some(file) => format!("add a line `[shield]` to {}, then: {then}", file.display()),
            None => "`ringway forward` starts without one: write a file with [forward] and a line \
                     `[shield]`, stop the daemon, then: ringway run -c FILE"
                .into(),
        },
    )
}

/// What is typed under attack may be too wide: that is refused until it is typed on purpose.
fn spares_our_own(
    config: &Config,
    gateway: &BTreeSet<IpAddr>,
    change: &ShieldChange,
) -> Result<(), Error> {
    let ShieldChange::Add(ShieldEntry { prefix, action, .. }) = change else { return Ok(()) };
    wide_prefix::holds(config, gateway, prefix, *action).map_or(Ok(()), |what| {
        Err(Error::configuration(
            format!("{prefix} would {action} {what}"),
            format!("{action} less; or, if you mean it: ringway {action} {prefix} --force"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_no_shield_hears_what_puts_one_in_force() {
        let file = Some(Path::new("gw.toml"));
        let [reload, restart] =
            [true, false].map(|may_load| no_shield(file, may_load).remedy.to_string());
        assert_eq!(reload, "add a line `[shield]` to gw.toml, then: ringway reload");
        let this = std::process::id().to_string();
        assert!(restart.contains(&this) && !restart.contains("ringway reload"), "{restart}");
    }

    #[test]
    fn lists_change_every_five_seconds_at_most() {
        let now = Instant::now();
        let mut shield = Shield::new(None, None);
        assert!(shield.takes_lists(now));
        shield.listing_since = Some(now);
        let after = |seconds| shield.takes_lists(now + Duration::from_secs(seconds));
        assert_eq!([1, 4, 5].map(after), [false, false, true]);
    }
}
