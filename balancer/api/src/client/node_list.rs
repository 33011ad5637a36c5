//! The nodes of this machine, and the one that a command means which names none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_kernel::{DEFAULT_BPFFS, Pins, View, is_node_name};

use crate::client::http::{self, Listener};
use crate::documents::readiness::Readiness;
use crate::error::Error;
use crate::node::netns_hint::{self, Place};

/// How long a daemon may take to say its name.
const PATIENCE: Duration = Duration::from_millis(500);

/// A node that has pins, or whose daemon answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedNode {
    pub name: String,
    pub place: Place,
    /// Where its daemon answers, if its pins are not to be seen here.
    pub socket: Option<PathBuf>,
}

/// All nodes that are to be seen from here.
///
/// # Errors
/// This user may not look: that is not the same as none.
pub fn all() -> Result<Vec<ListedNode>, Error> {
    let names = Pins::new(DEFAULT_BPFFS, "any").and_then(|pins| pins.known_nodes());
    let names = names.map_err(|error| Error::failed(error.to_string(), ""))?;
    let pinned = names.into_iter().map(|name| {
        let place = place_of(&name);
        ListedNode { name, place, socket: None }
    });
    let mut nodes: Vec<ListedNode> = pinned.collect();
    // Pins of a daemon under `ip netns exec` are its own; its socket is everybody's.
    if !nodes.iter().any(ListedNode::is_here) {
        let noted = |node: &ListedNode| Pins::new(DEFAULT_BPFFS, &node.name).ok()?.socket();
        let noted: Vec<PathBuf> = nodes.iter().filter_map(noted).collect();
        let others = sockets().into_iter().filter(|socket| !noted.contains(socket));
        nodes.extend(others.filter_map(of_socket));
    }
    Ok(nodes)
}

/// Where a node with pins is.
pub fn place_of(node: &str) -> Place {
    let view = View::open(Path::new(DEFAULT_BPFFS), node);
    view.map_or(Place::Unknown, |view| netns_hint::locate(&view))
}

/// The daemon of this node, which sees other mounts than this process: its number. Only root's: with
/// its mounts a command runs its programs. Others may have taken its name.
pub fn hidden_daemon(node: &str) -> Option<u64> {
    let of_root = sockets().into_iter().filter_map(|socket| {
        let (name, listener) = answers(&socket)?;
        listener.filter(|listener| name == node && listener.is_root)
    });
    of_root.map(|listener| listener.pid).find(|pid| netns_hint::is_root_elsewhere(*pid))
}

/// The only node of this network namespace; where there is none, the only one of this machine.
///
/// # Errors
/// There are several, with a command for each.
pub fn meant(nodes: &[ListedNode]) -> Result<Option<&ListedNode>, Error> {
    Ok(match here(nodes)? {
        None => only(nodes.iter().collect(), nodes)?,
        here => here,
    })
}

/// The only node of this network namespace.
///
/// # Errors
/// As above.
pub fn here(nodes: &[ListedNode]) -> Result<Option<&ListedNode>, Error> {
    only(nodes.iter().filter(|node| node.is_here()).collect(), nodes)
}

fn only<'a>(
    candidates: Vec<&'a ListedNode>,
    all: &[ListedNode],
) -> Result<Option<&'a ListedNode>, Error> {
    match candidates.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(Error::configuration(
            format!("it is not clear which of these nodes is meant:{}", lines(all)),
            "write such a command, or name the node's configuration with -c FILE",
        )),
    }
}

impl ListedNode {
    fn is_here(&self) -> bool {
        self.place == Place::Here
    }
}

/// A line for each node, behind a line's end: its namespace and a command for it alone.
pub fn lines(nodes: &[ListedNode]) -> String {
    let line = |node: &ListedNode| {
        let place = match &node.place {
            Place::Here => "this network namespace".to_owned(),
            Place::Elsewhere(netns) => netns.to_string(),
            Place::Unknown => "a network namespace that is not known".to_owned(),
        };
        let enter = node.place.enter().map(|enter| enter + " ").unwrap_or_default();
        // Where pins are a daemon's own, another may have the same name.
        let option = match (&node.socket, &node.place) {
            (Some(_), Place::Elsewhere(_)) => String::new(),
            _ => format!(" --node {}", node.name),
        };
        format!("\n  {}, of {place}: {enter}ringway status{option}", node.name)
    };
    nodes.iter().map(line).collect()
}

fn of_socket(socket: PathBuf) -> Option<ListedNode> {
    let (name, listener) = answers(&socket)?;
    let place = listener.and_then(|listener| netns_hint::of_process(listener.pid));
    Some(ListedNode { name, place: place.unwrap_or(Place::Unknown), socket: Some(socket) })
}

/// The node whose daemon answers there, and that daemon. Who answers chooses the name.
fn answers(socket: &Path) -> Option<(String, Option<Listener>)> {
    let answer = http::get_and_identify::<Readiness>(socket, "/v1/ready", PATIENCE);
    let (readiness, listener) = answer.ok()?;
    is_node_name(&readiness.node).then_some((readiness.node, listener))
}

/// API sockets where they are by default.
fn sockets() -> Vec<PathBuf> {
    let directory = Path::new(ringway_config::DEFAULT_SOCKET).parent();
    let entries = directory.and_then(|directory| fs::read_dir(directory).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sockets: Vec<_> =
        paths.filter(|path| path.extension() == Some("sock".as_ref())).collect();
    sockets.sort();
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::netns_hint::Netns;

    fn node(name: &str, place: Place) -> ListedNode {
        ListedNode { name: name.into(), place, socket: None }
    }

    fn away(name: &str) -> ListedNode {
        node(name, Place::Elsewhere(Netns::Named("far".into())))
    }

    #[test]
    fn the_only_node_of_this_namespace_is_meant() {
        let name = |found: Result<Option<&ListedNode>, Error>| {
            found.expect("clear").map(|node| node.name.clone())
        };
        let (a, b) = (node("a", Place::Here), away("b"));
        for nodes in [[a.clone(), b.clone()], [node("c", Place::Unknown), a.clone()]] {
            assert_eq!(name(meant(&nodes)).as_deref(), Some("a"));
        }
        let lone = [b.clone()];
        assert_eq!((name(meant(&lone)).as_deref(), name(here(&lone))), (Some("b"), None));
        assert_eq!(name(meant(&[])), None);
    }

    #[test]
    fn what_is_not_clear_is_told_with_a_command_for_each() {
        let unnamed = Place::Elsewhere(Netns::Unnamed { inode: 9, pid: 7 });
        let private = ListedNode { socket: Some("/run/c.sock".into()), ..away("c") };
        let nodes = [node("a", Place::Here), node("b", Place::Here), private, node("d", unnamed)];
        let told = here(&nodes).expect_err("two").what;
        let lines: Vec<&str> = told.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "  a, of this network namespace: ringway status --node a",
                "  b, of this network namespace: ringway status --node b",
                "  c, of network namespace far: nsenter --net=/run/netns/far ringway status",
                "  d, of network namespace 9: nsenter -t 7 -n ringway status --node d",
            ]
        );
        assert!(meant(&[away("a"), away("b")]).is_err());
    }
}
