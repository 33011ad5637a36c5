//! From one configuration to the next: `ringway reload`, SIGHUP, and overrides.
//!
//! A change is read and judged on a thread that may wait, and overrides are kept; then its new backends are
//! checked, and the ways to them looked up, while everything goes on as it was; then the tables are written,
//! service by service; and only then the loop goes over to it. Whatever fails before, nothing has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringway_api::documents::changes::{Changes, What};
use ringway_api::documents::status::{self, Problem};
use ringway_api::error::{Error, Kind as Fault};
use ringway_api::problem_kind::ProblemKind;
use ringway_api::text::counted;
use ringway_api::{clock, overrides};
use ringway_config::Config;
use ringway_host::netlink::rules::MarkRule;
use ringway_kernel::{ProbeProgram, View};
use tokio::time::Instant;

use super::load::{self, Loaded, Now, Refusal};
use super::override_writer::{OverrideWriter, Written};
use super::{Daemon, FIRST_RESULTS, announce, observed};
use crate::backends::BackendSet;
use crate::daemon::config_loader::{Load, LoadResult};
use crate::daemon::datapath_thread::DatapathCommand;
use crate::health::Target;
use crate::health::dsr_probe::ProbeTunnel;
use crate::reload_diff;
use crate::server::control::{Asker, Command, Reply};

/// A configuration must be read and judged within this, what is kept beside it included.
const PATIENCE: Duration = Duration::from_secs(30);
/// No change has this number.
const NONE: u64 = 0;

/// A change on its way; one at a time.
pub struct Change {
    number: u64,
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
    backend_set: BackendSet,
    /// Its new backends are waited for until then.
    until: Instant,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its overrides are being written.
    Keeping,
    /// The road of its checks is being made.
    Leading,
    /// Its new backends are looked at.
    Waiting,
    /// The tables are being written.
    Ordered,
}

/// What was made of the road, on a thread that may wait.
pub struct Led {
    probe_tunnel: Result<Lanes, Error>,
    /// The program, where no road has taken it.
    probe: Option<ProbeProgram>,
}

enum Lanes {
    /// A road, if one is needed.
    Opened(Option<ProbeTunnel>),
    /// To be added to the road there is.
    Added(Vec<MarkRule>),
}

impl Change {
    /// When waiting ends.
    pub fn until(&self) -> Option<Instant> {
        match &self.next {
            Some(Next { stage: Stage::Waiting, until, .. }) => Some(*until),
            Some(Next { stage: Stage::Leading | Stage::Ordered, .. }) => None,
            Some(Next { stage: Stage::Keeping, .. }) | None => Some(self.began + PATIENCE),
        }
    }

    /// It was not read, judged and kept in time.
    fn is_overdue(&self) -> bool {
        let waits = self.next.as_ref().is_some_and(|next| next.stage == Stage::Waiting);
        !waits && self.until().is_some_and(|until| Instant::now() >= until)
    }

    /// Lets go of it; what was kept before it is written again. Returns whether it had been judged.
    fn give_up(&mut self, writer: &mut OverrideWriter) -> bool {
        let Some(next) = self.next.take() else { return false };
        if self.kind == Kind::Override {
            writer.write(NONE, next.loaded.kept);
        }
        true
    }

    /// What is known of the backends that will be.
    pub fn backend_set(&mut self) -> Option<&mut BackendSet> {
        self.next.as_mut().map(|next| &mut next.backend_set)
    }

    /// Whether tables are being written for it.
    pub fn is_ordered(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.stage == Stage::Ordered)
    }
}

impl Daemon {
    /// Begins a change.
    pub(super) fn begin(&mut self, command: Command) {
        let now = Now {
            config: self.config.clone(),
            backend_set: self.backend_set.clone(),
            view: self.datapath.view.clone(),
        };
        let (state, file) = (self.state.clone(), self.file.clone());
        self.changes += 1;
        let number = self.changes;
        let mut said = None;
        let (kind, reply, judge): (_, _, Load) = match command {
            Command::Reload { dry_run, file: meant, reply } => {
                let kind = if dry_run { Kind::DryRun } else { Kind::Reload };
                if kind == Kind::Reload {
                    self.notifier.reloading();
                }
                let (overrides, status_store) = (self.overrides.clone(), self.status_store.clone());
                let judge = move || {
                    let loaded = load::file(&now, meant.as_deref(), overrides);
                    // The last that is known of backends that may leave.
                    let _ = status_store.read_now();
                    loaded
                };
                (kind, reply, Box::new(judge))
            }
            Command::Override { change, by, reply } => {
                said = Some((change.clone(), by));
                let known = self.overrides.clone();
                let judge = move || {
                    load::overridden(&now, &file, known, &change, &state).map_err(Refusal::Wrong)
                };
                (Kind::Override, Some(reply), Box::new(judge))
            }
            Command::Recall => {
                let judge = move || load::recalled(&now, &file, &state).map_err(Refusal::Wrong);
                (Kind::Recall, None, Box::new(judge))
            }
        };
        let began = Instant::now();
        self.change = Some(Change { number, kind, reply, said, began, next: None });
        if let Err(error) = self.loader.begin(number, judge) {
            self.refuse(error);
        }
    }

    /// It was read and judged; one that was given up meanwhile counts no more.
    pub(super) fn judged(&mut self, (number, outcome): LoadResult) {
        let Some(change) = self.change.as_mut().filter(|change| change.number == number) else {
            return;
        };
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
        let mut backend_set = self.backend_set.reconfigure(&loaded.config);
        backend_set.mark(&loaded.file, &loaded.overrides);
        let until = Instant::now() + FIRST_RESULTS;
        if change.kind == Kind::Override {
            self.writer.write(number, loaded.overrides.clone());
            change.next = Some(Next { loaded, backend_set, until, stage: Stage::Keeping });
            return;
        }
        let (config, ids) = (loaded.config.clone(), backend_set.ids());
        change.next = Some(Next { loaded, backend_set, until, stage: Stage::Leading });
        self.lead(config, ids);
    }

    /// Its overrides were written, or not; those of one that was given up meanwhile count no more.
    pub(super) fn written(&mut self, (number, outcome): Written) {
        let Some(change) = self.change.as_mut().filter(|change| change.number == number) else {
            return;
        };
        if let Err(error) = outcome {
            // What is kept is as it was.
            change.next = None;
            return self.refuse(error);
        }
        let Some(next) = &mut change.next else { return };
        next.stage = Stage::Leading;
        let (config, ids) = (next.loaded.config.clone(), next.backend_set.ids());
        self.lead(config, ids);
    }

    /// Has the road made that new checks take. The kernel may take its time for that: on a thread that may wait.
    fn lead(&mut self, config: Arc<Config>, ids: Vec<usize>) {
        let led = self.led.0.clone();
        let send = move |probe_tunnel, probe| {
            // Closed only when the daemon has ended.
            let _ = led.send(Led { probe_tunnel, probe });
        };
        let nothing = Led { probe_tunnel: Ok(Lanes::Added(Vec::new())), probe: None };
        match &self.probe_tunnel {
            None if !ProbeTunnel::is_needed(&config) => self.led(nothing),
            None => {
                let mut probe = self.datapath.probe.take();
                tokio::task::spawn_blocking(move || {
                    send(ProbeTunnel::open(&config, &ids, &mut probe).map(Lanes::Opened), probe);
                });
            }
            Some(probe_tunnel) => match probe_tunnel.leading(&config) {
                None => self.led(nothing),
                Some(lead) => {
                    tokio::task::spawn_blocking(move || send(lead().map(Lanes::Added), None));
                }
            },
        }
    }

    /// The road that the change's checks take is there, or cannot be.
    pub(super) fn led(&mut self, led: Led) {
        if self.datapath.probe.is_none() {
            self.datapath.probe = led.probe;
        }
        let mut rules = Vec::new();
        match led.probe_tunnel {
            Ok(Lanes::Opened(probe_tunnel)) => self.probe_tunnel = probe_tunnel,
            Ok(Lanes::Added(added)) => rules = added,
            Err(error) => return self.refuse(error),
        }
        let Some(next) = self.change.as_mut().and_then(|change| change.next.as_mut()) else {
            return;
        };
        let added = match &mut self.probe_tunnel {
            Some(probe_tunnel) => {
                probe_tunnel.add(&next.loaded.config, &next.backend_set.ids(), rules)
            }
            None => Ok(()),
        };
        if let Err(error) = added {
            return self.refuse(error);
        }
        (next.stage, next.until) = (Stage::Waiting, Instant::now() + FIRST_RESULTS);
        self.check_both();
        self.refresh();
        self.go_on();
    }

    /// Checks backends that are and that will be.
    fn check_both(&mut self) {
        let lanes = self.probe_tunnel.as_ref().map(ProbeTunnel::routes).unwrap_or_default();
        let mut targets: BTreeMap<usize, Target> = BTreeMap::new();
        let next = self.change.as_mut().and_then(Change::backend_set);
        for backend_set in
            [Some(&self.backend_set), next.map(|backend_set| &*backend_set)].into_iter().flatten()
        {
            targets
                .extend(backend_set.targets(&lanes).into_iter().map(|target| (target.id, target)));
        }
        self.checks.follow(targets.into_values().collect());
    }

    /// Has the tables written as soon as new backends are known, or were waited for long enough.
    pub(super) fn go_on(&mut self) {
        if self.change.as_ref().is_some_and(Change::is_overdue) {
            return self.refuse(Error::failed(
                format!(
                    "the configuration was not read and judged within {} s",
                    PATIENCE.as_secs()
                ),
                "does the file system of the configuration, of a ca_file or of [node] state hang? Then try again",
            ));
        }
        let Some(next) = self.change.as_mut().and_then(|change| change.next.as_mut()) else {
            return;
        };
        let waiting =
            next.backend_set.waiting_beside(&self.backend_set) && Instant::now() < next.until;
        if next.stage != Stage::Waiting || waiting {
            return;
        }
        next.stage = Stage::Ordered;
        let observed = observed(&next.backend_set, &self.own_addresses);
        self.datapath.order(DatapathCommand::Adopt(next.loaded.config.clone(), observed));
    }

    /// The tables were written, or not.
    pub(super) fn adopted(&mut self, outcome: Result<(), Error>) {
        self.apply_soon();
        if let Err(error) = outcome {
            return self.refuse(error);
        }
        let Some(next) = self.change.as_mut().and_then(|change| change.next.take()) else { return };
        let Next { loaded, backend_set, .. } = next;
        let Loaded { file, config, overrides, mut changes, .. } = loaded;
        changes.note(backend_set.idle_beside(&self.backend_set));
        for change in &changes.services {
            self.silence.forget(&change.service);
        }
        let old = std::mem::replace(&mut self.config, config);
        (self.file, self.overrides, self.backend_set) = (file, overrides, backend_set);
        self.in_tables = self.backend_set.clone();
        self.settle_checks();
        self.looks.reconfigure(self.config.clone());
        self.looks.at_machine();
        self.receive_solicitations();
        announce::new(&old, &self.config, &self.interfaces);
        self.refresh();
        self.apply_error = None;
        if self.change.as_ref().is_some_and(|change| change.kind == Kind::Reload) {
            self.read_at = SystemTime::now();
        }
        self.status_store.settle();
        let unserved = self.backend_set.unserved().filter(|service| changes.concern(service));
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
        if change.kind == Kind::Reload {
            let error = ringway_config::in_one_line(&error.to_string());
            tracing::error!(%error, "not reloaded: the configuration in force stays");
        }
        if change.give_up(&mut self.writer) {
            self.settle_checks();
        }
        self.end(Err(error));
    }

    /// Goes on with the checks of the roster alone.
    fn settle_checks(&mut self) {
        if let Some(probe_tunnel) = &mut self.probe_tunnel {
            probe_tunnel.keep(|id| self.backend_set.has(id));
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
                remedy: error.map(remedy).unwrap_or_default(),
            });
        }
        // Who is told asks for the status perhaps.
        self.post();
        if let Some(reply) = reply {
            answer(reply, outcome, self.datapath.view.clone());
        }
    }

    /// That the file on the disk is not what is in force, and overrides about nobody.
    pub(super) fn change_findings(&self) -> Vec<Problem> {
        let file = std::path::absolute(self.file.filename());
        let file = file.unwrap_or_else(|_| self.file.filename().into());
        let in_force = clock::rfc3339(self.read_at);
        let failed = self.last_reload.iter().filter(|last| !last.succeeded);
        let failed = failed.map(|last| refused(last, &file, &in_force));
        let orphans = self.overrides.orphans(&self.file).map(|o| {
            ProblemKind::OverrideOrphaned.problem(
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

/// What to do about an error whose words may tell it themselves.
fn remedy(error: &Error) -> String {
    match (error.kind, error.remedy.as_str()) {
        // The file is not at fault.
        (Fault::Failed, "") => "remove this cause".to_owned(),
        (_, remedy) => remedy.to_owned(),
    }
}

/// That a reload was refused. `in_force`: since when the configuration that was read before is.
fn refused(last: &status::Reload, file: &Path, in_force: &str) -> Problem {
    let file = file.display();
    let cause = ringway_config::in_one_line(&last.error);
    let remedy = match last.remedy.as_str() {
        "" => format!("mend the file until `ringway check -c {file}` is content"),
        remedy => remedy.to_owned(),
    };
    ProblemKind::ReloadFailed.problem(
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
            match reload_diff::flows_of(&view, &told.service, &told.address, told.port) {
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

/// What a reload came to, for the log: "2 services with 8 backends added, 48 services changed (check)".
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
        // A key may come with its values: "port 80 becomes 81".
        let keys = changed.iter().flat_map(|service| &service.keys);
        let keys: BTreeSet<&str> = keys.filter_map(|key| key.split(' ').next()).collect();
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
    let parts =
        if parts.is_empty() { "nothing that traffic depends on".into() } else { parts.join(", ") };
    format!("configuration {file} in force: {parts}")
}

#[cfg(test)]
mod tests {
    use super::super::override_writer::tests::{Hanging, drained};
    use super::*;
    use ringway_api::overrides::Overrides;
    use ringway_api::state_dir::State;

    /// An override that drains 10.0.0.2 and has come so far; nothing was kept before.
    fn draining(stage: Option<Stage>) -> Change {
        let text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\n\
                    address = \"203.0.113.9\"\nport = 80\nbackends = [{ address = \"10.0.0.2\" }]\n";
        let config = Arc::new(ringway_config::parse(text, "gw.toml").expect("valid"));
        let next = |stage| {
            let (backend_set, until) = (BackendSet::new(&config), Instant::now());
            let (kept, changes) = (Overrides::default(), Changes::default());
            let (file, config, overrides) = (config.clone(), config.clone(), drained(2));
            Next {
                loaded: Loaded { file, config, overrides, kept, changes },
                backend_set,
                until,
                stage,
            }
        };
        let (kind, began, next) = (Kind::Override, Instant::now() - PATIENCE, stage.map(next));
        Change { number: 1, kind, reply: None, said: None, began, next }
    }

    #[tokio::test]
    async fn what_was_written_of_a_change_that_is_refused_is_taken_back() {
        let place = tempfile::tempdir().expect("a directory");
        let state = Arc::new(State::new(place.path()));
        let kept = || state.read::<Overrides>(overrides::DOCUMENT).expect("read");
        let mut writer = OverrideWriter::new(state.clone());
        writer.write(1, drained(2));
        assert_eq!(writer.next().await, Some((1, Ok(()))));
        assert_eq!(kept(), Some(drained(2)));
        // The kernel refuses its tables.
        assert!(draining(Some(Stage::Ordered)).give_up(&mut writer), "it was judged");
        writer.finish().await;
        assert_eq!(kept(), Some(Overrides::default()));
        // Others write nothing, nor does one that was not judged.
        let mut reload = Change { kind: Kind::Reload, ..draining(Some(Stage::Ordered)) };
        assert!(reload.give_up(&mut writer) && !draining(None).give_up(&mut writer));
        assert!(!writer.is_busy());
    }

    #[tokio::test]
    async fn a_document_that_hangs_is_waited_for_for_a_while_and_does_not_last() {
        let place = Hanging::new();
        let mut writer = OverrideWriter::new(place.state.clone());
        writer.write(1, drained(2));
        writer.begins().await;
        let mut change = draining(Some(Stage::Keeping));
        assert!(change.is_overdue() && draining(None).is_overdue());
        for stage in [Stage::Leading, Stage::Waiting, Stage::Ordered] {
            assert!(!draining(Some(stage)).is_overdue(), "{stage:?}");
        }
        change.give_up(&mut writer);
        assert!(writer.is_busy(), "what was kept before is written once that is possible");
        place.release();
        writer.finish().await;
        assert_eq!(place.kept(), Some(Overrides::default()));
    }

    #[test]
    fn a_reload_is_counted_as_it_is() {
        use ringway_api::documents::changes::{BackendChange, ServiceChange};

        let service = |change, backends, keys: &[&str]| ServiceChange {
            service: "web".into(),
            change,
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            backends,
        };
        let said = |services: Vec<ServiceChange>, backends: Vec<BackendChange>| {
            let file = "gw.toml".to_owned();
            summary(&Changes { changed: true, file, services, backends, ..Changes::default() })
        };
        assert_eq!(
            said(vec![service(What::Added, 1, &[]); 8], vec![]),
            "configuration gw.toml in force: 8 services with 8 backends added"
        );
        assert_eq!(
            said(vec![service(What::Changed, 0, &["check", "port 80 becomes 81"]); 48], vec![]),
            "configuration gw.toml in force: 48 services changed (check, port)"
        );
        let gone = BackendChange { change: What::Removed, ..BackendChange::default() };
        assert_eq!(
            said(vec![service(What::Removed, 3, &[])], vec![gone]),
            "configuration gw.toml in force: 1 service with 3 backends removed, 1 backend removed"
        );
    }

    #[test]
    fn a_refused_file_is_told_in_one_line_with_both_times() {
        let last = |error: &str, remedy: &str| status::Reload {
            at: "2026-01-02T03:04:05Z".into(),
            succeeded: false,
            error: error.into(),
            remedy: remedy.into(),
        };
        let file = Path::new("/etc/gw.toml");
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
