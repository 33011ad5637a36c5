//! From a configuration to a daemon that is ready to attach.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::SystemTime;

use ringway_config::{Config, XdpMode};
use ringway_kernel::{Attached, DEFAULT_BPFFS, Opened, OrphanCause};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::looks::Looks;
use super::path::{Path, Report};
use super::watch::{self, Watch};
use super::{Daemon, FIRST_RESULTS};
use crate::api::control::{self, Command};
use crate::board::Board;
use crate::health::{Checks, Keeper};
use crate::notify::Notifier;
use crate::overrides::{self, Overrides};
use crate::preflight;
use crate::problem::{Error, Kind};
use crate::road::Road;
use crate::roster::{Entry, Member, Roster};
use crate::state::State;
use crate::{api, metrics, next_hop};

/// Thousands of health checks need as many descriptors.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::debug!(%error, "limit of open files not raised");
    }
}

/// Looks at the machine; what is not well is logged.
///
/// # Errors
/// Something forbids a start.
pub fn preflight(config: &Config) -> Result<(), Error> {
    let report = preflight::run(config);
    for finding in &report.findings {
        let preflight::Finding { check, subject, reason, fix, .. } = finding;
        match finding.state {
            preflight::State::Ok => tracing::debug!(check, subject, "{reason}"),
            preflight::State::Unknown => tracing::info!(check, subject, fix, "not known: {reason}"),
            preflight::State::Warn => tracing::warn!(check, subject, fix, "{reason}"),
            // All of them are told together below.
            preflight::State::Fail => tracing::debug!(check, subject, fix, "{reason}"),
        }
        if finding.check == "answers" && finding.state == preflight::State::Ok {
            tracing::info!(service = subject, "who answers for the address: {reason}");
        }
    }
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    if failures.is_empty() {
        return Ok(());
    }
    let at_fault = report.failures().any(|finding| finding.place.is_some());
    let kind = if at_fault { Kind::Configuration } else { Kind::Failed };
    let what = format!("this machine is not fit for this configuration:\n{}", failures.join("\n"));
    Err(Error { kind, what, remedy: String::new() })
}

/// Says what was found in the kernel.
pub fn tell(opened: &Opened) {
    for orphan in &opened.orphans {
        let there = || ringway_host::links::by_name(&orphan.iface).is_ok();
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
pub struct Begun {
    /// With overrides.
    pub config: Arc<Config>,
    /// As it is written.
    pub file: Arc<Config>,
    /// As they were kept.
    pub overrides: Overrides,
    /// Where they were.
    pub state: Arc<State>,
}

impl Begun {
    /// Overrides that were kept go over what the file says.
    pub fn new(file: Config) -> Begun {
        let state = Arc::new(State::new(file.node.state.clone().into_inner()));
        let overrides = Overrides::load(&state).unwrap_or_else(|error| {
            tracing::error!(%error, "overrides not read: the file's weights are in force");
            Overrides::default()
        });
        // So that one that is read-only is told before something is to be kept: it is remembered.
        if !state.trouble(overrides::DOCUMENT) {
            let _ = state.probe(overrides::DOCUMENT);
        }
        let config = Arc::new(overrides.apply(&file));
        Begun { config, file: Arc::new(file), overrides, state }
    }
}

/// Opens everything that can fail before packets are touched.
///
/// # Errors
/// With the path, for the caller to close.
pub async fn prepare(
    begun: Begun,
    mut path: Path,
    from_path: mpsc::UnboundedReceiver<Report>,
) -> Result<Daemon, (Error, Path)> {
    match assemble(&begun, &mut path).await {
        Ok(parts) => Ok(parts.into_daemon(begun, path, from_path)),
        Err(error) => Err((error, path)),
    }
}

/// What is assembled around the path.
struct Parts {
    interfaces: Vec<ringway_kernel::Interface>,
    roster: Roster,
    watch: Watch,
    found: watch::Found,
    board: Arc<Board>,
    road: Option<Road>,
    commands: mpsc::Receiver<Command>,
}

async fn assemble(begun: &Begun, path: &mut Path) -> Result<Parts, Error> {
    let config = &begun.config;
    let board = Arc::new(Board::new(&config.node.name, Some(path.view.clone())));
    let held = path.view.interfaces().map_err(super::path::kernel)?;
    let (slots, interfaces) = next_hop::interfaces(&config.node.interfaces, &held)?;
    let mut roster = Roster::new(config);
    roster.mark(&begun.file, &begun.overrides);
    if path.opened.taken_over.is_some() {
        inherit(&mut roster, path)?;
    }
    let road = Road::open(config, &roster.ids(), &mut path.probe)?;
    // Watching begins before the first look, so that no change is missed.
    let watch = Watch::start(slots.clone())?;
    if let Some(address) = &config.metrics.listen {
        let listener = metrics::listen(**address).await?;
        let most = config.metrics.backends as usize;
        tokio::spawn(metrics::serve(listener, board.clone(), most));
    }
    // The last that can fail, so that no start that failed leaves a socket behind.
    let socket = api::server::listen(&config.api.socket)?;
    // Whoever names the node alone finds it there.
    if let Some(pins) = path.view.pins()
        && let Err(error) = pins.note_socket(&config.api.socket)
    {
        tracing::warn!(%error, "commands need -c FILE to find the API socket");
    }
    let (control, commands) = mpsc::channel(control::WAITING);
    tokio::spawn(api::server::serve(socket, board.clone(), control));
    let found = watch::look(&slots, &roster.addresses(), &Default::default());
    let found = found.map_err(|error| Error::failed(error.to_string(), ""))?;
    Ok(Parts { interfaces, roster, watch, found, board, road, commands })
}

impl Parts {
    fn into_daemon(
        self,
        begun: Begun,
        path: Path,
        from_path: mpsc::UnboundedReceiver<Report>,
    ) -> Daemon {
        let Begun { config, file, overrides, state } = begun;
        let keeper = Keeper::new(state.clone());
        let mut roster = self.roster;
        if path.opened.taken_over.is_some() {
            let before = path.view.daemon().ok().flatten();
            roster.recall(keeper.read(before.map(|daemon| daemon.alive)));
        }
        let (send, results) = mpsc::channel(1024);
        let looks = Looks::new(self.board.clone(), path.view.clone(), config.clone());
        let lanes = self.road.as_ref().map(Road::lanes).unwrap_or_default();
        let checks = Checks::start(roster.targets(&lanes), &send);
        let mut daemon = Daemon {
            config,
            file,
            read_at: SystemTime::now(),
            overrides,
            state,
            commands: self.commands,
            judged: mpsc::unbounded_channel(),
            change: None,
            hung_up: false,
            rising: false,
            last_reload: None,
            reloads: Default::default(),
            path,
            from_path,
            interfaces: self.interfaces,
            roster,
            kept: Default::default(),
            watch: self.watch,
            results,
            checks,
            lost_authorities: Vec::new(),
            road: self.road,
            road_error: None,
            board: self.board,
            keeper,
            notifier: Notifier::from_env(),
            attached: false,
            attach_by: Instant::now() + FIRST_RESULTS,
            modes: Default::default(),
            standings: Default::default(),
            gone: Default::default(),
            existing: Default::default(),
            mending: false,
            mend_error: None,
            again: Default::default(),
            alarm: Default::default(),
            looks,
            silence: Default::default(),
            machine: Default::default(),
            beaten: Instant::now(),
            beat_error: None,
            apply_error: None,
            told_ready: false,
            told: super::told::Told::default(),
            ticks: 0,
            ticked: Instant::now(),
            due: None,
        };
        daemon.ways(self.found);
        daemon
    }
}

/// Until their first checks, backends keep the health they had.
fn inherit(roster: &mut Roster, path: &Path) -> Result<(), Error> {
    let states = path.view.services().map_err(super::path::kernel)?;
    roster.inherit(|entry: &Entry, member: &Member| {
        let mut same = states
            .iter()
            .filter(|state| state.key.address == entry.address && state.key.port == entry.port);
        let backend = same.find_map(|state| {
            state.backends.iter().find(|backend| backend.address == member.endpoint)
        })?;
        Some(backend.up)
    });
    Ok(())
}

/// Takes away what a first start that failed has made; of a running packet path, nothing.
pub fn undo(node: &str, fresh: bool) {
    if fresh && let Err(error) = ringway_kernel::detach(FilePath::new(DEFAULT_BPFFS), node) {
        tracing::warn!(%error, "not cleaned up");
    }
}

/// Why the mode is what it is, for people. `without_native`: an interface that has none, and why.
pub fn why(asked: XdpMode, attached: &Attached, without_native: Option<&str>) -> String {
    match (&attached.refused, asked, without_native) {
        (Some(refused), ..) => refused.to_string(),
        (None, XdpMode::Auto, Some(other)) => {
            format!("auto: native XDP cannot send to {other}")
        }
        (None, XdpMode::Auto, None) if attached.taken_over => {
            "as it was before; xdp_mode or `ringway detach` changes it".into()
        }
        (None, XdpMode::Auto, None) => "auto: the driver takes it".into(),
        (None, XdpMode::Native | XdpMode::Generic, _) => "as configured".into(),
    }
}
