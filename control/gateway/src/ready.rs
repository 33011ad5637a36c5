//! Whether a node should get traffic: the check for keepalived, BIRD and ExaBGP, which must have its
//! answer at once and withdraw a node only where another would do better.

use std::path::Path;
use std::time::Duration;

use ringway_config::Identity;
use serde::{Deserialize, Serialize};

use crate::api::client::{self, Failure};
use crate::ask::Whom;
use crate::status::{Problem, Status};

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.ready/1";

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(70);

/// Whether, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// [`SCHEMA`].
    pub schema: String,
    /// `[node] name`; empty when it is not known.
    pub node: String,
    /// Whether it should get traffic.
    pub ready: bool,
    /// Why not; or, where it should all the same, what is wrong with single services.
    pub reasons: Vec<String>,
}

impl Readiness {
    /// By what the daemon has posted. `service`: one of them, instead of any.
    pub fn of(posted: &Status, stalled: Option<Duration>, service: Option<&str>) -> Readiness {
        let mut unready: Vec<String> = posted.unready.iter().map(line).collect();
        if let Some(age) = stalled {
            let age = age.as_secs();
            unready.insert(0, format!("the daemon's loop has not turned for {age} s: restart it"));
        }
        if let Some(name) = service {
            unready.extend(unserved(posted, name));
        }
        let ready = unready.is_empty();
        let reasons = if ready { posted.problems.iter().map(line).collect() } else { unready };
        Readiness { schema: SCHEMA.to_owned(), node: posted.node.clone(), ready, reasons }
    }

    fn no(node: &str, reason: String) -> Readiness {
        let (schema, node) = (SCHEMA.to_owned(), node.to_owned());
        Readiness { schema, node, ready: false, reasons: vec![reason] }
    }

    /// One line for people and logs.
    pub fn line(&self) -> String {
        let word = if self.ready { "ready" } else { "not ready" };
        let node = if self.node.is_empty() { "" } else { &format!(": node {}", self.node) };
        let but = if self.ready { ", although " } else { ": " };
        match self.reasons.as_slice() {
            [] => format!("{word}{node}"),
            [one] => format!("{word}{node}{but}{one}"),
            [one, rest @ ..] => format!("{word}{node}{but}{one} (and {} more)", rest.len()),
        }
    }
}

fn line(problem: &Problem) -> String {
    let Problem { error, remedy } = problem;
    let text = if remedy.is_empty() { error.clone() } else { format!("{error}; {remedy}") };
    text.replace('\n', " ")
}

fn unserved(posted: &Status, name: &str) -> Option<String> {
    let mut of_name = posted.services.iter().filter(|service| service.name == name).peekable();
    if of_name.peek().is_none() {
        return Some(format!("there is no service {name:?}: `ringway status` lists them"));
    }
    let served = of_name.any(|service| service.serving() > 0);
    (!served).then(|| format!("service {name}: no backend gets traffic; see `ringway status`"))
}

/// Asks the daemon, and waits no longer than a tenth of a second. Whatever goes wrong is a reason
/// not to be ready.
pub fn ask(whom: &Whom<'_>, service: Option<&str>) -> Readiness {
    let Identity { node, socket } = target(whom);
    let of = service.map_or_else(String::new, |name| format!("/{}", encoded(name)));
    let name = node.clone().unwrap_or_default();
    match client::get_at_once::<Readiness>(&socket, &format!("/v1/ready{of}"), PATIENCE) {
        Ok(found) if node.as_ref().is_none_or(|node| *node == found.node) => found,
        Ok(found) => {
            let socket = socket.display();
            Readiness::no(&name, format!("API socket {socket} is node {}'s", found.node))
        }
        Err(Failure::NotRunning) => {
            let socket = socket.display();
            Readiness::no(&name, format!("daemon not running: nobody listens on {socket}"))
        }
        Err(Failure::Failed(error)) => Readiness::no(&name, line(&Problem::from(error))),
    }
}

/// What is to be asked. The configuration need not be right: a file that is being edited must not
/// make a running node look dead.
fn target(whom: &Whom<'_>) -> Identity {
    match (whom.config, whom.node) {
        (Some(file), _) => ringway_config::identity(file),
        (None, Some(name)) => {
            let default = ringway_config::identity(Path::new(ringway_config::DEFAULT_PATH));
            let same = default.node.as_deref() == Some(name);
            let socket = if same { default.socket } else { ringway_config::DEFAULT_SOCKET.into() };
            Identity { node: Some(name.to_owned()), socket }
        }
        (None, None) => ringway_config::identity(Path::new(ringway_config::DEFAULT_PATH)),
    }
}

/// For a URL (RFC 3986, section 2.1).
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") };
    name.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;
    use crate::status::{Backend, NextHop, Service};

    fn problem(error: &str) -> Problem {
        Problem { error: error.into(), remedy: "mend it".into() }
    }

    fn service(name: &str, health: Health) -> Service {
        let backend = Backend { health, next_hop: Some(NextHop::default()), ..Backend::default() };
        Service { name: name.into(), backends: vec![backend], ..Service::default() }
    }

    #[test]
    fn one_service_of_two_is_no_reason_to_withdraw_the_node() {
        let posted = Status {
            node: "gw1".into(),
            problems: vec![problem("service web: no backend")],
            services: vec![service("web", Health::Down), service("dns", Health::Up)],
            ..Status::default()
        };
        let all = Readiness::of(&posted, None, None);
        assert!(all.ready);
        assert_eq!(all.line(), "ready: node gw1, although service web: no backend; mend it");
        assert!(Readiness::of(&posted, None, Some("dns")).ready);
        let web = Readiness::of(&posted, None, Some("web"));
        assert!(!web.ready && web.line().starts_with("not ready: node gw1: service web:"));
        assert!(!Readiness::of(&posted, None, Some("mail")).ready);
    }

    #[test]
    fn a_node_that_cannot_serve_says_why_in_one_line() {
        let unready = vec![problem("eth1 is\ndown"), problem("starting")];
        let posted = Status { node: "gw1".into(), unready, ..Status::default() };
        let said = Readiness::of(&posted, None, None).line();
        assert_eq!(said, "not ready: node gw1: eth1 is down; mend it (and 1 more)");
        let stalled = Readiness::of(&Status::default(), Some(Duration::from_secs(9)), None);
        assert!(!stalled.ready && stalled.reasons[0].contains("9 s"));
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("web-1.a_~"), "web-1.a_~");
        assert_eq!(encoded("w b&=é"), "w%20b%26%3D%C3%A9");
    }
}
