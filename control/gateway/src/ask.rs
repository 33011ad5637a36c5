//! Finds out how a node is: from its daemon, or from its pins when none runs.

use std::path::{Path, PathBuf};

use ringway_config::Identity;
use ringway_host::Mac;
use ringway_kernel::{DEFAULT_BPFFS, InterfaceState, Pins, ServiceState, View};

use crate::api::client;
use crate::board;
use crate::clock;
use crate::health::Health;
use crate::problem::Error;
use crate::status::{Backend, Daemon, Interface, NextHop, Problem, SCHEMA, Service, Status};

/// Which node is meant.
#[derive(Clone, Copy, Debug)]
pub struct Whom<'a> {
    /// The configuration that names it.
    pub config: Option<&'a Path>,
    /// Its name.
    pub node: Option<&'a str>,
}

/// A node's name and where its daemon listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub node: String,
    /// Its daemon's API socket, when known.
    pub socket: Option<PathBuf>,
    /// Nobody named it: it is the only one on this machine.
    pub guessed: bool,
}

impl Whom<'_> {
    /// Finds the node: by the given configuration, by name, by the default configuration if there
    /// is one, or the only one that is pinned.
    ///
    /// # Errors
    /// The configuration is wrong, or it is not clear which node is meant.
    pub fn find(&self) -> Result<Target, Error> {
        if let Some(path) = self.config {
            return configured(path);
        }
        let default = Path::new(ringway_config::DEFAULT_PATH);
        let by_default = default.exists().then(|| configured(default));
        match (self.node, by_default) {
            (Some(name), Some(Ok(target))) if target.node == name => Ok(target),
            (Some(name), _) => {
                let socket = default_socket(name);
                Ok(Target { node: name.to_owned(), socket, guessed: false })
            }
            (None, Some(target)) => target,
            (None, None) => only_one(),
        }
    }
}

fn configured(path: &Path) -> Result<Target, Error> {
    let config = match ringway_config::load(path) {
        Ok(config) => config,
        Err(errors) => {
            // A daemon may run by what the file was before somebody began to change it.
            let Identity { node, socket } = ringway_config::identity(path);
            return match node {
                Some(node) => Ok(Target { node, socket: Some(socket), guessed: false }),
                None => Err(Error::configuration(
                    errors.to_string(),
                    "give another file with -c FILE, or name the node with --node NAME",
                )),
            };
        }
    };
    let socket = Some(config.api.socket.clone().into_inner());
    Ok(Target { node: config.node.name.to_string(), socket, guessed: false })
}

fn only_one() -> Result<Target, Error> {
    // Not being allowed to look is not the same as nothing being there.
    let known = Pins::new(DEFAULT_BPFFS, "any").and_then(|pins| pins.known_nodes());
    let known = known.map_err(|error| Error::failed(error.to_string(), ""))?;
    match known.as_slice() {
        [node] => {
            let socket = default_socket(node);
            Ok(Target { node: node.clone(), socket, guessed: true })
        }
        [] => Err(Error::unhealthy(
            "daemon not running, and nothing of Ringway is loaded on this machine",
            format!("start it with `ringway run`; configuration: {}", ringway_config::DEFAULT_PATH),
        )),
        nodes => Err(Error::configuration(
            format!("several nodes are loaded here: {}", nodes.join(", ")),
            "say which with --node NAME or -c FILE",
        )),
    }
}

/// The default socket, if the daemon that listens there is this node's.
fn default_socket(node: &str) -> Option<PathBuf> {
    let socket = PathBuf::from(ringway_config::DEFAULT_SOCKET);
    let status: Status = client::get(&socket, "/v1/status").ok()?;
    (status.node == node).then_some(socket)
}

/// The node's status.
///
/// # Errors
/// Nothing is known about it, or the daemon's answer is no use.
pub fn status(whom: &Whom<'_>) -> Result<Status, Error> {
    let target = whom.find()?;
    if let Some(socket) = &target.socket {
        match client::get::<Status>(socket, "/v1/status") {
            Ok(status) if status.node == target.node => return Ok(status),
            Ok(status) => {
                let what = format!(
                    "API socket {} is node {}'s, not {}'s",
                    socket.display(),
                    status.node,
                    target.node
                );
                return Err(Error::configuration(what, "give each node its own [api] socket"));
            }
            Err(client::Failure::NotRunning) => {}
            Err(client::Failure::Failed(error)) => return Err(error),
        }
    }
    from_pins(&target.node)
}

/// What the pins tell, when no daemon does.
fn from_pins(node: &str) -> Result<Status, Error> {
    let view = match View::open(Path::new(DEFAULT_BPFFS), node) {
        Ok(view) => view,
        Err(ringway_kernel::Error::NotLoaded { known, .. }) => {
            let others = match known.as_slice() {
                [] => String::new(),
                names => format!(" (loaded: {})", names.join(", ")),
            };
            return Err(Error::unhealthy(
                format!("daemon not running, and nothing is loaded for node {node}{others}"),
                "start it with `ringway run`",
            ));
        }
        Err(error) => return Err(Error::failed(error.to_string(), "")),
    };
    let read = || -> ringway_kernel::Result<Status> {
        let mut status = Status {
            schema: SCHEMA.to_owned(),
            node: node.to_owned(),
            daemon: last_daemon(&view)?,
            ..Status::default()
        };
        let states = view.interfaces()?;
        status.interfaces = states.iter().map(interface).collect();
        for (place, state) in states.iter().enumerate() {
            board::count(&mut status, place, &state.ledger);
        }
        status.services = view.services()?.iter().map(|state| service(state, &states)).collect();
        status.flow_table = Some(board::flow_table(&view)?);
        status.tracked = Some(board::tracked(&view)?);
        if !view.counts_losses()? {
            status.findings.push(board::losses_uncounted(None));
        }
        status.problems = problems(&status);
        Ok(status)
    };
    read().map_err(|error| Error::failed(error.to_string(), ""))
}

fn last_daemon(view: &View) -> ringway_kernel::Result<Daemon> {
    let Some(last) = view.daemon()? else { return Ok(Daemon::default()) };
    Ok(Daemon {
        running: last.running,
        pid: Some(last.pid),
        since: Some(clock::rfc3339(if last.running { last.started } else { last.alive })),
        ..Daemon::default()
    })
}

fn problems(status: &Status) -> Vec<Problem> {
    let since = status.daemon.since.as_deref().unwrap_or("an unknown time");
    let pid = status.daemon.pid.unwrap_or_default();
    let mut problems = vec![match status.daemon.running {
        false => Problem {
            error: format!("daemon not running since {since}: nobody checks the backends"),
            remedy: "start it with `ringway run`; it takes over without losing a packet".into(),
        },
        true => Problem {
            error: format!(
                "the daemon (process {pid}) was not asked: its API socket is not known, or does \
                 not answer; this is what the pins tell"
            ),
            remedy: "name its configuration with -c FILE".into(),
        },
    }];
    for interface in status.interfaces.iter().filter(|interface| !interface.attached) {
        problems.push(Problem {
            error: format!(
                "{}: our program is not attached, or not visible from this network namespace",
                interface.name
            ),
            remedy: "run `ringway status` in the gateway's namespace; `ringway run` attaches again"
                .into(),
        });
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

fn service(state: &ServiceState, interfaces: &[InterfaceState]) -> Service {
    let name = |slot: u32| {
        let found = interfaces.iter().find(|interface| interface.slot == slot);
        found.and_then(|interface| interface.name.clone()).unwrap_or_default()
    };
    let backends = state.backends.iter().map(|backend| {
        let mut shown = Backend {
            address: backend.address.ip().to_string(),
            port: backend.address.port(),
            health: if backend.up { Health::Up } else { Health::Down },
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
        shown
    });
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
        backends: backends.collect(),
    }
}
