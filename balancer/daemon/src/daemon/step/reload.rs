//! From one configuration to the next: `ringway reload`, SIGHUP, and overrides.
//!
//! A change is read and judged on a thread that may wait, and overrides are kept; then its new
//! backends are checked, and the ways to them looked up, while everything goes on as it was; then
//! the tables are written, service by service; and only then the loop goes over to it. Whatever
//! fails before, nothing has changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringway_api::clock::Timestamp;
use ringway_api::documents::changes::{Changes, SecretChange, What};
use ringway_api::documents::status::{self, Problem};
use ringway_api::error::{Error, Kind as Fault};
use ringway_api::overrides::{OverrideChange, Overrides};
use ringway_api::problem_kind::ProblemKind;
use ringway_api::text::counted;
use ringway_config::Config;
use ringway_host::Fix;
use ringway_kernel::shield::FORMER_KEY_COUNTS;

use super::effect::{Effect, Judge};
use super::{FIRST_RESULTS, State};
use crate::backends::BackendSet;
use crate::daemon::announce;
use crate::daemon::config_loader::LoadResult;
use crate::daemon::datapath_thread::DatapathCommand;
use crate::daemon::document_writer::{NONE, Written};
use crate::daemon::load::{Loaded, Refusal, Refused};
use crate::server::control::{Asker, Command, RequestId};

/// A configuration must be read and judged within this, what is kept beside it included.
const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration in force, and what is to follow it.
#[derive(Debug)]
pub struct Reload {
    /// In force: the file's, with overrides.
    pub config: Arc<Config>,
    pub file: Arc<Config>,
    pub overrides: Overrides,
    /// What is kept has been read: from then on it is `overrides` that must be kept.
    pub recalled: bool,
    /// Until then: what was kept before a change that was refused, which the disk may have.
    unkept: Option<Overrides>,
    /// When the file in force was read.
    read_at: SystemTime,
    /// The change that is on its way.
    pub(super) change: Option<PendingChange>,
    changes: u64,
    /// SIGHUP has come.
    pub(super) hung_up: bool,
    pub last: Option<status::Reload>,
    pub counts: status::Reloads,
}

impl Reload {
    pub fn new(
        config: Arc<Config>,
        file: Arc<Config>,
        overrides: Overrides,
        recalled: bool,
        read_at: SystemTime,
    ) -> Reload {
        let (last, counts) = (None, status::Reloads::default());
        let (unkept, change, changes, hung_up) = (None, None, 0, false);
        Reload {
            config,
            file,
            overrides,
            recalled,
            unkept,
            read_at,
            change,
            changes,
            hung_up,
            last,
            counts,
        }
    }

    /// Overrides that must be kept; `None`: only the state directory knows.
    pub fn to_keep(&self) -> Option<&Overrides> {
        if self.recalled { Some(&self.overrides) } else { self.unkept.as_ref() }
    }

    /// The next configuration and its backends; once it has been judged.
    pub fn next(&self) -> Option<(&Arc<Config>, &BackendSet)> {
        let next = self.change.as_ref()?.next.as_ref()?;
        Some((&next.loaded.config, &next.backend_set))
    }
}

/// A change on its way; one at a time.
#[derive(Debug)]
pub(super) struct PendingChange {
    number: u64,
    kind: Kind,
    request: Option<RequestId>,
    /// The override, and who asked for it.
    said: Option<(OverrideChange, Asker)>,
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

/// The next configuration.
#[derive(Debug)]
struct Next {
    loaded: Loaded,
    backend_set: BackendSet,
    /// Its new backends are waited for until then.
    until: Instant,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its overrides are being written.
    Keeping,
    /// Its probe tunnel is being made.
    Leading,
    /// Its new backends are looked at.
    Waiting,
    /// The tables are being written.
    Ordered,
}

impl PendingChange {
    pub fn until(&self) -> Option<Instant> {
        match &self.next {
            Some(Next { stage: Stage::Waiting, until, .. }) => Some(*until),
            Some(Next { stage: Stage::Leading | Stage::Ordered, .. }) => None,
            Some(Next { stage: Stage::Keeping, .. }) | None => Some(self.began + PATIENCE),
        }
    }

    /// It was not read, judged and kept in time.
    fn is_overdue(&self, now: Instant) -> bool {
        let waits = self.next.as_ref().is_some_and(|next| next.stage == Stage::Waiting);
        !waits && self.until().is_some_and(|until| now >= until)
    }

    /// The next backends.
    pub fn backend_set(&mut self) -> Option<&mut BackendSet> {
        self.next.as_mut().map(|next| &mut next.backend_set)
    }

    /// Whether tables are being written for it.
    pub fn is_ordered(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.stage == Stage::Ordered)
    }
}

impl State {
    /// Whether another change may begin.
    pub fn takes_commands(&self) -> bool {
        self.attachment.is_done() && self.reload.change.is_none()
    }

    /// `request`: who waits for the outcome, if somebody does.
    pub(super) fn begin(&mut self, command: Command, request: Option<RequestId>) {
        let mut said = None;
        let (kind, judge) = match command {
            Command::Reload { dry_run: true, file } => (Kind::DryRun, Judge::File(file)),
            Command::Reload { file, .. } => (Kind::Reload, Judge::File(file)),
            Command::Override { change, by } => {
                said = Some((change.clone(), by));
                (Kind::Override, Judge::Overridden(change))
            }
            Command::Recall => (Kind::Recall, Judge::Recalled),
        };
        if kind == Kind::Reload {
            self.effects.push(Effect::Reloading);
        }
        self.reload.changes += 1;
        let (number, began) = (self.reload.changes, self.at.now);
        self.reload.change = Some(PendingChange { number, kind, request, said, began, next: None });
        self.effects.push(Effect::Load(number, judge));
    }

    /// It was read and judged; one that was given up meanwhile counts no more.
    pub(super) fn judged(&mut self, (number, outcome): LoadResult) {
        let change = self.reload.change.as_mut();
        let Some(change) = change.filter(|it| it.number == number && it.next.is_none()) else {
            return;
        };
        let loaded = match outcome {
            Ok(loaded) => loaded,
            Err(Refusal::Wrong(refused)) => return self.refuse(refused),
            Err(Refusal::Foreign(error)) => {
                if change.request.is_none() {
                    let Error { what, remedy, .. } = &error;
                    self.effects.warn(format!("not reloaded: {what}; to do: {remedy}"));
                }
                // No reload of this daemon has failed.
                if std::mem::replace(&mut change.kind, Kind::DryRun) == Kind::Reload {
                    self.effects.push(Effect::Reloaded);
                }
                return self.end(Err(error.into()));
            }
        };
        if change.kind == Kind::DryRun {
            return self.end(Ok(loaded.changes));
        }
        let mut backend_set = self.tables.backend_set.reconfigure(&loaded.config, self.at.now);
        backend_set.mark(&loaded.file, &loaded.overrides);
        let until = self.at.now + FIRST_RESULTS;
        let (stage, effect) = match change.kind {
            Kind::Override => (Stage::Keeping, Effect::Keep(number, loaded.overrides.clone())),
            _ => (Stage::Leading, Effect::Lead(number)),
        };
        change.next = Some(Next { loaded, backend_set, until, stage });
        self.effects.push(effect);
    }

    /// Its overrides were written, or not; those of one that was given up meanwhile count no more.
    pub(super) fn written(&mut self, (number, outcome): Written) {
        if number == NONE && outcome.is_ok() {
            self.reload.unkept = None;
        }
        let change = self.reload.change.as_mut().filter(|change| change.number == number);
        let Some(change) = change else { return };
        let Some(next) = change.next.as_mut().filter(|next| next.stage == Stage::Keeping) else {
            return;
        };
        if let Err(error) = outcome {
            // What was kept before is written again as soon as that can be.
            self.reload.unkept = change.next.take().map(|next| next.loaded.kept);
            return self.refuse(error);
        }
        next.stage = Stage::Leading;
        self.effects.push(Effect::Lead(number));
    }

    /// The routes that the change's checks take are there, or cannot be.
    pub(super) fn led(&mut self, outcome: Result<(), Error>) {
        let next = self.reload.change.as_mut().and_then(|change| change.next.as_mut());
        let Some(next) = next.filter(|next| next.stage == Stage::Leading) else { return };
        if let Err(error) = outcome {
            return self.refuse(error);
        }
        (next.stage, next.until) = (Stage::Waiting, self.at.now + FIRST_RESULTS);
        self.effects.push(Effect::Checks);
        self.look_up_ways();
    }

    /// Has the tables written as soon as new backends are known, or were waited for long enough.
    pub(super) fn advance(&mut self) {
        let now = self.at.now;
        if self.reload.change.as_ref().is_some_and(|change| change.is_overdue(now)) {
            return self.refuse(Error::failed(
                format!(
                    "the configuration was not read and judged within {} s",
                    PATIENCE.as_secs()
                ),
                "does the file system of the configuration, of a ca_file or of [node] state hang? Then try again",
            ));
        }
        let Some(PendingChange { number, next: Some(next), .. }) = &mut self.reload.change else {
            return;
        };
        if next.stage != Stage::Waiting {
            return;
        }
        let number = *number;
        if next.backend_set.waiting_beside(&self.tables.backend_set) && now < next.until {
            return;
        }
        next.stage = Stage::Ordered;
        let observed = self.tables.observed_of(&next.backend_set, now);
        let (config, shield) = (next.loaded.config.clone(), next.loaded.shield.clone());
        self.effects.order(DatapathCommand::Adopt(number, config, observed, shield));
    }

    /// The tables were written, or not.
    pub(super) fn adopted(&mut self, number: u64, outcome: Result<(), Error>) {
        self.apply_soon();
        let change = self.reload.change.as_mut();
        let change = change.filter(|change| change.number == number && change.is_ordered());
        let Some(change) = change else { return };
        if let Err(error) = outcome {
            return self.refuse(error);
        }
        let Some(next) = change.next.take() else { return };
        let Next { loaded, backend_set, .. } = next;
        let Loaded { file, config, overrides, mut changes, shield, .. } = loaded;
        changes.note(backend_set.idle_beside(&self.tables.backend_set));
        for change in &changes.services {
            self.monitor.no_reply_watch.forget(&change.service);
        }
        let new = &announce::ours(&config) - &announce::ours(&self.reload.config);
        self.tables.adopt(backend_set);
        (self.reload.config, self.reload.file) = (config.clone(), file);
        self.reload.overrides = overrides;
        self.effects.push(Effect::Checks);
        self.effects.push(Effect::ReadMachine(config));
        self.effects.push(Effect::ReceiveSolicitations);
        self.effects.push(Effect::Announce(new, self.served_interfaces()));
        self.look_up_ways();
        match self.reload.change.as_ref().map(|change| change.kind) {
            Some(Kind::Override | Kind::Recall) => self.reload.recalled = true,
            Some(Kind::Reload) => self.reload.read_at = self.at.wall,
            _ => {}
        }
        self.renew_shield(shield);
        self.mitigation.renew(self.at.now);
        self.effects.push(Effect::Recount);
        if let Some(secret) = &mut changes.syn_secret {
            secret.former_until = Some(Timestamp(self.at.wall + FORMER_KEY_COUNTS));
        }
        let unserved = self.tables.backend_set.unserved();
        let unserved = unserved.filter(|service| changes.concern(service));
        changes.unserved_services = unserved.map(str::to_owned).collect();
        self.tell(&changes);
        self.end(Ok(changes));
    }

    /// Logs the change in force.
    fn tell(&mut self, changes: &Changes) {
        match &self.reload.change {
            Some(PendingChange { said: Some((said, by)), .. }) => {
                self.effects.info(format!("{said} (by {by})"));
            }
            Some(PendingChange { kind: Kind::Recall, .. }) if !changes.changed => {}
            _ => self.effects.info(summary(changes)),
        }
        for service in &changes.unserved_services {
            let why = self.reload.overrides.withheld(service);
            self.effects.warn(format!("{service}: no backend takes new connections{why}"));
        }
    }

    /// Nothing has changed, nor will it.
    fn refuse(&mut self, refused: impl Into<Refused>) {
        let refused = refused.into();
        let Some(change) = &mut self.reload.change else { return };
        if change.kind == Kind::Reload {
            let Refused { error: Error { remedy, .. }, brief } = &refused;
            let to_do = if remedy.is_empty() { "" } else { "; to do: " };
            let error = format!("{brief}{to_do}{remedy}");
            self.effects.error("not reloaded: the configuration in force stays", error);
        }
        if let Some(next) = change.next.take() {
            if change.kind == Kind::Override {
                self.reload.unkept = Some(next.loaded.kept.clone());
                self.effects.push(Effect::Keep(NONE, next.loaded.kept));
            }
            self.effects.push(Effect::Checks);
        }
        self.end(Err(refused));
    }

    fn end(&mut self, mut outcome: Result<Changes, Refused>) {
        let Some(PendingChange { kind, request, began, .. }) = self.reload.change.take() else {
            return;
        };
        if let Ok(changes) = &mut outcome {
            changes.dry_run = kind == Kind::DryRun;
            let took = self.at.now.saturating_duration_since(began);
            changes.took_ms = took.as_millis() as u64;
        }
        if kind == Kind::Reload {
            self.effects.push(Effect::Reloaded);
            let error = outcome.as_ref().err();
            match error {
                None => self.reload.counts.succeeded += 1,
                Some(_) => self.reload.counts.failed += 1,
            }
            self.reload.last = Some(status::Reload {
                at: Timestamp(self.at.wall),
                succeeded: error.is_none(),
                error: error.map(|refused| refused.error.what.clone()).unwrap_or_default(),
                brief: error.map(|refused| refused.brief.clone()).unwrap_or_default(),
                remedy: error.map(|refused| remedy(&refused.error)).unwrap_or_default(),
            });
        }
        // The client may ask for the status next.
        self.effects.post();
        if let Some(request) = request {
            let outcome = outcome.map_err(|refused| refused.error);
            self.effects.push(Effect::Answer(request, Box::new(outcome)));
        }
    }
}

impl Reload {
    /// The file that this daemon runs by, wherever it is asked from; `None`: options are all it has.
    pub fn configuration(&self) -> Option<PathBuf> {
        let file = self.file.file()?;
        Some(std::path::absolute(file).unwrap_or_else(|_| file.into()))
    }

    /// Findings: the file on the disk differs from the configuration in force; overrides match no
    /// backend.
    pub fn findings(&self) -> Vec<Problem> {
        let file = self.configuration().unwrap_or_default();
        let in_force = Timestamp(self.read_at);
        let failed = self.last.iter().filter(|last| !last.succeeded);
        let failed = failed.map(|last| refused(last, &file, in_force));
        let orphans = self.overrides.orphans(&self.file).map(|o| {
            ProblemKind::OverrideOrphaned.problem(
                format!(
                    "override of service {} backend {} ({}): the configuration has no such backend",
                    o.service,
                    o.shown(),
                    o.in_words()
                ),
                Fix::command(["ringway", "overrides", "clear", &o.service, &o.shown()]),
            )
        });
        failed.chain(orphans).collect()
    }
}

/// The remedy for an error whose words may give it themselves.
fn remedy(error: &Error) -> Fix {
    match error.kind {
        // The file is not at fault.
        Fault::Failed if error.remedy.is_empty() => "remove this cause".into(),
        _ => (*error.remedy).clone(),
    }
}

/// That a reload was refused. `in_force`: since when the configuration that was read before is.
fn refused(last: &status::Reload, file: &Path, in_force: Timestamp) -> Problem {
    let file = file.display().to_string();
    let cause = &last.brief;
    let remedy = match last.remedy.is_empty() {
        true => Fix::command(["ringway", "check", "-c", &file])
            .after("correct the file until this reports no error:"),
        false => last.remedy.clone(),
    };
    let reload = Fix::command(["ringway", "reload", "-c", &file]).after("then:");
    ProblemKind::ReloadFailed.problem(
        format!(
            "{file} was refused at {}; the configuration of {in_force} stays in force: {cause}",
            last.at
        ),
        Fix::Sequence(vec![remedy, reload]),
    )
}

/// What a reload came to, for the log: "2 services with 8 backends added, 48 services changed
/// (check)".
fn summary(changes: &Changes) -> String {
    let file = Path::new(&changes.file).display();
    if !changes.changed {
        return format!("configuration {file} in force: nothing has changed");
    }
    let mut parts = Vec::new();
    for (what, word) in [(What::Added, "added"), (What::Removed, "removed")] {
        let those = changes.services.iter().filter(|service| service.change == what);
        let (services, backends) =
            those.fold((0_usize, 0), |(n, backends), one| (n + 1, backends + one.backends));
        if services > 0 {
            let with = counted(backends, "backend");
            parts.push(format!("{} with {with} {word}", counted(services, "service")));
        }
    }
    let changed = changes.services.iter().filter(|service| service.change == What::Changed);
    let changed: Vec<_> = changed.collect();
    if !changed.is_empty() {
        let keys: BTreeSet<&str> =
            changed.iter().flat_map(|service| &service.names).copied().collect();
        let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
        parts.push(format!("{} changed ({keys})", counted(changed.len(), "service")));
    }
    for (what, word) in
        [(What::Added, "added"), (What::Removed, "removed"), (What::Changed, "changed")]
    {
        let those = changes.backends.iter().filter(|backend| backend.change == what).count();
        if those > 0 {
            parts.push(format!("{} {word}", counted(those, "backend")));
        }
    }
    parts.extend(changes.settings.iter().map(|table| format!("[{table}] changed")));
    parts.extend(changes.syn_secret.iter().map(SecretChange::to_string));
    let parts =
        if parts.is_empty() { "nothing that traffic depends on".into() } else { parts.join(", ") };
    format!("configuration {file} in force: {parts}")
}

#[cfg(test)]
mod tests {
    use ringway_api::clock;

    use super::*;

    #[test]
    fn a_reload_is_counted_as_it_is() {
        use ringway_api::documents::changes::{BackendChange, ServiceChange};

        let service = |change, backends, names: &[&'static str]| ServiceChange {
            service: "web".into(),
            change,
            names: names.to_vec(),
            backends,
            ..ServiceChange::default()
        };
        let said = |services: Vec<ServiceChange>, backends: Vec<BackendChange>| {
            let file = "gw.toml".to_owned();
            summary(&Changes { changed: true, file, services, backends, ..Changes::default() })
        };
        let added = said(vec![service(What::Added, 1, &[]); 8], vec![]);
        assert_eq!(added, "configuration gw.toml in force: 8 services with 8 backends added");
        let changed = said(vec![service(What::Changed, 0, &["port", "check"]); 48], vec![]);
        let want = "configuration gw.toml in force: 48 services changed (check, port)";
        assert_eq!(changed, want);
        let file = "gw.toml".to_owned();
        let syn_secret = Some(SecretChange {
            former_fingerprint: "2854f666".into(),
            fingerprint: Some("f04eeeb6".into()),
            former_until: Some(Timestamp(clock::from_unix_s(1_767_225_600))),
        });
        let secret = Changes { changed: true, file, syn_secret, ..Changes::default() };
        assert_eq!(
            summary(&secret),
            "configuration gw.toml in force: secret of answers to SYNs: 2854f666 becomes f04eeeb6; \
             answers of 2854f666 are taken until 2026-01-01T00:00:00Z"
        );
        let gone = BackendChange {
            service: "web".into(),
            address: [10, 0, 0, 2].into(),
            port: 80,
            change: What::Removed,
            weight_before: Some(1),
            weight_after: None,
        };
        assert_eq!(
            said(vec![service(What::Removed, 3, &[])], vec![gone]),
            "configuration gw.toml in force: 1 service with 3 backends removed, 1 backend removed"
        );
    }

    #[test]
    fn a_refused_file_is_told_in_one_line_with_both_times() {
        let last = |brief: &str, remedy: &str| status::Reload {
            at: Timestamp(clock::from_unix_s(1_767_323_045)),
            brief: brief.into(),
            remedy: remedy.into(),
            ..status::Reload::default()
        };
        let file = Path::new("/etc/gw.toml");
        let begun = Timestamp(clock::from_unix_s(1_767_225_600));
        let wrong = "/etc/gw.toml:9:1: unknown key \"prt\"";
        let told = refused(&last(wrong, ""), file, begun);
        let want = "/etc/gw.toml was refused at 2026-01-02T03:04:05Z; the configuration of \
                    2026-01-01T00:00:00Z stays in force: /etc/gw.toml:9:1: unknown key \"prt\"";
        assert_eq!(told.error, want);
        let remedy = told.remedy.to_string();
        assert!(remedy.ends_with("; then: ringway reload -c /etc/gw.toml"), "{remedy}");
        let told = refused(&last("no room", "make room"), file, begun);
        assert_eq!(told.remedy.to_string(), "make room; then: ringway reload -c /etc/gw.toml");
    }
}
