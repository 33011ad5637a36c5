//! Finds out how a node is: from its daemon, or from its pins when none runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_config::Identity;
use ringway_host::{Mac, links};
use ringway_kernel::{DEFAULT_BPFFS, InterfaceState, Pins, ServiceState, View, bpffs_is_hidden};

use crate::api::client;
use crate::board;
use crate::clock;
use crate::elsewhere;
use crate::health::Health;
use crate::problem::Error;
use crate::ready::{self, Readiness};
use crate::started;
use crate::status::{
    Backend, Daemon, FlowTable, Interface, NextHop, Problem, SCHEMA, Service, Status,
};
use crate::trouble::Trouble;

/// How long a daemon may take to say how it is. One that is silent for longer and whose heart does not beat hangs.
const PATIENCE: Duration = ready::FRESH;

/// Which node is meant.
#[derive(Clone, Copy, Debug)]
pub struct Whom<'a> {
    /// The configuration that names it.
    pub config: Option<&'a Path>,
    /// Its name.
    pub node: Option<&'a str>,
}

/// A node's name and where its daemon may listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub node: String,
    /// API sockets that may be its daemon's, the likeliest first.
    pub sockets: Vec<PathBuf>,
    /// Its configuration file, where one was named.
    pub file: Option<PathBuf>,
    /// Nobody named it: it is the only one on this machine.
    pub guessed: bool,
    /// It is of another network namespace, see [`elsewhere::enter`]; looked at only where nobody named it.
    pub elsewhere: Option<String>,
}

impl Whom<'_> {
    /// Finds the node: by the given configuration, by name, by the default configuration if there
    /// is one, or the only one that is pinned. Asks nobody.
    ///
    /// # Errors
    /// The configuration is wrong, or it is not clear which node is meant.
    pub fn find(&self) -> Result<Target, Error> {
        self.find_beside(Path::new(ringway_config::DEFAULT_PATH))
    }

    fn find_beside(&self, default: &Path) -> Result<Target, Error> {
        if let Some(path) = self.config {
            return Ok(Target { file: Some(path.to_owned()), ..configured(path)? });
        }
        if let Some(name) = self.node {
            let by_default = ringway_config::identity(default);
            let same = by_default.node.as_deref() == Some(name);
            return Ok(Target::new(name, same.then_some(by_default.socket)));
        }
        if default.exists() { configured(default) } else { only_one() }
    }
}

impl Target {
    /// `configured`: where its configuration says that it listens.
    fn new(node: &str, configured: Option<PathBuf>) -> Target {
        let noted = Pins::new(DEFAULT_BPFFS, node).ok().and_then(|pins| pins.socket());
        let default = configured.is_none().then(|| PathBuf::from(ringway_config::DEFAULT_SOCKET));
        let mut sockets: Vec<PathBuf> = Vec::new();
        for socket in [configured, noted, default].into_iter().flatten() {
            if !sockets.contains(&socket) {
                sockets.push(socket);
            }
        }
        Target { node: node.to_owned(), sockets, file: None, guessed: false, elsewhere: None }
    }

    /// The socket where this node's daemon answers.
    ///
    /// # Errors
    /// None does, and why.
    pub fn daemon(&self) -> Result<&Path, Error> {
        self.is_meant()?;
        let mut stranger = None;
        for socket in &self.sockets {
            match client::get::<Readiness>(socket, "/v1/ready") {
                Ok(found) if found.node == self.node => return Ok(socket),
                Ok(found) => stranger = stranger.or(Some((socket, found.node))),
                Err(client::Failure::NotRunning) => {}
                Err(client::Failure::Late(error) | client::Failure::Failed(error)) => {
                    return Err(error);
                }
            }
        }
        match stranger {
            Some((socket, other)) if self.file.is_some() => {
                Err(anothers(socket, &other, &self.node))
            }
            _ => Err(self.silent()),
        }
    }

    /// An order that names no node is hardly for one of another network namespace.
    fn is_meant(&self) -> Result<(), Error> {
        let Some(enter) = &self.elsewhere else { return Ok(()) };
        let Problem { error, .. } = stranger(&self.node, enter);
        Err(Error::configuration(
            format!("{error}: nothing was done"),
            format!("if it is meant, add --node {}; `{enter} ringway status` shows it", self.node),
        ))
    }

    /// Nobody answers for the node, by what its pins tell.
    pub fn silent(&self) -> Error {
        match View::open(Path::new(DEFAULT_BPFFS), &self.node) {
            Err(ringway_kernel::Error::NotLoaded { known, .. }) if !known.is_empty() => {
                not_loaded(&self.node, &known, false, enter_node)
            }
            view => {
                let last = view.ok().and_then(|view| view.daemon().ok().flatten());
                match last.filter(|last| last.running) {
                    Some(last) if !lives(last.pid) => Error::unhealthy(
                        format!("the daemon of node {} is starting", self.node),
                        "ask again in a moment",
                    ),
                    last => silent(&self.node, last.map(|last| last.pid)),
                }
            }
        }
    }
}

fn stranger(node: &str, enter: &str) -> Problem {
    Trouble::OtherNamespace.problem(
        format!(
            "no node was named, and the only one on this machine, {node}, is of another network namespace"
        ),
        format!("if it is not the one you mean, name yours with --node or -c; there: `{enter} ringway status`"),
    )
}

/// Whether there is such a process. A daemon that starts has the node's lock before it has beaten for the first time: until then
/// the last beat is that of the one before.
fn lives(pid: u64) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// A configuration's own socket is that of a daemon of another name.
fn anothers(socket: &Path, other: &str, node: &str) -> Error {
    Error::configuration(
        format!("API socket {} is node {other}'s, not {node}'s", socket.display()),
        format!(
            "give each node its own [api] socket; if {other} was renamed in the file: it keeps its name until `ringway detach --node {other}`, \
             which ends all connections, and a new start; --node {other} asks it meanwhile"
        ),
    )
}

fn silent(node: &str, pid: Option<u64>) -> Error {
    match pid {
        Some(pid) => Error::failed(
            format!("the daemon of node {node} runs as process {pid} with another API socket"),
            "name its configuration with -c FILE; one that is starting listens in a moment",
        ),
        None => Error::unhealthy(
            format!("the daemon of node {node} does not run"),
            "start it with `ringway run`: it reads its configuration and what was overridden",
        ),
    }
}

/// The file need not be right: a daemon may run by what it was before somebody began to change it.
fn configured(path: &Path) -> Result<Target, Error> {
    let Identity { node, socket } = ringway_config::identity(path);
    if let Some(node) = node {
        return Ok(Target::new(&node, Some(socket)));
    }
    let wrong = ringway_config::load(path).err().map(|errors| errors.to_string());
    Err(Error::configuration(
        wrong.unwrap_or_else(|| format!("{}: no [node] name", path.display())),
        "give another file with -c FILE, or name the node with --node NAME",
    ))
}

fn enter_node(node: &str) -> Option<String> {
    elsewhere::enter(&View::open(Path::new(DEFAULT_BPFFS), node).ok()?)
}

fn only_one() -> Result<Target, Error> {
    // Not being allowed to look is not the same as nothing being there.
    let known = Pins::new(DEFAULT_BPFFS, "any").and_then(|pins| pins.known_nodes());
    let known = known.map_err(|error| Error::failed(error.to_string(), ""))?;
    match known.as_slice() {
        [node] => {
            Ok(Target { guessed: true, elsewhere: enter_node(node), ..Target::new(node, None) })
        }
        [] => Err(Error::unhealthy(
            "daemon not running, and nothing of Ringway is loaded on this machine",
            format!("start it with `ringway run`; configuration: {}", ringway_config::DEFAULT_PATH),
        )),
        nodes => Err(Error::configuration(
            format!("several nodes are loaded here: {}", nodes.join(", ")),
            "say which with --node NAME or --config FILE",
        )),
    }
}

/// The node's status.
///
/// # Errors
/// Nothing is known about it, or the daemon's answer is no use.
pub fn status(whom: &Whom<'_>) -> Result<Status, Error> {
    let target = whom.find()?;
    let mut status = status_of(whom, &target)?;
    if let Some(enter) = &target.elsewhere {
        status.findings.insert(0, stranger(&target.node, enter));
    }
    Ok(status)
}

fn status_of(whom: &Whom<'_>, target: &Target) -> Result<Status, Error> {
    let mut stranger = None;
    for socket in &target.sockets {
        match ask(socket, &target.node) {
            Ok(status) if status.node == target.node => return Ok(status),
            Ok(status) => stranger = stranger.or(Some((socket, status.node))),
            Err(client::Failure::NotRunning) => {}
            Err(client::Failure::Late(error)) => return from_pins(&target.node, Some(&error)),
            Err(client::Failure::Failed(error)) => return Err(error),
        }
    }
    match stranger {
        Some((socket, other)) if whom.config.is_some() => {
            Err(anothers(socket, &other, &target.node))
        }
        _ => from_pins(&target.node, None),
    }
}

fn ask(socket: &Path, node: &str) -> Result<Status, client::Failure> {
    let beats = || {
        let view = View::open(Path::new(DEFAULT_BPFFS), node).ok();
        let last = view.and_then(|view| view.daemon().ok().flatten());
        last.is_some_and(|last| last.running && ready::is_fresh(last.alive))
    };
    match client::get_at_once(socket, "/v1/status", PATIENCE) {
        // It is busy, or the machine is: what it says is worth waiting for.
        Err(client::Failure::Late(_)) if beats() => client::get(socket, "/v1/status"),
        answer => answer,
    }
}

/// A node's tables, which are there with or without a daemon.
///
/// # Errors
/// Nothing is loaded for the node, or it is not for us to look at.
pub fn view(node: &str) -> Result<View, Error> {
    View::open(Path::new(DEFAULT_BPFFS), node).map_err(|error| match error {
        ringway_kernel::Error::NotLoaded { known, .. } => {
            not_loaded(node, &known, bpffs_is_hidden(Path::new(DEFAULT_BPFFS)), enter_node)
        }
        error => Error::failed(error.to_string(), ""),
    })
}

/// `known`: nodes that are loaded. `hidden`: this process cannot see any. `enter`: how to get where a node is, if that
/// is elsewhere.
fn not_loaded(
    node: &str,
    known: &[String],
    hidden: bool,
    enter: impl Fn(&str) -> Option<String>,
) -> Error {
    match known {
        [] if hidden => Error::unhealthy(
            format!(
                "daemon not running, and what is loaded for node {node} cannot be seen here: this process has no {DEFAULT_BPFFS}"
            ),
            format!(
                "if it was started by `ip netns exec`, which hides that: `{} ringway status --node {node}` does not",
                elsewhere::here()
            ),
        ),
        [] => Error::unhealthy(
            format!("daemon not running, and nothing is loaded for node {node}"),
            "start it with `ringway run`",
        ),
        [one] => {
            let (place, before) = match enter(one) {
                Some(enter) => (", of another network namespace", format!("{enter} ")),
                None => ("", String::new()),
            };
            Error::unhealthy(
                format!("there is no node {node:?} on this machine; there is {one:?}{place}"),
                format!(
                    "`{before}ringway status --node {one}` shows that one; or start {node} with `ringway run`"
                ),
            )
        }
        several => Error::unhealthy(
            format!("there is no node {node:?} on this machine; there are {}", several.join(", ")),
            format!("name one of them with --node; or start {node} with `ringway run`"),
        ),
    }
}

/// A node's interfaces. For a VLAN device nothing is pinned, and what is pinned for one whose program was taken off
/// no longer says which it is: these have the name that the system has for them here.
pub(crate) fn interfaces(view: &View) -> ringway_kernel::Result<Vec<InterfaceState>> {
    let named = |mut state: InterfaceState| {
        state.name = state.name.or_else(|| system_name(state.ifindex, state.mac));
        state
    };
    Ok(view.interfaces()?.into_iter().map(named).collect())
}

/// Another network namespace may have the number for another device.
fn system_name(ifindex: u32, mac: [u8; 6]) -> Option<String> {
    let link = links::by_index(ifindex).ok()?;
    // Without an Ethernet header there is none, and the packet path has zeroes.
    (link.mac.unwrap_or(Mac([0; 6])) == Mac(mac)).then_some(link.name)
}

/// What the pins tell, when no daemon does. `late`: one listens, and did not answer in time.
fn from_pins(node: &str, late: Option<&Error>) -> Result<Status, Error> {
    let view = view(node)?;
    let read = || -> ringway_kernel::Result<Status> {
        let mut status = Status {
            schema: SCHEMA.to_owned(),
            node: node.to_owned(),
            // Nobody checks whether it is not.
            degraded: true,
            from_pins: true,
            daemon: last_daemon(&view)?,
            ..Status::default()
        };
        let states = interfaces(&view)?;
        status.interfaces = states.iter().map(interface).collect();
        for (place, state) in states.iter().enumerate() {
            board::count(&mut status, place, &state.ledger);
        }
        let table = board::flow_table(&view)?;
        let shown = |state: &ServiceState| service(state, &states, &table);
        status.services = view.services()?.iter().map(shown).collect();
        status.flow_table = Some(table);
        status.tracked = Some(board::tracked(&view)?);
        status.captures = board::captures(&view);
        if !view.counts_losses()? {
            let names: Vec<&str> = status.interfaces.iter().map(|i| i.name.as_str()).collect();
            status.findings.push(board::losses_uncounted(None, &names));
        }
        let beat = view.daemon()?.and_then(|daemon| daemon.alive.elapsed().ok());
        let late = late.map(|error| Late { error, beat });
        status.problems = problems(&status, late.as_ref(), elsewhere::enter(&view).as_deref());
        status.unready.clone_from(&status.problems);
        Ok(status)
    };
    read().map_err(|error| Error::failed(error.to_string(), ""))
}

fn last_daemon(view: &View) -> ringway_kernel::Result<Daemon> {
    let Some(last) = view.daemon()? else { return Ok(Daemon::default()) };
    if last.running && !lives(last.pid) {
        return Ok(Daemon { running: true, ..Daemon::default() });
    }
    Ok(Daemon {
        running: last.running,
        pid: Some(last.pid),
        since: Some(clock::rfc3339(if last.running { last.started } else { last.alive })),
        ..Daemon::default()
    })
}

/// A daemon that listens, and did not answer in time.
struct Late<'e> {
    error: &'e Error,
    /// How old its heartbeat is.
    beat: Option<Duration>,
}

impl Late<'_> {
    fn problem(&self, pid: u64) -> Problem {
        let busy = self.beat.filter(|age| *age < board::HANGS);
        let restart = started::restart(pid, true);
        let (means, remedy) = match busy {
            _ if started::is_stopped(pid) => (
                "a signal or a debugger has stopped it".to_owned(),
                format!("kill -CONT {pid} lets it go on; or {restart}; no packet is lost"),
            ),
            Some(age) => (
                format!(
                    "its last heartbeat is {} s old: it, or this machine, is busy",
                    age.as_secs()
                ),
                format!(
                    "ask again in a moment, and look at `uptime`; if that is {} s old then, it hangs: {restart}",
                    board::HANGS.as_secs()
                ),
            ),
            None => ("it hangs".to_owned(), format!("{restart}; no packet is lost")),
        };
        let what = &self.error.what;
        Trouble::DaemonSilent.problem(
            format!(
                "the daemon (process {pid}) does not answer ({what}), {means}; nobody checks the backends; this \
                 is what the pins tell"
            ),
            remedy,
        )
    }
}

/// `enter`: how to get where the node is, if that is elsewhere.
fn problems(status: &Status, late: Option<&Late<'_>>, enter: Option<&str>) -> Vec<Problem> {
    let since = status.daemon.since.as_deref().unwrap_or("an unknown time");
    let pid = status.daemon.pid.unwrap_or_default();
    let mut problems = vec![match (status.daemon.running, late) {
        (true, _) if status.daemon.pid.is_none() => Trouble::Starting.problem(
            "a daemon is starting and does not answer yet; this is what the pins tell",
            "ask again in a moment",
        ),
        (true, Some(late)) => late.problem(pid),
        (false, _) => Trouble::DaemonNotRunning.problem(
            format!("daemon not running since {since}: nobody checks the backends"),
            "start it again (`systemctl start ringway`, or `ringway run` as it was started); it takes over \
             without losing a packet",
        ),
        (true, None) => Trouble::DaemonSilent.problem(
            format!(
                "the daemon (process {pid}) was not asked: its API socket is not known, or does \
                 not answer; this is what the pins tell"
            ),
            format!(
                "name its configuration with -c FILE, as it was started; if it hangs: {}",
                started::restart(pid, true)
            ),
        ),
    }];
    let there = match enter {
        Some(enter) if status.daemon.running => {
            format!("it is elsewhere: `{enter} ringway status --node {}`", status.node)
        }
        Some(enter) => format!(
            "start the daemon: it attaches again by itself; if the node is elsewhere: `{enter} ringway status --node {}`",
            status.node
        ),
        None => "start the daemon: it attaches again by itself".to_owned(),
    };
    for interface in status.interfaces.iter().filter(|interface| !interface.attached) {
        problems.push(Trouble::NotAttached.problem(
            format!(
                "{}: our program is not attached, or not visible from this network namespace",
                interface.name
            ),
            &there,
        ));
    }
    problems
}

fn interface(state: &InterfaceState) -> Interface {
    Interface {
        name: state.name.clone().unwrap_or_else(|| format!("ifindex {}", state.ifindex)),
        ifindex: state.ifindex,
        slot: state.slot,
        attached: state.mode.is_some(),
        mode: state.mode.map(|mode| mode.name().to_owned()).unwrap_or_default(),
        ..Interface::default()
    }
}

fn service(state: &ServiceState, interfaces: &[InterfaceState], table: &FlowTable) -> Service {
    let name = |slot: u32| {
        let found = interfaces.iter().find(|interface| interface.slot == slot);
        found.and_then(|interface| interface.name.clone()).unwrap_or_default()
    };
    let backends = state.backends.iter().map(|backend| {
        let mut shown = Backend {
            address: backend.address.ip().to_string(),
            port: backend.address.port(),
            last_health: Some(if backend.up { Health::Up } else { Health::Down }),
            next_hop: backend.next_hop.map(|hop| NextHop {
                interface: name(hop.iface),
                mac: Mac(hop.mac).to_string(),
                mtu_bytes: hop.mtu,
            }),
            ..Backend::default()
        };
        if backend.up && backend.next_hop.is_none() {
            shown.reason = Some("no way to it was known".into());
        }
        board::add_traffic(&mut shown, &backend.traffic);
        shown.current_flows = board::flows_now(state, backend, Some(&table.by_backend));
        shown
    });
    let backends: Vec<Backend> = backends.collect();
    Service {
        name: state.name.clone(),
        address: state.key.address.to_string(),
        port: state.key.port,
        last_port: state.key.last_port,
        protocol: match state.key.protocol {
            ringway_plan::tables::Protocol::Tcp => "tcp".into(),
            ringway_plan::tables::Protocol::Udp => "udp".into(),
        },
        forward: state.forward.to_string(),
        source: if state.source_client || state.forward.is_dsr() {
            "client".into()
        } else {
            "node".into()
        },
        answers: String::new(),
        current_flows: backends.iter().map(|backend| backend.current_flows).sum(),
        rates: None,
        backends,
    }
}

#[cfg(test)]
mod tests;
