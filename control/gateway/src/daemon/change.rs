//! From one configuration to the next: `ringway reload`, SIGHUP, and overrides.
//!
//! A change is read and judged on a thread that may wait; then its new backends are checked, and the
//! ways to them looked up, while everything goes on as it was; then the tables are written, service
//! by service; and only then the loop goes over to it. Whatever fails before, nothing has changed.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::time::SystemTime;

use ringway_config::Config;
use ringway_kernel::View;
use tokio::time::Instant;

use super::load::{self, Loaded, Now, Refusal};
use super::path::Order;
use super::{Daemon, FIRST_RESULTS, announce};
use crate::api::control::{Asker, Command, Reply};
use crate::changes::Changes;
use crate::clock;
use crate::health::Target;
use crate::overrides;
use crate::problem::Error;
use crate::road::Road;
use crate::roster::Roster;
use crate::status::{self, Problem};
use crate::step;
use crate::trouble::Trouble;
use crate::words::counted;

/// A change on its way; one at a time.
pub struct Change {
    kind: Kind,
    reply: Option<Reply>,
    /// What was said of backends, and by whom.
    said: Option<(overrides::Change, Asker)>,
    began: Instant,
    /// Once it has been judged.
    next: Option<Next>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    DryRun,
    Reload,
    Override,
    Recall,
}

/// What the loop goes over to.
struct Next {
    loaded: Loaded,
    roster: Roster,
    /// Its new backends are waited for until then.
    until: Instant,
    /// The tables are being written.
    ordered: bool,
}

impl Change {
    /// When waiting ends.
    pub fn until(&self) -> Option<Instant> {
        self.next.as_ref().filter(|next| !next.ordered).map(|next| next.until)
    }

    /// What is known of the backends that will be.
    pub fn roster(&mut self) -> Option<&mut Roster> {
        self.next.as_mut().map(|next| &mut next.roster)
    }

    /// Whether tables are being written for it.
    pub fn is_ordered(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.ordered)
    }
}

impl Daemon {
    /// Begins a change.
    pub(super) fn begin(&mut self, command: Command) {
        let now = Now {
            config: self.config.clone(),
            roster: self.roster.clone(),
            view: self.path.view.clone(),
        };
        let (judged, state) = (self.judged.0.clone(), self.state.clone());
        let mut said = None;
        let (kind, reply) = match command {
            Command::Reload { dry_run, file: meant, reply } => {
                let kind = if dry_run { Kind::DryRun } else { Kind::Reload };
                if kind == Kind::Reload {
                    self.notifier.reloading();
                }
                let overrides = self.overrides.clone();
                // Closed only when the daemon has ended.
                tokio::task::spawn_blocking(move || {
                    let _ = judged.send(load::file(&now, meant.as_deref(), overrides));
                });
                (kind, reply)
            }
            Command::Override { change, by, reply } => {
                said = Some((change.clone(), by));
                let (file, known) = (self.file.clone(), self.overrides.clone());
                tokio::task::spawn_blocking(move || {
                    let loaded = load::overridden(&now, &file, known, &change, &state);
                    let _ = judged.send(loaded.map_err(Refusal::Wrong));
                });
                (Kind::Override, Some(reply))
            }
            Command::Recall => {
                let file = self.file.clone();
                tokio::task::spawn_blocking(move || {
                    let _ =
                        judged.send(load::recalled(&now, &file, &state).map_err(Refusal::Wrong));
                });
                (Kind::Recall, None)
            }
        };
        self.change = Some(Change { kind, reply, said, began: Instant::now(), next: None });
    }

    /// It was read and judged.
    pub(super) fn judged(&mut self, outcome: Result<Loaded, Refusal>) {
        let Some(change) = &mut self.change else { return };
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(Refusal::Wrong(error)) => return self.refuse(error),
            Err(Refusal::Foreign(error)) => {
                // No reload of this daemon has failed.
                if std::mem::replace(&mut change.kind, Kind::DryRun) == Kind::Reload {
                    self.notifier.reloaded();
                }
                return self.end(Err(error));
            }
        };
        if change.kind == Kind::DryRun {
            return self.end(Ok(loaded.changes));
        }
        let mut roster = self.roster.follow(&loaded.config);
        roster.mark(&loaded.file, &loaded.overrides);
        if let Err(error) = self.open_lanes(&loaded.config, &roster.ids()) {
            return self.refuse(error);
        }
        let until = Instant::now() + FIRST_RESULTS;
        let next = Next { loaded, roster, until, ordered: false };
        if let Some(change) = &mut self.change {
            change.next = Some(next);
        }
        self.check_both();
        self.look();
        self.go_on();
    }

    fn open_lanes(&mut self, config: &Config, ids: &[usize]) -> Result<(), Error> {
        match &mut self.road {
            Some(road) => road.add(config, ids),
            None => {
                let road = Road::open(config, ids, &mut self.path.probe)?;
                self.road = road;
                Ok(())
            }
        }
    }

    /// Checks backends that are and that will be.
    fn check_both(&mut self) {
        let lanes = self.road.as_ref().map(Road::lanes).unwrap_or_default();
        let mut targets: BTreeMap<usize, Target> = BTreeMap::new();
        let next = self.change.as_mut().and_then(Change::roster);
        for roster in [Some(&self.roster), next.map(|roster| &*roster)].into_iter().flatten() {
            targets.extend(roster.targets(&lanes).into_iter().map(|target| (target.id, target)));
        }
        self.checks.follow(targets.into_values().collect());
    }

    /// Has the tables written as soon as new backends are known, or were waited for long enough.
    pub(super) fn go_on(&mut self) {
        let Some(next) = self.change.as_mut().and_then(|change| change.next.as_mut()) else {
            return;
        };
        let waiting = next.roster.waiting_beside(&self.roster) && Instant::now() < next.until;
        if next.ordered || waiting {
            return;
        }
        next.ordered = true;
        let observed = Box::new(next.roster.observed());
        self.path.order(Order::Adopt(next.loaded.config.clone(), observed));
    }

    /// The tables were written, or not.
    pub(super) fn adopted(&mut self, outcome: Result<(), Error>) {
        self.apply_soon();
        if let Err(error) = outcome {
            return self.refuse(error);
        }
        let Some(next) = self.change.as_mut().and_then(|change| change.next.take()) else { return };
        let Next { loaded, roster, .. } = next;
        let Loaded { file, config, overrides, mut changes } = loaded;
        changes.note(roster.idle_beside(&self.roster));
        for change in &changes.services {
            self.silence.forget(&change.service);
        }
        let old = std::mem::replace(&mut self.config, config);
        (self.file, self.overrides, self.roster) = (file, overrides, roster);
        self.settle_checks();
        self.looks.follow(self.config.clone());
        self.looks.at_machine();
        announce::new(&old, &self.config, &self.interfaces);
        self.look();
        self.apply_error = None;
        if self.change.as_ref().is_some_and(|change| change.kind == Kind::Reload) {
            self.read_at = SystemTime::now();
        }
        self.board.settle();
        let unserved = self.roster.unserved().filter(|service| changes.concern(service));
        changes.unserved_services = unserved.map(str::to_owned).collect();
        self.tell(&changes);
        self.end(Ok(changes));
    }

    /// What is in force now, for the log.
    fn tell(&self, changes: &Changes) {
        match &self.change {
            Some(Change { said: Some((said, by)), .. }) => tracing::info!("{said} (by {by})"),
            Some(Change { kind: Kind::Recall, .. }) if !changes.changed => {}
            _ => tracing::info!("{}", summary(changes)),
        }
        for service in &changes.unserved_services {
            let why = self.overrides.withheld(service);
            tracing::warn!("{service}: no backend takes new connections{why}");
        }
    }

    /// Nothing has changed, nor will it.
    fn refuse(&mut self, error: Error) {
        let Some(change) = &mut self.change else { return };
        let judged = change.next.take().is_some();
        match change.kind {
            Kind::Reload => {
                let error = ringway_config::in_one_line(&error.to_string());
                tracing::error!(%error, "not reloaded: the configuration in force stays");
            }
            Kind::Override if judged => {
                let (state, old) = (self.state.clone(), self.overrides.clone());
                tokio::task::spawn_blocking(move || state.write(overrides::DOCUMENT, &old));
            }
            Kind::Override | Kind::Recall | Kind::DryRun => {}
        }
        if judged {
            self.settle_checks();
        }
        self.end(Err(error));
    }

    /// Goes on with the checks of the roster alone.
    fn settle_checks(&mut self) {
        if let Some(road) = &mut self.road {
            road.keep(|id| self.roster.has(id));
        }
        self.check_both();
    }

    fn end(&mut self, mut outcome: Result<Changes, Error>) {
        let Some(Change { kind, reply, began, .. }) = self.change.take() else { return };
        if let Ok(changes) = &mut outcome {
            changes.dry_run = kind == Kind::DryRun;
            changes.took_ms = began.elapsed().as_millis() as u64;
        }
        if kind == Kind::Reload {
            self.notifier.reloaded();
            let error = outcome.as_ref().err();
            match error {
                None => self.reloads.succeeded += 1,
                Some(_) => self.reloads.failed += 1,
            }
            self.last_reload = Some(status::Reload {
                at: clock::rfc3339(SystemTime::now()),
                succeeded: error.is_none(),
                error: error.map(|error| error.what.clone()).unwrap_or_default(),
                remedy: error.map(|error| error.remedy.clone()).unwrap_or_default(),
            });
        }
        if let Some(reply) = reply {
            answer(reply, outcome, self.path.view.clone());
        }
        self.post();
    }

    /// That the file on the disk is not what is in force, and overrides about nobody.
    pub(super) fn change_findings(&self) -> Vec<Problem> {
        let file = std::path::absolute(self.file.filename());
        let file = file.unwrap_or_else(|_| self.file.filename().into());
        let in_force = clock::rfc3339(self.read_at);
        let failed = self.last_reload.iter().filter(|last| !last.succeeded);
        let failed = failed.map(|last| refused(last, &file, &in_force));
        let orphans = self.overrides.orphans(&self.file).map(|o| {
            Trouble::OverrideOrphaned.problem(
                format!(
                    "override of service {} backend {} ({}): the configuration has no such backend",
                    o.service,
                    o.shown(),
                    o.in_words()
                ),
                format!("ringway overrides clear {} {}", o.service, o.shown()),
            )
        });
        failed.chain(orphans).collect()
    }
}

/// That a reload was refused. `in_force`: since when the configuration that was read before is.
fn refused(last: &status::Reload, file: &FilePath, in_force: &str) -> Problem {
    let file = file.display();
    let cause = ringway_config::in_one_line(&last.error);
    let remedy = match last.remedy.as_str() {
        "" => format!("mend the file until `ringway check -c {file}` is content"),
        remedy => remedy.to_owned(),
    };
    Trouble::ReloadFailed.problem(
        format!(
            "{file} was refused at {}; in force is what was read at {in_force}: {cause}",
            last.at
        ),
        format!("{remedy}; then `ringway reload -c {file}`"),
    )
}

/// Tells who asked, and may have gone. A backend's flows are counted now that the tables are written, so that one that
/// is drained has no more than these; on a thread that may wait.
fn answer(reply: Reply, mut outcome: Result<Changes, Error>, view: View) {
    tokio::task::spawn_blocking(move || {
        if let Ok(Changes { backend: Some(told), .. }) = &mut outcome {
            match step::flows_of(&view, &told.service, &told.address, told.port) {
                Ok(flows) => told.flows = flows,
                Err(error) => {
                    let what = format!("it is done, but its flows could not be counted: {error}");
                    outcome = Err(Error::failed(what, "see `ringway status`"));
                }
            }
        }
        let _ = reply.send(outcome);
    });
}

fn summary(changes: &Changes) -> String {
    let file = FilePath::new(&changes.file).display();
    match (changes.services.len(), changes.backends.len()) {
        _ if !changes.changed => format!("configuration {file} in force: nothing has changed"),
        (services, backends) => {
            format!(
                "configuration {file} in force: {} and {} changed",
                counted(services, "service"),
                counted(backends, "backend")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_is_told_in_one_line_with_both_times() {
        let last = |error: &str, remedy: &str| status::Reload {
            at: "2026-01-02T03:04:05Z".into(),
            succeeded: false,
            error: error.into(),
            remedy: remedy.into(),
        };
        let file = FilePath::new("/etc/gw.toml");
        let wrong = "/etc/gw.toml:9:1: unknown key \"prt\"\n    9 | prt = 80\n      | ^^^";
        let told = refused(&last(wrong, ""), file, "2026-01-01T00:00:00Z");
        assert_eq!(
            told.error,
            "/etc/gw.toml was refused at 2026-01-02T03:04:05Z; in force is what was read at \
             2026-01-01T00:00:00Z: /etc/gw.toml:9:1: unknown key \"prt\""
        );
        assert!(told.remedy.ends_with("; then `ringway reload -c /etc/gw.toml`"), "{told:?}");
        let told = refused(&last("no room", "make room"), file, "2026-01-01T00:00:00Z");
        assert_eq!(told.remedy, "make room; then `ringway reload -c /etc/gw.toml`");
    }
}
