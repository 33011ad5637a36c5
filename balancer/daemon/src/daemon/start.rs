//! From a configuration to a daemon that is ready to attach.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::{fs, io};

use ringway_api::error::Error;
use ringway_api::overrides::{self, Overrides};
use ringway_api::shield::{self, RuntimeShield};
use ringway_api::state_dir::StateDir;
use ringway_api::text::counted;
use ringway_config::{Config, ListAction, Setting};
use ringway_doctor::{Finding, Outcome, Report, Severity};
use ringway_host::netlink::links::{self, Link};
use ringway_kernel::{BackendState, DEFAULT_BPFFS, Opened, OrphanCause, View};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Daemon;
use super::document_writer::DocumentWriter;
use super::log_limit::LogLimiter;
use super::probe_routes::ProbeRoutes;
use super::program_runner::ProgramRunner;
use super::step::{Moment, Reload, Shield, State};
use crate::backends::{BackendSet, Entry, Member};
use crate::daemon::background::Background;
use crate::daemon::config_loader::ConfigLoader;
use crate::daemon::datapath_thread::{DatapathEvent, DatapathThread};
use crate::daemon::netlink_watch::{self, Found, NetlinkWatch};
use crate::daemon::shield_plan::{SecretReading, ShieldPlan, Unreadable};
use crate::daemon::shield_warnings;
use crate::health::cookies::CookieChecks;
use crate::health::dsr_probe::ProbeTunnel;
use crate::health::{Checks, HealthFile};
use crate::network::next_hop;
use crate::notify::Notifier;
use crate::preflight;
use crate::server::control::{self, Control, PendingRequests, Request, ShieldRequest};
use crate::snapshot::StatusStore;
use crate::{commit_confirm, metrics, server};

/// Open files below which no start is tried: programs, tables and sockets of a small node take
/// about a hundred.
const FEWEST_FILES: u64 = 512;

/// Thousands of health checks need as many descriptors.
///
/// # Errors
/// There may not be enough for a start: it would fail halfway.
pub fn raise_open_files() -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::debug!(%error, "limit of open files not raised");
    }
    enough_files(getrlimit(Resource::Nofile).current)
}

/// `None`: without limit.
fn enough_files(limit: Option<u64>) -> Result<(), Error> {
    match limit.filter(|limit| *limit < FEWEST_FILES) {
        None => Ok(()),
        Some(limit) => Err(Error::failed(
            format!(
                "the limit of open files is {limit}, and a start needs {FEWEST_FILES}: nothing was touched"
            ),
            format!(
                "ulimit -n {FEWEST_FILES}, or more for many health checks; under systemd, \
                 LimitNOFILE= in the unit"
            ),
        )),
    }
}

/// How long interfaces are waited for. Shorter than systemd's patience with a start, 90 s.
const LATE: Duration = Duration::from_secs(30);

/// Under a service manager, which starts us as the machine boots: bonds, VLANs and virtual
/// functions come a while after it. Whoever starts us by hand is told at once what is missing.
pub fn await_interfaces(config: &Config) {
    let notifier = Notifier::from_env();
    if !notifier.is_there() {
        return;
    }
    let until = Instant::now() + LATE;
    // One that is down and carries our program must not keep the others without a daemon.
    let own = preflight::own_links(&config.node.name).unwrap_or_default();
    let serves = |link: &Link| link.up || own.contains_key(&link.ifindex);
    let mut told = false;
    while Instant::now() < until {
        // What cannot be asked is preflight's to tell.
        let Ok(links) = links::all() else { return };
        let is_up = |name: &str| links.iter().any(|link| link.name == name && serves(link));
        let names = config.node.interfaces.iter().map(|name| name.as_str());
        let late: Vec<&str> = names.filter(|name| !is_up(name)).collect();
        if late.is_empty() {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            let (late, within) = (late.join(", "), LATE.as_secs());
            tracing::warn!("{late}: not there, or down: waiting {within} s at most");
            notifier.status(&format!("waiting for {late}"));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Looks at the machine.
///
/// # Errors
/// Something forbids a start.
pub fn preflight(config: &Config) -> Result<Report, Error> {
    let report = preflight::run(config);
    match preflight::refusal(&report) {
        Some(refused) => Err(refused),
        None => Ok(report),
    }
}

/// Logs what preflight found: each cause in one line, each finding at level debug.
pub fn tell_of_machine(report: &Report) {
    for Finding { check, outcome, .. } in &report.findings {
        let Outcome { subject, severity, found, .. } = outcome;
        let fix = outcome.remedy().to_string();
        tracing::debug!(check, subject, fix, "{}: {found}", severity.as_str());
    }
    let told = |finding: &Finding| {
        finding.outcome.severity != Severity::Ok || finding.check == preflight::names::ANSWERS
    };
    for cause in preflight::causes(report, told) {
        let (subject, Finding { check, outcome, .. }) = (cause.named(), cause.first);
        let (found, fix) = (&outcome.found, outcome.remedy().to_string());
        let fix = Some(fix.as_str()).filter(|fix| !fix.is_empty());
        match outcome.severity {
            Severity::Ok => {
                tracing::info!(service = subject, "who answers for the address: {found}");
            }
            Severity::Unknown => {
                tracing::info!(check, subject, fix, "not known: {found}");
            }
            _ => tracing::warn!(check, subject, fix, "{found}"),
        }
    }
}

/// Says what was found in the kernel.
pub fn tell(opened: &Opened) {
    for orphan in &opened.orphans {
        let there = || links::by_name(&orphan.iface).is_ok();
        let what = match orphan.cause {
            OrphanCause::Vanished if there() => "the program had been taken off the interface",
            OrphanCause::Vanished => "the interface is gone",
            OrphanCause::Renamed => "the name belongs to another interface now",
            OrphanCause::NeverAttached => "it was never attached",
        };
        tracing::warn!(interface = orphan.iface, "removed orphaned pins: {what}");
    }
    if let Some(error) = &opened.losses_uncounted {
        tracing::warn!(%error, "what the kernel drops after our verdict is not counted");
    }
    if opened.unfinished_removed {
        tracing::warn!("removed what a start that was cut short had left");
    }
    match &opened.taken_over {
        None => tracing::info!("a first start: nothing was pinned for this node"),
        Some(taken) => {
            tracing::info!(interfaces = ?taken.interfaces, "took over the running packet path");
            if let Some((have, want)) = taken.flow_buckets {
                tracing::warn!(
                    have,
                    want,
                    "[nat] flows changed: takes effect after `ringway detach`"
                );
            }
        }
    }
}

/// The configuration that the daemon begins with.
pub struct StartConfig {
    /// With overrides.
    pub config: Arc<Config>,
    /// As it is written.
    pub file: Arc<Config>,
    /// As they were kept.
    pub overrides: Overrides,
    pub state: Arc<StateDir>,
    pub shield: Option<Arc<ShieldPlan>>,
    /// The commit that the program was built from.
    pub commit: Option<&'static str>,
}

impl StartConfig {
    /// Overrides that were kept go over what the file says.
    pub fn new(file: Config, commit: Option<&'static str>) -> StartConfig {
        let state = Arc::new(StateDir::new(file.node.state.clone().into_inner()));
        let overrides = Overrides::load(&state).unwrap_or_else(|error| {
            tracing::error!(%error, "overrides not read: the file's weights are in force");
            Overrides::default()
        });
        // So that one that is read-only is told before something is to be kept: it is remembered.
        if !state.trouble(overrides::DOCUMENT) {
            let _ = state.probe(overrides::DOCUMENT);
        }
        let config = Arc::new(overrides.apply(&file));
        let secret = SecretReading::at_start(&config);
        let shield = ShieldPlan::read(&config, Unreadable::Empty, secret).unwrap_or_else(|error| {
            tracing::error!(%error, "no shield");
            None
        });
        if let Some(problem) = shield.as_ref().and_then(|plan| plan.secret_problem()) {
            tracing::warn!(fix = problem.remedy.to_string(), "{}", problem.error);
        }
        for warning in shield_warnings::warnings(&config, shield.as_deref()) {
            tracing::warn!("{warning}");
        }
        StartConfig { config, file: Arc::new(file), overrides, state, shield, commit }
    }
}

/// Opens everything that can fail before packets are touched.
///
/// # Errors
/// With the path, for the caller to close.
pub async fn prepare(
    start_config: StartConfig,
    mut datapath: DatapathThread,
    from_path: mpsc::UnboundedReceiver<DatapathEvent>,
) -> Result<(Daemon, Found), (Error, DatapathThread)> {
    match assemble(&start_config, &mut datapath).await {
        Ok(parts) => Ok(parts.into_daemon(start_config, datapath, from_path)),
        Err(error) => Err((error, datapath)),
    }
}

/// Parts that are assembled around the path.
struct Parts {
    interfaces: Vec<ringway_kernel::Interface>,
    backend_set: BackendSet,
    watch: NetlinkWatch,
    found: Found,
    status_store: Arc<StatusStore>,
    probe_tunnel: Option<ProbeTunnel>,
    commands: mpsc::Receiver<Request>,
    shield_changes: mpsc::Receiver<ShieldRequest>,
}

async fn assemble(
    start_config: &StartConfig,
    datapath: &mut DatapathThread,
) -> Result<Parts, Error> {
    let config = &start_config.config;
    let mut status_store = StatusStore::new(&config.node.name, Some(datapath.view.clone()));
    status_store.commit = start_config.commit;
    let status_store = Arc::new(status_store);
    let held = datapath.view.interfaces().map_err(crate::daemon::datapath_thread::kernel)?;
    let (slots, interfaces) = next_hop::interfaces(&config.node, &held)?;
    let at = Moment::now();
    let mut backend_set = BackendSet::new(config, at.now);
    backend_set.mark(&start_config.file, &start_config.overrides);
    if datapath.opened.taken_over.is_some() {
        inherit(&mut backend_set, at, datapath)?;
    }
    let probe_tunnel = ProbeTunnel::open(config, &backend_set.ids(), &mut datapath.probe)?;
    // Watching begins before the first look, so that no change is missed.
    let mut watch = NetlinkWatch::start(slots.clone())?;
    if let Some(address) = &config.metrics.listen {
        let choose = config.to_set(Setting::MetricsAddress);
        let listener = metrics::listen(**address, &choose).await?;
        let most = config.metrics.backends as usize;
        tokio::spawn(metrics::serve(listener, status_store.clone(), most));
    }
    // The last that can fail, so that no start that failed leaves a socket behind.
    let choose = config.to_set(Setting::Socket);
    let socket = server::api::listen(&config.api.socket, &choose)?;
    // Commands that are given only the node's name find it there.
    if let Some(pins) = datapath.view.pins()
        && let Err(error) = pins.note_socket(&config.api.socket)
    {
        tracing::warn!(%error, "commands need -c FILE to find the API socket");
    }
    let (changes, commands) = mpsc::channel(control::WAITING);
    let (shield, shield_changes) = mpsc::channel(control::WAITING);
    let control = Control { changes, shield };
    tokio::spawn(server::api::serve(socket, status_store.clone(), control));
    let found = netlink_watch::read_network(
        &slots,
        &backend_set.addresses(),
        &Default::default(),
        &Default::default(),
    );
    let found = found.map_err(|error| Error::failed(error.to_string(), ""))?;
    watch.note(&found);
    Ok(Parts {
        interfaces,
        backend_set,
        watch,
        found,
        status_store,
        probe_tunnel,
        commands,
        shield_changes,
    })
}

impl Parts {
    fn into_daemon(
        self,
        start_config: StartConfig,
        mut datapath: DatapathThread,
        from_path: mpsc::UnboundedReceiver<DatapathEvent>,
    ) -> (Daemon, Found) {
        let StartConfig { config, file, overrides, state: state_dir, shield: plan, .. } =
            start_config;
        let (at, health_file) = (Moment::now(), HealthFile::new(state_dir.clone()));
        let mut backend_set = self.backend_set;
        if datapath.opened.taken_over.is_some() {
            let before = datapath.view.daemon().ok().flatten();
            let saved = health_file.read(before.map(|daemon| daemon.alive));
            backend_set.restore(saved, at.now, at.wall);
        }
        let (send, results) = mpsc::channel(1024);
        let background =
            Background::new(self.status_store.clone(), datapath.view.clone(), config.clone());
        let program_runner = ProgramRunner::new(self.status_store.clone());
        let routes = self.probe_tunnel.as_ref().map(ProbeTunnel::routes).unwrap_or_default();
        let checks = Checks::start(backend_set.targets(&routes), &send);
        let (send, cookie_results) = mpsc::channel(1024);
        let mut cookie_checks = CookieChecks::new(send);
        cookie_checks.set_key(plan.as_ref().and_then(|plan| plan.secret.key));
        cookie_checks.follow(backend_set.cookie_targets(&routes));
        let (interfaces, patience) = (self.interfaces, commit_confirm::patience_now());
        let recalled = !state_dir.trouble(overrides::DOCUMENT);
        // From here on backends have their time for a first check, however slow the disk was.
        let at = Moment::now();
        let shield = RuntimeShield::load(&state_dir, at.now, at.wall);
        let shield = shield.map_or_else(|error| recovered(&datapath, &state_dir, at, &error), Some);
        let shield = Shield::new(shield, plan);
        let reload = Reload::new(config, file, overrides, recalled, at.wall);
        let daemon = Daemon {
            state: State::new(reload, shield, interfaces, backend_set, patience, at),
            commands: self.commands,
            requests: PendingRequests::default(),
            shield_changes: self.shield_changes,
            shield_requests: PendingRequests::default(),
            loader: ConfigLoader::new(),
            writer: DocumentWriter::new(state_dir.clone(), overrides::DOCUMENT),
            shield_writer: DocumentWriter::new(state_dir.clone(), shield::DOCUMENT),
            probe_routes: ProbeRoutes::new(self.probe_tunnel, datapath.probe.take()),
            state_dir,
            datapath,
            from_path,
            watch: self.watch,
            results,
            checks,
            cookie_results,
            cookie_checks,
            status_store: self.status_store,
            health_file,
            notifier: Notifier::from_env(),
            background,
            program_runner,
            log_limiter: LogLimiter::default(),
        };
        (daemon, self.found)
    }
}

/// What was typed about the shield cannot be read: the packet path of a daemon before this one has
/// it, without reasons, and it is kept anew. None: there is no such path.
fn recovered(
    datapath: &DatapathThread,
    state_dir: &StateDir,
    at: Moment,
    error: &Error,
) -> Option<RuntimeShield> {
    let read = |view: &View| {
        let now = ringway_kernel::now_seconds();
        let left = |until: u32| Duration::from_secs(until.saturating_sub(now).into());
        let prefixes = view.runtime_prefixes()?.into_iter().map(|it| {
            let action = if it.allow { ListAction::Allow } else { ListAction::Block };
            (it.prefix, action, (it.until != u32::MAX).then(|| left(it.until)))
        });
        let mode = view.shield_override()?;
        let mode = mode.map(|(mode, left)| (mode, Duration::from_secs(left.into())));
        Ok::<_, ringway_kernel::Error>(RuntimeShield::recovered(prefixes, mode, at.now, at.wall))
    };
    let found = datapath.opened.taken_over.as_ref().map(|_| read(&datapath.view));
    match found {
        Some(Ok(shield)) => {
            let prefixes = counted(shield.entries.len(), "prefix");
            let unread = set_aside(state_dir).unwrap_or_else(|also| format!("not kept: {also}"));
            tracing::warn!(
                %error, unread,
                "what was blocked and allowed at run time is not read: the packet path still has \
                 {prefixes}, which stay in force without their reasons, and are kept anew"
            );
            Some(shield)
        }
        Some(Err(also)) => {
            tracing::error!(%error, %also, "what was blocked and allowed at run time is not read: it is not in force");
            None
        }
        None => {
            tracing::error!(%error, "what was blocked and allowed at run time is not read: it is not in force");
            None
        }
    }
}

/// Gives what cannot be read a second name, under which it outlives the next writing; the name.
fn set_aside(state_dir: &StateDir) -> io::Result<String> {
    let path = state_dir.directory().join(shield::DOCUMENT).with_extension("json");
    let unread = path.with_extension("json.unread");
    match fs::remove_file(&unread) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::hard_link(&path, &unread)?,
    }
    Ok(unread.display().to_string())
}

/// Until their first checks, backends keep the health they had.
fn inherit(
    backend_set: &mut BackendSet,
    at: Moment,
    datapath: &DatapathThread,
) -> Result<(), Error> {
    let states = datapath.view.services().map_err(crate::daemon::datapath_thread::kernel)?;
    backend_set.inherit(at.now, |entry: &Entry, member: &Member| {
        let same = states
            .iter()
            .filter(|state| state.key.address == entry.address && state.key.port == entry.port);
        let all = same.flat_map(|state| &state.backends);
        let found = all.filter(|backend| backend.address == member.endpoint);
        // Only TCP connections are kept.
        found.map(left).max_by_key(|health| *health == ringway_plan::Health::Kept)
    });
    Ok(())
}

fn left(backend: &BackendState) -> ringway_plan::Health {
    match (backend.up, backend.kept) {
        (true, _) => ringway_plan::Health::Up,
        (false, true) => ringway_plan::Health::Kept,
        (false, false) => ringway_plan::Health::Down,
    }
}

/// Takes away what a first start that failed has made; of a running packet path, nothing.
pub fn undo(node: &str, fresh: bool) {
    if fresh && let Err(error) = ringway_kernel::detach(Path::new(DEFAULT_BPFFS), node) {
        tracing::warn!(%error, "not cleaned up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::document_writer::tests::drained;
    use crate::testing::gateway;

    #[test]
    fn overrides_of_another_version_are_neither_believed_nor_overwritten() {
        let place = tempfile::tempdir().expect("a directory");
        let backends = "backends = [{ address = \"10.0.0.1\" }]";
        let file = gateway(&format!("state = {:?}", place.path()), backends);
        let other = Overrides { schema: "ringway.overrides/9".into(), ..drained(1) };
        StateDir::new(place.path()).write(overrides::DOCUMENT, &other).expect("written");
        let start = StartConfig::new(file, None);
        assert_eq!((start.overrides, start.config), (Overrides::default(), start.file));
        // What is overridden now would have to be added to what is on the disk.
        assert!(start.state.trouble(overrides::DOCUMENT));
        assert!(Overrides::load(&start.state).is_err());
    }

    #[test]
    fn a_shield_that_cannot_be_read_outlives_the_next_writing() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path());
        assert!(set_aside(&state).is_err(), "there is none");
        for unread in ["{", "of another version"] {
            fs::write(place.path().join("shield.json"), unread).expect("written");
            let name = set_aside(&state).expect("set aside");
            assert_eq!(name, place.path().join("shield.json.unread").display().to_string());
            state.write(shield::DOCUMENT, &RuntimeShield::default()).expect("written");
            assert_eq!(fs::read_to_string(&name).expect("there"), unread);
        }
    }

    #[test]
    fn a_start_needs_descriptors() {
        let refused = enough_files(Some(90)).expect_err("too few").to_string();
        for word in ["is 90", "needs 512", "ulimit -n 512", "LimitNOFILE="] {
            assert!(refused.contains(word), "{refused}");
        }
        for enough in [Some(512), None] {
            assert_eq!(enough_files(enough), Ok(()));
        }
    }
}
