//! Which node is meant, where its daemon may listen, and what is said where nobody answers for it.

use std::path::{Path, PathBuf};

use ringway_config::Identity;
use ringway_kernel::{DEFAULT_BPFFS, Pins, View, bpffs_is_hidden};

use crate::client::http;
use crate::client::node_list::{self, ListedNode, hidden_daemon, place_of};
use crate::documents::readiness::Readiness;
use crate::documents::status::Problem;
use crate::error::Error;
use crate::node::netns_hint::{self, Place};
use crate::node::service_manager;
use crate::problem_kind::ProblemKind;

#[derive(Clone, Copy, Debug)]
pub struct NodeSelector<'a> {
    /// The configuration that names it.
    pub config: Option<&'a Path>,
    pub node: Option<&'a str>,
}

/// A node's name and where its daemon may listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTarget {
    pub node: String,
    /// API sockets that may be its daemon's, the likeliest first.
    pub sockets: Vec<PathBuf>,
    /// Its configuration file, where one was named.
    pub file: Option<PathBuf>,
    /// It is of another network namespace, see [`Place::enter`], and nobody named it: it is the
    /// only one on this machine.
    pub enter_netns: Option<String>,
}

impl NodeSelector<'_> {
    /// The options that name the same node, each with a space before it.
    pub fn options(&self) -> String {
        let file = self.config.map(|file| format!(" -c {}", file.display()));
        let node = self.node.map(|node| format!(" --node {node}"));
        [file, node].into_iter().flatten().collect()
    }

    /// Finds the node: by the given configuration, by name, by the default configuration if there
    /// is one, or the only one of this network namespace, else of this machine. A default
    /// configuration's node that is elsewhere gives way to one that is here.
    ///
    /// # Errors
    /// The configuration is wrong, or it is not clear which node is meant.
    pub fn find(&self) -> Result<NodeTarget, Error> {
        self.find_beside(Path::new(ringway_config::DEFAULT_PATH))
    }

    /// API sockets of nodes that a configuration does not name, though their daemons may run by it:
    /// it names none that is loaded.
    pub fn misnamed(&self) -> Vec<PathBuf> {
        let file = self.config.unwrap_or(Path::new(ringway_config::DEFAULT_PATH));
        let Identity { node, socket } = ringway_config::identity(file);
        let any = Pins::new(DEFAULT_BPFFS, "any").and_then(|pins| pins.known_nodes());
        let known = any.unwrap_or_default();
        if node.is_some_and(|node| known.contains(&node)) || !file.exists() {
            return Vec::new();
        }
        let of_node = |name: &String| Pins::new(DEFAULT_BPFFS, name).ok()?.socket();
        let mut sockets = vec![socket];
        sockets.extend(known.iter().filter_map(of_node));
        sockets.sort();
        sockets.dedup();
        sockets
    }

    fn find_beside(&self, default: &Path) -> Result<NodeTarget, Error> {
        if let Some(path) = self.config {
            return Ok(NodeTarget { file: Some(path.to_owned()), ..configured(path)? });
        }
        if let Some(name) = self.node {
            let by_default = ringway_config::identity(default);
            let same = by_default.node.as_deref() == Some(name);
            return Ok(NodeTarget::new(name, same.then_some(by_default.socket)));
        }
        if !default.exists() {
            return only_one();
        }
        let target = configured(default)?;
        match place_of(&target.node) {
            Place::Elsewhere(_) => {
                let nodes = node_list::all()?;
                Ok(node_list::here(&nodes)?.map_or(target, NodeTarget::of))
            }
            Place::Here | Place::Unknown => Ok(target),
        }
    }
}

impl NodeTarget {
    /// `configured`: where its configuration says that it listens.
    fn new(node: &str, configured: Option<PathBuf>) -> NodeTarget {
        let noted = Pins::new(DEFAULT_BPFFS, node).ok().and_then(|pins| pins.socket());
        let default = configured.is_none().then(|| PathBuf::from(ringway_config::DEFAULT_SOCKET));
        let mut sockets: Vec<PathBuf> = Vec::new();
        for socket in [configured, noted, default].into_iter().flatten() {
            if !sockets.contains(&socket) {
                sockets.push(socket);
            }
        }
        NodeTarget { node: node.to_owned(), sockets, file: None, enter_netns: None }
    }

    /// One that nobody named.
    fn of(node: &ListedNode) -> NodeTarget {
        let target = NodeTarget::new(&node.name, None);
        let sockets = node.socket.clone().map_or(target.sockets, |socket| vec![socket]);
        NodeTarget { sockets, enter_netns: node.place.enter(), ..target }
    }

    /// The socket where this node's daemon answers.
    ///
    /// # Errors
    /// None does, and why.
    pub fn daemon(&self) -> Result<&Path, Error> {
        self.is_meant()?;
        let mut stranger = None;
        for socket in &self.sockets {
            match http::get::<Readiness>(socket, "/v1/ready") {
                Ok(found) if found.node == self.node => return Ok(socket),
                Ok(found) => stranger = stranger.or(Some((socket, found.node))),
                Err(http::Failure::NotRunning) => {}
                Err(http::Failure::Late(error) | http::Failure::Failed(error)) => {
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
    ///
    /// # Errors
    /// It is for one.
    pub fn is_meant(&self) -> Result<(), Error> {
        let Some(enter) = &self.enter_netns else { return Ok(()) };
        let Problem { error, .. } = stranger(&self.node, enter);
        Err(Error::configuration(
            format!("{error}: nothing was done"),
            format!("if it is meant, add --node {}; `{enter} ringway status` shows it", self.node),
        ))
    }

    /// Nobody answers for the node, by what its pins tell.
    pub fn silent(&self) -> Error {
        if let Some(doing) = service_manager::starting(&self.node) {
            return starting(&self.node, &doing);
        }
        match View::open(Path::new(DEFAULT_BPFFS), &self.node) {
            Err(ringway_kernel::Error::NotLoaded { known, .. }) if !known.is_empty() => {
                not_loaded(&self.node, &known, false, place_of)
            }
            view => {
                let last = view.ok().and_then(|view| view.daemon().ok().flatten());
                match last.filter(|last| last.running) {
                    Some(last) if !lives(last.pid) => starting(&self.node, ""),
                    last => silent(&self.node, last.map(|last| last.pid)),
                }
            }
        }
    }
}

/// A node that nobody named and that is attached in another network namespace.
pub fn stranger(node: &str, enter: &str) -> Problem {
    ProblemKind::OtherNamespace.problem(
        format!(
            "no node was named, and the only one on this machine, {node}, is of another network namespace"
        ),
        format!("if it is not the one you mean, name yours with --node or -c; there: `{enter} ringway status`"),
    )
}

/// Whether there is such a process. A daemon that starts has the node's lock before it has beaten
/// for the first time: until then the last beat is that of the one before.
pub fn lives(pid: u64) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// A configuration's own socket is that of a daemon of another name.
pub fn anothers(socket: &Path, other: &str, node: &str) -> Error {
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
fn configured(path: &Path) -> Result<NodeTarget, Error> {
    let Identity { node, socket } = ringway_config::identity(path);
    if let Some(node) = node {
        return Ok(NodeTarget::new(&node, Some(socket)));
    }
    let wrong = ringway_config::load(path).err().map(|errors| errors.to_string());
    Err(Error::configuration(
        wrong.unwrap_or_else(|| format!("{}: no [node] name", path.display())),
        "give another file with -c FILE, or name the node with --node NAME",
    ))
}

/// Nodes, each with how to get where it is if that is elsewhere.
pub fn each_of(nodes: &[String], place: impl Fn(&str) -> Place) -> String {
    let one = |node: &String| match place(node) {
        Place::Elsewhere(netns) => format!("{node} (of {netns}: `{} ringway ...`)", netns.enter()),
        Place::Here | Place::Unknown => node.clone(),
    };
    nodes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn only_one() -> Result<NodeTarget, Error> {
    let nodes = node_list::all()?;
    if let Some(node) = node_list::meant(&nodes)? {
        return Ok(NodeTarget::of(node));
    }
    Err(match netns_hint::hidden("what is loaded", "ringway ...") {
        Some((what, remedy)) => Error::unhealthy(what, remedy),
        None => Error::unhealthy(
            "daemon not running, and nothing of Ringway is loaded on this machine",
            format!("start it with `ringway run`; configuration: {}", ringway_config::DEFAULT_PATH),
        ),
    })
}

/// A node's tables, which are there with or without a daemon.
///
/// # Errors
/// Nothing is loaded for the node, or it is not for us to look at.
pub fn view(node: &str) -> Result<View, Error> {
    View::open(Path::new(DEFAULT_BPFFS), node).map_err(|error| match error {
        ringway_kernel::Error::NotLoaded { known, .. } => match service_manager::starting(node) {
            Some(doing) => starting(node, &doing),
            None => not_here(node, &known),
        },
        error => Error::failed(error.to_string(), ""),
    })
}

/// Nothing of the node is to be seen here. `known`: nodes of which there is something.
pub fn not_here(node: &str, known: &[String]) -> Error {
    match hidden_daemon(node) {
        Some(pid) => Error::failed(
            format!(
                "what the daemon of node {node} (process {pid}) has loaded cannot be seen here: it or this process has a \
                 {DEFAULT_BPFFS} of its own, as `ip netns exec` gives"
            ),
            format!("run it as that process would: `nsenter -t {pid} -m -n ringway ...`"),
        ),
        None => not_loaded(node, known, bpffs_is_hidden(Path::new(DEFAULT_BPFFS)), place_of),
    }
}

/// `known`: nodes that are loaded. `hidden`: this process cannot see any. `place`: where a node is.
fn not_loaded(node: &str, known: &[String], hidden: bool, place: impl Fn(&str) -> Place) -> Error {
    if known.iter().any(|known| known == node) {
        let held = Pins::new(DEFAULT_BPFFS, node).is_ok_and(|pins| pins.is_held());
        return unfinished(node, held);
    }
    match known {
        [] if hidden => Error::unhealthy(
            format!(
                "daemon not running, and what is loaded for node {node} cannot be seen here: this process has no {DEFAULT_BPFFS}"
            ),
            netns_hint::unhide(&format!("ringway status --node {node}")),
        ),
        [] => Error::unhealthy(
            format!("daemon not running, and nothing is loaded for node {node}"),
            "start it with `ringway run`",
        ),
        [one] => {
            let (of, before) = match place(one) {
                Place::Elsewhere(netns) => (format!(", of {netns}"), netns.enter() + " "),
                Place::Here | Place::Unknown => (String::new(), String::new()),
            };
            Error::unhealthy(
                format!("there is no node {node:?} on this machine; there is {one:?}{of}"),
                format!(
                    "`{before}ringway status --node {one}` shows that one; or start {node} with `ringway run`"
                ),
            )
        }
        several => Error::unhealthy(
            format!(
                "there is no node {node:?} on this machine; there are {}",
                each_of(several, place)
            ),
            format!("name one of them with --node; or start {node} with `ringway run`"),
        ),
    }
}

/// Its pins are not complete. `held`: by a daemon, which makes them.
fn unfinished(node: &str, held: bool) -> Error {
    match held {
        true => starting(node, ""),
        false => Error::unhealthy(
            format!(
                "a start of node {node} was cut short: nothing of it is in use, and its daemon does not run"
            ),
            "start it with `ringway run`, which removes what is left",
        ),
    }
}

/// `doing`: as it says itself, or empty.
fn starting(node: &str, doing: &str) -> Error {
    let doing = if doing.is_empty() { String::new() } else { format!(": {doing}") };
    let what = format!("the daemon of node {node} is starting{doing}");
    Error::unhealthy(what, "ask again in a moment")
}

#[cfg(test)]
mod tests;
